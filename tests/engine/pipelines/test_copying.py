"""A copy of a repository: whole, resumable, and never the end of what others wrote."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from airflow_provider_icechunk import api
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    FormatError,
    InvalidInputError,
    MaintenanceError,
    NotFoundError,
)


def commit(repository: api.Repository, value: float, branch: str = "main") -> str:
    session = repository.writable_session(branch)
    root = zarr.open_group(session.store, mode="a")
    array = root.require_array("a", shape=(4000,), chunks=(1000,), dtype="float64")
    array[:] = np.random.default_rng(int(value)).random(4000)
    return session.commit(f"value {value}")


def read(repository: api.Repository, **version: Any) -> Any:
    store = repository.readonly_session(**version).store
    return np.asarray(zarr.open_array(store, path="a", mode="r")[:])


def place(folder: Path, name: str) -> api.Storage:
    return api.local_filesystem_storage(folder / name)


@pytest.fixture(params=[1, 2, "alpha", "draft"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> api.Repository:
    made = api.Repository.create(place(tmp_path, "source"), spec_version=request.param)
    commit(made, 1)
    made.create_tag("v1", made.lookup_branch("main"))
    commit(made, 2)
    return made


def test_a_backup_and_its_restore_give_the_same_repository(
    source: api.Repository, tmp_path: Path
) -> None:
    done = api.copy_repository(source, place(tmp_path, "backup"))
    assert done.copied > 0
    assert done.branches == {"main": source.lookup_branch("main")}
    restored = place(tmp_path, "restored")
    api.copy_repository(place(tmp_path, "backup"), restored)
    copy = api.Repository.open(restored)
    assert (read(copy, branch="main") == read(source, branch="main")).all()
    assert (read(copy, tag="v1") == read(source, tag="v1")).all()
    ours = [info.id for info in source.ancestry(branch="main")]
    assert [info.id for info in copy.ancestry(branch="main")] == ours
    commit(copy, 3)


def test_a_second_backup_copies_what_is_new(source: api.Repository, tmp_path: Path) -> None:
    target = place(tmp_path, "backup")
    first = api.copy_repository(source, target)
    idle = api.copy_repository(source, target, compare=True)
    assert (idle.copied, idle.references, idle.there) == (0, 0, first.copied)
    newest = commit(source, 3)
    again = api.copy_repository(source, target)
    assert 0 < again.copied < first.copied + 8
    assert api.Repository.open(target).lookup_branch("main") == newest


class _Dies:
    """A storage that stops after so many writes."""

    def __init__(self, inner: Any, writes: int) -> None:
        self._inner = inner
        self._left = writes
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put(self, *args: Any, **options: Any) -> Any:
        with self._lock:
            if self._left == 0:
                raise KeyboardInterrupt
            self._left -= 1
        return self._inner.put(*args, **options)


def test_a_copy_that_died_anywhere_goes_on_and_shows_no_half(
    source: api.Repository, tmp_path: Path
) -> None:
    whole = api.copy_repository(source, place(tmp_path, "whole"))
    writes = whole.copied + whole.references
    target = place(tmp_path, "backup")
    for _ in range(writes - 1):
        with pytest.raises(KeyboardInterrupt):
            api.copy_repository(source, _Dies(target, 1))
        if api.Repository.exists(target):
            half = api.Repository.open(target)
            assert half.list_branches() <= {"main"}
            for tag in half.list_tags():
                assert len(read(half, tag=tag)) == 4000
    done = api.copy_repository(source, target)
    assert done.branches == whole.branches
    assert (read(api.Repository.open(target), branch="main") == read(source, branch="main")).all()


def test_a_target_that_others_committed_to_is_refused(
    source: api.Repository, tmp_path: Path
) -> None:
    target = place(tmp_path, "backup")
    api.copy_repository(source, target)
    theirs = commit(api.Repository.open(target), 7)
    commit(source, 3)
    with pytest.raises(ConflictError, match="somebody committed to the copy"):
        api.copy_repository(source, target)
    assert api.Repository.open(target).lookup_branch("main") == theirs


@pytest.mark.parametrize("source", [1, 2], indirect=True)
def test_branches_of_a_target_are_moved_only_if_that_is_asked_for(
    source: api.Repository, tmp_path: Path
) -> None:
    target = place(tmp_path, "backup")
    api.copy_repository(source, target)
    commit(api.Repository.open(target), 7)
    newest = commit(source, 3)
    api.copy_repository(source, target, overwrite=True)
    assert api.Repository.open(target).lookup_branch("main") == newest


@pytest.mark.parametrize("source", [1], indirect=True)
def test_damage_on_either_side_is_found(source: api.Repository, tmp_path: Path) -> None:
    target = place(tmp_path, "backup")
    api.copy_repository(source, target)
    chunk = next((tmp_path / "backup" / "chunks").iterdir())
    data = chunk.read_bytes()
    chunk.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(FormatError, match="differs between"):
        api.copy_repository(source, target, compare=True)
    chunk.write_bytes(data[:-1])
    with pytest.raises(FormatError, match="differs between"):
        api.copy_repository(source, target)
    chunk.unlink()
    assert api.copy_repository(source, target).copied == 1
    (tmp_path / "source" / "chunks" / chunk.name).unlink()
    with pytest.raises(MaintenanceError, match="is incomplete"):
        api.copy_repository(source, place(tmp_path, "other"))


def test_a_place_without_a_repository_and_the_same_place_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no repository"):
        api.copy_repository(place(tmp_path, "nothing"), place(tmp_path, "backup"))
    made = api.Repository.create(place(tmp_path, "source"))
    with pytest.raises(InvalidInputError, match="onto itself"):
        api.copy_repository(made, place(tmp_path, "source"))
