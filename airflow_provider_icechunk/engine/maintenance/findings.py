"""The findings of `verify`, and its single checks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Extents, RefKind
from airflow_provider_icechunk.engine.format.codec import Layout
from airflow_provider_icechunk.engine.format.ids import ChunkId, ManifestId, NodeId
from airflow_provider_icechunk.engine.format.model import Manifest, ManifestRef, Node, Snapshot
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document
from airflow_provider_icechunk.exceptions import IcechunkError

from .listing import Listing, contains, from_rows, of_bytes, whole
from .reachable import all_refs


class Severity(StrEnum):
    """How serious a finding is."""

    ERROR = "error"
    """Something a branch or tag needs is lost or wrong: reads fail or return wrong values."""
    WARNING = "warning"
    """This package reads correct values, but history or other readers may be affected."""
    INFO = "info"
    """Nothing is wrong."""


class Code(StrEnum):
    """Stable, append-only codes of findings."""

    REF_UNREADABLE = "ref_unreadable"
    SNAPSHOT_UNREADABLE = "snapshot_unreadable"
    HISTORY_CIRCLE = "history_circle"
    TIME_BACKWARDS = "time_backwards"
    LOG_MISSING = "log_missing"
    MANIFEST_UNREADABLE = "manifest_unreadable"
    MANIFEST_SIZE = "manifest_size"
    MANIFEST_COUNT = "manifest_count"
    MANIFEST_LIST = "manifest_list"
    EXTENTS_TOO_SMALL = "extents_too_small"
    EXTENTS_OVERLAP = "extents_overlap"
    OUTSIDE_GRID = "outside_grid"
    CHUNK_MISSING = "chunk_missing"
    CHUNK_SHORT = "chunk_short"
    UNREACHABLE = "unreachable"
    COMMIT_LOST = "commit_lost"
    COMMIT_TWICE = "commit_twice"


@dataclass(frozen=True, slots=True)
class Finding:
    """One irregularity."""

    severity: Severity
    code: Code
    where: str
    """The key of the file, or the snapshot and path."""
    what: str
    remedy: str

    def as_dict(self) -> dict[str, str]:
        """The finding in JSON values."""
        return {
            "severity": self.severity.value,
            "code": self.code.value,
            "where": self.where,
            "what": self.what,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was checked and what was found, worst first."""

    findings: tuple[Finding, ...]
    checked: Mapping[str, int]
    """Number of checked objects by kind."""

    @property
    def ok(self) -> bool:
        """Whether every reference from every branch and tag resolves."""
        return not self.errors

    @property
    def errors(self) -> list[Finding]:
        """Findings that mean data loss."""
        return [finding for finding in self.findings if finding.severity is Severity.ERROR]

    def as_dict(self) -> dict[str, object]:
        """The report in JSON values."""
        return {
            "ok": self.ok,
            "checked": dict(self.checked),
            "findings": [finding.as_dict() for finding in self.findings],
        }


_ORDER = list(Severity)


def worst_first(findings: list[Finding]) -> tuple[Finding, ...]:
    """Distinct findings, ordered by severity."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda one: _ORDER.index(one.severity)))


def error(code: Code, where: str, what: str, remedy: str) -> Finding:
    """Something is lost or wrong."""
    return Finding(Severity.ERROR, code, where, what, remedy)


def warning(code: Code, where: str, what: str, remedy: str) -> Finding:
    """Something may be affected."""
    return Finding(Severity.WARNING, code, where, what, remedy)


def info(code: Code, where: str, what: str, remedy: str) -> Finding:
    """Nothing is wrong."""
    return Finding(Severity.INFO, code, where, what, remedy)


_EXAMPLES = 3
_LOST = (
    "restore the file from a backup, or reset the branch to a snapshot that does not need it; "
    "tags that need it have to be deleted"
)
_REWRITE = "run `rewrite_manifests` on the branch"


def check_manifest_list(snapshot: Snapshot, files: Listing, layout: Layout) -> Iterator[Finding]:
    """A snapshot lists exactly the manifests its nodes use, with their sizes."""
    where = layout.snapshot(snapshot.id)
    used = {ref.id for node in snapshot.nodes.values() for ref in _manifests(node)}
    missing, unused = used - snapshot.manifest_files.keys(), snapshot.manifest_files.keys() - used
    if missing or unused:
        yield warning(
            Code.MANIFEST_LIST,
            where,
            f"its list of manifests lacks {len(missing)} that its nodes use and has {len(unused)} "
            "that they do not",
            _REWRITE,
        )
    listed = of_bytes(snapshot.manifest_files)
    rows = np.searchsorted(files.ids, listed[contains(files.ids, listed)])
    for row in rows.tolist():
        identity = ManifestId(whole(files.ids[row : row + 1])[0])
        stated, actual = snapshot.manifest_files[identity].size_bytes, int(files.sizes[row])
        if 0 < stated < actual:
            yield error(
                Code.MANIFEST_SIZE,
                layout.manifest(identity),
                f"the file has {actual} bytes, but {where} says "
                f"{stated}; official readers fetch only that many and fail",
                _REWRITE,
            )
        elif stated > actual:
            yield warning(
                Code.MANIFEST_SIZE,
                layout.manifest(identity),
                f"the file has {actual} bytes, {where} says {stated}",
                _REWRITE,
            )


def check_count(manifest: Manifest, snapshot: Snapshot, layout: Layout) -> Iterator[Finding]:
    """A snapshot lists the number of references in its manifests."""
    file = snapshot.manifest_files.get(manifest.id)
    if file is not None and file.num_chunk_refs != len(manifest):
        yield warning(
            Code.MANIFEST_COUNT,
            layout.manifest(manifest.id),
            f"it has {len(manifest)} references, the snapshot says {file.num_chunk_refs}",
            _REWRITE,
        )


def check_chunks(manifest: Manifest, chunks: Listing, layout: Layout) -> Iterator[Finding]:
    """Every native reference points into a file that exists and is long enough."""
    where = layout.manifest(manifest.id)
    for refs in all_refs(manifest):
        native = refs.take(refs.kind == np.uint8(RefKind.NATIVE))
        ids = from_rows(native.chunk_id)
        there = contains(chunks.ids, ids)
        yield from _lost_chunks(native.take(~there), where, layout)
        native = native.take(there)
        sizes = chunks.sizes[np.searchsorted(chunks.ids, ids[there])].astype(np.uint64)
        short = native.offset + native.length > sizes
        if short.any():
            yield error(
                Code.CHUNK_SHORT,
                where,
                f"{int(short.sum())} references reach beyond the end of their chunk file: "
                + _examples(native.take(short), layout),
                _LOST,
            )


def check_array(
    node: Node,
    manifests: Mapping[ManifestId, Mapping[NodeId, tuple[Extents, ...]]],
    snapshot: Snapshot,
    layout: Layout,
) -> Iterator[Finding]:
    """The extents of an array's manifests contain their references, are disjoint and in its grid.

    `manifests` has, for each manifest, the true bounding boxes of its arrays by rank.
    """
    place = f"{layout.snapshot(snapshot.id)} {node.path}"
    refs = _manifests(node)
    for ref in refs:
        true = _box_of(manifests.get(ref.id, {}).get(node.id, ()), ref)
        if ref.extents is not None and true is not None and not _within(true, ref.extents):
            yield error(
                Code.EXTENTS_TOO_SMALL,
                place,
                f"{layout.manifest(ref.id)} has chunks outside the extents {ref.extents} "
                "in the snapshot; official readers treat them as unwritten",
                _REWRITE,
            )
    boxes = [ref.extents for ref in refs if ref.extents is not None]
    if _any_overlap(boxes):
        yield warning(
            Code.EXTENTS_OVERLAP,
            place,
            "the extents of its manifests overlap: which reference is read is undefined",
            _REWRITE,
        )
    yield from _outside_grid(node, boxes, place)


@dataclass(frozen=True, slots=True)
class Landed:
    """A commit in a history, by the token it was made with."""

    snapshot: str
    token: str


def check_once(landed: Iterable[Landed], where: str) -> Iterator[Finding]:
    """No two commits of one history were made for the same token."""
    for token, count in Counter(one.token for one in landed).items():
        if count > 1:
            yield warning(
                Code.COMMIT_TWICE,
                where,
                f"{count} commits carry the token {token!r}: an attempt did not find what an "
                "earlier one had committed",
                "compare the commits, and revert the duplicate",
            )


def check_acknowledged(
    landed: Sequence[Landed], acknowledged: Mapping[str, str | None], where: str
) -> Iterator[Finding]:
    """Every acknowledged commit is in a history once, and no other more than once.

    :param acknowledged: by token, the snapshot reported to its writer; `None` if nothing was
        reported, so that the commit may or may not exist.
    """
    yield from check_once(landed, where)
    found = {one.token: one.snapshot for one in landed}
    for token, snapshot in acknowledged.items():
        if snapshot is not None and found.get(token) != snapshot:
            yield error(
                Code.COMMIT_LOST,
                where,
                f"the commit {snapshot} of {token!r} was acknowledged, and the history has "
                f"{found.get(token)}",
                _LOST,
            )


def boxes(manifest: Manifest) -> dict[NodeId, tuple[Extents, ...]]:
    """The bounding boxes of each array in a manifest, one per rank."""
    return {
        node_id: tuple(refs.extents() for refs in parts if len(refs))
        for node_id, parts in manifest.arrays.items()
    }


def _outside_grid(node: Node, boxes: list[Extents], place: str) -> Iterator[Finding]:
    try:
        counts = array_document(node).num_chunks
    except IcechunkError as problem:
        yield error(
            Code.OUTSIDE_GRID,
            place,
            f"its `zarr.json` cannot be used: {problem.message}",
            "write the array's metadata again",
        )
        return
    for box in boxes:
        if len(box) == len(counts) and any(
            high > count for (_, high), count in zip(box, counts, strict=True)
        ):
            yield warning(
                Code.OUTSIDE_GRID,
                place,
                f"a manifest covers {box}, but the array has {counts} chunks",
                _REWRITE,
            )
            return


def _manifests(node: Node) -> tuple[ManifestRef, ...]:
    return node.array.manifests if node.array is not None else ()


def _box_of(found: tuple[Extents, ...], ref: ManifestRef) -> Extents | None:
    rank = None if ref.extents is None else len(ref.extents)
    return next((box for box in found if len(box) == rank), None)


def _within(inner: Extents, outer: Extents) -> bool:
    return all(low >= a and high <= b for (low, high), (a, b) in zip(inner, outer, strict=True))


def _any_overlap(boxes: list[Extents]) -> bool:
    """Whether two boxes share a chunk; a sweep over the first dimension."""
    ranked = sorted(boxes)
    if not ranked or not ranked[0]:
        return len(ranked) > 1
    active: list[Extents] = []
    for box in ranked:
        active = [other for other in active if other[0][1] > box[0][0]]
        for other in active:
            if len(other) == len(box) and all(
                low < b and a < high for (low, high), (a, b) in zip(box, other, strict=True)
            ):
                return True
        active.append(box)
    return False


def _lost_chunks(lost: ChunkRefs, where: str, layout: Layout) -> Iterator[Finding]:
    if len(lost):
        yield error(
            Code.CHUNK_MISSING,
            where,
            f"{len(lost)} references name chunk files that do not exist: "
            + _examples(lost, layout),
            _LOST,
        )


def _examples(refs: ChunkRefs, layout: Layout) -> str:
    rows = refs.take(slice(_EXAMPLES))
    keys = [layout.chunk(ChunkId(row.tobytes())) for row in rows.chunk_id]
    more = ", ..." if len(refs) > _EXAMPLES else ""
    return ", ".join(keys) + more
