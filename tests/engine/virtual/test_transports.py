"""Reading from a real S3 protocol server, a real web server and real files."""

import os
import threading
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import pytest
from support import moto_server

from airflow_provider_icechunk.engine.format.chunk_refs import ETag, LastModified, Virtual
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.format.config.stores import (
    VirtualChunkContainer,
    http_store,
    local_filesystem_store,
    s3_store,
)
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.credentials import (
    S3StaticCredentials,
    s3_credentials,
    s3_refreshable_credentials,
)
from airflow_provider_icechunk.engine.virtual.reader import NetworkTransport, VirtualReader
from airflow_provider_icechunk.engine.virtual.transports import local_etag
from airflow_provider_icechunk.exceptions import (
    Kind,
    VirtualAccessDeniedError,
    VirtualChunkChangedError,
    VirtualChunkError,
)

DATA = bytes(range(256)) * 40
KEYS = s3_credentials(access_key_id="testing", secret_access_key="hunter2")


def reader_for(prefix, store, credentials=None, part_size=None):
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store))
    reader = VirtualReader.from_config(
        config,
        {prefix: credentials},
        given=config,
        transport=NetworkTransport(Backoff(tries=3, first_pause=0.0)),
    )
    reader._part_size = part_size or reader._part_size
    return reader


# --- S3 ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def endpoint():
    with moto_server.running() as url:
        yield url


@pytest.fixture
def s3(endpoint):
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    client.create_bucket(Bucket="foreign")
    client.put_object(Bucket="foreign", Key="deep/a b.nc", Body=DATA)
    yield client
    client.close()


def s3_reader(endpoint, credentials=KEYS, **options):
    store = s3_store(
        region="us-east-1",
        endpoint_url=endpoint,
        allow_http=True,
        s3_compatible=True,
        force_path_style=True,
    )
    return reader_for("s3://foreign/deep/", store, credentials, **options)


LOCATION = "s3://foreign/deep/a%20b.nc"


@pytest.mark.parametrize("part_size", [None, 1000])
def test_a_range_of_an_object_is_read(s3, endpoint, part_size):
    reader = s3_reader(endpoint, part_size=part_size)
    reference = Virtual(LOCATION, 300, 5000)
    assert reader.read(reference) == DATA[300:5300]
    assert reader.read(reference, 10, 20) == DATA[310:320]
    requests = [(Virtual(LOCATION, n, 7), 0, None) for n in range(5)]
    assert reader.read_many(requests) == [DATA[n : n + 7] for n in range(5)]


def test_refreshable_credentials_are_asked_for(s3, endpoint):
    asked = []

    def fetch():
        asked.append(1)
        return S3StaticCredentials("testing", "hunter2", "token", datetime.now(UTC) + timedelta(1))

    reader = s3_reader(endpoint, s3_refreshable_credentials(fetch))
    assert reader.read(Virtual(LOCATION, 0, 3)) == DATA[:3]
    assert asked == [1]


def test_an_unchanged_object_passes_its_checksum(s3, endpoint):
    head = s3.head_object(Bucket="foreign", Key="deep/a b.nc")
    reader = s3_reader(endpoint)
    tag = head["ETag"]
    written = int(head["LastModified"].timestamp())
    for checksum in (ETag(tag), ETag(tag.strip('"')), LastModified(written)):
        assert reader.read(Virtual(LOCATION, 1, 9, checksum)) == DATA[1:10]


def test_a_changed_object_is_an_error_and_never_data(s3, endpoint):
    tag = s3.head_object(Bucket="foreign", Key="deep/a b.nc")["ETag"]
    s3.put_object(Bucket="foreign", Key="deep/a b.nc", Body=DATA[::-1])
    reader = s3_reader(endpoint)
    for checksum in (ETag(tag), ETag(tag.strip('"')), LastModified(1_000_000_000)):
        with pytest.raises(VirtualChunkChangedError, match="changed"):
            reader.read(Virtual(LOCATION, 0, 10, checksum))


def test_what_is_not_there_is_an_error_that_names_the_location(s3, endpoint):
    reader = s3_reader(endpoint)
    for location, offset, length in [
        ("s3://foreign/deep/missing", 0, 1),
        (LOCATION, len(DATA) - 5, 10),
        (LOCATION, len(DATA) + 5, 10),
    ]:
        with pytest.raises(VirtualChunkError, match=r"s3://foreign/deep/"):
            reader.read(Virtual(location, offset, length))


def test_an_unreachable_store_is_an_error_without_secrets():
    reader = s3_reader("http://127.0.0.1:9", KEYS)
    with pytest.raises(VirtualChunkError) as caught:
        reader.read(Virtual(LOCATION, 0, 1))
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


# --- web servers ---------------------------------------------------------------------------------


class Files(BaseHTTPRequestHandler):
    """Serves ranges, and misbehaves on request."""

    protocol_version = "HTTP/1.1"
    tag = '"v1"'
    modified = datetime(2024, 1, 1, tzinfo=UTC)

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.server.paths.append(self.path)
        mode = self.path.rsplit("/", 1)[-1]
        if self.path.startswith("/public/to/"):
            return self.answer(302, b"", Location=self.server.targets[mode])
        if mode == "missing":
            return self.answer(404, b"not here")
        if mode == "flaky" and self.server.paths.count(self.path) < 3:
            return self.answer(503, b"")
        if mode != "careless":
            wanted = self.headers.get("If-Match")
            since = self.headers.get("If-Unmodified-Since")
            if (wanted and wanted != self.tag) or (
                since and self.modified > parsedate_to_datetime(since)
            ):
                return self.answer(412, b"")
        if mode == "whole":
            return self.answer(200, DATA)
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        body = DATA[first : last + 1]
        start = first + 1 if mode == "shifted" else first
        if not body:
            return self.answer(416, b"")
        if mode == "generous":
            body += b"more"
        return self.answer(
            206, body, **{"Content-Range": f"bytes {start}-{first + len(body) - 1}/{len(DATA)}"}
        )

    def answer(self, status, body, **headers):
        self.send_response(status)
        self.send_header("ETag", self.tag)
        self.send_header("Last-Modified", format_datetime(self.modified, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(handler=Files):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.paths, server.targets = [], {}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def web():
    with serving() as server:
        yield server


def base(server):
    return f"http://127.0.0.1:{server.server_port}/public/"


def test_a_range_of_a_file_on_a_web_server_is_read(web):
    reader = reader_for(base(web), http_store(), part_size=1000)
    assert reader.read(Virtual(base(web) + "a%20b", 300, 5000)) == DATA[300:5300]
    assert set(web.paths) == {"/public/a%20b"}
    assert len(web.paths) == 5


def test_a_passing_failure_is_tried_again(web):
    reader = reader_for(base(web), http_store())
    assert reader.read(Virtual(base(web) + "flaky", 0, 9)) == DATA[:9]


@pytest.mark.parametrize("mode", ["honest", "careless"])
def test_a_changed_file_is_an_error_whether_or_not_the_server_cares(web, mode):
    reader = reader_for(base(web), http_store())
    for checksum in (ETag('"v1"'), ETag("v1"), LastModified(int(Files.modified.timestamp()))):
        assert reader.read(Virtual(base(web) + mode, 0, 9, checksum)) == DATA[:9]
    for checksum in (ETag('"v0"'), LastModified(int(Files.modified.timestamp()) - 1)):
        with pytest.raises(VirtualChunkChangedError):
            reader.read(Virtual(base(web) + mode, 0, 9, checksum))


@pytest.mark.parametrize("mode", ["missing", "whole", "shifted", "generous"])
def test_an_answer_that_does_not_fit_is_an_error(web, mode):
    reader = reader_for(base(web), http_store())
    with pytest.raises(VirtualChunkError, match=mode):
        reader.read(Virtual(base(web) + mode, 5, 9))


def test_a_reference_beyond_the_end_is_an_error(web):
    reader = reader_for(base(web), http_store())
    for offset in (len(DATA) - 5, len(DATA) + 5):
        with pytest.raises(VirtualChunkError):
            reader.read(Virtual(base(web) + "a", offset, 10))


def test_redirects_are_followed_only_within_the_grant(web):
    with serving() as other:
        web.targets = {
            "inside": "/public/a",
            "host": base(other) + "a",
            "above": "/private/a",
            "dots": "/public/../private/a",
            "encoded": "/public/%2e%2e/private/a",
            "scheme": "//127.0.0.1:1/public/a",
            "file": "file:///etc/passwd",
            "metadata": "http://169.254.169.254/latest/",
            "nothing": "",
            "again": "/public/to/again",
        }
        reader = reader_for(base(web), http_store())
        assert reader.read(Virtual(base(web) + "to/inside", 0, 4)) == DATA[:4]
        for mode in set(web.targets) - {"inside", "again", "nothing"}:
            with pytest.raises(VirtualAccessDeniedError):
                reader.read(Virtual(base(web) + f"to/{mode}", 0, 4))
        for mode in ("again", "nothing"):
            with pytest.raises(VirtualChunkError, match="redirects"):
                reader.read(Virtual(base(web) + f"to/{mode}", 0, 4))
        assert other.paths == []
        assert not any("private" in path for path in web.paths)


@pytest.mark.parametrize(
    "tag",
    ["a\r\nX-More: 1", "a\n", "\0", "\u65e5\u672c", "a" * 100_000],
    ids=["another header", "line", "nul", "letters", "long"],
)
def test_an_entity_tag_that_no_header_can_carry_is_an_error_and_not_sent(web, tag):
    reader = reader_for(base(web), http_store())
    with pytest.raises(VirtualChunkError, match="is invalid in a request"):
        reader.read(Virtual(base(web) + "a", 0, 4, ETag(tag)))
    assert web.paths == []


NONSENSE = {
    "length": [("Content-Length", "x")],
    "digits": [("Content-Length", "9" * 5000)],
    "zone": [("Last-Modified", "1 Jan 2020 00:00:00 +99999999999999999999")],
    "year": [("Last-Modified", "Mon, 01 Jan 99999999999999 00:00:00 GMT")],
    "time": [("Last-Modified", "x")],
    "number": [("Last-Modified", "9" * 5000)],
    "chunked": [("Transfer-Encoding", "chunked")],
}


class Nonsense(BaseHTTPRequestHandler):
    """Answers with headers and bodies that mean nothing."""

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.send_response(206)
        headers = NONSENSE[self.path.rsplit("/", 1)[-1]]
        for name, value in [("Content-Range", "bytes 0-3/4"), *headers]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"-4\r\nDATA\r\n0\r\n\r\n" if self.path.endswith("chunked") else b"DATA")


@pytest.mark.parametrize("mode", NONSENSE)
@pytest.mark.parametrize("kind", ["http", "s3"])
def test_an_answer_of_nonsense_is_an_error_of_this_package_or_ignored(mode, kind):
    with serving(Nonsense) as server:
        if kind == "http":
            reader = reader_for(base(server), http_store())
            location = base(server) + mode
        else:
            reader = s3_reader(f"http://127.0.0.1:{server.server_port}")
            location = f"s3://foreign/deep/{mode}"
        with suppress(VirtualChunkError):
            assert reader.read(Virtual(location, 0, 4, LastModified(5))) == b"DATA"


def test_an_unreachable_server_is_an_error():
    prefix = "http://127.0.0.1:9/"
    with pytest.raises(VirtualChunkError, match="127"):
        reader_for(prefix, http_store()).read(Virtual(prefix + "a", 0, 1))


# --- files ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    granted = tmp_path / "granted"
    granted.mkdir()
    (granted / "a b.nc").write_bytes(DATA)
    (tmp_path / "secret").write_bytes(b"s" * 100)
    return granted


def file_reader(folder):
    return reader_for(f"file://{folder}/", local_filesystem_store(str(folder)), part_size=100)


def test_a_range_of_a_local_file_is_read(folder):
    reader = file_reader(folder)
    assert reader.read(Virtual(f"file://{folder}/a%20b.nc", 300, 5000)) == DATA[300:5300]
    assert reader.read(Virtual(f"file://{folder}/x/../a b.nc", 1, 1)) == DATA[1:2]


def test_a_local_file_is_read_as_long_as_it_is_the_same(folder):
    reader = file_reader(folder)
    path = folder / "a b.nc"
    location = f"file://{path}"
    before = path.stat()
    same = [ETag(local_etag(before)), LastModified(-(-before.st_mtime_ns // 10**9))]
    for checksum in same:
        assert reader.read(Virtual(location, 0, 4, checksum)) == DATA[:4]
    path.write_bytes(DATA[::-1])
    os.utime(path, (before.st_mtime + 5, before.st_mtime + 5))
    for checksum in same:
        with pytest.raises(VirtualChunkChangedError):
            reader.read(Virtual(location, 0, 4, checksum))


def test_links_may_not_lead_out_of_the_granted_folder(folder):
    (folder / "inside").symlink_to(folder / "a b.nc")
    (folder / "outside").symlink_to(folder.parent / "secret")
    (folder / "up").symlink_to(folder.parent)
    reader = file_reader(folder)
    assert reader.read(Virtual(f"file://{folder}/inside", 0, 4)) == DATA[:4]
    for name in ("outside", "up/secret"):
        with pytest.raises(VirtualAccessDeniedError, match="leads out"):
            reader.read(Virtual(f"file://{folder}/{name}", 0, 4))
    with pytest.raises(VirtualAccessDeniedError):
        reader.read(Virtual(f"file://{folder}/../secret", 0, 4))


def test_only_regular_files_of_sufficient_size_are_read(folder):
    os.mkfifo(folder / "pipe")
    (folder / "sub").mkdir()
    reader = file_reader(folder)
    for name, length in [("pipe", 1), ("sub", 1), ("missing", 1), ("a b.nc", len(DATA) + 1)]:
        with pytest.raises(VirtualChunkError) as caught:
            reader.read(Virtual(f"file://{folder}/{name}", 0, length))
        assert caught.value.kind is Kind.VIRTUAL_FAILED
    with pytest.raises(VirtualChunkError):
        reader.read(Virtual(f"file://{folder}/a b.nc", 1 << 62, 5))


def test_local_entity_tags_are_those_of_the_official_library(folder, tmp_path):
    icechunk = pytest.importorskip("icechunk")
    import zarr

    prefix = f"file://{folder}/"
    config = icechunk.RepositoryConfig.default()
    store = icechunk.local_filesystem_store(str(folder))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store))
    repo = icechunk.Repository.create(
        icechunk.in_memory_storage(),
        config=config,
        authorize_virtual_chunk_access={prefix: None},
    )
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, shape=(8,), chunks=(4,), dtype="u1", compressors=None)
    path = folder / "a b.nc"
    tag = local_etag(path.stat())
    session.store.set_virtual_ref("c/0", f"{prefix}a b.nc", offset=4, length=4, checksum=tag)
    session.store.set_virtual_ref("c/1", f"{prefix}a b.nc", offset=4, length=4, checksum="x" + tag)
    assert bytes(array[:4]) == DATA[4:8]
    with pytest.raises(icechunk.IcechunkError):
        array[4:]
