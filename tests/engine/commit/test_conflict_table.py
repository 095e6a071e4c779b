"""Every row of the conflict table gives here what it gives in the official library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from support.arrays import array
from support.maintenance import GENERATIONS
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from airflow_provider_icechunk import api
from airflow_provider_icechunk.api import ConflictDetector
from airflow_provider_icechunk.exceptions import RebaseFailedError

Change = Callable[[Any], None]
"""A transaction, on the store of a session of either library."""


def create(path: str) -> Change:
    def act(store: Any) -> None:
        zarr.create_array(store, name=path, shape=(4,), chunks=(1,), dtype="i4", fill_value=0)

    return act


def create_alone(path: str) -> Change:
    """An array without the groups above it."""
    document = default_buffer_prototype().buffer.from_bytes(array([4], [1]))
    return lambda store: sync(store.set(f"{path}/zarr.json", document))


def create_group(path: str) -> Change:
    return lambda store: _ignore(zarr.create_group(store, path=path))


def write(path: str, *places: int) -> Change:
    def act(store: Any) -> None:
        opened = zarr.open_array(store, path=path, mode="r+")
        for place in places:
            opened[place] = 7

    return act


def attributes(path: str, value: int) -> Change:
    def act(store: Any) -> None:
        zarr.open(store, path=path, mode="r+").attrs["value"] = value

    return act


def resize(path: str, length: int) -> Change:
    return lambda store: zarr.open_array(store, path=path, mode="r+").resize((length,))


def edit(path: str, old: bytes, new: bytes) -> Change:
    """Change the document alone, without what Zarr does beside it."""

    def act(store: Any) -> None:
        key, prototype = f"{path}/zarr.json", default_buffer_prototype()
        document = sync(store.get(key, prototype)).to_bytes()
        assert old in document
        sync(store.set(key, prototype.buffer.from_bytes(document.replace(old, new, 1))))

    return act


def delete(path: str) -> Change:
    def act(store: Any) -> None:
        root = zarr.open_group(store, mode="r+")
        del root[path]

    return act


def both(*changes: Change) -> Change:
    def act(store: Any) -> None:
        for change in changes:
            change(store)

    return act


def _ignore(_: object) -> None:
    return None


@dataclass(frozen=True)
class Row:
    ours: Change
    theirs: Change
    expected: tuple[tuple[str, str], ...]
    """Types and paths of the conflicts."""


_numbers = count()
CLEAN: tuple[tuple[str, str], ...] = ()
ROWS = {
    "both create one array": Row(
        create("new"), create("new"), (("NewNodeConflictsWithExistingNode", "/new"),)
    ),
    "both create one group": Row(
        create_group("new"), create_group("new"), (("NewNodeConflictsWithExistingNode", "/new"),)
    ),
    "a group where they made an array": Row(
        create_group("new"), create("new"), (("NewNodeConflictsWithExistingNode", "/new"),)
    ),
    "below what they made an array": Row(
        create_alone("new/below"), create("new"), (("NewNodeInInvalidGroup", "/new"),)
    ),
    "attributes of one array": Row(
        attributes("a", 1), attributes("a", 2), (("ZarrMetadataDoubleUpdate", "/a"),)
    ),
    "attributes of one group": Row(
        attributes("g", 1), attributes("g", 2), (("ZarrMetadataDoubleUpdate", "/g"),)
    ),
    "attributes of a deleted array": Row(
        attributes("a", 1), delete("a"), (("ZarrMetadataUpdateOfDeletedArray", "/a"),)
    ),
    "attributes of a deleted group": Row(
        attributes("g", 1), delete("g"), (("ZarrMetadataUpdateOfDeletedGroup", "/g"),)
    ),
    "chunks of a deleted array": Row(
        write("a", 0), delete("a"), (("ChunksUpdatedInDeletedArray", "/a"),)
    ),
    "chunks of an updated array": Row(
        write("a", 0), attributes("a", 1), (("ChunksUpdatedInUpdatedArray", "/a"),)
    ),
    "chunks of a resized array": Row(
        write("a", 0), resize("a", 9), (("ChunksUpdatedInUpdatedArray", "/a"),)
    ),
    "the same chunks": Row(
        write("a", 0, 1, 2), write("a", 1, 2, 3), (("ChunkDoubleUpdate", "/a"),)
    ),
    "the same chunks of two arrays": Row(
        both(write("a", 0), write("g/b", 1)),
        both(write("a", 0), write("g/b", 1)),
        (("ChunkDoubleUpdate", "/a"), ("ChunkDoubleUpdate", "/g/b")),
    ),
    "delete of an array with new attributes": Row(
        delete("a"), attributes("a", 1), (("DeleteOfUpdatedArray", "/a"),)
    ),
    "delete of an array with new chunks": Row(
        delete("a"), write("a", 0), (("DeleteOfUpdatedArray", "/a"),)
    ),
    "delete of a group with new attributes": Row(
        delete("g"), attributes("g", 1), (("DeleteOfUpdatedGroup", "/g"),)
    ),
    "delete of a group with a changed array in it": Row(
        delete("g"), write("g/b", 0), (("DeleteOfUpdatedArray", "/g/b"),)
    ),
    "replacing an array that they changed": Row(
        both(delete("a"), create("a")), write("a", 0), (("DeleteOfUpdatedArray", "/a"),)
    ),
    "several at once": Row(
        both(create("new"), attributes("g", 1), write("a", 0), delete("c")),
        both(create("new"), attributes("g", 2), write("a", 0), write("c", 0)),
        (
            ("ChunkDoubleUpdate", "/a"),
            ("DeleteOfUpdatedArray", "/c"),
            ("NewNodeConflictsWithExistingNode", "/new"),
            ("ZarrMetadataDoubleUpdate", "/g"),
        ),
    ),
    "other chunks of one array": Row(write("a", 0), write("a", 1), CLEAN),
    "other arrays": Row(write("a", 0), write("g/b", 0), CLEAN),
    "other nodes": Row(create("new"), create_group("other"), CLEAN),
    "attributes beside chunks": Row(attributes("a", 1), write("a", 0), CLEAN),
    "growing beside chunks": Row(resize("a", 9), write("a", 0), CLEAN),
    "attributes of a group beside a new array in it": Row(
        attributes("g", 1), create("g/new"), CLEAN
    ),
    "both delete one array": Row(delete("a"), delete("a"), CLEAN),
    "both delete one group": Row(delete("g"), delete("g"), CLEAN),
    "delete beside chunks of another": Row(delete("a"), write("c", 0), CLEAN),
}

SOLVERS: dict[str, Callable[[Any], Any]] = {
    "detector": lambda lib: lib.ConflictDetector(),
    "basic": lambda lib: lib.BasicConflictSolver(),
    "basic, ours": lambda lib: _basic(lib, "UseOurs"),
    "basic, theirs": lambda lib: _basic(lib, "UseTheirs"),
    "basic, fail": lambda lib: _basic(lib, "Fail"),
    "basic, keep arrays": lambda lib: lib.BasicConflictSolver(fail_on_delete_of_updated_array=True),
    "basic, keep groups": lambda lib: lib.BasicConflictSolver(fail_on_delete_of_updated_group=True),
    "basic, keep both": lambda lib: lib.BasicConflictSolver(
        fail_on_delete_of_updated_array=True, fail_on_delete_of_updated_group=True
    ),
}


def _basic(lib: Any, selection: str) -> Any:
    return lib.BasicConflictSolver(on_chunk_conflict=getattr(lib.VersionSelection, selection))


def start(lib: Any, storage: Any, **options: Any) -> Any:
    repo = lib.Repository.create(storage, **options)
    session = repo.writable_session("main")
    zarr.create_group(session.store)
    zarr.create_group(session.store, path="g")
    for path in ("a", "c", "g/b"):
        create(path)(session.store)
        zarr.open_array(session.store, path=path, mode="r+")[:] = np.arange(1, 5)
    session.commit("start")
    return repo


@pytest.fixture(scope="module")
def official() -> Any:
    return start(icechunk, icechunk.in_memory_storage())


@pytest.fixture(scope="module", params=GENERATIONS)
def mine(request: pytest.FixtureRequest) -> Any:
    return start(api, api.in_memory_storage(), spec_version=request.param)


def outcome(lib: Any, repo: Any, row: Row, solver: Any) -> tuple[Any, ...]:
    """Conflicts as plain values, or the tree after the commit. On a branch of its own."""
    branch = f"branch-{next(_numbers)}"
    repo.create_branch(branch, repo.lookup_branch("main"))
    ours, theirs = repo.writable_session(branch), repo.writable_session(branch)
    row.ours(ours.store)
    row.theirs(theirs.store)
    theirs.commit("theirs")
    try:
        ours.rebase(solver)
    except lib.RebaseFailedError as error:
        found = [
            (_name(one.conflict_type), one.path, _rows(one.conflicted_chunks))
            for one in error.conflicts
        ]
        return ("conflicts", sorted(found, key=repr))
    if ours.has_uncommitted_changes:
        ours.commit("ours")
    return ("tree", _tree(repo.readonly_session(branch).store))


def _name(conflict_type: Any) -> str:
    return str(getattr(conflict_type, "name", None) or repr(conflict_type)).rsplit(".", 1)[-1]


def _rows(chunks: list[list[int]] | None) -> list[list[int]] | None:
    return None if chunks is None else sorted(chunks)


def _tree(store: Any) -> dict[str, Any]:
    root = zarr.open_group(store, mode="r")
    return {
        path: (dict(node.attrs), node[...].tolist() if isinstance(node, zarr.Array) else None)
        for path, node in sorted(root.members(max_depth=None))
    }


# Solvers do not know generations: beside `1` the table is enough with one of them.
@pytest.mark.parametrize(
    ("mine", "solver"),
    [
        *(("1", solver) for solver in SOLVERS),
        *((generation, "detector") for generation in GENERATIONS if generation != "1"),
    ],
    indirect=["mine"],
)
@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_table_ends_as_in_the_official_library(
    official: Any, mine: Any, row: str, solver: str
) -> None:
    here = outcome(api, mine, ROWS[row], SOLVERS[solver](api))
    assert here == outcome(icechunk, official, ROWS[row], SOLVERS[solver](icechunk))
    if solver == "detector":
        assert _types_and_paths(here) == ROWS[row].expected


def _types_and_paths(result: tuple[Any, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((kind, path) for kind, path, _ in result[1]) if result[0] == "conflicts" else ()


STRICTER = {
    "an array in a group that they deleted": Row(
        create("g/new"), delete("g"), (("NewNodeInInvalidGroup", "/g"),)
    ),
    "delete of a group in which they made an array": Row(
        delete("g"), create("g/new"), (("NewNodeInInvalidGroup", "/g"),)
    ),
    "an array in a group that they replaced": Row(
        create("g/new"),
        both(delete("g"), create_group("g")),
        (("NewNodeInInvalidGroup", "/g"),),
    ),
    "an array above a node that they made": Row(
        create("new"), create_alone("new/below"), (("NewNodeInInvalidGroup", "/new"),)
    ),
    "delete of an array that they replaced": Row(
        delete("a"), both(delete("a"), create("a")), (("DeleteOfUpdatedArray", "/a"),)
    ),
    "replacing an array that they deleted": Row(
        both(delete("a"), create("a")), delete("a"), (("DeleteOfUpdatedArray", "/a"),)
    ),
    "shrinking an array whose rest they write": Row(
        resize("a", 2), write("a", 1, 3), (("ChunkDoubleUpdate", "/a"),)
    ),
    "shrinking an array below their chunks": Row(
        edit("a", b"4", b"2"), write("a", 3), (("ChunksUpdatedInUpdatedArray", "/a"),)
    ),
    "another data type below their chunks": Row(
        edit("a", b'"int32"', b'"float32"'), write("a", 3), (("ChunksUpdatedInUpdatedArray", "/a"),)
    ),
}


@pytest.mark.parametrize("row", STRICTER)
def test_what_the_official_library_lets_pass_is_a_conflict_here(
    official: Any, mine: Any, row: str
) -> None:
    """If the second half fails, the official library has become stricter: move the row above."""
    here = outcome(api, mine, STRICTER[row], ConflictDetector())
    assert _types_and_paths(here) == STRICTER[row].expected
    there = outcome(icechunk, official, STRICTER[row], icechunk.ConflictDetector())
    assert there[0] == "tree"


def test_a_failed_rebase_says_where_and_leaves_the_changes(mine: Any) -> None:
    mine.create_branch("failed", mine.lookup_branch("main"))
    ours, theirs = mine.writable_session("failed"), mine.writable_session("failed")
    write("a", 0, 1)(ours.store)
    create("new")(ours.store)
    write("a", 1)(theirs.store)
    landed = theirs.commit("theirs")
    before = _tree(ours.store)
    with pytest.raises(RebaseFailedError) as caught:
        ours.commit("ours", rebase_with=ConflictDetector())
    assert caught.value.snapshot == landed
    assert [one.conflicted_chunks for one in caught.value.conflicts] == [[[1]]]
    assert _tree(ours.store) == before
    assert ours.has_uncommitted_changes
    assert mine.lookup_branch("failed") == landed
