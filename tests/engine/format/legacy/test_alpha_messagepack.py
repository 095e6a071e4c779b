"""MessagePack from hostile files, and packed as Rust's compact serializer does."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_icechunk.engine.format.wire import messagepack as wire
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

WHERE = "snapshots/X"

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@given(json_values)
def test_a_json_value_comes_back_as_it_was_packed(value: object) -> None:
    unpacked = wire.unpack(wire.pack(value), where=WHERE)
    assert wire.as_json(unpacked, "it", where=WHERE) == value


@given(st.binary(max_size=300))
def test_any_bytes_give_a_value_or_a_format_error(data: bytes) -> None:
    with suppress(FormatError):
        wire.unpack(data, where=WHERE)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x01\x01", id="two values"),
        pytest.param(b"\xc1", id="the byte that is never used"),
        pytest.param(b"\xa1\xff", id="text that is not UTF-8"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="an array of four billion items"),
        pytest.param(b"\xdf\xff\xff\xff\xff\x01\x01", id="a map of four billion entries"),
        pytest.param(b"\xdb\xff\xff\xff\xffab", id="text of four gigabytes"),
        pytest.param(b"\xc6\xff\xff\xff\xffab", id="binary of four gigabytes"),
        pytest.param(b"\x91" * 100_000 + b"\x01", id="a hundred thousand arrays in each other"),
        pytest.param(b"\xd4\x05a", id="an extension"),
    ],
)
def test_what_is_no_single_value_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="snapshots/X"):
        wire.unpack(data, where=WHERE)


def test_containers_that_announce_too_much_get_no_memory() -> None:
    size = 1 << 20
    nested = (b"\xdd" + struct.pack(">I", size - 10)) * 500
    data = nested + bytes(size - len(nested))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            wire.unpack(data, where=WHERE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * size


def test_maps_stay_apart_from_arrays_and_keep_repeated_keys() -> None:
    value = wire.unpack(b"\x82\xa1a\x01\xa1a\x02", where=WHERE)
    assert value == [("a", 1), ("a", 2)]
    with pytest.raises(FormatError, match="twice"):
        wire.as_members(value, "it", where=WHERE)
    with pytest.raises(FormatError, match="a map, expected an array"):
        wire.as_array(value, "it", where=WHERE)


def test_booleans_are_not_numbers_and_ranges_hold() -> None:
    assert wire.as_number(7, "it", where=WHERE, most=7) == 7
    for wrong in (True, 8, -1, 1.0, "1"):
        with pytest.raises(FormatError):
            wire.as_number(wrong, "it", where=WHERE, most=7)


def test_json_may_not_hold_binary_times_or_bottomless_nesting() -> None:
    deep = wire.unpack(b"\x91" * 200 + b"\x01", where=WHERE)
    for wrong in (b"binary", deep, wire.unpack(b"\xd6\xff\x00\x00\x00\x00", where=WHERE)):
        with pytest.raises(FormatError):
            wire.as_json(wrong, "it", where=WHERE)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 65535, 65536])
def test_headers_are_the_shortest(size: int) -> None:
    assert wire.array_header(size) + b"\xc0" * size == msgpack.packb([None] * size)
    packer = msgpack.Packer()
    assert wire.map_header(size) == packer.pack_map_header(size)


def test_single_floats_keep_32_bits() -> None:
    assert wire.pack_single(0.1) == b"\xca" + np.array(0.1, ">f4").tobytes()
    with pytest.raises(InvalidInputError):
        wire.pack_single(1e300)


@pytest.mark.parametrize("value", [2**64, object(), "\ud800", {"a": {1, 2}}])
def test_what_cannot_be_stored_is_the_callers_error(value: object) -> None:
    with pytest.raises(InvalidInputError):
        wire.pack(value)
