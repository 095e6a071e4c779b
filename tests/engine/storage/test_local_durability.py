"""What is on the disk when a write is answered, and what is told when it may not be."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_icechunk.engine.storage.base import Absent, Anything, Exactly, Put, Written
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.exceptions import (
    OutcomeUnknownError,
    StorageError,
)

KEY = "refs/branch.main/ref.json"


def path_of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counted: Counter[str] = Counter()
    real = os.fsync

    def counting(descriptor: int) -> None:
        counted[path_of(descriptor)] += 1
        real(descriptor)

    monkeypatch.setattr(os, "fsync", counting)
    return counted


def test_settling_syncs_each_file_once_and_each_folder_once(
    tmp_path: Path, synced: Counter[str]
) -> None:
    root = tmp_path / "root"
    storage = LocalStorage(root)
    keys = [f"{folder}/{n}" for folder in ("chunks", "manifests") for n in range(20)]
    storage.put_many([Put(key, b"x") for key in keys])
    storage.put(keys[0], b"again", expect=Anything())
    assert not synced
    storage.settle()
    folders = [tmp_path, root, root / "chunks", root / "manifests"]
    assert synced == Counter([*(str(root / key) for key in keys), *map(str, folders)])
    synced.clear()
    storage.settle()
    assert not synced
    storage.put("chunks/new", b"x", expect=Anything())
    storage.settle()
    assert synced == Counter([str(root / "chunks/new"), str(root / "chunks")])


def test_a_conditional_write_is_synced_before_it_is_answered(
    tmp_path: Path, synced: Counter[str]
) -> None:
    storage = LocalStorage(tmp_path)
    written = storage.put(KEY, b"1", expect=Absent())
    assert isinstance(written, Written)
    assert sum("#" in path for path in synced) == 1
    for folder in ("refs/branch.main", "refs", ""):
        assert synced[str(tmp_path / folder)] == 1
    synced.clear()
    storage.put(KEY, b"2", expect=Exactly(written.version))
    assert sum("#" in path for path in synced) == 1
    assert synced[str(tmp_path / "refs/branch.main")] == 1
    assert synced.total() == 2


def test_a_folder_that_somebody_else_made_is_synced_on_the_way(
    tmp_path: Path, synced: Counter[str]
) -> None:
    (tmp_path / "chunks").mkdir()
    storage = LocalStorage(tmp_path)
    storage.put("chunks/a", b"", expect=Anything())
    storage.settle()
    assert synced[str(tmp_path)] == 1


def test_without_durability_nothing_is_synced(tmp_path: Path, synced: Counter[str]) -> None:
    storage = LocalStorage(tmp_path, durable=False)
    written = storage.put(KEY, b"1", expect=Absent())
    assert isinstance(written, Written)
    storage.put(KEY, b"2", expect=Exactly(written.version))
    storage.put("chunks/a", b"", expect=Anything())
    storage.settle()
    assert not synced


def test_a_file_whose_sync_failed_stays_a_failure_until_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)
    storage.put("chunks/a", b"1", expect=Anything())

    def broken(descriptor: int) -> None:
        if path_of(descriptor).endswith("chunks/a"):
            raise OSError(errno.EIO, "broken disk")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        with pytest.raises(StorageError, match="chunks/a"):
            storage.settle()
    with pytest.raises(StorageError, match="chunks/a"):
        storage.settle()
    storage.put("chunks/a", b"1", expect=Anything())
    storage.settle()


def test_a_swap_whose_folder_cannot_be_synced_is_of_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(tmp_path)

    def broken(descriptor: int) -> None:
        if "#" not in path_of(descriptor):
            raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OutcomeUnknownError):
        storage.put(KEY, b"1", expect=Absent())
