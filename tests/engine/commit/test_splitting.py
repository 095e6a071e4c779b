import warnings
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_icechunk.engine.commit.manifest_layout import SplitGrid, split_grid
from airflow_provider_icechunk.engine.format.config.model import (
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)

Axis = ManifestSplitDimCondition.Axis
Named = ManifestSplitDimCondition.DimensionName
AnyDim = ManifestSplitDimCondition.Any
ANY = ManifestSplitCondition.AnyArray()


def sizes(rules, path="/group/data", names=("time", "lat", None), chunks=(10, 20, 30)):
    config = None if rules is None else ManifestSplittingConfig.from_dict(rules)
    return split_grid(config, path, names, chunks).sizes


def test_without_rules_an_array_is_one_box():
    assert sizes(None) == (10, 20, 30)
    assert sizes({}) == (10, 20, 30)
    assert split_grid(None, "/a", None, (4, 5)).count == 1


def test_a_dimension_takes_the_first_size_that_fits():
    assert sizes({ANY: {Axis(0): 2, Named("^lat"): 3, AnyDim(): 4}}) == (2, 3, 4)
    assert sizes({ANY: {AnyDim(): 4, Axis(0): 2}}) == (4, 4, 4)


def test_a_dimension_without_a_fitting_size_is_not_split():
    assert sizes({ANY: {Named("time"): 2}}) == (2, 20, 30)


def test_a_dimension_without_a_name_matches_no_name():
    assert sizes({ANY: {Named(".*"): 1}}) == (1, 1, 30)
    assert sizes({ANY: {Named(".*"): 1}}, names=None) == (10, 20, 30)


def test_later_rules_serve_dimensions_that_earlier_ones_left():
    other = ManifestSplitCondition.path_matches("data")
    assert sizes({ANY: {Axis(0): 2}, other: {AnyDim(): 7}}) == (2, 7, 7)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (ManifestSplitCondition.path_matches("^/group"), True),
        (ManifestSplitCondition.name_matches("^group"), False),
        (ManifestSplitCondition.name_matches("^data$"), True),
        (ManifestSplitCondition.or_conditions([]), False),
        (ManifestSplitCondition.and_conditions([]), True),
        (ANY & ManifestSplitCondition.name_matches("nope"), False),
        (ManifestSplitCondition.name_matches("nope") | ANY, True),
    ],
)
def test_rules_apply_where_their_condition_holds(condition, holds):
    assert sizes({condition: {Axis(0): 1}}) == ((1 if holds else 10), 20, 30)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 7)), min_size=0, max_size=3))
def test_every_chunk_is_in_the_box_it_is_assigned_to(dimensions):
    grid = SplitGrid(tuple(n for n, _ in dimensions), tuple(s for _, s in dimensions))
    rows = list(product(*(range(n) for n in grid.num_chunks)))
    index = np.array(rows, np.uint32).reshape(len(rows), len(dimensions))
    boxes = [grid.extents(number) for number in range(grid.count)]
    for row, number in zip(index.tolist(), grid.assign(index).tolist(), strict=True):
        holding = [
            box_number
            for box_number, box in enumerate(boxes)
            if all(start <= i < stop for i, (start, stop) in zip(row, box, strict=True))
        ]
        assert holding == [number]


def test_an_empty_dimension_has_one_box():
    grid = split_grid(None, "/a", None, (0, 3))
    assert grid.count == 1
    assert grid.extents(0) == ((0, 0), (0, 3))


def test_chunks_outside_a_shrunk_grid_go_to_the_nearest_box():
    grid = SplitGrid((4,), (2,))
    assert grid.assign(np.array([[9]], np.uint32)).tolist() == [1]


def test_official_manifests_have_the_sizes_of_our_boxes(tmp_path):
    icechunk = pytest.importorskip("icechunk")
    import zarr

    dim, cond = icechunk.ManifestSplitDimCondition, icechunk.ManifestSplitCondition
    rules = {
        cond.name_matches("^data"): {dim.DimensionName("t"): 2},
        cond.AnyArray(): {dim.Axis(1): 3},
    }
    config = icechunk.RepositoryConfig(
        inline_chunk_threshold_bytes=0,
        manifest=icechunk.ManifestConfig(
            splitting=icechunk.ManifestSplittingConfig.from_dict(rules)
        ),
    )
    repo = icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(tmp_path / "repo")), config=config
    )
    session = repo.writable_session("main")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = zarr.create_array(
            session.store,
            name="data",
            shape=(5, 7, 2),
            chunks=(1, 1, 1),
            dtype="i1",
            dimension_names=("time", "y", "x"),
        )
    array[:] = 1
    snapshot = session.commit("write")
    official = sorted(info.num_chunk_refs for info in repo.lookup_snapshot(snapshot).manifests)
    ours = split_grid(
        ManifestSplittingConfig.from_dict(
            {
                ManifestSplitCondition.name_matches("^data"): {Named("t"): 2},
                ANY: {Axis(1): 3},
            }
        ),
        "/data",
        ("time", "y", "x"),
        (5, 7, 2),
    )
    index = np.array(list(product(range(5), range(7), range(2))), np.uint32)
    assert sorted(np.bincount(ours.assign(index)).tolist()) == official
