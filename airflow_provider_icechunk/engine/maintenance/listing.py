"""What is stored, as columns: ids, sizes and the times of the store's own clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Self

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.format.file_names import FileNames
from airflow_provider_icechunk.format.generations.base import Layout
from airflow_provider_icechunk.repository.maintenance.idsets import (
    NOTHING,
    Ids,
    column,
    distinct,
    from_rows,
    to_rows,
    whole,
)
from airflow_provider_icechunk.storage.base import Deleted, KeepsUnfinished, Listed, Storage
from airflow_provider_icechunk.storage.keys import is_key

_PLAIN_NAMES = FileNames()
_BATCH = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Objects of one folder, one row each, in the order of their ids."""

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
        """The same objects in the order of their times, which only deletion asks for."""
        return self.take(np.argsort(-self.created, kind="stable"))

    def keys(self) -> list[str]:
        """Keys of all objects."""
        return [self.prefix + name for name in self.names.encode(to_rows(self.ids))]


def list_folder(
    storage: Storage, layout: Layout, prefix: str, *, before: int | None = None
) -> Listing:
    """The objects of one of the folders of a layout."""
    return list_objects(storage, prefix, before=before, names=layout.names_in(prefix))


def list_objects(
    storage: Storage,
    prefix: str,
    *,
    before: int | None = None,
    names: FileNames = _PLAIN_NAMES,
) -> Listing:
    """The objects of a folder; with `before`, only those written earlier than that.

    Files whose name is not an id are not objects of the repository: they are passed over, here and
    so everywhere. Memory is 28 bytes for each object that is kept, whatever the folder holds.
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
    )


def with_aliases(storage: Storage, layout: Layout, listing: Listing, ids: Ids) -> Listing:
    """The listing with those of some objects that are called by other names than their ids.

    They are looked for one by one: nothing but a reference tells that such a file is one of ours.
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
    """Files that jobs left in their folders."""

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
    """Files that killed writers left; their names are no keys."""

    __slots__ = ()

    def part(self, start: int, stop: int) -> UnfinishedFiles:
        """Files `start` up to `stop`."""
        return UnfinishedFiles(self.names[start:stop], self.sizes[start:stop])


def unfinished_files(storage: Storage, before: int) -> UnfinishedFiles:
    """What killed writers left before a store time, where a storage keeps such files."""
    found = storage.unfinished(before) if isinstance(storage, KeepsUnfinished) else []
    sizes = np.fromiter((item.size for item in found), np.int64, len(found))
    return UnfinishedFiles(tuple(item.key for item in found), sizes)


def remove_unfinished(storage: Storage, files: UnfinishedFiles) -> Deleted:
    """Remove what killed writers left."""
    if not isinstance(storage, KeepsUnfinished):
        return Deleted()
    return storage.remove_unfinished(files.names)


def abandoned_jobs(found: Iterable[Listed], before: int, lapsed: Iterable[Listed] = ()) -> JobFiles:
    """Files of job folders in which nothing was written since `before`, and lapsed leases. Pure.

    A folder with one young file belongs to a job that may still run: all its files stay.
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
