"""What Google Cloud Storage and Azure have to do beyond the promises of every storage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import zarr
from engine.storage.test_native_forks import in_child
from support import gcs_server
from support.gcs_server import BLIND_READER, BUCKET, READER, WRITER, GcsServer

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.base import Absent, Anything, Exactly, Lost, Written
from airflow_provider_icechunk.engine.storage.clouds.azure import AzureSettings, AzureStorage
from airflow_provider_icechunk.engine.storage.clouds.bucket import _failure
from airflow_provider_icechunk.engine.storage.clouds.gcs import GcsSettings, GcsStorage
from airflow_provider_icechunk.engine.storage.clouds.settings import MIB
from airflow_provider_icechunk.engine.storage.clouds.troubles import (
    Trouble,
    native_error,
    trouble_of_native,
)
from airflow_provider_icechunk.engine.storage.secrets import (
    AccountKey,
    AnonymousCredentials,
    RefreshableToken,
    Secret,
    ServiceAccountFile,
    Token,
)
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)

QUICK = Backoff(tries=3, first_pause=0.0)


@pytest.fixture(scope="module")
def server() -> Iterator[GcsServer]:
    with gcs_server.running() as state:
        yield state


@pytest.fixture
def at(server: GcsServer) -> Callable[..., GcsStorage]:
    """A storage below one prefix, by a token."""
    prefix = server.fresh_prefix()

    def make(token: str = WRITER, **changes: object) -> GcsStorage:
        made = GcsSettings(
            BUCKET,
            prefix,
            endpoint_url=server.url,
            allow_http=True,
            credentials=Token(Secret(token)),
            retry=QUICK,
        )
        return GcsStorage(replace(made, **changes))

    return make


def filled(storage: GcsStorage, generation: str = "1") -> None:
    session = Repository.create(storage, spec_version=generation).writable_session("main")
    zarr.create_array(session.store, name="a", data=np.arange(1000), chunks=(100,))
    session.commit("filled")


def read(storage: GcsStorage) -> int:
    repository = Repository.open(storage)
    session = repository.readonly_session("main")
    return int(np.sum(zarr.open_array(session.store, path="a", mode="r")[:]))


def test_equal_bytes_written_again_are_another_version(at: Callable[..., GcsStorage]) -> None:
    """A condition on the content's digest would not notice the writer in between."""
    storage = at()
    first = storage.put("k", b"same", expect=Absent())
    assert isinstance(first, Written)
    storage.put("k", b"other", expect=Anything())
    storage.put("k", b"same", expect=Anything())
    assert storage.put("k", b"mine", expect=Exactly(first.version)) == Lost()


def test_a_child_forked_after_use_is_told_at_once_what_to_do(at: Callable[..., GcsStorage]) -> None:
    storage = at()
    storage.put("k", b"parent", expect=Anything())

    def use() -> None:
        for call in (lambda: storage.get("k"), lambda: next(storage.scan(""), None)):
            with pytest.raises(StorageError, match="'spawn' or 'forkserver'"):
                call()

    assert [in_child(use) for _ in range(3)] == [0, 0, 0]
    assert storage.get("k") is not None


@pytest.mark.parametrize("generation", [one.value for one in Generation if one.value in ("1", "2")])
def test_a_reader_opens_and_reads_without_a_single_write(
    server: GcsServer, at: Callable[..., GcsStorage], generation: str
) -> None:
    filled(at(), generation)
    server.asked.clear()
    assert read(at(READER)) == 499_500
    Repository.exists(at(READER))
    list(Repository.open(at(READER)).ancestry(branch="main"))
    assert {who for who, _, _ in server.asked} == {READER}
    assert server.writes_of(READER) == []
    with pytest.raises(AccessDeniedError):
        Repository.open(at(READER)).create_tag("t", snapshot_id=_head(at()))


def _head(storage: GcsStorage) -> str:
    return Repository.open(storage).lookup_branch("main")


def test_a_reader_needs_no_right_to_list(at: Callable[..., GcsStorage]) -> None:
    filled(at())
    blind = at(BLIND_READER)
    with pytest.raises(AccessDeniedError, match="list"):
        list(blind.scan(""))
    assert read(blind) == 499_500


def test_a_wrong_token_is_refused_and_shown_nowhere(
    at: Callable[..., GcsStorage], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    storage = at("marker-wrong-token")
    for call in (
        lambda: storage.get("k"),
        lambda: storage.put("k", b"", expect=Absent()),
        lambda: list(storage.scan("")),
    ):
        with pytest.raises(AccessDeniedError) as caught:
            call()
        chain: BaseException | None = caught.value
        while chain is not None:
            assert "marker" not in f"{chain} {chain!r}"
            chain = chain.__cause__ or chain.__context__
    assert "marker" not in repr(storage) + repr(storage.settings) + caplog.text


def test_a_bucket_that_is_not_there_is_not_an_empty_one(at: Callable[..., GcsStorage]) -> None:
    storage = at(bucket="nobodys")
    with pytest.raises(NotFoundError, match="the bucket does not exist"):
        storage.get("k")
    with pytest.raises(NotFoundError, match="the bucket does not exist"):
        list(storage.scan(""))


def test_tokens_are_asked_for_again_before_they_end(at: Callable[..., GcsStorage]) -> None:
    given: list[Token] = []

    def fetch() -> Token:
        left = timedelta(minutes=1) if len(given) < 2 else timedelta(hours=1)
        given.append(Token(Secret(WRITER), datetime.now(UTC) + left))
        return given[-1]

    storage = at(credentials=RefreshableToken(fetch))
    for _ in range(6):
        storage.put("k", b"", expect=Anything())
    assert len(given) == 3


def test_without_credentials_nothing_is_written(at: Callable[..., GcsStorage]) -> None:
    storage = at(credentials=AnonymousCredentials())
    with pytest.raises(AccessDeniedError, match="reading only"):
        storage.put("k", b"", expect=Absent())
    assert "reading only" in storage.delete(["k"]).failed["k"]


def test_large_objects_are_sent_in_parts(server: GcsServer, at: Callable[..., GcsStorage]) -> None:
    storage = at(multipart_threshold=6 * MIB, part_size=5 * MIB)
    data = bytes(range(256)) * (11 * MIB // 256)
    made = storage.put("chunks/large", data, expect=Anything())
    assert isinstance(made, Written)
    found = storage.get("chunks/large")
    assert found is not None
    assert (found.data, found.version) == (data, made.version)
    assert server.parts == {}


def test_given_credentials_are_not_mixed_with_those_of_the_environment(
    at: Callable[..., GcsStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/other.json")
    with pytest.raises(InvalidInputError, match="GOOGLE_SERVICE_ACCOUNT names another"):
        at(credentials=ServiceAccountFile("/mine.json")).get("k")
    with pytest.raises(AccessDeniedError, match="variables of the environment"):
        at().get("k")


def test_an_answer_to_a_request_for_a_token_is_not_one_about_an_object() -> None:
    from obstore.exceptions import GenericError

    text = "Error performing token request: Server returned non-2xx status code: 404 Not Found: "
    assert trouble_of_native(_failure(GenericError(text))) is Trouble.DENIED
    assert trouble_of_native(_failure(FileNotFoundError(text))) is Trouble.MISSING


@pytest.mark.parametrize(
    ("text", "trouble"),
    [
        ("error: Wanted range starting at 10, but object was only 10 bytes long", "BAD_RANGE"),
        ("Bulk delete request failed for key k: The specified blob .. (code: 404)", "MISSING"),
        ("Bulk delete request failed for key k: Not allowed. (code: 403)", "DENIED"),
        (
            (
                "Server returned non-2xx status code: 409 Conflict: <Error><Code>BlobAlreadyExists"
                "</Code></Error>"
            ),
            "REFUSED",
        ),
        (
            (
                "Server returned non-2xx status code: 409 Conflict: <Error><Code>"
                "BlobImmutableDueToPolicy</Code></Error>"
            ),
            "OTHER",
        ),
        (
            (
                "Server returned non-2xx status code: 404 Not Found: <Error><Code>ContainerNotFound"
                "</Code></Error>"
            ),
            "NO_BUCKET",
        ),
        ("something else entirely", "BROKEN"),
    ],
)
def test_what_the_client_says_is_understood(text: str, trouble: str) -> None:
    assert trouble_of_native(native_error(OSError(text))) is Trouble[trouble]


@pytest.mark.parametrize("account", ["", "UPPER", "a" * 25, "with-hyphen", "../../etc"])
def test_an_account_that_cannot_be_is_refused(account: str) -> None:
    with pytest.raises(InvalidInputError, match="storage account"):
        AzureSettings("container", account=account)


def test_the_key_of_an_account_is_shown_nowhere() -> None:
    storage = AzureStorage(
        AzureSettings("container", account="account", credentials=AccountKey(Secret("marker")))
    )
    assert "marker" not in repr(storage) + repr(storage.settings) + storage.location
