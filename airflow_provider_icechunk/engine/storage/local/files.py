"""The file operations behind `LocalStorage`: safe paths, staged writes, versions, durability."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path

from airflow_provider_icechunk.engine.concurrency import PerProcess, run_all
from airflow_provider_icechunk.engine.storage.base import Data, Version, check_key
from airflow_provider_icechunk.exceptions import AccessDeniedError, Kind, StorageError

SMALL = 4096
"""Objects up to this size have a digest of their content in their version."""
FSYNCS_AT_ONCE = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_STAGE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class SafePaths:
    """Paths of keys below a root; symbolic links on the way are refused.

    Folders are checked once: anyone who can replace a folder of the repository by a link later can
    write to the repository anyway.
    """

    def __init__(self, root: Path) -> None:
        try:
            self.root = Path(os.path.realpath(root))
        except OSError as error:
            raise failure(error, "find", str(root)) from error
        self._prefix = f"{self.root}/"
        self._checked = {str(self.root)}

    def of(self, key: str) -> str:
        """The path of an object."""
        path = self._prefix + check_key(key)
        folder = path[: path.rindex("/")]
        if folder not in self._checked:
            self._check(folder)
        return path

    def folder(self, key: str) -> str:
        """The path of a folder, given as a prefix without trailing slash; empty for the root."""
        path = self._prefix + check_key(key) if key else str(self.root)
        if path not in self._checked:
            self._check(path)
        return path

    def _check(self, folder: str) -> None:
        if os.path.realpath(folder) != folder:
            raise outside(folder)
        if os.path.isdir(folder):  # noqa: PTH112 - says no where pathlib would raise
            self._checked.add(folder)


def outside(path: str) -> StorageError:
    """The error for a symbolic link inside a repository."""
    return StorageError(
        f"{path} is or is behind a symbolic link. Links inside a repository are not followed, "
        "since they can lead out of it: replace the link by its target",
        kind=Kind.OUTSIDE_ROOT,
    )


def failure(error: OSError, doing: str, path: str) -> StorageError:
    """Convert an error of the operating system."""
    reason = reason_of(error)
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return AccessDeniedError(f"not permitted to {doing} {path}: {reason}")
    if error.errno == errno.ELOOP:
        return outside(path)
    return StorageError(f"cannot {doing} {path}: {reason}")


def reason_of(error: OSError) -> str:
    """The operating system's reason."""
    return os.strerror(error.errno) if error.errno else type(error).__name__


def close(descriptor: int) -> None:
    """Close a file that was only read, ignoring errors."""
    with suppress(OSError):
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A regular file opened for reading; close its descriptor with `close`."""

    descriptor: int
    status: os.stat_result

    def read(self, start: int, stop: int) -> bytes:
        """Bytes from `start` up to `stop`, fewer only if the file ends before."""
        wanted = stop - start
        first = os.pread(self.descriptor, wanted, start)
        if len(first) == wanted:
            return first
        parts = [first]
        position = start + len(first)
        while parts[-1] and position < stop:
            parts.append(os.pread(self.descriptor, stop - position, position))
            position += len(parts[-1])
        return b"".join(parts)

    def read_into(self, start: int, space: memoryview) -> int:
        """Fill `space` with the bytes from `start` on; fewer only if the file ends before."""
        done = 0
        while done < len(space):
            count = os.preadv(self.descriptor, [space[done:]], start + done)
            if not count:
                break
            done += count
        return done

    def version(self) -> Version:
        """The tag of this state of the object.

        Inode numbers and clock ticks are reused, so a small object's tag includes a digest of its
        content; conditional rewrites of any size differ by their strictly increasing times.
        """
        tag = f"{self.status.st_mtime_ns:x}-{self.status.st_ino:x}-{self.status.st_size:x}"
        if self.status.st_size <= SMALL:
            content = self.read(0, self.status.st_size)
            tag = f"{tag}-{blake2b(content, digest_size=8).hexdigest()}"
        return Version(tag)


def time_in(version: Version) -> int:
    """The modification time in a version, in nanoseconds; 0 if it is from another back end."""
    try:
        return int(version.split("-", 1)[0], 16)
    except ValueError:
        return 0


def open_file(path: str) -> OpenFile | None:
    """The file, or `None` if there is no regular file at `path`."""
    try:
        descriptor = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise failure(error, "read", path) from error
    try:
        status = os.fstat(descriptor)
    except OSError as error:
        close(descriptor)
        raise failure(error, "read", path) from error
    if not stat.S_ISREG(status.st_mode):
        close(descriptor)
        return None
    return OpenFile(descriptor, status)


def current_version(path: str) -> Version | None:
    """The version of the object at `path`, if there is one."""
    found = open_file(path)
    if found is None:
        return None
    try:
        return found.version()
    except OSError as error:
        raise failure(error, "read", path) from error
    finally:
        close(found.descriptor)


def written_at(status: os.stat_result) -> datetime:
    """The time of the last write, by the clock of the file system."""
    return _EPOCH + timedelta(microseconds=status.st_mtime_ns // 1000)


def staging_name() -> str:
    """A fresh name for an unfinished file, of a form that local back ends omit from listings."""
    return f".icechunk#{secrets.randbelow(10**18):018d}"


def stage(folder: str, data: Data, *, durable: bool, later_than: int = 0) -> str:
    """Write `data` to an unfinished file in `folder` and return its path.

    Its time is set later than `later_than`, so a rewrite never has the time of an earlier state.
    A process that dies leaves the file behind; it is not listed, and a collection removes it.
    """
    path = f"{folder}/{staging_name()}"
    descriptor = os.open(path, _STAGE, 0o666)
    try:
        try:
            _write(descriptor, data)
            if os.fstat(descriptor).st_mtime_ns <= later_than:
                os.utime(descriptor, ns=(later_than + 1, later_than + 1))
            if durable:
                os.fsync(descriptor)
        finally:
            # Network file systems may report only here that the bytes did not arrive.
            os.close(descriptor)
    except BaseException:
        discard(path)
        raise
    return path


def _write(descriptor: int, data: Data) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def discard(path: str) -> None:
    """Remove an unfinished file if it exists; if that fails, a collection will."""
    with suppress(OSError):
        os.unlink(path)  # noqa: PTH108 - a `Path` costs as much as the removal


def make_folders(folder: str) -> list[str]:
    """Create a folder and its missing parents; returns the folders that got a new entry."""
    made: list[str] = []
    if os.path.isdir(folder):  # noqa: PTH112 - a `Path` costs as much as the check
        return made
    missing = Path(folder)
    wanted = []
    while not missing.is_dir():
        wanted.append(missing)
        missing = missing.parent
    for one in reversed(wanted):
        one.mkdir(exist_ok=True)
        made.append(str(one.parent))
    return made


def sync_path(path: str) -> None:
    """Make a file's content, or a folder's entries, durable. Missing paths are ignored."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync folders and need not: entries are synchronous.
        if error.errno not in {errno.EINVAL, errno.ENOTSUP} or not Path(path).is_dir():
            raise
    finally:
        close(descriptor)


class Unsettled:
    """Writes that are not durable yet, and how to make them so.

    A file whose fsync failed remains a failure until it is written again: the kernel reports lost
    pages only once, and a second fsync would succeed.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._lock = PerProcess(threading.Lock)
        self._settling = PerProcess(threading.Lock)
        self._files: set[str] = set()
        self._new: set[str] = set()
        self._folders: set[str] = set()
        self._anchored: set[str] = {_existing_above(root)}
        self._failed: dict[str, str] = {}

    def replaces(self, path: str) -> bool:
        """Whether a file exists that others may rely on, so it must not be lost."""
        return path not in self._new and os.path.lexists(path)

    def remember(self, path: str, made: Iterable[str], *, is_new: bool) -> None:
        """Record a written file, and the folders that got a new folder for it."""
        with self._lock.get():
            self._files.add(path)
            if is_new:
                self._new.add(path)
            self._folders.update(self._chain(_folder(path)), made)
            self._failed.pop(path, None)

    def forget(self, paths: Iterable[str]) -> None:
        """Deleted files need no durability."""
        with self._lock.get():
            for path in paths:
                self._files.discard(path)
                self._new.discard(path)
                self._failed.pop(path, None)

    def sync_entry(self, path: str, made: Iterable[str]) -> None:
        """Make the entry of one file durable now, and the folders on the way to it."""
        folders = {*self._chain(_folder(path)), *made}
        for folder in sorted(folders, reverse=True):
            self._sync(folder)
        self._anchored.update(folders)

    def settle(self) -> None:
        """Make everything durable: files first, then each folder once.

        One caller at a time: a second must not return while the first still syncs its files.
        """
        with self._settling.get():
            with self._lock.get():
                files, self._files, self._new = self._files, set(), set()
                folders, self._folders = self._folders, set()
            failed = {**self._sync_all(files), **self._sync_all(folders)}
            with self._lock.get():
                self._failed |= failed
                if not failed:
                    self._anchored |= folders
            if self._failed:
                path = min(self._failed)
                raise StorageError(
                    f"{len(self._failed)} file(s) may not have reached the disk, among them "
                    f"{path} ({self._failed[path]}). Check the disk, then write them again"
                )

    def _chain(self, folder: str) -> list[str]:
        """The folder, and its parents whose entries on the way to it may not be durable.

        Another process may have created a folder without syncing it.
        """
        chain = [folder]
        while folder not in self._anchored:
            folder = _folder(folder)
            chain.append(folder)
        return chain

    def _sync(self, path: str) -> None:
        try:
            sync_path(path)
        except PermissionError:
            # Write access to the root does not imply read access to its parents.
            if path.startswith(f"{self._root}/") or path == self._root:
                raise

    def _sync_all(self, paths: set[str]) -> dict[str, str]:
        """Sync files or folders; returns failures with their reasons."""
        wanted = sorted(paths)
        tried = run_all(self._try_sync, wanted, at_once=FSYNCS_AT_ONCE)
        return {
            path: reason for path, reason in zip(wanted, tried, strict=True) if reason is not None
        }

    def _try_sync(self, path: str) -> str | None:
        try:
            self._sync(path)
        except OSError as error:
            return reason_of(error)
        return None


def _folder(path: str) -> str:
    return path[: path.rindex("/")]


def _existing_above(root: str) -> str:
    """The nearest existing folder above the root.

    The root itself may have just been created, possibly by another process, and not be durable.
    """
    folder = Path(root).parent
    while not os.path.isdir(folder) and folder != folder.parent:  # noqa: PTH112 - never raises
        folder = folder.parent
    return str(folder)
