"""The same calls to our engine and to the official library 1.1 give the same answers.

Errors are compared by class: ours are the official ones or subclasses of them. Where we differ on
purpose, `DIFFERENT` says how and why.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import icechunk as official
import numpy as np
import pytest
import zarr
from support import trees
from support.machines import Failed, attempt, plain_diff
from zarr.core.buffer import cpu, default_buffer_prototype

import airflow_provider_icechunk.api as ours

ROOT = "1CECHNKREP0F1RSTCMT0"
MISSING = "0" * 20
FAMILIES = [
    (official.ConflictError, ours.ConflictError),
    (official.RebaseFailedError, ours.RebaseFailedError),
    (official.IcechunkError, ours.IcechunkError),
    (KeyError, ours.NotFoundError),
    (TypeError, TypeError),
    (ValueError, ValueError),
]


class World:
    """A repository with some history, made and used with one library."""

    def __init__(self, library: Any, folder: Path) -> None:
        self.library = library
        storage = library.local_filesystem_storage(str(folder))
        self.repo = library.Repository.create(storage)
        session = self.repo.writable_session("main")
        root = zarr.group(session.store)
        array = root.create_array("a", shape=(4,), chunks=(1,), dtype="i4", compressors=None)
        array[0:2] = 5
        root.create_group("g")
        self.head = session.commit("x")
        self.repo.create_tag("there", self.head)
        self.repo.create_tag("gone", self.head)
        self.repo.delete_tag("gone")
        self.session = self.repo.writable_session("main")
        self.finished = self.repo.writable_session("main")
        zarr.open_array(self.finished.store, path="a")[3] = 1
        self.finished.flush("finished")
        self.reader = self.repo.readonly_session("main")

    def spec(self, *index: int, location: str = "s3://b/x"):
        return self.library.VirtualChunkSpec(list(index), location, 0, 4)

    def set_ref(self, key: str, location: str = "s3://b/x", **options):
        self.session.store.set_virtual_ref(key, location, offset=0, length=4, **options)

    def set_refs(self, *specs, array: str = "a", **options):
        return self.session.store.set_virtual_refs(array, list(specs), **options)

    def put(self, key: str, data: bytes):
        asyncio.run(self.session.store.set(key, cpu.Buffer.from_bytes(data)))

    def fetch(self, key: str):
        found = asyncio.run(self.session.store.get(key, default_buffer_prototype()))
        return None if found is None else found.to_bytes()

    def keys(self, prefix: str):
        async def collect():
            return sorted([key async for key in self.session.store.list_prefix(prefix)])

        return asyncio.run(collect())

    def names(self, prefix: str):
        async def collect():
            return sorted([key async for key in self.session.store.list_dir(prefix)])

        return asyncio.run(collect())

    def coordinates(self, path: str):
        async def collect():
            return [index async for index in self.reader.chunk_coordinates(path)]

        return asyncio.run(collect())

    def write(self, session: Any, place: int, value: int):
        zarr.open_array(session.store, path="a")[place] = value


CALLS = {
    # references
    "lookup of a missing branch": lambda w: w.repo.lookup_branch("nope"),
    "lookup of a missing tag": lambda w: w.repo.lookup_tag("nope"),
    "lookup of a deleted tag": lambda w: w.repo.lookup_tag("gone"),
    "lookup of a missing snapshot": lambda w: w.repo.lookup_snapshot(MISSING),
    "lookup of no id": lambda w: w.repo.lookup_snapshot("!!"),
    "the root": lambda w: (
        w.repo.lookup_snapshot(ROOT).message,
        w.repo.lookup_snapshot(ROOT).metadata,
    ),
    "create an existing branch": lambda w: w.repo.create_branch("main", w.head),
    "create a branch nowhere": lambda w: w.repo.create_branch("new", MISSING),
    "create a branch with a slash": lambda w: w.repo.create_branch("a/b", w.head),
    "create and list a branch": lambda w: (w.repo.create_branch("n", ROOT), w.repo.list_branches()),
    "create an existing tag": lambda w: w.repo.create_tag("there", w.head),
    "create a deleted tag": lambda w: w.repo.create_tag("gone", w.head),
    "create a tag nowhere": lambda w: w.repo.create_tag("new", MISSING),
    "list tags": lambda w: w.repo.list_tags(),
    "delete a missing tag": lambda w: w.repo.delete_tag("nope"),
    "delete a deleted tag": lambda w: w.repo.delete_tag("gone"),
    "delete main": lambda w: w.repo.delete_branch("main"),
    "delete a missing branch": lambda w: w.repo.delete_branch("nope"),
    "reset a missing branch": lambda w: w.repo.reset_branch("nope", ROOT),
    "reset to nowhere": lambda w: w.repo.reset_branch("main", MISSING),
    "reset from the right place": lambda w: w.repo.reset_branch(
        "main", ROOT, from_snapshot_id=w.head
    ),
    "reset from the wrong place": lambda w: w.repo.reset_branch(
        "main", ROOT, from_snapshot_id=ROOT
    ),
    # choosing a version
    "no version": lambda w: w.repo.readonly_session(),
    "two versions": lambda w: w.repo.readonly_session("main", tag="there"),
    "as_of without a branch": lambda w: w.repo.readonly_session(
        tag="there", as_of=datetime.now(UTC)
    ),
    "as_of before everything": lambda w: w.repo.readonly_session(
        "main", as_of=datetime(2000, 1, 1, tzinfo=UTC)
    ),
    "as_of now": lambda w: (
        w.repo.readonly_session("main", as_of=datetime.now(UTC)).snapshot_id == w.head
    ),
    "as_of the root": lambda w: (
        w.repo.readonly_session("main", as_of=w.repo.lookup_snapshot(ROOT).written_at).snapshot_id
    ),
    "a missing branch": lambda w: w.repo.writable_session("nope"),
    "history of nothing": lambda w: list(w.repo.ancestry()),
    "history of two": lambda w: list(w.repo.ancestry(branch="main", tag="there")),
    "history": lambda w: [(i.message, i.parent_id == ROOT) for i in w.repo.ancestry(tag="there")],
    "a difference": lambda w: plain_diff(w.repo.diff(from_snapshot_id=ROOT, to_branch="main")),
    "a difference as text": lambda w: str(w.repo.diff(from_snapshot_id=ROOT, to_branch="main")),
    "a difference backwards": lambda w: w.repo.diff(from_branch="main", to_snapshot_id=ROOT),
    # sessions
    "a fresh session": lambda w: (
        w.session.read_only,
        w.session.branch,
        w.session.has_uncommitted_changes,
        str(w.session.status()),
        w.session.snapshot_id == w.head,
    ),
    "a changed session": lambda w: (
        w.write(w.session, 3, 1),
        w.session.has_uncommitted_changes,
        str(w.session.status()),
    ),
    "discarded changes": lambda w: (
        w.write(w.session, 3, 1),
        w.session.discard_changes(),
        str(w.session.status()),
        trees.values(w.session, "/a").tolist(),
    ),
    "commit nothing": lambda w: w.session.commit("x"),
    "flush nothing": lambda w: w.session.flush("x"),
    "a finished session": lambda w: (
        w.finished.read_only,
        w.finished.branch,
        w.finished.has_uncommitted_changes,
        w.finished.snapshot_id == w.head,
        str(w.finished.status()),
    ),
    "commit twice": lambda w: w.finished.commit("x"),
    "rebase when finished": lambda w: w.finished.rebase(w.library.ConflictDetector()),
    "discard when finished": lambda w: w.finished.discard_changes(),
    "write when finished": lambda w: w.write(w.finished, 0, 1),
    "commit a reader": lambda w: w.reader.commit("x"),
    "flush a reader": lambda w: w.reader.flush("x"),
    "commit a fork": lambda w: w.session.fork().commit("x"),
    "flush a fork": lambda w: w.session.fork().flush("x"),
    "fork a reader": lambda w: w.reader.fork(),
    "merge no fork": lambda w: w.session.merge(w.session),
    # chunks
    "kinds of chunks": lambda w: [
        trees.kind_of(w.reader.chunk_type("/a", [n])) for n in (0, 1, 2, 3, 9)
    ],
    "kind of another rank": lambda w: trees.kind_of(w.reader.chunk_type("/a", [0, 0])),
    "kind in a group": lambda w: w.reader.chunk_type("/g", [0]),
    "kind in nothing": lambda w: w.reader.chunk_type("/nope", [0]),
    "kind at no path": lambda w: w.reader.chunk_type("a", [0]),
    "coordinates": lambda w: w.coordinates("/a"),
    "coordinates of a group": lambda w: w.coordinates("/g"),
    "coordinates of nothing": lambda w: w.coordinates("/nope"),
    # virtual references
    "an undeclared location": lambda w: w.set_ref("a/c/0"),
    "an undeclared location by order": lambda w: (
        w.set_ref("a/c/0", validate_container=False),
        w.session.all_virtual_chunk_locations(),
    ),
    "no location": lambda w: w.set_ref("a/c/0", "nonsense", validate_container=False),
    "no location in bulk": lambda w: w.set_refs(w.spec(0, location="nonsense")),
    "a virtual chunk outside": lambda w: w.set_ref("a/c/9", validate_container=False),
    "a virtual document": lambda w: w.set_ref("a/zarr.json", validate_container=False),
    "a virtual chunk of nothing": lambda w: w.set_ref("nope/c/0", validate_container=False),
    "undeclared locations": lambda w: w.set_refs(w.spec(0), w.spec(1)),
    "undeclared locations by order": lambda w: (
        w.set_refs(w.spec(0), w.spec(1), validate_containers=False),
        sorted(set(w.session.all_virtual_chunk_locations())),
        plain_diff(w.session.status()),
    ),
    "no virtual references": lambda w: w.set_refs(),
    "virtual references of nothing": lambda w: w.set_refs(
        w.spec(0), array="nope", validate_containers=False
    ),
    "read an ungranted chunk": lambda w: (
        w.set_ref("a/c/0", validate_container=False),
        trees.values(w.session, "/a"),
    ),
    # keys
    "a chunk of nothing": lambda w: w.put("nope/c/0", b"1234"),
    "a chunk outside": lambda w: w.put("a/c/9", b"1234"),
    "a document of garbage": lambda w: w.put("n/zarr.json", b"garbage"),
    "a document of something": lambda w: w.put("n/zarr.json", b'{"a": 1}'),
    "a key of format 2": lambda w: (w.fetch(".zgroup"), w.fetch("a/.zarray")),
    "get outside": lambda w: (w.fetch("a/c/9"), w.fetch("a/c/0/0"), w.fetch("a/c/2")),
    "get": lambda w: w.fetch("a/c/0"),
    "list": lambda w: [w.keys(prefix) for prefix in ("", "a", "g")],
    "list a folder": lambda w: [w.names(prefix) for prefix in ("", "/", "a", "a/", "g", "nope")],
    "exists": lambda w: [
        asyncio.run(w.session.store.exists(key))
        for key in ("zarr.json", "a/zarr.json", "a/c/0", "a/c/2", "a/c/9", "g/zarr.json")
    ],
    "is_empty": lambda w: [asyncio.run(w.session.store.is_empty(p)) for p in ("", "a", "g", "x")],
}

DIFFERENT = {
    "a difference of nothing": (
        lambda w: plain_diff(w.repo.diff(from_branch="main", to_branch="main")),
        "there is none, instead of an error",
    ),
    "delete what is not there": (
        lambda w: asyncio.run(w.session.store.delete("a/c/9")),
        "Zarr wants it to pass",
    ),
    "size of what is not there": (
        lambda w: asyncio.run(w.session.store.getsize("a/c/2")),
        "Zarr wants a FileNotFoundError, not 0",
    ),
    "a key that cannot be": (
        lambda w: w.fetch("foo"),
        "Zarr wants nothing there, not an error",
    ),
    "rebase a fork": (
        lambda w: w.session.fork().rebase(w.library.ConflictDetector()),
        "refused: it would no longer stand on what its session can merge",
    ),
    "list below what is not there": (
        lambda w: w.keys("nope"),
        "Zarr wants no keys, not an error",
    ),
    "a virtual chunk of another rank": (
        lambda w: w.set_refs(w.spec(1, 1), validate_containers=False),
        "refused, instead of being dropped in silence",
    ),
}


@pytest.fixture
def worlds(tmp_path: Path) -> tuple[World, World]:
    return World(ours, tmp_path / "ours"), World(official, tmp_path / "official")


@pytest.mark.parametrize("name", CALLS)
def test_both_answer_alike(name: str, worlds: tuple[World, World]) -> None:
    mine, theirs = (attempt(CALLS[name], world) for world in worlds)
    if isinstance(theirs, Failed):
        assert isinstance(mine, Failed), f"official: {theirs}, ours: {mine!r}"
        family = next(ours for theirs_, ours in FAMILIES if isinstance(theirs.error, theirs_))
        assert isinstance(mine.error, family), f"official: {theirs}, ours: {mine}"
    else:
        assert mine == theirs


@pytest.mark.parametrize("name", DIFFERENT)
def test_differences_on_purpose_are_still_there(name: str, worlds: tuple[World, World]) -> None:
    call, why = DIFFERENT[name]
    mine, theirs = (attempt(call, world) for world in worlds)
    assert mine != theirs, f"no longer different ({why}); move it to CALLS"


def test_a_lost_race_tells_both_parents(worlds: tuple[World, World]) -> None:
    for world in worlds:
        rival = world.repo.writable_session("main")
        world.write(rival, 0, 1)
        world.write(world.session, 0, 2)
        head = rival.commit("first")
        with pytest.raises(world.library.ConflictError) as lost:
            world.session.commit("second")
        assert (lost.value.expected_parent, lost.value.actual_parent) == (world.head, head)
        with pytest.raises(world.library.RebaseFailedError) as failed:
            world.session.rebase(world.library.ConflictDetector())
        assert failed.value.snapshot == head
        (conflict,) = failed.value.conflicts
        assert str(conflict.conflict_type) == "Chunk double update"
        assert (conflict.path, conflict.conflicted_chunks) == ("/a", [[0]])
        world.session.commit("second", rebase_with=world.library.BasicConflictSolver())
        assert trees.values(world.session, "/a").tolist() == [2, 5, 0, 0]


@pytest.mark.parametrize("threshold", [None, 0, 100])
def test_the_same_chunks_are_inline(threshold: int | None, tmp_path: Path) -> None:
    kinds = []
    for library in (ours, official):
        config = library.RepositoryConfig(inline_chunk_threshold_bytes=threshold)
        repo = library.Repository.create(library.in_memory_storage(), config)
        session = repo.writable_session("main")
        root = zarr.group(session.store)
        for size in (1, 99, 100, 101, 511, 512, 513):
            data = np.full(size, 7, "u1")
            root.create_array(f"s{size}", data=data, chunks=(size,), compressors=None)
        session.commit("sizes")
        kinds.append(trees.contents(repo.readonly_session("main"))["arrays"])
    assert kinds[0] == kinds[1]


def splitting(library: Any, rules: dict[str, dict[str, int]]) -> Any:
    arrays, dims = library.ManifestSplitCondition, library.ManifestSplitDimCondition
    conditions = {"any": arrays.AnyArray(), "x": arrays.name_matches("x.*")}
    sides = {"any": dims.Any(), "axis 0": dims.Axis(0), "lon": dims.DimensionName("lon")}
    config = library.ManifestSplittingConfig.from_dict(
        {
            conditions[where]: {sides[side]: size for side, size in sizes.items()}
            for where, sizes in rules.items()
        }
    )
    return library.RepositoryConfig(manifest=library.ManifestConfig(splitting=config))


@pytest.mark.parametrize(
    "rules",
    [
        {"any": {"any": 3}},
        {"any": {"axis 0": 2}},
        {"x": {"lon": 2, "any": 4}, "any": {"axis 0": 5}},
        {"x": {"axis 0": 1}},
    ],
)
def test_manifests_are_split_alike(rules: dict[str, dict[str, int]], tmp_path: Path) -> None:
    """The same boxes with the same numbers of references, after each kind of change."""
    seen = []
    for library in (ours, official):
        repo = library.Repository.create(
            library.local_filesystem_storage(str(tmp_path / library.__name__)),
            splitting(library, rules),
        )
        history = []
        for change in (fill, grow, shrink, punch, sparse):
            session = repo.writable_session("main")
            change(zarr.open_group(session.store, mode="a"))
            head = repo.lookup_snapshot(session.commit(change.__name__))
            history.append(sorted(file.num_chunk_refs for file in head.manifests))
        reader = ours.Repository.open(ours.local_filesystem_storage(tmp_path / library.__name__))
        nodes = reader.readonly_session("main").tree.nodes()
        boxes = {
            node.path: sorted(ref.extents for ref in node.array.manifests)
            for node in nodes
            if node.array
        }
        seen.append((history, boxes))
    assert seen[0] == seen[1]


def fill(root: zarr.Group) -> None:
    data = np.arange(1, 71).reshape(7, 10)
    for name in ("xa", "other"):
        root.create_array(name, data=data, chunks=(1, 1), dimension_names=["lat", "lon"])


def grow(root: zarr.Group) -> None:
    root["xa"].resize((9, 10))
    root["xa"][8, :] = 1


def shrink(root: zarr.Group) -> None:
    root["other"].resize((4, 5))


def punch(root: zarr.Group) -> None:
    for place in range(4):
        asyncio.run(root.store_path.store.delete(f"xa/c/{place}/{place}"))


def sparse(root: zarr.Group) -> None:
    array = root.create_array("xs", shape=(20, 20), chunks=(1, 1), dtype="i1")
    for place in ((0, 0), (19, 19), (10, 3)):
        array[place] = 1


def test_summaries_of_manifests_count_alike(worlds: tuple[World, World]) -> None:
    counts = [
        Counter(file.num_chunk_refs for file in world.repo.lookup_snapshot(world.head).manifests)
        for world in worlds
    ]
    assert counts[0] == counts[1]
