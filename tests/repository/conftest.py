"""Storages of every kind, for tests of the engine that touch storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from support import moto_server

from airflow_provider_icechunk.storage.base import Storage
from airflow_provider_icechunk.storage.credentials import static_credentials
from airflow_provider_icechunk.storage.local import LocalStorage
from airflow_provider_icechunk.storage.memory import MemoryStorage

_numbers = count()
BACKENDS = ["memory", "local", "moto", pytest.param("seaweedfs", marks=pytest.mark.seaweedfs)]


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """An S3 server in this process, with one bucket."""
    with moto_server.running() as endpoint:
        yield endpoint


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Storage]:
    """A function that connects to one place of each kind; calling it again is another process."""
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
