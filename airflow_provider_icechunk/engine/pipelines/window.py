"""A rolling window: drop labels from the front of a growing dimension, in one commit.

All arrays of the group that have the dimension are cut together. Where the cut falls between two
chunks (with shards, between two shards), references move and no chunk is read; otherwise the cells
of every remaining chunk shift, and it is rewritten. The cut is never rebased over a concurrent
commit, which counts its positions from the old front: the cut is made again on top.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import zarr

from airflow_provider_icechunk.engine.arrays.moving import move_cells, open_target
from airflow_provider_icechunk.engine.arrays.regions import plan_box
from airflow_provider_icechunk.engine.commit.documents import encoded
from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.datasets.coverage import only_growing
from airflow_provider_icechunk.engine.datasets.dataset import IcechunkDataset
from airflow_provider_icechunk.engine.datasets.declare import stored_labels
from airflow_provider_icechunk.engine.datasets.growing import FIRST_STEP, Growing, Label
from airflow_provider_icechunk.engine.datasets.stored import DROPPED_KEY, as_stored, drops_to_json
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document
from airflow_provider_icechunk.engine.retry import at_once as tries
from airflow_provider_icechunk.engine.tree.reindex import shifted
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    InvalidInputError,
    Kind,
    NotFoundError,
    UnsupportedError,
)

from .transaction import CommitOptions, Outcome, write_session

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.format.model import Node
    from airflow_provider_icechunk.engine.repository import Repository
    from airflow_provider_icechunk.engine.sessions.session import Session

_MOVES = tries(20)
_TOGETHER = 4


@dataclass(frozen=True, slots=True)
class ArrayCut:
    """The effect on an array of dropping positions from the front of one dimension."""

    path: str
    axis: int
    count: int
    """Positions that go."""
    shape: tuple[int, ...]
    """Of what is left."""
    dropped: int
    """Chunks that are no longer referred to."""
    moved: int
    """Chunks whose references move, and whose bytes stay where they are."""
    rewritten: int
    """The most chunks to rewrite: the cut goes through one."""
    size: int
    """Bytes of values in these."""

    def to_json(self) -> dict[str, Any]:
        """The value as plain JSON."""
        return {
            "shape": list(self.shape),
            "dropped_chunks": self.dropped,
            "moved_chunks": self.moved,
            "rewritten_chunks": self.rewritten,
            "rewritten_bytes": self.size,
        }


@dataclass(frozen=True, slots=True)
class DropPlan:
    """Which labels of a dimension are dropped, and the cost."""

    dim: str
    labels: int
    """How many labels go."""
    dropped: tuple[Label, Label] | None
    """The first and the last of them."""
    first: Label | None
    """The first one that stays."""
    arrays: tuple[ArrayCut, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The value as plain JSON."""
        return {
            "dim": self.dim,
            "labels": self.labels,
            "dropped": None if self.dropped is None else list(self.dropped),
            "first": self.first,
            "arrays": {cut.path: cut.to_json() for cut in self.arrays},
        }


def drop_labels(
    repository: Repository,
    dataset: IcechunkDataset,
    *,
    before: object = None,
    keep: int | None = None,
    dim: str | None = None,
    whole_chunks: bool = False,
    branch: str | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    dry_run: bool = False,
) -> tuple[DropPlan, str | None]:
    """Drop labels from the front of a growing dimension; returns the plan and the snapshot's id.

    The id is `None` for a dry run and if there was nothing to drop.

    :param before: the first label to keep; for a dimension with steps, any time.
    :param keep: the number of labels to keep, instead of `before`.
    :param dim: the dimension; by default the only growing one.
    :param whole_chunks: drop fewer labels, so that no chunk of a variable is rewritten.
    """
    wanted = Drop(before, keep, dim, whole_chunks)
    for _ in _MOVES.attempts():
        session = repository.writable_session(branch or dataset.branch)
        plan = plan_drop(session, dataset, wanted)
        if dry_run or not plan.labels:
            return plan, None
        apply_drop(repository, session, dataset, plan)
        try:
            identity = session.commit(
                message or message_of(plan), metadata={**(metadata or {}), **marks_of(plan)}
            )
        except ConflictError:
            continue
        return plan, identity
    raise _too_busy(branch or dataset.branch)


def drop_labels_once(
    repository: Repository,
    dataset: IcechunkDataset,
    wanted: Drop,
    options: CommitOptions,
    *,
    branch: str,
    dry_run: bool = False,
) -> Outcome:
    """`drop_labels` for a task: once, however often the task runs."""
    if dry_run:
        session = repository.readonly_session(branch)
        plan = plan_drop(session, dataset, wanted)
        head = {"snapshot_id": None, "parent_id": session.snapshot_id, "branch": branch}
        return Outcome({**head, "committed": False, "result": plan.to_json()}, is_new=False)
    details = dict(options.metadata)
    given = replace(options, metadata=details, solver=None)

    def write(session: Session) -> dict[str, Any]:
        plan = plan_drop(session, dataset, wanted)
        if plan.labels:
            apply_drop(repository, session, dataset, plan)
            details.update(marks_of(plan))
        return plan.to_json()

    for _ in _MOVES.attempts():
        try:
            return write_session(repository, branch, write, given)
        except ConflictError:
            continue
    raise _too_busy(branch)


@dataclass(frozen=True, slots=True)
class Drop:
    """Which labels are to go."""

    before: object = None
    keep: int | None = None
    dim: str | None = None
    whole_chunks: bool = False

    def __post_init__(self) -> None:
        if (self.before is None) == (self.keep is None):
            raise InvalidInputError(
                "say which labels to keep: `before` with the first of them, or `keep` with "
                "their number"
            )
        if self.keep is not None and (type(self.keep) is not int or self.keep < 1):
            raise InvalidInputError(
                f"keep must be a number of labels, at least 1, not {self.keep!r}"
            )


def plan_drop(session: Session, dataset: IcechunkDataset, wanted: Drop) -> DropPlan:
    """What a drop would do to the version of a session; changes nothing."""
    name = only_growing(dataset, wanted.dim)
    dim = as_stored(session, dataset).growing[name]
    nodes = _along(session, dataset, name)
    coordinate = f"/{dataset.path(name)}"
    if coordinate not in nodes:
        raise NotFoundError(
            f"there is no coordinate {coordinate}, so it is unknown which labels {name!r} has",
            kind=Kind.NODE_NOT_FOUND,
        )
    length = _length(nodes[coordinate][0], 0)
    labels = _Labels(session, coordinate, dim, length, name)
    count = length - wanted.keep if wanted.keep is not None else labels.before(wanted.before)
    if wanted.whole_chunks:
        units = [_unit(node, axis) for path, (node, axis) in nodes.items() if path != coordinate]
        count -= count % math.lcm(*units) if count > 0 else 0
    if count <= 0:
        return DropPlan(name, 0, None, labels.at(0) if length else None)
    if count >= length:
        raise InvalidInputError(
            f"nothing would be left of {name!r}: its labels are {labels.at(0)} to "
            f"{labels.at(length - 1)}. If that is intended, delete the arrays"
        )
    cuts = [_cut(session, node, axis, count) for node, axis in nodes.values()]
    dropped = (labels.at(0), labels.at(count - 1))
    return DropPlan(name, count, dropped, labels.at(count), tuple(cuts))


def apply_drop(
    repository: Repository, session: Session, dataset: IcechunkDataset, plan: DropPlan
) -> None:
    """Apply a plan to the session it was made for."""
    before = repository.readonly_session(snapshot_id=session.snapshot_id)
    coordinate = f"/{dataset.path(plan.dim)}"
    dim = as_stored(session, dataset).growing[plan.dim]
    for cut in plan.arrays:
        tree = session.tree
        node = tree.array(cut.path)
        refs, counts = tree.references(node), array_document(node).num_chunks
        unit = _unit(node, cut.axis)
        moves = cut.count % unit == 0
        offset = [-(cut.count // unit) if axis == cut.axis else 0 for axis in range(refs.ndim)]
        edits = shifted(refs, offset, counts) if moves else ChunkRefs.blank(refs.index)
        if len(edits):
            # Before the array shrinks: afterwards nothing beyond its end can be erased, and chunks
            # left there would reappear when the array grows again.
            tree.put_references(cut.path, edits)
        document = json.loads(node.user_data)
        document["shape"] = list(cut.shape)
        if cut.path == coordinate and dim.is_regular:
            attributes = document.get("attributes") or {}
            document["attributes"] = {**attributes, FIRST_STEP: dim.first_step + cut.count}
        tree.put_document(cut.path, encoded(document))
        if not moves:
            _rewrite(before, session, cut)


def marks_of(plan: DropPlan) -> dict[str, Any]:
    """Metadata that tells later readers of records that positions shifted."""
    drops = {cut.path: (cut.axis, cut.count) for cut in plan.arrays}
    return {DROPPED_KEY: drops_to_json(drops)}


def message_of(plan: DropPlan) -> str:
    """The commit message for a plan."""
    return f"drop {plan.labels} labels of {plan.dim} before {plan.first}"


def _rewrite(before: Session, session: Session, cut: ArrayCut) -> None:
    old = zarr.open_array(before.store, path=cut.path.strip("/"), mode="r")
    new = open_target(session.store, cut.path)
    offset = [cut.count if axis == cut.axis else 0 for axis in range(len(cut.shape))]
    grid = tuple(new.shards or new.chunks)
    boxes = plan_box(tuple((0, length) for length in cut.shape), grid, sys.maxsize)
    run_all(partial(move_cells, before, old, session, new, offset=offset), boxes, at_once=_TOGETHER)


def _along(session: Session, dataset: IcechunkDataset, name: str) -> dict[str, tuple[Node, int]]:
    """Arrays of the dataset's group that have a dimension, declared or not, and its number."""
    top = f"/{dataset.group}" if dataset.group else ""
    found: dict[str, tuple[Node, int]] = {}
    for node in session.tree.nodes():
        if node.is_group or node.path.rpartition("/")[0] != top:
            continue
        document = array_document(node)
        names = document.dimension_names or ()
        if name not in names:
            continue
        if document.chunk_counts is not None:
            raise UnsupportedError(
                f"{node.path} has chunks of different lengths, which cannot be moved along {name!r}"
            )
        found[node.path] = (node, names.index(name))
    return found


def _cut(session: Session, node: Node, axis: int, count: int) -> ArrayCut:
    document, refs = array_document(node), session.tree.references(node)
    unit = document.chunk_shape[axis]
    length = document.shape[axis]
    if length < count:
        raise InvalidInputError(
            f"{node.path} is {length} long along its dimension {axis}, and {count} places are to "
            "go: the arrays of this dimension differ in length"
        )
    shape = tuple(n - count if number == axis else n for number, n in enumerate(document.shape))
    gone = int((refs.index[:, axis] < count // unit).sum()) if len(refs) else 0
    left = len(refs) - gone
    if count % unit == 0:
        return ArrayCut(node.path, axis, count, shape, gone, left, 0, 0)
    old = zarr.open_array(session.store, path=node.path.strip("/"), mode="r")
    size = left * math.prod(document.chunk_shape) * old.dtype.itemsize
    return ArrayCut(node.path, axis, count, shape, gone, 0, left, size)


def _unit(node: Node, axis: int) -> int:
    return max(1, array_document(node).chunk_shape[axis])


def _length(node: Node, axis: int) -> int:
    return array_document(node).shape[axis]


class _Labels:
    """The labels of a stored dimension by position."""

    def __init__(self, session: Session, path: str, dim: Growing, length: int, name: str) -> None:
        self._dim = dim
        self._length = length
        self._name = name
        self._stored: list[Label] = []
        if not dim.is_regular:
            array = zarr.open_array(session.store, path=path.strip("/"), mode="r")
            self._stored = stored_labels(array, dim)

    def at(self, place: int) -> Label:
        """The label at a position."""
        if self._dim.is_regular:
            return self._dim.text(self._dim.label(place))
        return self._stored[place]

    def before(self, label: object) -> int:
        """The number of positions before a label."""
        if self._dim.is_regular:
            return self._dim.places_before(label, self._name)
        key = self._dim.key(label, self._name)
        if key not in self._stored:
            raise NotFoundError(
                f"{key} is not a label of {self._name!r}: an axis without steps is cut in front of "
                "one of its labels",
                kind=Kind.NODE_NOT_FOUND,
            )
        return self._stored.index(key)


def _too_busy(branch: str) -> ConflictError:
    return ConflictError(
        f"branch {branch!r} moved {_MOVES.tries} times while labels were being dropped; try again "
        "when there are fewer commits",
        kind=Kind.ATTEMPTS_EXHAUSTED,
    )
