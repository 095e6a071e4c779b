"""An S3 server takes a conditional write and its answer gets lost on the way back."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest
from botocore.exceptions import ReadTimeoutError
from botocore.httpsession import URLLib3Session
from moto.server import ThreadedMotoServer
from support.arrays import GROUP, array, contents, put

from airflow_provider_icechunk.exceptions import OutcomeUnknownError
from airflow_provider_icechunk.repository.conflicts import ConflictDetector
from airflow_provider_icechunk.repository.repository import Repository
from airflow_provider_icechunk.repository.session import TOKEN_KEY
from airflow_provider_icechunk.storage.credentials import static_credentials
from airflow_provider_icechunk.storage.retry import Retry
from airflow_provider_icechunk.storage.s3 import S3Storage
from airflow_provider_icechunk.storage.s3_settings import S3Settings

KEY_ID, SECRET = "marker-key-id", "marker-secret-key"
COMMITS = 200


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
    )
    client.create_bucket(Bucket="bucket")
    client.close()
    yield url
    server.stop()


def storage_at(url: str, prefix: str, *, use_metadata: bool = True) -> S3Storage:
    return S3Storage(
        S3Settings(
            "bucket",
            prefix,
            region="us-east-1",
            endpoint_url=url,
            credentials=static_credentials(KEY_ID, SECRET),
            force_path_style=True,
            allow_http=True,
            use_metadata=use_metadata,
            retry=Retry(tries=6, first_pause=0.0),
        )
    )


class LosesAnswers:
    """Sends a conditional write, waits until it is done, and reports a timeout."""

    def __init__(self, storage: S3Storage, probability: float) -> None:
        self._random = random.Random(5)
        self._probability = probability
        self._session = URLLib3Session()
        self.lost = 0
        events = storage._bucket.client.meta.events
        events.register("before-send.s3.PutObject", self._send)

    def _send(self, request: AWSPreparedRequest, **_: object) -> None:
        conditional = "If-Match" in request.headers or "If-None-Match" in request.headers
        if not conditional or self._random.random() >= self._probability:
            return
        self._session.send(request)
        self.lost += 1
        raise ReadTimeoutError(endpoint_url=request.url)


def prepared(storage: S3Storage) -> None:
    session = Repository.create(storage).writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([COMMITS], [1]))
    session.commit("start")


def test_commits_whose_answers_get_lost_land_once_and_without_a_conflict(moto_url: str) -> None:
    storage = storage_at(moto_url, "lost")
    prepared(storage)
    losing = LosesAnswers(storage, 0.3)
    repo = Repository.open(storage)
    for number in range(COMMITS):
        session = repo.writable_session("main")
        put(session, "/a", (number,), str(number).encode())
        session.commit(str(number))
    assert losing.lost > COMMITS / 6
    history = [info.message for info in Repository.open(storage).ancestry(branch="main")]
    assert history[:COMMITS] == [str(number) for number in reversed(range(COMMITS))]
    seen = contents(Repository.open(storage).readonly_session("main"))
    assert all(seen[f"/a[{number}]"] == str(number).encode() for number in range(COMMITS))


def test_without_metadata_a_doubtful_commit_is_told_apart_or_called_doubtful(moto_url: str) -> None:
    """Two writers take turns, so that somebody else may have written on top meanwhile."""
    storage = storage_at(moto_url, "plain", use_metadata=False)
    prepared(storage)
    LosesAnswers(storage, 0.4)
    shaky, sound = Repository.open(storage), Repository.open(storage_at(moto_url, "plain"))
    doubtful = 0
    for number in range(15):
        sessions = [shaky.writable_session("main") for _ in range(2)]
        for side, session in enumerate(sessions):
            put(session, "/a", (2 * number + side,), b"x")
            token = f"{number}/{side}"
            base = session.tree.base
            try:
                session.commit(token, rebase_with=ConflictDetector(), token=token)
            except OutcomeUnknownError:
                doubtful += 1
                again = sound.writable_session("main")
                again.tree.base = base
                put(again, "/a", (2 * number + side,), b"x")
                again.commit(token, rebase_with=ConflictDetector(), token=token)
    print(f"{doubtful} of 30 commits without metadata ended in doubt")
    tokens = [info.metadata.get(TOKEN_KEY) for info in sound.ancestry(branch="main")][:-2]
    assert sorted(tokens) == sorted(f"{n}/{side}" for n in range(15) for side in range(2))


def is_move(request: AWSPreparedRequest) -> bool:
    return "If-Match" in request.headers and "refs/branch.main" in request.url


def test_a_lost_answer_under_another_commit_is_settled_by_the_history(moto_url: str) -> None:
    """Objects carry no mark here, and somebody else's is there by the time of looking."""
    storage = storage_at(moto_url, "overwritten", use_metadata=False)
    prepared(storage)
    session = Repository.open(storage).writable_session("main")
    put(session, "/a", (0,), b"ours")
    other = Repository.open(storage_at(moto_url, "overwritten"))

    def overwrite(request: AWSPreparedRequest, **_: object) -> None:
        if not is_move(request):
            return
        URLLib3Session().send(request)
        theirs = other.writable_session("main")
        put(theirs, "/a", (1,), b"theirs")
        theirs.commit("theirs")
        raise ReadTimeoutError(endpoint_url=request.url)

    storage._bucket.client.meta.events.register("before-send.s3.PutObject", overwrite)
    landed = session.commit("ours")
    history = list(other.ancestry(branch="main"))
    assert [info.message for info in history] == [
        "theirs",
        "ours",
        "start",
        "Repository initialized",
    ]
    assert history[1].id == landed


@pytest.mark.parametrize("use_metadata", [True, False])
def test_a_commit_that_nobody_answers_is_doubtful_and_leaves_a_sound_repository(
    moto_url: str, use_metadata: bool
) -> None:
    prefix = f"unanswered-{use_metadata}"
    storage = storage_at(moto_url, prefix, use_metadata=use_metadata)
    prepared(storage)
    session = Repository.open(storage).writable_session("main")
    put(session, "/a", (0,), b"ours")

    def swallow(request: AWSPreparedRequest, **_: object) -> None:
        if is_move(request):
            raise ReadTimeoutError(endpoint_url=request.url)

    storage._bucket.client.meta.events.register("before-send.s3.PutObject", swallow)
    with pytest.raises(OutcomeUnknownError, match="delete nothing"):
        session.commit("ours", token="task")
    repo = Repository.open(storage_at(moto_url, prefix))
    assert repo.lookup_branch("main") == session.snapshot_id
    again = repo.writable_session("main")
    put(again, "/a", (0,), b"ours")
    again.commit("ours", token="task")
    assert [info.message for info in repo.ancestry(branch="main")].count("ours") == 1


def test_a_work_unit_and_a_fragment_of_an_s3_repository_hold_no_secret(moto_url: str) -> None:
    from airflow_provider_icechunk.format.fragments import encode_fragment
    from airflow_provider_icechunk.zarr_store.sessions import Repository as ZarrRepository

    storage = storage_at(moto_url, "secret")
    prepared(storage)
    repo = ZarrRepository.open(storage)
    session = repo.writable_session("main")
    unit = session.work_unit("job")
    fork = repo.fork(json.loads(json.dumps(unit.to_json())))
    put(fork, "/a", (0,), b"x" * 1000)
    texts = [json.dumps(unit.to_json()), repr(unit), repr(encode_fragment(fork.fragment("w")))]
    for text in texts:
        assert KEY_ID not in text
        assert SECRET not in text
