"""Locks between processes: they exclude, are freed when a holder dies, or are found wanting."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from airflow_provider_icechunk.engine.storage.base import Absent, Exactly, Put, Written
from airflow_provider_icechunk.engine.storage.local import locks
from airflow_provider_icechunk.engine.storage.local.locks import LOCK_FOLDER, FolderLocks
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.exceptions import (
    StorageError,
    UnsafeStorageError,
)

KEY = "refs/branch.main/ref.json"


def test_the_probe_of_a_fresh_folder_leaves_it_clean(tmp_path: Path) -> None:
    LocalStorage(tmp_path).check_conditional_writes()
    assert list(tmp_path.iterdir()) == []


def test_where_the_kernel_does_not_keep_the_locks_another_process_tries_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []

    def lockable(path: Path) -> bool:
        tried.append(path)
        return True

    monkeypatch.setattr(locks, "_lockable_elsewhere", lockable)
    monkeypatch.setattr(locks, "_MOUNTS", tmp_path / "no such table")
    with pytest.raises(UnsafeStorageError, match="do not work"):
        LocalStorage(tmp_path).check_conditional_writes()
    assert len(tried) == 1


def test_another_process_finds_a_held_lock_held(tmp_path: Path) -> None:
    with FolderLocks(tmp_path).holding("key"):
        [lock] = (tmp_path / LOCK_FOLDER).iterdir()
        assert not locks._lockable_elsewhere(lock)
    assert locks._lockable_elsewhere(lock)


ADDER = """
import sys
from airflow_provider_icechunk.engine.storage.base import Exactly, Written
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
storage = LocalStorage(sys.argv[1])
done = 0
while done < 10:
    found = storage.get(sys.argv[2])
    number = str(int(found.data) + 1).encode()
    done += isinstance(storage.put(sys.argv[2], number, expect=Exactly(found.version)), Written)
"""


def test_eight_processes_lose_no_update(tmp_path: Path) -> None:
    LocalStorage(tmp_path).put(KEY, b"0", expect=Absent())
    command = [sys.executable, "-c", ADDER, str(tmp_path), KEY]
    workers = [subprocess.Popen(command) for _ in range(8)]
    assert [one.wait() for one in workers] == [0] * 8
    found = LocalStorage(tmp_path).get(KEY)
    assert found is not None
    assert found.data == b"80"


HOLDER = """
import sys, time
from pathlib import Path
from airflow_provider_icechunk.engine.storage.local.locks import FolderLocks
with FolderLocks(Path(sys.argv[1])).holding(sys.argv[2]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_killed_holder_frees_the_lock_at_once(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    written = storage.put(KEY, b"1", expect=Absent())
    assert isinstance(written, Written)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), KEY], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        outcomes = []
        waiting = threading.Thread(
            target=lambda: outcomes.append(storage.put(KEY, b"2", expect=Exactly(written.version)))
        )
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive(), "the lock did not keep the writer out"
        holder.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        waiting.join(30)
        waited = time.monotonic() - killed
    assert isinstance(outcomes[0], Written)
    assert waited < 2


def test_only_what_can_be_replaced_is_locked_to_be_deleted(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    keys = [f"chunks/{number}" for number in range(2000)]
    storage.put_many([Put(key, b"") for key in keys])
    assert storage.delete(keys[:1999], immutable=True).keys == tuple(keys[:1999])
    assert not (tmp_path / LOCK_FOLDER).exists()
    assert storage.delete(keys[1999:]).keys == tuple(keys[1999:])
    assert len(list((tmp_path / LOCK_FOLDER).iterdir())) == 1


def test_a_lock_that_is_never_freed_ends_in_an_error(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage._locks = FolderLocks(tmp_path, patience=0.05)
    with storage._locks.holding(KEY), pytest.raises(StorageError, match="holds it hangs"):
        storage.put(KEY, b"1", expect=Absent())


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    storage = LocalStorage(tmp_path)
    with pytest.raises(UnsafeStorageError):
        storage.check_conditional_writes()
    with pytest.raises(UnsafeStorageError):
        storage.put(KEY, b"1", expect=Absent())
    assert storage.get(KEY) is None


def test_locks_that_exclude_nobody_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with pytest.raises(UnsafeStorageError, match="do not work"):
        LocalStorage(tmp_path).check_conditional_writes()
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(UnsafeStorageError, match="hard links"):
        LocalStorage(tmp_path).put(KEY, b"1", expect=Absent())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_writes_though_the_parent_held_everything(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.put_many([Put(f"chunks/{n}", b"x") for n in range(32)])
    assert len(storage.get_many([(f"chunks/{n}", None) for n in range(32)])) == 32
    with storage._unsettled._lock.get(), storage._unsettled._settling.get():
        child = os.fork()
        if child == 0:
            code = 1
            try:
                storage.put_many([Put(f"chunks/child{n}", b"x") for n in range(8)])
                storage.settle()
                got = storage.get_many([(f"chunks/child{n}", None) for n in range(8)])
                code = 0 if all(got) else 2
            finally:
                os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
