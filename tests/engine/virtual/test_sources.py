"""Foreign files as a whole: what they are, and seeking in them."""

import io
import os
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import boto3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.moto_server import BUCKET, KEYS, running

from airflow_provider_icechunk.api import (
    RepositoryConfig,
    VirtualChunkContainer,
    http_store,
    local_filesystem_store,
    s3_credentials,
    s3_store,
)
from airflow_provider_icechunk.engine.format.chunk_refs import ETag, LastModified
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.virtual.reader import NetworkTransport, VirtualReader
from airflow_provider_icechunk.engine.virtual.sources import ForeignFile, SourceFile, location_of
from airflow_provider_icechunk.exceptions import (
    VirtualAccessDeniedError,
    VirtualChunkChangedError,
    VirtualChunkError,
)

DATA = bytes(range(251)) * 4200
"""More than three blocks."""


def reader_for(prefix: str, store: object, credentials: object = None) -> VirtualReader:
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store))  # type: ignore[arg-type]
    return VirtualReader.from_config(
        config,
        {prefix: credentials},  # type: ignore[dict-item]
        given=config,
        transport=NetworkTransport(Backoff(tries=2, first_pause=0.0)),
    )


@pytest.fixture
def local(tmp_path: Path) -> VirtualReader:
    (tmp_path / "a b.nc").write_bytes(DATA)
    return reader_for(f"file://{tmp_path}/", local_filesystem_store(str(tmp_path)))


def test_a_local_file_is_described_and_its_checksum_holds(
    tmp_path: Path, local: VirtualReader
) -> None:
    url = location_of(str(tmp_path / "a b.nc"))
    source = local.describe(url)
    assert (source.location, source.size) == (url, len(DATA))
    assert isinstance(source.checksum("etag"), ETag)
    assert isinstance(source.checksum("modified"), LastModified)
    assert source.checksum() == source.checksum("modified")
    file = SourceFile(local, source)
    assert file.read() == DATA
    os.utime(tmp_path / "a b.nc", (4e9, 4e9))
    with pytest.raises(VirtualChunkChangedError):
        SourceFile(local, source).read(1)


def test_what_is_no_file_below_the_grant_is_refused(tmp_path: Path, local: VirtualReader) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "out").symlink_to("/etc/passwd")
    for name, error in (
        ("missing", VirtualChunkError),
        ("folder", VirtualChunkError),
        ("out", VirtualAccessDeniedError),
    ):
        with pytest.raises(error, match=name):
            local.describe(f"file://{tmp_path}/{name}")
    with pytest.raises(VirtualAccessDeniedError):
        local.describe("file:///etc/passwd")


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, len(DATA) + 10), st.integers(0, 300_000)), min_size=1, max_size=8
    )
)
def test_reading_here_and_there_is_like_reading_a_file(wanted: list[tuple[int, int]]) -> None:
    class Memory(VirtualReader):
        def __init__(self) -> None:
            pass

        def read(self, ref, start=0, stop=None):  # type: ignore[no-untyped-def]
            return DATA[start : min(stop, ref.length)]

    file = SourceFile(Memory(), ForeignFile("file:///x", len(DATA), None, 1))
    plain = io.BytesIO(DATA)
    for place, size in wanted:
        assert file.seek(place) == plain.seek(place)
        assert file.read(size) == plain.read(size)
        assert file.tell() == plain.tell()
    assert file.seek(-5, os.SEEK_END) == len(DATA) - 5
    assert file.read() == DATA[-5:]


def test_an_object_of_a_bucket_is_described() -> None:
    with running() as endpoint:
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEYS["access_key_id"],
            aws_secret_access_key=KEYS["secret_access_key"],
        )
        client.put_object(Bucket=BUCKET, Key="d/x.nc", Body=DATA)
        store = s3_store(
            region="us-east-1", endpoint_url=endpoint, allow_http=True, force_path_style=True
        )
        prefix = f"s3://{BUCKET}/d/"
        reader = reader_for(prefix, store, s3_credentials(**KEYS))
        source = reader.describe(f"{prefix}x.nc")
        assert (source.size, source.modified is not None) == (len(DATA), True)
        assert source.checksum() == ETag(client.head_object(Bucket=BUCKET, Key="d/x.nc")["ETag"])
        file = SourceFile(reader, source)
        file.seek(300_000)
        assert file.read(5) == DATA[300_000:300_005]
        client.put_object(Bucket=BUCKET, Key="d/x.nc", Body=DATA[::-1])
        with pytest.raises(VirtualChunkChangedError):
            SourceFile(reader, source).read(1)
        with pytest.raises(VirtualChunkError, match="cannot inspect"):
            reader.describe(f"{prefix}missing.nc")
        client.close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *text: object) -> None:
        del text


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "x.nc").write_bytes(DATA)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file_on_a_web_server_is_described(web: str) -> None:
    reader = reader_for(web, http_store())
    source = reader.describe(f"{web}x.nc")
    assert (source.size, source.etag) == (len(DATA), None)
    assert isinstance(source.checksum(), LastModified)
    with pytest.raises(VirtualChunkError, match="responds with 404"):
        reader.describe(f"{web}missing.nc")
