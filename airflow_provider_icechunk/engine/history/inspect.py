"""Stored files as JSON values in the official shapes, for inspection."""

from __future__ import annotations

import json
from collections.abc import Iterable, KeysView
from functools import reduce
from typing import Any

import numpy as np

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, RefKind
from airflow_provider_icechunk.engine.format.codec import DEFAULT_LIMITS, FileType
from airflow_provider_icechunk.engine.format.detect import REPO_KEY
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import (
    ManifestId,
    NodeId,
    SnapshotId,
    format_id,
    format_node_id,
    parse_id,
)
from airflow_provider_icechunk.engine.format.model import (
    ArrayData,
    Manifest,
    Node,
    Snapshot,
    TransactionLog,
)
from airflow_provider_icechunk.engine.format.v2.locations import location_compression
from airflow_provider_icechunk.engine.format.v2.repo import (
    OperationsEntry,
    RepoInfo,
    SnapshotRecord,
    decode_items,
)
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document
from airflow_provider_icechunk.engine.refs import v2_refs
from airflow_provider_icechunk.engine.world import from_micros, utc_text
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, NotFoundError

from .ancestry import ManifestFileInfo, required_log
from .diff import merge_logs
from .operations import event_facts
from .versions import parse_snapshot_id

Facts = dict[str, Any]


class Inspected(str):
    """JSON text, as the official 1.x returns it, that can also be indexed by name, as in 2.x."""

    __slots__ = ("facts",)

    facts: Facts

    def __getitem__(self, key: Any) -> Any:
        return self.facts[key] if isinstance(key, str) else super().__getitem__(key)

    def __contains__(self, key: Any) -> bool:
        return key in self.facts or super().__contains__(key)

    def keys(self) -> KeysView[str]:
        """Names of the facts."""
        return self.facts.keys()


def inspect_snapshot(core: Core, snapshot_id: str, *, pretty: bool) -> Inspected:
    """One snapshot as JSON."""
    snapshot = core.objects.snapshot(parse_snapshot_id(core, snapshot_id))
    header = _header(_file(core, core.refs.layout.snapshot(snapshot.id)))
    facts = snapshot_facts(snapshot, core.refs.parent(snapshot), header, core.generation)
    indent, separators = (2, None) if pretty else (None, (",", ":"))
    text = Inspected(json.dumps(facts, indent=indent, separators=separators, ensure_ascii=False))
    text.facts = facts
    return text


def inspect_repo_info(core: Core) -> Facts:
    """The state of a repository of generation `2`."""
    refs = v2_refs(core.refs, "the state of a repository in one file")
    header = _header(_file(core, REPO_KEY))
    return {"header": header, **repo_facts(refs.info(), core.generation)}


def inspect_manifest(core: Core, manifest_id: str) -> Facts:
    """How many chunks of which kind a manifest lists for each array."""
    identity = _manifest_id(core, manifest_id)
    key = core.refs.layout.manifest(identity)
    data = _file(core, key)
    manifest = core.refs.codec.decode_manifest(data, identity, where=key)
    unpacked = _unpacked(data, key)
    compression: Facts = {"uses_location_compression": False, "num_compressed_refs": 0}
    if core.generation.compresses_locations:
        size, count = location_compression(unpacked, where=key)
        compression = {
            "uses_location_compression": size is not None,
            "num_compressed_refs": count,
            **({} if size is None else {"dictionary_size_bytes": size}),
        }
    return {
        "id": core.format_id(identity),
        "header": _header(data),
        "size_bytes": len(unpacked),
        **manifest_facts(manifest),
        "compression": compression,
    }


def inspect_transaction_log(core: Core, snapshot_id: str) -> Facts:
    """What one commit changed, by ids of nodes.

    If expiration removed snapshots before it, their logs are included.
    """
    identity = parse_snapshot_id(core, snapshot_id)
    own = required_log(core.objects, core.objects.snapshot(identity))
    pruned = core.refs.pruned_logs(identity)
    found = {one: core.objects.log(one) for one in pruned}
    logs = [log for log in found.values() if log is not None]
    facts = log_facts(reduce(merge_logs, [*logs, own]))
    facts["header"] = None
    if core.generation.keeps_logs:
        facts["header"] = _header(_file(core, core.refs.layout.transaction(own.id)))
    if pruned:
        facts["synthetic_composite"] = {
            "note": "snapshots below this one expired; their logs are part of this one",
            "merged_pruned_ancestor_tx_logs": [core.format_id(log.id) for log in logs],
            "missing_tx_logs": [core.format_id(one) for one in pruned if found[one] is None],
        }
    return facts


def list_manifest_files(core: Core, snapshot_id: str) -> list[ManifestFileInfo]:
    """The manifest files that a snapshot uses."""
    identity = parse_snapshot_id(core, snapshot_id)
    files = core.objects.snapshot(identity).manifest_files.values()
    return [
        ManifestFileInfo(core.format_id(file.id), file.size_bytes, file.num_chunk_refs)
        for file in files
    ]


def _file(core: Core, key: str) -> bytes:
    found = core.storage.get(key)
    if found is None:
        raise NotFoundError(
            f"there is no {key} in {core.storage.location}", kind=Kind.OBJECT_MISSING
        )
    return found.data


def snapshot_facts(
    snapshot: Snapshot, parent: SnapshotId | None, header: Facts | None, generation: Generation
) -> Facts:
    """Identity, manifests and nodes of a snapshot."""
    return {
        "id": format_id(generation, snapshot.id),
        "header": header,
        "parent_id": None if parent is None else format_id(generation, parent),
        "flushed_at": _time(snapshot.flushed_at),
        "commit_message": snapshot.message,
        "metadata": dict(snapshot.metadata),
        "manifests": [
            {
                "id": format_id(generation, file.id),
                "size_bytes": file.size_bytes,
                "num_chunk_refs": file.num_chunk_refs,
            }
            for file in snapshot.manifest_files.values()
        ],
        "nodes": [_node(node, generation) for node in snapshot.nodes.values()],
    }


def repo_facts(info: RepoInfo, generation: Generation) -> Facts:
    """The state of a repository of generation `2`."""
    facts: Facts = {
        "spec_version": "2.0",
        "branches": {
            name: format_id(generation, tip) for name, tip in sorted(info.branches.items())
        },
        "tags": {name: format_id(generation, tip) for name, tip in sorted(info.tags.items())},
        "deleted_tags": sorted(info.deleted_tags),
        "snapshots": [_record(record, generation) for record in info.snapshots.values()],
        "metadata": dict(decode_items(info.metadata, where=REPO_KEY)),
        "latest_updates": [_update(update) for update in info.updates],
    }
    if info.before_updates is not None:
        facts["repo_before_updates"] = info.before_updates
    return facts


def manifest_facts(manifest: Manifest) -> Facts:
    """The number of references of each kind, in total and per array."""
    arrays = [_counts(node, parts) for node, parts in manifest.arrays.items()]
    total = {kind: sum(one[f"num_{kind}"] for one in arrays) for kind in _KINDS}
    return {
        "num_arrays": len(arrays),
        "total_chunk_refs": sum(total.values()),
        **{f"total_{kind}": count for kind, count in total.items()},
        "arrays": arrays,
    }


def log_facts(log: TransactionLog) -> Facts:
    """The contents of a log, with ids as texts."""
    sets: Facts = {name: _ids(getattr(log, name)) for name in _SETS}
    return {
        **sets,
        "updated_chunks": [
            {"node_id": format_node_id(node), "chunks": rows.tolist()}
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


def _manifest_id(core: Core, text: str) -> ManifestId:
    try:
        return ManifestId(parse_id(core.generation, text))
    except InvalidInputError as error:
        raise InvalidInputError(f"invalid manifest id: {error}") from None


def _header(data: bytes) -> Facts | None:
    """What a file's header says; `None` in generations without headers."""
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


def _node(node: Node, generation: Generation) -> Facts:
    facts: Facts = {"id": format_node_id(node.id), "path": node.path}
    if node.array is None:
        return facts | {"node_type": "group"}
    refs = [
        {
            "id": format_id(generation, ref.id),
            "extents": ref.extents and [list(box) for box in ref.extents],
        }
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


def _record(record: SnapshotRecord, generation: Generation) -> Facts:
    parent = (
        {} if record.parent_id is None else {"parent_id": format_id(generation, record.parent_id)}
    )
    return {
        "id": format_id(generation, record.id),
        **parent,
        "flushed_at": _time(record.flushed_at),
        "message": record.message,
        "metadata": dict(decode_items(record.metadata, where=REPO_KEY)),
    }


def _update(update: OperationsEntry) -> Facts:
    facts: Facts = {
        "update_type": event_facts(update.event),
        "updated_at": _time(update.updated_at),
    }
    return facts if update.backup is None else facts | {"backup_path": update.backup}


def _counts(node: NodeId, parts: Iterable[ChunkRefs]) -> Facts:
    kinds = np.concatenate([np.zeros(0, np.uint8), *(refs.kind for refs in parts)])
    counts = {f"num_{name}": int((kinds == kind).sum()) for name, kind in _KINDS.items()}
    return {"node_id": format_node_id(node), "num_chunk_refs": len(kinds), **counts}


def _ids(identities: Iterable[NodeId]) -> list[str]:
    return [format_node_id(identity) for identity in sorted(identities)]


def _time(micros: int) -> str:
    return utc_text(from_micros(micros))
