"""The native client asks as boto3 does, and leaves to it what it cannot do."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Barrier, Thread
from traceback import format_exception
from typing import ClassVar
from urllib.parse import parse_qs, quote_plus
from zlib import crc32

import pytest
from botocore.exceptions import ClientError

from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.base import Absent, Anything, Bounded, Lost, Written
from airflow_provider_icechunk.engine.storage.clouds.troubles import NativeError
from airflow_provider_icechunk.engine.storage.s3.client import make_client
from airflow_provider_icechunk.engine.storage.s3.errors import classify, code_of
from airflow_provider_icechunk.engine.storage.s3.objects import NativeObjects, ask_root, find_root
from airflow_provider_icechunk.engine.storage.s3.settings import Checksums, S3Settings
from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage
from airflow_provider_icechunk.engine.storage.secrets import (
    AnonymousCredentials,
    RefreshableCredentials,
    S3Credentials,
    StaticCredentials,
    static_credentials,
)
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    Kind,
    OutcomeUnknownError,
    StorageError,
)

DENIED = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
REFUSED = b"<Error><Code>PreconditionFailed</Code><Message>no</Message></Error>"
Reply = tuple[int, dict[str, str], bytes]


class Script(BaseHTTPRequestHandler):
    """Answers requests one after the other as told, and remembers them."""

    replies: ClassVar[list[Reply]]
    seen: ClassVar[list[tuple[str, str, dict[str, str], bytes]]]
    callers: ClassVar[set[object]]
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        """The next reply."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.callers.add(self.client_address)
        self.seen.append((self.command, self.path, headers, body))
        status, extra, data = self.replies.pop(0)
        self.send_response(status)
        for name, value in {"ETag": '"e"', **extra}.items():
            self.send_header(name, value)
        if "Content-Length" not in extra:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_HEAD = do_DELETE = answer

    def log_message(self, *_: object) -> None:
        """Be quiet."""


@contextmanager
def scripted(
    *replies: Reply,
    checksums: Checksums | None = None,
    credentials: S3Credentials | None = None,
) -> Iterator[S3Storage]:
    """A storage on a server that gives these replies and no others."""
    Script.replies, Script.seen, Script.callers = list(replies), [], set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Script)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield S3Storage(
            S3Settings(
                "bucket",
                "a repo",
                region="eu-central-1",
                endpoint_url=f"http://127.0.0.1:{server.server_port}",
                credentials=credentials or static_credentials("key", "hidden"),
                allow_http=True,
                checksums=checksums,
                read_timeout=2.0,
                retry=Backoff(tries=1),
            )
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_read_is_one_signed_request() -> None:
    range_reply: Reply = (206, {"Content-Range": "bytes 1-3/9"}, b"ell")
    with scripted(range_reply) as storage:
        found = storage.get("chunks/ä b", Bounded(1, 4))
    assert found is not None
    assert found.data == b"ell"
    [(verb, path, headers, _)] = Script.seen
    assert (verb, path) == ("GET", "/bucket/a%20repo/chunks/%C3%A4%20b")
    assert headers["range"] == "bytes=1-3"
    assert "/eu-central-1/s3/aws4_request" in headers["authorization"]
    assert "hidden" not in str(headers)


def page(*keys: str, more: str = "") -> Reply:
    """A page of a listing; `more` is the token of the next one."""
    entries = "".join(
        f"<Contents><Key>{quote_plus(key)}</Key><Size>1</Size>"
        "<LastModified>2026-11-16T05:00:00.000Z</LastModified></Contents>"
        for key in keys
    )
    token = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    text = (
        '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>bucket</Name><EncodingType>url</EncodingType>{token}"
        f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>{entries}</ListBucketResult>"
    )
    return 200, {}, text.encode()


def made_client(storage: S3Storage) -> bool:
    """Whether boto3's client was made, which takes longer than a short history."""
    return storage._bucket._connection.get()._client is not None


def test_listing_and_deleting_a_few_objects_does_not_wait_for_boto3() -> None:
    keys = ["chunks/ä +b", "chunks/%2F&amp;"]
    replies = [page(f"a repo/{keys[0]}", more="to/ken+="), page(f"a repo/{keys[1]}")]
    with scripted(*replies, (204, {}, b""), (204, {}, b"")) as storage:
        assert [one.key for one in storage.scan("chunks/")] == keys
        assert storage.delete(keys).keys == tuple(keys)
        assert not made_client(storage)

    queries = [parse_qs(path.partition("?")[2]) for _, path, _, _ in Script.seen[:2]]
    assert [query["prefix"] for query in queries] == [["a repo/chunks/"]] * 2
    assert [query.get("continuation-token") for query in queries] == [None, ["to/ken+="]]
    assert {verb for verb, _, _, _ in Script.seen[2:]} == {"DELETE"}
    assert all("/eu-central-1/s3/aws4_request" in one[2]["authorization"] for one in Script.seen)


def test_requests_that_come_together_share_one_store(monkeypatch: pytest.MonkeyPatch) -> None:
    both, made = Barrier(2), []
    keys, make = NativeObjects._keys, NativeObjects._make

    def keys_of_both(objects: NativeObjects) -> object:
        both.wait(30.0)
        return keys(objects)

    def counted(objects: NativeObjects, *given: object) -> object:
        made.append(given)
        return make(objects, *given)

    monkeypatch.setattr(NativeObjects, "_keys", keys_of_both)
    monkeypatch.setattr(NativeObjects, "_make", counted)
    with scripted((200, {}, b"a"), (200, {}, b"b")) as storage:
        storage.get_many([("a", None), ("b", None)])
    assert len(made) == 1


@pytest.mark.parametrize(
    "strange",
    [
        (403, {}, DENIED),
        (301, {}, b""),
        (200, {}, DENIED),
        (200, {}, b"<ListBucketResult><IsTruncated>perhaps</IsTruncated></ListBucketResult>"),
        (200, {}, page("a repo/x")[2][:-9]),
    ],
    ids=["denied", "elsewhere", "an error", "unclear", "cut"],
)
def test_a_page_that_is_no_plain_answer_is_asked_for_again_by_boto3(strange: Reply) -> None:
    with scripted(strange, page("a repo/x")) as storage:
        assert [one.key for one in storage.scan("")] == ["x"]
        assert made_client(storage)


def test_an_object_that_cannot_be_deleted_is_named() -> None:
    with scripted((500, {}, b""), (500, {}, b"")) as storage:
        deleted = storage.delete(["a", "b"])
    assert deleted.keys == ()
    assert set(deleted.failed) == {"a", "b"}


def test_a_write_carries_its_condition_and_metadata() -> None:
    with scripted((200, {}, b"")) as storage:
        outcome = storage.put("k", b"data", expect=Absent(), metadata={"icclient": "x"})
    assert isinstance(outcome, Written)
    [(verb, _, headers, body)] = Script.seen
    assert (verb, body, headers["if-none-match"]) == ("PUT", b"data", "*")
    assert headers["x-amz-meta-icclient"] == "x"


def test_a_refused_condition_is_a_lost_race() -> None:
    head: Reply = (
        200,
        {"Content-Length": "1", "Last-Modified": "Mon, 16 Nov 2026 05:00:00 GMT"},
        b"",
    )
    with scripted((412, {}, REFUSED), head) as storage:
        assert isinstance(storage.put("k", b"data", expect=Absent()), Lost)


def test_an_answer_that_a_client_may_follow_is_left_to_it() -> None:
    with (
        scripted((403, {}, DENIED), (403, {}, DENIED)) as storage,
        pytest.raises(AccessDeniedError),
    ):
        storage.get("k")
    first, second = (headers["user-agent"] for _, _, headers, _ in Script.seen)
    assert first.startswith("airflow-provider-icechunk/")
    assert second.startswith("Boto3/")


def test_checksums_are_sent_and_held_against_what_arrives() -> None:
    good = b64encode(crc32(b"data").to_bytes(4, "big")).decode()
    whole: Reply = (200, {"x-amz-checksum-crc32": good}, b"data")
    rotten: Reply = (200, {"x-amz-checksum-crc32": good}, b"dat!")
    with scripted((200, {}, b""), whole, rotten, checksums="when_supported") as storage:
        storage.put("k", b"data", expect=Anything())
        assert storage.get("k") is not None
        with pytest.raises(StorageError):
            storage.get("k")
    assert Script.seen[0][2]["x-amz-checksum-crc32"] == good


def test_requests_share_a_connection() -> None:
    head: Reply = (
        200,
        {"Content-Length": "1", "Last-Modified": "Mon, 16 Nov 2026 05:00:00 GMT"},
        b"",
    )
    with scripted((200, {}, b"data"), (200, {}, b""), head, (200, {}, b"more")) as storage:
        storage.get("k")
        storage.put("k", b"data", expect=Anything())
        storage.head("k")
        storage.get("k")
    assert len(Script.callers) == 1


def test_an_answer_cut_short_is_an_error() -> None:
    with (
        scripted((200, {"Content-Length": "100"}, b"part")) as storage,
        pytest.raises(StorageError),
    ):
        storage.get("k")


@pytest.mark.parametrize(
    ("settings", "root"),
    [
        (S3Settings("b", endpoint_url="https://10.0.0.1:9000/"), "https://10.0.0.1:9000/b/"),
        (
            S3Settings("b", endpoint_url="https://s3.site", force_path_style=True),
            "https://s3.site/b/",
        ),
        (S3Settings("b", endpoint_url="https://s3.site"), None),
        (S3Settings("b", region="eu-central-1"), None),
        (S3Settings("b--x-s3", endpoint_url="https://10.0.0.1", force_path_style=True), None),
    ],
)
def test_the_place_of_objects_is_known_where_it_cannot_be_another(
    settings: S3Settings, root: str | None
) -> None:
    assert find_root(settings) == root


def test_elsewhere_the_client_is_asked_for_it() -> None:
    settings = S3Settings(
        "some-bucket", region="eu-central-1", credentials=static_credentials("key", "hidden")
    )
    root = ask_root(settings, make_client(settings))
    assert root == "https://some-bucket.s3.eu-central-1.amazonaws.com/" or (
        root == "https://some-bucket.s3.amazonaws.com/"
    )


def test_the_time_and_a_single_delete_take_one_short_request_each() -> None:
    with scripted((404, {}, b""), (204, {}, b"")) as storage:
        assert abs(storage.now() - datetime.now(UTC)) < timedelta(minutes=1)
        assert storage.delete(["k"]).keys == ("k",)
        assert storage._bucket._connection.get()._client is None
    assert [verb for verb, *_ in Script.seen] == ["HEAD", "DELETE"]


def test_anonymous_requests_are_not_signed() -> None:
    with scripted((200, {}, b"data"), credentials=AnonymousCredentials()) as storage:
        assert storage.get("k") is not None
    [(_, _, headers, _)] = Script.seen
    assert "authorization" not in headers


@pytest.mark.parametrize("data", [b"", b"data", b"x" * (3 << 20)], ids=["nothing", "few", "many"])
def test_a_write_of_any_size_is_one_request_that_is_signed_with_its_bytes(data: bytes) -> None:
    with scripted((200, {}, b"")) as storage:
        storage.put("chunks/k", data, expect=Anything())
    [(verb, _, headers, body)] = Script.seen
    assert (verb, body) == ("PUT", data)
    assert headers["x-amz-content-sha256"] == sha256(data).hexdigest()


def test_the_environment_changes_neither_the_place_nor_the_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The native client has variables of its own, and would mix them with what it is given."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "somebody-elses")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AWS_REQUEST_PAYER", "requester")
    with scripted((200, {}, b"data")) as storage:
        assert storage.get("k") is not None
    [(_, _, headers, _)] = Script.seen
    assert "Credential=key/" in headers["authorization"]
    assert not {"x-amz-security-token", "x-amz-request-payer"} & headers.keys()


def test_renewed_keys_sign_the_next_request_and_are_asked_for_once() -> None:
    handed = iter(("first", "second", "third"))
    soon = datetime.now(UTC) + timedelta(minutes=5)  # botocore renews keys of less than 10 minutes

    def fetch() -> StaticCredentials:
        return static_credentials(next(handed), "hidden", "token", expires_after=soon)

    with scripted(
        (200, {}, b"data"), (200, {}, b"data"), credentials=RefreshableCredentials(fetch)
    ) as storage:
        storage.get("k")
        storage.get("k")
    names = [headers["authorization"].split("Credential=")[1] for *_, headers, _ in Script.seen]
    assert names[0].startswith("first/") or names[0].startswith("second/")
    assert names[0].split("/")[0] != names[1].split("/")[0]
    assert all(headers["x-amz-security-token"] == "token" for *_, headers, _ in Script.seen)


def test_metadata_that_no_header_can_carry_is_left_to_a_client_that_says_so() -> None:
    with scripted((404, {}, b"")) as storage, pytest.raises(StorageError):
        storage.put("k", b"data", expect=Absent(), metadata={"note": "two\nlines"})
    assert "PUT" not in [verb for verb, *_ in Script.seen]


CODES = [
    ("PreconditionFailed", 412),
    ("ConditionalRequestConflict", 409),
    ("OperationAborted", 409),
    ("BucketNotEmpty", 409),
    ("NoSuchKey", 404),
    ("NoSuchBucket", 404),
    ("SlowDown", 503),
    ("TooManyRequests", 429),
    ("ServiceUnavailable", 503),
    ("InternalError", 500),
    ("SomethingOfAVendor", 507),
    ("NotImplemented", 501),
    ("InvalidRange", 416),
    ("AccessDenied", 401),
]


def test_every_answer_means_the_same_from_either_client() -> None:
    """The table of answers judges codes; the native client's own classes are coarser."""
    replies: list[Reply] = [
        (status, {}, f"<?xml version='1.0'?>\n<Error><Code>{code}</Code></Error>".encode())
        for code, status in CODES
        for _ in range(2)
    ]
    with scripted(*replies) as storage:
        connection = storage._bucket._connection.get()
        assert connection.objects is not None
        for code, _ in CODES:
            request: dict[str, str] = {"IfNoneMatch": "*"}
            with pytest.raises(NativeError) as native:
                connection.objects.put("k", b"data", request)
            with pytest.raises(ClientError) as other:
                connection.client.put_object(Bucket="b", Key="k", Body=b"data", IfNoneMatch="*")
            assert classify(native.value) is classify(other.value), code
            assert code_of(native.value) == code_of(other.value) == code


def test_only_a_connection_that_was_never_made_leaves_no_doubt() -> None:
    with scripted() as storage:
        pass
    with pytest.raises(StorageError) as caught:
        storage.put("k", b"data", expect=Absent())
    assert caught.value.kind is Kind.STORAGE_UNREACHABLE
    assert not isinstance(caught.value, OutcomeUnknownError)


def test_neither_errors_nor_their_causes_repeat_what_a_store_says() -> None:
    told = b"<Error><Code>InternalError</Code><Message>hidden</Message></Error>"
    with scripted((500, {}, told)) as storage, pytest.raises(StorageError) as caught:
        storage.get("k")
    assert "hidden" not in "".join(format_exception(caught.value))
