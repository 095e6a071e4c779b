"""Where releases of Zarr differ, from 3.1 on."""

from __future__ import annotations

from typing import Any

import zarr
from zarr.codecs import BytesCodec
from zarr.core.array import AsyncArray
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import default_buffer_prototype


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
