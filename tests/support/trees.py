"""The contents of a session, as plain comparable values: from our engine or the official one."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import numpy as np
import zarr

_KINDS = ("native", "inline", "virtual")


def documents(session: Any) -> dict[str, dict[str, Any]]:
    """Every node's `zarr.json` by path."""
    from zarr.core.buffer import default_buffer_prototype

    async def collect() -> dict[str, dict[str, Any]]:
        found = {}
        async for key in session.store.list():
            if key.split("/")[-1] == "zarr.json":
                value = await session.store.get(key, default_buffer_prototype())
                path = "/" + key.removesuffix("zarr.json").strip("/")
                found[path] = json.loads(value.to_bytes())
        return found

    return asyncio.run(collect())


def kind_of(chunk_type: Any) -> str:
    """The name of a chunk type of either library; the official one is not a real enumeration."""
    return str(chunk_type).rpartition(".")[2].lower()


def chunk_kinds(session: Any, path: str) -> dict[str, int]:
    """How many chunks of each kind an array has."""
    counts = dict.fromkeys(_KINDS, 0)

    # For arrays that are not committed yet, the official library lists chunks twice.
    async def collect() -> set[tuple[int, ...]]:
        return {tuple(index) async for index in session.chunk_coordinates(path)}

    for index in asyncio.run(collect()):
        counts[kind_of(session.chunk_type(path, list(index)))] += 1
    return counts


def values(session: Any, path: str) -> np.ndarray:
    """All values of an array."""
    array = zarr.open_array(session.store, path=path.strip("/"), mode="r")
    return np.asarray(array[...])


def digest(array: np.ndarray) -> str:
    """SHA-256 of the values in C order, little-endian."""
    little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    return hashlib.sha256(little.tobytes()).hexdigest()


def contents(session: Any) -> dict[str, Any]:
    """Groups with attributes; arrays with metadata, kinds of chunks and the hash of values."""
    groups, arrays = {}, {}
    for path, document in documents(session).items():
        attributes = document.get("attributes") or {}
        if document["node_type"] == "group":
            groups[path] = attributes
            continue
        arrays[path] = {
            "shape": document["shape"],
            "dtype": document["data_type"],
            "fill_value": document["fill_value"],
            "chunk_grid": document["chunk_grid"],
            "dimension_names": document.get("dimension_names"),
            "codecs": [codec["name"] for codec in document["codecs"]],
            "attributes": attributes,
            "chunk_refs": chunk_kinds(session, path),
        }
    return {"groups": groups, "arrays": arrays}
