from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import gcs_server
from support.gcs_server import BUCKET, WRITER, GcsServer

from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.clouds.gcs import GcsSettings, GcsStorage
from airflow_provider_icechunk.engine.storage.secrets import Secret, Token
from airflow_provider_icechunk.testing.conformance import StorageSuite

QUICK = Backoff(tries=3, first_pause=0.0)


@pytest.fixture(scope="module")
def server() -> Iterator[GcsServer]:
    with gcs_server.running(page=7) as state:
        yield state


@pytest.fixture
def settings(server: GcsServer) -> GcsSettings:
    return GcsSettings(
        BUCKET,
        server.fresh_prefix(),
        endpoint_url=server.url,
        allow_http=True,
        credentials=Token(Secret(WRITER)),
        retry=QUICK,
    )


class TestGcsStorage(StorageSuite):
    @pytest.fixture
    def storage(self, settings: GcsSettings) -> GcsStorage:
        return GcsStorage(settings)
