"""Sets of object ids as sorted columns of fixed-width bytes. Pure.

A million ids are one array of 12 MB; membership is a binary search over all of them at once. Rows
are viewed as `S12`, in two early generations as `S16`: NumPy pads such strings with NUL, and
because all ids of a repository have one size, equal strings are equal ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.format.ids import OBJECT_ID_SIZE

Ids = NDArray[np.bytes_]
"""`(n,)` ids of one size. As a set: sorted, without repetition."""

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
    """Strings of one width, sorted and each once. NumPy's own `unique` hashes, which is slower."""
    ordered = np.sort(ids)
    if len(ordered) < 2:
        return ordered
    return np.asarray(ordered[np.append(True, ordered[1:] != ordered[:-1])])


def of_bytes(identities: Iterable[bytes]) -> Ids:
    """The set of ids that are given one by one, all of one size."""
    return distinct(column(list(identities)))


def column(identities: Sequence[bytes]) -> Ids:
    """Ids of one size as they are given."""
    size = len(identities[0]) if identities else OBJECT_ID_SIZE
    return np.frombuffer(b"".join(identities), f"S{size}")


def whole(ids: Ids) -> list[bytes]:
    """Ids one by one, each with all its bytes: NumPy itself would drop trailing NULs."""
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
    """A growing set of ids; repetitions are removed now and then, so memory follows the set."""

    def __init__(self) -> None:
        self._merged = NOTHING
        self._parts: list[Ids] = []
        self._pending = 0

    def add(self, ids: Ids) -> None:
        """Add ids in any order, with repetitions or without."""
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
