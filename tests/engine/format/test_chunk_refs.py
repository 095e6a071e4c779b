from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.model import plain_references, reference_items

from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    ETag,
    Inline,
    LastModified,
    Native,
    RefKind,
    Virtual,
    common_rows,
    concatenate,
    sort_keys,
)
from airflow_provider_icechunk.engine.format.ids import ChunkId
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

Items = dict[tuple[int, ...], object]


def refs_of(rank: int, items: Items) -> ChunkRefs:
    return ChunkRefs.from_items(rank, items.items())


@given(reference_items(erased=True))
def test_columns_hold_what_was_put_in_and_keep_it_sorted(drawn: tuple[int, Items]) -> None:
    rank, items = drawn
    refs = refs_of(rank, items)
    assert plain_references(refs) == items
    assert refs.index.tolist() == sorted(list(key) for key in items)
    assert refs.ndim == rank
    for index, payload in items.items():
        assert refs.find(index) == payload


@given(reference_items(ndim=2), st.tuples(st.integers(0, 5), st.integers(0, 5)))
def test_what_is_not_there_is_not_found(drawn: tuple[int, Items], index: tuple[int, int]) -> None:
    rank, items = drawn
    refs = refs_of(rank, items)
    assert refs.find(index) == items.get(index)
    assert refs.find((*index, 0)) is None
    assert refs.find((-1, 0)) is None
    assert refs.find((2**32, 0)) is None


@given(
    st.integers(0, 4).flatmap(
        lambda rank: st.tuples(
            reference_items(ndim=rank, erased=True), reference_items(ndim=rank, erased=True)
        )
    )
)
def test_an_overlay_is_an_update_of_a_dictionary(
    drawn: tuple[tuple[int, Items], tuple[int, Items]],
) -> None:
    (rank, older), (_, newer) = drawn
    both = refs_of(rank, older).overlay(refs_of(rank, newer))
    merged = older | newer
    assert plain_references(both) == merged
    left = {key: value for key, value in merged.items() if value is not None}
    assert plain_references(both.without_erased()) == left


@given(reference_items(ndim=3), reference_items(ndim=3))
def test_removing_coordinates_leaves_the_others(
    drawn: tuple[int, Items], other: tuple[int, Items]
) -> None:
    _, items = drawn
    refs, gone = refs_of(3, items), refs_of(3, other[1])
    left = {key: value for key, value in items.items() if key not in other[1]}
    assert plain_references(refs.without(gone.index)) == left
    hits = common_rows(refs.index, gone.index)
    assert [tuple(row) for row in refs.index[hits].tolist()] == sorted(items.keys() & other[1])


@given(reference_items())
def test_extents_are_the_bounding_box_and_hold_every_row(drawn: tuple[int, Items]) -> None:
    rank, items = drawn
    refs = refs_of(rank, items)
    if not items:
        with pytest.raises(InvalidInputError, match="no bounding box"):
            refs.extents()
        return
    box = tuple((min(axis), max(axis) + 1) for axis in zip(*items, strict=True))
    assert refs.extents() == box
    assert refs.inside(refs.extents()).all()


def test_inside_is_half_open() -> None:
    refs = refs_of(1, {(n,): Inline(b"") for n in range(5)})
    assert refs.inside(((1, 3),)).tolist() == [False, True, True, False, False]


@given(reference_items(erased=True, most=8), st.data())
def test_compacting_changes_nothing_but_the_heap(
    drawn: tuple[int, Items], data: st.DataObject
) -> None:
    rank, items = drawn
    refs = refs_of(rank, items)
    keep = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(refs), max_size=len(refs))), bool
    )
    few = refs.take(keep)
    compact = few.compact()
    assert plain_references(compact) == plain_references(few)
    assert len(compact.heap) <= len(few.heap)


def test_compacting_drops_what_no_row_uses() -> None:
    refs = refs_of(1, {(n,): Inline(bytes([n]) * 100) for n in range(10)})
    assert bytes(refs.take(slice(3, 4)).compact().heap) == bytes([3]) * 100


def test_compacting_sees_through_many_rows_that_share_a_location() -> None:
    refs = refs_of(1, {(n,): Virtual("s3://b/k", n, 1) for n in range(1000)})
    wide = concatenate([refs, refs_of(1, {(5000,): Inline(bytes(900))})])
    assert bytes(wide.take(slice(0, 1000)).compact().heap) == b"s3://b/k"


def test_equal_locations_are_kept_once() -> None:
    refs = refs_of(1, {(n,): Virtual("s3://b/k", n, 1, ETag("e")) for n in range(100)})
    assert bytes(refs.heap) == b"s3://b/ke"
    assert refs.locations() == ["s3://b/k"]


def test_the_last_of_equal_rows_stays() -> None:
    one, two = (
        refs_of(1, {(1,): Inline(b"a")}),
        refs_of(1, {(1,): Inline(b"b"), (0,): Inline(b"c")}),
    )
    assert plain_references(ChunkRefs.of(concatenate([one, two]))) == {
        (0,): Inline(b"c"),
        (1,): Inline(b"b"),
    }


def test_ranks_do_not_mix() -> None:
    with pytest.raises(InvalidInputError, match="different ranks"):
        concatenate([ChunkRefs.empty(1), ChunkRefs.empty(2)])


def test_indices_too_wide_for_one_number_still_order_and_find() -> None:
    top = 2**32 - 1
    items = {(top, 0, top): Inline(b"a"), (0, top, 0): Inline(b"b"), (0, 0, 256): Inline(b"c")}
    refs = refs_of(3, items)
    (keys,) = sort_keys(refs.index)
    assert keys.dtype.kind == "S"
    assert refs.index.tolist() == sorted(map(list, items))
    assert all(refs.find(index) == payload for index, payload in items.items())
    assert refs.find((0, 0, 1)) is None
    assert refs.find((0, 0)) is None


def test_times_beyond_32_bits_are_kept_as_the_last_one() -> None:
    refs = refs_of(0, {(): Virtual("s3://b/k", 0, 1, LastModified(253402300799))})
    assert refs.find(()) == Virtual("s3://b/k", 0, 1, LastModified(2**32 - 1))


def test_a_location_that_is_no_text_is_refused_when_asked_for() -> None:
    refs = refs_of(0, {(): Virtual("xx", 0, 1)})
    broken = ChunkRefs(
        refs.index,
        refs.kind,
        refs.chunk_id,
        refs.offset,
        refs.length,
        refs.span,
        refs.etag,
        refs.modified,
        b"\xff\xff",
    )
    with pytest.raises(FormatError, match="not UTF-8"):
        broken.find(())


def test_native_ids_are_those_of_native_rows() -> None:
    identity = ChunkId(bytes(range(12)))
    refs = refs_of(
        1, {(0,): Native(identity, 0, 1), (1,): Inline(b"x"), (2,): Native(identity, 1, 1)}
    )
    assert refs.native_ids().tolist() == [list(identity)] * 2
    assert refs.kind.tolist() == [RefKind.NATIVE, RefKind.INLINE, RefKind.NATIVE]
