"""Objects as files in a folder of a POSIX file system, with a true compare-and-swap.

The layout is that of the official library, which can read and write the same folder. Its
writes take no lock, so conditional writes are safe only among writers that use this package.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, assert_never

from airflow_provider_icechunk.engine.concurrency import run_all, run_while_brief
from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Anything,
    ByteRange,
    Data,
    Deleted,
    Exactly,
    Expectation,
    Fetched,
    Listed,
    Lost,
    Put,
    PutOutcome,
    Version,
    Written,
    check_prefix,
    resolve,
)
from airflow_provider_icechunk.engine.storage.faces import OfficialStorage
from airflow_provider_icechunk.engine.storage.tuning import Tuning
from airflow_provider_icechunk.exceptions import (
    InvalidInputError,
    Kind,
    OutcomeUnknownError,
    StorageError,
    UnsafeStorageError,
)

from . import files
from .locks import FolderLocks
from .scan import folders_below, is_unfinished, unfinished_below, walk

_FEW, _LITTLE = 8, 1 << 20
"""Writing fewer files and bytes takes less time than starting a thread."""
_PART = 512
"""Files that a thread removes at a time."""
_LONGEST_STAGING = timedelta(hours=1)
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


@dataclass(frozen=True, slots=True)
class _Staged:
    """An unfinished file and what its rename will mean."""

    path: str
    made: list[str]
    """Folders in which a new folder was created for it."""
    is_new: bool


def _rebuild(root: Path, durable: bool, concurrency: int) -> LocalStorage:
    return LocalStorage(root, durable=durable, concurrency=concurrency)


class LocalStorage(OfficialStorage):
    """A folder, created when the first object is written.

    Unconditional writes become durable together, at `settle`; conditional ones immediately.

    :param root: the folder. It may be a symbolic link; links below it are not followed.
    :param durable: whether to wait for the disk. If not, a crash of the machine (not of the
        process) can lose or tear writes.
    :param concurrency: maximum number of files that the `_many` methods handle at once.
    """

    def __init__(self, root: str | Path, *, durable: bool = True, concurrency: int = 16) -> None:
        self._paths = files.SafePaths(Path(root))
        self._locks = FolderLocks(self._paths.root)
        self._unsettled = files.Unsettled(str(self._paths.root))
        self._durable = durable
        self._concurrency = concurrency

    def __reduce__(self) -> tuple[Any, ...]:
        """Without locks and unsettled writes."""
        return (_rebuild, (self.root, self._durable, self._concurrency))

    @property
    def followed(self) -> frozenset[str]:
        """Only how many files are handled at once."""
        return frozenset({"requests_at_once"})

    def tuned(self, tuning: Tuning) -> LocalStorage:
        """The same folder with less concurrency; a file system has no other settings."""
        # The smaller of the choice at creation and this one.
        at_once = min(tuning.requests_at_once or self._concurrency, self._concurrency)
        if at_once == self._concurrency:
            return self
        return LocalStorage(self.root, durable=self._durable, concurrency=at_once)

    @property
    def root(self) -> Path:
        """The folder, with links resolved."""
        return self._paths.root

    @property
    def location(self) -> str:
        """A URL-like name for messages."""
        return f"file://{self._paths.root}"

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        """The object or a range of it; `None` if it does not exist."""
        path = self._paths.of(key)
        found = files.open_file(path)
        if found is None:
            return None
        try:
            start, stop = resolve(byte_range, found.status.st_size)
            return Fetched(found.read(start, stop), found.version())
        except OSError as error:
            raise files.failure(error, "read", path) from error
        finally:
            files.close(found.descriptor)

    def get_into(self, key: str, start: int, space: memoryview) -> int | None:
        """Fill `space` with the bytes of an object from `start` on; returns their number."""
        path = self._paths.of(key)
        found = files.open_file(path)
        if found is None:
            return None
        try:
            return found.read_into(start, space)
        except OSError as error:
            raise files.failure(error, "read", path) from error
        finally:
            files.close(found.descriptor)

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        """`get` many at once; results in the order of requests."""
        return run_while_brief(
            lambda request: self.get(*request), requests, at_once=self._concurrency
        )

    def put(
        self,
        key: str,
        data: Data,
        *,
        expect: Expectation,
        metadata: Mapping[str, str] | None = None,  # noqa: ARG002 - files have none
        content_type: str | None = None,  # noqa: ARG002 - files have none
    ) -> PutOutcome:
        """Write the whole object if `expect` holds. Files have no metadata or content type."""
        path = self._paths.of(key)
        try:
            match expect:
                case Anything():
                    return self._replace(path, data)
                case Absent():
                    return self._create(key, path, data)
                case Exactly(version):
                    return self._swap(key, path, data, version)
                case _:
                    assert_never(expect)
        except OSError as error:
            raise files.failure(error, "write", path) from error

    def put_many(self, puts: Sequence[Put]) -> None:
        """Unconditional writes at once. Durable after `settle`."""
        small = len(puts) < _FEW and sum(len(one.data) for one in puts) < _LITTLE
        run_all(self._put_unconditionally, puts, at_once=1 if small else self._concurrency)

    def settle(self) -> None:
        """Make every earlier unconditional write through this object durable."""
        self._unsettled.settle()

    def scan(self, prefix: str) -> Iterator[Listed]:
        """Objects whose key starts with `prefix`, in ascending order of key.

        Raises instead of skipping what it cannot read: a collector relies on a complete list.
        """
        check_prefix(prefix)
        parent = prefix.rpartition("/")[0]
        return walk(self._paths.folder(parent), f"{parent}/" if parent else "", prefix)

    def list_folders(self, prefix: str) -> list[str]:
        """Names directly below `prefix` that contain objects."""
        check_prefix(prefix)
        return folders_below(self._paths.folder(prefix.removesuffix("/")))

    def head(self, key: str) -> Listed | None:
        """Size and time of the object; `None` if it does not exist."""
        path = self._paths.of(key)
        found = files.open_file(path)
        if found is None:
            return None
        files.close(found.descriptor)
        return Listed(key, found.status.st_size, found.status.st_mtime_ns // 1000)

    def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
        """Delete; a missing key counts as deleted. Folders stay.

        Immutable objects are deleted without locks: after many deletes some file systems (ext4
        without a journal) are slow to create files, including lock files.
        """
        paths = {key: self._paths.of(key) for key in keys}
        groups: Sequence[Sequence[str]]
        if immutable:
            groups = [keys[start : start + _PART] for start in range(0, len(keys), _PART)]
        else:
            groups = self._locks.grouped(paths)
        remove = _unlink if immutable else self._remove
        reasons = run_all(lambda group: remove(group, paths), groups, at_once=2)
        failed = {key: reason for part in reasons for key, reason in part.items()}
        self._unsettled.forget(paths.values())
        if self._durable:
            self._sync_folders({path[: path.rindex("/")] for path in paths.values()})
        return Deleted(tuple(key for key in keys if key not in failed), failed)

    def unfinished(self, before: int) -> list[Listed]:
        """Files left by killed writers; no live writer takes an hour to rename a staged file."""
        surely = self.now() - _LONGEST_STAGING
        found = unfinished_below(str(self.root))
        return [one for one in found if one.micros < before and one.created_at < surely]

    def remove_unfinished(self, names: Sequence[str]) -> Deleted:
        """Remove files left by killed writers."""
        wrong = [name for name in names if not is_unfinished(name)]
        if wrong:
            raise InvalidInputError(f"{wrong[0]!r} is not the name of an unfinished file")
        paths = {name: self._unfinished_at(name) for name in names}
        failed = _unlink(names, paths)
        return Deleted(tuple(name for name in names if name not in failed), failed)

    def now(self) -> datetime:
        """The clock of the file system, which may be another machine's.

        Taken from a new temporary file; if none can be created, the time of this host.
        """
        path = f"{self._paths.root}/{files.staging_name()}"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            return datetime.now(UTC)
        try:
            return files.written_at(os.fstat(descriptor))
        except OSError as error:
            raise files.failure(error, "get the time of", path) from error
        finally:
            files.close(descriptor)
            files.discard(path)

    def check_conditional_writes(self) -> None:
        """Test whether locks exclude others here, including a second process."""
        try:
            self._locks.probe()
        except OSError as error:
            raise files.failure(error, "lock in", str(self.root)) from error

    def _unfinished_at(self, name: str) -> str:
        folder, _, last = name.rpartition("/")
        return f"{self._paths.folder(folder)}/{last}"

    def _put_unconditionally(self, one: Put) -> None:
        """Write without determining the version, which costs as much as a small write."""
        path = self._paths.of(one.key)
        try:
            self._overwrite(self._stage(path, one.data), path)
        except OSError as error:
            raise files.failure(error, "write", path) from error

    def _stage(self, path: str, data: Data) -> _Staged:
        """Stage an unconditional write; if it replaces a file, a power loss must not lose both."""
        folder, made = self._folder_of(path)
        replaces = self._durable and self._unsettled.replaces(path)
        return _Staged(files.stage(folder, data, durable=replaces), made, is_new=not replaces)

    def _overwrite(self, staged: _Staged, path: str) -> None:
        self._move(staged.path, path)
        if self._durable:
            self._unsettled.remember(path, staged.made, is_new=staged.is_new)

    def _replace(self, path: str, data: Data) -> PutOutcome:
        staged = self._stage(path, data)
        try:
            version = self._version_of(staged.path)
        except StorageError:
            files.discard(staged.path)
            raise
        self._overwrite(staged, path)
        return Written(version)

    def _create(self, key: str, path: str, data: Data) -> PutOutcome:
        if os.path.lexists(path):
            return Lost()
        folder, made = self._folder_of(path)
        staged = files.stage(folder, data, durable=self._durable)
        try:
            version = self._version_of(staged)
            with self._locks.holding(key):
                os.link(staged, path, follow_symlinks=False)
        except FileExistsError:
            return Lost()
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise UnsafeStorageError(
                    f"the file system of {self.root} has no hard links "
                    f"({os.strerror(error.errno or 0)}), which are needed to create a file safely "
                    "only if it is absent. Use another file system or object storage"
                ) from error
            raise
        finally:
            files.discard(staged)
        self._sync_entry(path, made)
        return Written(version)

    def _swap(self, key: str, path: str, data: Data, expected: Version) -> PutOutcome:
        if files.current_version(path) != expected:
            return Lost()
        folder, made = self._folder_of(path)
        staged = files.stage(
            folder, data, durable=self._durable, later_than=files.time_in(expected)
        )
        try:
            version = self._version_of(staged)
            with self._locks.holding(key):
                if files.current_version(path) != expected:
                    return Lost()
                self._move(staged, path)
        finally:
            files.discard(staged)
        self._sync_entry(path, made)
        return Written(version)

    def _remove(self, keys: Sequence[str], paths: Mapping[str, str]) -> dict[str, str]:
        """Remove files whose keys share a lock; returns failures with their reasons."""
        if all(_is_gone(paths[key]) for key in keys):
            return {}
        try:
            with self._locks.holding(keys[0]):
                return _unlink(keys, paths)
        except StorageError as error:
            present = [key for key in keys if not _is_gone(paths[key])]
            return dict.fromkeys(present, error.message)

    def _folder_of(self, path: str) -> tuple[str, list[str]]:
        folder = path[: path.rindex("/")]
        return folder, files.make_folders(folder)

    def _version_of(self, staged: str) -> Version:
        version = files.current_version(staged)
        if version is None:
            raise StorageError(
                f"{staged} was removed while it was being written: does something clean up this "
                "folder?",
                kind=Kind.OBJECT_MISSING,
            )
        return version

    def _move(self, staged: str, path: str) -> None:
        try:
            os.rename(staged, path)  # noqa: PTH104 - a `Path` costs as much as the rename
        except OSError:
            files.discard(staged)
            raise

    def _sync_folders(self, folders: set[str]) -> None:
        for folder in sorted(folders):
            try:
                files.sync_path(folder)
            except OSError as error:
                raise files.failure(error, "sync", folder) from error

    def _sync_entry(self, path: str, made: list[str]) -> None:
        if not self._durable:
            return
        try:
            self._unsettled.sync_entry(path, made)
        except OSError as error:
            raise OutcomeUnknownError(
                f"{path} is written, but may not have reached the disk: "
                f"{files.reason_of(error)}. Check the disk, and read before writing again"
            ) from error


def _is_gone(path: str) -> bool:
    """Whether nothing is there for certain; False if that is unknown."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def _unlink(keys: Sequence[str], paths: Mapping[str, str]) -> dict[str, str]:
    """Remove files; returns failures with their reasons. Missing files are fine."""
    failed: dict[str, str] = {}
    for key in keys:
        try:
            os.unlink(paths[key])  # noqa: PTH108 - a `Path` costs as much as the removal
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failed[key] = files.failure(error, "delete", paths[key]).message
    return failed
