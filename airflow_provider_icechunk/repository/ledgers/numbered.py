"""Branches as folders of numbered files: every state of a branch is one more file.

Creating file n + 1 is the whole move, so it needs no conditional update, only a create that one of
several writers wins. The price is that a branch is found by listing, and that deleting one takes
several steps: its newest file goes last, because an older one left behind alone would be read as
the branch having moved back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from airflow_provider_icechunk.exceptions import ConflictError, FormatError, Kind, StorageError
from airflow_provider_icechunk.format.generations.alpha.layout import sequence_file
from airflow_provider_icechunk.format.generations.v1.layout import REF_FILE
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.repository.ledgers.base import Behind, Moved
from airflow_provider_icechunk.storage.base import Absent, Storage, Written

_TRIES = 10
_JSON = "application/json"


class DecodeRef(Protocol):
    """Reads the document of a reference."""

    def __call__(self, data: bytes, *, where: str) -> SnapshotId:
        """The snapshot that it names."""
        ...


@dataclass(frozen=True, slots=True)
class Head:
    """Where a branch is."""

    number: int
    snapshot: SnapshotId
    document: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class _State:
    """One file of a branch."""

    number: int
    key: str


@dataclass(frozen=True, slots=True)
class NumberedBranches:
    """The branches of one repository."""

    storage: Storage
    prefix: Callable[[str], str]
    """The folder of a branch, with its slash."""
    parse: Callable[[str], int | None]
    """The number behind a file name; `None` for other files in the folder."""
    decode: DecodeRef

    def head(self, name: str) -> Head | None:
        """Where the branch is; `None` if it has no file."""
        for _ in range(_TRIES):
            newest = next(self._states(name), None)
            if newest is None:
                return None
            found = self.storage.get(newest.key)
            if found is not None:
                snapshot = self.decode(found.data, where=newest.key)
                return Head(newest.number, snapshot, found.data)
        raise StorageError(
            f"the newest file of branch {name!r} is listed in {self.storage.location} "
            "but cannot be read"
        )

    def create(self, name: str, document: bytes) -> bool:
        """Create file 0, unless the branch has any file."""
        return next(self._states(name), None) is None and self._add(name, 0, document)

    def move(
        self, name: str, expected: SnapshotId, following: Callable[[bytes], bytes]
    ) -> Moved | Behind:
        """Create the next file, made of the newest one, if that names `expected`.

        A lost race against a file that names `expected` again (a branch reset to where it was) is
        tried once more; anything else is somebody else's move.
        """
        for _ in range(_TRIES):
            head = self.head(name)
            if head is None or head.snapshot != expected:
                return Behind(None if head is None else head.snapshot)
            if self._add(name, head.number + 1, following(head.document)):
                return Moved()
        raise ConflictError(
            f"branch {name!r} was rewritten {_TRIES} times while it was being moved; try again",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def delete(self, name: str) -> bool:
        """Delete all files, the newest last, until none is left.

        A commit that lands in between is deleted as well. One that read the branch before and lands
        afterwards brings it back: numbered files give no means against it.
        """
        deleted = False
        for _ in range(_TRIES):
            keys = [state.key for state in self._states(name)]
            if not keys:
                return deleted
            self._must_delete(keys[1:])
            self._must_delete(keys[:1])
            deleted = True
        raise ConflictError(
            f"branch {name!r} received commits all the time while it was being deleted",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def _states(self, name: str) -> Iterator[_State]:
        """All files of a branch, newest first, as their names sort.

        Other files beside them are passed over; a branch of nothing else is not understood.
        """
        prefix, strange, understood = self.prefix(name), None, False
        for item in self.storage.scan(prefix):
            file = item.key.removeprefix(prefix)
            number = self.parse(file)
            if number is not None:
                understood = True
                yield _State(number, item.key)
            elif file.endswith(".json") and file != REF_FILE:
                strange = item.key
        if strange is not None and not understood:
            raise FormatError(
                f"{strange}: not the name of a branch file, and branch {name!r} has no other; "
                "where the branch is cannot be told. Restore its files, or remove this one if it "
                "is no reference"
            )

    def _add(self, name: str, number: int, document: bytes) -> bool:
        key = self.prefix(name) + sequence_file(number)
        outcome = self.storage.put(key, document, expect=Absent(), content_type=_JSON)
        return isinstance(outcome, Written)

    def _must_delete(self, keys: list[str]) -> None:
        failed = self.storage.delete(keys).failed if keys else {}
        for key, reason in failed.items():
            raise StorageError(f"cannot delete {key} in {self.storage.location}: {reason}")
