"""Logs where none are kept: derived from two trees, they say what a stored log would say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from support.arrays import GROUP, array, put
from support.early import SNAPSHOT
from support.model import plain_references, reference_items

from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    ETag,
    Index,
    Inline,
    LastModified,
    Native,
    Payload,
    Virtual,
    concatenate,
)
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import ChunkId, format_id, new_id, parse_id
from airflow_provider_icechunk.engine.objects.derived_logs import changed_rows, derive_log
from airflow_provider_icechunk.engine.objects.objects import Objects
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.tree.changes import ChangeSet, NodeIds, ids_of, number_id
from airflow_provider_icechunk.engine.workers.codec import (
    Fragment,
    decode_fragment,
    encode_fragment,
)
from airflow_provider_icechunk.exceptions import FormatError

Items = tuple[int, dict[Index, Payload | None]]


@settings(deadline=None, max_examples=100)
@given(reference_items(ndim=2), reference_items(ndim=2))
def test_changed_rows_are_those_whose_references_differ(before: Items, after: Items) -> None:
    old, new = before[1], after[1]
    mixed = {**dict(list(old.items())[::2]), **new}
    one, other = (ChunkRefs.from_items(2, items.items()) for items in (old, mixed))
    expected = sorted(
        index for index in old.keys() | mixed.keys() if old.get(index) != mixed.get(index)
    )
    assert [tuple(row) for row in changed_rows(one, other).tolist()] == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Inline(b"a"), Inline(b"b")),
        (Inline(b"ab"), Inline(b"a")),
        (Native(ChunkId(SNAPSHOT), 0, 1), Native(ChunkId(SNAPSHOT[::-1]), 0, 1)),
        (Native(ChunkId(SNAPSHOT), 0, 1), Native(ChunkId(SNAPSHOT), 1, 1)),
        (Virtual("s3://a/b", 0, 1), Virtual("s3://a/c", 0, 1)),
        (Virtual("s3://a/b", 0, 1, ETag("x")), Virtual("s3://a/b", 0, 1, ETag("y"))),
        (Virtual("s3://a/b", 0, 1), Virtual("s3://a/b", 0, 1, LastModified(5))),
        (Inline(b"s"), Virtual("s", 0, 1)),
    ],
)
def test_every_field_of_a_reference_counts(before: Payload, after: Payload) -> None:
    noise = [((9,), Inline(b"noise")), ((0,), Virtual("s3://n", 1, 2))]
    one = ChunkRefs.from_items(1, [*noise, ((4,), before)])
    other = ChunkRefs.from_items(1, [((4,), after), *noise])
    assert changed_rows(one, other).tolist() == [[4]]
    assert changed_rows(one, one).tolist() == []


def test_a_derived_log_says_what_the_stored_one_says() -> None:
    repo = Repository.create(MemoryStorage())
    session = repo.writable_session("main")
    for path in ("/", "/g", "/gone"):
        session.tree.put_document(path, GROUP)
    for path in ("/a", "/g/b", "/dead"):
        session.tree.put_document(path, array([16], [1]))
        put(session, path, (2,), b"old" * 400)
        put(session, path, (3,), b"old")
    session.commit("before")
    session = repo.writable_session("main")
    put(session, "/a", (2,), b"new" * 400)
    session.tree.erase("/a", [(3,)])
    session.tree.put_document("/g/b", array([20], [1], more=1))
    session.tree.delete("/gone")
    session.tree.delete("/dead")
    session.tree.put_document("/dead", array([16], [1]))
    put(session, "/dead", (0,), b"born again")
    session.tree.put_document("/g", GROUP.replace(b"{}", b'{"x":1}'))
    session.commit("after")
    objects: Objects = repo._core.objects
    after = session.tree.base
    assert after.parent_id is not None
    stored = objects.log(after.id)
    assert stored is not None
    derived = derive_log(objects.snapshot(after.parent_id), after, objects._references)
    for name in (
        "new_groups", "new_arrays", "deleted_groups", "deleted_arrays", "updated_groups",
        "updated_arrays",
    ):  # fmt: skip
        assert getattr(derived, name) == getattr(stored, name), name
    assert derived.updated_chunks.keys() == stored.updated_chunks.keys()
    for node, rows in stored.updated_chunks.items():
        assert np.array_equal(derived.updated_chunks[node], rows)


def test_chunks_that_fall_off_a_shrunken_array_are_not_written_ones() -> None:
    repo = Repository.create(MemoryStorage(), spec_version="alpha1")
    session = repo.writable_session("main")
    session.tree.put_document("/a", array([16], [1]))
    for place in range(16):
        put(session, "/a", (place,), b"x")
    base = session.commit("before")
    session = repo.writable_session("main")
    session.tree.put_document("/a", array([4], [1]))
    put(session, "/a", (1,), b"y")
    session.commit("after")
    diff = Repository.open(repo.storage).diff(from_snapshot_id=base, to_branch="main")
    assert (diff.updated_arrays, diff.updated_chunks) == ({"/a"}, {"/a": [[1]]})


# ids of two sizes


@settings(deadline=None, max_examples=40)
@given(reference_items(ndim=1), reference_items(ndim=1))
def test_tables_without_native_rows_join_with_wide_ones(left: Items, right: Items) -> None:
    narrow = {i: p for i, p in left[1].items() if not isinstance(p, Native)}
    wide = {
        i: replace(p, chunk_id=ChunkId(SNAPSHOT)) if isinstance(p, Native) else p
        for i, p in right[1].items()
    } | {(0,): Native(ChunkId(SNAPSHOT), 1, 2)}
    one, other = (ChunkRefs.from_items(1, items.items()) for items in (narrow, wide))
    assert plain_references(one.overlay(other)) == narrow | wide
    assert plain_references(other.overlay(one)) == wide | narrow
    assert plain_references(ChunkRefs.of(concatenate([one, other]))) == narrow | wide


def test_fragments_carry_ids_of_the_size_of_their_base() -> None:
    refs = ChunkRefs.from_items(1, [((0,), Native(ChunkId(SNAPSHOT), 0, 1))])
    node = number_id(3)
    good = encode_fragment(Fragment(SNAPSHOT, "job", "w", {node: refs}))
    assert plain_references(decode_fragment(good, where="x").arrays[node]) == plain_references(refs)
    short = ChunkRefs.from_items(1, [((0,), Native(ChunkId(b"twelve bytes"), 0, 1))])
    mixed = encode_fragment(Fragment(SNAPSHOT, "job", "w", {node: short}))
    with pytest.raises(FormatError, match="16 bytes"):
        decode_fragment(mixed, where="x")


@pytest.mark.parametrize("generation", list(Generation))
def test_ids_are_read_as_they_are_shown(generation: Generation) -> None:
    identity = new_id(generation, bytes(range(1, generation.id_size + 1)))
    assert len(identity) == generation.id_size
    assert parse_id(generation, format_id(generation, identity)) == identity


def test_renumbering_moves_chunks_along() -> None:
    repo = Repository.create(MemoryStorage(), spec_version="draft")
    tree = repo.writable_session("main").tree
    tree.put_document("/x", array([4], [1]))
    tree.put_document("/y", array([4], [1]))
    for path in ("/x", "/y"):
        tree.put_chunk(path, (1,), path.encode())
    taken = {tree.array("/x").id}
    changes = tree.node_ids.renumber(tree.changes, taken)
    assert not ids_of(changes.created.values()) & taken
    assert changes.created["/y"] == tree.changes.created["/y"]
    moved = changes.chunks[changes.created["/x"].id]
    assert moved.find((1,)) == Inline(b"/x")
    assert tree.node_ids.renumber(changes, taken) is changes


def test_random_ids_are_never_renumbered() -> None:
    ids = NodeIds(Generation.V1, lambda size: bytes(size))
    changes = ChangeSet()
    base = Repository.create(MemoryStorage()).readonly_session("main").tree.base
    assert ids.new(base, changes) == ids.new(base, changes) == bytes(8)
    assert ids.renumber(changes, {number_id(0)}) is changes
