"""What is missing or wrong in a repository is an error with a name, never a fill value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import zarr
from support import trees

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs
from airflow_provider_icechunk.engine.format.ids import encode_base32
from airflow_provider_icechunk.engine.format.v1 import manifest_write
from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import (
    FormatError,
    InvalidInputError,
    Kind,
    NotFoundError,
    StorageError,
    UnsupportedError,
)


@pytest.fixture
def storage():
    storage = MemoryStorage()
    session = icechunk.Repository.create(storage).writable_session("main")
    root = zarr.group(session.store)
    root.create_array("x", data=np.arange(4000.0), chunks=(1000,), compressors=None)
    root.create_array("small", data=np.arange(4), chunks=(1,))
    session.commit("data")
    return storage


def keys(storage, folder):
    return [item.key for item in storage.scan(f"{folder}/")]


def read(storage, path="/x"):
    return trees.values(icechunk.Repository.open(storage).readonly_session("main"), path)


def test_a_missing_chunk_file_is_an_error(storage):
    storage.delete(keys(storage, "chunks"))
    with pytest.raises(StorageError, match="missing") as caught:
        read(storage)
    assert caught.value.kind is Kind.OBJECT_MISSING
    assert read(storage, "/small").tolist() == [0, 1, 2, 3]


def test_a_truncated_chunk_file_is_an_error(storage):
    for key in keys(storage, "chunks"):
        data = storage.get(key).data
        storage.put(key, data[: len(data) - 1], expect=Anything())
    with pytest.raises(StorageError, match="shorter"):
        read(storage)


def test_a_missing_manifest_is_an_error_for_every_way_to_ask(storage):
    storage.delete(keys(storage, "manifests"))
    session = icechunk.Repository.open(storage).readonly_session("main")
    for ask in (
        lambda: trees.values(session, "/x"),
        lambda: session.chunk_type("/x", [0]),
        lambda: list(session.chunk_batches("/x")),
        lambda: session.store.get_sync("x/c/0"),
        lambda: session.all_virtual_chunk_locations(),
    ):
        with pytest.raises(StorageError, match="manifest"):
            ask()
    writer = icechunk.Repository.open(storage).writable_session("main")
    zarr.open_array(writer.store, path="x")[0:1000] = 1
    with pytest.raises(StorageError, match="manifest"):
        writer.commit("on damaged ground")


def test_a_missing_snapshot_is_not_an_empty_repository(storage):
    repo = icechunk.Repository.open(storage)
    storage.delete([f"snapshots/{repo.lookup_branch('main')}"])
    with pytest.raises(NotFoundError, match="does not exist"):
        icechunk.Repository.open(storage).readonly_session("main")


def test_a_missing_log_stops_differences_and_rebases_but_not_commits(storage):
    repo = icechunk.Repository.open(storage)
    late = icechunk.Repository.open(storage).writable_session("main")
    zarr.open_array(late.store, path="x")[0:1000] = 1
    early = repo.writable_session("main")
    zarr.open_array(early.store, path="small")[0] = 1
    snapshot = early.commit("first")
    storage.delete([f"transactions/{snapshot}"])
    fresh = icechunk.Repository.open(storage)
    with pytest.raises(StorageError, match="transaction log"):
        fresh.diff(from_snapshot_id=late.snapshot_id, to_branch="main")
    with pytest.raises(StorageError, match="transaction log"):
        late.rebase(icechunk.BasicConflictSolver())
    other = fresh.writable_session("main")
    zarr.open_array(other.store, path="small")[1] = 5
    other.commit("on top")
    reader = icechunk.Repository.open(storage).writable_session("main")
    assert trees.values(reader, "/small").tolist() == [1, 5, 2, 3]


def unsorted(refs: ChunkRefs) -> ChunkRefs:
    order = np.arange(len(refs))[::-1]
    return replace(
        refs,
        **{
            name: getattr(refs, name)[order]
            for name in (
                "index",
                "kind",
                "chunk_id",
                "offset",
                "length",
                "span",
                "etag",
                "modified",
            )
        },
    )


def test_unsorted_references_are_neither_written_nor_read(storage, monkeypatch):
    """Official readers search them by halving and would show fill values."""
    repo = icechunk.Repository.open(storage)
    objects = repo._core.objects
    node = repo.readonly_session("main").tree.array("/small")
    (ref,) = node.array.manifests
    manifest = objects.manifest(ref.id)
    wrong = replace(manifest, arrays={node.id: (unsorted(manifest.of(node.id, 1)),)})
    with pytest.raises(InvalidInputError, match="in order"):
        objects.refs.codec.encode_manifest(wrong, level=3)
    monkeypatch.setattr(manifest_write, "_check", lambda refs, vectors: None)
    data = objects.refs.codec.encode_manifest(wrong, level=3)
    storage.put(f"manifests/{encode_base32(ref.id)}", data, expect=Anything())
    with pytest.raises(FormatError, match="order"):
        read(storage, "/small")


@pytest.mark.parametrize("generation", [1, 2])
def test_fields_of_newer_versions_are_read_past_but_never_lost(generation, monkeypatch):
    """A reference may say more one day; rewriting its manifest would drop that."""
    known = manifest_write._NATIVE
    newer = replace(known, slots=(*known.slots, 0, 0, 0, 0, 0, 4))
    monkeypatch.setattr(manifest_write, "_NATIVE", newer)
    monkeypatch.setattr(manifest_write, "_SHAPES", (*manifest_write._SHAPES, newer))
    storage = MemoryStorage()
    repo = icechunk.Repository.create(storage, spec_version=generation)
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="x", data=np.arange(4000.0), chunks=(1000,), compressors=None
    )
    session.commit("data of the future")
    monkeypatch.undo()
    repo = icechunk.Repository.open(storage)
    assert read(storage).tolist() == np.arange(4000.0).tolist()
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="beside", data=np.arange(4))
    session.commit("another array takes nothing away")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="x")[0] = 1.0
    with pytest.raises(UnsupportedError, match="newer version"):
        session.commit("a chunk of the same manifest")
    assert read(storage)[0] == 0
