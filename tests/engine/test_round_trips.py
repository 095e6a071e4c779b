"""Budgets: how many requests each operation sends, and how many of them wait for each other.

The table in `docs/performance.md` has the same figures. They are of a storage on a network whose
client is warm: its server has been found to honour conditions.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import zarr

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.core import ConditionGuard
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.pipelines.observe import CommitFilter, poll_branch
from airflow_provider_icechunk.engine.refs.base import JustRead, Trust
from airflow_provider_icechunk.engine.storage.base import Listed
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.storage.observed import ObservedStorage
from airflow_provider_icechunk.engine.storage.s3.connection import connect
from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings
from airflow_provider_icechunk.engine.storage.secrets import static_credentials
from airflow_provider_icechunk.engine.world import World
from airflow_provider_icechunk.exceptions import AccessDeniedError, StorageError

CHUNK = 3000


@pytest.fixture(autouse=True)
def _a_read_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory answers at once; of a server, what was read to open it is still new a moment later."""
    monkeypatch.setattr(JustRead, "least", 60.0)


class Bucket(MemoryStorage):
    """Memory that behaves as a server on a network."""

    endpoint_url = "http://budgets.example"


class Vendor(Bucket):
    """A service whose promises are known."""

    endpoint_url = None  # type: ignore[assignment]


class Unlisted(Bucket):
    """A server at which nobody may list."""

    def scan(self, prefix: str) -> Iterator[Listed]:
        raise AccessDeniedError(f"{prefix} may not be listed")

    def list_folders(self, prefix: str) -> list[str]:
        raise AccessDeniedError(f"{prefix} may not be listed")


def spent(storage: ObservedStorage) -> tuple[int, int]:
    requests = sum(one.requests for verb, one in storage.usage.items() if verb != "settle")
    return requests, storage.depth


def created(
    generation: Generation, storage: ObservedStorage | None = None
) -> tuple[ObservedStorage, icechunk.Repository]:
    warm(Bucket())
    storage = ObservedStorage(Bucket()) if storage is None else storage
    return storage, icechunk.Repository.create(storage, spec_version=generation.value)


def warm(storage: Bucket) -> None:
    ConditionGuard(storage, Trust.CONDITIONS).check()


def opened(storage: ObservedStorage) -> icechunk.Repository:
    return icechunk.Repository.open(storage)


def array_of(session: icechunk.Session, chunks: int) -> Any:
    return zarr.create_array(
        session.store,
        name="a",
        shape=(chunks * CHUNK,),
        chunks=(CHUNK,),
        dtype="u1",
        compressors=None,
    )


def noise(chunks: int) -> Any:
    return np.random.default_rng(chunks).integers(1, 256, chunks * CHUNK, "u1")


def commit_chunk(repository: icechunk.Repository, number: int, branch: str = "main") -> str:
    session = repository.writable_session(branch)
    array = zarr.open_array(session.store, path="a", mode="r+")
    array[number * CHUNK : (number + 1) * CHUNK] = noise(1)
    return session.commit(f"chunk {number}")


def filled(generation: Generation, commits: int) -> tuple[ObservedStorage, icechunk.Repository]:
    storage, repository = created(generation)
    session = repository.writable_session("main")
    array_of(session, commits + 2)
    session.commit("array")
    for number in range(commits):
        commit_chunk(repository, number)
    return storage, repository


def create(generation: Generation) -> ObservedStorage:
    warm(Bucket())
    storage = ObservedStorage(Bucket())
    storage.reset()
    created(generation, storage)
    return storage


def open_and_session(generation: Generation) -> ObservedStorage:
    storage, _ = filled(generation, 1)
    storage.reset()
    opened(storage).readonly_session("main")
    return storage


def read_one_chunk(generation: Generation) -> ObservedStorage:
    storage, _ = filled(generation, 1)
    storage.reset()
    found = opened(storage).readonly_session("main").store.get_sync("a/c/0")
    assert found is not None
    assert found.to_bytes() == noise(1).tobytes()
    return storage


def commit_ten_chunks(generation: Generation) -> ObservedStorage:
    storage, _ = filled(generation, 10)
    session = opened(storage).writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[: 10 * CHUNK] = noise(10)
    storage.reset()
    session.commit("ten")
    return storage


def rebase_over_ten(generation: Generation) -> ObservedStorage:
    storage, repository = filled(generation, 0)
    session = repository.writable_session("main")
    zarr.open_group(session.store)["a"].resize((20 * CHUNK,))  # type: ignore[union-attr]
    session.commit("longer")
    session = opened(storage).writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[10 * CHUNK : 11 * CHUNK] = noise(1)
    for number in range(10):
        commit_chunk(repository, number)
    storage.reset()
    session.commit("late", rebase_with=icechunk.ConflictDetector())
    return storage


def rebase_over_ten_that_raced(generation: Generation) -> ObservedStorage:
    """They were moved over each other, and tell so."""
    storage, repository = filled(generation, 0)
    session = repository.writable_session("main")
    zarr.open_group(session.store)["a"].resize((20 * CHUNK,))  # type: ignore[union-attr]
    session.commit("longer")
    late, *others = (opened(storage).writable_session("main") for _ in range(11))
    for number, session in enumerate((late, *others)):
        part = slice(number * CHUNK, (number + 1) * CHUNK)
        zarr.open_array(session.store, path="a", mode="r+")[part] = noise(1)
    for session in others:
        session.commit("early", rebase_with=icechunk.ConflictDetector())
    storage.reset()
    late.commit("late", rebase_with=icechunk.ConflictDetector())
    return storage


def walk_thirteen(generation: Generation) -> ObservedStorage:
    storage, _ = filled(generation, 11)
    repository = opened(storage)
    storage.reset()
    assert len(list(repository.ancestry(branch="main"))) == 13
    return storage


def expire_five(generation: Generation) -> ObservedStorage:
    storage, repository = filled(generation, 4)
    until = datetime.now(UTC)
    session = repository.writable_session("main")
    # All chunks are replaced: what the others wrote is garbage, and so are its files.
    zarr.open_array(session.store, path="a", mode="r+")[:] = noise(6)
    session.commit("all")
    repository = opened(storage)
    storage.reset()
    assert len(repository.expire_snapshots(until)) == 5
    return storage


def collect_after_it(generation: Generation) -> ObservedStorage:
    storage = expire_five(generation)
    repository = opened(storage)
    storage.reset()
    summary = repository.garbage_collect(datetime.now(UTC))
    assert (summary.snapshots_deleted, summary.manifests_deleted) == (5, 4)
    assert summary.chunks_deleted == 4
    return storage


def collect_what_was_released(generation: Generation) -> ObservedStorage:
    storage, repository = filled(generation, 4)
    until = datetime.now(UTC)
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[:] = noise(6)
    session.commit("all")
    plan = repository.expire(icechunk.RetentionPolicy(until))
    repository = opened(storage)
    storage.reset()
    assert repository.collect(datetime.now(UTC), released=plan).chunks_deleted == 4
    return storage


def poke(generation: Generation) -> ObservedStorage:
    storage, repository = filled(generation, 1)
    head = repository.lookup_branch("main")
    storage.reset()
    seen = poll_branch(repository, "r", "main", since=head, conditions=CommitFilter())
    assert seen.events == []
    return storage


Budget = tuple[int, int]
Budgets = dict[Generation, Budget]
V1, V2 = Generation.V1, Generation.V2
ALPHA, ALPHA1, DRAFT = Generation.ALPHA, Generation.ALPHA1, Generation.DRAFT
BUDGETS: dict[Callable[[Generation], ObservedStorage], Budgets] = {
    create: {V1: (4, 3), V2: (5, 4), ALPHA: (7, 7), ALPHA1: (6, 6), DRAFT: (6, 6)},
    open_and_session: {V1: (4, 2), V2: (4, 2), ALPHA: (13, 7), ALPHA1: (13, 7), DRAFT: (12, 6)},
    read_one_chunk: {V1: (6, 4), V2: (6, 4), ALPHA: (15, 9), ALPHA1: (15, 9), DRAFT: (14, 8)},
    commit_ten_chunks: {V1: (6, 3), V2: (7, 4), ALPHA: (9, 5), ALPHA1: (9, 5), DRAFT: (9, 5)},
    rebase_over_ten: {
        V1: (27, 14),
        V2: (28, 15),
        ALPHA: (40, 20),
        ALPHA1: (60, 40),
        DRAFT: (60, 40),
    },
    rebase_over_ten_that_raced: {
        V1: (27, 6),
        V2: (28, 8),
        ALPHA: (40, 12),
        ALPHA1: (60, 40),
        DRAFT: (60, 40),
    },
    walk_thirteen: {V1: (14, 5), V2: (13, 13), ALPHA: (17, 8), ALPHA1: (16, 7), DRAFT: (14, 14)},
    expire_five: {V1: (18, 5), V2: (3, 3), ALPHA: (33, 11), ALPHA1: (32, 10), DRAFT: (17, 7)},
    collect_after_it: {
        V1: (61, 8),
        V2: (48, 12),
        ALPHA: (84, 18),
        ALPHA1: (78, 17),
        DRAFT: (78, 14),
    },
    collect_what_was_released: {
        V1: (75, 12),
        V2: (57, 16),
        ALPHA: (97, 22),
        ALPHA1: (91, 21),
        DRAFT: (91, 18),
    },
    poke: {V1: (1, 1), V2: (1, 1), ALPHA: (2, 2), ALPHA1: (2, 2), DRAFT: (1, 1)},
}


@pytest.mark.parametrize("generation", list(Generation))
@pytest.mark.parametrize("work", BUDGETS, ids=lambda work: work.__name__)
def test_an_operation_keeps_to_its_budget_of_requests_and_round_trips(
    work: Callable[[Generation], ObservedStorage], generation: Generation
) -> None:
    storage = work(generation)

    requests, depth = spent(storage)

    most, deepest = BUDGETS[work][generation]
    assert (requests <= most, depth <= deepest) == (True, True), (
        f"{requests} requests, {depth} of them one after the other; allowed are {most} and "
        f"{deepest}: { {verb: one.requests for verb, one in storage.usage.items()} }"
    )


def test_a_server_is_probed_once_in_a_process_and_a_known_service_never() -> None:
    class Fresh(Bucket):
        endpoint_url = f"http://fresh-{id(object())}.example"

    probes = []
    for _ in range(3):
        storage = ObservedStorage(Fresh())
        created(V1, storage)
        probes.append("check_conditional_writes" in storage.usage)
    known = ObservedStorage(Vendor())
    created(V1, known)

    assert probes == [True, False, False]
    assert "check_conditional_writes" not in known.usage


def test_nobody_needs_the_right_to_list_to_read_or_commit() -> None:
    storage = ObservedStorage(Unlisted())
    with pytest.raises(StorageError):
        storage.list_folders("refs/")
    warm(Bucket())
    repository = icechunk.Repository.create(storage, check_clean_root=False)
    session = repository.writable_session("main")
    array_of(session, 3)[:] = noise(3)
    session.commit("array")
    for number in range(5):
        commit_chunk(opened(storage), number % 3)

    reader = opened(storage)

    assert len(list(reader.ancestry(branch="main"))) == 7
    assert reader.readonly_session("main").store.get_sync("a/c/2") is not None
    assert not icechunk.Repository.exists(ObservedStorage(Unlisted()))


def test_what_was_read_to_open_is_read_again_once_this_process_moved_a_branch() -> None:
    storage, repository = filled(V1, 1)
    reader = opened(storage)
    head = commit_chunk(repository, 1)

    assert reader.readonly_session("main").snapshot_id == head


def test_a_session_opened_later_sees_what_others_did_since() -> None:
    clock = [0.0]
    storage, repository = filled(V1, 1)
    reader = icechunk.Repository.open(storage, world=World(monotonic=lambda: clock[0]))
    moved = opened(storage)
    first = repository.lookup_branch("main")
    assert moved.readonly_session("main").snapshot_id == first
    assert reader.readonly_session("main").snapshot_id == first
    commit_chunk(repository, 1)
    clock[0] += 61.0

    assert reader.readonly_session("main").snapshot_id != first


def place(key: str = "key", prefix: str = "a") -> S3Settings:
    return S3Settings(
        "bucket",
        prefix,
        endpoint_url="http://127.0.0.1:9",
        allow_http=True,
        force_path_style=True,
        credentials=static_credentials(key, "secret"),
    )


def test_a_task_with_given_keys_does_not_wait_for_boto3_before_its_first_request() -> None:
    program = """
import sys
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings
from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage
from airflow_provider_icechunk.engine.storage.secrets import static_credentials
from airflow_provider_icechunk.exceptions import StorageError
storage = S3Storage(S3Settings(
    "bucket", endpoint_url="http://127.0.0.1:9", allow_http=True, force_path_style=True,
    credentials=static_credentials("key", "secret"), retry=Backoff(tries=1),
))
try:
    storage.get("repo")
except StorageError:
    print(sorted({"boto3", "botocore", "urllib3"} & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_repositories_in_one_bucket_share_clients_unless_keys_or_surroundings_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = connect(place())

    assert connect(place(prefix="b")) is first
    assert connect(place("other")) is not first
    monkeypatch.setenv("AWS_CA_BUNDLE", "/elsewhere.pem")
    assert connect(place()) is not first
