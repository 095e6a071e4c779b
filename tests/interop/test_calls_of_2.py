"""Calls that official 2.x has beside those of 1.1."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support import actors

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.tree.chunk_table import ChunkType
from airflow_provider_icechunk.exceptions import (
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)

TABLES = """
import asyncio, icechunk, json, os, sys
repo = icechunk.Repository.open(icechunk.local_filesystem_storage(sys.argv[1]))
store = repo.readonly_session("main").store
async def rows():
    found = []
    tables = store.array_chunk_iterator(sys.argv[2], 9)
    async for index, kinds, places, offsets, lengths, inlined in tables:
        assert index.dtype == "u4" and kinds.dtype == "u1" and lengths.dtype == "u8"
        found.append([index.tolist(), kinds.tolist(), places, offsets.tolist(), lengths.tolist(),
                      {str(row): data.hex() for row, data in inlined.items()}])
    return found
print(json.dumps(asyncio.run(rows())), flush=True)
os._exit(0)  # Its threads do not always survive the end of the interpreter.
"""


@pytest.fixture
def repo(tmp_path: Path) -> icechunk.Repository:
    config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=8)
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(
            "s3://bucket/far/", icechunk.s3_store(region="eu-west-1"), name="far"
        )
    )
    storage = icechunk.local_filesystem_storage(tmp_path)
    repo = icechunk.Repository.create(storage, config, spec_version=2)
    repo.save_config()
    session = repo.writable_session("main")
    array = zarr.group(session.store).create_array(
        "a", shape=(70,), chunks=(10,), dtype="u1", compressors=None, fill_value=0
    )
    array[0:30] = 7
    session.store.set_virtual_ref("a/c/4", "s3://bucket/far/file.nc", offset=3, length=10)
    session.store.set_virtual_ref("a/c/5", "vcc://far/other.nc", offset=4, length=10)
    small = zarr.group(session.store, path="g").create_array(
        "small", shape=(2,), chunks=(1,), dtype="u1", compressors=None
    )
    small[:] = 1
    session.commit("chunks of all kinds")
    return repo


def tables(session: icechunk.Session, path: str, size: int) -> list[Any]:
    async def collect() -> list[Any]:
        return [table async for table in session.store.array_chunk_iterator(path, size)]

    return asyncio.run(collect())


def plain(table: Any) -> list[Any]:
    index, kinds, places, offsets, lengths, inlined = table
    assert (index.dtype, kinds.dtype) == (np.uint32, np.uint8)
    assert (offsets.dtype, lengths.dtype) == (np.uint64, np.uint64)
    texts = {str(row): data.hex() for row, data in inlined.items()}
    return [index.tolist(), kinds.tolist(), places, offsets.tolist(), lengths.tolist(), texts]


def test_tables_of_chunks_say_where_each_of_them_is(repo):
    first, second = tables(repo.readonly_session("main"), "a", 3)
    assert first[0].tolist() == [[0], [1], [2]]
    assert first[1].tolist() == [ChunkType.NATIVE.value] * 3
    assert second[1].tolist() == [ChunkType.VIRTUAL.value] * 2
    assert second[2] == ["s3://bucket/far/file.nc", "s3://bucket/far/other.nc"]
    assert (second[3].tolist(), second[4].tolist()) == ([3, 4], [10, 10])
    (small,) = tables(repo.readonly_session("main"), "/g/small", 100)
    assert small[1].tolist() == [ChunkType.INLINE.value] * 2
    assert small[5] == {0: b"\1", 1: b"\1"}


def test_parts_of_values_are_refused_as_officially(repo):
    store = repo.writable_session("main").store
    with pytest.raises(UnsupportedError, match="whole chunk"):
        asyncio.run(store.set_partial_values([("a/c/0", 0, b"1")]))


def test_tables_of_nothing_are_refused(repo):
    session = repo.readonly_session("main")
    for path in ("nope", "g"):
        with pytest.raises(NotFoundError):
            tables(session, path, 10)
    with pytest.raises(InvalidInputError):
        tables(session, "a", 0)


@actors.needs_icechunk2
@pytest.mark.parametrize("path", ["a", "g/small"])
def test_tables_of_chunks_are_those_of_the_official_library(path, repo, tmp_path):
    assert actors.PYTHON is not None
    done = subprocess.run(
        [actors.PYTHON, "-W", "ignore", "-c", TABLES, str(tmp_path), path],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert [plain(table) for table in tables(repo.readonly_session("main"), path, 9)] == theirs


def test_workers_of_workers_merge_step_by_step(repo):
    session = repo.writable_session("main")
    middle = session.fork()
    zarr.open_array(middle.store, path="a", mode="r+")[30:40] = 3
    inner = pickle.loads(pickle.dumps(middle.fork()))
    assert not inner.has_uncommitted_changes
    array = zarr.open_array(inner.store, path="a", mode="r+")
    assert array[30] == 3
    array[60:70] = 6
    middle.merge(inner)
    session.merge(pickle.loads(pickle.dumps(middle)))
    session.commit("from far below")
    values = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert values[30:40].tolist() == [3] * 10
    assert values[60:70].tolist() == [6] * 10


def test_siblings_made_by_a_worker_are_workers_of_its_session(repo):
    session = repo.writable_session("main")
    one = session.fork()
    other = one.fork()
    for number, fork in enumerate((one, other)):
        zarr.open_array(fork.store, path="a", mode="r+")[number * 10 : number * 10 + 10] = number
    session.merge(one, other)
    session.commit("both")
    values = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert values[0:20].tolist() == [0] * 10 + [1] * 10


@pytest.mark.parametrize("removes", [True, False])
def test_the_official_name_of_the_migration_brings_a_repository_up(tmp_path, removes):
    storage = icechunk.local_filesystem_storage(tmp_path)
    config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=3)
    old = icechunk.Repository.create(storage, config)
    session = old.writable_session("main")
    zarr.create_array(session.store, name="a", data=np.arange(5))
    session.commit("five")
    same = icechunk.upgrade_icechunk_repository(old, dry_run=True)
    assert same.spec_version == "1"
    assert not (tmp_path / "repo").exists()
    new = icechunk.upgrade_icechunk_repository(
        old, dry_run=False, delete_unused_v1_files=removes, prefetch_concurrency=2
    )
    assert type(new) is icechunk.Repository
    assert new.spec_version == "2"
    assert new.config.inline_chunk_threshold_bytes == 3
    store = new.readonly_session("main").store
    assert zarr.open_array(store, path="a", mode="r")[...].tolist() == [0, 1, 2, 3, 4]
    assert any((tmp_path / "refs").rglob("ref.json")) is not removes


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (
            lambda: icechunk.hf_storage(bucket="b", prefix=None, namespace="n", access_key_id="k"),
            "endpoint_url",
        ),
    ],
)
def test_storages_that_are_not_here_say_what_to_use_instead(call, hint):
    with pytest.raises(UnsupportedError, match=hint):
        call()


@pytest.mark.parametrize("call", [icechunk.http_storage, icechunk.redirect_storage])
def test_passwords_in_urls_of_web_servers_are_refused_and_not_shown(call):
    with pytest.raises(InvalidInputError, match="user") as refused:
        call("https://u:p@host/x")
    assert "u:p" not in str(refused.value)


def test_rewritten_manifests_take_the_place_of_the_newest_commit(repo):
    before = [info.id for info in repo.ancestry(branch="main")]
    values = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:30].tolist()
    with pytest.raises(InvalidInputError, match="new_commit, amend"):
        repo.rewrite_manifests("rewritten", branch="main", commit_method="replace")
    new = repo.rewrite_manifests("rewritten", branch="main", commit_method="amend")
    after = list(repo.ancestry(branch="main"))
    assert [info.id for info in after] == [new, *before[1:]]
    assert after[0].message == "rewritten"
    assert len(repo.diff(from_snapshot_id=before[1], to_branch="main").new_arrays) == 2
    store = repo.readonly_session("main").store
    assert zarr.open_array(store, path="a", mode="r")[:30].tolist() == values


def test_a_repository_is_made_beside_other_files_if_asked(tmp_path):
    (tmp_path / "readme.txt").write_text("kept")
    storage = icechunk.local_filesystem_storage(tmp_path)
    with pytest.raises(InvalidInputError, match="check_clean_root=False"):
        icechunk.Repository.create(storage)
    repo = icechunk.Repository.open_or_create(storage, create_version=2, check_clean_root=False)
    assert repo.spec_version == "2"
    assert (tmp_path / "readme.txt").read_text() == "kept"
    with pytest.raises(InvalidInputError, match="not both"):
        icechunk.Repository.open_or_create(storage, create_version=2, spec_version=1)
    with pytest.raises(icechunk.AlreadyExistsError):
        icechunk.Repository.create(storage, check_clean_root=False)


@pytest.mark.parametrize("given", [2, "2", icechunk.SpecVersion.v2])
def test_generations_are_told_by_name_and_chosen_by_number_too(given):
    storage = icechunk.in_memory_storage()
    assert icechunk.Repository.create(storage, spec_version=given).spec_version == "2"
    assert icechunk.Repository.fetch_spec_version(storage) == "2"
