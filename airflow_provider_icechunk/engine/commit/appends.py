"""Place what a session appended after what others have appended to the same dimension.

Two sessions with the same base append their labels at the same position. The one that commits
later is moved to where it would be if it had started after the other, so labels are in the order
of the commits. This is done once, when the session has reached the head, for all arrays of the
group that have the dimension:

- where the move is a whole number of chunks, references get another index and nothing is stored;
- otherwise chunks are put together from cells of ours and, where they share one, of the head;
- a label that others appended as well stays where they put it, and our cells go there. What others
  wrote into these cells must be equal bit by bit, unless the solver says that ours replace them.

Labels are those of the coordinate, the array named like the dimension. Without one everything is
new, and goes to the end.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    Index,
    common_rows,
    concatenate,
)
from airflow_provider_icechunk.engine.format.model import Node
from airflow_provider_icechunk.engine.format.names import base_name, parent_path
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document, node_from_document
from airflow_provider_icechunk.engine.tree.boxes import (
    MOST_BOXES,
    Box,
    Boxes,
    around,
    chunk_box,
    common,
    joined,
)
from airflow_provider_icechunk.engine.tree.changes import ArrayEdits, Untouched
from airflow_provider_icechunk.engine.tree.tree import WorkingTree

from .conflicts import Conflict, ConflictType
from .documents import encoded, is_same
from .merge import (
    CellClaim,
    CellPart,
    ChunkCells,
    Dispute,
    Disputes,
    MergeSolver,
    RecordedStep,
    Unresolved,
    chunk_bytes,
)
from .records import believed

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Relocation:
    """Positions along the dimension that move."""

    start: int
    stop: int
    to: int


def plan_moves(
    start: int, end: int, ours: Sequence[Hashable], theirs: Sequence[Hashable]
) -> list[Relocation]:
    """Where our labels at `start` go if others put theirs there up to `end`. Pure."""
    known: dict[Hashable, int] = {}
    for place, label in enumerate(theirs, start):
        known.setdefault(label, place)
    moves: list[Relocation] = []
    free = end
    for place, label in enumerate(ours, start):
        to = known.get(label, free)
        free += to == free
        last = moves[-1] if moves else None
        if last is not None and to != end and to - place == last.to - last.start:
            moves[-1] = replace(last, stop=place + 1)
        else:
            moves.append(Relocation(place, place + 1, to))
    return moves


def place_again(
    tree: WorkingTree,
    disputes: Disputes,
    passed: Sequence[RecordedStep],
    cells: Callable[[], ChunkCells],
    solver: MergeSolver,
) -> Disputes | Unresolved:
    """Relocate every append of the session to the current end of its dimension.

    Returns the chunks that are then in dispute. The caller holds the lock of the tree, and keeps a
    copy of the changes in case something cannot be moved.

    :param passed: commits of others since the session's base, in their order.
    """
    for axis, (start, stop) in list(tree.changes.appends.items()):
        dimension = _Dimension(tree, axis, start, stop)
        if dimension.end <= start:
            continue  # Nobody else extended it.
        placing = _Placing(dimension, passed, cells(), solver, dict(disputes))
        refused = placing.run()
        if refused is not None:
            return refused
        disputes = placing.disputes
    return disputes


@dataclass(slots=True)
class _Dimension:
    """A dimension of a group, and what the session appended to it."""

    tree: WorkingTree
    axis: str
    start: int
    stop: int
    end: int = field(init=False)
    """The length others have given it."""

    def __post_init__(self) -> None:
        found = self.along(self.tree.base.nodes.values())
        self.end = max((array_document(node).shape[at] for node, at in found), default=0)

    @property
    def name(self) -> str:
        return base_name(self.axis)

    def along(self, nodes: Iterable[Node]) -> list[tuple[Node, int]]:
        """Arrays of the group with this dimension, and which of theirs it is."""
        group = parent_path(self.axis)
        found = []
        for node in nodes:
            if node.array is not None and parent_path(node.path) == group:
                names = array_document(node).dimension_names or ()
                if self.name in names:
                    found.append((node, names.index(self.name)))
        return found


@dataclass(slots=True)
class _Placing:
    dim: _Dimension
    passed: Sequence[RecordedStep]
    cells: ChunkCells
    solver: MergeSolver
    disputes: Disputes
    moves: list[Relocation] = field(default_factory=list)
    length: int = 0
    """The length of the dimension, including our labels."""
    both_appended: str = ""
    """Labels that others appended as well, for messages."""

    def run(self) -> Unresolved | None:
        dim, tree = self.dim, self.dim.tree
        arrays = dim.along(tree.nodes())
        for node, at in arrays:
            why = self._refusal(node, at)
            if why is not None:
                return self._refuse(node, why)
        self._plan()
        for node, at in arrays:
            if len(tree.changes.chunks.get(node.id, ())):
                self._place(node, at)
            self._grow(node, at)
        if self.length > dim.end:
            tree.changes.appends[dim.axis] = (dim.end, self.length)
        else:
            del tree.changes.appends[dim.axis]
        return None

    def _refusal(self, node: Node, at: int) -> str | None:
        """Why one of the arrays prevents the move."""
        dim, document = self.dim, array_document(node)
        name, stop = repr(dim.name), dim.stop
        stored = dim.tree.base.nodes.get(node.path)
        if node.path == dim.axis:
            has = 0 if stored is None else array_document(stored).shape[at]
            if len(document.shape) == 1 and has not in (0, dim.end):
                return f"{name} is {dim.end} long, and has {has} labels"
            why = self.cells.refusal(node.user_data)
            return None if why is None else f"the labels of {name} cannot be read: {why}"
        edits = dim.tree.changes.chunks.get(node.id)
        if edits is None or not len(edits):
            return None
        if document.chunk_counts is not None:
            return f"both sides appended along {name}, and chunks of different sizes do not move"
        if (document.dimension_names or ()).count(dim.name) > 1:
            return f"both sides appended along {name}, which is two of its dimensions"
        size = document.chunk_shape[at]
        if int(edits.columns().index[:, at].max()) * size >= stop:
            return f"this session wrote beyond {stop}, where what it appended to {name} ends"
        return None

    def _plan(self) -> None:
        dim = self.dim
        ours, theirs = self._labels()
        self.moves = plan_moves(dim.start, dim.end, ours, theirs)
        new = sum(move.stop - move.start for move in self.moves if move.to >= dim.end)
        self.length = dim.end + new
        existing = set(theirs)
        twice = [str(label) for label in ours if label in existing]
        if twice:
            shown = ", ".join(twice[:_SHOWN]) + (", ..." if len(twice) > _SHOWN else "")
            self.both_appended = f"{dim.name} {shown}"

    def _note(self, edits: ArrayEdits) -> str:
        """The message about labels that both sides appended."""
        if not self.both_appended:
            return ""
        replaces = 'on_existing_label="replace" lets the later values replace the earlier ones'
        if edits.boxes is None:
            replaces += " where this session records which cells it writes"
        return f"; both appended {self.both_appended}, and {replaces}"

    def _labels(self) -> tuple[list[Hashable], list[Hashable]]:
        """Labels that we appended, and those that others did."""
        dim, tree = self.dim, self.dim.tree
        count = dim.stop - dim.start
        unknown: list[Hashable] = [object() for _ in range(count)]
        node = tree.node(dim.axis)
        if node is None or node.array is None or len(node.array.shape) != 1:
            return unknown, []
        document = array_document(node)
        if document.dimension_names != (dim.name,) or document.chunk_counts is not None:
            return unknown, []
        size = document.chunk_shape[0]
        edits = tree.changes.chunks.get(node.id)

        def mine(number: int) -> bytes | None:
            # Cells in the appended part that we did not write hold the fill value.
            edit = None if edits is None else edits.find((number,))
            return None if isinstance(edit, Untouched) else chunk_bytes(tree, edit)

        def other(number: int) -> bytes | None:
            return chunk_bytes(tree, tree.stored(node, (number,)))

        stored = dim.tree.base.nodes.get(dim.axis)
        found = [self._read(node, size, dim.start, dim.stop, mine), []]
        if stored is not None:
            found[1] = self._read(node, size, dim.start, dim.end, other)
        return found[0], found[1]

    def _read(
        self, node: Node, size: int, start: int, stop: int, read: Callable[[int], bytes | None]
    ) -> list[Hashable]:
        labels: list[Hashable] = []
        for number in range(start // size, -(-stop // size)):
            values = self.cells.values(node.user_data, read(number))
            first = number * size
            labels += values[max(0, start - first) : stop - first]
        return labels

    # -- one array

    def _place(self, node: Node, at: int) -> None:
        edits = self.dim.tree.changes.chunks[node.id]
        size = array_document(node).chunk_shape[at]
        place = self._shift if self._is_aligned(size) else self._rewrite
        made, disputes = place(node, at, size, edits)
        affected = {
            key for key in self.disputes if key[0] == node.id and self._is_ours(key[1][at], size)
        }
        for index, dispute in disputes.items():
            before = self.disputes.get((node.id, index))
            if before is not None:
                disputes[index] = replace(dispute, before=before.before)
        for key in affected:
            del self.disputes[key]
        self.disputes |= {(node.id, index): dispute for index, dispute in disputes.items()}
        self.dim.tree.changes.chunks[node.id] = made

    def _is_ours(self, number: int, size: int) -> bool:
        """Whether a chunk has cells in the part that we appended."""
        return (number + 1) * size > self.dim.start

    def _is_aligned(self, size: int) -> bool:
        def is_whole(move: Relocation) -> bool:
            ends = move.stop == self.dim.stop and move.to + move.stop - move.start == self.length
            return not move.start % size and not move.to % size and (ends or not move.stop % size)

        return not self.dim.start % size and all(map(is_whole, self.moves))

    def _shift(
        self, node: Node, at: int, size: int, edits: ArrayEdits
    ) -> tuple[ArrayEdits, dict[Index, Dispute]]:
        """Give references another index."""
        refs = edits.columns()
        first = refs.index[:, at].astype(np.int64) * size
        parts, met = [refs.take(first < self.dim.start)], [np.empty((0, refs.ndim), np.uint32)]
        for move in self.moves:
            moving = refs.take((first >= move.start) & (first < move.stop))
            index = moving.index.astype(np.int64)
            index[:, at] += (move.to - move.start) // size
            parts.append(replace(moving, index=index.astype(np.uint32)))
            if move.to < self.dim.end:
                met.append(parts[-1].index)
        made = ArrayEdits(refs.ndim)
        boxes = edits.boxes
        made.set_many(
            ChunkRefs.of(concatenate(parts)), None if boxes is None else self._moved(boxes, at)
        )
        targets = [tuple(row) for row in np.concatenate(met).tolist()]
        claims, note = self._claims(node, at, edits, targets), self._note(edits)
        return made, {index: Dispute(None, claims.get(index, ()), note=note) for index in targets}

    def _rewrite(
        self, node: Node, at: int, size: int, edits: ArrayEdits
    ) -> tuple[ArrayEdits, dict[Index, Dispute]]:
        """Combine chunks from our cells, laid over those of the head."""
        refs = edits.columns()
        ours = (refs.index[:, at].astype(np.int64) + 1) * size > self.dim.start
        boxes = self._moved(self._known(node, at, edits), at)
        made = ArrayEdits(refs.ndim)
        made.set_many(refs.take(~ours), boxes)
        targets: dict[Index, list[CellPart]] = {}
        document = array_document(node)
        for row in np.flatnonzero(ours).tolist():
            index = tuple(refs.index[row].tolist())
            whole = chunk_box(index, document.chunk_shape, self._our_shape(node, at))
            for place, source, target in self._spans(index[at], size):
                here = (*index[:at], place, *index[at + 1 :])
                if index[at] * size + source[0] < self.dim.start:
                    old = _with(whole, at, (index[at] * size, self.dim.start))
                    if not any(common(box, old) for box in boxes):
                        continue  # Only what was appended is ours in this chunk.
                cells = tuple((0, length) for length in document.chunk_shape)
                part = CellPart(refs[row], _with(cells, at, source), _with(cells, at, target))
                targets.setdefault(here, []).append(part)
        claims, note = self._claims(node, at, edits, list(targets)), self._note(edits)
        return made, {
            index: Dispute(None, claims.get(index, ()), tuple(parts), note)
            for index, parts in targets.items()
        }

    def _spans(
        self, number: int, size: int
    ) -> Iterator[tuple[int, tuple[int, int], tuple[int, int]]]:
        """Which cells of a chunk of ours go to which cells of which chunk."""
        first, start = number * size, self.dim.start
        if first < start:
            yield number, (0, start - first), (0, start - first)
        low = max(first, start)
        places = [move.start for move in self.moves]
        while low < min(first + size, self.dim.stop):
            move = self.moves[bisect_right(places, low) - 1]
            to = move.to + low - move.start
            count = min(move.stop - low, first + size - low, size - to % size)
            source, target = low - first, to % size
            yield to // size, (source, source + count), (target, target + count)
            low += count

    def _known(self, node: Node, at: int, edits: ArrayEdits) -> Boxes:
        """The cells that we may have written: without a record, those of our chunks."""
        if edits.boxes is not None:
            return edits.boxes
        document, index = array_document(node), edits.columns().index
        shape = self._our_shape(node, at)
        if len(index) > MOST_BOXES:
            index = np.stack([index.min(axis=0), index.max(axis=0)])
            ends = [chunk_box(tuple(row), document.chunk_shape, shape) for row in index.tolist()]
            return (around(ends),)
        rows = index.tolist()
        return joined((), (chunk_box(tuple(row), document.chunk_shape, shape) for row in rows))

    def _our_shape(self, node: Node, at: int) -> tuple[int, ...]:
        shape = array_document(node).shape
        return (*shape[:at], self.dim.stop, *shape[at + 1 :])

    def _moved(self, boxes: Boxes, at: int) -> Boxes:
        found: list[Box] = []
        for box in boxes:
            first, last = box[at]
            if first < self.dim.start:
                found.append(_with(box, at, (first, min(last, self.dim.start))))
            for move in self.moves:
                low, high = max(first, move.start), min(last, move.stop)
                if low < high:
                    by = move.to - move.start
                    found.append(_with(box, at, (low + by, high + by)))
        return joined((), found)

    def _claims(
        self, node: Node, at: int, edits: ArrayEdits, targets: Sequence[Index]
    ) -> dict[Index, tuple[CellClaim, ...]]:
        """What others have written into these chunks, from which ours must not differ."""
        claims: dict[Index, tuple[CellClaim, ...]] = {}
        if not targets:
            return claims
        rows = np.array(targets, np.uint32).reshape(len(targets), -1)
        for step in self.passed:
            written = step.theirs.log.updated_chunks.get(node.id)
            if written is None or written.shape[1] != rows.shape[1]:
                continue
            met = np.flatnonzero(common_rows(rows, written)).tolist()
            if not met:
                continue
            boxes = believed(step.record, node, written)
            for number in met:
                index = targets[number]
                disputed = boxes
                if self.solver.on_existing_label == "replace" and edits.boxes is not None:
                    disputed = self._before_append(node, at, index, boxes)
                claim = CellClaim(step.theirs.after, disputed)
                if claim.boxes != ():
                    claims[index] = (*claims.get(index, ()), claim)
        return claims

    def _before_append(self, node: Node, at: int, index: Index, boxes: Boxes | None) -> Boxes:
        """Their cells before the appended part: after it, ours replace them.

        Only cells that were recorded replace others. A chunk without a record also has cells that
        were never written, and these would replace values with the fill value.
        """
        document = array_document(node)
        if boxes is None:
            boxes = (chunk_box(index, document.chunk_shape, document.shape),)
        old = (0, self.dim.start)
        return tuple(
            _with(box, at, (box[at][0], min(box[at][1], old[1])))
            for box in boxes
            if box[at][0] < old[1]
        )

    def _grow(self, node: Node, at: int) -> None:
        """Extend an array to the length of the dimension."""
        changes, stored = self.dim.tree.changes, self.dim.tree.base.nodes.get(node.path)
        document = json.loads(node.user_data)
        document["shape"][at] = self.length
        manifests = node.array.manifests if node.array else ()
        made = node_from_document(
            node.id, node.path, encoded(document), manifests, rectilinear=True
        )
        made = replace(made, extra=node.extra)
        if node.path in changes.created:
            changes.created[node.path] = made
        elif stored is not None and is_same(document, json.loads(stored.user_data)):
            changes.updated.pop(node.id, None)
        else:
            changes.updated[node.id] = made

    def _refuse(self, node: Node, why: str) -> Unresolved:
        kind = ConflictType.ChunksUpdatedInUpdatedArray
        commit = self.passed[-1].theirs.after if self.passed else None
        return Unresolved(commit, Conflict(kind, node.path, node.id, detail=why))


def _with(box: Box, at: int, span: tuple[int, int]) -> Box:
    return (*box[:at], span, *box[at + 1 :])
