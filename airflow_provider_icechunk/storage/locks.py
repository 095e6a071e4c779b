"""Locks between processes on a file system, freed by the kernel when their holder dies.

Lock files are `.icechunk-locks/00` to `3f` below the root: outside every folder that a reader of
the format lists, empty, and never removed (removing a lock file lets two holders in).
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4
from zlib import crc32

from airflow_provider_icechunk.exceptions import Kind, StorageError, UnsafeStorageError

LOCK_FOLDER = ".icechunk-locks"
_SHARDS = 64
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_MOUNTS = Path("/proc/self/mountinfo")
_KERNEL_FILE_SYSTEMS = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "tmpfs", "xfs", "zfs"}
_held: set[int] = set()


class FolderLocks:
    """Exclusive locks for keys below one root; a few keys share a lock.

    Never hold two at once: keys that share a lock would wait for each other for ever.

    :param patience: seconds to wait for a holder before giving up.
    """

    def __init__(self, root: Path, *, patience: float = 60.0) -> None:
        self._folder = root / LOCK_FOLDER
        self._patience = patience

    @contextmanager
    def holding(self, key: str) -> Iterator[None]:
        """Keep every other thread and process from holding the lock of `key`."""
        with self._holding_file(self._folder / f"{_shard(key):02x}"):
            yield

    @staticmethod
    def grouped(keys: Iterable[str]) -> list[list[str]]:
        """Keys that share a lock together, so that one holding serves them all."""
        groups: dict[int, list[str]] = {}
        for key in keys:
            groups.setdefault(_shard(key), []).append(key)
        return list(groups.values())

    def probe(self) -> None:
        """Find out by trying whether a lock here keeps others out.

        Raises `UnsafeStorageError` where a second descriptor, or a second process, gets a lock that
        is held, which happens on some network and user-space file systems. Where the kernel itself
        keeps the locks, descriptors are what it tells apart, so no process is started to see it.
        """
        path = self._folder / f"probe-{uuid4().hex}"
        try:
            with self._holding_file(path):
                if _lockable_here(path) or (
                    not _kept_by_the_kernel(path) and _lockable_elsewhere(path)
                ):
                    raise UnsafeStorageError(
                        f"file locks do not exclude anyone in {self._folder.parent}: concurrent "
                        "commits would be lost there. Put the repository on another file system "
                        "or on object storage"
                    )
        finally:
            path.unlink(missing_ok=True)
            _remove_if_empty(self._folder)

    @contextmanager
    def _holding_file(self, path: Path) -> Iterator[None]:
        descriptor = self._acquire(path)
        try:
            yield
        finally:
            _held.discard(descriptor)
            os.close(descriptor)

    def _acquire(self, path: Path) -> int:
        deadline = time.monotonic() + self._patience
        pause = 0.0005
        while True:
            descriptor = _open(path)
            try:
                if _try_lock(descriptor) and _is_at(descriptor, path):
                    _held.add(descriptor)
                    return descriptor
            except OSError as error:
                os.close(descriptor)
                raise _refusal(error, path) from error
            os.close(descriptor)
            if time.monotonic() > deadline:
                raise StorageError(
                    f"waited {self._patience:g} s for the lock {path}: a process that holds it "
                    "hangs. End that process; the lock is free as soon as it is gone",
                    kind=Kind.STORAGE_FAILED,
                )
            time.sleep(random.uniform(0, pause))  # noqa: S311 - spreads waiters, hides nothing
            pause = min(pause * 2, 0.02)


def _shard(key: str) -> int:
    return crc32(key.encode()) % _SHARDS


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the locked file is still the one others will open."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _refusal(error: OSError, path: Path) -> StorageError:
    if error.errno in _UNSUPPORTED:
        return UnsafeStorageError(
            f"the file system of {path.parent.parent} has no file locks "
            f"({os.strerror(error.errno or 0)}): concurrent commits would be lost there. Put the "
            "repository on another file system or on object storage"
        )
    return StorageError(f"cannot lock {path}: {os.strerror(error.errno or 0)}")


def _lockable_here(path: Path) -> bool:
    descriptor = _open(path)
    try:
        return _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _kept_by_the_kernel(path: Path) -> bool:
    """Whether the file system is known to leave locks to this machine's kernel."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return False
    # A line is: id, parent, device, root, place, options, any number of tags, "-", type, ...
    for line in mounts:
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == wanted:
            return rest.split(maxsplit=1)[0] in _KERNEL_FILE_SYSTEMS
    return False


_OTHER = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(7)
sys.exit(0)
"""


def _lockable_elsewhere(path: Path) -> bool:
    command = [sys.executable, "-I", "-S", "-c", _OTHER, str(path)]
    other = subprocess.run(command, check=False, capture_output=True, timeout=60)  # noqa: S603
    return other.returncode != 7


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT}:
            raise


def _close_inherited() -> None:
    # A forked child's copy of the descriptor would keep the lock alive after its holder was killed.
    for descriptor in tuple(_held):
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_inherited)
