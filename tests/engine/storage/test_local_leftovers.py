"""What killed writers leave in a folder, and who removes it: a collection, and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.maintenance import everything, live_in

from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.local.locks import LOCK_FOLDER
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.observed import ObservedStorage
from airflow_provider_icechunk.exceptions import InvalidInputError

KILLED = """
import os, signal, sys
from airflow_provider_icechunk.engine.storage.base import Absent, Anything
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

os.rename = os.link = die
LocalStorage(sys.argv[1]).put(sys.argv[2], b"never finished", expect=eval(sys.argv[3])())
"""


def kill_a_writer(root: Path, key: str, expect: str) -> None:
    command = [sys.executable, "-c", KILLED, str(root), key, expect]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


def leftovers(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if "#" in path.name or "probe-" in path.name)


def age(paths: list[Path], **amount: float) -> None:
    for path in paths:
        moment = path.stat().st_mtime - timedelta(**amount).total_seconds()
        os.utime(path, (moment, moment))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    live_in(LocalStorage(tmp_path))
    return tmp_path


def test_a_collection_removes_what_killed_writers_left(root: Path) -> None:
    kill_a_writer(root, "chunks/never", "Anything")
    kill_a_writer(root, "refs/branch.new/ref.json", "Absent")
    (root / "chunks" / "official#1").write_bytes(b"left by the official library")
    (root / LOCK_FOLDER / "probe-0123456789abcdef").write_bytes(b"")
    left, storage = leftovers(root), LocalStorage(root)
    assert len(left) == 4
    age(left, hours=2)
    seen = everything(storage)
    repo = Repository.open(storage)
    cutoff = datetime.now(UTC) - timedelta(hours=1, minutes=30)
    planned = repo.garbage_collect(cutoff, dry_run=True)
    assert planned.unfinished_files_deleted == 4
    assert leftovers(root) == left
    done = repo.garbage_collect(cutoff)
    assert done.unfinished_files_deleted == 4
    assert done.bytes_deleted == planned.bytes_deleted > 0
    assert leftovers(root) == []
    assert everything(storage) == seen
    assert repo.garbage_collect(cutoff).unfinished_files_deleted == 0


@pytest.mark.parametrize(("hours", "cutoff"), [(2, 3), (0.5, 0), (0, 0)])
def test_what_may_still_be_written_stays(root: Path, hours: float, cutoff: float) -> None:
    kill_a_writer(root, "chunks/never", "Anything")
    left = leftovers(root)
    age(left, hours=hours)
    older_than = datetime.now(UTC) - timedelta(hours=cutoff)
    summary = Repository.open(LocalStorage(root)).garbage_collect(older_than)
    assert summary.unfinished_files_deleted == 0
    assert leftovers(root) == left


def test_nothing_but_a_collection_removes_them(root: Path) -> None:
    kill_a_writer(root, "chunks/never", "Anything")
    left = leftovers(root)
    age(left, days=9)
    repo = Repository.open(LocalStorage(root))
    session = repo.writable_session("main")
    session.tree.put_chunk("/a", (9,), b"more" * 200)
    session.commit("more")
    repo.expire_snapshots(datetime.now(UTC))
    repo.delete_branch("side")
    assert leftovers(root) == left


def test_only_unfinished_files_can_be_removed_as_such(root: Path) -> None:
    storage = LocalStorage(root)
    with pytest.raises(InvalidInputError):
        storage.remove_unfinished(["refs/branch.main/ref.json"])
    with pytest.raises(InvalidInputError):
        storage.remove_unfinished([f"{LOCK_FOLDER}/00"])
    with pytest.raises(InvalidInputError):
        storage.remove_unfinished(["../outside#1"])


def test_a_folder_that_is_none_of_ours_does_not_stop_a_collection(root: Path) -> None:
    outside = root.parent / f"{root.name}-outside"
    outside.mkdir()
    (outside / "file#1").write_bytes(b"somebody else's")
    age([outside / "file#1"], days=9)
    (root / "linked").symlink_to(outside)
    summary = Repository.open(LocalStorage(root)).garbage_collect(datetime.now(UTC))
    assert summary.unfinished_files_deleted == 0
    assert (outside / "file#1").exists()


def test_a_storage_that_is_observed_is_cleaned_as_well(root: Path) -> None:
    kill_a_writer(root, "chunks/never", "Anything")
    age(leftovers(root), hours=2)
    repo = Repository.open(ObservedStorage(LocalStorage(root)))
    cutoff = datetime.now(UTC) - timedelta(hours=1, minutes=30)
    assert repo.garbage_collect(cutoff).unfinished_files_deleted == 1
