"""What is stored, as columns: ids, sizes and the times of the store's own clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
from airflow_provider_icechunk.repository.world import from_micros, to_micros
from airflow_provider_icechunk.storage.base import Listed, Storage

_TEXT = text_length(OBJECT_ID_SIZE)
_BATCH = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)


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


def _batches(found: Iterator[Listed], before: int | None) -> Iterator[list[Listed]]:
    if before is not None:
        limit = from_micros(before)
        found = (item for item in found if item.created_at < limit)
    while batch := list(islice(found, _BATCH)):
        yield batch


def _columns(batch: list[Listed], prefix: str) -> Listing:
    length = len(prefix) + _TEXT
    named = [item for item in batch if len(item.key) == length and item.key.isascii()]
    try:
        return _listing(prefix, named)
    except InvalidInputError:
        return _listing(prefix, [item for item in named if _is_id(item.key[len(prefix) :])])


def _listing(prefix: str, named: list[Listed]) -> Listing:
    start, count = len(prefix), len(named)
    letters = "".join([item.key[start:] for item in named]).encode()
    return Listing(
        prefix,
        from_rows(decode_many(np.frombuffer(letters, f"S{_TEXT}"))),
        np.fromiter((item.size for item in named), np.int64, count),
        np.fromiter(((item.created_at - _EPOCH) // _MICRO for item in named), np.int64, count),
    )


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
