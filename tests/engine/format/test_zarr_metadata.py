from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.model import json_values, texts

from airflow_provider_icechunk.engine.format.zarr_metadata import (
    ArrayDocument,
    GroupDocument,
    parse_node,
    rebuild_document,
    split_document,
)
from airflow_provider_icechunk.exceptions import (
    FormatError,
    InvalidInputError,
    Kind,
    UnsupportedError,
)


def array(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "attributes": {"a": 1},
        "shape": [10, 0, 7],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3, 5, 7]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "NaN",
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "dimension_names": ["x", None, "é"],
    }
    document.update(changes)
    return {key: value for key, value in document.items() if value is not ...}


def encoded(**changes: Any) -> bytes:
    return json.dumps(array(**changes)).encode()


def test_the_facts_of_an_array() -> None:
    found = parse_node(encoded())
    assert found == ArrayDocument((10, 0, 7), (3, 5, 7), ("x", None, "é"))
    assert found.num_chunks == (4, 0, 1)


def test_a_scalar_has_no_dimensions_and_a_group_no_facts() -> None:
    grid = {"name": "regular", "configuration": {"chunk_shape": []}}
    found = parse_node(encoded(shape=[], chunk_grid=grid, dimension_names=...))
    assert found == ArrayDocument((), (), None)
    assert found.num_chunks == ()
    assert parse_node(b'{"zarr_format": 3, "node_type": "group"}') == GroupDocument()


def test_a_key_encoding_without_configuration_is_the_default() -> None:
    assert isinstance(parse_node(encoded(chunk_key_encoding={"name": "default"})), ArrayDocument)


def regular(*chunks: object) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": list(chunks)}}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"zarr_format": 2}, "zarr_format"),
        ({"zarr_format": ...}, "zarr_format"),
        ({"node_type": ...}, "node_type"),
        ({"node_type": "thing"}, "node_type"),
        ({"shape": ...}, "shape"),
        ({"shape": "12"}, "shape"),
        ({"shape": [1, -1, 2]}, "shape"),
        ({"shape": [1, 2.5, 2]}, "shape"),
        ({"shape": [1, True, 2]}, "shape"),
        ({"shape": [2**63, 1, 1]}, "shape"),
        ({"shape": [1] * 65}, "more than 64"),
        ({"shape": [1, 2]}, "3 dimensions"),
        ({"chunk_grid": ...}, "chunk_grid"),
        ({"chunk_grid": {"name": "hexagonal"}}, "hexagonal"),
        ({"chunk_grid": {"name": "regular"}}, "chunk_shape"),
        ({"chunk_grid": regular(0, 5, 7)}, "length 0"),
        ({"shape": [2**40, 1, 1], "chunk_grid": regular(1, 1, 1)}, "2\\*\\*32 chunks"),
        ({"chunk_key_encoding": ...}, "chunk_key_encoding"),
        ({"chunk_key_encoding": {"name": "v2"}}, "key encoding"),
        (
            {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}}},
            "separator",
        ),
        ({"dimension_names": ["x"]}, "dimension_names"),
        ({"dimension_names": [1, 2, 3]}, "dimension_names"),
        ({"dimension_names": "xyz"}, "dimension_names"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInputError, match=problem) as caught:
        parse_node(encoded(**changes))
    assert caught.value.kind is Kind.INVALID_METADATA


@pytest.mark.parametrize("document", [b"", b"[]", b"3", b"{", b"\xff", b"[" * 200_000, b'{"a":1}'])
def test_what_is_no_document_is_refused(document: bytes) -> None:
    with pytest.raises(InvalidInputError, match=r"zarr\.json"):
        parse_node(document)


def test_rectilinear_grids_are_called_unsupported_not_wrong() -> None:
    with pytest.raises(UnsupportedError, match="generation `2`"):
        parse_node(encoded(chunk_grid={"name": "rectilinear", "configuration": {}}))


FILLS = {
    "bool": ([True, False], "Bool"),
    "int8": ([-128, 0, 127], "Int8"),
    "int64": ([-(2**63), 2**63 - 1], "Int64"),
    "uint16": ([0, 65535], "UInt16"),
    "uint64": ([2**64 - 1], "UInt64"),
    "float16": (["NaN", "Infinity", 0.5], "Float16"),
    "float32": (["NaN", "-Infinity", 0.1, -0.0], "Float32"),
    "float64": (["NaN", "Infinity", 0.1, 1e300], "Float64"),
    "complex64": ([[0.1, "NaN"]], "Complex64"),
    "complex128": ([["-Infinity", 1e300]], "Complex128"),
    "string": (["", "ü"], "String"),
    "bytes": ([[], [0, 255]], "Bytes"),
}


@pytest.mark.parametrize(
    ("data_type", "value"), [(name, value) for name, (vs, _) in FILLS.items() for value in vs]
)
def test_documents_survive_the_early_shape(data_type: str, value: object) -> None:
    document = array(data_type=data_type, fill_value=value)
    zarr, attributes = split_document(json.dumps(document).encode())
    assert zarr is not None
    assert list(zarr[4]) == [FILLS[data_type][1]]
    assert json.loads(rebuild_document(zarr, attributes)) == document


@given(st.dictionaries(texts, json_values, max_size=3))
def test_attributes_survive_the_early_shape(attributes: dict[str, Any]) -> None:
    for document in (
        array(attributes=attributes),
        {"zarr_format": 3, "node_type": "group", "attributes": attributes},
    ):
        split = split_document(json.dumps(document).encode())
        assert json.loads(rebuild_document(*split)) == document


def test_the_early_items_are_in_their_order() -> None:
    zarr, attributes = split_document(encoded(fill_value=1.5))
    assert zarr == (
        [10, 0, 7],
        "float32",
        [3, 5, 7],
        "Slash",
        {"Float32": 1.5},
        [["bytes", {"endian": "little"}], ["crc32c", None]],
        None,
        ["x", None, "é"],
    )
    assert attributes == {"a": 1}


def test_single_precision_fill_values_are_shown_as_they_were_meant() -> None:
    zarr, _ = split_document(encoded(fill_value=0.1))
    assert zarr is not None
    stored = [*zarr[:4], {"Float32": float(np.float32(0.1))}, *zarr[5:]]
    assert json.loads(rebuild_document(stored, None))["fill_value"] == 0.1


def test_bit_patterns_of_fill_values_are_understood() -> None:
    zarr, _ = split_document(encoded(fill_value="0x7fc00000"))
    assert zarr is not None
    assert math.isnan(zarr[4]["Float32"])


@pytest.mark.parametrize(
    "changes",
    [
        {"data_type": "datetime64"},
        {"data_type": {"name": "numpy.datetime64"}},
        {"fill_value": "zero"},
        {"fill_value": True},
        {"fill_value": None},
        {"fill_value": "0x1234567890"},
        {"data_type": "int8", "fill_value": 128},
        {"data_type": "bytes", "fill_value": [256]},
        {"data_type": "complex64", "fill_value": [1]},
        {"codecs": ...},
        {"codecs": [{"configuration": {}}]},
        {"attributes": [1]},
    ],
)
def test_what_the_early_shape_cannot_hold_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        split_document(encoded(**changes))


@given(st.lists(json_values, max_size=9), st.one_of(st.none(), st.integers(0, 7)), json_values)
def test_nonsense_items_are_a_format_error(
    items: list[Any], place: int | None, value: object
) -> None:
    zarr = items
    if place is not None:
        sound, _ = split_document(encoded())
        assert sound is not None
        zarr = [*sound[:place], value, *sound[place + 1 :]]
    with contextlib.suppress(FormatError):
        json.loads(rebuild_document(zarr, None, where="snapshots/X"))


def test_a_damaged_early_shape_names_its_file() -> None:
    with pytest.raises(FormatError, match="snapshots/X"):
        rebuild_document([[1], "float32"], None, where="snapshots/X")
