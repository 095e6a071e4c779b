"""Files of newer official releases are read, and what they added is stored again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import zarr
from support.maintenance import layout_of

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.codec import FileType
from airflow_provider_icechunk.engine.format.ids import SnapshotId, decode_base32
from airflow_provider_icechunk.engine.format.model import Snapshot, in_order
from airflow_provider_icechunk.engine.format.v1.codec import V1Codec
from airflow_provider_icechunk.engine.format.v2.codec import V2Codec
from airflow_provider_icechunk.engine.format.v2.repo_codec import decode_repo
from airflow_provider_icechunk.engine.format.zarr_metadata import ArrayDocument, parse_node
from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.workers.codec import decode_changes, encode_changes

CODECS = {"1": V1Codec(), "2": V2Codec()}


def written(generation: str) -> MemoryStorage:
    storage = MemoryStorage()
    repo = icechunk.Repository.create(storage, spec_version=generation)
    session = repo.writable_session("main")
    root = zarr.create_group(session.store, attributes={"title": "t"})
    root.create_array("a", shape=(4,), chunks=(2,), dtype="i4")[:] = 5
    session.commit("written")
    return storage


def head(storage: MemoryStorage, generation: str) -> tuple[str, Snapshot]:
    identity = icechunk.Repository.open(storage).lookup_branch("main")
    found = SnapshotId(decode_base32(identity, 12))
    key = layout_of(storage).snapshot(found)
    data = storage.objects[key].data
    return key, CODECS[generation].decode_snapshot(data, found, where=key)


def extended(snapshot: Snapshot, *, files: bool) -> Snapshot:
    """The snapshot with what a newer release may have added everywhere."""
    return replace(
        snapshot,
        extra=b"of the snapshot",
        nodes=in_order(
            [replace(node, extra=path.encode()) for path, node in snapshot.nodes.items()]
        ),
        manifest_files={
            identity: replace(file, extra=b"of a file" if files else None)
            for identity, file in snapshot.manifest_files.items()
        },
    )


@pytest.mark.parametrize("generation", CODECS)
def test_fields_that_newer_releases_added_come_back(generation: str) -> None:
    _, snapshot = head(written(generation), generation)
    codec = CODECS[generation]
    if generation == "2":
        snapshot = replace(snapshot, parent_id=None)
    newer = extended(snapshot, files=generation == "2")
    found = codec.decode_snapshot(codec.encode_snapshot(newer), newer.id, where="s")
    assert found == newer


@pytest.mark.parametrize("generation", CODECS)
def test_a_commit_on_top_of_a_newer_snapshot_keeps_what_it_added(generation: str) -> None:
    storage = written(generation)
    key, snapshot = head(storage, generation)
    newer = extended(snapshot, files=generation == "2")
    storage.put(key, CODECS[generation].encode_snapshot(newer), expect=Anything())
    session = icechunk.Repository.open(storage).writable_session("main")
    zarr.open_group(session.store, mode="a").create_group("another")
    zarr.open_array(session.store, path="a").attrs["units"] = "K"
    session.commit("on top")
    _, top = head(storage, generation)
    assert {path: node.extra for path, node in top.nodes.items()} == {
        "/": b"/",
        "/a": b"/a",
        "/another": None,
    }
    if generation == "2":
        assert {file.extra for file in top.manifest_files.values()} == {b"of a file"}


@pytest.mark.parametrize("generation", CODECS)
def test_a_worker_that_changes_a_node_keeps_what_newer_releases_added(generation: str) -> None:
    storage = written(generation)
    key, snapshot = head(storage, generation)
    newer = extended(snapshot, files=False)
    storage.put(key, CODECS[generation].encode_snapshot(newer), expect=Anything())
    session = icechunk.Repository.open(storage).writable_session("main")
    worker = session.fork()
    zarr.open_array(worker.store, path="a").attrs["units"] = "K"
    made = encode_changes(worker.hand_over(), newer)
    changes = decode_changes(made, newer, where="the changes of a worker")
    (changed,) = changes.updated.values()
    assert changed.extra == b"/a"


@pytest.mark.parametrize("generation", CODECS)
def test_files_without_the_identifier_are_read(generation: str) -> None:
    storage = written(generation)
    expected = read(storage)
    for key, stored in storage.objects.items():
        if not envelope.has_header(stored.data):
            continue
        header = envelope.read_header(stored.data)
        kind = FileType(header.file_type)
        opened = envelope.unpack(stored.data, where=key, expected=kind, limit=1 << 20)
        assert opened.payload[4:8] == b"Ichk"
        payload = opened.payload[:4] + bytes(4) + opened.payload[8:]
        data = envelope.pack(
            kind, payload, spec_version=header.spec_version, level=3, writer="official"
        )
        storage.put(key, data, expect=Anything())
    assert read(storage) == expected
    session = icechunk.Repository.open(storage).writable_session("main")
    zarr.open_array(session.store, path="a")[0] = 7
    session.commit("on top")
    assert read(storage) == [7, 5, 5, 5]
    if generation == "2":
        assert decode_repo(storage.objects["repo"].data, where="repo").snapshots


def read(storage: MemoryStorage) -> list[int]:
    repo = icechunk.Repository.open(storage)
    assert len(list(repo.ancestry(branch="main"))) >= 2
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    return [int(value) for value in array[:]]


def rectilinear(shape: list[int], chunk_shapes: list[object]) -> bytes:
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": "int8",
            "chunk_grid": {
                "name": "rectilinear",
                "configuration": {"kind": "inline", "chunk_shapes": chunk_shapes},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
        }
    ).encode()


@pytest.mark.parametrize(
    ("shape", "chunk_shapes", "counts", "longest"),
    [
        ([10, 6], [4, [1, 2, 3]], (3, 3), (4, 3)),
        ([10, 6], [[[2, 5]], 6], (5, 1), (2, 6)),
        ([0], [4], (0,), (4,)),
        ([8, 9], [4, 5], (2, 2), (4, 5)),
    ],
)
def test_a_number_alone_is_the_size_of_all_chunks_of_a_dimension(
    shape: list[int], chunk_shapes: list[object], counts: tuple[int, ...], longest: tuple[int, ...]
) -> None:
    found = parse_node(rectilinear(shape, chunk_shapes), rectilinear=True)
    assert isinstance(found, ArrayDocument)
    assert found.num_chunks == counts
    assert found.chunk_shape == longest


def test_a_rectilinear_grid_is_stored_and_written_again_as_it_is() -> None:
    storage = MemoryStorage()
    repo = icechunk.Repository.create(storage, spec_version="2")
    session = repo.writable_session("main")
    zarr.create_group(session.store)
    document = rectilinear([10, 6], [4, [1, 2, 3]])
    session.tree.put_document("/a", document)
    session.commit("written")
    _, snapshot = head(storage, "2")
    assert snapshot.nodes["/a"].user_data == document
    assert snapshot.nodes["/a"].array is not None
    assert [side.num_chunks for side in snapshot.nodes["/a"].array.shape] == [3, 3]
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="a").create_group("g")
    session.commit("again")
    assert head(storage, "2")[1].nodes["/a"].user_data == document


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "4", None])
def test_other_sizes_are_refused(size: object) -> None:
    with pytest.raises(icechunk.IcechunkError):
        parse_node(rectilinear([4], [size]), rectilinear=True)
