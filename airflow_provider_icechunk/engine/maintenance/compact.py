"""Pack neighbouring small chunks into larger files: the plan and its execution.

Chunks keep their bytes and their positions; only the files that hold them change. A chunk written
in the meantime keeps its new value: before the branch moves, every reference is compared with the
one that was read, and those that differ are left out. The transaction log of the commit is empty,
because no value changes: writers that rebase over it find no conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.commit.commit import take_back
from airflow_provider_icechunk.engine.commit.writer import CommitWriter
from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    RefKind,
    concatenate,
    sort_keys,
)
from airflow_provider_icechunk.engine.format.ids import ChunkId, NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.model import Node, Snapshot, TransactionLog
from airflow_provider_icechunk.engine.leases import Leasehold
from airflow_provider_icechunk.engine.objects.chunk_reader import Wanted
from airflow_provider_icechunk.engine.refs.base import Moved
from airflow_provider_icechunk.engine.retry import at_once
from airflow_provider_icechunk.engine.storage.base import Put
from airflow_provider_icechunk.engine.tree.changes import ChangeSet
from airflow_provider_icechunk.engine.tree.tree import WorkingTree
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    InvalidInputError,
    Kind,
    NotFoundError,
)


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """Which chunks are small, and the size of packed files."""

    small: int = 1 << 20
    """Native chunks of fewer bytes are moved."""
    target: int = 64 << 20
    """Size of a packed file."""
    enough: int = 4 << 20
    """A file with at least this many bytes in use is left alone."""
    inline_from: int | None = None
    """Inline chunks of at least this size are moved as well; by default none."""

    @classmethod
    def of(cls, given: Mapping[str, int | None]) -> CompactionRules:
        """Rules by name; `None` means the default."""
        known = [rule.name for rule in fields(cls)]
        if unknown := given.keys() - set(known):
            raise InvalidInputError(
                f"{min(unknown)!r} is not a compaction rule; the rules are: {', '.join(known)}"
            )
        return cls(**{name: value for name, value in given.items() if value is not None})

    def __post_init__(self) -> None:
        if self.small < 1 or self.target < self.small or self.enough > self.target:
            raise InvalidInputError(
                "compaction needs 0 < small <= target and enough <= target, in bytes"
            )


@dataclass(frozen=True, slots=True, eq=False)
class ArrayRefs:
    """All references of one array."""

    node_id: NodeId
    path: str
    refs: ChunkRefs


@dataclass(frozen=True, slots=True, eq=False)
class ChunkGroup:
    """Chunks of one array that are moved to one file, in the order of the array."""

    node_id: NodeId
    path: str
    refs: ChunkRefs

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return int(self.refs.length.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A group and its references in its new file."""

    group: ChunkGroup
    refs: ChunkRefs


def plan_groups(arrays: Sequence[ArrayRefs], rules: CompactionRules) -> list[ChunkGroup]:
    """The groups that are worth a separate file."""
    files, used = _usage(arrays)
    return [
        group
        for array in arrays
        for group in _cut(array, _movable(array.refs, files, used, rules), rules.target)
        if _saves_files(group.refs)
    ]


def packed_refs(refs: ChunkRefs, identity: ChunkId) -> ChunkRefs:
    """References to the same chunks, contiguous in one file."""
    ends = np.cumsum(refs.length, dtype=np.uint64)
    nowhere = np.broadcast_to(np.uint64(0), (len(refs), 2))
    return replace(
        refs,
        kind=np.broadcast_to(np.uint8(RefKind.NATIVE), (len(refs),)),
        chunk_id=np.broadcast_to(np.frombuffer(identity, np.uint8), (len(refs), len(identity))),
        offset=ends - refs.length,
        span=nowhere,
        etag=nowhere,
        modified=np.broadcast_to(np.uint32(0), (len(refs),)),
        heap=b"" if refs.extra is None else refs.heap,
    )


def unchanged(current: ChunkRefs, planned: ChunkRefs) -> NDArray[np.bool_]:
    """Which planned rows are still the references of the array."""
    if not len(current) or current.ndim != planned.ndim:
        return np.zeros(len(planned), np.bool_)
    now, then = sort_keys(current.index, planned.index)
    place = np.minimum(np.searchsorted(now, then), len(now) - 1)
    found = current.take(place)
    same = np.asarray(now[place] == then)
    same &= (found.kind == planned.kind) & (found.length == planned.length)
    same &= found.offset == planned.offset
    native = planned.kind == RefKind.NATIVE
    if found.chunk_id.shape == planned.chunk_id.shape:
        same &= ~native | (found.chunk_id == planned.chunk_id).all(axis=1)
    else:
        same &= ~native
    for row in np.flatnonzero(same & ~native).tolist():
        same[row] = found[row] == planned[row]
    return same


def file_count(parts: Sequence[ChunkRefs]) -> int:
    """The number of chunk files that native references of several arrays name."""
    return len(_usage([ArrayRefs(NodeId(b""), "", refs) for refs in parts])[0])


def _usage(arrays: Sequence[ArrayRefs]) -> tuple[NDArray[np.bytes_], NDArray[np.uint64]]:
    """Chunk files in use, sorted, and the used bytes of each: arrays may share a file."""
    parts = [array.refs.take(array.refs.kind == np.uint8(RefKind.NATIVE)) for array in arrays]
    parts = [part for part in parts if len(part)]
    if not parts:
        return np.zeros(0, "S12"), np.zeros(0, np.uint64)
    ids = np.concatenate([_ids(part.chunk_id) for part in parts])
    lengths = np.concatenate([part.length for part in parts])
    files, inverse = np.unique(ids, return_inverse=True)
    used = np.zeros(len(files), np.uint64)
    np.add.at(used, inverse.reshape(-1), lengths)
    return files, used


def _movable(
    refs: ChunkRefs, files: NDArray[np.bytes_], used: NDArray[np.uint64], rules: CompactionRules
) -> NDArray[np.bool_]:
    move = (refs.kind == RefKind.NATIVE) & (refs.length < rules.small)
    rows = np.flatnonzero(move)
    if len(rows):
        place = np.searchsorted(files, _ids(refs.chunk_id[rows]))
        move[rows] = used[place] < rules.enough
    if rules.inline_from is not None:
        move |= (refs.kind == RefKind.INLINE) & (refs.length >= rules.inline_from)
    return np.asarray(move)


def _cut(array: ArrayRefs, move: NDArray[np.bool_], target: int) -> list[ChunkGroup]:
    rows = array.refs.take(move)
    if not len(rows):
        return []
    starts = np.cumsum(rows.length, dtype=np.uint64) - rows.length
    numbers = starts // np.uint64(target)
    borders = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(rows)]
    return [
        ChunkGroup(array.node_id, array.path, rows.take(slice(start, stop)))
        for start, stop in pairwise(borders)
    ]


def _saves_files(refs: ChunkRefs) -> bool:
    """Whether moving saves a file: chunks that already share one would only get another."""
    native = refs.kind == RefKind.NATIVE
    if not native.all():
        return len(refs) > 1
    return bool((refs.chunk_id != refs.chunk_id[0]).any())


def _ids(rows: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    width = rows.shape[1]
    return np.ascontiguousarray(rows).view(f"S{width}").reshape(len(rows))


_SWAPS = at_once(20)
_READ_AT_ONCE = 8 << 20

COMPACTION_KEY = "compaction"
"""Snapshot metadata with the numbers of a compaction."""


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction did, or would do in a dry run."""

    snapshot_id: str | None
    """The commit; `None` if there was nothing to do."""
    chunks: int
    """Moved chunks."""
    bytes: int
    files: int
    """Packed files that now hold them."""
    skipped: int = 0
    """Chunks that have changed and were not moved."""

    def as_dict(self) -> dict[str, object]:
        """The result in JSON values."""
        return asdict(self)

    def counts(self) -> dict[str, Any]:
        """Only the numbers."""
        return {name: value for name, value in asdict(self).items() if name != "snapshot_id"}


def counts_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a compaction from the metadata of its snapshot."""
    kept = metadata.get(COMPACTION_KEY)
    return dict(kept) if isinstance(kept, Mapping) else {}


def compact(
    core: Core,
    branch: str,
    *,
    rules: CompactionRules | None = None,
    message: str = "compact small chunks",
    metadata: Mapping[str, Any] | None = None,
    dry_run: bool = False,
) -> CompactionResult:
    """Move neighbouring small chunks of the head of a branch to packed files, as one commit.

    The old files become garbage when no snapshot reaches them any more: expire and collect.
    """
    groups = plan_compaction(core, branch, rules or CompactionRules())
    if dry_run:
        return as_if_moved(groups)
    held = core.leasehold()
    packed = (move_group(core, group, held) for group in groups)
    return commit_compaction(core, branch, packed, held, message=message, metadata=metadata)


def plan_compaction(core: Core, branch: str, rules: CompactionRules) -> list[ChunkGroup]:
    """The groups of chunks that a compaction would move. Reads only manifests."""
    base = _head(core, branch)
    tree = WorkingTree(core, base, read_only=True)
    arrays = [
        ArrayRefs(node.id, path, tree.references(node))
        for path, node in base.nodes.items()
        if node.array is not None
    ]
    return plan_groups(arrays, rules)


def as_if_moved(groups: Sequence[ChunkGroup]) -> CompactionResult:
    """The result that moving the groups would give."""
    chunks = sum(len(group.refs) for group in groups)
    return CompactionResult(None, chunks, sum(group.size for group in groups), len(groups))


def move_group(core: Core, group: ChunkGroup, held: Leasehold) -> Packed:
    """Copy the chunks of a group to a new file. Nothing refers to it yet."""
    data = bytearray()
    for part in _parts(group.refs):
        for chunk in core.reader.read_many(part):
            data += chunk
    identity = ChunkId(core.new_id())
    held.writing()
    core.storage.put_many([Put(core.refs.layout.chunk(identity), bytes(data))])
    core.storage.settle()
    return Packed(group, packed_refs(group.refs, identity))


def commit_compaction(
    core: Core,
    branch: str,
    packed: Iterable[Packed],
    held: Leasehold,
    *,
    message: str,
    metadata: Mapping[str, Any] | None = None,
) -> CompactionResult:
    """Make the branch refer to the new files, for references that have not changed."""
    moved = _by_array(packed)
    if not moved:
        return CompactionResult(None, 0, 0, 0)
    core.conditions.check()
    core.clock.check()
    writer = CommitWriter(core.objects, core.settings.splitting, core.world, held)
    total = sum(len(old) for old, _ in moved.values())
    for _ in _SWAPS.attempts():
        base = _head(core, branch)
        changes = _still_valid(core, base, moved)
        rows = [refs for _, refs in changes.edited()]
        chunks = sum(map(len, rows))
        if not chunks:
            return CompactionResult(None, 0, 0, 0, total)
        size = sum(int(refs.length.sum()) for refs in rows)
        done = CompactionResult(None, chunks, size, file_count(rows), total - chunks)
        snapshot = writer.store(
            base,
            changes,
            message=message,
            metadata={**(metadata or {}), COMPACTION_KEY: done.counts()},
            log=lambda log: TransactionLog(id=log.id),
        )
        move = partial(core.refs.commit, branch, base.id, snapshot)
        undo = partial(take_back, core, branch, base.id, snapshot.id)
        if isinstance(held.swap(move, undo), Moved):
            held.release()
            return replace(done, snapshot_id=core.format_id(snapshot.id))
    raise ConflictError(
        f"branch {branch!r} moved {_SWAPS.tries} times while it was compacted; nothing was "
        "changed. Try again when there are fewer commits",
        kind=Kind.ATTEMPTS_EXHAUSTED,
    )


def _head(core: Core, branch: str) -> Snapshot:
    head: SnapshotId | None = core.refs.branch(branch)
    if head is None:
        raise NotFoundError(
            f"branch {branch!r} does not exist in {core.storage.location}",
            kind=Kind.BRANCH_NOT_FOUND,
        )
    return core.objects.snapshot(head)


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
    core: Core, base: Snapshot, moved: Mapping[NodeId, tuple[ChunkRefs, ChunkRefs]]
) -> ChangeSet:
    tree = WorkingTree(core, base, read_only=True)
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
