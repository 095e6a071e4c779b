"""Official icechunk 2 and this package take turns on repositories of generation `2`."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support import actors

import airflow_provider_icechunk.api as icechunk

SCRIPT = Path(__file__).parents[2] / "support" / "official_v2.py"
METADATA = {
    "big": 2**63 + 5,
    "neg": -(2**63),
    "f": 1e300,
    "deep": {"l": [1, None, True, "é", [], {}]},
    "long": "x" * 70_000,
    "many": list(range(300)),
}
FIRST = "1CECHNKREP0F1RSTCMT0"

pytestmark = actors.needs_icechunk2


def theirs(action: str, folder: Path) -> dict[str, Any]:
    assert actors.PYTHON is not None
    done = subprocess.run(
        [actors.PYTHON, str(SCRIPT), action, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def opened(folder: Path) -> icechunk.Repository:
    return icechunk.Repository.open(icechunk.local_filesystem_storage(folder))


def ours(repository: icechunk.Repository) -> dict[str, Any]:
    """The same facts that the official reader gives."""
    session = repository.readonly_session("main")
    root = zarr.open_group(session.store, mode="r")
    history = list(repository.ancestry(branch="main"))
    difference = repository.diff(from_snapshot_id=history[-1].id, to_branch="main")
    members = dict(root.members(max_depth=None))
    return {
        "branches": {name: repository.lookup_branch(name) for name in repository.list_branches()},
        "tags": {name: repository.lookup_tag(name) for name in repository.list_tags()},
        "history": [[info.id, info.parent_id, info.message, info.metadata] for info in history],
        "values": {
            path: node[...].tolist()
            for path, node in members.items()
            if isinstance(node, zarr.Array) and path != "virtual"
        },
        "members": sorted(members),
        "locations": session.all_virtual_chunk_locations(),
        "new": sorted([*difference.new_groups, *difference.new_arrays]),
        "moved": [list(move) for move in difference.moved_nodes],
        "threshold": repository.config.inline_chunk_threshold_bytes,
    }


def assert_same(seen: dict[str, Any], repository: icechunk.Repository) -> None:
    for fact, value in ours(repository).items():
        assert seen[fact] == value, fact


def test_they_read_what_we_write_continue_it_and_clean_it(tmp_path):
    config = icechunk.RepositoryConfig()
    config.inline_chunk_threshold_bytes = 100
    store = icechunk.ObjectStoreConfig.S3(icechunk.S3Options(region="us-east-1"))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer("s3://bucket/", store))
    storage = icechunk.local_filesystem_storage(tmp_path)
    repository = icechunk.Repository.create(storage, config, spec_version=2)
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", data=np.arange(200.0).reshape(10, 20), chunks=(3, 7))
    root.create_array("g/b", data=np.arange(6), chunks=(4,), dimension_names=["x"])
    root.create_array("scalar", data=np.array(5))
    root.create_array("virtual", shape=(4,), chunks=(1,), dtype="i4")
    session.store.set_virtual_ref(
        "virtual/c/0", "s3://bucket/one", offset=0, length=4, validate_container=False
    )
    first = session.commit("first", METADATA)
    repository.create_branch("dev", first)
    repository.create_tag("t", first)
    repository.create_tag("gone", first)
    repository.delete_tag("gone")
    session = repository.writable_session("dev")
    zarr.open_array(session.store, path="a", mode="r+")[0] = -1
    session.commit("dev")

    seen = theirs("read", tmp_path)
    assert_same(seen, repository)
    assert seen["locations"] == ["s3://bucket/one"]
    assert seen["history"][0][3] == METADATA
    assert seen["threshold"] == 100
    assert seen["operations"] == [
        "NewCommit",
        "TagDeleted",
        "TagCreated",
        "TagCreated",
        "BranchCreated",
        "NewCommit",
        "RepoInitialized",
    ]

    seen = theirs("proceed", tmp_path)
    assert_same(seen, repository)
    assert seen["history"][0][2:] == ["theirs", {"by": "them"}]

    for row in (2, 3):
        session = repository.writable_session("main")
        zarr.open_array(session.store, path="a", mode="r+")[row] = row
        last = session.commit(f"ours again {row}")
    repository.delete_branch("dev")
    seen = theirs("clean", tmp_path)
    assert seen["deleted"] > 0
    fresh = opened(tmp_path)
    assert_same(seen, fresh)
    assert [entry[0] for entry in seen["history"]] == [last, FIRST]
    assert "/a" in fresh.diff(from_snapshot_id=FIRST, to_branch="main").new_arrays
    session = fresh.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[3] = 4
    session.commit("after the cleaning")
    assert_same(theirs("read", tmp_path), fresh)


def test_we_read_what_they_write_and_continue_it(tmp_path):
    seen = theirs("create", tmp_path)
    repository = opened(tmp_path)
    assert_same(seen, repository)
    assert repository.spec_version == "2"
    assert seen["moved"] == [["/g", "/h"], ["/g/b", "/h/b"]]
    session = repository.writable_session("dev")
    zarr.open_array(session.store, path="g/b", mode="r+")[2] = 1
    session.commit("ours on dev")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="h/b", mode="r+")[2] = 1
    session.commit("ours on main", {"n": 1})
    seen = theirs("read", tmp_path)
    assert_same(seen, repository)
    assert seen["history"][0][2:] == ["ours on main", {"n": 1}]
    assert seen["metadata"] == {"owner": "them"}
    assert seen["flags"]["delete_tag"] is False


def test_commits_of_both_sides_are_rebased_over_each_other(tmp_path):
    storage = icechunk.local_filesystem_storage(tmp_path)
    repository = icechunk.Repository.create(storage, spec_version=2)
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a").create_array(
        "a", data=np.zeros((10, 20)), chunks=(1, 20)
    )
    session.commit("start")
    behind = repository.writable_session("main")
    zarr.open_array(behind.store, path="a", mode="r+")[5] = 5
    theirs("proceed", tmp_path)
    with pytest.raises(icechunk.ConflictError):
        behind.commit("late")
    behind.commit("late", rebase_with=icechunk.ConflictDetector())
    seen = theirs("read", tmp_path)
    assert_same(seen, repository)
    assert [row[0] for row in seen["values"]["a"]] == [0, 77, 0, 0, 0, 5, 0, 0, 0, 0]


def test_nothing_is_rebased_over_their_moves(tmp_path):
    theirs("create", tmp_path)
    repository = opened(tmp_path)
    before = [info.id for info in repository.ancestry(branch="main")][2]
    repository.create_branch("old", before)
    session = repository.writable_session("old")
    zarr.open_array(session.store, path="a", mode="r+")[0] = 1
    repository.reset_branch("old", repository.lookup_branch("main"))
    with pytest.raises(icechunk.RebaseFailedError) as failed:
        session.rebase(icechunk.BasicConflictSolver())
    (conflict,) = failed.value.conflicts
    assert conflict.conflict_type.name == "MoveOperationCannotBeRebased"


def test_they_read_our_moves_amends_and_settings(tmp_path):
    storage = icechunk.local_filesystem_storage(tmp_path)
    repository = icechunk.Repository.create(storage, spec_version=2)
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("g/b", data=np.arange(6), chunks=(4,))
    root.create_array("a", data=np.zeros((10, 20)), chunks=(3, 7))
    root.create_group("g/e")
    session.commit("first")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[0] = 4
    session.amend("first, amended")
    moving = repository.rearrange_session("main")
    moving.move("/g", "/h")
    moving.commit("moved")
    moving = repository.rearrange_session("main")
    moving.move("/h/e", "/e")
    moving.amend("moved twice")
    repository.set_metadata({"owner": "us", "list": [1, 2.5]})
    repository.set_feature_flag("delete_tag", False)
    read_only = icechunk.RepoStatus(
        icechunk.RepoAvailability.read_only, limited_availability_reason="a while"
    )
    repository.set_status(read_only)

    seen = theirs("read", tmp_path)
    assert_same(seen, repository)
    assert sorted(seen["moved"]) == [["/g", "/h"], ["/g/b", "/h/b"], ["/g/e", "/e"]]
    assert [entry[2] for entry in seen["history"]][:2] == ["moved twice", "first, amended"]
    assert seen["metadata"] == repository.metadata == {"owner": "us", "list": [1, 2.5]}
    assert seen["flags"]["delete_tag"] is False
    assert seen["status"].endswith("read_only")
    assert seen["operations"] == [type(update.kind).__name__ for update in repository.ops_log()]

    repository.set_status(icechunk.RepoStatus(icechunk.RepoAvailability.online))
    seen = theirs("proceed", tmp_path)
    assert_same(seen, repository)


def test_they_read_what_we_expired_and_collected(tmp_path):
    storage = icechunk.local_filesystem_storage(tmp_path)
    repository = icechunk.Repository.create(storage, spec_version=2)
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a").create_array(
        "a", data=np.zeros((10, 20)), chunks=(3, 7)
    )
    session.commit("start")
    for row in range(4):
        session = repository.writable_session("main")
        zarr.open_array(session.store, path="a", mode="r+")[row] = row
        session.commit(str(row))
    later = datetime.now(UTC) + timedelta(days=1)
    assert len(repository.expire_snapshots(later)) == 4
    assert repository.garbage_collect(later).snapshots_deleted == 4
    seen = theirs("read", tmp_path)
    assert_same(seen, repository)
    assert [entry[2] for entry in seen["history"]] == ["3", "Repository initialized"]
    assert seen["new"] == ["/", "/a"]
    assert seen["operations"][:2] == ["GCRan", "ExpirationRan"]
    assert_same(theirs("proceed", tmp_path), repository)
    assert theirs("clean", tmp_path)["history"][-1][0] == FIRST
    assert repository.verify().ok
