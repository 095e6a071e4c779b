"""A process that dies at any storage call leaves the old or the new state, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from support.arrays import GROUP, array, contents, put
from support.maintenance import CRASHES, GENERATIONS, UNPACKED

from airflow_provider_icechunk.engine.commit.conflicts import ConflictDetector
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.exceptions import InvalidInputError, NotFoundError
from airflow_provider_icechunk.testing.storages import every_crash


def prepared(generation: str) -> Callable[[Storage], None]:
    def prepare(storage: Storage) -> None:
        repo = Repository.create(storage, spec_version=generation, packing=UNPACKED)
        session = repo.writable_session("main")
        session.tree.put_document("/", GROUP)
        session.tree.put_document("/a", array([8], [2]))
        put(session, "/a", (0,), b"old bytes that are not inline" * 20)
        first = session.commit("prepared")
        repo.create_branch("side", first)
        repo.create_tag("v1", first)

    return prepare


@dataclass(frozen=True)
class State:
    """Everything visible from outside."""

    branches: dict[str, str]
    tags: dict[str, str]
    history: tuple[str, ...]
    tree: tuple[tuple[str, object], ...]


def state(storage: Storage) -> State | None:
    try:
        repo = Repository.open(storage)
    except NotFoundError:
        return None
    branches = {name: repo.lookup_branch(name) for name in sorted(repo.list_branches())}
    tags = {name: repo.lookup_tag(name) for name in sorted(repo.list_tags())}
    history = tuple(info.message for info in repo.ancestry(branch="main"))
    return State(
        branches, tags, history, tuple(sorted(contents(repo.readonly_session("main")).items()))
    )


def shape(seen: State | None) -> object:
    """A state without the random ids, to compare runs."""
    if seen is None:
        return None
    return (sorted(seen.branches), sorted(seen.tags), seen.history, seen.tree)


def commit(storage: Storage) -> None:
    session = Repository.open(storage, packing=UNPACKED).writable_session("main")
    put(session, "/a", (0,), b"new bytes that are not inline" * 20)
    put(session, "/a", (1,), b"inline")
    session.tree.put_document("/b", array([4], [4]))
    put(session, "/b", (0,), b"another" * 100)
    session.commit("crashing")


def commit_after_rebase(storage: Storage) -> None:
    repo = Repository.open(storage, packing=UNPACKED)
    late = repo.writable_session("main")
    put(late, "/a", (1,), b"late" * 200)
    quick = repo.writable_session("main")
    put(quick, "/a", (2,), b"quick")
    quick.commit("quick")
    late.commit("late", rebase_with=ConflictDetector())


def create_branch(storage: Storage) -> None:
    repo = Repository.open(storage)
    repo.create_branch("new", repo.lookup_branch("main"))


def reset_branch(storage: Storage) -> None:
    repo = Repository.open(storage)
    root = list(repo.ancestry(branch="main"))[-1].id
    repo.reset_branch("side", root)


def delete_branch(storage: Storage) -> None:
    Repository.open(storage).delete_branch("side")


def create_tag(storage: Storage) -> None:
    repo = Repository.open(storage)
    repo.create_tag("v2", repo.lookup_branch("main"))


def delete_tag(storage: Storage) -> None:
    Repository.open(storage).delete_tag("v1")


def save_config(storage: Storage) -> None:
    repo = Repository.open(storage, RepositoryConfig(inline_chunk_threshold_bytes=7))
    repo.save_config()


OPERATIONS = [
    commit,
    create_branch,
    reset_branch,
    delete_branch,
    create_tag,
    delete_tag,
    save_config,
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: str(operation.__name__))
@pytest.mark.parametrize(("generation", "step"), CRASHES)
def test_an_operation_killed_at_any_call_leaves_the_old_or_the_new_state(
    operation: Callable[[Storage], None], generation: str, step: int
) -> None:
    if (operation, generation) == (delete_tag, "alpha1"):
        with pytest.raises(InvalidInputError):
            _both_states(operation, generation)
        return
    before, after = _both_states(operation, generation)
    points = 0
    for point in every_crash(operation, prepare=prepared(generation), step=step):
        points += 1
        assert shape(state(point.storage)) in (before, after), point
        _check_usable(point.storage)
    print(f"{operation.__name__} in generation {generation}: {points} crash points")
    assert points >= 8 // step


def _both_states(operation: Callable[[Storage], None], generation: str) -> tuple[object, object]:
    from airflow_provider_icechunk.engine.storage.memory import MemoryStorage

    storage = MemoryStorage()
    prepared(generation)(storage)
    before = shape(state(storage))
    operation(storage)
    return before, shape(state(storage))


def _check_usable(storage: Storage) -> None:
    """The next open and commit work, and what was there stays."""
    repo = Repository.open(storage)
    session = repo.writable_session("main")
    put(session, "/a", (3,), b"after the crash")
    session.commit("after the crash")
    seen = contents(Repository.open(storage).readonly_session("main"))
    assert seen["/a[3]"] == b"after the crash"
    assert "/a[0]" in seen


@pytest.mark.parametrize(("generation", "step"), CRASHES)
def test_a_rebased_commit_killed_at_any_call_shows_each_commit_wholly_or_not(
    generation: str, step: int
) -> None:
    points = 0
    for point in every_crash(commit_after_rebase, prepare=prepared(generation), step=step):
        points += 1
        seen = state(point.storage)
        assert seen is not None
        quick, late = "/a[2]" in dict(seen.tree), "/a[1]" in dict(seen.tree)
        assert seen.history[:-2] == ("late",) * late + ("quick",) * quick, point
        assert quick or not late
        _check_usable(point.storage)
    print(f"rebased commit in generation {generation}: {points} crash points")
    assert points >= 20 // step


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_creation_killed_at_any_call_can_be_repeated(generation: str) -> None:
    config = RepositoryConfig(inline_chunk_threshold_bytes=9)

    def create(storage: Storage) -> None:
        Repository.create(storage, config, spec_version=generation)

    points = 0
    for point in every_crash(create):
        points += 1
        if not Repository.exists(point.storage):
            create(point.storage)
        repo = Repository.open(point.storage)
        assert repo.config.inline_chunk_threshold_bytes == 9, point
        session = repo.writable_session("main")
        session.tree.put_document("/", GROUP)
        session.commit("works")
    print(f"create in generation {generation}: {points} crash points")
    assert points >= 8
