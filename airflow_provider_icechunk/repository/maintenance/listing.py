"""What is stored, as columns: ids, sizes and the times of the store's own clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Self

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.format.ids import (
    OBJECT_ID_SIZE,
    decode_many,
    encode_many,
    text_length,
)
from airflow_provider_icechunk.repository.maintenance.idsets import (
    NOTHING,
    Ids,
    from_rows,
    to_rows,
)
from airflow_provider_icechunk.repository.world import to_micros
from airflow_provider_icechunk.storage.base import Listed, Storage

_TEXT = text_length(OBJECT_ID_SIZE)
_BATCH = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Objects of one folder, one row each, in the order of their ids."""

    prefix: str
    ids: Ids
    sizes: NDArray[np.int64]
    created: NDArray[np.int64]
    """Microseconds since 1970 by the store's clock."""

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
        return Listing(self.prefix, self.ids[rows], self.sizes[rows], self.created[rows])

    def part(self, start: int, stop: int) -> Listing:
        """Rows `start` up to `stop`."""
        return self.take(slice(start, stop))

    def newest_first(self) -> Listing:
        """The same objects in the order of their times, which only deletion asks for."""
        return self.take(np.argsort(-self.created, kind="stable"))

    def keys(self) -> list[str]:
        """Keys of all objects."""
        return [self.prefix + text.decode() for text in encode_many(to_rows(self.ids)).tolist()]


def list_objects(storage: Storage, prefix: str, *, before: int | None = None) -> Listing:
    """The objects of a folder; with `before`, only those written earlier than that.

    Files whose name is not an id are not objects of the repository: they are passed over, here and
    so everywhere. Memory is 28 bytes for each object that is kept, whatever the folder holds.
    """
    parts = [_columns(batch, prefix) for batch in _batches(storage.scan(prefix), before)]
    if not parts:
        return Listing.empty(prefix)
    ids = np.concatenate([part.ids for part in parts])
    order = np.argsort(ids, kind="stable")
    return Listing(
        prefix,
        ids[order],
        np.concatenate([part.sizes for part in parts])[order],
        np.concatenate([part.created for part in parts])[order],
    )


def _batches(found: Iterator[Listed], before: int | None) -> Iterator[list[tuple[str, int, int]]]:
    rows = ((item.key, item.size, to_micros(item.created_at)) for item in found)
    wanted = (row for row in rows if before is None or row[2] < before)
    while batch := list(islice(wanted, _BATCH)):
        yield batch


def _columns(batch: list[tuple[str, int, int]], prefix: str) -> Listing:
    named = [(key[len(prefix) :], size, created) for key, size, created in batch]
    named = [row for row in named if len(row[0]) == _TEXT and row[0].isascii()]
    try:
        return _listing(prefix, named)
    except InvalidInputError:
        return _listing(prefix, [row for row in named if _is_id(row[0])])


def _listing(prefix: str, named: list[tuple[str, int, int]]) -> Listing:
    texts = np.array([name.encode() for name, _, _ in named], f"S{_TEXT}")
    numbers = np.array([row[1:] for row in named], np.int64).reshape(len(named), 2)
    return Listing(prefix, from_rows(decode_many(texts)), numbers[:, 0], numbers[:, 1])


def _is_id(name: str) -> bool:
    try:
        decode_many(np.array([name.encode()], f"S{_TEXT}"))
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


def abandoned_jobs(found: Iterable[Listed], before: int) -> JobFiles:
    """Files of job folders in which nothing was written since `before`. Pure.

    A folder with one young file belongs to a job that may still run: all its files stay.
    """
    folders: dict[str, list[Listed]] = {}
    for item in found:
        parts = item.key.split("/")
        if len(parts) > 2:
            folders.setdefault(parts[1], []).append(item)
    old = [
        item
        for items in folders.values()
        if all(to_micros(item.created_at) < before for item in items)
        for item in items
    ]
    sizes = np.fromiter((item.size for item in old), np.int64, len(old))
    return JobFiles(tuple(item.key for item in old), sizes)
