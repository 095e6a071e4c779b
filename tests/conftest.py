"""What all tests share: helper modules under `support`, patient Hypothesis, one object store."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from support.seaweedfs import SeaweedFS

    from airflow_provider_icechunk.storage.base import Storage

_numbers = count()
BACKENDS = ["memory", "local", "moto", pytest.param("seaweedfs", marks=pytest.mark.seaweedfs)]

settings.register_profile(
    "shared", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("shared")


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """A real S3 server on loopback, started once; mark tests that use it with `seaweedfs`."""
    from support.seaweedfs import running

    with running(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture(autouse=True)
def leave_no_open_pipes_of_others(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drop what the Spark provider leaves open now, not in the middle of some later test.

    `SparkSubmitHook` never closes the output of `spark-submit`; its warning is not about our code.
    """
    yield
    if request.node.get_closest_marker("airflow") is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """An S3 server in this process, with one bucket."""
    from support import moto_server

    with moto_server.running() as endpoint:
        yield endpoint


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Storage]:
    """A function that connects to one place of each kind; calling it again is another process."""
    from support import moto_server

    from airflow_provider_icechunk.storage.credentials import static_credentials
    from airflow_provider_icechunk.storage.local import LocalStorage
    from airflow_provider_icechunk.storage.memory import MemoryStorage

    match request.param:
        case "memory":
            storage = MemoryStorage()
            return lambda: storage
        case "local":
            return lambda: LocalStorage(tmp_path / "repository")
        case "moto":
            endpoint = request.getfixturevalue("moto_endpoint")
            keys, bucket = static_credentials(**moto_server.KEYS), moto_server.BUCKET
            prefix = f"repository-{next(_numbers)}"
        case _:
            from support.seaweedfs import SHARED_BUCKET

            server = request.getfixturevalue("seaweedfs")
            endpoint, keys, bucket = server.endpoint_url, server.credentials, SHARED_BUCKET
            prefix = server.fresh_prefix()
    from airflow_provider_icechunk.storage.s3 import S3Storage

    return lambda: S3Storage.at(
        bucket,
        prefix,
        region="us-east-1",
        endpoint_url=endpoint,
        credentials=keys,
        force_path_style=True,
        allow_http=True,
    )


# First, because xdist reads the groups in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that start the same costly thing in one worker process, where it runs once."""
    for item in items:
        for marker in ("airflow", "seaweedfs", "spark"):
            if item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.xdist_group(marker))
                break
