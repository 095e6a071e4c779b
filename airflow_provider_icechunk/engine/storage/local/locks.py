"""Locks between processes on a file system, released by the kernel when their holder dies.

Lock files are `.icechunk-locks/00` to `3f` below the root: outside every folder that a reader of
the format lists, empty, and never removed (that would let two holders in). Anyone who may write to
the root may write to them.

A lock belongs to an open file, which a forked child shares with its parent. So a child closes its
copies right after the fork, and a holder unlocks before it closes: a lock ends with its holder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar
from uuid import uuid4
from zlib import crc32

from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    Kind,
    StorageError,
    UnsafeStorageError,
)

from .files import failure

LOCK_FOLDER = ".icechunk-locks"
_SHARDS = 64
_TRIES = 1000
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_MOUNTS = Path("/proc/self/mountinfo")
_KERNEL_FILE_SYSTEMS = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "tmpfs", "xfs", "zfs"}
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
PROBE = "probe-"


class _Opened:
    """The lock files this process has open.

    A fork waits while a file is opened and recorded here: the child closes what is recorded.
    """

    guard = threading.RLock()
    descriptors: ClassVar[set[int]] = set()


class FolderLocks:
    """Exclusive locks for keys below one root; several keys share a lock.

    Never hold two at once: keys that share a lock would deadlock.

    :param patience: seconds to wait for a holder before giving up.
    """

    def __init__(self, root: Path, *, patience: float = 60.0) -> None:
        self._folder = root / LOCK_FOLDER
        self._waiting = Backoff(None, first_pause=0.0005, longest_pause=0.02, seconds=patience)

    @contextmanager
    def holding(self, key: str) -> Iterator[None]:
        """Hold the lock of `key`, excluding every other thread and process."""
        with self._holding_file(self._folder / f"{_shard(key):02x}"):
            yield

    @staticmethod
    def grouped(keys: Iterable[str]) -> list[list[str]]:
        """Keys grouped by lock, so that each lock is held once."""
        groups: dict[int, list[str]] = {}
        for key in keys:
            groups.setdefault(_shard(key), []).append(key)
        return list(groups.values())

    def probe(self) -> None:
        """Test whether locks exclude others here.

        Raises `UnsafeStorageError` if a second descriptor or process gets a lock that is held,
        which happens on some network and user-space file systems. Where the kernel itself keeps
        the locks, it distinguishes descriptors, so no process is started.
        """
        path = self._folder / f"{PROBE}{uuid4().hex}"
        try:
            with self._holding_file(path):
                if _lockable_here(path) or (
                    not _kept_by_the_kernel(path) and _lockable_elsewhere(path)
                ):
                    raise UnsafeStorageError(
                        f"file locks do not work in {self._folder.parent}: concurrent "
                        "commits would be lost there. Put the repository on another file system "
                        "or on object storage"
                    )
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)
                self._folder.rmdir()

    @contextmanager
    def _holding_file(self, path: Path) -> Iterator[None]:
        descriptor, owner = self._acquire(path), os.getpid()
        try:
            yield
        finally:
            # A child forked meanwhile has closed its copy; the number may belong to another file.
            if os.getpid() == owner:
                _release(descriptor)

    def _acquire(self, path: Path) -> int:
        for _ in self._waiting.attempts():
            descriptor, is_writable = _open(path)
            try:
                if _try_lock(descriptor) and _is_at(descriptor, path):
                    return descriptor
            except OSError as error:
                _release(descriptor)
                raise _refusal(error, path, is_writable) from error
            _release(descriptor)
        raise StorageError(
            f"waited {self._waiting.seconds:g} s for the lock {path}: the process that holds it "
            "hangs. End that process; the kernel then releases the lock",
            kind=Kind.STORAGE_FAILED,
        )


def _shard(key: str) -> int:
    return crc32(key.encode()) % _SHARDS


def _open(path: Path) -> tuple[int, bool]:
    """A descriptor of a lock file, created if missing, and whether it is writable.

    Network file systems lock exclusively only what is open for writing; on others a file that
    can only be read will do as well.
    """
    try:
        # Others may remove the folder, which a probe leaves empty, or create the file meanwhile.
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):
                return _open_existing(path)
            # Not in one call: some systems refuse to "create" another user's file.
            with suppress(FileNotFoundError, FileExistsError):
                return _opened(lambda: _create(path)), True
        return _opened(lambda: _create(path)), True
    except OSError as error:
        raise failure(error, "open the lock file", str(path)) from error


def _open_existing(path: Path) -> tuple[int, bool]:
    try:
        return _opened(lambda: os.open(path, os.O_RDWR | _FLAGS)), True
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise
    return _opened(lambda: os.open(path, os.O_RDONLY | _FLAGS)), False


def _opened(act: Callable[[], int]) -> int:
    """The descriptor that `act` opens, recorded before any fork can copy it."""
    with _Opened.guard:
        descriptor = act()
        _Opened.descriptors.add(descriptor)
    return descriptor


def _create(path: Path) -> int:
    """Create a lock file, writable for everyone who can write to its folder."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileNotFoundError:
        _make_folder(path.parent)
        descriptor = os.open(path, flags, 0o666)
    with suppress(OSError):
        os.fchmod(descriptor, 0o666 & path.parent.stat().st_mode)
    return descriptor


def _make_folder(folder: Path) -> None:
    """Create the lock folder with the mode of its parent, regardless of the umask."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir()
        with suppress(OSError):
            folder.chmod(stat.S_IMODE(folder.parent.stat().st_mode))


def _release(descriptor: int) -> None:
    """Unlock and close. Never raises: what the lock protected is done."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    with _Opened.guard:
        _Opened.descriptors.discard(descriptor)
        with suppress(OSError):
            os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the locked file is still the one that others will open."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _refusal(error: OSError, path: Path, is_writable: bool) -> StorageError:
    if error.errno in _UNSUPPORTED:
        return UnsafeStorageError(
            f"the file system of {path.parent.parent} has no file locks "
            f"({os.strerror(error.errno or 0)}): concurrent commits would be lost there. Put the "
            "repository on another file system or on object storage"
        )
    if error.errno == errno.EBADF and not is_writable:
        return AccessDeniedError(
            f"cannot lock {path}: this file system locks only writable files, and this one is "
            f"not. Give everybody who commits write access to the files in {path.parent}"
        )
    return failure(error, "lock", str(path))


def _lockable_here(path: Path) -> bool:
    descriptor, _ = _open(path)
    try:
        return _try_lock(descriptor)
    finally:
        _release(descriptor)


def _kept_by_the_kernel(path: Path) -> bool:
    """Whether this machine's kernel is known to keep the locks of the file system."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return False
    # A line is: id, parent, device, root, mount point, options, any number of tags, "-", type, ...
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
    try:
        other = subprocess.run(command, check=False, capture_output=True, timeout=60)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise StorageError(
            f"cannot test whether the lock {path} excludes other processes: "
            f"{type(error).__name__} on starting one"
        ) from error
    return other.returncode != 7


def _before_fork() -> None:
    _Opened.guard.acquire()


def _after_fork() -> None:
    _Opened.guard.release()


def _close_inherited() -> None:
    # A child's copy of the descriptor would keep the lock alive after its holder was killed.
    for descriptor in tuple(_Opened.descriptors):
        with suppress(OSError):
            os.close(descriptor)
    _Opened.descriptors.clear()
    _Opened.guard = threading.RLock()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_close_inherited
)
