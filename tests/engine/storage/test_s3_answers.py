"""What is made of every answer a store can give, without a store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from botocore import exceptions as boto

from airflow_provider_icechunk.engine.concurrency import PerProcess
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Anything,
    Exactly,
    Expectation,
    Lost,
    PutOutcome,
    Version,
    Written,
)
from airflow_provider_icechunk.engine.storage.clouds.settings import MIB
from airflow_provider_icechunk.engine.storage.readback import WRITE_ID
from airflow_provider_icechunk.engine.storage.s3.errors import Trouble, classify, translate
from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings
from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage
from airflow_provider_icechunk.engine.storage.secrets import static_credentials
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    Kind,
    NotFoundError,
    OutcomeUnknownError,
    RepositoryNotFoundError,
    StorageError,
    UnsafeStorageError,
)

URL = "http://127.0.0.1:1"


def answer(code: str, status: int) -> boto.ClientError:
    return boto.ClientError(
        {"Error": {"Code": code, "Message": "?"}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "PutObject",
    )


TORN = boto.ConnectionClosedError(endpoint_url=URL)
NO_CONNECTION = boto.EndpointConnectionError(endpoint_url=URL)


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (answer("PreconditionFailed", 412), Trouble.REFUSED),
        (answer("412", 412), Trouble.REFUSED),
        (answer("ConditionalRequestConflict", 409), Trouble.REFUSED),
        (answer("ConcurrentModification", 409), Trouble.REFUSED),
        (answer("BucketAlreadyExists", 409), Trouble.OTHER),
        (answer("BucketNotEmpty", 409), Trouble.OTHER),
        (answer("OperationAborted", 409), Trouble.THROTTLED),
        (answer("NoSuchKey", 404), Trouble.MISSING),
        (answer("404", 404), Trouble.MISSING),
        (answer("NoSuchBucket", 404), Trouble.NO_BUCKET),
        (answer("NoSuchUpload", 404), Trouble.NO_UPLOAD),
        (answer("AccessDenied", 403), Trouble.DENIED),
        (answer("403", 403), Trouble.DENIED),
        (answer("InvalidAccessKeyId", 403), Trouble.DENIED),
        (answer("SignatureDoesNotMatch", 403), Trouble.DENIED),
        (answer("ExpiredToken", 400), Trouble.DENIED),
        (answer("SlowDown", 503), Trouble.THROTTLED),
        (answer("TooManyRequests", 429), Trouble.THROTTLED),
        (answer("ServiceUnavailable", 503), Trouble.FAULTY),
        (answer("InternalError", 500), Trouble.FAULTY),
        (answer("500", 500), Trouble.FAULTY),
        (answer("RequestTimeout", 400), Trouble.FAULTY),
        (answer("SomethingOfAVendor", 507), Trouble.FAULTY),
        (answer("SomethingOfAVendor", 400), Trouble.OTHER),
        (answer("NotImplemented", 501), Trouble.OTHER),
        (answer("InvalidRange", 416), Trouble.BAD_RANGE),
        (NO_CONNECTION, Trouble.UNREACHABLE),
        (boto.ConnectTimeoutError(endpoint_url=URL), Trouble.UNREACHABLE),
        (TORN, Trouble.BROKEN),
        (boto.ReadTimeoutError(endpoint_url=URL), Trouble.BROKEN),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), Trouble.BROKEN),
        (ConnectionResetError(), Trouble.BROKEN),
        (boto.NoCredentialsError(), Trouble.DENIED),
        (boto.ParamValidationError(report="?"), Trouble.OTHER),
    ],
    ids=repr,
)
def test_every_answer_has_one_meaning(error: Exception, trouble: Trouble) -> None:
    assert classify(error) is trouble


@pytest.mark.parametrize(
    ("error", "cls", "kind"),
    [
        (answer("NoSuchBucket", 404), RepositoryNotFoundError, Kind.REPOSITORY_NOT_FOUND),
        (answer("AccessDenied", 403), AccessDeniedError, Kind.STORAGE_DENIED),
        (answer("SlowDown", 503), StorageError, Kind.STORAGE_THROTTLED),
        (answer("InternalError", 500), StorageError, Kind.STORAGE_FAILED),
        (NO_CONNECTION, StorageError, Kind.STORAGE_UNREACHABLE),
        (TORN, StorageError, Kind.STORAGE_UNREACHABLE),
    ],
    ids=repr,
)
def test_errors_say_where_and_by_which_code(error: Exception, cls: type, kind: Kind) -> None:
    translated = translate(error, doing="read", where="s3://b/k")
    assert type(translated) is cls
    assert translated.kind is kind
    assert "s3://b/k" in translated.message


class ScriptedClient:
    """Plays answers: exceptions are raised, functions called with the request."""

    def __init__(self, **scripts: list[Any]) -> None:
        self.scripts = scripts
        self.requests: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def call(**request: Any) -> Any:
            self.requests.append((verb, request))
            step = self.scripts[verb].pop(0)
            if isinstance(step, Exception):
                raise step
            return step(request) if callable(step) else step

        return call

    def count(self, verb: str) -> int:
        return sum(name == verb for name, _ in self.requests)


def storage_on(client: ScriptedClient, **settings: Any) -> S3Storage:
    storage = S3Storage(S3Settings("b", "p", retry=Backoff(tries=3, first_pause=0.0), **settings))
    connection = SimpleNamespace(client=client, objects=None)
    storage._bucket._connection = PerProcess(lambda: connection)  # type: ignore[assignment]
    return storage


def head_of(etag: str, metadata: dict[str, str] | None = None, size: int = 1) -> dict[str, Any]:
    return {
        "ETag": etag,
        "ContentLength": size,
        "LastModified": datetime(2026, 1, 1, tzinfo=UTC),
        "Metadata": metadata or {},
    }


def own_head(client: ScriptedClient) -> Callable[[object], dict[str, Any]]:
    def head(_: object) -> dict[str, Any]:
        puts = [request for verb, request in client.requests if verb == "put_object"]
        return head_of('"own"', {WRITE_ID: puts[0]["Metadata"][WRITE_ID]})

    return head


REFUSED = answer("PreconditionFailed", 412)
CONFLICT = answer("ConditionalRequestConflict", 409)
GONE = answer("404", 404)
FAULT = answer("InternalError", 500)
FOREIGN = head_of('"foreign"', {WRITE_ID: "somebody else"})
UNMARKED = head_of('"foreign"')
EXPECTED = head_of('"v1"')
OWN = "own"
DONE = {"ETag": '"new"'}
V1 = Exactly(Version('"v1"'))


@pytest.mark.parametrize(
    ("expect", "puts", "heads", "outcome"),
    [
        (Absent(), [DONE], [], Written(Version('"new"'))),
        (Absent(), [REFUSED], [FOREIGN], Lost()),
        (Absent(), [REFUSED], [UNMARKED], Lost()),
        (Absent(), [REFUSED], [OWN], Written(Version('"own"'))),
        (Absent(), [CONFLICT], [OWN], Written(Version('"own"'))),
        (Absent(), [CONFLICT], [FOREIGN], Lost()),
        (Absent(), [CONFLICT, DONE], [GONE], Written(Version('"new"'))),
        (Absent(), [CONFLICT, CONFLICT, CONFLICT], [GONE, GONE, GONE], Lost()),
        (Absent(), [REFUSED], [answer("403", 403)], OutcomeUnknownError),
        (Absent(), [TORN], [OWN], Written(Version('"own"'))),
        (Absent(), [TORN, DONE], [GONE], Written(Version('"new"'))),
        (Absent(), [TORN, REFUSED], [GONE, OWN], Written(Version('"own"'))),
        (Absent(), [TORN, REFUSED], [GONE, FOREIGN], OutcomeUnknownError),
        (Absent(), [TORN], [FOREIGN], OutcomeUnknownError),
        (Absent(), [FAULT], [OWN], Written(Version('"own"'))),
        (Absent(), [TORN, TORN, TORN], [GONE, GONE, GONE], OutcomeUnknownError),
        (Absent(), [NO_CONNECTION] * 3, [], StorageError),
        (Absent(), [NO_CONNECTION, DONE], [], Written(Version('"new"'))),
        (Absent(), [answer("SlowDown", 503), DONE], [], Written(Version('"new"'))),
        (Absent(), [TORN, NO_CONNECTION, NO_CONNECTION], [GONE], OutcomeUnknownError),
        (Absent(), [answer("AccessDenied", 403)], [], AccessDeniedError),
        (Absent(), [answer("NoSuchBucket", 404)], [], NotFoundError),
        (V1, [REFUSED], [FOREIGN], Lost()),
        (V1, [REFUSED], [OWN], Written(Version('"own"'))),
        (V1, [answer("NoSuchKey", 404)], [GONE], Lost()),
        (V1, [CONFLICT, DONE], [EXPECTED], Written(Version('"new"'))),
        (V1, [TORN, DONE], [EXPECTED], Written(Version('"new"'))),
        (V1, [TORN], [FOREIGN], OutcomeUnknownError),
        (V1, [TORN], [GONE], OutcomeUnknownError),
    ],
)
def test_an_unclear_answer_to_a_conditional_write_is_read_back(
    expect: Expectation, puts: list[Any], heads: list[Any], outcome: PutOutcome | type
) -> None:
    client = ScriptedClient()
    client.scripts = {
        "put_object": list(puts),
        "head_object": [own_head(client) if one is OWN else one for one in heads],
    }
    storage = storage_on(client)
    if isinstance(outcome, type):
        with pytest.raises(outcome):
            storage.put("ref", b"x", expect=expect)
    else:
        assert storage.put("ref", b"x", expect=expect) == outcome
    assert client.scripts == {"put_object": [], "head_object": []}
    sent = [request for verb, request in client.requests if verb == "put_object"]
    assert len({request["Metadata"][WRITE_ID] for request in sent}) == 1
    condition = "IfNoneMatch" if isinstance(expect, Absent) else "IfMatch"
    assert all(condition in request for request in sent)


@pytest.mark.parametrize("spelling", ["icechunkwriteid", "icechunk_write_id"])
def test_a_write_knows_its_own_mark_in_both_spellings(spelling: str) -> None:
    client = ScriptedClient()

    def head(_: object) -> dict[str, Any]:
        (mark,) = client.requests[0][1]["Metadata"].values()
        return head_of('"own"', {spelling: mark})

    client.scripts = {"put_object": [REFUSED], "head_object": [head]}
    assert storage_on(client).put("ref", b"x", expect=Absent()) == Written(Version('"own"'))
    assert client.requests[0][1]["Metadata"].keys() == {"icechunkwriteid"}


def test_without_metadata_a_refusal_after_a_lost_answer_is_unknown() -> None:
    client = ScriptedClient(put_object=[TORN, REFUSED], head_object=[GONE, UNMARKED])
    with pytest.raises(OutcomeUnknownError):
        storage_on(client, use_metadata=False).put("ref", b"x", expect=Absent())
    client = ScriptedClient(put_object=[REFUSED], head_object=[UNMARKED])
    assert storage_on(client, use_metadata=False).put("ref", b"x", expect=Absent()) == Lost()


def test_reads_are_tried_again_and_then_give_up() -> None:
    client = ScriptedClient(head_object=[FAULT, TORN, head_of('"e"')])
    assert storage_on(client).head("a") is not None
    client = ScriptedClient(head_object=[FAULT, TORN, answer("SlowDown", 503)])
    with pytest.raises(StorageError) as caught:
        storage_on(client).head("a")
    assert caught.value.kind is Kind.STORAGE_THROTTLED


def test_a_denied_request_is_not_tried_again() -> None:
    client = ScriptedClient(get_object=[answer("AccessDenied", 403)])
    with pytest.raises(AccessDeniedError):
        storage_on(client).get("a")
    assert client.count("get_object") == 1


def test_a_batch_with_failures_names_them() -> None:
    errors = [{"Key": "p/b", "Code": "AccessDenied"}, {"Key": "p/c", "Code": "NoSuchKey"}]
    client = ScriptedClient(delete_objects=[{"Errors": errors}])
    deleted = storage_on(client).delete(["a", "b", "c"])
    assert deleted.keys == ("a", "c")
    assert deleted.failed == {"b": "AccessDenied"}


def test_a_batch_that_fails_as_a_whole_fails_for_each_of_its_keys() -> None:
    client = ScriptedClient(delete_objects=[answer("AccessDenied", 403)])
    deleted = storage_on(client).delete(["a", "b"])
    assert deleted.keys == ()
    assert set(deleted.failed) == {"a", "b"}


def parts_client(**scripts: list[Any]) -> ScriptedClient:
    return ScriptedClient(create_multipart_upload=[{"UploadId": "u"}], **scripts)


def put_large(client: ScriptedClient) -> PutOutcome:
    storage = storage_on(client, multipart_threshold=5 * MIB, part_size=5 * MIB)
    return storage.put("chunks/a", b"x" * (5 * MIB), expect=Anything())


def test_a_failed_upload_in_parts_is_aborted() -> None:
    client = parts_client(upload_part=[answer("AccessDenied", 403)], abort_multipart_upload=[{}])
    with pytest.raises(AccessDeniedError):
        put_large(client)
    assert client.count("abort_multipart_upload") == 1


def test_a_completed_upload_whose_answer_was_lost_counts() -> None:
    client = parts_client(
        upload_part=[{"ETag": '"p"'}],
        complete_multipart_upload=[TORN, answer("NoSuchUpload", 404)],
    )

    def head(_: object) -> dict[str, Any]:
        return head_of('"all-1"', dict(client.requests[0][1]["Metadata"]), size=5 * MIB)

    client.scripts["head_object"] = [head]
    assert put_large(client) == Written(Version('"all-1"'))


def test_a_store_that_ignores_conditions_is_found_out() -> None:
    client = ScriptedClient(put_object=[DONE, DONE], delete_objects=[{}])
    with pytest.raises(UnsafeStorageError, match="only if absent"):
        storage_on(client).check_conditional_writes()
    assert client.count("delete_objects") == 1


def test_a_store_that_ignores_if_match_is_found_out() -> None:
    client = ScriptedClient(
        put_object=[DONE, REFUSED, DONE, DONE], head_object=[UNMARKED], delete_objects=[{}]
    )
    with pytest.raises(UnsafeStorageError, match="changed meanwhile"):
        storage_on(client).check_conditional_writes()


def test_a_store_that_refuses_conditions_is_unsafe_and_one_out_of_reach_is_not() -> None:
    for refusal in (answer("InvalidArgument", 400), answer("NotImplemented", 501)):
        client = ScriptedClient(put_object=[refusal], delete_objects=[{}])
        with pytest.raises(UnsafeStorageError, match="refuses conditional writes"):
            storage_on(client).check_conditional_writes()
    client = ScriptedClient(put_object=[NO_CONNECTION] * 3, delete_objects=[{}])
    with pytest.raises(StorageError) as caught:
        storage_on(client).check_conditional_writes()
    assert caught.value.kind is Kind.STORAGE_UNREACHABLE


def test_the_clock_is_the_date_of_the_answer() -> None:
    headers = {"ResponseMetadata": {"HTTPHeaders": {"date": "Mon, 05 Jan 2026 10:00:00 GMT"}}}
    client = ScriptedClient(list_objects_v2=[headers])
    assert storage_on(client).now() == datetime(2026, 1, 5, 10, tzinfo=UTC)
    with pytest.raises(StorageError, match="clock"):
        storage_on(ScriptedClient(list_objects_v2=[{}])).now()


def page(*names: str, **more: Any) -> dict[str, Any]:
    at = datetime(2026, 1, 5, tzinfo=UTC)
    return {"Contents": [{"Key": f"p/{n}", "Size": 1, "LastModified": at} for n in names], **more}


def test_a_listing_goes_on_to_its_end() -> None:
    pages = [
        page("a", IsTruncated=True, NextContinuationToken="1"),
        page("b", NextContinuationToken="2"),
        page(IsTruncated=True, NextContinuationToken="3"),
        page("c", IsTruncated=False, NextContinuationToken="4"),
    ]
    client = ScriptedClient(list_objects_v2=pages)
    assert [one.key for one in storage_on(client).scan("")] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "pages",
    [
        [page("a", IsTruncated=True)],
        [page("a", IsTruncated=True, NextContinuationToken="")],
        [page(IsTruncated=True)],
        [page("a", IsTruncated=True, NextContinuationToken="1"), page("b", IsTruncated=True)],
        [page("a", IsTruncated=True, NextContinuationToken="1")] * 2,
        [page("a", IsTruncated=True, NextContinuationToken=token) for token in "12"],
        [page(name, IsTruncated=True, NextContinuationToken=name) for name in "abab"],
        [page(*(f"{number:04}" for number in range(1000)))],
    ],
)
def test_half_a_listing_is_an_error_and_never_taken_for_a_whole_one(
    pages: list[dict[str, Any]],
) -> None:
    for look in (lambda s: list(s.scan("")), lambda s: s.list_folders("")):
        with pytest.raises(StorageError, match="IsTruncated without a new NextContinuationToken"):
            look(storage_on(ScriptedClient(list_objects_v2=list(pages))))


def test_secrets_show_up_nowhere() -> None:
    secret = "very-secret-key"
    made = static_credentials("AKID", secret, "session-" + secret)
    settings = S3Settings("b", credentials=made)
    storage = S3Storage(settings)
    client = ScriptedClient(get_object=[answer("SignatureDoesNotMatch", 403)])
    connection = SimpleNamespace(client=client, objects=None)
    storage._bucket._connection = PerProcess(lambda: connection)  # type: ignore[assignment]
    with pytest.raises(AccessDeniedError) as caught:
        storage.get("a")
    shown = [repr(made), str(made), repr(settings), repr(storage), str(storage.location)]
    shown += [repr(caught.value), str(caught.value), f"{made.secret_access_key}"]
    assert not [text for text in shown if secret in text]
