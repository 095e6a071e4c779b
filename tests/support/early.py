"""Values of the two oldest generations, and one scenario that must have the same result in every
generation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from hypothesis import strategies as st
from support.model import texts

from airflow_provider_icechunk.engine.commit.conflicts import BasicConflictSolver, ConflictDetector
from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    Inline,
    Native,
    Payload,
    Virtual,
)
from airflow_provider_icechunk.engine.format.ids import ChunkId, ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.model import (
    ArrayData,
    Dimension,
    Manifest,
    ManifestRef,
    Node,
    Snapshot,
    in_order,
)
from airflow_provider_icechunk.engine.format.wire import json as js
from airflow_provider_icechunk.engine.objects.line import LINE_KEY

SEEDS = Path(__file__).resolve().parents[3] / "shared" / "seeds"
SNAPSHOT = SnapshotId(bytes(range(16)))
PARENT = SnapshotId(bytes(range(16, 32)))
MANIFEST = ManifestId(bytes(range(32, 48)))

wide_ids = st.binary(min_size=16, max_size=16)


def seed(prefix: str) -> str | None:
    """The text of a seed, if the seeds are available."""
    found = sorted(SEEDS.glob(f"{prefix}*")) if SEEDS.is_dir() else []
    return found[0].read_text() if found else None


def unsealed(data: bytes) -> Any:
    """A document without the checksum that ends it, to be looked at or changed."""
    value = json.loads(data)
    assert value.pop(js.MEMBER)
    return value


def number(value: int) -> NodeId:
    return NodeId(value.to_bytes(8, "big"))


def document(**changes: Any) -> bytes:
    fields = {
        "zarr_format": 3,
        "node_type": "array",
        "attributes": {"units": "K", "levels": [1, 2.5, None]},
        "shape": [10, 7],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [5, 5]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "NaN",
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "dimension_names": ["y", None],
    } | changes
    return json.dumps({k: v for k, v in fields.items() if v is not ...}).encode()


def array_node(path: str = "/group/array", identity: int = 7, **changes: Any) -> Node:
    refs = (ManifestRef(MANIFEST, ((0, 2), (1, 2))),)
    data = ArrayData((Dimension(10, 5), Dimension(7, 5)), ("y", None), refs)
    return Node(number(identity), path, document(**changes), data)


def group_node(path: str, identity: int, attributes: dict[str, Any] | None = None) -> Node:
    fields: dict[str, Any] = {"zarr_format": 3, "node_type": "group"}
    if attributes is not None:
        fields["attributes"] = attributes
    return Node(number(identity), path, json.dumps(fields).encode())


def snapshot_of(*nodes: Node, parent: SnapshotId | None = None, **changes: Any) -> Snapshot:
    fields: dict[str, Any] = {
        "id": SNAPSHOT,
        "parent_id": parent,
        "flushed_at": 1_726_650_000_123_456,
        "message": "a message",
        "metadata": {"author": "someone", "nested": {"list": [1, None, "x"]}},
        "nodes": in_order(nodes),
    }
    return Snapshot(**fields | changes)


def plain(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as plain values, documents parsed."""
    return {
        "id": snapshot.id,
        "parent": snapshot.parent_id,
        "flushed_at": snapshot.flushed_at,
        "message": snapshot.message,
        "metadata": dict(snapshot.metadata),
        "nodes": [
            (path, node.id, json.loads(node.user_data), node.array)
            for path, node in snapshot.nodes.items()
        ],
    }


def payloads(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[Payload]:
    return st.one_of(
        st.binary(max_size=40).map(Inline),
        st.builds(Native, wide_ids.map(ChunkId), st.integers(0, 2**62), sizes),
        st.builds(
            Virtual, texts.map(lambda text: f"s3://bucket/{text}"), st.integers(0, 2**62), sizes
        ),
    )


@st.composite
def manifests(draw: st.DrawFn, *, top: int, nodes: int, sizes: int) -> Manifest:
    """A manifest of some arrays of any rank, with indices up to `top`."""
    arrays = {}
    index = st.one_of(st.integers(0, 3), st.integers(0, top))
    for node in sorted(draw(st.sets(st.integers(0, nodes), max_size=3))):
        rank = draw(st.integers(0, 4))
        items = st.dictionaries(
            st.tuples(*[index] * rank), payloads(st.integers(0, sizes)), min_size=1, max_size=10
        )
        arrays[number(node)] = (ChunkRefs.from_items(rank, draw(items).items()),)
    return Manifest(MANIFEST, arrays)


def chosen(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata with the list of other commits' ids replaced by its length: ids always differ."""
    return {key: len(value) if key == LINE_KEY else value for key, value in metadata.items()}


def tell(repo: Any) -> list[Any]:
    """Create, write, branch, tag, resize, delete, race, rebase; returns what each step shows."""
    seen: list[Any] = []

    def look(branch: str = "main") -> None:
        store = repo.readonly_session(branch).store
        root = zarr.open_group(store, mode="r")
        found: dict[str, Any] = {"": dict(root.attrs)}
        for path, node in sorted(root.members(max_depth=None)):
            values = np.asarray(node[...]).tolist() if isinstance(node, zarr.Array) else None
            shape = getattr(node, "shape", None)
            found[path] = (dict(node.attrs), shape, values)
        history = [(one.message, chosen(one.metadata)) for one in repo.ancestry(branch=branch)]
        seen.append((found, history[:-1], sorted(repo.list_branches()), sorted(repo.list_tags())))

    session = repo.writable_session("main")
    root = zarr.create_group(session.store, attributes={"title": "story"})
    numbers = root.create_array("numbers", shape=(20, 6), chunks=(5, 3), dtype="f4")
    numbers[:10] = np.arange(60, dtype="f4").reshape(10, 6)
    deep = root.create_array("a/b/flags", shape=(4,), chunks=(2,), dtype="bool", fill_value=True)
    deep[:2] = False
    root.create_array("scalar", shape=(), chunks=(), dtype="i8")[...] = -5
    first = session.commit("create", metadata={"step": 1, "who": ["x", None]})
    repo.create_tag("v1", first)
    repo.create_branch("side", first)
    look()

    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="numbers")
    array.resize((30, 6))
    array[25:] = 7
    array.attrs["units"] = "K"
    session.commit("grow")
    look()

    session = repo.writable_session("main")
    root = zarr.open_group(session.store)
    del root["a/b"]
    zarr.open_array(session.store, path="numbers").resize((8, 6))
    session.commit("shrink and delete")
    look()

    sessions = [repo.writable_session("main") for _ in range(3)]
    for place, one in enumerate(sessions):
        zarr.open_array(one.store, path="numbers")[place * 5 : place * 5 + 5] = 100 + place
        zarr.open_group(one.store).create_array(f"new{place}", shape=(2,), chunks=(1,), dtype="u1")[
            :
        ] = place
    sessions[0].commit("zero")
    sessions[1].commit("one", rebase_with=ConflictDetector())
    zarr.open_array(sessions[2].store, path="numbers")[:5] = -1
    sessions[2].commit("two", rebase_with=BasicConflictSolver())
    look()

    changed = repo.diff(from_tag="v1", to_branch="main")
    seen.append((changed.new_arrays, changed.deleted_arrays, changed.deleted_groups))
    seen.append((changed.updated_arrays, sorted(changed.updated_chunks)))
    session = repo.writable_session("side")
    zarr.open_array(session.store, path="scalar")[...] = 9
    session.commit("aside")
    look("side")
    repo.reset_branch("side", first)
    look("side")
    repo.delete_branch("side")
    look()
    return seen
