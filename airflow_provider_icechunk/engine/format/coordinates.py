"""Chunk coordinates as sortable scalars, and distinct rows of them.

`np.unique` is not used: it imports masked arrays on its first call, which takes longer than
the one commit that many processes make.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)
_FEW_PAIRS = 64
"""Up to this many pairs of rows are compared directly, which is faster than making keys."""


def distinct(values: NDArray[Number]) -> NDArray[Number]:
    """The sorted distinct values. Runs of equal values cost next to nothing."""
    ordered = np.sort(values[_begins(values)])
    return ordered[_begins(ordered)]


def first_rows(keys: NDArray[np.generic]) -> NDArray[np.intp]:
    """The first row of each distinct key, in the order of the keys."""
    order = np.argsort(keys, kind="stable")
    return order[_begins(keys[order])]


def _begins(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Where a value differs from the one before it."""
    begins = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=begins[1:])
    return begins


Index = tuple[int, ...]
"""Coordinates of one chunk."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Binary search over ordered index rows."""

    keys: NDArray[np.generic]
    radix: Index | None
    """Bounds in which the keys are numbered; `None` if they are big-endian bytes."""

    @classmethod
    def over(cls, index: NDArray[np.uint32]) -> Self:
        """A search over ordered rows, at least one."""
        (keys,) = sort_keys(index)
        if keys.dtype.kind == "S":
            return cls(keys, None)
        return cls(keys, tuple(int(top) + 1 for top in index.max(axis=0)))

    def row(self, wanted: Sequence[int]) -> int | None:
        """The row of `wanted`, or `None` if there is none."""
        key = self._key(wanted)
        if key is None:
            return None
        row = int(np.searchsorted(self.keys, key))
        return row if row < len(self.keys) and self.keys[row] == key else None

    def _key(self, wanted: Sequence[int]) -> np.generic | None:
        if self.radix is None:
            if len(wanted) * 4 != self.keys.dtype.itemsize:
                return None
            if not all(0 <= number < 1 << 32 for number in wanted):
                return None
            key: np.generic = _big_endian(np.array([wanted], np.uint32))[0]
            return key
        if len(wanted) != len(self.radix):
            return None
        number = 0
        for base, position in zip(self.radix, wanted, strict=True):
            if not 0 <= position < base:
                return None
            number = number * base + position
        return np.uint64(number)


def sort_keys(*indexes: NDArray[np.uint32]) -> list[NDArray[np.generic]]:
    """One sortable scalar per row, comparable across all the given index columns.

    The scalars are row-major numbers in the common bounding box if that fits 64 bits, and
    big-endian bytes otherwise; both sort exactly like the index tuples.
    """
    ndim = indexes[0].shape[1]
    radix = [
        max((int(part[:, axis].max()) + 1 for part in indexes if len(part)), default=1)
        for axis in range(ndim)
    ]
    if _product(radix) < 1 << 63:
        return [_numbers(part, radix) for part in indexes]
    return [_big_endian(part) for part in indexes]


def common_rows(index: NDArray[np.uint32], other: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Which rows of `index` also occur in `other`."""
    if not len(index) or not len(other):
        return np.zeros(len(index), np.bool_)
    if len(index) * len(other) <= _FEW_PAIRS and index.shape[1] == other.shape[1]:
        return np.asarray((index[:, None] == other[None]).all(axis=2).any(axis=1))
    mine, theirs = sort_keys(index, other)
    if not bool(np.all(np.less(theirs[:-1], theirs[1:]))):
        theirs = distinct(theirs)
    place = np.minimum(np.searchsorted(theirs, mine), len(theirs) - 1)
    return np.asarray(np.equal(theirs[place], mine))


def _numbers(index: NDArray[np.uint32], radix: Sequence[int]) -> NDArray[np.generic]:
    keys = np.zeros(len(index), np.uint64)
    for axis, base in enumerate(radix):
        keys *= np.uint64(base)
        keys += index[:, axis]
    return keys


def _big_endian(index: NDArray[np.uint32]) -> NDArray[np.generic]:
    rows, ndim = index.shape
    return np.ascontiguousarray(index, ">u4").view(f"S{4 * ndim}").reshape(rows)


def _product(numbers: Iterable[int]) -> int:
    total = 1
    for number in numbers:
        total *= number
    return total
