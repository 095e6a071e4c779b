"""Virtual chunks in Google Cloud Storage and Azure, from servers that speak their protocols."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support import gcs_server
from support.gcs_server import BUCKET, READER, WRITER

from airflow_provider_icechunk.engine.format.chunk_refs import ETag, LastModified, Virtual
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.format.config.stores import (
    VirtualChunkContainer,
    azure_store,
    gcs_store,
)
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.base import Anything, Storage
from airflow_provider_icechunk.engine.storage.credentials import azure_credentials, gcs_credentials
from airflow_provider_icechunk.engine.virtual.reader import NetworkTransport, VirtualReader
from airflow_provider_icechunk.exceptions import Kind, VirtualChunkChangedError, VirtualChunkError

DATA = bytes(range(256)) * 40


class Foreign:
    """A file in a cloud, and how to authorize it."""

    def __init__(self, prefix: str, store: Any, good: Any, bad: Any, storage: Storage) -> None:
        self.prefix, self.store, self.good, self.bad = prefix, store, good, bad
        self.storage = storage
        storage.put("file.nc", DATA, expect=Anything())
        self.url = f"{prefix}file.nc"

    def reader(self, credential: Any) -> VirtualReader:
        config = RepositoryConfig()
        config.set_virtual_chunk_container(VirtualChunkContainer(self.prefix, self.store))
        return VirtualReader.from_config(
            config,
            {self.prefix: credential},
            given=config,
            transport=NetworkTransport(Backoff(tries=3, first_pause=0.0)),
        )


@pytest.fixture(params=["gcs", pytest.param("azure", marks=pytest.mark.long)])
def foreign(request: pytest.FixtureRequest) -> Iterator[Foreign]:
    from support.writers import Cloud

    if request.param == "azure":
        from support.azurite import CONTAINER, KEY

        from tools.azurite import ACCOUNT

        server = request.getfixturevalue("azurite")
        prefix = server.fresh_prefix()
        yield Foreign(
            f"az://{CONTAINER}/{prefix}/",
            azure_store(account=ACCOUNT, config={"endpoint": server.endpoint_url}),
            azure_credentials(sas_token=server.signature("r")),
            azure_credentials(access_key="d3Jvbmc="),
            Cloud(f"az://{CONTAINER}/{prefix}", server.endpoint_url, KEY, ACCOUNT).storage(),
        )
        return
    with gcs_server.running() as state:
        yield Foreign(
            f"gs://{BUCKET}/data/",
            gcs_store({"google_base_url": state.url}),
            gcs_credentials(bearer_token=READER),
            gcs_credentials(bearer_token="marker-wrong"),
            Cloud(f"gs://{BUCKET}/data", state.url, WRITER).storage(),
        )


def test_a_range_is_read_and_held_against_its_checksum(foreign: Foreign) -> None:
    reader = foreign.reader(foreign.good)
    described = reader.describe(foreign.url)
    assert described.size == len(DATA)
    assert described.etag is not None
    assert described.modified is not None
    for checksum in (None, ETag(described.etag), LastModified(described.modified)):
        assert reader.read(Virtual(foreign.url, 10, 300, checksum)) == DATA[10:310]


def test_a_file_that_changed_is_refused(foreign: Foreign) -> None:
    reader = foreign.reader(foreign.good)
    tag = reader.describe(foreign.url).etag
    assert tag is not None
    foreign.storage.put("file.nc", DATA[::-1], expect=Anything())
    with pytest.raises(VirtualChunkChangedError):
        reader.read(Virtual(foreign.url, 0, 10, ETag(tag)))


def test_wrong_credentials_and_missing_files_are_told_without_secrets(foreign: Foreign) -> None:
    with pytest.raises(VirtualChunkError) as caught:
        foreign.reader(foreign.bad).read(Virtual(foreign.url, 0, 10))
    assert caught.value.kind is Kind.STORAGE_DENIED
    assert "marker" not in str(caught.value)
    reader = foreign.reader(foreign.good)
    with pytest.raises(VirtualChunkError, match="does not exist"):
        reader.read(Virtual(f"{foreign.prefix}absent", 0, 10))
    with pytest.raises(VirtualChunkError, match=r"shorter|outside"):
        reader.read(Virtual(foreign.url, len(DATA) - 5, 10))
