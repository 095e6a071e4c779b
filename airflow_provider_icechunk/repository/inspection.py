"""Stored files as JSON values in the official shapes, for people who want to look inside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import numpy as np

from airflow_provider_icechunk.budget import Purse
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, NotFoundError
from airflow_provider_icechunk.format import envelope
from airflow_provider_icechunk.format.generations.base import (
    DEFAULT_LIMITS,
    FileType,
    Generation,
)
from airflow_provider_icechunk.format.generations.detect import REPO_KEY
from airflow_provider_icechunk.format.generations.identities import parse_id
from airflow_provider_icechunk.format.generations.v2.locations import location_compression
from airflow_provider_icechunk.format.generations.v2.repo_info import (
    RepoInfo,
    SnapshotRecord,
    Update,
    decode_items,
)
from airflow_provider_icechunk.format.ids import ManifestId, NodeId, SnapshotId, encode_base32
from airflow_provider_icechunk.format.references import ChunkRefs, RefKind
from airflow_provider_icechunk.format.snapshot import ArrayData, Manifest, Node, Snapshot
from airflow_provider_icechunk.format.transactions import TransactionLog
from airflow_provider_icechunk.repository.amending import merge_logs
from airflow_provider_icechunk.repository.documents import array_document
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.history import ManifestFileInfo, required_log
from airflow_provider_icechunk.repository.ledgers.v2 import newer_ledger
from airflow_provider_icechunk.repository.operations_log import event_facts
from airflow_provider_icechunk.repository.world import from_micros

Facts = dict[str, Any]
Show = Callable[[bytes], str]


class Inspection:
    """Look into single files of a repository. Mixed into repositories."""

    _engine: Engine

    def inspect_snapshot(self, snapshot_id: str, *, pretty: bool = True) -> str:
        """One snapshot as JSON: its manifests, its nodes and where their chunks are listed."""
        identity = SnapshotId(_parsed(self._engine, snapshot_id, "snapshot"))
        snapshot = self._engine.assets.snapshot(identity)
        key = self._engine.ledger.layout.snapshot(snapshot.id)
        facts = snapshot_facts(
            snapshot, self._engine.ledger.parent(snapshot), self._header(key), self._engine.show
        )
        if pretty:
            return json.dumps(facts, indent=2, ensure_ascii=False)
        return json.dumps(facts, separators=(",", ":"), ensure_ascii=False)

    def inspect_repo_info(self) -> Facts:
        """Branches, tags, snapshots and the newest operations; generation `2` only."""
        ledger = newer_ledger(self._engine.ledger, "the state of a repository in one file")
        return {"header": self._header(REPO_KEY), **repo_facts(ledger.info(), self._engine.show)}

    def inspect_manifest(self, manifest_id: str) -> Facts:
        """How many chunks of which kind a manifest lists for each array."""
        engine = self._engine
        identity = ManifestId(_parsed(engine, manifest_id, "manifest"))
        key = engine.ledger.layout.manifest(identity)
        data = self._file(key)
        manifest = engine.ledger.codec.decode_manifest(data, identity, where=key)
        unpacked = _unpacked(data, key)
        compression: Facts = {"uses_location_compression": False, "num_compressed_refs": 0}
        if engine.generation is Generation.V2:
            size, count = location_compression(unpacked, where=key)
            compression = {
                "uses_location_compression": size is not None,
                "num_compressed_refs": count,
                **({} if size is None else {"dictionary_size_bytes": size}),
            }
        return {
            "id": engine.show(identity),
            "header": _header(data),
            "size_bytes": len(unpacked),
            **manifest_facts(manifest),
            "compression": compression,
        }

    def inspect_transaction_log(self, snapshot_id: str) -> Facts:
        """What one commit changed, by ids of nodes.

        Where expiration took snapshots out from below it, their logs are told with its own.
        """
        engine = self._engine
        identity = SnapshotId(_parsed(engine, snapshot_id, "snapshot"))
        own = required_log(engine.assets, engine.assets.snapshot(identity))
        pruned = engine.ledger.pruned_logs(identity)
        found = {one: engine.assets.log(one) for one in pruned}
        logs = [log for log in found.values() if log is not None]
        facts = log_facts(reduce(merge_logs, [*logs, own]))
        keeps = engine.generation.keeps_logs
        facts["header"] = self._header(engine.ledger.layout.transaction(own.id)) if keeps else None
        if pruned:
            facts["synthetic_composite"] = {
                "note": "snapshots below this one expired; their logs are part of this one",
                "merged_pruned_ancestor_tx_logs": [engine.show(log.id) for log in logs],
                "missing_tx_logs": [engine.show(one) for one in pruned if found[one] is None],
            }
        return facts

    def list_manifest_files(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """The manifest files that a snapshot uses."""
        identity = SnapshotId(_parsed(self._engine, snapshot_id, "snapshot"))
        files = self._engine.assets.snapshot(identity).manifest_files.values()
        return [
            ManifestFileInfo(self._engine.show(file.id), file.size_bytes, file.num_chunk_refs)
            for file in files
        ]

    def _file(self, key: str) -> bytes:
        found = self._engine.storage.get(key)
        if found is None:
            raise NotFoundError(
                f"there is no {key} in {self._engine.storage.location}", kind=Kind.OBJECT_MISSING
            )
        return found.data

    def _header(self, key: str) -> Facts | None:
        return _header(self._file(key))


def snapshot_facts(
    snapshot: Snapshot, parent: SnapshotId | None, header: Facts | None, show: Show
) -> Facts:
    """Identity, manifests and nodes of a snapshot; `show` makes texts of ids."""
    return {
        "id": show(snapshot.id),
        "header": header,
        "parent_id": None if parent is None else show(parent),
        "flushed_at": _time(snapshot.flushed_at),
        "commit_message": snapshot.message,
        "metadata": dict(snapshot.metadata),
        "manifests": [
            {
                "id": show(file.id),
                "size_bytes": file.size_bytes,
                "num_chunk_refs": file.num_chunk_refs,
            }
            for file in snapshot.manifest_files.values()
        ],
        "nodes": [_node(node, show) for node in snapshot.nodes.values()],
    }


def repo_facts(info: RepoInfo, show: Show) -> Facts:
    """The state of a repository of generation `2`."""
    facts: Facts = {
        "spec_version": "2.0",
        "branches": {name: show(tip) for name, tip in sorted(info.branches.items())},
        "tags": {name: show(tip) for name, tip in sorted(info.tags.items())},
        "deleted_tags": sorted(info.deleted_tags),
        "snapshots": [_record(record, show) for record in info.snapshots.values()],
        "metadata": dict(decode_items(info.metadata, where=REPO_KEY)),
        "latest_updates": [_update(update) for update in info.updates],
    }
    if info.before_updates is not None:
        facts["repo_before_updates"] = info.before_updates
    return facts


def manifest_facts(manifest: Manifest) -> Facts:
    """How many references of each kind there are, in all and for each array."""
    arrays = [_counts(node, parts) for node, parts in manifest.arrays.items()]
    total = {kind: sum(one[f"num_{kind}"] for one in arrays) for kind in _KINDS}
    return {
        "num_arrays": len(arrays),
        "total_chunk_refs": sum(total.values()),
        **{f"total_{kind}": count for kind, count in total.items()},
        "arrays": arrays,
    }


def log_facts(log: TransactionLog) -> Facts:
    """What a log says, with ids as texts."""
    sets: Facts = {name: _ids(getattr(log, name)) for name in _SETS}
    return {
        **sets,
        "updated_chunks": [
            {"node_id": encode_base32(node), "chunks": rows.tolist()}
            for node, rows in log.updated_chunks.items()
        ],
        "moved_nodes": [{"from": move.source, "to": move.target} for move in log.moves],
    }


_SETS = (
    "new_groups",
    "new_arrays",
    "deleted_groups",
    "deleted_arrays",
    "updated_groups",
    "updated_arrays",
)
_KINDS = {"inline": RefKind.INLINE, "native": RefKind.NATIVE, "virtual": RefKind.VIRTUAL}


def _parsed(engine: Engine, text: str, what: str) -> bytes:
    try:
        return parse_id(engine.generation, text)
    except InvalidInputError as error:
        raise InvalidInputError(f"invalid {what} id: {error}") from None


def _header(data: bytes) -> Facts | None:
    """What a file says of itself; `None` in generations whose files say nothing."""
    if not envelope.has_header(data):
        return None
    header = envelope.read_header(data)
    name, _, version = header.writer.partition("-")
    return {
        "written_by": header.writer,
        "app_name": name,
        "app_version": version or None,
        "spec_version": f"{header.spec_version}.0",
        "file_type": header.file_type,
        "compression": header.compression,
    }


def _unpacked(data: bytes, key: str) -> bytes:
    if not envelope.has_header(data):
        return data
    limit = DEFAULT_LIMITS.manifest_bytes
    with Purse(len(data), where=key) as purse:
        return envelope.unpack(
            data, where=key, expected=FileType.MANIFEST, limit=limit, purse=purse
        ).payload


def _node(node: Node, show: Show) -> Facts:
    facts: Facts = {"id": encode_base32(node.id), "path": node.path}
    if node.array is None:
        return facts | {"node_type": "group"}
    refs = [
        {"id": show(ref.id), "extents": ref.extents and [list(box) for box in ref.extents]}
        for ref in node.array.manifests
    ]
    return facts | {
        "node_type": "array",
        "shape": _shape(node, node.array),
        "manifest_refs": refs,
    }


def _shape(node: Node, array: ArrayData) -> list[Facts]:
    document = array_document(node)
    names = array.dimension_names or (None,) * len(document.shape)
    return [
        {
            **({} if name is None else {"name": name}),
            "array_length": length,
            "num_chunks": count,
        }
        for name, length, count in zip(names, document.shape, document.num_chunks, strict=True)
    ]


def _record(record: SnapshotRecord, show: Show) -> Facts:
    parent = {} if record.parent_id is None else {"parent_id": show(record.parent_id)}
    return {
        "id": show(record.id),
        **parent,
        "flushed_at": _time(record.flushed_at),
        "message": record.message,
        "metadata": dict(decode_items(record.metadata, where=REPO_KEY)),
    }


def _update(update: Update) -> Facts:
    facts: Facts = {
        "update_type": event_facts(update.event),
        "updated_at": _time(update.updated_at),
    }
    return facts if update.backup is None else facts | {"backup_path": update.backup}


def _counts(node: NodeId, parts: Iterable[ChunkRefs]) -> Facts:
    kinds = np.concatenate([np.zeros(0, np.uint8), *(refs.kind for refs in parts)])
    counts = {f"num_{name}": int((kinds == kind).sum()) for name, kind in _KINDS.items()}
    return {"node_id": encode_base32(node), "num_chunk_refs": len(kinds), **counts}


def _ids(identities: Iterable[NodeId]) -> list[str]:
    return [encode_base32(identity) for identity in sorted(identities)]


def _time(micros: int) -> str:
    return from_micros(micros).isoformat().replace("+00:00", "Z")
