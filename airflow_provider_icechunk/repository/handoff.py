"""Hand work out to other processes and take their results back.

A work unit (JSON, no credentials) says which repository and which snapshot to stand on; a fragment
(columns in MessagePack) comes back. Workers write chunk files and nothing else; only the session
that handed the work out can commit. Chunks of attempts that were not chosen are garbage for the
collector.

Changes that the coordinating session made before (new arrays, resizes) travel as a *staged*
snapshot: stored, but named by no branch or tag, so that nobody else sees it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from airflow_provider_icechunk.exceptions import FormatError, FragmentError, InvalidInputError, Kind
from airflow_provider_icechunk.format.fragments import Fragment
from airflow_provider_icechunk.format.ids import (
    NodeId,
    SnapshotId,
    decode_object_id,
    encode_base32,
)
from airflow_provider_icechunk.format.references import ChunkRefs, concatenate, sort_keys
from airflow_provider_icechunk.format.snapshot import Node, Snapshot
from airflow_provider_icechunk.format.transactions import Coordinates, TransactionLog
from airflow_provider_icechunk.repository.changes import ArrayEdits, ChangeSet
from airflow_provider_icechunk.repository.documents import array_document
from airflow_provider_icechunk.repository.leases import Tenancy

WORK_UNIT_VERSION = 1
OnOverlap = Literal["error", "first", "last"]
"""Who wins when two fragments hold one chunk: nobody, the earlier or the later in the list."""

_SINCE = "since"
_FIELDS = {"version", "repository", "generation", "branch", "base", "staged", "job"}


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """What a worker has to know. Holds no credentials: a worker uses its own."""

    repository: str
    """Where the repository is, for people and for checks; not an instruction where to connect."""
    generation: str
    branch: str
    base: SnapshotId
    """The snapshot that the coordinating session stands on."""
    staged: SnapshotId
    """The snapshot that workers stand on: `base`, or `base` with the coordinator's changes."""
    job: str
    since: int | None = None
    """Store time in microseconds before which nothing was stored for this work. Earlier releases do
    not say it."""

    @property
    def tenancy(self) -> Tenancy:
        """The lease that all who do this work share."""
        base, staged = encode_base32(self.base), encode_base32(self.staged)
        return Tenancy.of_work(self.job, base, staged, since=self.since)

    def to_json(self) -> dict[str, str | int]:
        """A small JSON object."""
        fields = asdict(self)
        if self.since is None:
            del fields["since"]
        return {
            **fields,
            "version": WORK_UNIT_VERSION,
            "base": encode_base32(self.base),
            "staged": encode_base32(self.staged),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | str) -> WorkUnit:
        """The work unit in a JSON object or its text; refuses anything else."""
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise InvalidInputError("a work unit is a JSON object; this is no JSON") from None
        if not isinstance(value, Mapping) or set(value) - {_SINCE} != _FIELDS:
            raise InvalidInputError(
                f"a work unit has exactly the fields {sorted(_FIELDS)} and perhaps {_SINCE!r}"
            )
        if value["version"] != WORK_UNIT_VERSION:
            raise InvalidInputError(
                f"work unit version {value['version']!r} is unknown; both sides must run the same "
                "release"
            )
        texts = {name: value[name] for name in _FIELDS - {"version"}}
        if not all(isinstance(text, str) for text in texts.values()):
            raise InvalidInputError("the fields of a work unit are texts")
        since = value.get(_SINCE)
        if since is not None and (type(since) is not int or not 0 <= since < 1 << 62):
            raise InvalidInputError(f"{_SINCE!r} of a work unit is a time in microseconds")
        return cls(
            **texts
            | {
                "base": SnapshotId(decode_object_id(texts["base"])),
                "staged": SnapshotId(decode_object_id(texts["staged"])),
                _SINCE: since,
            }
        )


def counted_since(work: WorkUnit, base: Snapshot) -> int:
    """The store time since when anything may have been stored for a work unit.

    Where it does not say, that is when the snapshot was made on which the session stands.
    """
    return base.flushed_at if work.since is None else work.since


def merge_fragments(
    fragments: Sequence[Fragment],
    *,
    staged: Snapshot,
    job: str | None,
    on_overlap: OnOverlap = "error",
    show: Callable[[bytes], str],
) -> dict[NodeId, ChunkRefs]:
    """One set of references from many workers, or an error and nothing. Pure, in columns.

    :param show: how the repository writes ids.
    """
    nodes = {node.id: node for node in staged.nodes.values() if not node.is_group}
    parts: dict[NodeId, list[tuple[int, ChunkRefs]]] = {}
    for number, fragment in enumerate(fragments):
        _check_origin(fragment, staged, job, show)
        for node_id, refs in fragment.arrays.items():
            _check_array(fragment, node_id, refs, nodes.get(node_id))
            if len(refs):
                parts.setdefault(node_id, []).append((number, refs))
    return {
        node_id: _join(nodes[node_id].path, pieces, fragments, on_overlap)
        for node_id, pieces in parts.items()
    }


def _check_origin(
    fragment: Fragment, staged: Snapshot, job: str | None, show: Callable[[bytes], str]
) -> None:
    if fragment.base != staged.id:
        raise FragmentError(
            f"the fragment of worker {fragment.worker!r} was made on snapshot "
            f"{show(fragment.base)}, this session hands out {show(staged.id)}"
        )
    if job is not None and fragment.job != job:
        raise FragmentError(
            f"the fragment of worker {fragment.worker!r} belongs to job {fragment.job!r}, not to "
            f"{job!r}"
        )


def _check_array(fragment: Fragment, node_id: NodeId, refs: ChunkRefs, node: Node | None) -> None:
    who = f"the fragment of worker {fragment.worker!r}"
    if node is None:
        raise FragmentError(f"{who} has chunks of an unknown array {encode_base32(node_id)}")
    counts = array_document(node).num_chunks
    if refs.ndim != len(counts):
        raise FragmentError(
            f"{who} has chunks with {refs.ndim} coordinates for {node.path}, which has "
            f"{len(counts)} dimensions"
        )
    if not refs.inside(tuple((0, count) for count in counts)).all():
        raise FragmentError(f"{who} has chunks outside of the grid of {node.path}")


def _join(
    path: str,
    pieces: list[tuple[int, ChunkRefs]],
    fragments: Sequence[Fragment],
    on_overlap: OnOverlap,
) -> ChunkRefs:
    if on_overlap == "first":
        pieces.reverse()
    rows = concatenate([refs for _, refs in pieces])
    if on_overlap == "error":
        owners = np.repeat([number for number, _ in pieces], [len(refs) for _, refs in pieces])
        (keys,) = sort_keys(rows.index)
        order = np.argsort(keys, kind="stable")
        twice = np.flatnonzero(np.equal(keys[order][1:], keys[order][:-1]))
        if len(twice):
            first, second = order[twice[0]], order[twice[0] + 1]
            raise FragmentError(
                f"chunk {rows.index[first].tolist()} of {path} was written by worker "
                f"{fragments[int(owners[first])].worker!r} and by worker "
                f"{fragments[int(owners[second])].worker!r} ({len(twice)} chunks overlap): give "
                "each worker whole chunks of its own; nothing was merged",
                kind=Kind.FRAGMENT_OVERLAP,
            )
        return rows.take(order)
    return ChunkRefs.of(rows)


def changes_of_staged(
    base: Snapshot,
    staged: Snapshot,
    log: TransactionLog,
    references: Callable[[Node], ChunkRefs],
) -> ChangeSet:
    """The change set that turns `base` into `staged`; the inverse of staging. Pure.

    :param references: all chunk references of an array of `staged`.
    """
    by_id = {node.id: node for node in staged.nodes.values()}
    before = {node.id: node for node in base.nodes.values()}
    try:
        created = [by_id[node_id] for node_id in log.new_groups | log.new_arrays]
        updated = {n: by_id[n] for n in log.updated_groups | log.updated_arrays}
        deleted = {n: before[n] for n in log.deleted_groups | log.deleted_arrays}
        arrays = {node_id: by_id[node_id] for node_id in log.updated_chunks}
    except KeyError:
        raise FormatError(
            f"the staged snapshot {encode_base32(staged.id)} and its log do not fit together"
        ) from None
    changes = ChangeSet(
        created={node.path: _without_manifests(node) for node in created},
        updated=updated,
        deleted=deleted,
    )
    for node_id, touched in log.updated_chunks.items():
        changes.chunks[node_id] = _edits(references(arrays[node_id]), touched)
    return changes


def _edits(refs: ChunkRefs, touched: Coordinates) -> ArrayEdits:
    """References at the touched places; places without one were erased."""
    edits = ArrayEdits(refs.ndim)
    edits.set_many(ChunkRefs.blank(touched).overlay(refs.without(_others(refs, touched))))
    return edits


def _others(refs: ChunkRefs, touched: Coordinates) -> Coordinates:
    return refs.without(touched).index


def _without_manifests(node: Node) -> Node:
    if node.array is None:
        return node
    return replace(node, array=replace(node.array, manifests=()))
