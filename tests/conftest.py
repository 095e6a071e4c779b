"""What all tests share: helper modules under `support`, patient Hypothesis, one object store."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("airflow_provider_icechunk.testing.conformance")

if TYPE_CHECKING:
    from support.azurite import Azurite
    from support.places import Place
    from support.seaweedfs import SeaweedFS

    from airflow_provider_icechunk.engine.storage.base import Storage

_numbers = count()
BACKENDS = ["memory", "local", "moto", pytest.param("seaweedfs", marks=pytest.mark.seaweedfs)]

settings.register_profile(
    "random", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# Whether a change may land must not depend on dice: the same examples each time, and others in
# the long runs (`make test-long`), which look for what nobody has thought of.
settings.register_profile("same", settings.get_profile("random"), derandomize=True)
settings.load_profile("same")


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    """A real S3 server on loopback, started once; mark tests that use it with `seaweedfs`."""
    from support.seaweedfs import running

    with running(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """A real server of Azure Blob Storage on loopback, started once; needs npm."""
    from support.azurite import running

    from tools.azurite import binary

    program = binary()
    if program is None:
        pytest.skip("Azurite is missing: it is installed with npm, which was not found or failed")
    with running(tmp_path_factory.mktemp("azurite"), program) as server:
        yield server


def pytest_collection_finish() -> None:
    """Spare Python's garbage collector what was collected here: it lives as long as the process."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """An S3 server in this process, with one bucket."""
    from support import moto_server

    with moto_server.running() as endpoint:
        yield endpoint


@pytest.fixture(params=BACKENDS)
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Place]:
    """A function that gives a new place of each kind."""
    from support import moto_server
    from support import places as kinds

    match request.param:
        case "memory":
            return kinds.in_memory
        case "local":
            return lambda: kinds.in_folder(tmp_path / f"repository-{next(_numbers)}")
        case "moto":
            endpoint = request.getfixturevalue("moto_endpoint")
            return lambda: kinds.in_bucket(
                endpoint, moto_server.BUCKET, f"repository-{next(_numbers)}", moto_server.KEYS
            )
        case _:
            from support import seaweedfs

            server = request.getfixturevalue("seaweedfs")
            keys = {
                "access_key_id": seaweedfs.ACCESS_KEY,
                "secret_access_key": seaweedfs.SECRET_KEY,
            }
            return lambda: kinds.in_bucket(
                server.endpoint_url, seaweedfs.SHARED_BUCKET, server.fresh_prefix(), keys
            )


@pytest.fixture
def backend(places: Callable[[], Place]) -> Callable[[], Storage]:
    """A function that connects to one place; calling it again is another process."""
    return places().ours


# First, because xdist reads the groups in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that start the same costly thing in one worker process, where it runs once."""
    for item in items:
        for marker in ("airflow", "seaweedfs", "spark"):
            if item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.xdist_group(marker))
                break
