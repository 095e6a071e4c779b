"""Branches as folders of numbered files, and attributes in separate files.

A branch moves when file n + 1 is created, in which only one writer can succeed, so no conditional
update is needed. The price is that finding a branch takes a listing, and deleting one takes several
steps: the newest file goes last, because an older one left alone would look like a branch that
moved back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np

from airflow_provider_icechunk.engine.format.codec import Codec, FileType, Layout
from airflow_provider_icechunk.engine.format.config.model import ResolvedConfig
from airflow_provider_icechunk.engine.format.file_marks import file_content_type, file_marks
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import (
    AttributesId,
    SnapshotId,
    decode_base32,
    new_id,
)
from airflow_provider_icechunk.engine.format.legacy.alpha.codec import sequence_file
from airflow_provider_icechunk.engine.format.legacy.attributes import AttributeFiles
from airflow_provider_icechunk.engine.refs.base import Behind, Moved, RefFiles, Trust
from airflow_provider_icechunk.engine.retry import at_once
from airflow_provider_icechunk.engine.storage.base import Absent, Listed, Storage, Written
from airflow_provider_icechunk.engine.world import REAL_WORLD
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    FormatError,
    InvalidInputError,
    Kind,
    StorageError,
    UnsupportedError,
)

_AGAIN = at_once(10)
_JSON = "application/json"
_SEARCH_BATCH = 64


class DecodeRef(Protocol):
    """Reads the document of a ref."""

    def __call__(self, data: bytes, *, where: str) -> SnapshotId:
        """The snapshot it names."""
        ...


@dataclass(frozen=True, slots=True)
class BranchHead:
    """The newest file of a branch."""

    number: int
    snapshot: SnapshotId
    document: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class _BranchFile:
    number: int
    key: str


@dataclass(frozen=True, slots=True)
class NumberedBranches:
    """The branches of one repository."""

    storage: Storage
    prefix: Callable[[str], str]
    """The folder of a branch, with its slash."""
    parse: Callable[[str], int | None]
    """The number in a file name; `None` for other files in the folder."""
    decode: DecodeRef
    others: frozenset[str] = frozenset()
    """File names of other generations in the same folders; alone they are not a branch."""

    def head(self, name: str) -> BranchHead | None:
        """The newest file of the branch; `None` if it has none."""
        for _ in _AGAIN.attempts():
            newest = next(self._states(name), None)
            if newest is None:
                return None
            found = self.storage.get(newest.key)
            if found is not None:
                snapshot = self.decode(found.data, where=newest.key)
                return BranchHead(newest.number, snapshot, found.data)
        raise StorageError(
            f"the newest file of branch {name!r} is listed in {self.storage.location} "
            "but cannot be read"
        )

    def heads(self, names: Iterable[str]) -> dict[str, SnapshotId]:
        """The snapshots of branches; those without files are left out."""
        heads = {name: self.head(name) for name in names}
        return {name: head.snapshot for name, head in heads.items() if head is not None}

    def create(self, name: str, document: bytes) -> bool:
        """Create file 0, unless the branch has any file."""
        return next(self._states(name), None) is None and self._add(name, 0, document)

    def move(
        self, name: str, expected: SnapshotId, following: Callable[[bytes], bytes]
    ) -> Moved | Behind:
        """Create the next file from the newest one, if that names `expected`.

        A race lost to a file that names `expected` again (a branch reset to where it was) is
        retried; otherwise somebody else moved the branch.
        """
        for _ in _AGAIN.attempts():
            head = self.head(name)
            if head is None or head.snapshot != expected:
                return Behind(None if head is None else head.snapshot)
            if self._add(name, head.number + 1, following(head.document)):
                return Moved()
        raise ConflictError(
            f"branch {name!r} was rewritten {_AGAIN.tries} times while it was being moved; "
            "try again",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def delete(self, name: str) -> bool:
        """Delete all files, the newest last, until none is left.

        A commit that lands during this is deleted as well. One that read the branch before and
        lands afterwards restores it: numbered files cannot prevent that. An unknown file in the
        folder prevents the deletion: on its own it would be an unreadable branch.
        """
        self._check_no_strangers(name)
        deleted = False
        for _ in _AGAIN.attempts():
            keys = [state.key for state in self._states(name)]
            if not keys:
                return deleted
            self._must_delete(keys[1:])
            self._must_delete(keys[:1])
            deleted = True
        raise ConflictError(
            f"branch {name!r} kept receiving commits while it was being deleted; try again",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def _states(self, name: str) -> Iterator[_BranchFile]:
        """All files of a branch, newest first, as their names sort.

        Unknown files beside them are ignored; a branch with nothing else is an error.
        """
        prefix, strange, understood = self.prefix(name), None, False
        for item in self.storage.scan(prefix):
            file = item.key.removeprefix(prefix)
            number = self.parse(file)
            if number is not None:
                yield _BranchFile(number, item.key)
            understood |= number is not None or file in self.others
            strange = item.key if self._is_strange(file) else strange
        if strange is not None and not understood:
            raise FormatError(
                f"{strange}: not the name of a branch file, and branch {name!r} has no other, so "
                "its snapshot is unknown. Restore its files, or remove this one if it is not a "
                "reference"
            )

    def _check_no_strangers(self, name: str) -> None:
        prefix = self.prefix(name)
        for item in self.storage.scan(prefix):
            if self._is_strange(item.key.removeprefix(prefix)):
                raise FormatError(
                    f"{item.key}: not the name of a branch file; branch {name!r} is not deleted, "
                    "because only this file would remain. Remove it first if it is not a reference"
                )

    def _is_strange(self, file: str) -> bool:
        return file not in self.others and self.parse(file) is None

    def _add(self, name: str, number: int, document: bytes) -> bool:
        key = self.prefix(name) + sequence_file(number)
        outcome = self.storage.put(key, document, expect=Absent(), content_type=_JSON)
        return isinstance(outcome, Written)

    def _must_delete(self, keys: list[str]) -> None:
        failed = self.storage.delete(keys).failed if keys else {}
        for key, reason in failed.items():
            raise StorageError(f"cannot delete {key} in {self.storage.location}: {reason}")


class SnapshotCodec(Codec, Protocol):
    """A codec that also reads the id inside a snapshot file."""

    def embedded_id(self, data: bytes, *, where: str) -> SnapshotId | None:
        """The id in the file; it may differ from that in its name."""
        ...


class NumberedRefs(RefFiles):
    """Base of the generations with numbered branch files."""

    generation: Generation
    codec: SnapshotCodec
    layout: Layout
    numbered: NumberedBranches
    threshold: int | None
    """Attributes of more bytes than this go into separate files."""

    def branch(self, name: str) -> SnapshotId | None:
        """The snapshot of the branch."""
        head = self.numbered.head(name)
        return None if head is None else head.snapshot

    def delete_branch(self, name: str) -> bool:
        """Delete all files, the newest last."""
        self.check_writable()
        return self.numbered.delete(name)

    def trusting(self, trust: Trust) -> Self:
        """The same refs; branches need create-if-absent, only the configuration is updated."""
        if not trust.creates:
            raise UnsupportedError(
                f"a repository of generation `{self.generation}` cannot be written without "
                "conditional creates"
            )
        return self if trust is self.trust else self.with_options(self.threshold, trust)

    def following(self, settings: ResolvedConfig) -> Self:
        """The same refs with the configured threshold for separate attributes files."""
        threshold = settings.attributes_file_threshold_bytes
        return self if threshold == self.threshold else self.with_options(threshold, self.trust)

    def with_options(self, threshold: int | None, trust: Trust) -> Self:
        """The same refs with another threshold or trust."""
        raise NotImplementedError

    def find_misnamed(self, missing: SnapshotId) -> SnapshotId | None:
        """The id in the name of the snapshot file with the id `missing` inside, smallest first."""
        listed = sorted(self.storage.scan(self.layout.snapshots), key=lambda item: item.size)
        for start in range(0, len(listed), _SEARCH_BATCH):
            batch = listed[start : start + _SEARCH_BATCH]
            found = self.storage.get_many([(item.key, None) for item in batch])
            for item, fetched in zip(batch, found, strict=True):
                if fetched is not None and self._is_inside(missing, fetched.data, item.key):
                    return self._id_in_name(item)
        return None

    def _is_inside(self, wanted: SnapshotId, data: bytes, key: str) -> bool:
        try:
            return self.codec.embedded_id(data, where=key) == wanted
        except (FormatError, UnsupportedError):
            return False  # one unreadable file must not break the search

    def _id_in_name(self, item: Listed) -> SnapshotId | None:
        name = item.key.removeprefix(self.layout.snapshots).split(".")[0]
        try:
            return SnapshotId(decode_base32(name, self.generation.id_size))
        except InvalidInputError:
            return None


def attribute_files(
    storage: Storage, layout: Layout, generation: Generation, threshold: int | None
) -> AttributeFiles:
    """The attributes files in the layout's folder for them.

    Ids are random, not derived from content: a file that is being collected is never rewritten.
    """

    def key(identity: AttributesId) -> str:
        prefix = layout.attributes
        assert prefix is not None
        names = layout.names_in(prefix)
        (name,) = names.encode(np.frombuffer(identity, np.uint8).reshape(1, len(identity)))
        return prefix + name

    def fetch(identity: AttributesId) -> bytes | None:
        found = storage.get(key(identity))
        return None if found is None else found.data

    def store(identity: AttributesId, data: bytes) -> None:
        storage.put(
            key(identity),
            data,
            expect=Absent(),
            metadata=file_marks(generation, FileType.ATTRIBUTES),
            content_type=file_content_type(generation),
        )

    def fresh() -> AttributesId:
        return AttributesId(new_id(generation, REAL_WORLD.entropy(generation.id_size)))

    return AttributeFiles(threshold=threshold, fetch=fetch, store=store, new_id=fresh)
