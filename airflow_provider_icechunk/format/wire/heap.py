"""The bytes of variable length of a FlatBuffers file: each distinct span of a source stored once.

Every span becomes a length, its bytes and a NUL, padded to four bytes: that is a string and a
byte vector at once. Spans are copied in groups of equal length, because that is one gather and one
scatter for each length and not a step per span.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.format.wire.distinct import distinct
from airflow_provider_icechunk.format.wire.layout import MAX_PAYLOAD, check_size

_SIZE_BITS = np.uint64(31)
_SIZE_MASK = np.uint64((1 << 31) - 1)
_LONG = 4096
"""Longer spans are copied one by one: the copy itself outweighs the step."""


class Heap:
    """Where each span of `source` goes, from position `base`, a multiple of four, on."""

    __slots__ = ("_base", "_keys", "_places", "_source", "end")

    _places: NDArray[np.int64]

    def __init__(
        self,
        source: bytes | bytearray | memoryview,
        spans: NDArray[np.uint64],
        *,
        base: int,
    ) -> None:
        check_size(len(source) >> 2)  # keys have 33 bits for where a span starts
        if len(source) > MAX_PAYLOAD and len(spans):
            check_size(int((spans[:, 1] - spans[:, 0]).max()))
        self._source = source
        self._base = base
        keys = span_keys(spans)
        if not bool((keys[:-1] < keys[1:]).all()):
            keys = distinct(keys)
        self._keys = keys
        _, sizes = split_keys(keys)
        taken = (sizes + 8) & ~3
        ends = base + np.cumsum(taken)
        self._places = ends - taken
        self.end = int(ends[-1]) if len(ends) else base

    def find(self, spans: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Positions of spans that the heap was made of."""
        keys = span_keys(spans)
        if len(keys) == len(self._keys) and bool((keys == self._keys).all()):
            return self._places
        return np.asarray(self._places[np.searchsorted(self._keys, keys)])

    def render(self) -> NDArray[np.uint8]:
        """The bytes from `base` to `end`."""
        if not len(self._keys):
            return np.zeros(0, np.uint8)
        out = np.zeros(self.end - self._base, np.uint8)
        starts, sizes = split_keys(self._keys)
        places = self._places - self._base
        out.view("<u4")[places >> 2] = sizes
        copy_spans(self._source, starts, out, places + 4, sizes)
        return out


def span_keys(spans: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Start (below 2**33) and size (below 2**31) of each span in one number that sorts by start."""
    return spans[:, 0] << _SIZE_BITS | (spans[:, 1] - spans[:, 0])


def split_keys(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and sizes of spans from their keys."""
    return (keys >> _SIZE_BITS).astype(np.int64), (keys & _SIZE_MASK).astype(np.int64)


def copy_spans(
    source: bytes | bytearray | memoryview,
    starts: NDArray[np.int64],
    out: NDArray[np.uint8],
    places: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> None:
    """Copy `source[start : start + size]` to `out[place:]` for each row."""
    if not len(sizes):
        return
    order = np.argsort(sizes, kind="stable")
    ordered = sizes[order]
    found = distinct(ordered)
    first = np.searchsorted(ordered, found)
    for size, rows in zip(found.tolist(), np.split(order, first[1:]), strict=True):
        if not size:
            continue
        if size > _LONG:
            view = np.frombuffer(source, np.uint8)
            for row in rows.tolist():
                begin, place = int(starts[row]), int(places[row])
                out[place : place + size] = view[begin : begin + size]
            continue
        kind = f"V{size}"
        old = np.ndarray((len(source) - size + 1,), kind, buffer=source, strides=(1,))
        new = np.ndarray((len(out) - size + 1,), kind, buffer=out.data, strides=(1,))
        new[places[rows]] = old[starts[rows]]
