"""An S3 server takes a conditional write and its answer gets lost on the way back."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
from support import moto_server
from support.arrays import GROUP, array, contents, put
from support.lossy import Asked, Fate, losing

from airflow_provider_icechunk.engine.commit.conflicts import ConflictDetector
from airflow_provider_icechunk.engine.history.ancestry import TOKEN_KEY
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings
from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage
from airflow_provider_icechunk.engine.storage.secrets import static_credentials
from airflow_provider_icechunk.exceptions import OutcomeUnknownError

KEY_ID, SECRET = "marker-key-id", "marker-secret-key"
COMMITS = 200


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    with moto_server.running("bucket") as url:
        yield url


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
            retry=Backoff(tries=6, first_pause=0.0),
        )
    )


class LosesAnswers:
    """Loses the answers of some conditional writes in every way there is."""

    WAYS = (Fate.LOSES_ANSWER, Fate.HALF_ANSWERED, Fate.FAULTS)

    def __init__(self, probability: float) -> None:
        self._random = random.Random(5)
        self._probability = probability
        self.lost = 0

    def __call__(self, asked: Asked) -> Fate:
        if not asked.is_conditional_write or self._random.random() >= self._probability:
            return Fate.PASSES
        self.lost += 1
        return self._random.choice(self.WAYS)


def prepared(storage: S3Storage) -> None:
    session = Repository.create(storage).writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([COMMITS], [1]))
    session.commit("start")


def test_commits_whose_answers_get_lost_land_once_and_without_a_conflict(moto_url: str) -> None:
    storage = storage_at(moto_url, "lost")
    prepared(storage)
    judge = LosesAnswers(0.3)
    with losing(moto_url, judge) as url:
        repo = Repository.open(storage_at(url, "lost"))
        for number in range(COMMITS):
            session = repo.writable_session("main")
            put(session, "/a", (number,), str(number).encode())
            session.commit(str(number))
    assert judge.lost > COMMITS / 6
    history = [info.message for info in Repository.open(storage).ancestry(branch="main")]
    assert history[:COMMITS] == [str(number) for number in reversed(range(COMMITS))]
    seen = contents(Repository.open(storage).readonly_session("main"))
    assert all(seen[f"/a[{number}]"] == str(number).encode() for number in range(COMMITS))


def test_without_metadata_a_doubtful_commit_is_told_apart_or_called_doubtful(moto_url: str) -> None:
    """Two writers take turns, so that somebody else may have written on top meanwhile."""
    prepared(storage_at(moto_url, "plain", use_metadata=False))
    doubtful = 0
    sound = Repository.open(storage_at(moto_url, "plain"))
    with losing(moto_url, LosesAnswers(0.4)) as url:
        shaky = Repository.open(storage_at(url, "plain", use_metadata=False))
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


def is_move(asked: Asked) -> bool:
    return "if-match" in asked.headers and "refs/branch.main" in asked.path


def test_a_lost_answer_under_another_commit_is_settled_by_the_history(moto_url: str) -> None:
    """Objects carry no mark here, and somebody else's is there by the time of looking."""
    prepared(storage_at(moto_url, "overwritten", use_metadata=False))
    other = Repository.open(storage_at(moto_url, "overwritten"))

    def overwrite(_: Asked) -> None:
        theirs = other.writable_session("main")
        put(theirs, "/a", (1,), b"theirs")
        theirs.commit("theirs")

    def once_moved(asked: Asked) -> Fate:
        return Fate.LOSES_ANSWER if is_move(asked) else Fate.PASSES

    with losing(moto_url, once_moved, overwrite) as url:
        storage = storage_at(url, "overwritten", use_metadata=False)
        session = Repository.open(storage).writable_session("main")
        put(session, "/a", (0,), b"ours")
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
    prepared(storage_at(moto_url, prefix, use_metadata=use_metadata))

    def swallow(asked: Asked) -> Fate:
        return Fate.SWALLOWED if is_move(asked) else Fate.PASSES

    with losing(moto_url, swallow) as url:
        storage = storage_at(url, prefix, use_metadata=use_metadata)
        session = Repository.open(storage).writable_session("main")
        put(session, "/a", (0,), b"ours")
        with pytest.raises(OutcomeUnknownError, match="delete nothing"):
            session.commit("ours", token="task")
    repo = Repository.open(storage_at(moto_url, prefix))
    assert repo.lookup_branch("main") == session.snapshot_id
    again = repo.writable_session("main")
    put(again, "/a", (0,), b"ours")
    again.commit("ours", token="task")
    assert [info.message for info in repo.ancestry(branch="main")].count("ours") == 1


def test_a_work_unit_and_a_fragment_of_an_s3_repository_hold_no_secret(moto_url: str) -> None:
    from airflow_provider_icechunk.engine.repository import Repository
    from airflow_provider_icechunk.engine.workers.codec import encode_fragment

    storage = storage_at(moto_url, "secret")
    prepared(storage)
    repo = Repository.open(storage)
    session = repo.writable_session("main")
    unit = session.work_unit("job")
    fork = repo.fork(json.loads(json.dumps(unit.to_json())))
    put(fork, "/a", (0,), b"x" * 1000)
    texts = [json.dumps(unit.to_json()), repr(unit), repr(encode_fragment(fork.fragment("w")))]
    for text in texts:
        assert KEY_ID not in text
        assert SECRET not in text
