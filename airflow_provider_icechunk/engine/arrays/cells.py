"""Cells of single chunks: decode, lay one side's over the other's, encode.

A chunk is read and written through an array of one chunk in memory, so that Zarr's own codecs do
the work, with shards as well. Bits are compared and copied, not values: NaN and -0.0 count. Only
codecs that decode to exactly what was encoded are used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.core.array import AsyncArray
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from airflow_provider_icechunk.engine.tree.boxes import Box, Boxes
from airflow_provider_icechunk.engine.zarr_store.codecs import bytes_of
from airflow_provider_icechunk.engine.zarr_store.releases import inner_array

LOSSLESS = frozenset(
    {
        "blosc",
        "bytes",
        "crc32c",
        "gzip",
        "numcodecs.blosc",
        "numcodecs.bz2",
        "numcodecs.gzip",
        "numcodecs.lz4",
        "numcodecs.lzma",
        "numcodecs.zlib",
        "numcodecs.zstd",
        "sharding_indexed",
        "transpose",
        "vlen-bytes",
        "vlen-utf8",
        "zstd",
    }
)
"""Codecs that decode to exactly what was encoded."""

Values = NDArray[Any]


class ZarrCells:
    """Merges chunks with the codecs of Zarr."""

    def refusal(self, document: bytes) -> str | None:
        """Why chunks of this array are not merged; `None` if they can be."""
        fields = json.loads(document)
        if fields.get("storage_transformers"):
            return "chunks with storage transformers are not merged"
        lossy = sorted(_names(fields.get("codecs")) - LOSSLESS)
        if lossy:
            return f"chunks with codec {lossy[0]!r} are not merged: it may lose bits"
        try:
            _OneChunk(document).open()
        except (ImportError, KeyError, NotImplementedError, TypeError, ValueError) as error:
            return f"its chunks cannot be decoded here: {error}"
        return None

    def lay_over(
        self,
        document: bytes,
        theirs: bytes | None,
        ours: bytes | None,
        boxes: Boxes,
        equal: Boxes,
    ) -> bytes | Box:
        """Their chunk with our cells in `boxes`; or a box of `equal` in which both differ."""
        chunk = _OneChunk(document)
        cells, mine = chunk.decode(theirs), chunk.decode(ours)
        for box in equal:
            part = _slices(box)
            differing = _differing(cells[part], mine[part])
            if differing.any():
                return _around(differing, box)
        for box in boxes:
            cells[_slices(box)] = mine[_slices(box)]
        return chunk.encode(cells)

    def join_changes(
        self, document: bytes, base: bytes | None, theirs: bytes | None, ours: bytes | None
    ) -> bytes | Box:
        """Their chunk with the cells that we changed; or a box with cells both changed."""
        chunk = _OneChunk(document)
        before, cells, mine = (chunk.decode(data) for data in (base, theirs, ours))
        changed = _differing(before, mine)
        both = changed & _differing(before, cells) & _differing(cells, mine)
        if both.any():
            return _around(both, tuple((0, length) for length in both.shape))
        cells[changed] = mine[changed]
        return chunk.encode(cells)

    def gather(self, document: bytes, parts: Sequence[tuple[bytes | None, Box, Box]]) -> bytes:
        """A chunk of cells from other chunks: bytes, place there, place here; fill elsewhere."""
        chunk = _OneChunk(document)
        cells = chunk.decode(None)
        for data, source, target in parts:
            cells[_slices(target)] = chunk.decode(data)[_slices(source)]
        return chunk.encode(cells)

    def values(self, document: bytes, data: bytes | None) -> list[Any]:
        """The cells of a chunk with one dimension, as plain values."""
        found: list[Any] = _OneChunk(document).decode(data).tolist()
        return found


class _OneChunk:
    """Encodes and decodes the chunks of an array."""

    def __init__(self, document: bytes) -> None:
        fields = json.loads(document)
        fields["shape"] = list(fields["chunk_grid"]["configuration"]["chunk_shape"])
        fields.pop("attributes", None)
        self._document = json.dumps(fields).encode()
        self._key = "/".join(["c", *("0" for _ in fields["shape"])])

    def open(self) -> None:
        """Refuse an array whose type or codecs this Zarr does not know."""
        self._array(self._store(None))

    def decode(self, data: bytes | None) -> Values:
        """The writable cells of a chunk; the fill value if there is no chunk."""
        values = self._array(self._store(data))[...]
        return np.array(values, copy=True)

    def encode(self, cells: Values) -> bytes:
        """The bytes of a chunk."""
        store = self._store(None)
        self._array(store)[...] = cells
        found = sync(store.get(self._key, default_buffer_prototype()))
        assert found is not None
        return bytes(bytes_of(found))

    def _store(self, data: bytes | None) -> MemoryStore:
        buffer = default_buffer_prototype().buffer
        held = {"zarr.json": buffer.from_bytes(self._document)}
        if data is not None:
            held[self._key] = buffer.from_bytes(data)
        return MemoryStore(held)

    @staticmethod
    def _array(store: MemoryStore) -> zarr.Array[Any]:
        # Chunks of only fill values are stored, because -0.0 equals 0.0 but has other bits. An
        # existing array is opened without regard to a configuration.
        opened = inner_array(zarr.open_array(store, mode="r+"))
        config: Any = {"write_empty_chunks": True, "order": "C"}
        return zarr.Array(AsyncArray(opened.metadata, opened.store_path, config))


def _names(codecs: object) -> set[str]:
    """Names of codecs, including those inside shards."""
    names: set[str] = set()
    for codec in codecs if isinstance(codecs, list) else []:
        if isinstance(codec, str):
            names.add(codec)
        elif isinstance(codec, Mapping):
            names.add(str(codec.get("name")))
            inner = codec.get("configuration")
            if isinstance(inner, Mapping):
                names |= _names(inner.get("codecs")) | _names(inner.get("index_codecs"))
    return names


def _differing(one: Values, other: Values) -> NDArray[np.bool_]:
    """Which cells differ in their bits."""
    if one.dtype.hasobject or one.dtype.kind == "T":
        return np.asarray(one != other, np.bool_).reshape(one.shape)
    return np.asarray((_bits(one) != _bits(other)).any(axis=-1), np.bool_).reshape(one.shape)


def _bits(cells: Values) -> NDArray[np.uint8]:
    flat = np.ascontiguousarray(cells).reshape(-1)
    return flat.view(np.uint8).reshape(len(flat), cells.dtype.itemsize)


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


def _around(cells: NDArray[np.bool_], box: Box) -> Box:
    """The smallest box around the marked cells of a part at `box`."""
    places = np.argwhere(cells)
    return tuple(
        (start + int(low), start + int(high) + 1)
        for (start, _), low, high in zip(box, places.min(axis=0), places.max(axis=0), strict=True)
    )
