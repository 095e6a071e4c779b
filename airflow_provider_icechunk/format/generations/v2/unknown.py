"""Fields of a snapshot that a newer writer stored and that a new snapshot on top would lose."""

from __future__ import annotations

from airflow_provider_icechunk.budget import Purse
from airflow_provider_icechunk.format.generations.v1.manifests import IDENTIFIER
from airflow_provider_icechunk.format.wire.columns import batches
from airflow_provider_icechunk.format.wire.flatbuffers import Buffer

_SNAPSHOT_SLOTS = 9
_NODES, _NODE_SLOTS = 2, 6
_MANIFESTS, _MANIFEST_SLOTS = 7, 4


def unknown_field(payload: bytes, *, where: str, memory: Purse | None = None) -> str | None:
    """Where the first field is that this version does not know; `None` if it knows all."""
    root = Buffer(payload, where=where, memory=memory).root(IDENTIFIER)
    if any(root.slots[_SNAPSHOT_SLOTS:]):
        return "a field of the snapshot"
    for slot, known, what in (
        (_NODES, _NODE_SLOTS, "a node"),
        (_MANIFESTS, _MANIFEST_SLOTS, "a manifest file"),
    ):
        if root.has(slot):
            for batch in batches(root.buffer, root.offsets(slot)):
                if any(batch.slots[known:]):
                    return f"a field of {what}"
    return None
