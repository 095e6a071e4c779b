"""Where releases of Zarr differ, from 3.1 on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import zarr
from zarr.codecs import BytesCodec
from zarr.core.array import AsyncArray
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import default_buffer_prototype


def inner_array(array: zarr.Array[Any]) -> AsyncArray[Any]:
    """What an array wraps; `Array.async_array` came with 3.1.4."""
    return array._async_array


def chunk_spec(array: zarr.Array[Any]) -> ArraySpec:
    """The unit of storage of a regular array: a shard, if it has them, otherwise a chunk.

    The metadata had a method for this until 3.1.
    """
    inner = inner_array(array)
    return ArraySpec(
        shape=tuple(array.shards or array.chunks),
        dtype=inner.metadata.dtype,
        fill_value=inner.metadata.fill_value,
        config=_config(inner),
        prototype=default_buffer_prototype(),
    )


def storing_empty_chunks(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """The array, which also stores chunks that are all fill value.

    `Array.with_config` came with 3.1.3.
    """
    inner = inner_array(array)
    config = replace(_config(inner), write_empty_chunks=True)
    return zarr.Array(AsyncArray(inner.metadata, inner.store_path, config))


def _config(inner: AsyncArray[Any]) -> ArrayConfig:
    # The field was private until 3.1.
    config: ArrayConfig = inner.config if hasattr(inner, "config") else inner._config
    return config


def byte_order(codec: BytesCodec) -> str:
    """The byte order of a codec: a member of an enumeration in 3.1, text in 3.3."""
    endian: Any = codec.endian
    return "little" if endian is None else str(getattr(endian, "value", endian))
