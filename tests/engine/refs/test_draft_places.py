"""Repositories of `draft` as other software might lay them out: other names, other folders."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.refs.legacy.draft import folder_below
from airflow_provider_icechunk.engine.storage.base import Anything, Storage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import FormatError, StorageError, UnsupportedError

VALUES = np.arange(600, dtype="i4").reshape(3, 200)
NAMES = {
    "structure_file": "today/structure",
    "attrs_file": "notes.parquet",
    "inventory_file": "index of 2024/part ü.bin",
    "chunk_file": "data/{}.chunk",
}
LIKE_OURS = {
    "structure_file": "ab" * 16 + ".parquet",
    "attrs_file": "6e616d65" + "0" * 24 + ".parquet",
    "inventory_file": "6e616d65" + "1" * 24 + ".parquet",
    "chunk_file": "6e616d65" + "2" * 23 + "{}",
}
"""Names like those of this package, but not for the ids that it would give these files."""


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return MemoryStorage()
    return icechunk.local_filesystem_storage(tmp_path / "repo")


def filled(storage: Storage, arrays: int = 1) -> icechunk.Repository:
    config = icechunk.RepositoryConfig(attributes_file_threshold_bytes=100)
    packing = icechunk.Packing(below=0)
    repo = icechunk.Repository.create(storage, config, spec_version="draft", packing=packing)
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a", attributes={"text": "x" * 500})
    for number in range(arrays):
        root.create_array(f"a{number}", data=VALUES + number, chunks=(1, 200), compressors=None)
    session.commit("first")
    return repo


def values(repo: icechunk.Repository, path: str = "a0") -> Any:
    return zarr.open_array(repo.readonly_session("main").store, path=path, mode="r")[...]


def read(storage: Storage, key: str) -> pa.Table:
    found = storage.get(key)
    assert found is not None
    return pq.read_table(io.BytesIO(found.data))


def plain(table: pa.Table, rows: list[dict[str, Any]]) -> bytes:
    """A file of other software: without the notes of this package."""
    sink = io.BytesIO()
    schema = table.schema.remove_metadata()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink)
    return sink.getvalue()


def state(storage: Storage) -> dict[str, Any]:
    found = storage.get("state.json")
    assert found is not None
    value: dict[str, Any] = json.loads(found.data)
    del value["sha256"]
    return value


def save(storage: Storage, value: dict[str, Any]) -> None:
    storage.put("state.json", json.dumps(value).encode(), expect=Anything())


def move(storage: Storage, old: str, new: str) -> None:
    found = storage.get(old)
    assert found is not None
    storage.put(new, found.data, expect=Anything())
    storage.delete([old])


def give_other_names(storage: Storage, names: dict[str, str] = NAMES) -> None:
    """Call every file of the newest snapshot by a name of another software's choice."""
    document = state(storage)
    newest = document["snapshots"][-1]
    structure = read(storage, f"s/{newest['structure-file']}")
    rows = structure.to_pylist()
    for row in rows:
        if row["attrs_reference"] is not None:
            move(storage, f"a/{row['attrs_reference']['attrs_file']}", f"a/{names['attrs_file']}")
            row["attrs_reference"]["attrs_file"] = names["attrs_file"]
        for inventory in row["inventories"] or ():
            key = f"i/{inventory['inventory_file']}"
            table = read(storage, key)
            chunks = table.to_pylist()
            for chunk in chunks:
                name = names["chunk_file"].format(chunk["id"])
                move(storage, f"c/{chunk['chunk_file']}", f"c/{name}")
                chunk["chunk_file"] = name
            inventory["inventory_file"] = names["inventory_file"]
            storage.delete([key])
            name = f"i/{names['inventory_file']}"
            storage.put(name, plain(table, chunks), expect=Anything())
    storage.delete([f"s/{newest['structure-file']}"])
    storage.put(f"s/{names['structure_file']}", plain(structure, rows), expect=Anything())
    newest["structure-file"] = names["structure_file"]
    save(storage, document | {"generation": document["generation"] + 1})


def test_files_may_have_any_names_and_keep_them(storage: Storage) -> None:
    filled(storage)
    give_other_names(storage)
    repo = icechunk.Repository.open(storage)
    assert (values(repo) == VALUES).all()
    root = zarr.open_group(repo.readonly_session("main").store, mode="r")
    assert root.attrs["text"] == "x" * 500
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a0", mode="r+")[2] = 7
    session.commit("one chunk is new, the others stay in their files")
    again = icechunk.Repository.open(storage)
    assert (values(again)[:2] == VALUES[:2]).all()
    assert (values(again)[2] == 7).all()
    newest = state(storage)["snapshots"][-1]
    inventories = [
        inventory["inventory_file"]
        for row in read(storage, f"s/{newest['structure-file']}").to_pylist()
        for inventory in row["inventories"] or ()
    ]
    (name,) = inventories
    files = set(read(storage, f"i/{name}").column("chunk_file").to_pylist())
    assert len(files) == 3
    assert files > {"data/0.chunk", "data/1.chunk"}


def test_files_with_other_names_survive_maintenance_and_migration(storage: Storage) -> None:
    filled(storage)
    give_other_names(storage)
    storage.put("c/nobody knows", b"not ours", expect=Anything())
    repo = icechunk.Repository.open(storage)
    assert not [one for one in repo.verify().findings if one.severity != "info"]
    repo.garbage_collect(storage.now() + timedelta(days=1))
    assert (values(icechunk.Repository.open(storage)) == VALUES).all()
    assert storage.get("c/nobody knows") is not None, "a name nobody gave is not garbage"
    storage.delete(["c/data/1.chunk"])
    codes = {one.code for one in icechunk.Repository.open(storage).verify().findings}
    assert any("chunk" in str(code).lower() for code in codes), "a missing one is missed"


@pytest.mark.parametrize("is_open", [False, True])
def test_names_that_look_like_ours_are_in_use_as_well(storage: Storage, is_open: bool) -> None:
    """Other software may choose UUIDs, too, and others than a snapshot's id for its file."""
    open_before = filled(storage)
    give_other_names(storage, LIKE_OURS)
    repo = open_before if is_open else icechunk.Repository.open(storage)
    assert repo.collect(storage.now() + timedelta(days=1)).bytes_deleted == 0
    found = icechunk.Repository.open(storage)
    assert (values(found) == VALUES).all()
    root = zarr.open_group(found.readonly_session("main").store, mode="r")
    assert root.attrs["text"] == "x" * 500
    assert not found.verify().findings


def test_files_with_other_names_move_up(storage: Storage) -> None:
    filled(storage)
    give_other_names(storage)
    icechunk.migrate(storage, to="1")
    newer = icechunk.Repository.open(storage)
    assert newer.spec_version == "1"
    assert (values(newer) == VALUES).all()


def test_rows_of_an_inventory_begin_where_the_structure_says(storage: Storage) -> None:
    repo = filled(storage, arrays=20)
    session = repo.writable_session("main")
    for number in range(0, 20, 2):
        zarr.open_array(session.store, path=f"a{number}", mode="r+")[0] = 1
    session.commit("half of them")
    moving = icechunk.Repository.open(storage).rearrange_session("main")
    moving.move("/a3", "/b3")
    moving.commit("written by another process")
    shared = 0
    for entry in state(storage)["snapshots"][1:]:
        for row in read(storage, f"s/{entry['structure-file']}").to_pylist():
            for inventory in row["inventories"] or ():
                owners = read(storage, f"i/{inventory['inventory_file']}").column("array_id")
                first = owners.to_pylist().index(row["id"])
                assert inventory["row"] == first
                shared += first > 0
    assert shared > 20, "arrays share files, or nothing was checked"


def move_data(storage: Storage, folder: str, store_root: str) -> None:
    for item in list(storage.scan("")):
        if item.key.split("/")[0] in ("s", "i", "c", "a"):
            move(storage, item.key, folder + item.key)
    document = state(storage)
    save(
        storage,
        document | {"store_root": store_root, "generation": document["generation"] + 1},
    )


@pytest.mark.parametrize("spelling", ["{}/data/v1", "{}/data/v1/", "data/v1", "./data/v1/"])
def test_the_state_may_be_apart_from_the_data(storage: Storage, spelling: str) -> None:
    filled(storage)
    root = spelling.format(storage.location)
    move_data(storage, "data/v1/", root)
    repo = icechunk.Repository.open(storage)
    assert (values(repo) == VALUES).all()
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a0", mode="r+")[2] = 7
    zarr.open_group(session.store, mode="r+").attrs["text"] = "y" * 500
    session.commit("beside the others")
    assert state(storage)["store_root"] == root
    folders = {item.key.split("/")[0] for item in storage.scan("")}
    assert folders <= {"state.json", "config.yaml", "data"}
    again = icechunk.Repository.open(storage)
    assert (values(again)[2] == 7).all()
    assert zarr.open_group(again.readonly_session("main").store, mode="r").attrs["text"][0] == "y"
    assert not [one for one in again.verify().findings if one.severity != "info"]
    again.expire_snapshots(storage.now() + timedelta(days=1))
    again.garbage_collect(storage.now() + timedelta(days=1))
    assert (values(icechunk.Repository.open(storage))[2] == 7).all()
    icechunk.migrate(storage, to="1")
    assert (values(icechunk.Repository.open(storage))[2] == 7).all()


@pytest.mark.parametrize(
    ("store_root", "location", "folder"),
    [
        (None, "s3://bucket/a", ""),
        ("", "s3://bucket/a", ""),
        ("s3://bucket/a", "s3://bucket/a", ""),
        ("s3://bucket/a/", "s3://bucket/a/", ""),
        ("S3://bucket/a/b/c/", "s3://bucket/a", "b/c/"),
        ("s3a://bucket/a/b", "s3://bucket/a", "b/"),
        ("/data/repo/v1", "file:///data/repo", "v1/"),
        ("file:/data/repo/v1", "file:///data/repo", "v1/"),
        ("file://localhost/data/repo/v1", "file:///data/repo", "v1/"),
        ("file:///data/my%20repo/v%201", "file:///data/my repo", "v 1/"),
        ("v1", "file:///data/repo", "v1/"),
        ("%2e%2e/c", "file:///data/repo", "%2e%2e/c/"),
    ],
)
def test_a_root_below_the_opened_place_is_a_folder_of_it(
    store_root: str | None, location: str, folder: str
) -> None:
    assert folder_below(store_root, location, where="state.json") == folder


@pytest.mark.parametrize(
    ("store_root", "location"),
    [
        ("s3://other/a", "s3://bucket/a"),
        ("s3://bucket/ab", "s3://bucket/a"),
        ("s3://bucket", "s3://bucket/a"),
        ("https://bucket/a/b", "s3://bucket/a"),
        ("file:///etc", "s3://bucket/a"),
        ("/etc", "file:///data/repo"),
        ("file:///data/repo2", "file:///data/repo"),
        ("s3://bucket/a/../b", "s3://bucket/a"),
        ("s3://bucket/a/%2e%2e/b", "s3://bucket/a/x"),
        ("s3://bucket/a//b", "s3://bucket/a"),
        ("../b", "s3://bucket/a"),
        ("b/../../c", "s3://bucket/a"),
        ("b\\..\\c", "file:///data"),
        ("b\0", "file:///data"),
    ],
)
def test_a_root_elsewhere_is_refused(store_root: str, location: str) -> None:
    with pytest.raises((UnsupportedError, FormatError), match=r"state\.json"):
        folder_below(store_root, location, where="state.json")


def test_nothing_outside_of_the_opened_place_is_read(tmp_path: Path) -> None:
    elsewhere = icechunk.local_filesystem_storage(tmp_path / "elsewhere")
    filled(elsewhere)
    here = icechunk.local_filesystem_storage(tmp_path / "here")
    document = state(elsewhere)
    save(here, document | {"store_root": elsewhere.location})
    with pytest.raises(UnsupportedError, match="not below"):
        icechunk.Repository.open(here)


def test_data_that_moves_while_it_is_open_is_noticed() -> None:
    storage = MemoryStorage()
    repo = filled(storage)
    move_data(storage, "data/", "data")
    with pytest.raises(StorageError, match="open the repository again"):
        repo.lookup_branch("main")
