"""Plans: whole chunks, every cell once, about as many parts as asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_icechunk.engine.arrays.regions import (
    by_axis,
    by_name,
    check_complete,
    plan_box,
    plan_parts,
    plan_regions,
    slices,
)
from airflow_provider_icechunk.exceptions import FragmentError, InvalidInputError
from airflow_provider_icechunk.spark.write.generated import GENERATORS, generate

DIMENSIONS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 7)), min_size=0, max_size=3
)  # fmt: skip


@given(DIMENSIONS, st.integers(1, 30))
def test_regions_cover_every_cell_once_in_whole_chunks(
    dimensions: list[tuple[int, int]], parts: int
) -> None:
    shape = tuple(length for length, _ in dimensions)
    chunks = tuple(chunk for _, chunk in dimensions)
    regions = plan_regions(shape, chunks, parts)
    counts = np.zeros(shape, dtype=int)
    for region in regions:
        counts[tuple(slice(start, stop) for start, stop in region)] += 1
        for (start, stop), length, chunk in zip(region, shape, chunks, strict=True):
            assert start < stop
            assert start % chunk == 0
            assert stop % chunk == 0 or stop == length
    assert (counts == 1).all()
    assert len(regions) <= parts


@given(DIMENSIONS, st.integers(1, 30))
def test_there_are_as_many_regions_as_the_grid_and_the_request_allow(
    dimensions: list[tuple[int, int]], parts: int
) -> None:
    shape = tuple(length for length, _ in dimensions)
    grid = [-(-length // chunk) for length, chunk in dimensions]
    regions = plan_regions(shape, tuple(chunk for _, chunk in dimensions), parts)
    if grid and min(grid) > 0:
        assert len(regions) >= min(parts, max(grid[0], 1))
        assert len(regions) == parts or parts > grid[0]


def test_a_number_has_one_region_and_nothing_has_none() -> None:
    assert plan_regions((), (), 4) == [()]
    assert plan_regions((0, 5), (2, 2), 4) == []


@pytest.mark.parametrize(
    ("shape", "chunks", "parts"), [((4,), (2, 2), 1), ((4,), (0,), 1), ((4,), (2,), 0)]
)
def test_a_plan_that_cannot_be_made_is_refused(
    shape: tuple[int, ...], chunks: tuple[int, ...], parts: int
) -> None:
    with pytest.raises(InvalidInputError):
        plan_regions(shape, chunks, parts)


def test_results_are_complete_when_each_task_came_once_in_any_order() -> None:
    check_complete(3, [2, 0, 1])


@pytest.mark.parametrize("returned", [[0, 1], [0, 1, 2, 2], [0, 1, 2, 3], [0, 1, -1], []])
def test_a_missing_a_doubled_and_an_unasked_result_are_refused(returned: list[int]) -> None:
    with pytest.raises(FragmentError):
        check_complete(3, returned)


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_a_generated_field_does_not_depend_on_how_it_is_cut(name: str) -> None:
    shape = (10, 6, 8)
    whole = generate(name, tuple((0, length) for length in shape), shape)
    cut = np.empty_like(whole)
    for region in plan_regions(shape, (3, 4, 5), 7):
        place = tuple(slice(start, stop) for start, stop in region)
        cut[place] = generate(name, region, shape)
    assert np.array_equal(cut, whole)


def test_the_index_field_numbers_the_cells_in_order() -> None:
    values = generate("index", ((0, 2), (0, 3)), (2, 3))
    assert values.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("name", ["os.system", "", "Temperature"])
def test_a_generator_outside_of_the_table_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="temperature"):
        generate(name, ((0, 1),), (1,))


BOXES = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 12), st.integers(1, 7)), min_size=1, max_size=3
)


@given(BOXES, st.integers(1, 30))
def test_a_box_is_covered_once_and_cut_at_chunk_borders_alone(
    dimensions: list[tuple[int, int, int]], parts: int
) -> None:
    box = tuple((start, start + length) for start, length, _ in dimensions)
    chunks = tuple(chunk for _, _, chunk in dimensions)
    counts = np.zeros([stop for _, stop in box], dtype=int)
    regions = plan_box(box, chunks, parts)
    for region in regions:
        counts[slices(region)] += 1
        for (start, stop), (low, high), chunk in zip(region, box, chunks, strict=True):
            assert start == low or start % chunk == 0
            assert stop == high or stop % chunk == 0
    assert counts[slices(box)].all()
    assert counts.sum() == np.prod([stop - start for start, stop in box])
    assert len(regions) <= parts


def test_tasks_are_of_a_useful_size_and_enough_for_the_cores() -> None:
    assert plan_parts(1 << 20, cores=4) == 8
    assert plan_parts(100 * (128 << 20), cores=4) == 100
    assert plan_parts(1 << 60, cores=4) == 100_000


@pytest.mark.parametrize("chosen", [[(0, 60)], ((0, 60), (0, 20)), (), "time", 0])
def test_a_region_that_is_no_mapping_is_refused(chosen: object) -> None:
    """Taken for nothing, it would write all of the array."""
    with pytest.raises(InvalidInputError, match="give a mapping from dimensions"):
        by_axis(chosen, ("time", "x"), "'a'")  # type: ignore[arg-type]


SEVERAL = [("x_bounds", ("x",)), ("values", ("time", "x"))]


def test_a_number_that_means_another_dimension_in_another_array_is_refused() -> None:
    """Who means the first days would otherwise get the first columns of all days."""
    assert by_name({"time": 1, "x": 2}, SEVERAL) == {"time": 1, "x": 2}
    assert by_name({0: 1, "1": 2}, [("a", ("time", "x")), ("b", ("time",))]) == {"time": 1, "x": 2}
    for number in (0, "0", 1):
        with pytest.raises(InvalidInputError, match="is not the same one in 'x_bounds' and 'val"):
            by_name({number: (0, 5)}, SEVERAL)
