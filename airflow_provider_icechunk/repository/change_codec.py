"""The changes of a fork as bytes, so that it can travel between processes.

They cross a trust boundary on the way back, so they are decoded like a stored file: bounded,
verified, `FormatError` for anything else.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError
from airflow_provider_icechunk.format.fragments import Fragment, decode_fragment, encode_fragment
from airflow_provider_icechunk.format.ids import NODE_ID_SIZE, NodeId
from airflow_provider_icechunk.format.names import check_node_path
from airflow_provider_icechunk.format.snapshot import Node, Snapshot
from airflow_provider_icechunk.format.wire import messagepack as mp
from airflow_provider_icechunk.repository.changes import ChangeSet
from airflow_provider_icechunk.repository.documents import node_from_document

VERSION = 1


def encode_changes(changes: ChangeSet, base: Snapshot) -> bytes:
    """Changes on `base` as bytes."""
    chunks = Fragment(base=base.id, job="", worker="", arrays=dict(changes.edited()))
    return mp.pack(
        [
            VERSION,
            [_plain(node) for node in changes.created.values()],
            [_plain(node) for node in changes.updated.values()],
            list(changes.deleted),
            encode_fragment(chunks),
        ]
    )


def decode_changes(data: bytes, base: Snapshot, *, where: str) -> ChangeSet:
    """The changes in `data`, which were made on `base`."""
    items = mp.as_array(mp.unpack(data, where=where), "the changes", where=where, sizes=(5,))
    if mp.as_number(items[0], "the version", where=where) != VERSION:
        raise FormatError(f"{where}: written by another release; both sides must run the same one")
    known = {node.id: node for node in base.nodes.values()}
    created = [_node(item, known, where) for item in mp.as_array(items[1], "nodes", where=where)]
    updated = [_node(item, known, where) for item in mp.as_array(items[2], "nodes", where=where)]
    deleted = [_id(item, where) for item in mp.as_array(items[3], "deleted nodes", where=where)]
    chunks = decode_fragment(mp.as_bytes(items[4], "the chunks", where=where), where=where)
    if chunks.base != base.id:
        raise FormatError(f"{where}: made on another snapshot")
    if any(node.id in known for node in created):
        raise FormatError(f"{where}: a created node exists already")
    if not known.keys() >= {node.id for node in updated} | set(deleted):
        raise FormatError(f"{where}: a changed node does not exist in the base snapshot")
    changes = ChangeSet(
        created={node.path: node for node in created},
        updated={node.id: node for node in updated},
        deleted={node_id: known[node_id] for node_id in deleted},
    )
    arrays = known | {node.id: node for node in [*updated, *created]}
    for node_id, refs in chunks.arrays.items():
        node = arrays.get(node_id)
        if node is None or node.array is None or len(node.array.shape) != refs.ndim:
            raise FormatError(f"{where}: chunks of an array that does not fit them")
        changes.edits(node).set_many(refs)
    return changes


def _plain(node: Node) -> list[object]:
    return [node.id, node.path, node.user_data]


def _node(item: mp.Value, known: dict[NodeId, Node], where: str) -> Node:
    fields = mp.as_array(item, "a node", where=where, sizes=(3,))
    identity = _id(fields[0], where)
    before = known.get(identity)
    manifests = before.array.manifests if before is not None and before.array else ()
    document = mp.as_bytes(fields[2], "a document", where=where)
    try:
        path = check_node_path(mp.as_text(fields[1], "a path", where=where))
        node = node_from_document(identity, path, document, manifests, rectilinear=True)
    except InvalidInputError as error:
        raise FormatError(f"{where}: {error}") from None
    return node if before is None else replace(node, extra=before.extra)


def _id(value: mp.Value, where: str) -> NodeId:
    identity = mp.as_bytes(value, "a node id", where=where)
    if len(identity) != NODE_ID_SIZE:
        raise FormatError(f"{where}: a node id has {len(identity)} bytes")
    return NodeId(identity)
