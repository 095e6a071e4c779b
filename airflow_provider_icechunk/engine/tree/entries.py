"""Groups and arrays of a tree for listings: shape, chunks, type, written chunks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_icechunk.engine.format.model import Node
from airflow_provider_icechunk.engine.format.zarr_metadata import ArrayDocument, parse_node

from .tree import WorkingTree


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A group or an array in the tree."""

    path: str
    type: str
    shape: tuple[int, ...] | None = None
    chunk_shape: tuple[int, ...] | None = None
    grid: tuple[int, ...] | None = None
    """Chunks along each dimension, written or not."""
    data_type: str | None = None
    dimension_names: tuple[str | None, ...] | None = None
    chunks: int | None = None
    """Chunks that were written; `None` unless counted."""
    bytes: int | None = None


def read_entry(tree: WorkingTree, node: Node, count_chunks: bool) -> TreeEntry:
    """The tree entry of a node; counting chunks reads its manifests."""
    document = parse_node(node.user_data, rectilinear=True)
    if not isinstance(document, ArrayDocument):
        return TreeEntry(node.path, "group")
    refs = tree.references(node) if count_chunks else None
    return TreeEntry(
        node.path,
        "array",
        document.shape,
        document.chunk_shape,
        document.num_chunks,
        _data_type(json.loads(node.user_data).get("data_type")),
        document.dimension_names,
        None if refs is None else len(refs),
        None if refs is None else int(refs.length.sum()),
    )


def _data_type(value: object) -> str | None:
    """The name of a data type, which is a string or an object with a name."""
    if isinstance(value, Mapping):
        value = value.get("name")
    return value if isinstance(value, str) else None
