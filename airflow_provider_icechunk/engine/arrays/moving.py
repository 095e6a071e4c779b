"""Move cells from one array to another with other chunks, bit by bit.

Cells that were never stored remain so, and stored cells are stored again, even if they all hold the
fill value.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.zarr_store.releases import storing_empty_chunks
from airflow_provider_icechunk.engine.zarr_store.store import IcechunkStore, StoreSession

from .blocks import chunk_grid, chunks_of_region, put_values
from .regions import Region, slices


def open_target(store: IcechunkStore, path: str) -> zarr.Array[Any]:
    """An array to move cells into: it also stores chunks that are all fill value."""
    array = zarr.open_array(store, path=path.strip("/"), mode="r+")
    return storing_empty_chunks(array)


def move_cells(
    source: StoreSession,
    old: zarr.Array[Any],
    target: StoreSession,
    new: zarr.Array[Any],
    box: Region,
    offset: Sequence[int] | None = None,
) -> int:
    """Fill a box of whole chunks of `new` with the cells of `old`; returns their size in bytes.

    Nothing is recorded as written: existing values only move.

    :param offset: how much further on in `old` the cells are, for each dimension.
    """
    steps = tuple(offset or (0,) * len(box))
    there = tuple((start + o, stop + o) for (start, stop), o in zip(box, steps, strict=True))
    grid = chunk_grid(old)
    first = [start // chunk for (start, _), chunk in zip(there, grid, strict=True)]
    present = _present(source, f"/{old.path}", there, grid)
    if not present.any():
        return 0
    wanted = []
    for index, part in chunks_of_region(box, chunk_grid(new)):
        cells = [
            (place.start + start, place.stop + start)
            for place, (start, _) in zip(part, there, strict=True)
        ]
        beneath = tuple(
            slice(low // chunk - begin, -(-high // chunk) - begin)
            for (low, high), chunk, begin in zip(cells, grid, first, strict=True)
        )
        if present[beneath].any():
            wanted.append((index, part))
    values = np.asarray(old[slices(there)])
    put_values(target, new, ((index, values[part]) for index, part in wanted))
    return int(values.nbytes)


def _present(
    session: StoreSession, path: str, box: Region, grid: Sequence[int]
) -> NDArray[np.bool_]:
    """Which chunks of a box are stored."""
    spans = [
        range(start // chunk, -(-stop // chunk))
        for (start, stop), chunk in zip(box, grid, strict=True)
    ]
    found = session.tree.chunks(path, list(product(*spans)))
    there = np.array([one is not None for one in found], np.bool_)
    return there.reshape([len(span) for span in spans])
