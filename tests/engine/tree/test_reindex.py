"""Chunks of an array get other places without being read or written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support import actors
from support.arrays import array
from support.maintenance import GENERATIONS

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Inline
from airflow_provider_icechunk.engine.tree.reindex import reindexed, shifted
from airflow_provider_icechunk.exceptions import (
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    UnsupportedError,
)

COUNTS = (4, 3)
places = st.tuples(*(st.integers(0, count - 1) for count in COUNTS))
tables = st.dictionaries(places, st.binary(min_size=1, max_size=4).map(Inline), max_size=9)
offsets = st.tuples(*[st.one_of(st.integers(-5, 5), st.sampled_from([2**62, -(2**70)]))] * 2)


def refs_of(table: dict) -> ChunkRefs:
    return ChunkRefs.from_items(2, table.items())


def apply(table: dict, edits: ChunkRefs) -> dict:
    left = refs_of(table).overlay(edits).without_erased()
    return {tuple(row): left[at] for at, row in enumerate(left.index.tolist())}


@given(table=tables, offset=offsets)
def test_a_shift_moves_all_and_drops_what_leaves_the_grid(table, offset):
    moved = {
        tuple(map(sum, zip(place, offset, strict=True))): what for place, what in table.items()
    }
    inside = {
        place: what
        for place, what in moved.items()
        if all(0 <= one < count for one, count in zip(place, COUNTS, strict=True))
    }
    assert apply(table, shifted(refs_of(table), offset, COUNTS)) == inside


@given(
    table=tables,
    targets=st.dictionaries(places, st.one_of(st.none(), places), max_size=12),
    sources=st.one_of(st.none(), st.dictionaries(places, places, max_size=12)),
)
def test_reindexing_is_what_moving_one_after_the_other_would_be(table, targets, sources):
    forward = {place: targets.get(place) for place in table}
    going = {place: target for place, target in sorted(forward.items()) if target is not None}
    expected = dict(table) | {target: table[place] for place, target in going.items()}
    if sources is not None:
        for place in table:
            if place not in going.values() and sources.get(place) not in table:
                del expected[place]
    backward = None if sources is None else (lambda index: sources.get(tuple(index)))
    edits = reindexed(
        refs_of(table), COUNTS, lambda index: forward[tuple(index)], backward, path="/a"
    )
    assert apply(table, edits) == expected


def filled(generation: str) -> tuple[icechunk.Repository, np.ndarray]:
    repo = icechunk.Repository.create(icechunk.in_memory_storage(), spec_version=generation)
    session = repo.writable_session("main")
    values = np.arange(40 * 300).reshape(40, 300)
    target = zarr.create_array(
        session.store, name="a", shape=(40, 300), chunks=(10, 100), dtype="i4", fill_value=-1
    )
    target[:30] = values[:30]
    session.commit("filled")
    return repo, np.where(np.arange(40)[:, None] < 30, values, -1)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_shifted_arrays_read_shifted_in_every_generation(generation: str) -> None:
    repo, values = filled(generation)
    chunks = {item.key for item in repo.storage.scan("c")}
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[:10] = 7
    values[:10] = 7
    session.shift_array("/a", [1, -1])
    shown = zarr.open_array(session.store, path="a", mode="r")
    expected = np.full_like(values, -1)
    expected[10:, :200] = values[:30, 100:]
    assert (shown[...] == expected).all()
    session.commit("shifted")
    assert (zarr.open_array(repo.readonly_session("main").store, path="a")[...] == expected).all()
    diff = repo.diff(from_snapshot_id=list(repo.ancestry(branch="main"))[1].id, to_branch="main")
    assert len(diff.updated_chunks["/a"]) == 11
    session = repo.writable_session("main")
    session.shift_array("/a", [9, 0])
    assert (zarr.open_array(session.store, path="a", mode="r")[...] == -1).all()
    session.commit("emptied")
    assert {item.key for item in repo.storage.scan("c")} >= chunks
    assert repo.verify().ok


def test_what_cannot_be_moved_is_refused_and_nothing_changes() -> None:
    repo, values = filled("2")
    session = repo.writable_session("main")
    with pytest.raises(InvalidInputError, match="2 dimensions"):
        session.shift_array("/a", [1])
    with pytest.raises(NotFoundError):
        session.shift_array("/b", [1])
    for target in ([4, 0], [0], [-1, 0], ["0", 0]):
        with pytest.raises(InvalidInputError, match="cannot be moved"):
            session.reindex_array("/a", lambda _, target=target: target)
    with pytest.raises(ZeroDivisionError):
        session.reindex_array("/a", lambda index: [1 // 0, *index])
    assert not session.has_uncommitted_changes
    with pytest.raises(ReadOnlyError):
        repo.readonly_session("main").shift_array("/a", [0, 1])
    uneven = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[1, 2]]}}
    document = json.loads(array([3], [1])) | {"chunk_grid": uneven}
    session.tree.put_document("/r", json.dumps(document).encode())
    with pytest.raises(UnsupportedError, match="rectilinear"):
        session.shift_array("/r", [1])
    assert (zarr.open_array(session.store, path="a", mode="r")[...] == values).all()


@pytest.fixture(scope="module")
def worker() -> Iterator[actors.Worker]:
    process = actors.Worker()
    yield process
    process.close()


ROWS = 5
edits = st.lists(
    st.one_of(
        st.tuples(st.just("shift"), st.just("a"), st.tuples(st.integers(-3, 3), st.just(0))),
        st.tuples(st.sampled_from(["reverse", "mirror"]), st.just("a"), st.just(ROWS)),
        st.tuples(
            st.just("write"), st.just("a"), st.integers(0, 2), st.integers(3, 5), st.integers(0, 9)
        ),
    ),
    min_size=1,
    max_size=3,
)


@actors.needs_icechunk2
def test_the_official_library_moves_chunks_to_the_same_places(
    tmp_path: Path, worker: actors.Worker
) -> None:
    ours, folder = actors.local(icechunk), tmp_path / "start"
    icechunk.Repository.create(icechunk.local_filesystem_storage(folder), spec_version=2)
    rows = [["write", "a", row, row + 1, row * 10] for row in (0, 1, 3)]
    start = [["array", "a", ROWS], *rows]
    ours(folder, "change", branch="main", edits=start, message="start", how="commit")

    @settings(max_examples=12)
    @given(edits=edits)
    def compare(edits: list) -> None:
        seen = []
        for name, actor in (("ours", ours), ("theirs", worker)):
            copy = tmp_path / name
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder, copy)
            for number, edit in enumerate(edits):
                # Each in a commit of its own: the official library also visits chunks that were
                # erased in the same session, against its own documentation.
                head = actor(
                    copy,
                    "change",
                    branch="main",
                    edits=[edit, ["attributes", "", {"n": number}]],
                    message="moved",
                    how="commit",
                )
            found = ours(copy, "inspect", branch="main")["log"]["updated_chunks"]
            chunks = [entry["chunks"] for entry in found]
            seen.append((ours(copy, "view")["trees"][head]["/a"], chunks))
        assert seen[0] == seen[1]

    compare()
