"""Give an array other chunks: its new document, and the blocks in which its cells move.

Pure, apart from `plan_stored`, which reads a stored array.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import zarr

from airflow_provider_icechunk.engine.commit.documents import encoded
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document
from airflow_provider_icechunk.engine.zarr_store.store import IcechunkStore
from airflow_provider_icechunk.exceptions import InvalidInputError, UnsupportedError

from .regions import Region, plan_regions

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.format.model import Node

MEMORY = 128 << 20
"""Bytes of values that a task holds at once, unless one chunk is larger."""
MOST_TASKS = 100_000
_SHARDING = "sharding_indexed"
_INDEX_CODECS = [
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "crc32c"},
]


@dataclass(frozen=True, slots=True)
class RechunkPlan:
    """The plan for giving an array other chunks."""

    path: str
    shape: tuple[int, ...]
    before: tuple[int, ...]
    """The current unit of storage: a shard, if the array has them, otherwise a chunk."""
    after: tuple[int, ...]
    """The new unit."""
    itemsize: int
    block: tuple[int, ...]
    """Cells that a task moves."""
    blocks: tuple[Region, ...]

    @property
    def size(self) -> int:
        """Bytes of values."""
        return math.prod(self.shape) * self.itemsize

    @property
    def read(self) -> int:
        """Bytes of values that are decoded: a chunk counts for each block that needs some of it."""
        total = 0
        for block in self.blocks:
            cells = 1
            for (start, stop), unit, length in zip(block, self.before, self.shape, strict=True):
                cells *= min(-(-stop // unit) * unit, length) - start // unit * unit
            total += cells
        return total * self.itemsize

    def to_json(self) -> dict[str, Any]:
        """The value as plain JSON."""
        return {
            "array": self.path,
            "shape": list(self.shape),
            "from": list(self.before),
            "to": list(self.after),
            "chunks_before": _count(self.shape, self.before),
            "chunks_after": _count(self.shape, self.after),
            "bytes": self.size,
            "bytes_read": self.read,
            "tasks": len(self.blocks),
            "bytes_per_task": math.prod(self.block) * self.itemsize,
        }


def rechunked(
    document: bytes, chunks: Sequence[int], shards: Sequence[int] | None, path: str
) -> bytes:
    """The `zarr.json` of an array with other chunks, the same in everything else."""
    value = json.loads(document)
    rank = len(value["shape"])
    for name, lengths in (("chunks", chunks), ("shards", shards)):
        if lengths is None:
            continue
        if len(lengths) != rank or any(type(one) is not int or one < 1 for one in lengths):
            raise InvalidInputError(
                f"{name} {tuple(lengths)} do not fit {path}, whose shape is "
                f"{tuple(value['shape'])}: give a length of at least 1 for each dimension"
            )
    if shards is not None and any(s % c for s, c in zip(shards, chunks, strict=True)):
        raise InvalidInputError(
            f"shards {tuple(shards)} are not multiples of chunks {tuple(chunks)}"
        )
    grid = value["chunk_grid"]
    if grid["name"] != "regular":
        raise UnsupportedError(f"{path} has chunks of different lengths, which are not supported")
    codecs, index = _inner(value["codecs"])
    if shards is not None:
        settings = {"chunk_shape": list(chunks), "codecs": codecs, **index}
        codecs = [{"name": _SHARDING, "configuration": settings}]
    unit = list(chunks if shards is None else shards)
    value["chunk_grid"] = {**grid, "configuration": {"chunk_shape": unit}}
    value["codecs"] = codecs
    return encoded(value)


def _inner(codecs: Sequence[Mapping[str, Any]]) -> tuple[list[Any], dict[str, Any]]:
    """The codecs of chunks, and how shards of the array keep their index."""
    index: dict[str, Any] = {"index_codecs": _INDEX_CODECS, "index_location": "end"}
    if len(codecs) != 1 or codecs[0].get("name") != _SHARDING:
        return list(codecs), index
    settings = codecs[0]["configuration"]
    kept = {key: settings[key] for key in index if key in settings}
    return list(settings["codecs"]), {**index, **kept}


def plan_stored(
    store: IcechunkStore,
    path: str,
    chunks: Sequence[int],
    shards: Sequence[int] | None = None,
    *,
    memory: int = MEMORY,
) -> RechunkPlan:
    """Plan to give an array of a version other chunks; changes nothing."""
    node = store.tree.array(path)
    rechunked(node.user_data, chunks, shards, path)
    size = zarr.open_array(store, path=path.strip("/"), mode="r").dtype.itemsize
    return plan_rechunk(node, size, chunks, shards, memory=memory)


def plan_rechunk(
    node: Node,
    itemsize: int,
    chunks: Sequence[int],
    shards: Sequence[int] | None = None,
    *,
    memory: int = MEMORY,
) -> RechunkPlan:
    """Plan the blocks in which the cells of an array move; changes nothing."""
    document = array_document(node)
    if document.chunk_counts is not None:
        raise UnsupportedError(f"{node.path} has chunks of different lengths: not supported here")
    after = tuple(chunks if shards is None else shards)
    block = block_shape(document.shape, document.chunk_shape, after, itemsize, memory)
    count = _count(document.shape, block)
    if count > MOST_TASKS:
        raise InvalidInputError(
            f"{node.path} would be moved in {count} blocks of {tuple(block)} cells, more than "
            f"{MOST_TASKS} tasks: allow more than {memory} bytes of `memory` for each"
        )
    blocks = plan_regions(document.shape, block, max(count, 1))
    before = tuple(document.chunk_shape)
    return RechunkPlan(node.path, document.shape, before, after, itemsize, block, tuple(blocks))


def block_shape(
    shape: Sequence[int], before: Sequence[int], after: Sequence[int], itemsize: int, memory: int
) -> tuple[int, ...]:
    """Whole new chunks that a task moves: as many old ones as possible are read only once.

    A block that ends inside an old chunk makes several tasks decode that chunk, so the block is
    extended where that is worst, as far as memory allows.
    """
    block = [min(new, max(length, 1)) for new, length in zip(after, shape, strict=True)]

    def waste(axis: int) -> float:
        """About how often old chunks are read because blocks end inside them."""
        if block[axis] >= shape[axis] or block[axis] % before[axis] == 0:
            return 1.0
        return 1.0 + before[axis] / block[axis]

    while True:
        open_axes = [axis for axis in range(len(block)) if waste(axis) > 1]
        fitting = []
        for axis in open_axes:
            longer = min(-(-2 * block[axis] // after[axis]) * after[axis], shape[axis])
            size = math.prod(block) // block[axis] * longer * itemsize
            if size <= memory:
                fitting.append((waste(axis), axis, longer))
        if not fitting:
            # An end in the middle of the array must be the end of a new chunk.
            return tuple(
                length if length >= whole else -(-length // new) * new
                for length, new, whole in zip(block, after, shape, strict=True)
            )
        _, axis, longer = max(fitting)
        block[axis] = longer


def _count(shape: Sequence[int], unit: Sequence[int]) -> int:
    return math.prod(
        -(-length // one) if length else 0 for length, one in zip(shape, unit, strict=True)
    )
