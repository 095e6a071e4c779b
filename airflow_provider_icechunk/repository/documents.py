"""From a `zarr.json` document to a node, as a session stores it. Pure."""

from __future__ import annotations

from functools import lru_cache

from airflow_provider_icechunk.exceptions import FormatError
from airflow_provider_icechunk.format.ids import NodeId
from airflow_provider_icechunk.format.references import Index
from airflow_provider_icechunk.format.snapshot import ArrayData, Dimension, ManifestRef, Node
from airflow_provider_icechunk.format.zarr_metadata import ArrayDocument, parse_node


@lru_cache(maxsize=4096)
def _parsed(document: bytes) -> ArrayDocument | None:
    parsed = parse_node(document, rectilinear=True)
    return parsed if isinstance(parsed, ArrayDocument) else None


def array_document(node: Node) -> ArrayDocument:
    """Shape and chunk grid of an array, by its `zarr.json`."""
    parsed = _parsed(node.user_data)
    if parsed is None:
        raise FormatError(f"{node.path} is stored as an array but its `zarr.json` is a group's")
    return parsed


def in_grid(node: Node, index: Index) -> bool:
    """Whether there is a place for a chunk at `index`."""
    counts = array_document(node).num_chunks
    return len(index) == len(counts) and all(
        number < count for number, count in zip(index, counts, strict=True)
    )


def node_from_document(
    identity: NodeId,
    path: str,
    document: bytes,
    manifests: tuple[ManifestRef, ...] = (),
    *,
    rectilinear: bool = False,
) -> Node:
    """The node that `document` describes; refuses documents that could not be served.

    Chunks of different sizes (`rectilinear`) can be stored in generation `2` only.
    """
    parsed = parse_node(document, rectilinear=rectilinear)
    if not isinstance(parsed, ArrayDocument):
        return Node(identity, path, document)
    shape = tuple(
        Dimension(length, chunk, count)
        for length, chunk, count in zip(
            parsed.shape, parsed.chunk_shape, parsed.num_chunks, strict=True
        )
    )
    return Node(identity, path, document, ArrayData(shape, parsed.dimension_names, manifests))
