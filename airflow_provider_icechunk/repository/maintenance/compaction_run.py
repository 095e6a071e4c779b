"""Move small chunks into packed files and commit it without getting into anybody's way.

A chunk that changes while it is moved keeps its new value: before the branch moves, every reference
is compared with the one that was read, and what differs is left out. The transaction log of the
commit is empty, because no value changes: writers that rebase over it find no conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from airflow_provider_icechunk.exceptions import ConflictError, Kind, NotFoundError
from airflow_provider_icechunk.format.ids import ChunkId, NodeId, SnapshotId
from airflow_provider_icechunk.format.references import ChunkRefs, concatenate
from airflow_provider_icechunk.format.snapshot import Node, Snapshot
from airflow_provider_icechunk.format.transactions import TransactionLog
from airflow_provider_icechunk.repository.changes import ChangeSet
from airflow_provider_icechunk.repository.chunks import Wanted
from airflow_provider_icechunk.repository.commit import Flusher
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.leases import Leasehold
from airflow_provider_icechunk.repository.ledgers.base import Moved
from airflow_provider_icechunk.repository.maintenance.compaction import (
    ArrayRefs,
    CompactionRules,
    Group,
    Packed,
    file_count,
    packed_refs,
    plan_groups,
    unchanged,
)
from airflow_provider_icechunk.repository.working_tree import WorkingTree
from airflow_provider_icechunk.storage.base import Put

_TRIES = 20
_READ_AT_ONCE = 8 << 20


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction did, or in a dry run would do."""

    snapshot_id: str | None
    """The commit; `None` if there was nothing to do."""
    chunks: int
    """That moved."""
    bytes: int
    files: int
    """Packed files that hold them now."""
    skipped: int = 0
    """Chunks that changed meanwhile and were left as they are."""

    def as_dict(self) -> dict[str, object]:
        """The result in JSON values."""
        return asdict(self)


def compact(
    engine: Engine,
    branch: str,
    *,
    rules: CompactionRules | None = None,
    message: str = "compact small chunks",
    metadata: Mapping[str, Any] | None = None,
    dry_run: bool = False,
) -> CompactionResult:
    """Put neighbouring small chunks of the head of a branch into packed files, as one commit.

    The old files are garbage once no snapshot that reaches them is left: expire and collect.
    """
    groups = plan_compaction(engine, branch, rules or CompactionRules())
    if dry_run:
        return as_if_moved(groups)
    held = engine.leasehold()
    packed = (move_group(engine, group, held) for group in groups)
    return commit_compaction(engine, branch, packed, held, message=message, metadata=metadata)


def plan_compaction(engine: Engine, branch: str, rules: CompactionRules) -> list[Group]:
    """The groups of chunks that a compaction of a branch would move. Reads manifests only."""
    base = _head(engine, branch)
    tree = WorkingTree(engine, base, read_only=True)
    arrays = [
        ArrayRefs(node.id, path, tree.references(node))
        for path, node in base.nodes.items()
        if node.array is not None
    ]
    return plan_groups(arrays, rules)


def as_if_moved(groups: Sequence[Group]) -> CompactionResult:
    """What moving the groups would report."""
    chunks = sum(len(group.refs) for group in groups)
    return CompactionResult(None, chunks, sum(group.size for group in groups), len(groups))


def move_group(engine: Engine, group: Group, held: Leasehold) -> Packed:
    """Copy the chunks of a group into one new file. Nothing refers to it yet."""
    data = bytearray()
    for part in _parts(group.refs):
        for chunk in engine.reader.read_many(part):
            data += chunk
    identity = ChunkId(engine.new_id())
    held.writing()
    engine.storage.put_many([Put(engine.ledger.layout.chunk(identity), bytes(data))])
    engine.storage.settle()
    return Packed(group, packed_refs(group.refs, identity))


def commit_compaction(
    engine: Engine,
    branch: str,
    packed: Iterable[Packed],
    held: Leasehold,
    *,
    message: str,
    metadata: Mapping[str, Any] | None = None,
) -> CompactionResult:
    """Let the branch refer to the new files, wherever the references are still those that moved."""
    moved = _by_array(packed)
    if not moved:
        return CompactionResult(None, 0, 0, 0)
    engine.conditions.check()
    engine.clock.check()
    flusher = Flusher(engine.assets, engine.settings.splitting, engine.world, held)
    total = sum(len(old) for old, _ in moved.values())
    for _ in range(_TRIES):
        base = _head(engine, branch)
        changes = _still_valid(engine, base, moved)
        rows = [refs for _, refs in changes.edited()]
        chunks = sum(map(len, rows))
        if not chunks:
            return CompactionResult(None, 0, 0, 0, total)
        snapshot = flusher.flush(
            base,
            changes,
            message=message,
            metadata=dict(metadata or {}),
            log=lambda log: TransactionLog(id=log.id),
        )
        move = partial(engine.ledger.commit, branch, base.id, snapshot)
        if isinstance(held.swap(move), Moved):
            held.release()
            size = sum(int(refs.length.sum()) for refs in rows)
            files = file_count(rows)
            return CompactionResult(engine.show(snapshot.id), chunks, size, files, total - chunks)
    raise ConflictError(
        f"branch {branch!r} moved {_TRIES} times while it was compacted; nothing was changed. Try "
        "again when it is quieter",
        kind=Kind.ATTEMPTS_EXHAUSTED,
    )


def _head(engine: Engine, branch: str) -> Snapshot:
    head: SnapshotId | None = engine.ledger.branch(branch)
    if head is None:
        raise NotFoundError(
            f"there is no branch {branch!r} in {engine.storage.location}",
            kind=Kind.BRANCH_NOT_FOUND,
        )
    return engine.assets.snapshot(head)


def _parts(refs: ChunkRefs) -> Iterable[list[Wanted]]:
    part: list[Wanted] = []
    size = 0
    for row, length in enumerate(refs.length.tolist()):
        payload = refs[row]
        assert payload is not None
        part.append(Wanted(payload, 0, length))
        size += length
        if size >= _READ_AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part


def _by_array(packed: Iterable[Packed]) -> dict[NodeId, tuple[ChunkRefs, ChunkRefs]]:
    """References before and after, row by row, of each array."""
    parts: dict[NodeId, list[Packed]] = {}
    for one in packed:
        parts.setdefault(one.group.node_id, []).append(one)
    found = {}
    for node_id, ones in parts.items():
        ones.sort(key=lambda one: one.group.refs.index[0].tolist())
        found[node_id] = (
            concatenate([one.group.refs for one in ones]),
            concatenate([one.refs for one in ones]),
        )
    return found


def _still_valid(
    engine: Engine, base: Snapshot, moved: Mapping[NodeId, tuple[ChunkRefs, ChunkRefs]]
) -> ChangeSet:
    tree = WorkingTree(engine, base, read_only=True)
    nodes: dict[NodeId, Node] = {node.id: node for node in base.nodes.values()}
    changes = ChangeSet()
    for node_id, (old, new) in moved.items():
        node = nodes.get(node_id)
        if node is None or node.array is None:
            continue
        same = unchanged(tree.references(node), old)
        if same.any():
            changes.edits(node).set_many(new.take(same))
    return changes
