"""Where releases of Zarr differ, from 3.1 on."""

from __future__ import annotations

from typing import Any

import zarr
from zarr.codecs import BytesCodec
from zarr.core import codec_pipeline
from zarr.core.array import AsyncArray
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import NDBuffer, default_buffer_prototype
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.core.indexing import SelectorTuple


def inner_array(array: zarr.Array[Any]) -> AsyncArray[Any]:
    """What an array wraps; `Array.async_array` came with 3.1.4."""
    return array._async_array


def chunk_spec(array: zarr.Array[Any]) -> ArraySpec:
    """The unit of storage of a regular array: a shard, if it has them, otherwise a chunk.

    The metadata had a method for this until 3.1.
    """
    inner = inner_array(array)
    # The field was private until 3.1.
    config = inner.config if hasattr(inner, "config") else inner._config
    return ArraySpec(
        shape=tuple(array.shards or array.chunks),
        dtype=inner.metadata.dtype,
        fill_value=inner.metadata.fill_value,
        config=config,
        prototype=default_buffer_prototype(),
    )


def byte_order(codec: BytesCodec) -> str:
    """The byte order of a codec: a member of an enumeration in 3.1, text in 3.3."""
    endian: Any = codec.endian
    return "little" if endian is None else str(getattr(endian, "value", endian))


def merged_chunk(
    pipeline: BatchedCodecPipeline,
    values: NDBuffer,
    outside: SelectorTuple,
    spec: ArraySpec,
    inside: SelectorTuple,
    drop_axes: tuple[int, ...],
) -> NDBuffer:
    """A whole chunk of values, with the fill value where they have none.

    Zarr has a method for it until 3.2, and later a function.
    """
    merge: Any = getattr(pipeline, "_merge_chunk_array", None)
    if merge is None:
        merge = vars(codec_pipeline)["_merge_chunk_array"]
    merged: NDBuffer = merge(None, values, outside, spec, inside, True, drop_axes)
    return merged
