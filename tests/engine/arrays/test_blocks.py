"""Chunks encoded without Zarr's array machinery are the chunks that Zarr would have written."""

from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import GzipCodec

from airflow_provider_icechunk.api import Repository, in_memory_storage
from airflow_provider_icechunk.engine.arrays.blocks import write_block
from airflow_provider_icechunk.engine.arrays.regions import slices
from airflow_provider_icechunk.exceptions import InvalidInputError

LAYOUTS: dict[str, dict[str, Any]] = {
    "default": {},
    "raw": {"compressors": None},
    "gzip": {"compressors": GzipCodec(level=1)},
    "shards": {"shards": (4, 4)},
    "filled": {"fill_value": 7},
    "empty chunks kept": {"config": {"write_empty_chunks": True}},
    "big endian": {"dtype": ">i4"},
    "floats": {"dtype": "float64", "fill_value": np.nan},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_are_stored_as_zarr_would(layout: str) -> None:
    repository = Repository.create(in_memory_storage())
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    options = {"shape": (7, 6), "chunks": (2, 2), "dtype": "int32"} | LAYOUTS[layout]
    values = np.arange(42).reshape(7, 6).astype(options["dtype"])
    values[2:6, :4] = options.get("fill_value", 0)
    ours, theirs = (root.create_array(name, **options) for name in ("ours", "theirs"))
    for array in (ours, theirs):
        array[:] = 3
    for region in (((0, 4), (0, 6)), ((4, 7), (0, 6))):
        write_block(session, ours, region, values[slices(region)])
    theirs[:] = values
    assert np.array_equal(np.asarray(ours[:]), values, equal_nan=values.dtype.kind == "f")
    one, two = (session.tree.references(session.tree.array(f"/{a.path}")) for a in (ours, theirs))
    assert one.index.tolist() == two.index.tolist()
    assert one.length.tolist() == two.length.tolist()


@pytest.mark.parametrize(
    ("region", "dtype", "words"),
    [
        (((0, 2), (0, 6)), "float64", "do not fit"),
        (((6, 9), (0, 6)), "int32", r"is not inside 'a'"),
        (((4, 3), (0, 6)), "int32", r"is not inside 'a'"),
    ],
)
def test_what_does_not_fit_is_refused(region: Any, dtype: str, words: str) -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    array = root.create_array("a", shape=(7, 6), chunks=(2, 2), dtype="int32")
    values = np.ones([abs(stop - start) for start, stop in region], dtype)
    with pytest.raises(InvalidInputError, match=words):
        write_block(session, array, region, values)
    assert session.tree.changes.chunks == {}


def test_values_of_another_shape_are_refused() -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    array = zarr.open_group(session.store, mode="a").create_array("a", shape=(4,), dtype="int32")
    with pytest.raises(InvalidInputError, match=r"have the shape \(3,\), not \(4,\)"):
        write_block(session, array, ((0, 4),), np.zeros(3, "int32"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("region", [((1, 5), (3, 4)), ((0, 7), (1, 6)), ((6, 7), (5, 6))])
def test_a_region_that_cuts_chunks_keeps_the_cells_around_it(layout: str, region: Any) -> None:
    repository = Repository.create(in_memory_storage())
    session = repository.writable_session("main")
    options = {"shape": (7, 6), "chunks": (2, 2), "dtype": "int32"} | LAYOUTS[layout]
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", **options)[:5] = 3
    session.commit("before")
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path="a", mode="r+")
    expected = np.asarray(array[:])
    values = np.arange(100, 142).reshape(7, 6)[slices(region)].astype(options["dtype"])
    expected[slices(region)] = values
    assert write_block(session, array, region, values) == values.nbytes
    assert np.array_equal(np.asarray(array[:]), expected, equal_nan=expected.dtype.kind == "f")


def test_whole_chunks_are_written_without_reading_what_was_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    array = root.create_array("a", shape=(7, 6), chunks=(2, 2), dtype="int32")
    monkeypatch.setattr(zarr.Array, "__getitem__", None)
    write_block(session, array, ((2, 7), (0, 4)), np.ones((5, 4), "int32"))
