"""Codecs called directly do as Zarr's pipeline that awaits them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.zarr_cases import FILLS, MARKS, Case, codecs, native
from zarr.abc.codec import Codec
from zarr.codecs import (
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    VLenUTF8Codec,
    ZstdCodec,
)
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, NDBuffer
from zarr.core.buffer.cpu import Buffer as CpuBuffer
from zarr.core.buffer.cpu import NDBuffer as CpuNDBuffer
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from airflow_provider_icechunk.engine.zarr_store.codecs import ChunkCodecs, bytes_of, holds_only
from airflow_provider_icechunk.engine.zarr_store.releases import chunk_spec

pytestmark = MARKS


@st.composite
def chunks(draw: st.DrawFn) -> tuple[Case, NDArray[Any]]:
    """An array, and values of one of its chunks."""
    dtype = draw(st.sampled_from(sorted(FILLS)))
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    encoding = dict(draw(codecs(dtype, shape, shape)))
    encoding.pop("shards", None)
    fill = draw(st.sampled_from(FILLS[dtype]))
    if dtype == "fields":
        fill = native(dtype).type(fill, native(dtype))
    case = Case(dtype, fill, shape, shape, encoding, draw(st.sampled_from("CF")), True)
    seed = draw(st.integers(0, 99))
    picked = np.random.default_rng(seed).integers(len(case.pool), size=shape)
    return case, np.asarray(case.pool[picked], case.pool.dtype)


def as_bits(values: NDArray[Any]) -> Any:
    return values.tolist() if values.dtype.kind in "OT" else (values.dtype, values.tobytes())


@settings(max_examples=80)
@given(chunks())
def test_chunks_become_the_bytes_that_zarr_makes_of_them_and_back(
    drawn: tuple[Case, NDArray[Any]],
) -> None:
    case, values = drawn
    array = case.create(MemoryStore())
    spec = chunk_spec(array)
    zarrs = BatchedCodecPipeline.from_codecs(list(array.async_array.codec_pipeline))
    direct = ChunkCodecs.of(zarrs)
    assert direct is not None
    if array.dtype.kind == "T":
        values = values.astype(array.dtype)
    chunk = CpuNDBuffer.from_ndarray_like(values)
    encoded = direct.encode(chunk, spec)
    (expected,) = sync(zarrs.encode([(chunk, spec)]))
    assert encoded is not None
    assert expected is not None
    assert encoded.to_bytes() == expected.to_bytes()
    assert bytes(bytes_of(encoded)) == expected.to_bytes()
    (decoded,) = sync(zarrs.decode([(expected, spec)]))
    assert decoded is not None
    assert as_bits(direct.decode(encoded, spec)) == as_bits(decoded.as_numpy_array())
    if direct.are_plain(spec.dtype.to_native_dtype()):
        assert encoded.to_bytes() == values.astype(array.dtype).tobytes()


@pytest.mark.parametrize(
    ("chain", "dtype", "plain"),
    [
        ([BytesCodec(endian=sys.byteorder)], "=f8", True),
        ([BytesCodec(endian=None)], "u1", True),
        ([BytesCodec(endian=None)], "bool", True),
        ([BytesCodec(endian=sys.byteorder)], "=M8[s]", True),
        ([BytesCodec(endian="big")], "<i4", False),
        ([BytesCodec(endian="little")], ">i4", False),
        ([BytesCodec(), Crc32cCodec()], "=f8", False),
        ([TransposeCodec(order=(1, 0)), BytesCodec()], "=f8", False),
        ([VLenUTF8Codec()], "O", False),
    ],
)
def test_only_bytes_in_the_order_of_this_machine_are_plain(
    chain: list[Codec], dtype: str, plain: bool
) -> None:
    found = ChunkCodecs.of(chain)
    assert found is not None
    assert found.are_plain(np.dtype(dtype)) is plain


class Awaited(ZstdCodec):
    """Changes what Zarr awaits, and leaves what can be called directly."""

    async def _encode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer | None:
        encoded = await super()._encode_single(chunk_bytes, chunk_spec)
        return None if encoded is None else CpuBuffer.from_bytes(encoded.to_bytes()[::-1])

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        turned = CpuBuffer.from_bytes(chunk_bytes.to_bytes()[::-1])
        return await super()._decode_single(turned, chunk_spec)


class InBatches(GzipCodec):
    """Changes how Zarr encodes many chunks."""

    async def encode(self, chunks_and_specs: Any) -> Any:
        return await super().encode(chunks_and_specs)


class Both(Awaited):
    """Changes both ways alike."""

    def _encode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer | None:
        return chunk_bytes

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return chunk_bytes


@pytest.mark.parametrize("codec", [Awaited(), InBatches()])
def test_codecs_that_change_what_is_awaited_are_not_called_directly(codec: Codec) -> None:
    assert ChunkCodecs.of([BytesCodec(), codec]) is None


def test_codecs_that_change_what_is_called_directly_are() -> None:
    assert ChunkCodecs.of([BytesCodec(), Both()]) is not None


def test_shards_are_left_to_zarr() -> None:
    assert ChunkCodecs.of([ShardingCodec(chunk_shape=(1,))]) is None


class Nothing(Crc32cCodec):
    """Finds nothing worth storing."""

    def _encode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer | None:
        return None


def test_what_a_codec_does_not_store_stays_unstored() -> None:
    array = zarr.create_array(MemoryStore(), shape=(2,), chunks=(2,), dtype="u1")
    found = ChunkCodecs.of([BytesCodec(endian=None), Nothing(), ZstdCodec()])
    assert found is not None
    chunk: NDBuffer = CpuNDBuffer.from_ndarray_like(np.zeros(2, "u1"))
    assert found.encode(chunk, chunk_spec(array)) is None


def test_chunks_of_several_shapes_have_steps_of_their_own() -> None:
    chain = ChunkCodecs.of([TransposeCodec(order=(1, 0)), BytesCodec(), Crc32cCodec()])
    assert chain is not None
    for shape in [(2, 3), (3, 2), (2, 3)]:
        array = zarr.create_array(MemoryStore(), shape=shape, chunks=shape, dtype="i4")
        values = np.arange(6, dtype="i4").reshape(shape)
        encoded = chain.encode(CpuNDBuffer.from_ndarray_like(values), chunk_spec(array))
        assert encoded is not None
        np.testing.assert_array_equal(chain.decode(encoded, chunk_spec(array)), values)


@settings(max_examples=80)
@given(
    st.sampled_from(sorted(FILLS)).flatmap(
        lambda dtype: st.tuples(st.just(dtype), st.sampled_from(FILLS[dtype]))
    ),
    st.lists(st.sampled_from([1, 2, 300]), max_size=3),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 2)), max_size=2),
)
def test_a_chunk_holds_only_the_fill_value_if_zarr_says_so(
    filled: tuple[str, Any], shape: list[int], others: list[tuple[int, int]]
) -> None:
    case = Case(*filled, (), (), {}, "C", False)
    values = np.full(shape, 0, "i8")
    for place, other in others:
        values.flat[place % values.size] = other
    chunk = CpuNDBuffer.from_ndarray_like(np.asarray(case.pool[values], case.pool.dtype))
    fill = case.pool[0]
    assert holds_only(chunk, fill) is chunk.all_equal(fill)
    if not others and not (case.dtype == "fields" and np.isnan(fill["b"])):
        assert holds_only(chunk, fill)


def test_bytes_of_buffers_are_not_copied_and_nothing_else_has_any() -> None:
    values = np.arange(5, dtype="u1")
    seen = bytes_of(CpuBuffer.from_array_like(values))
    values[0] = 9
    assert seen[0] == 9
    with pytest.raises(TypeError, match="must be a Buffer instance"):
        bytes_of(b"abc")  # type: ignore[arg-type]
