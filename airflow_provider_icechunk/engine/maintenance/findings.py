"""Single checks of decoded metadata against what is stored. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from airflow_provider_icechunk.exceptions import IcechunkError
from airflow_provider_icechunk.format.generations.base import Layout
from airflow_provider_icechunk.format.ids import ChunkId, ManifestId, NodeId
from airflow_provider_icechunk.format.references import ChunkRefs, Extents, RefKind
from airflow_provider_icechunk.format.snapshot import Manifest, ManifestRef, Node, Snapshot
from airflow_provider_icechunk.repository.documents import array_document
from airflow_provider_icechunk.repository.maintenance.findings import (
    Code,
    Finding,
    error,
    warning,
)
from airflow_provider_icechunk.repository.maintenance.idsets import (
    contains,
    from_rows,
    of_bytes,
    whole,
)
from airflow_provider_icechunk.repository.maintenance.listing import Listing
from airflow_provider_icechunk.repository.maintenance.reachable import all_refs

_EXAMPLES = 3
_LOST = (
    "restore the file from a backup, or reset the branch to a snapshot that does not need it; "
    "tags that need it have to be deleted"
)
_REWRITE = "run `rewrite_manifests` on the branch"


def check_manifest_list(snapshot: Snapshot, files: Listing, layout: Layout) -> Iterator[Finding]:
    """A snapshot lists exactly the manifests that its nodes use, and knows their sizes."""
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
                f"{stated}; official readers fetch only so many and fail",
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
    """A snapshot knows how many references its manifests hold."""
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
    """The boxes of an array hold their references, do not overlap and lie in its grid.

    `manifests` gives, for each manifest, the true bounding boxes of its arrays by rank.
    """
    place = f"{layout.snapshot(snapshot.id)} {node.path}"
    refs = _manifests(node)
    for ref in refs:
        true = _box_of(manifests.get(ref.id, {}).get(node.id, ()), ref)
        if ref.extents is not None and true is not None and not _within(true, ref.extents):
            yield error(
                Code.EXTENTS_TOO_SMALL,
                place,
                f"{layout.manifest(ref.id)} holds chunks outside of the box {ref.extents} "
                "that the snapshot gives it; official readers take them for unwritten",
                _REWRITE,
            )
    boxes = [ref.extents for ref in refs if ref.extents is not None]
    if _any_overlap(boxes):
        yield warning(
            Code.EXTENTS_OVERLAP,
            place,
            "the boxes of its manifests overlap: which reference is read is not defined",
            _REWRITE,
        )
    yield from _outside_grid(node, boxes, place)


def boxes(manifest: Manifest) -> dict[NodeId, tuple[Extents, ...]]:
    """The bounding box of each array in a manifest, one for each rank found."""
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
            "write the array's metadata anew",
        )
        return
    for box in boxes:
        if len(box) == len(counts) and any(
            high > count for (_, high), count in zip(box, counts, strict=True)
        ):
            yield warning(
                Code.OUTSIDE_GRID,
                place,
                f"a manifest reaches to {box}, but the array has {counts} chunks",
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
    """Whether two boxes have a common chunk; a sweep over the first dimension."""
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
