"""A commit in the place of an earlier one of the same work is never in conflict with that."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import zarr
from support.arrays import array, put
from support.maintenance import GENERATIONS, Clock

from airflow_provider_icechunk.engine.commit.conflicts import ConflictDetector
from airflow_provider_icechunk.engine.format.chunk_refs import Inline
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import ConflictError, RebaseFailedError

SHAPE, CHUNKS = (6,), (2,)


@pytest.fixture(params=GENERATIONS)
def repository(request: pytest.FixtureRequest) -> Repository:
    made = Repository.create(MemoryStorage(), spec_version=request.param)
    session = made.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    for name in ("there", "theirs"):
        root.create_array(name, shape=SHAPE, chunks=CHUNKS, dtype="int32")[:] = 0
    session.commit("begin")
    return made


def ours(metadata: Mapping[str, Any]) -> bool:
    return metadata.get("by") == "us"


def commit(session: Session, **arguments: Any) -> str:
    given = {"metadata": {"by": "us"}, "rebase_with": ConflictDetector(), "replaces": ours}
    return session.commit("ours", **given | arguments)


def root(session: Session) -> zarr.Group:
    return zarr.open_group(session.store, mode="a")


def values(repository: Repository, path: str) -> list[int]:
    store = repository.readonly_session("main").store
    return np.asarray(zarr.open_array(store, path=path, mode="r")[:]).tolist()


def by_others(repository: Repository, path: str = "theirs", value: int = 9) -> str:
    session = repository.writable_session("main")
    root(session)[path][0] = value
    return session.commit("theirs")


def do_it_twice(repository: Repository, work: Any, **arguments: Any) -> None:
    """Two sessions on one base do the same work, with other values; others commit in between."""
    sessions = [repository.writable_session("main") for _ in range(2)]
    for value, session in enumerate(sessions, start=1):
        work(session, value)
    by_others(repository)
    commit(sessions[0])
    by_others(repository, value=8)
    commit(sessions[1], **arguments)
    assert values(repository, "theirs")[0] == 8


def test_chunks_of_the_later_one_count(repository: Repository) -> None:
    def work(session: Session, value: int) -> None:
        root(session)["there"][: 2 * value] = value

    do_it_twice(repository, work)
    assert values(repository, "there") == [2, 2, 2, 2, 0, 0]


def test_what_only_the_earlier_one_wrote_stays(repository: Repository) -> None:
    def work(session: Session, value: int) -> None:
        root(session)["there"][2 * value - 2 : 2 * value] = value

    do_it_twice(repository, work)
    assert values(repository, "there") == [1, 1, 2, 2, 0, 0]


def test_nodes_that_both_created_are_one(repository: Repository) -> None:
    def work(session: Session, value: int) -> None:
        group = root(session).create_group("group", attributes={"value": value})
        group.create_array("new", shape=SHAPE, chunks=CHUNKS, dtype="int32")[:2] = value
        if value == 2:
            group.create_array("more", shape=(2,), dtype="int32")[:] = value

    do_it_twice(repository, work)
    assert values(repository, "group/new")[:2] == [2, 2]
    assert values(repository, "group/more") == [2, 2]
    session = repository.readonly_session("main")
    assert zarr.open_group(session.store, path="group", mode="r").attrs["value"] == 2


def test_documents_and_lengths_of_the_later_one_count(repository: Repository) -> None:
    def work(session: Session, value: int) -> None:
        array = root(session)["there"]
        array.resize((6 + 2 * value,))
        array[6:] = value
        array.attrs["value"] = value

    do_it_twice(repository, work)
    assert values(repository, "there") == [0] * 6 + [2] * 4


def test_what_both_deleted_is_gone(repository: Repository) -> None:
    def work(session: Session, value: int) -> None:
        del root(session)["there"]
        root(session).create_array("instead", shape=(2,), dtype="int32")[:] = value

    do_it_twice(repository, work)
    assert values(repository, "instead") == [2, 2]
    session = repository.readonly_session("main")
    assert "there" not in zarr.open_group(session.store, mode="r")


def test_what_both_replaced_is_there_once(repository: Repository) -> None:
    def work(session: Session, value: int) -> None:
        array = root(session).create_array("there", shape=(4,), dtype="int32", overwrite=True)
        array[:] = value

    do_it_twice(repository, work)
    assert values(repository, "there") == [2] * 4


def test_arrays_whose_chunks_mean_something_else_are_left_to_people(
    repository: Repository,
) -> None:
    def work(session: Session, value: int) -> None:
        root(session).create_array("new", shape=(4,), dtype=["int32", "int64"][value - 1])[:] = 1

    with pytest.raises(RebaseFailedError):
        do_it_twice(repository, work)


def test_others_are_in_conflict_as_ever(repository: Repository) -> None:
    sessions = [repository.writable_session("main") for _ in range(2)]
    for session in sessions:
        root(session)["there"][:] = 1
    commit(sessions[0])
    theirs = by_others(repository, "there")
    with pytest.raises(RebaseFailedError) as caught:
        commit(sessions[1])
    assert caught.value.snapshot == theirs


def test_without_a_solver_our_own_commits_are_passed_and_those_of_others_are_not(
    repository: Repository,
) -> None:
    sessions = [repository.writable_session("main") for _ in range(3)]
    for value, session in enumerate(sessions):
        root(session)["there"][:] = value
    commit(sessions[0], rebase_with=None)
    commit(sessions[1], rebase_with=None)
    assert values(repository, "there") == [1] * 6
    by_others(repository)
    with pytest.raises(ConflictError):
        commit(sessions[2], rebase_with=None)
    assert values(repository, "there") == [1] * 6


@pytest.mark.parametrize("generation", GENERATIONS)
def test_what_others_did_before_the_earlier_one_is_not_passed_over_once_it_expired(
    generation: str,
) -> None:
    """Generation `2` remembers what an expired commit changed; elsewhere the trees tell."""
    clock = Clock()
    storage = MemoryStorage(clock=clock)
    repository = Repository.create(storage, spec_version=generation, world=clock.world())

    def create(session: Session, path: str, value: bytes) -> None:
        session.tree.put_document(path, array([1], [1]))
        put(session, path, (0,), value)

    first, again, theirs = (repository.writable_session("main") for _ in range(3))
    create(theirs, "/both", b"theirs")
    theirs.commit("theirs")
    create(first, "/ours", b"first")
    commit(first)
    clock.wait(hours=1)
    repository.expire_snapshots(clock())
    assert [one.message for one in repository.ancestry(branch="main")][:-1] == ["ours"]
    create(again, "/ours", b"again")
    create(again, "/both", b"again")
    with pytest.raises(RebaseFailedError):
        commit(again)
    tree = repository.readonly_session("main").tree
    assert tree.chunk("/both", (0,)) == Inline(b"theirs")
    assert tree.chunk("/ours", (0,)) == Inline(b"first")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_first_commit_of_a_repository_can_be_replaced(generation: str) -> None:
    repository = Repository.create(MemoryStorage(), spec_version=generation)
    sessions = [repository.writable_session("main") for _ in range(2)]
    for value, session in enumerate(sessions):
        new = root(session).create_array("new", shape=SHAPE, chunks=CHUNKS, dtype="int32")
        new[:] = value
        commit(session)
    assert values(repository, "new") == [1] * 6


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_session_is_not_moved_over_what_expired_as_if_it_had_not_been(generation: str) -> None:
    """Of a commit of others, and without one in the place of another."""
    clock = Clock()
    storage = MemoryStorage(clock=clock)
    repository = Repository.create(storage, spec_version=generation, world=clock.world())
    late = repository.writable_session("main")
    start = repository.lookup_branch("main")
    for path in ("/both", "/theirs"):
        session = repository.writable_session("main")
        session.tree.put_document(path, array([1], [1]))
        put(session, path, (0,), b"theirs")
        session.commit("theirs")
    clock.wait(hours=1)
    repository.expire_snapshots(clock())
    assert len(list(repository.ancestry(branch="main"))) == 2
    assert repository.diff(from_snapshot_id=start, to_branch="main").new_arrays == {
        "/both",
        "/theirs",
    }
    late.tree.put_document("/both", array([1], [1]))
    with pytest.raises(RebaseFailedError):
        late.commit("late", rebase_with=ConflictDetector())
    late.discard_changes()
    late.tree.put_document("/late", array([1], [1]))
    late.commit("late", rebase_with=ConflictDetector())
    assert repository.readonly_session("main").tree.chunk("/both", (0,)) == Inline(b"theirs")
