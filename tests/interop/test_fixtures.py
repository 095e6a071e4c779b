"""Repositories that the original software wrote, read and continued through the public API."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import icechunk as official
import numpy as np
import pytest
import zarr
from _pytest.mark import ParameterSet
from support import fixtures, trees

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.format.chunk_refs import ETag, LastModified, Virtual
from airflow_provider_icechunk.engine.storage.base import Put
from airflow_provider_icechunk.engine.virtual.transports import Part
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    IcechunkError,
    NotFoundError,
    VirtualAccessDeniedError,
    VirtualChunkError,
)

pytestmark = fixtures.needs_fixtures

READABLE = [*fixtures.names("g2-"), *fixtures.names("g3-"), *fixtures.names("g4-")]
TEST_REPOS = [name for name in READABLE if "test-repo" in name]
WRONG_LENGTH = "g2-0a17588c-test-repo"
"""Its virtual reference says 100 bytes, the object has 19."""


class ServedBytes:
    """A transport that serves one object, whatever its location."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked: list[str] = []

    def fetch(self, grant, location, start, stop, checksum) -> Part:
        self.asked.append(str(location))
        return Part(self.content[start:stop], "v1")


def opened(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The repository with its virtual object served under a grant, and what it must contain."""
    root, expected = fixtures.unpack(name, tmp_path)
    storage = icechunk.local_filesystem_storage(root)
    virtual = expected.get("virtual") or {}
    if "content_hex" not in virtual:
        return icechunk.Repository.open(storage), expected
    prefix = virtual["location"].rpartition("/")[0] + "/"
    config = icechunk.RepositoryConfig()
    store = icechunk.ObjectStoreConfig.S3(icechunk.S3Options(region="us-east-1", anonymous=True))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store))
    served = ServedBytes(bytes.fromhex(virtual["content_hex"]))
    monkeypatch.setattr(
        "airflow_provider_icechunk.engine.virtual.reader.NetworkTransport", lambda: served
    )
    repo = icechunk.Repository.open(storage, config, authorize_virtual_chunk_access={prefix: None})
    return repo, expected


def session_at(repo: Any, ref: str):
    kind, _, name = ref.partition(":")
    return repo.readonly_session(**{kind: name})


def readable_arrays(expected: dict[str, Any], name: str):
    """References and arrays whose values can be read: all but chunks that exist nowhere.

    Arrays with a rectilinear grid are left out as well: this release of Zarr has none.
    """
    for ref, contents in expected["contents"].items():
        for path, array in contents["arrays"].items():
            wrong = name == WRONG_LENGTH and array["chunk_refs"].get("virtual")
            regular = array["chunk_grid"]["name"] == "regular"
            if array["sha256"] is not None and not wrong and regular:
                yield ref, path, array


def assert_values(repo, expected, name) -> None:
    for ref, path, array in readable_arrays(expected, name):
        found = trees.values(session_at(repo, ref), path)
        assert trees.digest(found) == array["sha256"], (ref, path)


@pytest.mark.parametrize("name", READABLE)
def test_branches_tags_and_history_are_as_recorded(name, tmp_path, monkeypatch):
    repo, expected = opened(name, tmp_path, monkeypatch)
    assert {b: repo.lookup_branch(b) for b in repo.list_branches()} == expected["branches"]
    assert {t: repo.lookup_tag(t) for t in repo.list_tags()} == expected["tags"]
    for tag in expected["deleted_tags"]:
        with pytest.raises(NotFoundError):
            repo.lookup_tag(tag)
        with pytest.raises(AlreadyExistsError):
            repo.create_tag(tag, expected["branches"]["main"])
    for ref, history in expected["ancestry"].items():
        kind, _, of = ref.partition(":")
        found = list(repo.ancestry(**{kind: of}))
        assert [(info.id, info.message) for info in found] == [
            (item["id"], item["message"]) for item in history
        ]
        for info, item in zip(found, history, strict=True):
            if "written_at" in item:
                assert info.written_at == datetime.fromisoformat(item["written_at"])
            if "metadata" in item:
                assert info.metadata == item["metadata"]
        parents = [info.parent_id for info in found]
        assert parents == [*(info.id for info in found[1:]), None]


@pytest.mark.parametrize("name", READABLE)
def test_nodes_and_references_are_as_recorded(name, tmp_path, monkeypatch):
    repo, expected = opened(name, tmp_path, monkeypatch)
    for ref, contents in expected["contents"].items():
        session = session_at(repo, ref)
        assert session.snapshot_id == contents["snapshot"]
        found = trees.contents(session)
        assert found["groups"] == contents["groups"], ref
        assert found["arrays"].keys() == contents["arrays"].keys(), ref
        for path, array in contents["arrays"].items():
            for fact, value in array.items():
                if fact == "chunk_refs":
                    value = {"native": 0, "inline": 0, "virtual": 0} | value
                if fact in found["arrays"][path]:
                    assert found["arrays"][path][fact] == value, (ref, path, fact)


@pytest.mark.parametrize("name", READABLE)
def test_values_are_as_recorded(name, tmp_path, monkeypatch):
    repo, expected = opened(name, tmp_path, monkeypatch)
    assert list(readable_arrays(expected, name))
    assert_values(repo, expected, name)


def test_a_virtual_reference_longer_than_its_object_is_an_error(tmp_path, monkeypatch):
    repo, _ = opened(WRONG_LENGTH, tmp_path, monkeypatch)
    with pytest.raises(VirtualChunkError, match="shorter than its reference"):
        trees.values(repo.readonly_session("main"), "/group1/big_chunks")


@pytest.mark.parametrize("name", TEST_REPOS)
def test_virtual_chunks_are_refused_without_a_grant(name, tmp_path):
    root, _ = fixtures.unpack(name, tmp_path)
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(root))
    with pytest.raises(VirtualAccessDeniedError):
        trees.values(repo.readonly_session("main"), "/group1/big_chunks")


@pytest.mark.parametrize("name", [n for n in READABLE if "features" in n])
def test_virtual_references_keep_their_checksums(name, tmp_path, monkeypatch):
    repo, expected = opened(name, tmp_path, monkeypatch)
    session = repo.readonly_session("main")
    refs = session.tree.references(session.tree.array("/virt"))
    first = expected["contents"]["branch:main"]["arrays"]["/virt"]["first_virtual_refs"]
    for index, _, location, offset, length, etag, modified in first:
        checksum = ETag(etag) if etag else LastModified(modified) if modified else None
        assert refs.find((index,)) == Virtual(location, offset, length, checksum)
    assert len(session.all_virtual_chunk_locations()) == len(set(refs.locations()))


@pytest.mark.parametrize("name", TEST_REPOS)
def test_the_difference_since_the_empty_structure_is_known(name, tmp_path, monkeypatch):
    repo, expected = opened(name, tmp_path, monkeypatch)
    empty = expected["ancestry"]["branch:main"][2]["id"]
    if not list(tmp_path.glob("*/transactions/*")):
        with pytest.raises(IcechunkError, match="transaction log"):
            repo.diff(from_snapshot_id=empty, to_branch="main")
        return
    diff = repo.diff(from_snapshot_id=empty, to_branch="main")
    assert not diff.new_groups | diff.new_arrays | diff.deleted_groups | diff.deleted_arrays
    assert diff.updated_chunks == {
        "/group1/big_chunks": [[0, 0], [0, 1], [1, 0], [1, 1]],
        "/group1/small_chunks": [[0], [1], [2], [3], [4]],
    }


@pytest.mark.parametrize("name", READABLE)
def test_commits_on_top_preserve_everything(name, tmp_path, monkeypatch):
    repo, expected = opened(name, tmp_path, monkeypatch)
    before = {path: a for ref, path, a in readable_arrays(expected, name) if ref == "branch:main"}
    parent = repo.lookup_branch("main")
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("ours/new", data=np.arange(12.0).reshape(3, 4), chunks=(2, 2))
    one = min(before)
    zarr.open_array(session.store, path=one.strip("/")).attrs["touched"] = "by us"
    new = session.commit("continued", {"by": "us", "n": [1, 2.5, None]})

    for attempt in (repo, icechunk.Repository.open(repo.storage, repo.config)):
        head = attempt.lookup_snapshot(new)
        assert attempt.lookup_branch("main") == new
        assert (head.parent_id, head.message) == (parent, "continued")
        assert head.metadata == {"by": "us", "n": [1, 2.5, None]}
    after = repo.readonly_session("main")
    assert (trees.values(after, "/ours/new") == np.arange(12.0).reshape(3, 4)).all()
    attributes = dict(zarr.open_array(after.store, path=one.strip("/"), mode="r").attrs)
    assert attributes == before[one]["attributes"] | {"touched": "by us"}
    for path, array in before.items():
        assert trees.digest(trees.values(after, path)) == array["sha256"]
    unchanged = {r: c for r, c in expected["contents"].items() if r != "branch:main"}
    assert_values(repo, expected | {"contents": unchanged}, name)


@pytest.mark.parametrize("name", [n for n in fixtures.names("g3-") if "f1dc0bbe" not in n])
def test_the_official_library_reads_what_we_added(name, tmp_path, monkeypatch):
    repo, expected = opened(name, tmp_path, monkeypatch)
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("ours/new", data=np.arange(12.0).reshape(3, 4), chunks=(2, 2))
    session.commit("continued")

    theirs = official.Repository.open(official.local_filesystem_storage(str(repo.storage.root)))
    ours = repo.readonly_session("main")
    read = theirs.readonly_session("main")
    assert trees.contents(read) == trees.contents(ours)
    for path, array in expected["contents"]["branch:main"]["arrays"].items():
        if array["sha256"] and not array["chunk_refs"].get("virtual"):
            assert trees.digest(trees.values(read, path)) == array["sha256"]
    assert (trees.values(read, "/ours/new") == np.arange(12.0).reshape(3, 4)).all()
    assert [i.id for i in theirs.ancestry(branch="main")] == [
        i.id for i in repo.ancestry(branch="main")
    ]


def _on_storages() -> Iterator[ParameterSet]:
    """Each on one kind of storage, by turns, and on the others in long runs."""
    for number, name in enumerate(READABLE):
        for place, kind in enumerate(("memory", "local", "moto", "seaweedfs")):
            marks = [pytest.mark.seaweedfs] * (kind == "seaweedfs")
            yield pytest.param(
                name, kind, marks=[*marks, *[pytest.mark.long] * (number % 4 != place)]
            )


@pytest.mark.parametrize(("name", "places"), list(_on_storages()), indirect=["places"])
def test_a_fixture_is_the_same_on_every_kind_of_storage(name, backend, tmp_path, monkeypatch):
    local, expected = opened(name, tmp_path, monkeypatch)
    storage = backend()
    storage.put_many(
        [Put(item.key, local.storage.get(item.key).data) for item in local.storage.scan("")]
    )
    repo = icechunk.Repository.open(backend())
    assert {b: repo.lookup_branch(b) for b in repo.list_branches()} == expected["branches"]
    assert {t: repo.lookup_tag(t) for t in repo.list_tags()} == expected["tags"]
    for ref, history in expected["ancestry"].items():
        kind, _, of = ref.partition(":")
        found = [(info.id, info.message) for info in repo.ancestry(**{kind: of})]
        assert found == [(item["id"], item["message"]) for item in history]
        assert trees.documents(session_at(repo, ref)) == trees.documents(session_at(local, ref))
