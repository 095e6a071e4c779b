"""The chunks of an array as a picture: over two dimensions of its grid, and where their bytes are.

Chunks of the other dimensions, and neighbours on a large grid, share a cell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.display import Shown, as_html
from airflow_provider_icechunk.engine.format.chunk_refs import RefKind
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document

from .tree import WorkingTree

_MOST_CELLS = 48
"""Cells along each side of a picture in a notebook."""
_PIXELS = 480
_COLOURS = {
    RefKind.NATIVE: ("native", "#2a9d8f"),
    RefKind.INLINE: ("inline", "#e09f3e"),
    RefKind.VIRTUAL: ("virtual", "#5b8def"),
}
"""Seen on light and on dark pages; everything else has the colour of the text."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ArrayMap(Shown):
    """Which chunks an array has, and of which kind."""

    path: str
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    grid: tuple[int, ...]
    """Chunks along each dimension."""
    counts: Mapping[str, int]
    """Chunks by kind; `missing` ones read as the fill value."""
    stored_bytes: int
    axes: tuple[str | None, str | None]
    """The dimensions of the picture: down and across."""
    shares: Mapping[str, NDArray[np.float64]]
    """For each kind, its share of the chunks of each cell."""

    def shown_name(self) -> str:
        """Its own name: the official package has none."""
        return "ArrayMap"

    def shown_facts(self) -> Mapping[str, object]:
        """Shape, chunks, how many of which kind."""
        chunks = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items() if count)
        return {
            "array": self.path,
            "shape": self.shape,
            "chunk shape": self.chunk_shape,
            "grid": self.grid,
            "chunks": chunks or "none",
            "stored": f"{self.stored_bytes:,} bytes",
        }

    def _repr_html_(self) -> str:
        return f"{as_html(self)}\n{self._picture()}"

    def _picture(self) -> str:
        rows, columns = next(iter(self.shares.values())).shape
        side = max(4, min(24, _PIXELS // max(rows, columns, 1)))
        cells = []
        for row in range(rows):
            for column in range(columns):
                found = {kind: float(share[row, column]) for kind, share in self.shares.items()}
                cells.append(_cell(row * side, column * side, side - 1, found))
        across = escape(self.axes[1] or "")
        down = escape(self.axes[0] or "")
        legend = " ".join(
            f'<tspan fill="{colour}">&#9632;</tspan> {name}' for name, colour in _COLOURS.values()
        )
        height, width = rows * side, max(columns * side, 260)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 8}" height="{height + 44}" '
            'font-family="monospace" font-size="12" fill="currentColor" role="img" '
            f'aria-label="chunks of {escape(self.path)}"><g transform="translate(0 4)">'
            f'{"".join(cells)}</g><text x="0" y="{height + 20}">{down} &#8595; {across} &#8594;'
            f'</text><text x="0" y="{height + 38}">{legend}</text></svg>'
        )


def _cell(y: int, x: int, side: int, found: Mapping[str, float]) -> str:
    kind, colour = max(_COLOURS.values(), key=lambda one: found[one[0]])
    whole = sum(found.values())
    # A cell with anything in it is never shown as empty.
    fill, opacity = (colour, max(0.25, whole)) if whole else ("currentColor", 0.1)
    said = f"{kind} {whole:.0%}" if whole else "missing"
    return (
        f'<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="{fill}" '
        f'fill-opacity="{opacity:.2f}"><title>{said}</title></rect>'
    )


def chunk_map(tree: WorkingTree, path: str) -> ArrayMap:
    """The map of an array as a session sees it."""
    node = tree.array("/" + path.strip("/"))
    document = array_document(node)
    grid = tuple(document.num_chunks)
    refs = tree.references(node)
    down, across = sides_of(grid)
    sides = tuple(1 if axis is None else grid[axis] for axis in (down, across))
    height, width = (max(1, min(side, _MOST_CELLS)) for side in sides)
    whole = np.maximum(cells_of_all(grid, down, across, height, width), 1)
    shares, counts = {}, {}
    for kind, (name, _) in _COLOURS.items():
        index = refs.index[refs.kind == kind]
        counts[name] = len(index)
        shares[name] = binned(index, grid, down, across, height, width) / whole
    counts["missing"] = max(0, math.prod(grid) - len(refs))
    names = document.dimension_names or (None,) * len(grid)
    axes = [None if n is None else (names[n] or f"dim {n}")[:60] for n in (down, across)]
    return ArrayMap(
        node.path,
        tuple(document.shape),
        tuple(document.chunk_shape),
        grid,
        counts,
        int(refs.length.sum()),
        (axes[0], axes[1]),
        shares,
    )


def sides_of(grid: Sequence[int]) -> tuple[int | None, int | None]:
    """The two dimensions with the most chunks, as rows and columns."""
    largest = sorted(range(len(grid)), key=lambda axis: (-grid[axis], axis))[:2]
    if len(largest) == 2 and grid[largest[1]] > 1:
        return min(largest), max(largest)
    return None, (largest[0] if largest else None)


def binned(
    index: NDArray[np.uint32],
    grid: Sequence[int],
    down: int | None,
    across: int | None,
    height: int,
    width: int,
) -> NDArray[np.int64]:
    """How many of the given chunks each cell of a picture stands for."""
    row = _bins(index, grid, down, height)
    column = _bins(index, grid, across, width)
    flat = np.bincount(row * width + column, minlength=height * width)
    return flat.astype(np.int64).reshape(height, width)


def _bins(
    index: NDArray[np.uint32], grid: Sequence[int], axis: int | None, cells: int
) -> NDArray[np.int64]:
    if axis is None:
        return np.zeros(len(index), np.int64)
    return index[:, axis].astype(np.int64) * cells // max(1, grid[axis])


def cells_of_all(
    grid: Sequence[int], down: int | None, across: int | None, height: int, width: int
) -> NDArray[np.float64]:
    """How many chunks each cell would stand for if all were there."""
    counts = []
    for axis, cells in ((down, height), (across, width)):
        length = 1 if axis is None else grid[axis]
        edges = -(-np.arange(cells + 1, dtype=np.int64) * length // cells)
        counts.append(np.diff(edges).astype(np.float64))
    others = math.prod(n for axis, n in enumerate(grid) if axis not in (down, across))
    return np.outer(counts[0], counts[1]) * others
