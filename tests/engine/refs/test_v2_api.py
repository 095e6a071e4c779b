"""What only generation `2` has, through the public API: log, settings, amends and moves."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import numpy as np
import pytest
import zarr

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.format.ids import NodeId
from airflow_provider_icechunk.engine.format.model import Move, TransactionLog
from airflow_provider_icechunk.engine.history.diff import compose_moves, merge_logs
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    SessionError,
    UnsupportedError,
)

Kinds = icechunk.UpdateType
FIRST = "1CECHNKREP0F1RSTCMT0"


@pytest.fixture
def repo() -> icechunk.Repository:
    repo = icechunk.Repository.create(icechunk.in_memory_storage(), spec_version=2)
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a/x", data=np.arange(4), chunks=(1,))
    root.create_group("a/deep/er")
    session.commit("first")
    return repo


def kinds(repo: icechunk.Repository) -> list[object]:
    return [update.kind for update in repo.ops_log()]


def write(repo: icechunk.Repository, path: str, row: int, value: int, branch: str = "main"):
    session = repo.writable_session(branch)
    zarr.open_array(session.store, path=path, mode="r+")[row] = value
    return session


def values(repo: icechunk.Repository, path: str, branch: str = "main") -> list[int]:
    store = repo.readonly_session(branch).store
    return zarr.open_array(store, path=path, mode="r")[...].tolist()


def test_the_operations_log_tells_everything(repo):
    first = repo.lookup_branch("main")
    repo.create_branch("dev", first)
    repo.reset_branch("dev", FIRST)
    repo.delete_branch("dev")
    repo.create_tag("t", first)
    repo.delete_tag("t")
    repo.set_metadata({"owner": "us"})
    repo.save_config()
    repo.set_feature_flag("move_node", False)
    detached = write(repo, "a/x", 0, 9).flush("aside")
    assert kinds(repo) == [
        Kinds.NewDetachedSnapshot(detached),
        Kinds.FeatureFlagChanged(3, False),
        Kinds.ConfigChanged(),
        Kinds.MetadataChanged(),
        Kinds.TagDeleted("t", first),
        Kinds.TagCreated("t"),
        Kinds.BranchDeleted("dev", FIRST),
        Kinds.BranchReset("dev", first),
        Kinds.BranchCreated("dev"),
        Kinds.NewCommit("main", first),
        Kinds.RepoInitialized(),
    ]
    updates = list(repo.ops_log())
    assert updates[0].backup_path is None
    assert all(update.backup_path for update in updates[1:])
    assert updates[0].updated_at > updates[-1].updated_at


def test_a_flushed_snapshot_can_be_given_a_branch(repo):
    aside = write(repo, "a/x", 0, 9).flush("aside")
    assert values(repo, "a/x") == [0, 1, 2, 3]
    repo.create_branch("dev", aside)
    assert values(repo, "a/x", "dev") == [9, 1, 2, 3]
    assert [info.message for info in repo.ancestry(branch="dev")][:2] == ["aside", "first"]


def test_repository_metadata_is_replaced_or_merged(repo):
    assert repo.get_metadata() == {}
    repo.set_metadata({"a": 1, "b": {"c": [None]}})
    assert repo.update_metadata({"a": 2, "z": True}) == {"a": 2, "b": {"c": [None]}, "z": True}
    assert repo.metadata == {"a": 2, "b": {"c": [None]}, "z": True}
    repo.set_metadata({})
    assert repo.metadata == {}


def test_a_read_only_repository_refuses_commits_until_it_is_online_again(repo):
    when = datetime(2030, 1, 2, tzinfo=UTC)
    status = icechunk.RepoStatus(icechunk.RepoAvailability.read_only, when, "moving")
    repo.set_status(status)
    assert repo.get_status() == repo.status == status
    with pytest.raises(ReadOnlyError, match="moving"):
        write(repo, "a/x", 0, 9).commit("no")
    assert kinds(repo)[0] == Kinds.RepoStatusChanged(status)
    repo.set_status(icechunk.RepoStatus(icechunk.RepoAvailability.online))
    write(repo, "a/x", 0, 9).commit("yes")


def test_features_are_listed_and_set(repo):
    assert {flag.name for flag in repo.feature_flags()} == {"move_node", "create_tag", "delete_tag"}
    repo.set_feature_flag("create_tag", False)
    assert [flag.name for flag in repo.disabled_feature_flags()] == ["create_tag"]
    with pytest.raises(UnsupportedError, match="create_tag"):
        repo.create_tag("t", FIRST)
    repo.set_feature_flag("create_tag", None)
    assert len(repo.enabled_feature_flags()) == 3
    with pytest.raises(InvalidInputError, match="no feature"):
        repo.set_feature_flag("flying", True)


def test_older_generations_say_that_they_have_none_of_this():
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    for call in (repo.get_metadata, repo.get_status, repo.feature_flags, lambda: [*repo.ops_log()]):
        with pytest.raises(UnsupportedError, match="generation `2`"):
            call()
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="a")
    with pytest.raises(UnsupportedError, match="generation `2`"):
        session.amend("no")


def test_amending_replaces_the_newest_commit(repo):
    before = repo.lookup_branch("main")
    session = write(repo, "a/x", 1, 7)
    new = session.amend("first, corrected", metadata={"n": 1})
    assert session.read_only
    assert [info.message for info in repo.ancestry(branch="main")] == [
        "first, corrected",
        "Repository initialized",
    ]
    assert values(repo, "a/x") == [0, 7, 2, 3]
    diff = repo.diff(from_snapshot_id=FIRST, to_branch="main")
    assert diff.new_arrays == {"/a/x"}
    assert diff.updated_chunks == {"/a/x": [[0], [1], [2], [3]]}
    assert kinds(repo)[0] == Kinds.CommitAmended("main", before, new)
    assert repo.readonly_session(snapshot_id=before).snapshot_id == before


def test_amending_is_refused_where_it_makes_no_sense(repo):
    empty = icechunk.Repository.create(icechunk.in_memory_storage(), spec_version=2)
    session = empty.writable_session("main")
    zarr.open_group(session.store, mode="a")
    with pytest.raises(SessionError, match="first snapshot"):
        session.amend("no")
    with pytest.raises(SessionError, match="no changes"):
        repo.writable_session("main").amend("nothing")
    late = write(repo, "a/x", 0, 1)
    write(repo, "a/x", 1, 1).commit("faster")
    with pytest.raises(ConflictError):
        late.amend("late")


def test_moves_keep_ids_chunks_and_everything_below(repo):
    session = repo.rearrange_session("main")
    session.move("/a", "/b")
    session.move("/b/deep", "/d")
    assert session.has_uncommitted_changes
    assert session.status().moved_nodes == [
        ("/a", "/b"),
        ("/a/x", "/b/x"),
        ("/a/deep", "/d"),
        ("/a/deep/er", "/d/er"),
    ]
    assert zarr.open_array(session.store, path="b/x", mode="r")[...].tolist() == [0, 1, 2, 3]
    before = repo.readonly_session("main").tree.node("/a/x")
    session.commit("moved")
    after = repo.readonly_session("main").tree.node("/b/x")
    assert after.id == before.id
    assert after.array.manifests == before.array.manifests
    assert values(repo, "b/x") == [0, 1, 2, 3]
    assert sorted(repo.readonly_session("main").tree.base.nodes) == [
        "/",
        "/b",
        "/b/x",
        "/d",
        "/d/er",
    ]
    diff = repo.diff(from_snapshot_id=FIRST, to_branch="main")
    assert ("/a/x", "/b/x") in diff.moved_nodes
    write(repo, "b/x", 0, 5).commit("go on")
    assert values(repo, "b/x") == [5, 1, 2, 3]


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("/", "/b", InvalidInputError),
        ("/a", "/a", InvalidInputError),
        ("/a", "/a/inside", InvalidInputError),
        ("/nothing", "/b", NotFoundError),
        ("/a/deep", "/a/x", AlreadyExistsError),
        ("/a/deep", "/no/where", NotFoundError),
        ("/a/deep", "/a/x/below", NotFoundError),
    ],
)
def test_moves_that_make_no_sense_are_refused(repo, source, target, error):
    session = repo.rearrange_session("main")
    with pytest.raises(error):
        session.move(source, target)
    assert not session.has_uncommitted_changes


def test_a_session_that_moves_does_nothing_else(repo):
    session = repo.rearrange_session("main")
    with pytest.raises(ValueError, match="read-only"):
        zarr.open_array(session.store, path="a/x", mode="r+")[0] = 1
    session.move("/a", "/b")
    session.discard_changes()
    with pytest.raises(SessionError, match="no changes"):
        session.commit("nothing")
    session.move("/a", "/b")
    write(repo, "a/x", 0, 1).commit("faster")
    with pytest.raises(ConflictError, match="branch 'main' is at"):
        session.commit("late")


def test_moves_can_be_turned_off(repo):
    repo.set_feature_flag("move_node", False)
    session = repo.rearrange_session("main")
    with pytest.raises(UnsupportedError, match="move_node"):
        session.move("/a", "/b")


def test_only_moves_can_be_amended_by_moves(repo):
    session = repo.rearrange_session("main")
    session.move("/a", "/b")
    session.commit("moved")
    with pytest.raises(SessionError, match="moved nodes"):
        write(repo, "b/x", 0, 1).amend("no")
    session = repo.rearrange_session("main")
    session.move("/b", "/c")
    session.amend("moved on")
    first = list(repo.ancestry(branch="main"))[1].id
    diff = repo.diff(from_snapshot_id=first, to_branch="main")
    assert ("/a", "/c") in diff.moved_nodes
    assert values(repo, "c/x") == [0, 1, 2, 3]
    with pytest.raises(SessionError, match="committed"):
        session.move("/c", "/d")


def test_composed_moves_forget_where_nothing_ended_up_elsewhere():
    one, two = NodeId(b"node-one"), NodeId(b"node-two")
    older = (Move(one, True, "/a", "/b"), Move(two, False, "/p", "/q"))
    newer = (Move(one, True, "/b", "/a"), Move(two, False, "/q", "/r"))
    assert compose_moves(older, newer) == (Move(two, False, "/p", "/r"),)


def test_merged_logs_leave_out_what_came_and_went():
    ids = [NodeId(bytes([n]) * 8) for n in range(6)]
    chunk = np.array([[0], [2]], np.uint32)
    older = TransactionLog(
        b"a" * 12,
        new_arrays=frozenset(ids[:2]),
        updated_arrays=frozenset({ids[2], ids[3]}),
        updated_chunks={ids[0]: chunk, ids[1]: chunk, ids[2]: chunk},
    )
    newer = TransactionLog(
        b"b" * 12,
        deleted_arrays=frozenset({ids[0], ids[2]}),
        updated_arrays=frozenset({ids[1], ids[4]}),
        updated_chunks={ids[1]: np.array([[1], [2]], np.uint32)},
    )
    merged = merge_logs(older, newer)
    assert merged.id == newer.id
    assert merged.new_arrays == {ids[1]}
    assert merged.deleted_arrays == {ids[2]}
    assert merged.updated_arrays == {ids[3], ids[4]}
    assert {k: v.tolist() for k, v in merged.updated_chunks.items()} == {ids[1]: [[0], [1], [2]]}


def rectilinear() -> bytes:
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [6],
            "data_type": "int32",
            "chunk_grid": {
                "name": "rectilinear",
                "configuration": {"kind": "inline", "chunk_shapes": [[1, [2, 1], 3]]},
            },
            "chunk_key_encoding": {"name": "default"},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
        }
    ).encode()


def test_arrays_with_chunks_of_different_sizes_are_stored(repo):
    session = repo.writable_session("main")
    session.tree.put_document("/r", rectilinear())
    for number, size in enumerate((1, 2, 3)):
        session.tree.put_chunk("/r", (number,), b"\1" * (4 * size))
    session.commit("uneven")
    tree = icechunk.Repository.open(repo.storage).readonly_session("main").tree
    assert [side.num_chunks for side in tree.array("/r").array.shape] == [3]
    assert [len(tree.chunk("/r", (n,)).data) for n in range(3)] == [4, 8, 12]


def test_generation_1_refuses_chunks_of_different_sizes():
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    with pytest.raises(UnsupportedError, match="generation `2`"):
        repo.writable_session("main").tree.put_document("/r", rectilinear())
