"""Writing vectors of offsets to tables, for many arrays at once.

A commit of many small arrays would otherwise pay for a dozen array operations per array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.format.wire.layout import Writer


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors that lie one after the other: each is a count and an offset to every record."""

    start: int
    counts: NDArray[np.int64]
    heads: NDArray[np.int64]
    """Which of the words are counts."""

    @classmethod
    def link(cls, writer: Writer, links: Sequence[int], counts: Sequence[int]) -> Vectors:
        """Let each of `links` refer to its vector; the vectors themselves come next."""
        start = writer.align(4)
        sizes = np.array(counts, np.int64)
        heads = np.cumsum(sizes + 1) - (sizes + 1)
        for at, head in zip(links, heads.tolist(), strict=True):
            writer.link(at, start + 4 * head)
        return cls(start, sizes, heads)

    @property
    def words(self) -> int:
        """Counts and offsets, each of four bytes."""
        return int(self.counts.sum()) + len(self.counts)

    @property
    def end(self) -> int:
        """Where the vectors end."""
        return self.start + 4 * self.words

    def increasing(self, keys: NDArray[np.generic]) -> bool:
        """Whether keys, one per record, increase strictly inside each vector."""
        rises = np.less(keys[:-1], keys[1:])
        ends = np.cumsum(self.counts)[:-1]
        rises[ends[(ends > 0) & (ends < len(keys))] - 1] = True
        return bool(rises.all())

    def render(self, out: NDArray[np.uint32], at: NDArray[np.int64]) -> None:
        """Fill `out` with the vectors of records at the positions `at`."""
        if len(self.counts) == 1:
            out[0] = self.counts[0]
            out[1:] = at - np.arange(self.start + 4, self.end, 4)
            return
        is_offset = np.ones(self.words, np.bool_)
        is_offset[self.heads] = False
        out[self.heads] = self.counts
        out[is_offset] = at - self.start - 4 * np.flatnonzero(is_offset)
