"""Which references of an array go into which manifest, by the rules of the configuration.

The grid of chunks is cut at regular places along each dimension; every box of the cut is one
manifest. Boxes are numbered in row-major order, and numbering references is arithmetic on their
index columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.format.config_conditions import (
    ManifestSplittingConfig,
    dimension_matches,
)
from airflow_provider_icechunk.format.references import Extents


@dataclass(frozen=True, slots=True)
class SplitGrid:
    """A regular cut of a grid of chunks into boxes."""

    num_chunks: tuple[int, ...]
    """Chunks along each dimension."""
    sizes: tuple[int, ...]
    """Chunks of a box along each dimension; the last box may have fewer."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Boxes along each dimension; at least one, so that a grid always has a box."""
        return tuple(
            max(1, -(-count // size))
            for count, size in zip(self.num_chunks, self.sizes, strict=True)
        )

    @property
    def count(self) -> int:
        """The number of boxes."""
        return prod(self.shape)

    def assign(self, index: NDArray[np.uint32]) -> NDArray[np.int64]:
        """The number of the box of each row of `index`, an array of shape `(n, d)`.

        Rows outside the grid, as there are after an array shrank, count to the nearest box.
        """
        numbers = np.zeros(len(index), np.int64)
        for axis, (boxes, size) in enumerate(zip(self.shape, self.sizes, strict=True)):
            along = np.minimum(index[:, axis].astype(np.int64) // size, boxes - 1)
            numbers = numbers * boxes + along
        return numbers

    def extents(self, number: int) -> Extents:
        """The ranges of chunk indices of box `number`."""
        ranges = []
        shape = self.shape
        for axis in reversed(range(len(shape))):
            number, position = divmod(number, shape[axis])
            start = position * self.sizes[axis]
            ranges.append((start, min(start + self.sizes[axis], self.num_chunks[axis])))
        return tuple(reversed(ranges))

    def all_extents(self) -> Iterator[Extents]:
        """The ranges of every box in order; there may be very many."""
        return (self.extents(number) for number in range(self.count))


def split_grid(
    config: ManifestSplittingConfig | None,
    path: str,
    dimension_names: Sequence[str | None] | None,
    num_chunks: Sequence[int],
) -> SplitGrid:
    """The cut that `config` asks for, for the array at `path`.

    Every rule whose condition holds takes part, in order; a dimension takes the first size that
    fits it and is not split if none does.
    """
    names = list(dimension_names or [None] * len(num_chunks))
    sizes = [
        _size(config, path, axis, names[axis] if axis < len(names) else None) or max(1, count)
        for axis, count in enumerate(num_chunks)
    ]
    return SplitGrid(tuple(num_chunks), tuple(sizes))


def _size(
    config: ManifestSplittingConfig | None, path: str, axis: int, name: str | None
) -> int | None:
    for condition, dimensions in (config.split_sizes if config else None) or ():
        if condition.matches(path):
            for dimension, size in dimensions:
                if dimension_matches(dimension, axis, name):
                    return size
    return None
