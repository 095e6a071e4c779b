"""Locations of virtual chunks as many small zstd frames that share a dictionary.

The unpacked size of a frame is read from its header before anything is allocated; a frame without
one is unpacked separately under the same limit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import zstandard
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, RefKind
from airflow_provider_icechunk.engine.format.config.model import LocationCompression
from airflow_provider_icechunk.engine.format.model import Manifest
from airflow_provider_icechunk.engine.format.v1.manifest_read import COMPRESSED_LOCATION, IDENTIFIER
from airflow_provider_icechunk.engine.format.wire.flatbuffers_read import Buffer, batches
from airflow_provider_icechunk.engine.format.wire.flatbuffers_write import span_keys, split_keys
from airflow_provider_icechunk.engine.format.wire.nested import positions
from airflow_provider_icechunk.exceptions import FormatError, Kind

MAX_LOCATION = 1024
"""Maximum size of a location that official readers accept, in bytes."""
MAX_DICTIONARY = 1 << 20
_MAX_TOTAL = 1 << 30
_ROW_MEMORY = 48
_FRAME_MEMORY = 120
"""Memory of a reference, and of a possibly shared frame, until it is unpacked."""
_MAGIC = np.frombuffer(b"\x28\xb5\x2f\xfd", np.uint8)
_LONGEST_HEADER = 18
_ID_SIZES = np.array([0, 1, 2, 4], np.int64)


def unpack_frames(
    payload: bytes,
    spans: NDArray[np.uint64],
    dictionary: bytes,
    where: str,
    hold: Callable[[int], None] = lambda _: None,
) -> tuple[bytes, NDArray[np.uint64]]:
    """The concatenated texts of the frames at `spans`, and the span of each.

    Equal spans are unpacked once. `hold` receives the amount of memory before it is allocated.
    """
    if len(dictionary) > MAX_DICTIONARY:
        raise FormatError(f"{where}: its location dictionary has {len(dictionary)} bytes")
    hold(_ROW_MEMORY * len(spans))
    distinct, inverse = np.unique(spans, axis=0, return_inverse=True)
    hold(_FRAME_MEMORY * len(distinct))
    sizes = _declared_sizes(payload, distinct.astype(np.int64), where)
    if int(sizes.sum()) > _MAX_TOTAL:
        raise FormatError(
            f"{where}: its locations unpack to more than {_MAX_TOTAL} bytes",
            kind=Kind.LIMIT_EXCEEDED,
        )
    hold(2 * int(sizes.sum()))
    try:
        known = zstandard.ZstdCompressionDict(dictionary)
        unpacker = zstandard.ZstdDecompressor(dict_data=known)
        texts = [
            unpacker.decompress(payload[start:stop], max_output_size=MAX_LOCATION)
            for start, stop in distinct.tolist()
        ]
    except (zstandard.ZstdError, ValueError, MemoryError):
        raise FormatError(f"{where}: the compressed location of a chunk is damaged") from None
    ends = np.cumsum([len(text) for text in texts], dtype=np.uint64)
    starts = np.concatenate([np.zeros(1, np.uint64), ends[:-1]])
    return b"".join(texts), np.stack([starts, ends], axis=1)[inverse.reshape(-1)]


def pack_locations(
    manifest: Manifest, settings: LocationCompression
) -> tuple[Manifest, bytes] | None:
    """The manifest with frames instead of locations, and their dictionary.

    `None` if compression is not worth it or impossible: too few locations, too long or too
    different.
    """
    arrays = {node: parts for node, parts in manifest.arrays.items() if parts}
    virtual = [refs for parts in arrays.values() for refs in parts]
    count = sum(int((refs.kind == RefKind.VIRTUAL).sum()) for refs in virtual)
    texts = [_texts(refs) for refs in virtual]
    distinct = [text for found, _ in texts for text in found]
    if not distinct or count < settings.min_num_chunks or max(map(len, distinct)) > MAX_LOCATION:
        return None
    step = -(-len(distinct) // max(settings.max_samples, 1))
    try:
        samples: list[bytes | bytearray | memoryview] = [*distinct[::step]]
        trained = zstandard.train_dictionary(settings.max_dictionary_bytes, samples)
    except (zstandard.ZstdError, ValueError, MemoryError):
        return None
    packer = zstandard.ZstdCompressor(level=settings.level, dict_data=trained)
    packed = iter(
        [_packed(refs, *found, packer) for refs, found in zip(virtual, texts, strict=True)]
    )
    frames = {node: tuple(next(packed) for _ in parts) for node, parts in arrays.items()}
    return replace(manifest, arrays={**manifest.arrays, **frames}), trained.as_bytes()


def _texts(refs: ChunkRefs) -> tuple[list[bytes], NDArray[np.intp]]:
    """Distinct locations of the virtual references, and the location of each reference."""
    keys, inverse = np.unique(
        span_keys(refs.span[refs.kind == RefKind.VIRTUAL]), return_inverse=True
    )
    starts, sizes = split_keys(keys)
    spans = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
    return [bytes(refs.heap[start:stop]) for start, stop in spans], inverse.reshape(-1)


def _packed(
    refs: ChunkRefs, texts: list[bytes], which: NDArray[np.intp], packer: zstandard.ZstdCompressor
) -> ChunkRefs:
    frames = [packer.compress(text) for text in texts]
    ends = len(refs.heap) + np.cumsum([0, *map(len, frames)], dtype=np.uint64)
    span = np.array(refs.span)
    places = np.stack([ends[:-1], ends[1:]], axis=1)
    span[refs.kind == RefKind.VIRTUAL] = places[which]
    return replace(refs, span=span, heap=b"".join((refs.heap, *frames)))


def location_compression(payload: bytes, *, where: str) -> tuple[int | None, int]:
    """Size of a manifest's dictionary, `None` without one, and the number of its locations."""
    root = Buffer(payload, where=where).root(IDENTIFIER)
    if not root.has(2):
        return None, 0
    at = positions(root.buffer, [table.links(1) for table in root.tables(1)])
    count = sum(
        len(batch.at) for batch in batches(root.buffer, at) if batch.has(COMPRESSED_LOCATION)
    )
    return len(root.blob(2)), count


def _declared_sizes(payload: bytes, spans: NDArray[np.int64], where: str) -> NDArray[np.int64]:
    """The announced unpacked size of each frame; the limit if there is none."""
    padded = np.frombuffer(payload + bytes(_LONGEST_HEADER), np.uint8)
    heads = padded[spans[:, :1] + np.arange(_LONGEST_HEADER)]
    lengths = spans[:, 1] - spans[:, 0]
    if bool((heads[:, :4] != _MAGIC).any() | (lengths < 6).any()):
        raise FormatError(f"{where}: the compressed location of a chunk is not a zstd frame")
    descriptor = heads[:, 4].astype(np.int64)
    flag, single = descriptor >> 6, descriptor >> 5 & 1
    at = 5 + (1 - single) + _ID_SIZES[descriptor & 3]
    rows = np.arange(len(heads))
    raw = sum(heads[rows, at + n].astype(np.uint64) << np.uint64(8 * n) for n in range(4))
    low = np.asarray(raw, np.uint64).astype(np.int64)
    sizes = np.full(len(heads), MAX_LOCATION, np.int64)
    sizes = np.where((flag == 0) & (single == 1), low & 0xFF, sizes)
    sizes = np.where(flag == 1, (low & 0xFFFF) + 256, sizes)
    sizes = np.where(flag >= 2, low, sizes)
    if bool((sizes > MAX_LOCATION).any()) or bool((flag == 3).any()):
        raise FormatError(
            f"{where}: the location of a chunk has more than {MAX_LOCATION} bytes",
            kind=Kind.LIMIT_EXCEEDED,
        )
    return sizes
