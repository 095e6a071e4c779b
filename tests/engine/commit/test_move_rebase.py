"""Moves of nodes are rebased over commits that leave the moved nodes and their new places alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import example, given
from hypothesis import strategies as st
from support import actors, arrays

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.commit.moves import Rearranged, rebase_moves
from airflow_provider_icechunk.engine.format.ids import NodeId
from airflow_provider_icechunk.engine.format.model import Node, in_order
from airflow_provider_icechunk.engine.format.names import is_below, parent_path
from airflow_provider_icechunk.engine.tree.moves import moved
from airflow_provider_icechunk.exceptions import ConflictError, IcechunkError, RebaseFailedError

Types = icechunk.ConflictType
ROOT_ID = NodeId(bytes(8))
NEVER = [icechunk.ConflictDetector(), icechunk.BasicConflictSolver()]


@pytest.fixture
def repo(tmp_path: Path) -> icechunk.Repository:
    storage = icechunk.local_filesystem_storage(tmp_path)
    repo = icechunk.Repository.create(storage, spec_version=2)
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a/x", data=np.arange(4), chunks=(1,))
    root.create_array("a/y", data=np.arange(4), chunks=(1,))
    root.create_group("a/deep/er")
    root.create_group("b")
    session.commit("first")
    return repo


def make(path: str, **attributes: int) -> Callable[[Any], object]:
    return lambda session: zarr.create_group(session.store, path=path, attributes=attributes)


def make_alone(path: str) -> Callable[[Any], object]:
    return lambda session: session.tree.put_document(path, arrays.GROUP)


def remove(path: str) -> Callable[[Any], object]:
    return lambda session: session.tree.delete(path)


def write(path: str, row: int, value: int) -> Callable[[Any], object]:
    def act(session: Any) -> None:
        zarr.open_array(session.store, path=path, mode="r+")[row] = value

    return act


def resize(path: str, size: int) -> Callable[[Any], object]:
    return lambda session: zarr.open_array(session.store, path=path, mode="r+").resize((size,))


def describe(path: str, value: int) -> Callable[[Any], object]:
    return lambda session: zarr.open(session.store, path=path, mode="r+").attrs.update(n=value)


def commit(repo: icechunk.Repository, *edits: Callable[[Any], object]) -> str:
    session = repo.writable_session("main")
    for edit in edits:
        edit(session)
    return session.commit("theirs")


def view(repo: icechunk.Repository) -> dict[str, Any]:
    """Attributes, and values of arrays, by path."""
    root = zarr.open_group(repo.readonly_session("main").store, mode="r")
    return {
        path: node[...].tolist() if isinstance(node, zarr.Array) else dict(node.attrs)
        for path, node in sorted(root.members(max_depth=None))
    }


@actors.needs_icechunk2
def test_what_others_write_into_moved_nodes_goes_with_them_as_official_icechunk_2_reads(
    repo, tmp_path
):
    moving = repo.rearrange_session("main")
    moving.move("/a", "/m")
    moving.move("/m/y", "/b/y")
    commit(repo, write("a/x", 0, 70), describe("a", 1), resize("a/y", 6), make("c/d", n=3))
    commit(repo, write("a/y", 5, 55), remove("/c/d"))
    moving.commit("moved", rebase_with=icechunk.ConflictDetector())
    assert not moving.has_uncommitted_changes
    assert [one.message for one in repo.ancestry(branch="main")][:3] == [
        "moved",
        "theirs",
        "theirs",
    ]
    seen = {
        "b": {},
        "b/y": [0, 1, 2, 3, 0, 55],
        "c": {},
        "m": {"n": 1},
        "m/deep": {},
        "m/deep/er": {},
        "m/x": [70, 1, 2, 3],
    }
    assert view(repo) == seen
    before = list(repo.ancestry(branch="main"))[1].id
    moves = repo.diff(from_snapshot_id=before, to_branch="main").moved_nodes
    assert sorted(moves) == [
        ("/a", "/m"),
        ("/a/deep", "/m/deep"),
        ("/a/deep/er", "/m/deep/er"),
        ("/a/x", "/m/x"),
        ("/a/y", "/b/y"),
    ]
    official = actors.Worker()
    try:
        theirs = official(tmp_path, "view")
        head = repo.lookup_branch("main")
        assert theirs["branches"] == {"main": head}
        assert {
            path.lstrip("/"): attributes if values is None else values
            for path, (attributes, values) in theirs["trees"][head].items()
            if path != "/"
        } == seen
        edits = [["attributes", "m/x", {"late": 1}]]
        official(tmp_path, "change", branch="main", edits=edits, message="on top", how="commit")
    finally:
        official.close()
    root = zarr.open_group(repo.readonly_session("main").store, mode="r")
    assert dict(root["m/x"].attrs) == {"late": 1}
    assert repo.verify().ok


CONFLICTS = {
    "a node at the target": (
        [make("b/new", n=1)],
        Types.NewNodeConflictsWithExistingNode,
        "/b/new",
    ),
    "a node below the target": ([make("b/new/one")], Types.NewNodeConflictsWithExistingNode, None),
    "the moved node deleted": ([remove("/a")], Types.MoveOperationCannotBeRebased, "/a"),
    "a node below it deleted": ([remove("/a/x")], Types.MoveOperationCannotBeRebased, "/a/x"),
    "the moved node replaced": (
        [remove("/a"), make("a", n=2)],
        Types.MoveOperationCannotBeRebased,
        None,
    ),
    "a node made below it": ([make("a/more")], Types.NewNodeInInvalidGroup, "/a/more"),
    "a node made far below it": (
        [make_alone("/a/missing/more")],
        Types.NewNodeInInvalidGroup,
        "/a/missing/more",
    ),
    "the group of the target deleted": ([remove("/b")], Types.NewNodeInInvalidGroup, None),
    "the group of the target replaced": (
        [remove("/b"), make("b", n=2)],
        Types.NewNodeInInvalidGroup,
        None,
    ),
}


@pytest.mark.parametrize("theirs", CONFLICTS)
@pytest.mark.parametrize("solver", NEVER)
def test_what_others_do_where_a_node_is_moved_is_a_conflict_and_never_lost(repo, theirs, solver):
    edits, kind, path = CONFLICTS[theirs]
    moving = repo.rearrange_session("main")
    moving.move("/a", "/b/new")
    landed = commit(repo, *edits)
    before = arrays.contents(repo.readonly_session("main"))
    with pytest.raises(ConflictError):
        moving.commit("late")
    with pytest.raises(RebaseFailedError) as failed:
        moving.commit("late", rebase_with=solver)
    assert failed.value.snapshot == landed
    assert kind in {one.conflict_type for one in failed.value.conflicts}
    if path is not None:
        assert path in {one.path for one in failed.value.conflicts}
    assert repo.lookup_branch("main") == landed
    assert arrays.contents(repo.readonly_session("main")) == before
    assert moving.status().moved_nodes[0] == ("/a", "/b/new")


def test_moves_of_both_sides_are_a_conflict(repo):
    moving, other = repo.rearrange_session("main"), repo.rearrange_session("main")
    moving.move("/a/x", "/x")
    other.move("/b", "/c")
    other.commit("theirs")
    with pytest.raises(RebaseFailedError) as failed:
        moving.rebase(icechunk.ConflictDetector())
    (conflict,) = failed.value.conflicts
    assert conflict.conflict_type is Types.MoveOperationCannotBeRebased
    assert conflict.path == "/b"


def test_what_took_the_place_of_a_moved_group_gets_none_of_its_new_nodes(repo):
    """`/a` still is a group after both moves, but another one than they put their node into."""
    moving = repo.rearrange_session("main")
    moving.move("/a", "/old")
    moving.move("/b", "/a")
    commit(repo, make("a/more"))
    with pytest.raises(RebaseFailedError):
        moving.rebase(icechunk.ConflictDetector())


def test_a_failed_rebase_stays_on_the_last_commit_that_fits(repo):
    moving = repo.rearrange_session("main")
    moving.move("/a", "/m")
    fits = commit(repo, make("c"))
    commit(repo, make("m"))
    with pytest.raises(RebaseFailedError):
        moving.rebase(icechunk.ConflictDetector())
    assert moving.snapshot_id == fits
    assert ("/a", "/m") in moving.status().moved_nodes
    moving.discard_changes()
    moving.move("/a", "/n")
    moving.commit("elsewhere", rebase_with=icechunk.ConflictDetector())
    assert {"c", "m", "n/x"} <= view(repo).keys()


def test_flushed_moves_are_a_snapshot_on_no_branch(repo):
    head = repo.lookup_branch("main")
    moving = repo.rearrange_session("main")
    moving.move("/a", "/n")
    aside = moving.flush("aside")
    assert repo.lookup_branch("main") == head
    assert moving.read_only
    assert repo.readonly_session(snapshot_id=aside).get_node_id("/n/x")


def test_a_repeated_commit_of_moves_with_its_token_finds_the_first(repo):
    first, second = repo.rearrange_session("main"), repo.rearrange_session("main")
    for session in (first, second):
        session.move("/a", "/m")
    done = first.commit("moved", token="once")
    assert second.commit("moved", token="once") == done
    assert repo.lookup_branch("main") == done


NAMES = st.sampled_from(["p", "q", "r"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["make", "remove"]), st.integers(0, 9), NAMES), max_size=4
)
MOVES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), NAMES), min_size=1, max_size=3)


def below(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"


def grown(steps: list[tuple[str, int, str]], nodes: dict[str, Node], by_id: list[Any]) -> None:
    """Apply steps to a tree of groups; `by_id` gets what was done, told by ids instead of paths."""
    for what, place, name in steps:
        paths = list(nodes)
        path = paths[place % len(paths)]
        if what == "make" and below(path, name) not in nodes:
            identity = NodeId(len(by_id).to_bytes(7, "big") + b"\1")
            by_id.append(("make", nodes[path].id, name, identity))
            nodes[below(path, name)] = Node(identity, below(path, name), arrays.GROUP)
        elif what == "remove" and path != "/":
            gone = [one for one in nodes if one == path or is_below(one, path)]
            by_id.extend(("remove", nodes.pop(one).id, name, None) for one in gone)


def lasting(done: list[Any]) -> list[Any]:
    """Without nodes that were made and removed again: a commit does not know of them."""
    made = {created for what, _, _, created in done if what == "make"}
    gone = {identity for what, identity, _, _ in done if what == "remove"}
    return [one for one in done if not {one[1], one[3]} & made & gone]


@given(first=STEPS, steps=STEPS, moves=MOVES)
@example(  # a group moved upwards, to a place above the node they put into it
    first=[("remove", 1, "p"), ("make", 2, "p")],
    steps=[("make", 3, "p")],
    moves=[(1, 0, "p"), (3, 0, "q")],
)
@example(  # a node at its old path, in another group that took the place of its own
    first=[], steps=[], moves=[(3, 1, "p"), (3, 1, "r"), (1, 0, "q")]
)
@example(  # they made a group at our target and removed it again
    first=[("remove", 3, "p")],
    steps=[("make", 0, "r"), ("make", 0, "q"), ("remove", 4, "p")],
    moves=[(1, 0, "q")],
)
def test_a_rebase_without_conflict_gives_the_same_tree_in_either_order(first, steps, moves):
    before = {"/": Node(ROOT_ID, "/", arrays.GROUP)}
    for number, path in enumerate(["/p", "/p/q", "/q", "/q/r"]):
        before[path] = Node(NodeId(bytes([number + 1]) * 8), path, arrays.GROUP)
    grown(first, before, [None] * 100)
    ours = in_order(before.values())
    for source, target, name in moves:
        paths = list(ours)
        try:
            ours = moved(ours, paths[source % len(paths)], below(paths[target % len(paths)], name))
        except IcechunkError:
            continue
    theirs, done = dict(before), [None] * 200
    grown(steps, theirs, done)
    decision = rebase_moves(before, ours, (), in_order(theirs.values()))
    if isinstance(decision, Rearranged):
        other = {node.id: node for node in ours.values()}
        for what, identity, name, created in lasting(done[200:]):
            if what == "remove":
                del other[identity]
            else:
                path = below(other[identity].path, name)
                assert path not in {node.path for node in other.values()}
                other[created] = Node(created, path, arrays.GROUP)
        assert {node.id: node.path for node in decision.nodes.values()} == {
            node.id: node.path for node in other.values()
        }
        assert all(parent_path(path) in {None, *decision.nodes} for path in decision.nodes)
    else:
        assert theirs.keys() != before.keys() or any(
            theirs[path] != before[path] for path in before
        )
