"""Random arrays, and random reads and writes of them, as Zarr supports them."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import zarr
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr import errors
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    TransposeCodec,
    ZstdCodec,
)
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import MemoryStore

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.zarr_store.store import IcechunkStore

ZARRS_OWN = "zarr.core.codec_pipeline.BatchedCodecPipeline"
FIELDS = np.dtype([("a", "<i4"), ("b", "<f8")])
FILLS: dict[str, list[Any]] = {
    "bool": [False, True],
    "i1": [0, -3],
    "u2": [0, 7],
    "<i4": [0, 5],
    ">i4": [0, 5],
    "<f4": [0.0, -0.0, 1.5, np.nan],
    "<f8": [0.0, -0.0, np.nan, np.inf],
    ">f8": [0.0, -0.0, np.nan, 2.0],
    "<c16": [0j, complex(0, -0.0), complex(np.nan, 1), 2j],
    "<M8[s]": [np.datetime64("NaT", "s"), np.datetime64(0, "s"), np.datetime64(9, "s")],
    "<m8[ms]": [np.timedelta64("NaT", "ms"), np.timedelta64(3, "ms")],
    "S3": [b"", b"ab"],
    "<U2": ["", "é"],
    "str": ["", "fill"],
    "fields": [(0, 0.0), (1, np.nan)],
}
"""Data types, with possible fill values of each."""
OTHERS: dict[str, list[Any]] = {
    "bool": [True, False],
    "S3": [b"x", b"xyz"],
    "<U2": ["x", "ßß"],
    "str": ["", "x", "änother"],
    "fields": [(0, -0.0), (3, 4.5)],
}
"""What else cells can contain; whole numbers unless stated here."""
CAST: dict[str, str] = {"<i4": "<f8", "<f4": "<i4", "<f8": "<f4", "u2": "<i8", "bool": "u1"}
"""Data types of values that are written to arrays of another data type."""
FORMS = ("plain", "fortran", "strided", "backwards", "swapped", "cast", "read-only", "list")
Indexing = Literal["basic", "oindex", "vindex", "mask", "blocks"]
INDEXING: tuple[Indexing, ...] = ("basic", "oindex", "basic", "oindex", "vindex", "mask", "blocks")


def zarrs_own() -> Any:
    """Zarr with its own pipeline."""
    return zarr.config.set({"codec_pipeline.path": ZARRS_OWN})


def chunk_bytes(array: zarr.Array[Any]) -> dict[str, bytes]:
    """Every stored chunk by key."""

    async def collect() -> dict[str, bytes]:
        found = {}
        async for key in array.store.list():
            if not key.endswith("zarr.json"):
                value = await array.store.get(key, default_buffer_prototype())
                assert value is not None
                found[key] = value.to_bytes()
        return found

    return sync(collect())


def new_store() -> IcechunkStore:
    return icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main").store


def pair(**options: Any) -> tuple[zarr.Array[Any], zarr.Array[Any]]:
    """An array of this package, and one of Zarr's own."""
    given = {"name": "a", "shape": (4, 4), "chunks": (2, 2), "dtype": "i4"} | options
    ours = zarr.create_array(new_store(), **given)
    with zarrs_own():
        return ours, zarr.create_array(MemoryStore(), **given)


# The oldest releases use the same warning category as everyone else.
_CATEGORY = "zarr.errors.ZarrUserWarning" if hasattr(errors, "ZarrUserWarning") else "UserWarning"
UNSURE = f"ignore::{_CATEGORY}"
"""Silences what Zarr says about parts of its format that are not settled."""

MARKS = [
    pytest.mark.filterwarnings("ignore:The data type .* does not have a Zarr V3 spec"),
    pytest.mark.filterwarnings(UNSURE),
    pytest.mark.usefixtures("timeless"),
]
"""For tests that compare stored bytes of any codec."""


def stop_the_clock_of_gzip(patch: pytest.MonkeyPatch) -> None:
    """Its output contains the second in which it was made."""
    patch.setattr(gzip, "time", SimpleNamespace(time=lambda: 0))


def native(name: str) -> np.dtype[Any]:
    """The NumPy data type of such cells."""
    if name == "fields":
        return FIELDS
    return np.dtype("O") if name == "str" else np.dtype(name)


@dataclass(frozen=True)
class Selection:
    """Cells of an array: a way of indexing, and what to index with."""

    indexing: Indexing
    index: Any

    def read(self, array: zarr.Array[Any]) -> Any:
        match self.indexing:
            case "basic":
                return array[self.index]
            case "mask":
                return array.get_mask_selection(self.index)
            case "oindex" | "vindex" | "blocks":
                return getattr(array, self.indexing)[self.index]

    def write(self, array: zarr.Array[Any], value: Any) -> None:
        match self.indexing:
            case "basic":
                array[self.index] = value
            case "mask":
                array.set_mask_selection(self.index, value)
            case "oindex" | "vindex" | "blocks":
                getattr(array, self.indexing)[self.index] = value


@dataclass(frozen=True)
class Write:
    """Cells drawn from some pool of values by a seed, in an array of some form."""

    selection: Selection
    seed: int
    only: int | None
    """The one value of the pool that all cells have, the fill value being the first."""
    form: str
    scalar: bool

    def value(self, case: Case, shape: tuple[int, ...]) -> Any:
        pool = case.pool
        if self.scalar:
            return pool[self.seed % len(pool)]
        picked = np.random.default_rng(self.seed).integers(len(pool), size=shape)
        cells = pool[picked if self.only is None else np.full(shape, self.only % len(pool))]
        return shaped(np.asarray(cells, pool.dtype), self.form, CAST.get(case.dtype))


@dataclass(frozen=True)
class Case:
    """An array, what is written to it, and what is read after each write."""

    dtype: str
    fill: Any
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    codecs: Mapping[str, Any]
    order: str
    write_empty: bool
    steps: list[tuple[Write, Selection]] = field(default_factory=list)

    @property
    def pool(self) -> NDArray[Any]:
        """Values to write; the first is the fill value."""
        others = OTHERS.get(self.dtype, [0, 1, 100])
        pool = np.empty(len(others) + 1, native(self.dtype))
        pool[0] = self.fill
        for place, other in enumerate(others, 1):
            pool[place] = other
        return pool

    def create(self, store: Any) -> zarr.Array[Any]:
        return zarr.create_array(
            store,
            name="a",
            shape=self.shape,
            chunks=self.chunks,
            dtype=str if self.dtype == "str" else native(self.dtype),
            fill_value=self.fill,
            config=self._config,
            **self.codecs,
        )

    def open(self, store: Any) -> zarr.Array[Any]:
        return zarr.open_array(store, path="a").with_config(self._config)

    @property
    def _config(self) -> Any:
        return {"order": self.order, "write_empty_chunks": self.write_empty}


def shaped(cells: NDArray[Any], form: str, cast: str | None) -> Any:
    """The same values, laid out differently in memory."""
    match form:
        case "fortran":
            return np.asfortranarray(cells)
        case "strided" if cells.ndim:
            return np.repeat(cells, 2, axis=-1)[..., ::2]
        case "backwards" if cells.ndim:
            return np.flip(np.flip(cells).copy())
        case "swapped" if cells.dtype.kind not in "OV":
            return cells.astype(cells.dtype.newbyteorder())
        case "cast" if cast is not None and np.isfinite(cells.astype("f8")).all():
            return cells.astype(cast)
        case "read-only":
            frozen = cells.copy()
            frozen.flags.writeable = False
            return frozen
        case "list" if cells.ndim and cells.dtype.kind in "biu":
            return cells.tolist()
        case _:
            return cells


@st.composite
def codecs(
    draw: st.DrawFn, dtype: str, shape: tuple[int, ...], chunks: tuple[int, ...]
) -> Mapping[str, Any]:
    """Filters, a serializer, compressors, or shards."""
    found: dict[str, Any] = {
        "compressors": draw(
            st.sampled_from(
                [
                    None,
                    [ZstdCodec(level=0)],
                    [ZstdCodec(level=3, checksum=True)],
                    [GzipCodec(level=1)],
                    [BloscCodec(cname="lz4", clevel=1)],
                    [Crc32cCodec()],
                    [Crc32cCodec(), ZstdCodec(level=1), Crc32cCodec()],
                ]
            )
        )
    }
    if dtype == "str":
        return found
    if shape and draw(st.booleans()):
        order = draw(st.permutations(range(len(shape))))
        found["filters"] = [TransposeCodec(order=tuple(order))]
    if dtype == "fields":  # Zarr hashes the fill value of a shard, and these have no hash.
        return found
    if native(dtype).itemsize > 1:
        endian = draw(st.sampled_from(["little", "big", None]))
        found |= {} if endian is None else {"serializer": BytesCodec(endian=endian)}
    if shape and draw(st.integers(0, 5)) == 0:
        found["shards"] = tuple(2 * side for side in chunks)
    return found


@st.composite
def selections(
    draw: st.DrawFn,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    indexing: tuple[Indexing, ...],
) -> Selection:
    """Cells of an array of a given shape, each at most once."""
    way = draw(st.sampled_from(indexing if shape else ("basic",)))
    match way:
        case "basic":
            given = shape[: draw(st.sampled_from([len(shape), len(shape), len(shape), 1, 0]))]
            return Selection(way, tuple(draw(_places(side)) for side in given) or ...)
        case "oindex":
            return Selection(way, tuple(draw(_places(side, many=True)) for side in shape))
        case "blocks":
            counts = [-(-side // chunk) for side, chunk in zip(shape, chunks, strict=True)]
            return Selection(way, tuple(draw(_blocks(count)) for count in counts))
        case "mask":
            seed, share = draw(st.integers(0, 99)), draw(st.sampled_from([0.1, 0.5, 1.0]))
            return Selection(way, np.random.default_rng(seed).random(shape) < share)
        case "vindex":
            cells = st.tuples(*(st.sampled_from(range(side)) for side in shape))
            found = draw(st.lists(cells, min_size=1, max_size=6, unique=True))
            return Selection(way, tuple(np.array(axis) for axis in zip(*found, strict=True)))


@st.composite
def _places(draw: st.DrawFn, side: int, *, many: bool = False) -> Any:
    somewhere = st.sampled_from(range(side))
    kinds = ["list", "int", "bools", "slice", "all"] if many else ["slice", "all", "slice", "int"]
    match draw(st.sampled_from(kinds)):
        case "int":
            return draw(somewhere) - draw(st.sampled_from([0, side]))
        case "slice":
            start, stop = sorted((draw(somewhere), draw(somewhere)))
            return slice(start, stop + 1, draw(st.sampled_from([None, 1, None, 2])))
        case "list":
            return np.array(draw(st.lists(somewhere, min_size=1, unique=True)))
        case "bools":
            return np.array(draw(st.lists(st.booleans(), min_size=side, max_size=side)))
        case _:
            return slice(None)


@st.composite
def _blocks(draw: st.DrawFn, count: int) -> Any:
    if draw(st.booleans()):
        return draw(st.sampled_from(range(count)))
    start, stop = sorted(draw(st.tuples(*[st.sampled_from(range(count))] * 2)))
    return slice(start, stop + 1)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Everything together."""
    dtype = draw(st.sampled_from(sorted(FILLS)))
    fill = draw(st.sampled_from(FILLS[dtype]))
    rank = draw(st.sampled_from([2, 1, 3, 2, 2, 0]))
    shape = tuple(draw(st.sampled_from([7, 5, 8, 3, 1])) for _ in range(rank))
    chunks = tuple(min(side, draw(st.sampled_from([2, 3, 1, 4]))) for side in shape)
    encoding = draw(codecs(dtype, shape, chunks))
    grid = encoding.get("shards", chunks)
    # Zarr itself fails with lists of places in shards, with whichever error comes first.
    ways: tuple[Indexing, ...] = ("basic", "blocks") if "shards" in encoding else INDEXING
    steps = st.tuples(
        st.builds(
            Write,
            selections(shape, grid, ways),
            st.integers(0, 1 << 16),
            st.sampled_from([None, None, 0, 1]),
            st.sampled_from([form for form in FORMS if dtype != "str" or form != "fortran"]),
            st.booleans(),
        ),
        selections(shape, grid, ways),
    )
    return Case(
        dtype,
        FIELDS.type(fill, FIELDS) if dtype == "fields" else fill,
        shape,
        chunks,
        encoding,
        # Zarr's codec for strings takes cells in memory order, and reads them in C order.
        draw(st.sampled_from("C" if dtype == "str" else "CF")),
        draw(st.booleans()),
        draw(st.lists(steps, min_size=2, max_size=5)),
    )
