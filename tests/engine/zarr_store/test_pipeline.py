"""The short way from selections to chunks does as Zarr's own pipeline, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.zarr_cases import (
    MARKS,
    Case,
    Selection,
    cases,
    chunk_bytes,
    new_store,
    pair,
    zarrs_own,
)
from zarr.codecs import TransposeCodec
from zarr.core.buffer.cpu import NDBuffer
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.core.sync import sync
from zarr.storage import MemoryStore

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.objects.chunk_writer import Packing
from airflow_provider_icechunk.engine.zarr_store import pipeline
from airflow_provider_icechunk.engine.zarr_store.pipeline import IcechunkCodecPipeline
from airflow_provider_icechunk.exceptions import InvalidInputError, NotFoundError, ReadOnlyError

pytestmark = MARKS


@contextmanager
def limits(large: int, window: int, few: int) -> Iterator[None]:
    """Other sizes from which chunks are dealt with together, alone, or in threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "_LARGE", large)
        patch.setattr(pipeline, "_WINDOW", window)
        patch.setattr(pipeline, "_FEW", few)
        yield


def outcome(act: Callable[..., Any], *given: Any) -> Any:
    """What comes of it, down to bits and types, or the type of the error."""
    try:
        value = act(*given)
    except Exception as error:  # noqa: BLE001 - errors are compared too
        return type(error)
    if value is None:
        return None
    cells = np.asanyarray(value)
    bits = cells.tolist() if cells.dtype.kind in "OT" else cells.tobytes()
    return type(value), cells.shape, cells.dtype.str, bits


@settings(max_examples=60)
@given(
    cases(),
    st.sampled_from([(1 << 20, 8 << 20, 16), (1, 1, 0), (40, 100, 2)]),
    st.sampled_from([(512, 1 << 20), (0, 1 << 20), (0, 0), (24, 100)]),
    st.booleans(),
)
def test_arrays_are_read_and_written_as_by_zarrs_own(
    case: Case, sizes: tuple[int, int, int], placing: tuple[int, int], committed: bool
) -> None:
    inline, packed = placing
    repository = icechunk.Repository.create(
        icechunk.in_memory_storage(),
        icechunk.RepositoryConfig(inline_chunk_threshold_bytes=inline),
        packing=Packing(below=packed, target=200, pending=1000),
    )
    session = repository.writable_session("main")
    ours = case.create(session.store)
    with zarrs_own():
        theirs = case.create(MemoryStore())
    assert type(ours.async_array.codec_pipeline) is IcechunkCodecPipeline
    assert type(theirs.async_array.codec_pipeline) is BatchedCodecPipeline
    with limits(*sizes):
        for write, read in case.steps:
            value = write.value(case, np.shape(write.selection.read(theirs)))
            expected = outcome(write.selection.write, theirs, value)
            assert outcome(write.selection.write, ours, value) == expected
            if expected is not None:
                return  # Which chunks a write that fails has written before is left to chance.
            assert chunk_bytes(ours) == chunk_bytes(theirs)
            assert outcome(read.read, ours) == outcome(read.read, theirs)
            if committed and session.has_uncommitted_changes:
                session.commit("step")
                session = repository.writable_session("main")
                ours = case.open(session.store)
                with zarrs_own():
                    theirs = case.open(theirs.store)
        everything = Selection("basic", ...)
        assert outcome(everything.read, ours) == outcome(everything.read, theirs)


@pytest.mark.parametrize("large", [1, 1 << 20])
@pytest.mark.parametrize(
    "index",
    [
        ([0, 1, 3], 1, slice(None)),
        (slice(None), 4, [0, 1]),
        ([3, 0, 1], slice(1, None), 2),
        ([1, 0], 2, 1),
        (3, 2, [True, True, False]),
        (slice(1, 4), [4, 0, 1], 1),
    ],
)
def test_axes_that_an_index_takes_away_are_gone(index: Any, large: int) -> None:
    values = np.arange(60).reshape(4, 5, 3)
    ours, theirs = pair(shape=values.shape, chunks=(2, 2, 2), dtype=values.dtype)
    for array in (ours, theirs):
        array[:] = values
    selection = Selection("oindex", index)
    with limits(large, 8 << 20, 0):
        assert outcome(selection.read, ours) == outcome(selection.read, theirs)
        cells = selection.read(ours)
        assert cells.ndim == 3 - sum(isinstance(one, int) for one in index)
        for array in (ours, theirs):
            selection.write(array, cells + 100)
        assert chunk_bytes(ours) == chunk_bytes(theirs)
        np.testing.assert_array_equal(selection.read(ours), cells + 100)


VALUES = np.arange(16, dtype="i4").reshape(4, 4)
BYTES = VALUES.astype("u1")


def on_disk(values: Any, path: Path) -> Any:
    np.save(path, values)
    return np.load(path, mmap_mode="r")


@pytest.mark.parametrize("chunks", [(2, 2), (4, 4), (3, 3)])
@pytest.mark.parametrize(
    "value",
    [
        np.ma.masked_array(VALUES, mask=VALUES % 2),
        np.ma.masked_array(VALUES, mask=VALUES > 0),
        np.ma.masked_array(BYTES, mask=BYTES > 0),
        np.ma.masked_array(np.zeros_like(BYTES), mask=BYTES < 4),
        pytest.param(VALUES.view(np.matrix), id="matrix"),
        xr.DataArray(VALUES),
        pd.DataFrame(VALUES),
        VALUES.tolist(),
        VALUES[:1],
        VALUES[None],
        np.arange(25, dtype="i4").reshape(5, 5),
        "nothing of the kind",
    ],
)
def test_values_that_are_no_plain_arrays_are_written_as_by_zarrs_own(
    value: Any, chunks: tuple[int, int]
) -> None:
    ours, theirs = pair(chunks=chunks, dtype=getattr(value, "dtype", "i4"))
    expected = outcome(theirs.__setitem__, ..., value)
    assert outcome(ours.__setitem__, ..., value) == expected
    if expected is None:
        assert chunk_bytes(ours) == chunk_bytes(theirs)


# Zarr's own pipeline stores the bytes of `value` as they are, if a chunk has its shape.
@pytest.mark.parametrize("chunk", [2, 4])
def test_fields_of_other_types_are_converted(chunk: int) -> None:
    value = np.array([(k, k + 1) for k in range(4)], [("x", "<i8"), ("y", "<i4")])
    ours, theirs = pair(shape=(4,), chunks=(chunk,), dtype=[("a", "<f8"), ("b", "<f4")])
    ours[:] = value
    theirs[:] = value.astype(theirs.dtype)
    assert chunk_bytes(ours) == chunk_bytes(theirs)
    assert ours[:].tolist() == [(k, k + 1) for k in range(4)]


def test_files_in_memory_are_written_as_arrays(tmp_path: Path) -> None:
    ours, theirs = pair()
    value = on_disk(VALUES, tmp_path / "values.npy")
    for array in (ours, theirs):
        array[:] = value
    assert chunk_bytes(ours) == chunk_bytes(theirs)


# Zarr's own pipeline takes them from 3.3 on.
def test_values_with_other_axes_than_the_selection_are_refused() -> None:
    ours, _ = pair(shape=(4, 1, 2), chunks=(2, 1, 2))
    value = np.arange(8, dtype="i4").reshape(4, 1, 2)
    with pytest.raises(ValueError, match="broadcast"):
        ours[:, 0] = value
    assert chunk_bytes(ours) == {}


@pytest.mark.parametrize("chunks", [(2, 2), (2, 4)])
@pytest.mark.parametrize(
    "options", [{"config": {"order": "F"}}, {}, {"filters": [TransposeCodec(order=(1, 0))]}]
)
def test_strings_stay_in_their_cells_however_they_lie_in_memory(
    options: dict[str, Any], chunks: tuple[int, int]
) -> None:
    values = np.array([["a", "bb", "ccc", "d"], ["e", "", "gg", "h"]], object)
    array = zarr.create_array(new_store(), shape=(2, 4), chunks=chunks, dtype=str, **options)
    for value in (values, np.asfortranarray(values)):
        array[:] = value
        assert array[:].tolist() == values.tolist()


@pytest.mark.parametrize("cells", [8, 1 << 12, 1 << 18])
def test_what_was_written_does_not_change_with_the_values_it_was_written_from(cells: int) -> None:
    values = np.arange(cells, dtype="i4")
    array = zarr.create_array(
        new_store(), shape=(cells,), chunks=(cells,), dtype="i4", compressors=None
    )
    array[:] = values
    values[:] = 7
    np.testing.assert_array_equal(array[:], np.arange(cells))


class Elsewhere:
    """Takes cells as an array does, and shows nothing but copies of them."""

    def __init__(self) -> None:
        self.cells = np.zeros((4, 4), "i4")
        self.shape, self.dtype, self.size = self.cells.shape, self.cells.dtype, self.cells.size

    def __setitem__(self, key: Any, value: Any) -> None:
        self.cells[key] = value

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.cells.copy()


@pytest.mark.parametrize("large", [1, 1 << 20])
@pytest.mark.parametrize(
    "out",
    [
        np.empty((4, 4), "i4"),
        np.empty((8, 4), "i4")[::2],
        np.empty((4, 4), "i4", order="F"),
        np.empty((4, 4), ">i4"),
        np.empty((4, 4), "f4"),
        np.ma.masked_all((4, 4), "i4"),
        Elsewhere(),
    ],
)
@pytest.mark.parametrize("chunks", [(2, 2), (1, 4), (4, 4)])
def test_values_are_read_into_what_is_given(out: Any, large: int, chunks: tuple[int, int]) -> None:
    array = pair(chunks=chunks, compressors=None)[0]
    array[:] = VALUES
    with limits(large, 8 << 20, 0):
        array.get_basic_selection(..., out=NDBuffer.from_ndarray_like(out))
    assert (out.cells if isinstance(out, Elsewhere) else out).tolist() == VALUES.tolist()


@pytest.mark.parametrize("value", [VALUES, 0])
@pytest.mark.parametrize("where", [slice(None), (1, 1), (0, slice(None))])
def test_who_may_only_read_changes_nothing(value: Any, where: Any) -> None:
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    written = zarr.create_array(session.store, name="a", data=VALUES + 1, chunks=(2, 2))
    value = value if np.isscalar(value) else value[where]
    before = chunk_bytes(written)

    def refused(array: zarr.Array[Any]) -> None:
        with pytest.raises(ReadOnlyError, match="read-only"):
            array[where] = value
        assert chunk_bytes(array) == before

    refused(zarr.open_array(session.store.with_read_only(True), path="a"))
    assert chunk_bytes(written) == before
    session.commit("values")
    refused(written)
    refused(zarr.open_array(repository.readonly_session("main").store, path="a"))
    assert not session.has_uncommitted_changes


def test_an_array_that_is_deleted_meanwhile_is_missed_by_writers_and_empty_for_readers() -> None:
    store = new_store()
    array = zarr.create_array(store, name="a", data=VALUES, chunks=(2, 2), fill_value=7)
    sync(store.delete_dir("a"))
    with pytest.raises(NotFoundError, match="no array at /a"):
        array[:] = VALUES
    assert (array[:] == 7).all()
    assert chunk_bytes(array) == {}


def test_an_array_that_shrinks_meanwhile_has_no_chunks_outside() -> None:
    store = new_store()
    array = zarr.create_array(store, name="a", data=VALUES + 1, chunks=(2, 2), fill_value=0)
    before = chunk_bytes(array)
    zarr.open_array(store, path="a").resize((2, 4))
    with pytest.raises(InvalidInputError, match="outside of the grid"):
        array[:] = VALUES
    inside = {key: data for key, data in before.items() if key.startswith("a/c/0/")}
    assert chunk_bytes(array) == inside
    np.testing.assert_array_equal(array[:], np.where(np.arange(4)[:, None] < 2, VALUES + 1, 0))
    array[:] = 0
    assert chunk_bytes(array) == {}


@pytest.mark.parametrize("large", [1, 1 << 20])
def test_zarr_without_a_limit_of_things_at_once(large: int) -> None:
    array = pair()[0]
    with zarr.config.set({"async.concurrency": None}), limits(large, 8 << 20, 0):
        array[:] = VALUES
        np.testing.assert_array_equal(array[:], VALUES)
