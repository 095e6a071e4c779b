"""State machines that run the same steps with this engine and the official library, and compare.

Both have the same names, so an *actor* is just the module and a repository opened by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import eq
from typing import Any

import icechunk as official
import zarr
from hypothesis import assume, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support import trees
from support.places import Place

import airflow_provider_icechunk.api as ours

GROUPS = ["g", "g/h", "g-h", "ü"]
ARRAYS = ["a", "a-b", "g/a", "g/h/a", "z"]
BRANCHES = ["main", "dev", "b.2"]
TAGS = ["v1", "v 2"]
SIDES = st.integers(0, 5)
JSON = st.dictionaries(
    st.text("abü", min_size=1, max_size=3),
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.just(2.5), st.text(max_size=3)),
    max_size=3,
)


class Failed:
    """An operation that raised; all failures are equal, because texts and classes differ."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Failed)

    __hash__ = None

    def __repr__(self) -> str:
        return f"Failed({self.error!r})"


def attempt(action, *args, **kwargs):
    """What the action returned, or that it failed."""
    try:
        return action(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - any failure is an answer
        return Failed(error)


def plain_diff(diff: Any) -> dict[str, Any]:
    """A difference as plain values, in a fixed order."""
    return {
        "new": (sorted(diff.new_groups), sorted(diff.new_arrays)),
        "deleted": (sorted(diff.deleted_groups), sorted(diff.deleted_arrays)),
        "updated": (sorted(diff.updated_groups), sorted(diff.updated_arrays)),
        "chunks": {path: sorted(map(list, rows)) for path, rows in diff.updated_chunks.items()},
    }


def agree_on_changes(mine: Any, theirs: Any) -> bool:
    """Whether two plain differences say the same.

    Zarr erases the chunks that a smaller shape cuts off. This engine logs them all; the official
    library omits those outside the new grid. So for arrays with new documents ours may say more.
    """
    if isinstance(mine, Failed) or isinstance(theirs, Failed):
        return mine == theirs
    if any(mine[kind] != theirs[kind] for kind in ("new", "deleted", "updated")):
        return False
    redefined = {*mine["new"][1], *mine["updated"][1]}
    for path in mine["chunks"].keys() | theirs["chunks"].keys():
        ours_, official_ = (
            set(map(tuple, side["chunks"].get(path, []))) for side in (mine, theirs)
        )
        if ours_ != official_ and not (path in redefined and official_ < ours_):
            return False
    return True


def view(session: Any) -> dict[str, Any]:
    """Everything a session shows: metadata, kinds of chunks and values."""
    found = trees.contents(session)
    for path, facts in found["arrays"].items():
        facts["values"] = trees.values(session, path).tolist()
    return found


def create_group(store, path, attributes):
    zarr.create_group(store, path=path, attributes=attributes)


def create_array(store, path, shape, long_chunks, fill):
    chunk = 300 if long_chunks else 1
    zarr.create_array(
        store,
        name=path,
        shape=(*shape, 300),
        chunks=(*(1 for _ in shape), chunk * 100 if chunk == 1 else chunk),
        dtype="i2",
        fill_value=fill,
        compressors=None,
        dimension_names=[*("xyz"[: len(shape)]), None],
    )


def write(store, path, start, stop, value):
    array = zarr.open_array(store, path=path, mode="r+")
    if array.ndim == 1:
        array[start * 60 : stop * 60] = value
    else:
        array[start:stop] = value


def resize(store, path, side):
    array = zarr.open_array(store, path=path, mode="r+")
    array.resize((side, *array.shape[1:]) if array.ndim > 1 else (side * 60,))


def set_attributes(store, path, attributes):
    node = zarr.open(store, path=path, mode="r+")
    node.attrs.put(attributes)


def delete_node(store, path):
    asyncio.run(store.delete_dir(path))


def delete_chunk(store, path, numbers):
    # Inside the grid: beyond it, and in arrays that do not exist, the official store raises,
    # while Zarr expects deleting what does not exist to succeed.
    counts = zarr.open_array(store, path=path, mode="r+").cdata_shape
    if all(counts):
        index = [number % count for number, count in zip(numbers, counts, strict=False)]
        asyncio.run(store.delete(f"{path}/c/{'/'.join(map(str, index))}"))


class Operations(RuleBasedStateMachine):
    """Steps that change a tree; a subclass defines what carries them out."""

    places: Callable[[], Place]
    """Where repositories can be; given by the test."""

    def change(self, action, *args) -> None:
        raise NotImplementedError

    def furnish(self, shape) -> None:
        """Something to start with, so that most steps find something to work on."""
        self.change(create_group, "", {})
        self.change(create_array, "a", tuple(shape), False, 0)
        self.change(create_array, "g/a", (3,), True, -1)
        self.change(write, "g/a", 0, 2, 5)

    @rule(path=st.sampled_from(GROUPS), attributes=JSON)
    def make_group(self, path, attributes):
        self.change(create_group, path, attributes)

    @rule(
        path=st.sampled_from(ARRAYS),
        shape=st.lists(SIDES, max_size=2),
        long_chunks=st.booleans(),
        fill=st.integers(-2, 2),
    )
    def make_array(self, path, shape, long_chunks, fill):
        self.change(create_array, path, tuple(shape), long_chunks, fill)

    @rule(
        path=st.sampled_from(ARRAYS), start=SIDES, size=st.integers(1, 3), value=st.integers(0, 99)
    )
    def write_region(self, path, start, size, value):
        self.change(write, path, start, start + size, value)

    @rule(path=st.sampled_from(ARRAYS), side=SIDES)
    def resize_array(self, path, side):
        self.change(resize, path, side)

    @rule(path=st.sampled_from(ARRAYS + GROUPS), attributes=JSON)
    def put_attributes(self, path, attributes):
        self.change(set_attributes, path, attributes)

    @rule(path=st.sampled_from(ARRAYS + GROUPS))
    def drop_node(self, path):
        self.change(delete_node, path)

    @rule(path=st.sampled_from(ARRAYS), numbers=st.tuples(*[st.integers(0, 4)] * 3))
    def drop_chunk(self, path, numbers):
        self.change(delete_chunk, path, numbers)


class Actor:
    """One of the two libraries with a repository and the session it works in."""

    def __init__(self, library: Any, repo: Any) -> None:
        self.library = library
        self.repo = repo
        self.session = repo.writable_session("main")
        self.snapshots = [repo.lookup_branch("main")]
        """Ids in order of creation: the same position is the same snapshot on both sides."""

    def commit(self, message: str, metadata: dict[str, Any]) -> int:
        self.snapshots.append(self.session.commit(message, metadata))
        return len(self.snapshots)

    def place(self, snapshot_id: str | None) -> int | None:
        return None if snapshot_id is None else self.snapshots.index(snapshot_id)

    def history(self, branch: str) -> list[Any]:
        return [
            (self.place(info.id), self.place(info.parent_id), info.message, info.metadata)
            for info in self.repo.ancestry(branch=branch)
        ]

    def references(self) -> dict[str, Any]:
        branches = {n: self.place(self.repo.lookup_branch(n)) for n in self.repo.list_branches()}
        tags = {n: self.place(self.repo.lookup_tag(n)) for n in self.repo.list_tags()}
        return {"branches": branches, "tags": tags}

    def diff(self, older: int, newer: int) -> dict[str, Any]:
        return plain_diff(
            self.repo.diff(
                from_snapshot_id=self.snapshots[older], to_snapshot_id=self.snapshots[newer]
            )
        )


class TwinMachine(Operations):
    """Two repositories, one for each library; the same steps must give the same result."""

    def __init__(self) -> None:
        super().__init__()
        self.actors = [
            Actor(ours, ours.Repository.create(self.places().ours())),
            Actor(official, official.Repository.create(official.in_memory_storage())),
        ]

    @initialize(shape=st.lists(SIDES, max_size=2))
    def start(self, shape):
        self.furnish(shape)

    def both(self, action, agree=eq) -> Any:
        mine, theirs = (attempt(lambda a=actor: action(a)) for actor in self.actors)
        note(f"-> {mine!r} | {theirs!r}"[:600])
        assert agree(mine, theirs)
        return mine

    def change(self, action, *args) -> None:
        self.both(lambda actor: action(actor.session.store, *args))

    @rule(message=st.text(max_size=5), metadata=JSON)
    def commit(self, message, metadata):
        self.commit_and_compare(message, metadata)

    @rule(number=st.integers(0, 99))
    def change_and_commit(self, number):
        """Commits that have something to say, because most sequences are short of them."""
        self.change(set_attributes, "", {"n": number})
        self.change(write, "g/a", 0, 1, number)
        self.commit_and_compare("changed", {"n": number})

    def commit_and_compare(self, message, metadata):
        self.both(lambda actor: plain_diff(actor.session.status()), agree_on_changes)
        self.both(lambda actor: actor.session.has_uncommitted_changes)
        branch = self.actors[0].session.branch
        done = self.both(lambda actor: actor.commit(message, metadata))
        if not isinstance(done, Failed):
            self.both(lambda actor: actor.session.read_only)
            self.both(lambda actor: actor.history(branch))
            self.both(
                lambda actor: actor.diff(actor.history(branch)[1][0], done - 1), agree_on_changes
            )
            self.open(branch)

    def open(self, branch) -> None:
        def start(actor):
            actor.session = actor.repo.writable_session(branch)

        self.both(start)

    @rule()
    def discard(self):
        self.both(lambda actor: actor.session.discard_changes())

    @rule(branch=st.sampled_from(BRANCHES))
    def switch(self, branch):
        self.open(branch)

    @rule(branch=st.sampled_from(BRANCHES), place=st.integers(0, 6))
    def make_branch(self, branch, place):
        assume(place < len(self.actors[0].snapshots))
        self.both(lambda actor: actor.repo.create_branch(branch, actor.snapshots[place]))

    @rule(branch=st.sampled_from(BRANCHES), place=st.integers(0, 6))
    def reset_branch(self, branch, place):
        assume(place < len(self.actors[0].snapshots))
        self.both(lambda actor: actor.repo.reset_branch(branch, actor.snapshots[place]))

    @rule(branch=st.sampled_from(BRANCHES))
    def delete_branch(self, branch):
        self.both(lambda actor: actor.repo.delete_branch(branch))

    @rule(tag=st.sampled_from(TAGS), place=st.integers(0, 6))
    def make_tag(self, tag, place):
        assume(place < len(self.actors[0].snapshots))
        self.both(lambda actor: actor.repo.create_tag(tag, actor.snapshots[place]))

    @rule(tag=st.sampled_from(TAGS))
    def delete_tag(self, tag):
        self.both(lambda actor: actor.repo.delete_tag(tag))

    @rule(older=st.integers(0, 6), newer=st.integers(0, 6))
    def compare_versions(self, older, newer):
        assume(max(older, newer) < len(self.actors[0].snapshots) and older != newer)
        self.both(lambda actor: actor.diff(older, newer), agree_on_changes)

    @invariant()
    def same_tree(self):
        self.both(lambda actor: view(actor.session))

    @invariant()
    def same_references(self):
        self.both(lambda actor: actor.references())


class SharedMachine(Operations):
    """One repository; each session belongs to either library, both read the result."""

    def __init__(self) -> None:
        super().__init__()
        place = self.places()
        assert place.official is not None, "both libraries must reach the place"
        ours.Repository.create(place.ours())
        self.repos = {
            "ours": ours.Repository.open(place.ours()),
            "official": official.Repository.open(place.official()),
        }
        self.session: Any = None
        self.expected: Any = None

    @initialize(actor=st.sampled_from(["ours", "official"]), shape=st.lists(SIDES, max_size=2))
    def start(self, actor, shape):
        self.session = self.repos[actor].writable_session("main")
        self.furnish(shape)

    def change(self, action, *args) -> None:
        attempt(action, self.session.store, *args)

    @precondition(lambda self: self.session.has_uncommitted_changes)
    @rule(actor=st.sampled_from(["ours", "official"]), message=st.text(max_size=5), metadata=JSON)
    def commit(self, actor, message, metadata):
        self.commit_and_compare(actor, message, metadata)

    @rule(actor=st.sampled_from(["ours", "official"]), number=st.integers(0, 99))
    def change_and_commit(self, actor, number):
        """Commits that have something to say, because most sequences are short of them."""
        self.change(set_attributes, "", {"n": number})
        self.change(write, "g/a", 0, 1, number)
        if self.session.has_uncommitted_changes:
            self.commit_and_compare(actor, "changed", {"n": number})

    def commit_and_compare(self, actor, message, metadata):
        expected, status = view(self.session), plain_diff(self.session.status())
        parent, snapshot = self.session.snapshot_id, self.session.commit(message, metadata)
        for name, repo in self.repos.items():
            note(f"{name} reads")
            assert repo.lookup_branch("main") == snapshot
            assert view(repo.readonly_session("main")) == expected
            diff = repo.diff(from_snapshot_id=parent, to_snapshot_id=snapshot)
            assert plain_diff(diff) == status
            head = next(iter(repo.ancestry(branch="main")))
            assert (head.parent_id, head.message, head.metadata) == (parent, message, metadata)
        mine, theirs = (list(repo.ancestry(branch="main")) for repo in self.repos.values())
        assert [(i.id, i.written_at, i.message) for i in mine] == [
            (i.id, i.written_at, i.message) for i in theirs
        ]
        assert _manifests(mine[0]) == _manifests(theirs[0])
        self.session = self.repos[actor].writable_session("main")

    @rule(actor=st.sampled_from(["ours", "official"]), name=st.sampled_from(TAGS))
    def name_version(self, actor, name):
        head = self.repos["ours"].lookup_branch("main")
        attempt(self.repos[actor].create_tag, name, head)
        attempt(self.repos[actor].create_branch, f"at-{name}", head)
        self.agree()

    @rule(actor=st.sampled_from(["ours", "official"]), name=st.sampled_from(TAGS))
    def forget_name(self, actor, name):
        attempt(self.repos[actor].delete_tag, name)
        attempt(self.repos[actor].delete_branch, f"at-{name}")
        self.agree()

    def agree(self):
        def named(repo):
            tags = {name: repo.lookup_tag(name) for name in repo.list_tags()}
            return tags, {name: repo.lookup_branch(name) for name in repo.list_branches()}

        assert named(self.repos["ours"]) == named(self.repos["official"])


def _manifests(info: Any) -> list[tuple[str, int, int]]:
    return sorted((file.id, file.size_bytes, file.num_chunk_refs) for file in info.manifests)
