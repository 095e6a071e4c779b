"""How references are dealt out to manifests: what is loaded, what stays, what shares a file."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.maintenance import GENERATIONS

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.commit.manifest_layout import (
    SplitGrid,
    choose,
    distribute,
    share,
    split_grid,
)
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Inline
from airflow_provider_icechunk.engine.format.config.model import (
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from airflow_provider_icechunk.engine.format.ids import ManifestId, NodeId
from airflow_provider_icechunk.engine.format.model import ManifestRef


def refs(*places: tuple[int, ...]) -> ChunkRefs:
    return ChunkRefs.from_items(
        len(places[0]), [(place, Inline(str(place).encode())) for place in places]
    )


def stored(number: int, *extents: tuple[int, int]) -> ManifestRef:
    return ManifestRef(ManifestId(bytes([number]) * 12), extents)


GRID = SplitGrid((10,), (5,))


def test_only_manifests_of_touched_regions_are_loaded() -> None:
    left, right = stored(1, (0, 4)), stored(2, (5, 9))
    plan = choose([left, right], np.array([[7]], np.uint32), GRID, (10,))
    assert plan.keep == (left,)
    assert plan.load == (right,)


def test_a_manifest_over_several_regions_drags_all_of_them_in() -> None:
    wide, right = stored(1, (0, 7)), stored(2, (8, 9))
    plan = choose([wide, right], np.array([[1]], np.uint32), GRID, (10,))
    assert plan.load == (wide, right)
    assert plan.keep == ()


def test_a_manifest_that_reaches_beyond_a_shrunken_grid_is_rewritten() -> None:
    plan = choose([stored(1, (0, 9))], np.zeros((0, 1), np.uint32), SplitGrid((6,), (6,)), (6,))
    assert plan.load
    rows = distribute([refs((0,), (5,), (8,))], ChunkRefs.empty(1), SplitGrid((6,), (6,)), (6,))
    assert [piece.index.tolist() for piece in rows] == [[[0], [5]]]


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), unique=True),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), unique=True),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_pieces_hold_every_reference_once_and_their_boxes_never_overlap(
    base: list[tuple[int, int]], edits: list[tuple[int, int]], sizes: tuple[int, int]
) -> None:
    grid = SplitGrid((8, 8), sizes)
    old = refs(*base) if base else ChunkRefs.empty(2)
    new = refs(*edits) if edits else ChunkRefs.empty(2)
    pieces = distribute([old], new, grid, (8, 8))
    rows = sorted(tuple(row) for piece in pieces for row in piece.index.tolist())
    assert rows == sorted({*base, *edits})
    boxes = [piece.extents() for piece in pieces]
    for number, box in enumerate(boxes):
        for other in boxes[number + 1 :]:
            assert any(a[1] <= b[0] or b[1] <= a[0] for a, b in zip(box, other, strict=True))


def test_pieces_of_few_arrays_keep_files_of_their_own_and_those_of_many_share() -> None:
    def pieces(count: int, size: int) -> list[tuple[NodeId, ChunkRefs]]:
        rows = refs(*[(number,) for number in range(size)])
        return [(NodeId(number.to_bytes(8, "big")), rows) for number in range(count)]

    assert [len(group) for group in share(pieces(16, 2))] == [1] * 16
    assert [len(group) for group in share(pieces(500, 2))] == [500]
    assert [len(group) for group in share(pieces(20, 300))] == [1] * 20
    twice = pieces(20, 2) * 2
    groups = share(twice)
    assert sum(len(group) for group in groups) == 40
    for group in groups:
        ids = [node_id for node_id, _ in group]
        assert ids == sorted(set(ids))


@pytest.mark.parametrize("spec_version", GENERATIONS)
def test_arrays_that_share_a_manifest_are_read_changed_and_deleted_alone(
    spec_version: str, tmp_path: object
) -> None:
    repo = icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(tmp_path)), spec_version=spec_version
    )
    session = repo.writable_session("main")
    group = zarr.group(session.store)
    for number in range(40):
        group.create_array(f"a{number}", shape=(4,), chunks=(2,), dtype="i4")[:] = number + 1
    first = session.commit("forty arrays")
    (file,) = repo.list_manifest_files(first)
    assert repo.inspect_manifest(file.id)["total_chunk_refs"] == 80
    session = repo.writable_session("main")
    group = zarr.open_group(session.store)
    group["a3"][:2] = -1
    del group["a4"]
    session.commit("one changed, one deleted")
    group = zarr.open_group(
        icechunk.Repository.open(repo.storage).readonly_session("main").store, mode="r"
    )
    assert group["a3"][:].tolist() == [-1, -1, 4, 4]
    assert "a4" not in group
    for number in (0, 5, 39):
        assert group[f"a{number}"][:].tolist() == [number + 1] * 4
    assert repo.verify().ok


def test_official_readers_read_arrays_that_share_a_manifest(tmp_path: object) -> None:
    import icechunk as official

    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)))
    session = repo.writable_session("main")
    group = zarr.group(session.store)
    for number in range(40):
        group.create_array(f"a{number}", shape=(4,), chunks=(2,), dtype="i4")[:] = number + 1
    session.commit("forty arrays")
    theirs = official.Repository.open(official.local_filesystem_storage(str(tmp_path)))
    change = theirs.writable_session("main")
    zarr.open_array(change.store, path="a7")[:] = 700
    change.commit("official change")
    seen = zarr.open_group(theirs.readonly_session("main").store, mode="r")
    ours = zarr.open_group(repo.readonly_session("main").store, mode="r")
    for number in range(40):
        expected = 700 if number == 7 else number + 1
        assert seen[f"a{number}"][:].tolist() == ours[f"a{number}"][:].tolist() == [expected] * 4


def test_splitting_by_the_first_dimension_gives_one_manifest_per_row() -> None:
    config = ManifestSplittingConfig.from_dict(
        {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Axis(0): 1}}
    )
    grid = split_grid(config, "/a", None, (3, 4))
    pieces = distribute([refs((0, 0), (0, 3), (2, 1))], ChunkRefs.empty(2), grid, (3, 4))
    assert [piece.extents() for piece in pieces] == [((0, 1), (0, 4)), ((2, 3), (1, 2))]
