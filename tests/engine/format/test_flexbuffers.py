"""FlexBuffers: every JSON value survives, other encoders are read, hostile bytes are refused."""

from __future__ import annotations

import contextlib
import math
import random
import string
import struct

import flatbuffers.flexbuffers as reference
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_icechunk.engine.format.wire import flexbuffers
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

KEYS = st.text(max_size=12).filter(lambda text: "\0" not in text)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=40)
)


def json_values(keys: st.SearchStrategy[str]) -> st.SearchStrategy[object]:
    return st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=6) | st.dictionaries(keys, inner, max_size=6),
        max_leaves=20,
    )


def decode(data: bytes) -> flexbuffers.Json:
    return flexbuffers.decode(data, where="here")


def same(first: object, second: object) -> bool:
    """Equal also in type: 1, 1.0 and True are three values."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


@settings(deadline=None, max_examples=200)
@given(json_values(KEYS))
def test_every_json_value_comes_back_as_it_was(value):
    assert same(decode(flexbuffers.encode(value)), value)


@settings(deadline=None, max_examples=100)
@given(json_values(st.text(string.ascii_letters, max_size=12)))
def test_the_reference_implementation_reads_what_is_written(value):
    assert reference.Loads(flexbuffers.encode(value)) == value


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_vectors_wider_than_any_offset_width_are_written(width):
    count = {1: 3, 2: 300, 4: 40_000, 8: 10}[width]
    item = 2**63 if width == 8 else "text"
    value = {"head": [item] * count, "tail": list(range(count))}
    assert decode(flexbuffers.encode(value)) == value


def typed(add) -> bytes:
    builder = reference.Builder()
    add(builder)
    return bytes(builder.Finish())


@pytest.mark.parametrize(
    ("add", "expected"),
    [
        (lambda b: b.TypedVectorFromElements([1, -2, 300]), [1, -2, 300]),
        (lambda b: b.TypedVectorFromElements([1.5, 2.5]), [1.5, 2.5]),
        (lambda b: b.TypedVectorFromElements([True, False]), [True, False]),
        (lambda b: b.FixedTypedVectorFromElements([1, 2, 3]), [1, 2, 3]),
        (lambda b: b.FixedTypedVectorFromElements([1.5, 2.5]), [1.5, 2.5]),
        (lambda b: b.IndirectInt(-7), -7),
        (lambda b: b.IndirectUInt(2**40), 2**40),
        (lambda b: b.IndirectFloat(0.5), 0.5),
        (lambda b: b.Key("name"), "name"),
    ],
)
def test_forms_that_this_writer_does_not_use_are_read(add, expected):
    assert decode(typed(add)) == expected


def test_keys_are_sorted_by_their_bytes():
    data = flexbuffers.encode({"b": 1, "é": 2, "a": 3, "": 4})
    assert list(decode(data)) == ["", "a", "b", "é"]


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        -(2**63) - 1,
        math.nan,
        math.inf,
        {1: 2},
        {"a\0b": 1},
        b"bytes",
        {1, 2},
        "\ud800",
        {"\ud800": 1},
    ],
)
def test_what_json_cannot_say_is_refused(value):
    with pytest.raises(InvalidInputError):
        flexbuffers.encode(value)


def test_values_nested_too_deep_are_refused_in_both_directions():
    deep: object = 1
    for _ in range(flexbuffers.MAX_DEPTH):
        deep = [deep]
    data = flexbuffers.encode(deep)
    assert decode(data) == deep
    with pytest.raises(InvalidInputError, match="nested"):
        flexbuffers.encode([deep])
    with pytest.raises(FormatError, match="nested"):
        decode(bytes(reference.Dumps([deep])))


def test_a_vector_of_itself_is_refused():
    # One element of type vector, whose reference points at the vector it is in.
    data = bytes([1, 0, 10 << 2, 2, 10 << 2, 1])
    with pytest.raises(FormatError):
        decode(data)


def test_shared_parts_cannot_blow_up():
    """Ten levels, each a vector of two hundred references to the level below."""
    data = bytearray([0])
    below = 1
    for level in range(10):
        kind = (10 << 2 | 1) if level else 10 << 2
        data += bytes(len(data) % 2)
        data += struct.pack("<H", 200 if level else 0)
        at = len(data)
        if level:
            for n in range(200):
                data += struct.pack("<H", at + 2 * n - below)
            data += bytes([kind if level > 1 else 10 << 2 | 1]) * 200
        below = at
    data += bytes(len(data) % 2)
    data += struct.pack("<H", len(data) - below) + bytes([10 << 2 | 1, 2])
    with pytest.raises(FormatError, match="unpacks to far more"):
        decode(bytes(data))


def test_a_blob_is_no_json_value():
    with pytest.raises(FormatError, match="not a JSON value"):
        decode(bytes(reference.Dumps(b"abc")))


SEED = flexbuffers.encode(
    {"a": [1, 2.5, None, True, "text", -5], "b": {"c": "d" * 300, "e": [[], {}]}, "n": 2**64 - 1}
)


def test_damaged_bytes_raise_nothing_but_format_errors():
    dice = random.Random(7)
    for _ in range(4000):
        data = bytearray(SEED)
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        if dice.random() < 0.3:
            data = data[: dice.randrange(len(data))]
        with contextlib.suppress(FormatError):
            decode(bytes(data))


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_format_errors(data):
    with contextlib.suppress(FormatError):
        decode(data)
