"""A rebase that merges growth, attributes, and cells of shared chunks.

Pure, apart from `settle`. What is merged gives the tree, the documents and the values of both
serial orders; everything else is a conflict:

- both created the same node, with documents that merge: ours becomes a change of theirs;
- documents of one node are merged by key, and a shape that both only enlarged is the larger one;
- chunks written beside growth or other attributes collide with nothing;
- chunks that both wrote are merged by cells. While commits are passed, such a chunk is only noted,
  with the boxes in which the others wrote. When the session has reached the head, `settle` reads
  each of them once, lays our cells over those of the head and stores the result.

Our cells are those that were recorded, and otherwise all cells of the chunk. Where they meet cells
of others, both must be equal bit by bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from threading import Lock
from typing import Any, Literal, Protocol

import numpy as np

from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.format.chunk_refs import Index, Payload, common_rows
from airflow_provider_icechunk.engine.format.ids import NodeId
from airflow_provider_icechunk.engine.format.model import Node, Snapshot
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document, node_from_document
from airflow_provider_icechunk.engine.objects.chunk_reader import Wanted
from airflow_provider_icechunk.engine.tree.boxes import (
    Box,
    Boxes,
    chunk_box,
    common,
    inside,
    moved,
    shown,
)
from airflow_provider_icechunk.engine.tree.changes import ChangeSet, Untouched
from airflow_provider_icechunk.engine.tree.tree import WorkingTree
from airflow_provider_icechunk.exceptions import InvalidInputError, VirtualAccessDeniedError

from .conflicts import (
    BasicConflictSolver,
    Collision,
    Conflict,
    ConflictDetector,
    ConflictSolver,
    ConflictType,
    Theirs,
    VersionSelection,
    find_conflicts,
    have_same_chunks,
    over_their_nodes,
)
from .documents import Difference, encoded, grew_only, is_same, merge_documents
from .records import WrittenRecord, believed

_MOST_AT_ONCE = 8
_MEMORY = 256 << 20
"""About this many bytes of decoded chunks are held at a time; one chunk is always allowed."""
_HELD = 64 << 20
"""Merged chunks up to this many bytes wait for the last read of the branch; more are stored."""

CellRule = Literal["recorded", "changed"]
LabelRule = Literal["fail", "replace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSolver:
    """Merges two commits wherever the result does not depend on their order.

    Cells that both wrote, and chunks that both wrote without a record, merge only if they are equal
    bit by bit: then both orders give the same result. Everything else there is a conflict.

    :param cells: how cells of a chunk that both wrote are told apart. `recorded` believes what
        both commits recorded (`Session.recording`). `changed` also compares chunks without a record
        with what both began with: it cannot detect a cell that was rewritten with the same value,
        so such a write is lost if the other side changed the cell.
    :param on_existing_label: what to do about a label that both sides appended to a dimension
        without steps. It is never there twice. `fail` merges what both wrote at this label like all
        cells that both wrote, so that different values are a conflict; with `replace` the values of
        the later commit replace those of the earlier one.
    """

    cells: CellRule = "recorded"
    on_existing_label: LabelRule = "fail"

    def __post_init__(self) -> None:
        if self.cells not in ("recorded", "changed"):
            raise InvalidInputError(f"cells must be 'recorded' or 'changed', not {self.cells!r}")
        if self.on_existing_label not in ("fail", "replace"):
            raise InvalidInputError(
                f"on_existing_label must be 'fail' or 'replace', not {self.on_existing_label!r}"
            )

    def solve(self, conflict: Conflict, ours: ChangeSet) -> bool:
        """Never: a conflict alone does not say enough; `merge_step` compares both trees."""
        del conflict, ours
        return False


def solver_for(on_conflict: str, on_existing_label: LabelRule = "fail") -> ConflictSolver:
    """The solver for this choice, which leaves every other conflict to the caller."""
    match on_conflict:
        case "merge":
            return MergeSolver(on_existing_label=on_existing_label)
        case "fail":
            return ConflictDetector()
        case "ours":
            return BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs)
        case "theirs":
            return BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs)
    raise InvalidInputError(
        f"on_conflict must be 'merge', 'fail', 'ours' or 'theirs', not {on_conflict!r}"
    )


class ChunkCells(Protocol):
    """Turns bytes of chunks into cells and back. All boxes are relative to the chunk."""

    def refusal(self, document: bytes) -> str | None:
        """Why chunks of this array are not merged; `None` if they can be."""
        ...

    def lay_over(
        self,
        document: bytes,
        theirs: bytes | None,
        ours: bytes | None,
        boxes: Boxes,
        equal: Boxes,
    ) -> bytes | Box:
        """Their chunk with our cells in `boxes`; or a box of `equal` in which both differ."""
        ...

    def join_changes(
        self, document: bytes, base: bytes | None, theirs: bytes | None, ours: bytes | None
    ) -> bytes | Box:
        """Their chunk with the cells that we changed; or a box with cells both changed."""
        ...

    def gather(self, document: bytes, parts: Sequence[tuple[bytes | None, Box, Box]]) -> bytes:
        """A chunk of cells from other chunks: bytes, place there, place here; fill elsewhere."""
        ...

    def values(self, document: bytes, data: bytes | None) -> list[Any]:
        """The cells of a chunk with one dimension, as plain values."""
        ...


@dataclass(frozen=True, slots=True)
class CellClaim:
    """Where another commit wrote into a chunk."""

    commit: Snapshot
    boxes: Boxes | None
    """`None`: anywhere."""


@dataclass(frozen=True, slots=True)
class CellPart:
    """Cells of a chunk of ours that belong elsewhere. Both boxes are relative to their chunks."""

    payload: Payload | None
    source: Box
    target: Box


@dataclass(frozen=True, slots=True)
class Dispute:
    """A chunk that we wrote and others wrote."""

    before: Node | None
    """The array as both sides began; `None` if both created it, or the chunk was not there yet."""
    claims: tuple[CellClaim, ...] = ()
    parts: tuple[CellPart, ...] | None = None
    """Where our cells are; `None`: in the chunk that we wrote, at their own positions."""
    note: str = ""
    """The message if it cannot be settled."""


Disputes = dict[tuple[NodeId, Index], Dispute]


@dataclass(frozen=True, slots=True)
class Merged:
    """The session can be based on their commit, if the disputes can be settled."""

    changes: ChangeSet
    disputes: Disputes


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One commit of the other side, with what it recorded."""

    theirs: Theirs
    record: WrittenRecord | None


def merge_step(ours: ChangeSet, base: Snapshot, step: RecordedStep) -> Merged | Collision:
    """Move our changes over one commit of the other side."""
    merge = _Merge(ours.copy(), base, step)
    merge.adopt()
    conflicts = find_conflicts(merge.changes, merge.known, step.theirs)
    refused = list(merge.refused)
    named = {conflict.node_id for conflict in refused}
    for conflict in conflicts:
        why = merge.solve(conflict)
        if why is not None and conflict.node_id not in named:
            refused.append(replace(conflict, detail=why))
    refused += merge.cut_off()
    if refused:
        return Collision(tuple(refused))
    return Merged(over_their_nodes(merge.changes, step.theirs), merge.disputes)


@dataclass(slots=True)
class _Merge:
    changes: ChangeSet
    base: Snapshot
    step: RecordedStep
    known: Snapshot = field(init=False)
    """The base, with nodes that both sides created as they have them."""
    refused: list[Conflict] = field(default_factory=list)
    disputes: Disputes = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = self.base

    def adopt(self) -> None:
        """Make nodes that both sides created changes of theirs."""
        if not self.changes.created:
            return
        log, after = self.step.theirs.log, self.step.theirs.after
        created = log.new_arrays | log.new_groups
        adopted: dict[str, Node] = {}
        for path, node in list(self.changes.created.items()):
            existing = after.nodes.get(path)
            if existing is None or existing.id not in created or path in self.base.nodes:
                continue
            why = self._adopt(node, existing)
            if why is None:
                adopted[path] = existing
            else:
                kind = ConflictType.NewNodeConflictsWithExistingNode
                self.refused.append(Conflict(kind, path, node.id, detail=why))
        if adopted:
            self.known = replace(self.base, nodes={**self.base.nodes, **adopted})

    def _adopt(self, node: Node, existing: Node) -> str | None:
        if node.is_group is not existing.is_group:
            return "one side created a group there, the other an array"
        why = self._merge_into(existing, None, node)
        if why is None:
            del self.changes.created[node.path]
            edits = self.changes.chunks.pop(node.id, None)
            if edits is not None:
                self.changes.chunks[existing.id] = edits
        return why

    def _merge_into(self, now: Node, before: Node | None, node: Node) -> str | None:
        """Adapt our document to their node; returns why not if that is impossible."""
        theirs = _parsed(now)
        merged = merge_documents(None if before is None else _parsed(before), _parsed(node), theirs)
        if isinstance(merged, list):
            return _listed(merged)
        if is_same(merged, theirs):
            self.changes.updated.pop(now.id, None)
            return None
        manifests = now.array.manifests if now.array else ()
        made = node_from_document(now.id, now.path, encoded(merged), manifests, rectilinear=True)
        self.changes.updated[now.id] = replace(made, extra=now.extra)
        return None

    def solve(self, conflict: Conflict) -> str | None:
        """Decide one conflict; returns why not if that is impossible."""
        match conflict.conflict_type:
            case ConflictType.ZarrMetadataDoubleUpdate:
                return self._documents(conflict)
            case ConflictType.ChunksUpdatedInUpdatedArray:
                return self._beside(conflict)
            case ConflictType.ChunkDoubleUpdate:
                return self._note(conflict)
        return ""

    def _documents(self, conflict: Conflict) -> str | None:
        before, now = self._before(conflict), self._now(conflict)
        if before is None or now is None:
            return ""
        return self._merge_into(now, before, self.changes.updated[conflict.node_id])

    def _beside(self, conflict: Conflict) -> str | None:
        """One side wrote chunks while the other changed the document."""
        before, now = self._before(conflict), self._now(conflict)
        if before is None or now is None:
            return ""
        mine = self.changes.updated.get(conflict.node_id, before)
        for node in (mine, now):
            if not have_same_chunks(before, node):
                return "one side wrote chunks, the other changed what their bytes mean"
            if not grew_only(_shape(before), _shape(node)):
                return f"one side wrote chunks, the other cut the array to {_shape(node)}"
        return None

    def _note(self, conflict: Conflict) -> str | None:
        now = self._now(conflict)
        assert conflict.chunks is not None
        if now is None or now.array is None:
            return ""
        document = array_document(now)
        if document.chunk_counts is not None:
            return "chunks of different sizes are not merged"
        written = self.step.theirs.log.updated_chunks[conflict.node_id]
        boxes = believed(self.step.record, now, written)
        before = self.base.nodes.get(now.path)
        before = before if before is not None and before.id == now.id else None
        claim = CellClaim(self.step.theirs.after, boxes)
        for index in map(tuple, conflict.chunks.tolist()):
            self.disputes[conflict.node_id, index] = Dispute(before, (claim,))
        return None

    def cut_off(self) -> Iterator[Conflict]:
        """Their chunks with cells outside an array that we shrank."""
        written = self.step.theirs.log.updated_chunks
        for node_id, node in self.changes.updated.items():
            before = self.known.nodes.get(node.path)
            if node.array is None or before is None or node_id not in written:
                continue
            if grew_only(_shape(before), _shape(node)):
                continue
            document, index = array_document(node), written[node_id].astype(np.int64)
            if index.shape[1] != len(document.shape):
                continue
            ends = (index + 1) * np.array(document.chunk_shape, np.int64)
            if (ends > np.array(document.shape, np.int64)).any():
                kind = ConflictType.ChunksUpdatedInUpdatedArray
                why = f"this session cut it to {_shape(node)}, the other wrote beyond"
                yield Conflict(kind, node.path, node_id, detail=why)

    def _before(self, conflict: Conflict) -> Node | None:
        return _with_id(self.known.nodes.get(conflict.path), conflict.node_id)

    def _now(self, conflict: Conflict) -> Node | None:
        return _with_id(self.step.theirs.after.nodes.get(conflict.path), conflict.node_id)


def add_disputes(known: Disputes, more: Disputes) -> Disputes:
    """Disputes of one more commit; the first one determines the common base."""
    joined = dict(known)
    for key, dispute in more.items():
        old = joined.get(key)
        claims = () if old is None else old.claims
        joined[key] = Dispute((old or dispute).before, claims + dispute.claims)
    return joined


def disputes_with_own(
    ours: ChangeSet,
    base: Snapshot,
    commit: Snapshot,
    touched: Mapping[NodeId, Any],
    record: WrittenRecord | None,
) -> Disputes:
    """Chunks that an earlier commit of the same work wrote as well: our cells win there.

    Chunks of which we wrote every cell stay as they are, and without records on both sides all do.
    """
    found: Disputes = {}
    nodes = {node.id: node for node in commit.nodes.values() if node.id in ours.chunks}
    for node_id, refs in ours.edited():
        node, written, boxes = nodes.get(node_id), touched.get(node_id), ours.chunks[node_id].boxes
        if node is None or written is None or boxes is None:
            continue
        if believed(record, node, written) is None:
            continue
        before = _with_id(base.nodes.get(node.path), node_id)
        both = refs.index[common_rows(refs.index, written)]
        shared = both[~inside(boxes, array_document(node), both)]
        found |= {(node_id, index): Dispute(before) for index in map(tuple, shared.tolist())}
    return found


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A dispute in which both sides hold different values."""

    commit: Snapshot | None
    conflict: Conflict


def settle(
    tree: WorkingTree,
    disputes: Disputes,
    cells: Callable[[], ChunkCells],
    solver: MergeSolver,
    before_storing: Callable[[], None] | None = None,
) -> Unresolved | None:
    """Merge the chunks in dispute with those of the current base.

    Each is read once, and a few are in memory at a time. Nothing is changed if one cannot be
    settled. The caller holds the lock of the tree.

    :param before_storing: called when all are merged, and raises if they are no longer needed.
    """
    if not disputes:
        return None
    nodes = {n.id: n for n in (*tree.base.nodes.values(), *tree.changes.created.values())}
    by_array: dict[NodeId, list[tuple[Index, Dispute]]] = {}
    for (node_id, index), dispute in disputes.items():
        by_array.setdefault(node_id, []).append((index, dispute))
    codecs = cells()
    results: list[tuple[NodeId, Index, Payload | bytes | None]] = []
    room = _Room()
    for node_id, items in by_array.items():
        node = nodes[node_id]
        work = _Settling(tree, node, codecs, solver, room)
        refusal = codecs.refusal(node.user_data)
        if refusal is not None:
            return work.refuse(items[0][1], [index for index, _ in items], refusal)
        for (index, _), made in zip(items, run_all(work, items, at_once=work.at_once), strict=True):
            if isinstance(made, Unresolved):
                return made
            results.append((node_id, index, made))
    if before_storing is not None:
        before_storing()
    waiting = [one for _, _, one in results if isinstance(one, bytes)]
    stored = iter(run_all(tree.writer.write, waiting, at_once=_MOST_AT_ONCE))
    for node_id, index, one in results:
        edits = tree.changes.chunks[node_id]
        edits.set(index, next(stored) if isinstance(one, bytes) else one, edits.boxes)
    return None


class _Room:
    """Memory for merged chunks that may not have to be stored."""

    def __init__(self) -> None:
        self._left = _HELD
        self._lock = Lock()

    def takes(self, size: int) -> bool:
        """Reserve this many bytes; returns whether there was room."""
        with self._lock:
            fits = size <= self._left
            self._left -= size if fits else 0
        return fits


@dataclass(frozen=True, slots=True)
class _Settling:
    """Settles disputes about one array. Called in threads, which must not take the tree's lock."""

    tree: WorkingTree
    node: Node
    cells: ChunkCells
    solver: MergeSolver
    room: _Room

    @property
    def at_once(self) -> int:
        # Three chunks of at most 16 bytes for each cell.
        size = 48 * prod(array_document(self.node).chunk_shape)
        return max(1, min(_MOST_AT_ONCE, _MEMORY // max(1, size)))

    def __call__(self, item: tuple[Index, Dispute]) -> Payload | bytes | Unresolved | None:
        index, dispute = item
        edits = self.tree.changes.chunks[self.node.id]
        stored = self._stored(self.node, index)
        try:
            if dispute.parts is None:
                edit = edits.find(index)
                assert not isinstance(edit, Untouched)
                if edit == stored:
                    return edit
                ours = self._bytes(edit)
            else:
                ours = self._gathered(dispute.parts)
            theirs = self._bytes(stored)
            made = self._merge(index, dispute, edits.boxes, ours, theirs)
        except VirtualAccessDeniedError as error:
            return self.refuse(dispute, [index], str(error))
        if isinstance(made, bytes):
            return made if self.room.takes(len(made)) else self.tree.writer.write(made)
        return self._differ(index, dispute, edits.boxes, made)

    def _merge(
        self,
        index: Index,
        dispute: Dispute,
        boxes: Boxes | None,
        ours: bytes | None,
        theirs: bytes | None,
    ) -> bytes | Box:
        document = self.node.user_data
        unknown = boxes is None or any(claim.boxes is None for claim in dispute.claims)
        if unknown and self.solver.cells == "changed":
            before = dispute.before
            base = None if before is None else self._bytes(self._stored(before, index))
            return self.cells.join_changes(document, base, theirs, ours)
        mine = self._clipped(index, boxes, self._our_shape())
        equal = [
            both
            for claim in dispute.claims
            for box in self._clipped(index, claim.boxes, _shape(self.node))
            for one in mine
            if (both := common(box, one)) is not None
        ]
        return self.cells.lay_over(document, theirs, ours, mine, tuple(equal))

    def _clipped(self, index: Index, boxes: Boxes | None, shape: Sequence[int]) -> Boxes:
        """The part of boxes that lies in a chunk, relative to it."""
        grid = array_document(self.node).chunk_shape
        whole = chunk_box(index, grid, shape)
        starts = [number * size for number, size in zip(index, grid, strict=True)]
        parts = [common(box, whole) for box in ((whole,) if boxes is None else boxes)]
        return tuple(
            moved(part, [-start for start in starts]) for part in parts if part is not None
        )

    def _our_shape(self) -> Sequence[int]:
        return _shape(self.tree.changes.updated.get(self.node.id, self.node))

    def _stored(self, node: Node, index: Index) -> Payload | None:
        return self.tree.stored(node, index)

    def _bytes(self, payload: Payload | None) -> bytes | None:
        return chunk_bytes(self.tree, payload)

    def _gathered(self, parts: Sequence[CellPart]) -> bytes:
        found = [(self._bytes(part.payload), part.source, part.target) for part in parts]
        return self.cells.gather(self.node.user_data, found)

    def _differ(
        self, index: Index, dispute: Dispute, boxes: Boxes | None, where: Box
    ) -> Unresolved:
        grid = array_document(self.node).chunk_shape
        starts = [number * size for number, size in zip(index, grid, strict=True)]
        cells = moved(where, starts)
        why = f"both sides wrote cells {shown(cells)} with different values"
        claims = [one for one in dispute.claims if one.boxes is None]
        if boxes is None:
            why += "; this session did not record which cells it wrote"
        if claims:
            why += "; the other commit did not record which cells it wrote"
        return self.refuse(dispute, [index], why + dispute.note, cells)

    def refuse(
        self, dispute: Dispute, places: Sequence[Index], why: str, cells: Box | None = None
    ) -> Unresolved:
        """The conflict that is left, blamed on the last commit that wrote there."""
        claims = [one for one in dispute.claims if cells is None or _meets(one, cells)]
        commit = (claims or dispute.claims or (None,))[-1]
        rows = np.array(places, np.uint32).reshape(len(places), -1)
        conflict = Conflict(
            ConflictType.ChunkDoubleUpdate, self.node.path, self.node.id, rows, detail=why
        )
        return Unresolved(None if commit is None else commit.commit, conflict)


def chunk_bytes(tree: WorkingTree, payload: Payload | None) -> bytes | None:
    """The bytes that a reference stands for; `None` where there is no chunk."""
    if payload is None:
        return None
    length = len(payload.data) if hasattr(payload, "data") else payload.length
    (data,) = tree.read([Wanted(payload, 0, length)])
    return data


def _meets(claim: CellClaim, cells: Box) -> bool:
    return claim.boxes is None or any(common(box, cells) is not None for box in claim.boxes)


def _with_id(node: Node | None, node_id: NodeId) -> Node | None:
    return node if node is not None and node.id == node_id else None


def _parsed(node: Node) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(node.user_data)
    return document


def _shape(node: Node) -> tuple[int, ...]:
    return array_document(node).shape if node.array is not None else ()


def _listed(differences: Sequence[Difference]) -> str:
    return "; ".join(map(str, differences[:5]))
