"""Every call of the operating system can fail: what a folder tells then, and what it has done."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Anything,
    Bounded,
    Exactly,
    Lost,
    Put,
    Version,
    Written,
)
from airflow_provider_icechunk.engine.storage.local.locks import LOCK_FOLDER
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    OutcomeUnknownError,
    StorageError,
)

KEY, OTHER = "refs/branch.main/ref.json", "chunks/a"
CALLS = [
    "open",
    "close",
    "fstat",
    "stat",
    "lstat",
    "write",
    "pread",
    "preadv",
    "rename",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
    "fsync",
    "utime",
    "fchmod",
    "chmod",
    "readlink",
]
ERRORS = [errno.EIO, errno.EACCES, errno.ESTALE]


class Trouble:
    """Makes one call of the operating system fail, counted from 0; the others work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lock = threading.Lock()
        self._left: int | None = None
        self._number = 0
        self.at: str | None = None
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrapped(name, getattr(os, name)))
        monkeypatch.setattr(fcntl, "flock", self._wrapped("flock", fcntl.flock))
        scandir = os.scandir
        monkeypatch.setattr(os, "scandir", lambda path: self._folder(scandir, path))

    def arm(self, left: int, number: int) -> None:
        self._left, self._number, self.at = left, number, None

    def disarm(self) -> None:
        self._left = None

    def meet(self, name: str) -> None:
        with self._lock:
            if self._left is None:
                return
            self._left -= 1
            if self._left >= 0:
                return
            self._left, self.at = None, name
        raise OSError(self._number, "injected")

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            if name == "close":  # closes even if it complains
                real(*given)
                return self.meet(name)
            self.meet(name)
            # Waiting for the disk hundreds of times would find nothing more.
            return None if name == "fsync" else real(*given, **named)

        return call

    def _folder(self, real: Callable[[str], Any], path: str) -> Folder:
        self.meet("scandir")
        return Folder(self, real(path))


class Folder:
    """A folder that is being read, each step of which can fail."""

    def __init__(self, trouble: Trouble, found: Any) -> None:
        self._trouble, self._found = trouble, found

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self._found.close()

    def __iter__(self) -> Iterator[Entry]:
        for entry in self._found:
            self._trouble.meet("readdir")
            yield Entry(self._trouble, entry)


class Entry:
    """An entry whose kind the file system does not tell along with its name."""

    def __init__(self, trouble: Trouble, entry: os.DirEntry[str]) -> None:
        self._trouble, self._entry = trouble, entry
        self.name, self.path = entry.name, entry.path

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        self._trouble.meet("is_file")
        return self._entry.is_file(follow_symlinks=follow_symlinks)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        self._trouble.meet("is_dir")
        return self._entry.is_dir(follow_symlinks=follow_symlinks)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        self._trouble.meet("stat of an entry")
        return self._entry.stat(follow_symlinks=follow_symlinks)

    def is_symlink(self) -> bool:
        self._trouble.meet("is_symlink")
        return self._entry.is_symlink()


def prepared(root: Path) -> tuple[LocalStorage, Version]:
    storage = LocalStorage(root)
    written = storage.put(KEY, b"old", expect=Absent())
    assert isinstance(written, Written)
    storage.put(OTHER, b"old", expect=Anything())
    return storage, written.version


def bytes_at(root: Path, key: str) -> bytes | None:
    try:
        return (root / key).read_bytes()
    except FileNotFoundError:
        return None


VERBS: dict[str, Callable[[LocalStorage, Version], object]] = {
    "open": lambda storage, _: LocalStorage(storage.root),
    "get": lambda storage, _: storage.get(KEY),
    "get_range": lambda storage, _: storage.get(KEY, Bounded(1, 2)),
    "get_into": lambda storage, _: storage.get_into(KEY, 0, memoryview(bytearray(3))),
    "get_many": lambda storage, _: storage.get_many([(KEY, None), (OTHER, None)]),
    "head": lambda storage, _: storage.head(KEY),
    "scan": lambda storage, _: list(storage.scan("")),
    "list_folders": lambda storage, _: storage.list_folders(""),
    "put_many": lambda storage, _: storage.put_many([Put("new/b", b"new"), Put(OTHER, b"new")]),
    "settle": lambda storage, _: storage.settle(),
    "delete": lambda storage, _: storage.delete([KEY, "refs/none"]),
    "delete_immutable": lambda storage, _: storage.delete([OTHER], immutable=True),
    "unfinished": lambda storage, _: storage.unfinished(1 << 62),
    "remove_unfinished": lambda storage, _: storage.remove_unfinished(["chunks/.icechunk#1"]),
    "now": lambda storage, _: storage.now(),
    "check": lambda storage, _: storage.check_conditional_writes(),
}


def failures(
    trouble: Trouble,
    tmp_path: Path,
    number: int,
    verb: Callable[[LocalStorage, Version], object],
) -> Iterator[tuple[Path, str, object]]:
    """The folder, the call that failed, and what came of it, for each call that a verb makes."""
    for attempt in count():
        root = tmp_path / f"{number}-{attempt}"
        storage, version = prepared(root)
        trouble.arm(attempt, number)
        try:
            outcome: object = verb(storage, version)
        except Exception as error:  # noqa: BLE001 - what it is, is the question
            outcome = error
        trouble.disarm()
        if trouble.at is None:
            assert attempt > 0, "the verb never asks the operating system"
            return
        yield root, trouble.at, outcome


@pytest.mark.parametrize("name", VERBS)
def test_every_error_of_the_system_is_told_with_its_place_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    trouble = Trouble(monkeypatch)
    for number in ERRORS:
        for root, call, outcome in failures(trouble, tmp_path, number, VERBS[name]):
            if isinstance(outcome, Exception):
                assert isinstance(outcome, StorageError), (name, call, outcome)
                assert str(root) in outcome.message, (name, call)
                assert os.strerror(number) in outcome.message, (name, call)
                assert number == errno.EACCES or not isinstance(outcome, AccessDeniedError)


PUTS: dict[str, tuple[str, Callable[[Version], Absent | Exactly | Anything]]] = {
    "anything": (KEY, lambda _: Anything()),
    "absent": ("refs/branch.new/ref.json", lambda _: Absent()),
    "exactly": (KEY, Exactly),
}


@pytest.mark.parametrize("name", PUTS)
def test_a_write_that_failed_did_not_happen_unless_its_outcome_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    key, expect = PUTS[name]
    trouble = Trouble(monkeypatch)
    for number in ERRORS:
        for root, call, outcome in failures(
            trouble, tmp_path, number, lambda at, seen: at.put(key, b"new", expect=expect(seen))
        ):
            found = bytes_at(root, key)
            old = b"old" if key == KEY else None
            if isinstance(outcome, Written):
                assert found == b"new", call
            elif isinstance(outcome, OutcomeUnknownError):
                assert found in (old, b"new"), call
            else:
                assert isinstance(outcome, StorageError), (call, outcome)
                assert found == old, (call, outcome)
            if isinstance(outcome, StorageError):
                assert str(root) in outcome.message, call
                assert os.strerror(number) in outcome.message, call
            assert LocalStorage(root).put("later", b"x", expect=Absent()) != Lost()
            left = [path for path in root.rglob("*") if "#" in path.name]
            assert not left or call == "unlink", call


def test_a_delete_that_could_not_look_is_not_reported_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = Trouble(monkeypatch)
    for number in ERRORS:
        for root, call, outcome in failures(
            trouble, tmp_path, number, lambda at, _: at.delete([KEY])
        ):
            is_there = bytes_at(root, KEY) is not None
            if not isinstance(outcome, Exception):
                assert (KEY in outcome.keys) is not is_there, call  # type: ignore[attr-defined]
                assert (KEY in outcome.failed) is is_there, call  # type: ignore[attr-defined]


def test_a_lock_file_that_is_a_folder_is_an_error_of_this_package(tmp_path: Path) -> None:
    for number in range(64):
        (tmp_path / LOCK_FOLDER / f"{number:02x}").mkdir(parents=True)
    with pytest.raises(StorageError, match="Is a directory"):
        LocalStorage(tmp_path).put(KEY, b"x", expect=Absent())
