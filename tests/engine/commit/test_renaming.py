"""Arrays and groups are renamed in every generation, and only the snapshot is written for it.

Generations other than `2` have no moves in their logs: a rename is logged as deletion and creation
of the same node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import icechunk as official
import numpy as np
import pytest
import zarr
from support import actors
from support.recording import RecordingStorage

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    RebaseFailedError,
    SessionError,
)

OLDER = ["1", "alpha", "alpha1", "draft"]
Types = icechunk.ConflictType
SOLVERS = [icechunk.ConflictDetector(), icechunk.BasicConflictSolver()]
VALUES = np.arange(400, dtype="i4").reshape(2, 200)
FOREIGN = np.arange(200, 400, dtype="i4")


def fill(repo: icechunk.Repository, home: Path) -> None:
    """A group with native, inline and virtual chunks, and another one."""
    (home / "foreign.bin").write_bytes(FOREIGN.tobytes())
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_group("a", attributes={"unit": "K"})
    root.create_group("b")
    root.create_array("a/native", data=VALUES, chunks=(1, 200), compressors=None)
    root.create_array("a/inline", data=np.arange(4), chunks=(1,))
    root.create_array("a/deep/er", data=np.arange(3), chunks=(1,))
    root.create_array("a/virtual", shape=(200,), chunks=(200,), dtype="i4", compressors=None)
    session.store.set_virtual_ref(
        "a/virtual/c/0", f"file://{home}/foreign.bin", offset=0, length=800
    )
    session.commit("first")


def container(home: Path) -> tuple[icechunk.RepositoryConfig, dict[str, Any]]:
    config = icechunk.RepositoryConfig.default()
    store = icechunk.local_filesystem_store(str(home))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(f"file://{home}/", store))
    return config, {f"file://{home}/": None}


@pytest.fixture(params=OLDER)
def storage(request, tmp_path) -> RecordingStorage:
    recording = RecordingStorage(MemoryStorage())
    config, grants = container(tmp_path)
    fill(
        icechunk.Repository.create(recording, config, grants, spec_version=request.param), tmp_path
    )
    recording.puts.clear()
    return recording


@pytest.fixture
def repo(storage, tmp_path) -> icechunk.Repository:
    return icechunk.Repository.open(storage, *container(tmp_path))


def view(repo: icechunk.Repository) -> dict[str, Any]:
    """Attributes, and values of arrays, by path."""
    root = zarr.open_group(repo.readonly_session("main").store, mode="r")
    return {
        path: node[...].tolist() if isinstance(node, zarr.Array) else dict(node.attrs)
        for path, node in sorted(root.members(max_depth=None))
    }


def rename(repo: icechunk.Repository, *moves: tuple[str, str]) -> icechunk.RearrangeSession:
    session = repo.rearrange_session("main")
    for source, target in moves:
        session.move(source, target)
    return session


def test_a_renamed_group_keeps_everything_below_it(repo, tmp_path):
    before = view(repo)
    rename(repo, ("/a", "/m"), ("/m/native", "/b/data")).commit("renamed")
    after = view(repo)
    assert after["m"] == {"unit": "K"}
    assert after["b/data"] == VALUES.tolist()
    assert after["m/virtual"] == FOREIGN.tolist()
    assert after["m/inline"] == before["a/inline"]
    assert after["m/deep/er"] == before["a/deep/er"]
    assert not [path for path in after if path == "a" or path.startswith("a/")]
    assert len(after) == len(before)
    again = icechunk.Repository.open(repo.storage, *container(tmp_path))
    assert view(again) == after


def test_a_rename_writes_no_chunk_and_no_manifest(repo, storage):
    tree = repo.readonly_session("main").tree
    manifests = {node.id: node.array.manifests for node in tree.nodes() if node.array}
    rename(repo, ("/a", "/m")).commit("renamed")
    folders = storage.folders
    assert not folders.keys() & {"chunks", "c", "manifests", "m", "i", "attributes", "a"}
    assert folders["snapshots"] + folders["s"] == 1
    tree = repo.readonly_session("main").tree
    assert {node.id: node.array.manifests for node in tree.nodes() if node.array} == manifests


@pytest.mark.parametrize("generation", ["alpha", "alpha1", "draft"])
def test_long_attributes_stay_in_the_file_they_are_in(generation):
    place = RecordingStorage(MemoryStorage())
    config = icechunk.RepositoryConfig(attributes_file_threshold_bytes=100)
    repo = icechunk.Repository.create(place, config, spec_version=generation)
    session = repo.writable_session("main")
    zarr.create_group(session.store, path="a", attributes={"text": "x" * 1000})
    session.commit("first")
    place.puts.clear()
    repo = icechunk.Repository.open(place, config)
    rename(repo, ("/a", "/m")).commit("renamed")
    assert not place.folders.keys() & {"attributes", "a"}
    assert view(repo)["m"] == {"text": "x" * 1000}


def test_what_was_renamed_is_written_to_and_renamed_again(repo):
    rename(repo, ("/a/native", "/b/data")).commit("renamed")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="b/data", mode="r+")[1] = 7
    zarr.create_array(session.store, name="a/native", data=np.arange(2))
    session.commit("went on")
    rename(repo, ("/a", "/old"), ("/b", "/a")).commit("again")
    seen = view(repo)
    assert seen["a/data"] == [VALUES[0].tolist(), [7] * 200]
    assert seen["old/native"] == [0, 1]


def test_two_nodes_change_places(repo):
    rename(repo, ("/a", "/t"), ("/b", "/a"), ("/t", "/b")).commit("swapped")
    seen = view(repo)
    assert seen["b"] == {"unit": "K"}
    assert seen["a"] == {}
    assert seen["b/native"] == VALUES.tolist()
    assert "a/native" not in seen


def test_a_difference_tells_renames_as_moves(repo):
    first = repo.lookup_branch("main")
    session = rename(repo, ("/a/deep", "/b/deep"))
    assert session.status().moved_nodes == [("/a/deep", "/b/deep"), ("/a/deep/er", "/b/deep/er")]
    session.commit("renamed")
    reopened = icechunk.Repository.open(repo.storage)
    diff = reopened.diff(from_snapshot_id=first, to_branch="main")
    assert diff.moved_nodes == [("/a/deep", "/b/deep"), ("/a/deep/er", "/b/deep/er")]
    assert not (diff.new_groups | diff.new_arrays | diff.deleted_groups | diff.deleted_arrays)
    assert not (diff.updated_groups | diff.updated_arrays | diff.chunk_columns.keys())


def test_a_difference_over_several_commits_tells_where_nodes_ended_up(repo):
    first = repo.lookup_branch("main")
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="young", data=np.arange(2))
    session.commit("one more")
    rename(repo, ("/young", "/b/young"), ("/a/deep", "/d"), ("/a/inline", "/i")).commit("renamed")
    session = rename(repo, ("/d", "/e"), ("/i", "/a/inline"))
    session.commit("renamed again")
    session = repo.writable_session("main")
    session.tree.delete("/a/native")
    session.commit("deleted")
    diff = icechunk.Repository.open(repo.storage).diff(from_snapshot_id=first, to_branch="main")
    assert diff.moved_nodes == [("/a/deep", "/e"), ("/a/deep/er", "/e/er")]
    assert diff.new_arrays == {"/b/young"}
    assert diff.deleted_arrays == {"/a/native"}


@pytest.mark.parametrize("storage", ["1", "alpha"], indirect=True)
def test_where_logs_are_kept_they_say_deletion_and_creation(repo):
    node = repo.readonly_session("main").tree.node("/a/native")
    rename(repo, ("/a/native", "/b/data")).commit("renamed")
    log = icechunk.Repository.open(repo.storage).inspect_transaction_log(repo.lookup_branch("main"))
    assert log["deleted_arrays"] == log["new_arrays"] != []
    assert log["moved_nodes"] == []
    assert repo.readonly_session("main").tree.node("/b/data").id == node.id


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("edit", "kind"),
    [
        ("chunk", Types.ChunksUpdatedInDeletedArray),
        ("array", Types.ZarrMetadataUpdateOfDeletedArray),
        ("group", Types.ZarrMetadataUpdateOfDeletedGroup),
        ("child", Types.NewNodeInInvalidGroup),
        ("deletion", Types.MoveOperationCannotBeRebased),
        ("replacement", Types.MoveOperationCannotBeRebased),
        ("same place", Types.NewNodeConflictsWithExistingNode),
    ],
)
def test_a_writer_to_the_old_path_gets_a_conflict(repo, solver, edit, kind):
    writer = repo.writable_session("main")
    match edit:
        case "chunk":
            zarr.open_array(writer.store, path="a/native", mode="r+")[0] = 1
        case "array":
            zarr.open_array(writer.store, path="a/native", mode="r+").attrs["n"] = 1
        case "group":
            zarr.open_group(writer.store, path="a", mode="r+").attrs["n"] = 1
        case "child":
            zarr.create_group(writer.store, path="a/new")
        case "deletion":
            writer.tree.delete("/a")
        case "replacement":
            writer.tree.delete("/a/inline")
            zarr.create_array(writer.store, name="a/inline", data=np.arange(2))
        case "same place":
            zarr.create_group(writer.store, path="m")
    rename(icechunk.Repository.open(repo.storage), ("/a", "/m")).commit("renamed elsewhere")
    seen = view(repo)
    with pytest.raises(RebaseFailedError) as failure:
        writer.commit("late", rebase_with=solver)
    assert kind in {conflict.conflict_type for conflict in failure.value.conflicts}
    assert view(repo) == seen


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_writer_elsewhere_is_rebased_over_a_rename(repo, solver):
    writer = repo.writable_session("main")
    zarr.open_array(writer.store, path="a/native", mode="r+")[0] = 1
    zarr.create_group(writer.store, path="b/new")
    rename(icechunk.Repository.open(repo.storage), ("/a/deep", "/d")).commit("renamed elsewhere")
    writer.commit("late", rebase_with=solver)
    seen = view(repo)
    assert seen["a/native"][0] == [1] * 200
    assert seen["b/new"] == {}
    assert seen["d/er"] == [0, 1, 2]


def test_a_rename_is_rebased_over_writers_and_takes_their_values_along(repo):
    moving = rename(repo, ("/a", "/m"))
    writer = repo.writable_session("main")
    zarr.open_array(writer.store, path="a/native", mode="r+")[0] = 1
    zarr.open_group(writer.store, path="a", mode="r+").attrs["n"] = 1
    zarr.create_group(writer.store, path="c")
    writer.commit("first")
    moving.commit("renamed late", rebase_with=icechunk.ConflictDetector())
    seen = view(repo)
    assert seen["m/native"][0] == [1] * 200
    assert seen["m"] == {"unit": "K", "n": 1}
    assert seen["c"] == {}
    assert "a" not in seen


@pytest.mark.parametrize(
    "theirs", [("/a", "/x"), ("/a/deep", "/x"), ("/b", "/m"), ("/a/inline", "/b/inline")]
)
def test_of_two_renames_the_second_is_a_conflict(repo, theirs):
    late = rename(repo, ("/a", "/m"))
    rename(icechunk.Repository.open(repo.storage), theirs).commit("first")
    seen = view(repo)
    with pytest.raises(RebaseFailedError) as failure:
        late.commit("late", rebase_with=icechunk.BasicConflictSolver())
    (conflict, *_) = failure.value.conflicts
    assert conflict.conflict_type is Types.MoveOperationCannotBeRebased
    assert view(repo) == seen


def test_a_renamed_node_that_somebody_deleted_is_a_conflict(repo):
    late = rename(repo, ("/a", "/m"))
    writer = repo.writable_session("main")
    writer.tree.delete("/a/deep")
    writer.commit("deleted")
    with pytest.raises(RebaseFailedError):
        late.commit("late", rebase_with=icechunk.BasicConflictSolver())


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("/", "/b", InvalidInputError),
        ("/a", "/a/inside", InvalidInputError),
        ("/nothing", "/c", NotFoundError),
        ("/a", "/b", AlreadyExistsError),
        ("/a", "/no/where", NotFoundError),
        ("/b", "/a/native/below", NotFoundError),
    ],
)
def test_renames_that_make_no_sense_are_refused(repo, storage, source, target, error):
    session = repo.rearrange_session("main")
    with pytest.raises(error):
        session.move(source, target)
    with pytest.raises(SessionError, match="no changes"):
        session.commit("nothing")
    assert not storage.puts


def test_commits_that_renamed_are_not_made_again_on_another_branch(repo):
    first = repo.lookup_branch("main")
    repo.create_branch("other", first)
    renamed = rename(repo, ("/a", "/m")).commit("renamed")
    with pytest.raises(SessionError, match="moved nodes"):
        repo.session_with_changes("other", from_snapshot_id=first, to_snapshot_id=renamed)


def test_collecting_and_checking_after_a_rename_finds_nothing_amiss(repo, storage, tmp_path):
    rename(repo, ("/a", "/m")).commit("renamed")
    before = view(repo)
    open_ended = icechunk.Repository.open(storage.inner, *container(tmp_path))
    assert not open_ended.verify().findings
    later = open_ended.storage.now()
    open_ended.expire_snapshots(later)
    open_ended.garbage_collect(later)
    assert not open_ended.verify().findings
    assert view(open_ended) == before


@pytest.mark.parametrize(
    ("storage", "target"),
    [(one, target) for one in OLDER for target in ("1", "2") if one != target],
    indirect=["storage"],
)
def test_a_repository_with_renames_moves_up(repo, storage, target, tmp_path):
    first = repo.lookup_branch("main")
    rename(repo, ("/a", "/m"), ("/m/inline", "/b/inline")).commit("renamed")
    before = view(repo)
    migrated = icechunk.migrate(storage, to=target)
    newer = icechunk.Repository.open(storage, *container(tmp_path))
    assert newer.spec_version == target
    assert view(newer) == before
    start = migrated.ids.get(first, first)
    moves = newer.diff(from_snapshot_id=start, to_branch="main").moved_nodes
    assert ("/a/inline", "/b/inline") in moves


def test_what_is_renamed_before_and_moved_after_a_migration_is_told_once(repo, storage):
    first = repo.lookup_branch("main")
    rename(repo, ("/a/deep", "/d")).commit("renamed")
    migrated = icechunk.migrate(storage, to="2")
    newer = icechunk.Repository.open(storage)
    rename(newer, ("/d", "/e"), ("/b", "/f")).commit("moved")
    start = migrated.ids.get(first, first)
    moves = newer.diff(from_snapshot_id=start, to_branch="main").moved_nodes
    assert sorted(moves) == [("/a/deep", "/e"), ("/a/deep/er", "/e/er"), ("/b", "/f")]


@pytest.fixture(params=["1.1.21", pytest.param("2.3.0", marks=actors.needs_icechunk2)])
def other(request):
    """The official library of either version, in its turn."""
    if request.param.startswith("1"):
        yield actors.local(official)
        return
    worker = actors.Worker()
    yield worker
    worker.close()


@pytest.fixture
def folder(tmp_path) -> Path:
    """A repository of generation `1` without virtual chunks, which official readers must allow."""
    place = tmp_path / "repo"
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(place))
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_group("a", attributes={"unit": "K"})
    root.create_group("b")
    root.create_array("a/native", data=VALUES, chunks=(1, 200), compressors=None)
    root.create_array("a/inline", data=np.arange(4), chunks=(1,))
    session.commit("first")
    return place


def test_official_libraries_read_write_and_collect_what_was_renamed(folder, other):
    ours = actors.local(icechunk)
    ours(folder, "rearrange", branch="main", moves=[["/a", "/m"]], message="mv", how="commit")
    seen = ours(folder, "view")
    assert other(folder, "view") == seen
    tree = seen["trees"][seen["branches"]["main"]]
    assert tree["/m/native"][1] == VALUES.tolist()
    assert tree["/m"][0] == {"unit": "K"}
    edits = [["write", "m/native", 1, 2, 9], ["attributes", "m", {"n": 1}]]
    other(folder, "change", branch="main", edits=edits, message="theirs", how="commit")
    other(folder, "collect")
    seen = ours(folder, "view")
    assert other(folder, "view") == seen
    tree = seen["trees"][seen["branches"]["main"]]
    assert tree["/m/native"][1] == [VALUES[0].tolist(), [9] * 200]
    assert tree["/m/inline"][1] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "edit",
    [
        ["write", "a/native", 0, 1, 5],
        ["attributes", "a/native", {"n": 1}],
        ["attributes", "a", {"n": 1}],
    ],
)
def test_an_official_writer_to_the_old_path_gets_a_conflict(folder, other, edit):
    other(folder, "begin", branch="main", edits=[edit])
    ours = actors.local(icechunk)
    ours(folder, "rearrange", branch="main", moves=[["/a", "/m"]], message="mv", how="commit")
    seen = ours(folder, "view")
    with pytest.raises(actors.Refused, match=r"(?i)conflict|rebase"):
        other(folder, "end", message="late")
    assert ours(folder, "view") == seen


def test_an_official_writer_elsewhere_is_rebased_over_a_rename(folder, other):
    edits = [["attributes", "b", {"n": 1}], ["group", "b/new", {}]]
    other(folder, "begin", branch="main", edits=edits)
    ours = actors.local(icechunk)
    moves = [["/a", "/m"], ["/m/native", "/b/data"]]
    ours(folder, "rearrange", branch="main", moves=moves, message="mv", how="commit")
    other(folder, "end", message="late")
    seen = ours(folder, "view")
    assert other(folder, "view") == seen
    tree = seen["trees"][seen["branches"]["main"]]
    assert tree["/b"][0] == {"n": 1}
    assert tree["/b/data"][1] == VALUES.tolist()
    assert "/b/new" in tree
