"""Stored objects as columns of ids, sizes and times, and sets of ids.

A million ids are one array of 12 MB; membership is a vectorized binary search. Rows are viewed as
`S12`, in two early generations as `S16`: NumPy pads such strings with NUL, and because all ids of a
repository have the same size, equal strings are equal ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Self

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.codec import FileNames, Layout
from airflow_provider_icechunk.engine.format.ids import OBJECT_ID_SIZE
from airflow_provider_icechunk.engine.storage.base import (
    Deleted,
    KeepsUnfinished,
    Listed,
    Storage,
    is_key,
)
from airflow_provider_icechunk.exceptions import InvalidInputError

Ids = NDArray[np.bytes_]
"""`(n,)` ids of one size. As a set: sorted and distinct."""

DTYPE = np.dtype(f"S{OBJECT_ID_SIZE}")
NOTHING: Ids = np.zeros(0, DTYPE)

_MERGE_AT = 1 << 20


def from_rows(rows: NDArray[np.uint8]) -> Ids:
    """`(n, size)` bytes as `(n,)` ids, in the same order."""
    return np.ascontiguousarray(rows).view(f"S{rows.shape[1]}").reshape(len(rows))


def to_rows(ids: Ids) -> NDArray[np.uint8]:
    """`(n,)` ids as `(n, size)` bytes."""
    return np.ascontiguousarray(ids).view(np.uint8).reshape(len(ids), ids.dtype.itemsize)


def distinct(ids: NDArray[np.bytes_]) -> NDArray[np.bytes_]:
    """Sorted distinct strings of one width. NumPy's `unique` hashes, which is slower."""
    ordered = np.sort(ids)
    if len(ordered) < 2:
        return ordered
    return np.asarray(ordered[np.append(True, ordered[1:] != ordered[:-1])])


def of_bytes(identities: Iterable[bytes]) -> Ids:
    """The set of these ids, all of one size."""
    return distinct(column(list(identities)))


def column(identities: Sequence[bytes]) -> Ids:
    """A column of these ids, all of one size."""
    size = len(identities[0]) if identities else OBJECT_ID_SIZE
    return np.frombuffer(b"".join(identities), f"S{size}")


def whole(ids: Ids) -> list[bytes]:
    """The ids as `bytes`, complete: NumPy would drop trailing NULs."""
    joined, size = ids.tobytes(), ids.dtype.itemsize
    return [joined[at : at + size] for at in range(0, len(joined), size)]


def contains(members: Ids, asked: Ids) -> NDArray[np.bool_]:
    """Which of `asked` are in the set `members`."""
    if not len(members):
        return np.zeros(len(asked), np.bool_)
    place = np.searchsorted(members, asked)
    place[place == len(members)] = 0
    return np.asarray(members[place] == asked)


class IdUnion:
    """A growing set of ids; duplicates are removed regularly, so memory follows its size.

    :param empty: an empty column of the wanted width; by default that of 12-byte ids.
    """

    def __init__(self, empty: Ids = NOTHING) -> None:
        self._merged = empty
        self._parts: list[Ids] = []
        self._pending = 0

    def add(self, ids: Ids) -> None:
        """Add ids in any order, possibly with duplicates."""
        self._parts.append(ids)
        self._pending += len(ids)
        if self._pending > max(_MERGE_AT, len(self._merged)):
            self._merge()

    def ids(self) -> Ids:
        """The set so far."""
        self._merge()
        return self._merged

    def _merge(self) -> None:
        if self._parts:
            self._merged = distinct(np.concatenate([self._merged, *self._parts]))
            self._parts = []
            self._pending = 0


_PLAIN_NAMES = FileNames()
_BATCH = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Objects of one folder, one row each, ordered by id."""

    prefix: str
    ids: Ids
    sizes: NDArray[np.int64]
    created: NDArray[np.int64]
    """Microseconds since 1970 by the store's clock."""
    names: FileNames = _PLAIN_NAMES

    @classmethod
    def empty(cls, prefix: str) -> Self:
        """No objects."""
        return cls(prefix, NOTHING, np.zeros(0, np.int64), np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def total_bytes(self) -> int:
        """Bytes of all objects."""
        return int(self.sizes.sum())

    def take(self, rows: NDArray[np.bool_] | NDArray[np.integer] | slice) -> Listing:
        """Selected rows."""
        return Listing(
            self.prefix, self.ids[rows], self.sizes[rows], self.created[rows], self.names
        )

    def part(self, start: int, stop: int) -> Listing:
        """Rows `start` up to `stop`."""
        return self.take(slice(start, stop))

    def newest_first(self) -> Listing:
        """The same objects ordered by time, for deletion."""
        return self.take(np.argsort(-self.created, kind="stable"))

    def keys(self) -> list[str]:
        """Keys of all objects."""
        return [self.prefix + name for name in self.names.encode(to_rows(self.ids))]

    def unclaimed(self) -> Listing:
        """Without files that are named by their id, but belong to another one."""
        aliases = self.names.aliases
        if not aliases or self.names.stand_in or not len(self):
            return self
        claimed = set(aliases.values())
        plain = replace(self.names, aliases={}).encode(to_rows(self.ids))
        rows = [
            one in aliases or name not in claimed
            for one, name in zip(whole(self.ids), plain, strict=True)
        ]
        return self.take(np.array(rows, np.bool_))


def list_folder(
    storage: Storage, layout: Layout, prefix: str, *, before: int | None = None
) -> Listing:
    """The objects in a folder of a layout."""
    return list_objects(storage, prefix, before=before, names=layout.names_in(prefix))


def list_objects(
    storage: Storage, prefix: str, *, before: int | None = None, names: FileNames = _PLAIN_NAMES
) -> Listing:
    """The objects in a folder; with `before`, only those written earlier.

    Files whose name is not an id are not objects of the repository and are ignored everywhere.
    Memory is 28 bytes per returned object, whatever else the folder contains.
    """
    parts = [_columns(batch, prefix, names) for batch in _batches(storage.scan(prefix), before)]
    if not parts:
        return Listing.empty(prefix)
    ids = np.concatenate([part.ids for part in parts])
    order = np.argsort(ids, kind="stable")
    return Listing(
        prefix,
        ids[order],
        np.concatenate([part.sizes for part in parts])[order],
        np.concatenate([part.created for part in parts])[order],
        names,
    ).unclaimed()


def with_aliases(storage: Storage, layout: Layout, listing: Listing, ids: Ids) -> Listing:
    """The listing with the objects among `ids` whose names are not their ids.

    They are looked up one by one: only a reference shows that such a file belongs to the
    repository.
    """
    names = layout.names_in(listing.prefix)
    if not names.aliases:
        return listing
    wanted = [one for one in whole(distinct(ids)) if one in names.aliases]
    found = [(one, storage.head(listing.prefix + names.aliases[one])) for one in wanted]
    there = [(one, item) for one, item in found if item is not None]
    if not there:
        return listing
    added = column([one for one, _ in there])
    all_ids = np.concatenate([listing.ids.astype(added.dtype), added])
    sizes = np.array([item.size for _, item in there], np.int64)
    created = np.array([item.micros for _, item in there], np.int64)
    order = np.argsort(all_ids, kind="stable")
    return Listing(
        listing.prefix,
        all_ids[order],
        np.concatenate([listing.sizes, sizes])[order],
        np.concatenate([listing.created, created])[order],
        names,
    )


def _batches(found: Iterator[Listed], before: int | None) -> Iterator[list[Listed]]:
    while batch := list(islice(found, _BATCH)):
        yield batch if before is None else [item for item in batch if item.micros < before]


def _columns(batch: list[Listed], prefix: str, names: FileNames) -> Listing:
    length = len(prefix) + names.length
    named = [item for item in batch if len(item.key) == length and item.key.isascii()]
    try:
        return _listing(prefix, named, names)
    except InvalidInputError:
        known = [item for item in named if _is_id(item.key[len(prefix) :], names)]
        return _listing(prefix, known, names)


def _listing(prefix: str, named: list[Listed], names: FileNames) -> Listing:
    start, count = len(prefix), len(named)
    return Listing(
        prefix,
        from_rows(names.decode([item.key[start:] for item in named])),
        np.fromiter((item.size for item in named), np.int64, count),
        np.fromiter((item.micros for item in named), np.int64, count),
        names,
    )


def _is_id(name: str, names: FileNames) -> bool:
    try:
        names.decode([name])
    except InvalidInputError:
        return False
    return True


JOBS = "jobs/"


@dataclass(frozen=True, slots=True, eq=False)
class JobFiles:
    """Files left by jobs in their folders."""

    names: tuple[str, ...]
    sizes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return int(self.sizes.sum())

    def part(self, start: int, stop: int) -> JobFiles:
        """Files `start` up to `stop`."""
        return JobFiles(self.names[start:stop], self.sizes[start:stop])

    def keys(self) -> list[str]:
        """Keys of all files."""
        return list(self.names)


class UnfinishedFiles(JobFiles):
    """Files left by killed writers; their names are not keys."""

    __slots__ = ()

    def part(self, start: int, stop: int) -> UnfinishedFiles:
        """Files `start` up to `stop`."""
        return UnfinishedFiles(self.names[start:stop], self.sizes[start:stop])


def unfinished_files(storage: Storage, before: int) -> UnfinishedFiles:
    """Files left by killed writers before a store time, if the storage has such files."""
    found = storage.unfinished(before) if isinstance(storage, KeepsUnfinished) else []
    sizes = np.fromiter((item.size for item in found), np.int64, len(found))
    return UnfinishedFiles(tuple(item.key for item in found), sizes)


def remove_unfinished(storage: Storage, files: UnfinishedFiles) -> Deleted:
    """Remove files left by killed writers."""
    if not isinstance(storage, KeepsUnfinished):
        return Deleted()
    return storage.remove_unfinished(files.names)


def abandoned_jobs(found: Iterable[Listed], before: int, lapsed: Iterable[Listed] = ()) -> JobFiles:
    """Files of job folders without writes since `before`, and lapsed leases. Pure.

    A folder with one young file belongs to a job that may still run, so all its files are kept.
    """
    folders: dict[str, list[Listed]] = {}
    for item in found:
        parts = item.key.split("/")
        if len(parts) > 2 and is_key(item.key):
            folders.setdefault(parts[1], []).append(item)
    old = [
        item
        for items in folders.values()
        if all(item.micros < before for item in items)
        for item in items
    ]
    old += lapsed
    sizes = np.fromiter((item.size for item in old), np.int64, len(old))
    return JobFiles(tuple(item.key for item in old), sizes)
