"""A body that ends early is never taken for whole, also if nobody said how long it is."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest

from airflow_provider_icechunk.engine.format.chunk_refs import Virtual
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.format.config.stores import (
    VirtualChunkContainer,
    http_store,
    s3_store,
)
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.base import Absent, Bounded, Storage
from airflow_provider_icechunk.engine.storage.credentials import s3_credentials
from airflow_provider_icechunk.engine.storage.s3.connection import Connection
from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings
from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage
from airflow_provider_icechunk.engine.storage.secrets import static_credentials
from airflow_provider_icechunk.engine.storage.web import WebStorage
from airflow_provider_icechunk.engine.virtual.reader import NetworkTransport, VirtualReader
from airflow_provider_icechunk.exceptions import StorageError, VirtualChunkError

TRIES = Backoff(tries=3, first_pause=0.0)
HEAD = b'Connection: close\r\nETag: "e"\r\nLast-Modified: Mon, 16 Nov 2026 05:00:00 GMT\r\n'
PART = b"HTTP/1.1 206 Partial Content\r\n" + HEAD + b"Content-Range: bytes 2-7/100\r\n"
ALL = b"HTTP/1.1 200 OK\r\n" + HEAD
WHOLE = PART + b"Content-Length: 6\r\n\r\nabcdef"
UNTOLD = PART + b"\r\nabcdef"
SHORT = {
    "without a length": PART + b"\r\nabc",
    "of nothing": PART + b"\r\n",
    "in chunks": PART + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "with a length of its own": PART + b"Content-Length: 3\r\n\r\nabc",
}
OTHER = {
    "of another place": WHOLE.replace(b"2-7/100", b"50-55/100"),
    "of half the length": PART.replace(b"2-7/100", b"2-4/100") + b"Content-Length: 3\r\n\r\nabc",
    "of no place": WHOLE.replace(b"Content-Range", b"X-Range"),
    "of no place that is understood": WHOLE.replace(b"bytes 2-7/100", b"bytes 2-/100"),
}


@contextmanager
def speaking(*answers: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A server that gives each connection one answer and hangs up; the last one again and again."""
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                with listener.accept()[0] as caller:
                    heard.append(caller.recv(65536))
                    caller.sendall(answers[min(len(heard), len(answers)) - 1])

    thread = Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1], heard
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def bucket(port: int) -> S3Storage:
    return S3Storage(
        S3Settings(
            "bucket",
            region="eu-central-1",
            endpoint_url=f"http://127.0.0.1:{port}",
            credentials=static_credentials("key", "hidden"),
            allow_http=True,
            read_timeout=5.0,
            retry=TRIES,
        )
    )


def web(port: int) -> WebStorage:
    return WebStorage(f"http://127.0.0.1:{port}", allow_http=True, retry=TRIES)


@pytest.fixture(params=["native", "client"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "client":
        monkeypatch.setattr(Connection, "_objects", lambda *_, **__: None)
    return str(request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", SHORT)
def test_a_part_of_an_object_that_ends_early_is_asked_for_again(kind: str) -> None:
    with speaking(SHORT[kind], WHOLE) as (port, heard):
        found = bucket(port).get("key", Bounded(2, 8))
    assert found is not None
    assert found.data == b"abcdef"
    assert len(heard) == 2


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", SHORT)
def test_a_part_of_an_object_is_asked_for_again_into_the_same_place(kind: str) -> None:
    space = memoryview(bytearray(6))
    with speaking(SHORT[kind], WHOLE) as (port, _):
        assert bucket(port).get_into("key", 2, space) == 6
    assert bytes(space) == b"abcdef"


@pytest.mark.usefixtures("way")
def test_a_part_whose_length_only_its_range_tells_is_read() -> None:
    with speaking(UNTOLD) as (port, heard):
        storage = bucket(port)
        for _ in range(3):
            found = storage.get("key", Bounded(2, 8))
            assert found is not None
            assert found.data == b"abcdef"
    # Only the first is asked for twice by a client that needs a length.
    assert len(heard) <= 4


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("open_at", [bucket, web])
@pytest.mark.parametrize("kind", OTHER)
def test_another_part_than_the_requested_one_is_asked_for_again(
    kind: str, open_at: Callable[[int], Storage]
) -> None:
    with speaking(OTHER[kind], WHOLE) as (port, heard):
        found = open_at(port).get("key", Bounded(2, 8))
    assert found is not None
    assert found.data == b"abcdef"
    assert len(heard) >= 2


def test_a_web_server_that_sends_nonsense_is_an_error_of_this_package() -> None:
    nonsense = ALL + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nx\r\n0\r\n\r\n"
    with (
        speaking(nonsense) as (port, heard),
        pytest.raises(StorageError, match="ValueError"),
    ):
        web(port).get("key")
    assert len(heard) == 3


def test_an_object_of_which_no_length_is_told_is_never_taken_for_whole(way: str) -> None:
    with speaking(ALL + b"\r\nabc") as (port, heard):
        with pytest.raises(StorageError, match="Unfinished"):
            bucket(port).get("key")
        assert len(heard) == (4 if way == "native" else 3)


@pytest.mark.usefixtures("way")
def test_an_object_whose_length_was_told_at_the_second_try_is_read() -> None:
    whole = ALL + b"Content-Length: 6\r\n\r\nabcdef"
    with speaking(ALL + b"\r\nabc", whole) as (port, _):
        found = bucket(port).get("key")
    assert found is not None
    assert found.data == b"abcdef"


def test_an_answer_without_what_every_store_tells_is_an_error_of_this_package() -> None:
    bare = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"
    for act in _ASKING:
        with (
            speaking(bare + b"Content-Length: 0\r\n\r\n") as (port, _),
            pytest.raises(StorageError),
        ):
            act(bucket(port))


_ASKING: list[Callable[[S3Storage], object]] = [
    lambda storage: storage.get("key"),
    lambda storage: storage.head("key"),
    lambda storage: storage.put("key", b"", expect=Absent()),
]


def virtual(scheme: str, port: int) -> tuple[VirtualReader, str]:
    if scheme == "http":
        prefix, store, granted = f"http://127.0.0.1:{port}/", http_store(), None
    else:
        prefix = "s3://bucket/"
        store = s3_store(
            region="eu-central-1", endpoint_url=f"http://127.0.0.1:{port}", allow_http=True
        )
        granted = s3_credentials(access_key_id="key", secret_access_key="hidden")
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store))
    transport = NetworkTransport(TRIES)
    reader = VirtualReader.from_config(config, {prefix: granted}, given=config, transport=transport)
    return reader, f"{prefix}file"


@pytest.mark.parametrize("scheme", ["http", "s3"])
@pytest.mark.parametrize("kind", SHORT)
def test_a_virtual_chunk_that_ends_early_is_asked_for_again(scheme: str, kind: str) -> None:
    with speaking(SHORT[kind], UNTOLD) as (port, heard):
        reader, url = virtual(scheme, port)
        assert reader.read(Virtual(url, 2, 6)) == b"abcdef"
    assert len(heard) == 2


@pytest.mark.parametrize("scheme", ["http", "s3"])
@pytest.mark.parametrize("kind", SHORT)
def test_a_virtual_chunk_that_always_ends_early_is_an_error(scheme: str, kind: str) -> None:
    with speaking(SHORT[kind]) as (port, heard):
        reader, url = virtual(scheme, port)
        with pytest.raises(VirtualChunkError, match="Unfinished"):
            reader.read(Virtual(url, 2, 6))
        assert len(heard) == 3


@pytest.mark.parametrize("scheme", ["http", "s3"])
@pytest.mark.parametrize("kind", OTHER)
def test_another_part_than_that_of_a_virtual_chunk_is_an_error(scheme: str, kind: str) -> None:
    with speaking(OTHER[kind]) as (port, _):
        reader, url = virtual(scheme, port)
        with pytest.raises(VirtualChunkError):
            reader.read(Virtual(url, 2, 6))


def test_a_bucket_that_ignores_ranges_is_an_error_and_never_the_wrong_bytes() -> None:
    with speaking(ALL + b"Content-Length: 6\r\n\r\nabcdef") as (port, _):
        reader, url = virtual("s3", port)
        with pytest.raises(VirtualChunkError, match="ranges"):
            reader.read(Virtual(url, 2, 6))


LISTING = (
    b"<?xml version='1.0'?><ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>"
    b"<Contents><Key>key</Key><Size>3</Size><LastModified>2026-11-16T05:00:00Z</LastModified>"
    b"</Contents></ListBucketResult>"
)


@pytest.mark.parametrize(
    "answer",
    [
        ALL + b"\r\n",
        ALL + b"Content-Length: 0\r\n\r\n",
        ALL + b"\r\n" + LISTING[:60],
        ALL + b"\r\n" + LISTING[:-30],
        ALL + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["nothing", "empty", "begun", "nearly", "no pieces"],
)
def test_a_listing_that_ends_early_is_asked_for_again_and_never_a_short_one(answer: bytes) -> None:
    whole = ALL + b"Content-Length: %d\r\n\r\n" % len(LISTING) + LISTING
    with speaking(answer, whole) as (port, heard):
        assert [one.key for one in bucket(port).scan("")] == ["key"]
    assert len(heard) == 2
    with speaking(answer) as (port, _):
        with pytest.raises(StorageError):
            list(bucket(port).scan(""))
        with pytest.raises(StorageError):
            bucket(port).list_folders("")


MOMENT = b"<LastModified>2026-11-16T05:00:00Z</LastModified>"
ENTRY = b"<Contents><Key>key</Key><Size>3</Size>" + MOMENT + b"</Contents>"


@pytest.mark.parametrize(
    ("told", "instead"),
    [
        (b"<Key>key", b"<Key>other/key"),
        (b"<Key>key</Key>", b""),
        (b"<Size>3</Size>", b""),
        (b"<Size>3", b"<Size>many"),
        (MOMENT, b""),
        (b"2026-11-16T05:00:00Z", b"yesterday"),
        (b"05:00:00Z", b"05:00:00"),
    ],
)
def test_a_listing_that_is_not_understood_is_an_error_of_this_package(
    told: bytes, instead: bytes
) -> None:
    assert listed(ENTRY) == ["key"]
    with pytest.raises(StorageError, match="cannot list"):
        listed(ENTRY.replace(told, instead))


def listed(entry: bytes) -> list[str]:
    """What is found below `k` in an answer with this entry."""
    answer = (
        b"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>%b</ListBucketResult>"
        % entry
    )
    whole = ALL + b"Content-Length: %d\r\n\r\n" % len(answer) + answer
    with speaking(whole) as (port, _):
        return [one.key for one in bucket(port).scan("k")]


def test_deletes_are_not_reported_on_an_answer_whose_end_nobody_announced() -> None:
    # So many that one request deletes all of them, and says of which it failed.
    keys = [f"key {number}" for number in range(40)]
    with speaking(ALL + b"\r\n") as (port, _):
        deleted = bucket(port).delete(keys)
    assert deleted.keys == ()
    assert set(deleted.failed) == set(keys)
    answer = b"<DeleteResult></DeleteResult>"
    whole = ALL + b"Content-Length: %d\r\n\r\n" % len(answer) + answer
    with speaking(ALL + b"\r\n", whole) as (port, _):
        assert bucket(port).delete(keys).keys == tuple(keys)
