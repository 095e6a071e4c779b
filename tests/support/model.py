"""Hypothesis strategies of the format's values, and plain forms to compare them by."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    ETag,
    Inline,
    LastModified,
    Native,
    Payload,
    Virtual,
)
from airflow_provider_icechunk.engine.format.ids import ChunkId, ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.model import (
    ArrayData,
    Dimension,
    Manifest,
    ManifestFile,
    ManifestRef,
    Node,
    Snapshot,
    TransactionLog,
    in_order,
)

object_ids = st.binary(min_size=12, max_size=12)
node_ids = st.binary(min_size=8, max_size=8).map(NodeId)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
coordinates = st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1))
sizes = st.integers(0, 2**63 - 1)

checksums = st.one_of(
    st.none(),
    texts.filter(bool).map(ETag),
    st.integers(1, 2**32 - 1).map(LastModified),
)
payloads: st.SearchStrategy[Payload] = st.one_of(
    st.binary(max_size=40).map(Inline),
    st.builds(Native, object_ids.map(ChunkId), sizes, sizes),
    st.builds(Virtual, texts, sizes, sizes, checksums),
)


@st.composite
def reference_items(
    draw: st.DrawFn, *, ndim: int | None = None, erased: bool = False, most: int = 12
) -> tuple[int, dict[tuple[int, ...], Payload | None]]:
    """Rank and references by index, as a plain dictionary."""
    rank = draw(st.integers(0, 5)) if ndim is None else ndim
    index = st.tuples(*[coordinates] * rank)
    value = st.one_of(st.none(), payloads) if erased else payloads
    return rank, draw(st.dictionaries(index, value, max_size=most))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """A manifest of some arrays of any rank."""
    arrays = {}
    for node_id in sorted(draw(st.sets(node_ids, max_size=3))):
        rank, items = draw(reference_items())
        arrays[node_id] = (ChunkRefs.from_items(rank, items.items()),) if items else ()
    return Manifest(ManifestId(draw(object_ids)), arrays)


def plain_references(refs: ChunkRefs) -> dict[tuple[int, ...], Payload | None]:
    """References by index."""
    return {tuple(row): refs[at] for at, row in enumerate(refs.index.tolist())}


def plain_manifest(manifest: Manifest) -> dict[str, Any]:
    """A manifest as plain values, for comparison."""
    arrays = {
        node: [plain_references(part) for part in parts if len(part)]
        for node, parts in manifest.arrays.items()
    }
    return {"id": manifest.id, "arrays": list(arrays.items())}


json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        texts,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
metadata = st.dictionaries(texts, json_values, max_size=4)

segments = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=6
).filter(lambda segment: segment not in (".", ".."))
paths = st.lists(segments, max_size=3).map(lambda parts: "/" + "/".join(parts))


@st.composite
def arrays(draw: st.DrawFn) -> ArrayData:
    """What a snapshot knows of an array."""
    rank = draw(st.integers(0, 4))
    sides = st.integers(0, 2**64 - 1)
    names = st.lists(st.one_of(st.none(), texts.filter(bool)), min_size=rank, max_size=rank)
    box = st.tuples(*[st.tuples(coordinates, coordinates)] * rank)
    return ArrayData(
        shape=tuple(Dimension(draw(sides), draw(sides)) for _ in range(rank)),
        dimension_names=draw(st.one_of(st.none(), names.map(tuple))),
        manifests=tuple(
            draw(st.lists(st.builds(ManifestRef, object_ids.map(ManifestId), box), max_size=3))
        ),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """A snapshot with nodes of any kind."""
    names = sorted(draw(st.sets(paths, max_size=5)))
    ids = draw(st.lists(node_ids, min_size=len(names), max_size=len(names), unique=True))
    nodes = [
        Node(node_id, path, draw(st.binary(max_size=30)), draw(st.one_of(st.none(), arrays())))
        for node_id, path in zip(ids, names, strict=True)
    ]
    files = {
        ManifestId(identity): ManifestFile(
            ManifestId(identity), draw(st.integers(0, 2**64 - 1)), draw(coordinates)
        )
        for identity in sorted(draw(st.sets(object_ids, max_size=3)))
    }
    return Snapshot(
        id=SnapshotId(draw(object_ids)),
        parent_id=draw(st.one_of(st.none(), object_ids.map(SnapshotId))),
        flushed_at=draw(st.integers(0, 2**64 - 1)),
        message=draw(texts),
        metadata=draw(metadata),
        nodes=in_order(nodes),
        manifest_files=files,
    )


@st.composite
def logs(draw: st.DrawFn) -> TransactionLog:
    """A transaction log."""
    some = st.frozensets(node_ids, max_size=4)
    chunks = {}
    for node_id in sorted(draw(st.sets(node_ids, max_size=3))):
        rank = draw(st.integers(0, 4))
        rows = draw(st.sets(st.tuples(*[coordinates] * rank), min_size=1, max_size=6))
        chunks[node_id] = np.array(sorted(rows), np.uint32).reshape(len(rows), rank)
    return TransactionLog(
        SnapshotId(draw(object_ids)), *(draw(some) for _ in range(6)), updated_chunks=chunks
    )


def plain_log(log: TransactionLog) -> dict[str, Any]:
    """A transaction log as plain values, for comparison."""
    sets = [
        "id",
        "new_groups",
        "new_arrays",
        "deleted_groups",
        "deleted_arrays",
        "updated_groups",
        "updated_arrays",
    ]
    chunks = [(node, rows.shape[1], rows.tolist()) for node, rows in log.updated_chunks.items()]
    return {name: getattr(log, name) for name in sets} | {"updated_chunks": chunks}
