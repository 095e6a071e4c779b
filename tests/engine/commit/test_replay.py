"""The changes of several commits as one session on another branch."""

import numpy as np
import pytest
import zarr

from airflow_provider_icechunk.api import ConflictDetector, Repository, in_memory_storage
from airflow_provider_icechunk.exceptions import InvalidInputError, NotFoundError


@pytest.fixture
def repository() -> Repository:
    made = Repository.create(in_memory_storage())
    session = made.writable_session("main")
    zarr.create_array(session.store, name="x", shape=(6,), chunks=(2,), dtype="i4")
    made.create_branch("side", session.commit("begin"))
    return made


def write(repository: Repository, branch: str, place: int) -> str:
    session = repository.writable_session(branch)
    zarr.open_array(session.store, path="x", mode="r+")[place : place + 2] = place + 1
    return session.commit(f"{branch} {place}")


def test_changes_of_two_commits_become_one_commit_on_a_branch_that_went_on(
    repository: Repository,
) -> None:
    base = repository.lookup_branch("side")
    write(repository, "side", 0)
    tip = write(repository, "side", 2)
    theirs = write(repository, "main", 4)
    session = repository.session_with_changes("main", from_snapshot_id=base, to_snapshot_id=tip)
    assert session.snapshot_id == base
    made = session.commit("both", rebase_with=ConflictDetector())
    assert repository.lookup_snapshot(made).parent_id == theirs
    store = repository.readonly_session("main").store
    field = np.asarray(zarr.open_array(store, path="x", mode="r")[:])
    assert field.tolist() == [1, 1, 3, 3, 5, 5]


def test_snapshots_that_are_not_on_one_line_are_refused(repository: Repository) -> None:
    base = repository.lookup_branch("side")
    side, main = write(repository, "side", 0), write(repository, "main", 4)
    for older, newer in ((main, side), (side, base), (base, base)):
        with pytest.raises(InvalidInputError, match="not an ancestor"):
            repository.session_with_changes("main", from_snapshot_id=older, to_snapshot_id=newer)
    with pytest.raises(NotFoundError, match="nowhere"):
        repository.session_with_changes("nowhere", from_snapshot_id=base, to_snapshot_id=side)


def test_an_id_is_checked_without_being_looked_for(repository: Repository) -> None:
    repository.read_snapshot_id("ZZZZZZZZZZZZZZZZZZZ0")
    with pytest.raises(InvalidInputError, match="invalid snapshot id"):
        repository.read_snapshot_id("None")
