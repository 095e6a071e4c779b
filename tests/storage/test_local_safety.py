"""What a folder must withstand: hostile keys and links, killed holders, many processes, crashes."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from conformance import HOSTILE_KEYS
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    InvalidInputError,
    Kind,
    OutcomeUnknownError,
    StorageError,
    UnsafeStorageError,
)
from airflow_provider_icechunk.storage import locks
from airflow_provider_icechunk.storage.base import (
    Absent,
    Anything,
    Exactly,
    Lost,
    Put,
    Written,
)
from airflow_provider_icechunk.storage.local import LocalStorage
from airflow_provider_icechunk.storage.locks import LOCK_FOLDER, FolderLocks

KEY = "refs/branch.main/ref.json"


def path_of(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# Never outside of the root


def test_no_hostile_key_makes_a_file_anywhere(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "inside" / "root")
    for key in HOSTILE_KEYS:
        with pytest.raises(InvalidInputError):
            storage.put(key, b"x", expect=Anything())
    assert files_below(tmp_path) == set()


@settings(max_examples=300)
@given(
    st.lists(
        st.sampled_from(["a", "/", ".", "..", "\\", "%2e", "\x00", "~", "\u202e", "#1"]),
        max_size=12,
    ).map("".join)
)
def test_generated_keys_stay_inside_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, key: str
) -> None:
    outer = tmp_path_factory.getbasetemp() / "generated"
    storage = LocalStorage(outer / "root", durable=False)
    try:
        storage.put(key, b"x", expect=Anything())
    except (InvalidInputError, StorageError):
        pass
    else:
        found = storage.get(key)
        assert found is not None
        storage.delete([key])
    outside = {path for path in outer.rglob("*") if not path.is_relative_to(outer / "root")}
    assert outside <= {outer / "root"}


def test_a_linked_folder_is_refused_by_every_verb(tmp_path: Path) -> None:
    secret = tmp_path / "outside"
    secret.mkdir()
    (secret / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "chunks").symlink_to(secret)
    storage = LocalStorage(root)
    verbs = [
        lambda: storage.get("chunks/secret"),
        lambda: storage.head("chunks/secret"),
        lambda: storage.put("chunks/new", b"", expect=Anything()),
        lambda: storage.put("chunks/new", b"", expect=Absent()),
        lambda: storage.delete(["chunks/secret"]),
        lambda: list(storage.scan("chunks/")),
        lambda: list(storage.scan("")),
        lambda: storage.list_folders("chunks/"),
        lambda: storage.list_folders(""),
    ]
    for verb in verbs:
        with pytest.raises(StorageError) as caught:
            verb()
        assert caught.value.kind is Kind.OUTSIDE_ROOT
    assert files_below(secret) == {"secret"}


def test_a_linked_file_is_not_read_and_not_written_through(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "ref").symlink_to(secret)
    storage = LocalStorage(root)
    with pytest.raises(StorageError) as caught:
        storage.get("ref")
    assert caught.value.kind is Kind.OUTSIDE_ROOT
    assert storage.put("ref", b"new", expect=Absent()) == Lost()
    storage.put("ref", b"new", expect=Anything())
    assert secret.read_bytes() == b"secret"


def test_a_linked_root_is_fine(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    LocalStorage(tmp_path / "link").put(KEY, b"x", expect=Absent())
    assert LocalStorage(tmp_path / "real").get(KEY) is not None


def test_a_pipe_in_the_folder_neither_blocks_nor_reads(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert LocalStorage(tmp_path).get("pipe") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_an_error_and_not_empty(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.put("chunks/a", b"", expect=Anything())
    (tmp_path / "chunks").chmod(0)
    try:
        with pytest.raises(AccessDeniedError):
            list(storage.scan("chunks/"))
    finally:
        (tmp_path / "chunks").chmod(0o700)


# Unfinished files and lock files


def test_unfinished_files_and_locks_are_never_listed(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    written = storage.put(KEY, b"1", expect=Absent())
    assert isinstance(written, Written)
    storage.put(KEY, b"2", expect=Exactly(written.version))
    (tmp_path / "refs" / ".icechunk#000000000000000001").write_bytes(b"torn")
    (tmp_path / "refs" / "branch.main" / "ref.json#1").write_bytes(b"torn")
    assert (tmp_path / LOCK_FOLDER).is_dir()
    assert [one.key for one in storage.scan("")] == [KEY]
    assert storage.list_folders("") == ["refs"]


def test_writes_leave_no_unfinished_files(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    written = storage.put(KEY, b"1", expect=Absent())
    assert isinstance(written, Written)
    storage.put(KEY, b"2", expect=Exactly(written.version))
    storage.put(KEY, b"3", expect=Exactly(written.version))
    storage.put(KEY, b"3", expect=Absent())
    storage.put("chunks/a", b"3", expect=Anything())
    storage.now()
    assert not [name for name in files_below(tmp_path) if "#" in name]


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
    with pytest.raises(UnsafeStorageError, match="do not exclude anyone"):
        LocalStorage(tmp_path).check_conditional_writes()
    assert len(tried) == 1


def test_another_process_finds_a_held_lock_held(tmp_path: Path) -> None:
    with FolderLocks(tmp_path).holding("key"):
        [lock] = (tmp_path / LOCK_FOLDER).iterdir()
        assert not locks._lockable_elsewhere(lock)
    assert locks._lockable_elsewhere(lock)


# Versions


def test_rewrites_in_one_tick_of_the_clock_have_versions_of_their_own(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, durable=False)
    outcome = storage.put(KEY, b"x" * 10_000, expect=Absent())
    seen = []
    for _ in range(300):
        assert isinstance(outcome, Written)
        seen.append(outcome.version)
        outcome = storage.put(KEY, b"x" * 10_000, expect=Exactly(outcome.version))
    assert len(set(seen)) == len(seen)


def test_a_rewrite_by_another_program_is_noticed_even_with_the_same_time(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    written = storage.put(KEY, b"aaaa", expect=Absent())
    assert isinstance(written, Written)
    path = tmp_path / KEY
    status = path.stat()
    path.write_bytes(b"bbbb")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert storage.put(KEY, b"cccc", expect=Exactly(written.version)) == Lost()


# Many processes, killed holders, forks


ADDER = """
import sys
from airflow_provider_icechunk.storage.base import Exactly, Written
from airflow_provider_icechunk.storage.local import LocalStorage
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
from airflow_provider_icechunk.storage.locks import FolderLocks
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


def test_a_lock_that_is_never_freed_ends_in_an_error(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage._locks._patience = 0.05
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
    with pytest.raises(UnsafeStorageError, match="do not exclude"):
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


# Durability


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


def test_a_delete_that_fails_is_reported_for_its_key_alone(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.put_many([Put("chunks/a", b""), Put("chunks/b/inner", b"")])
    deleted = storage.delete(["chunks/a", "chunks/b"])
    assert deleted.keys == ("chunks/a",)
    assert list(deleted.failed) == ["chunks/b"]
    assert storage.get("chunks/b/inner") is not None
