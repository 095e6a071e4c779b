"""The Zarr metadata of `alpha1` and the `zarr.json` it was made from."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, Kind
from airflow_provider_icechunk.format.wire import json_text as js
from airflow_provider_icechunk.format.zarr_metadata import rebuild_document, split_document

_REQUIRED = ("shape", "data_type", "chunk_shape", "chunk_key_encoding", "fill_value", "codecs")
_RAW = re.compile(r"r([1-9][0-9]{0,8})", re.ASCII)
_FLOATS = ("Float16", "Float32", "Float64")
_COMPLEX = ("Complex64", "Complex128")
_NOT_YET = ("String", "Bytes")
_SPECIAL = {"NaN": "NaN", "Infinity": "Infinity", "-Infinity": "-Infinity"}


def from_zarr_json(document: bytes) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Metadata of an array (`None` for a group) and attributes; refuses what has no place."""
    plain, bits = _without_raw_bits(document)
    zarr, attributes = split_document(plain)
    if zarr is None:
        return None, attributes
    shape, data_type, chunk_shape, encoding, fill, codecs, transformers, names = zarr
    ((variant, value),) = fill.items()
    if bits is not None:
        data_type, variant = {"rawbits": bits}, "RawBits"
    elif variant in _NOT_YET:
        raise InvalidInputError(
            f"generation `alpha1` has no data type {data_type!r}; use a newer generation",
            kind=Kind.INVALID_METADATA,
        )
    metadata = {
        "shape": shape,
        "data_type": data_type,
        "chunk_shape": chunk_shape,
        "chunk_key_encoding": encoding,
        "fill_value": {variant: _finite(variant, value)},
        "codecs": [_step(step) for step in codecs],
        "storage_transformers": transformers and [_step(step) for step in transformers],
        "dimension_names": names,
    }
    if 0 in chunk_shape:
        raise InvalidInputError(
            "generation `alpha1` has no chunks of length 0", kind=Kind.INVALID_METADATA
        )
    return metadata, attributes


def to_zarr_json(
    metadata: Mapping[str, Any] | None, attributes: Mapping[str, Any] | None, *, where: str
) -> bytes:
    """The `zarr.json` of an array or a group (`None`)."""
    if metadata is None:
        return rebuild_document(None, attributes, where=where)
    js.as_object(metadata, "the Zarr metadata", where=where, required=_REQUIRED)
    # Only Zarr's name for a chunk depends on it: references are kept by coordinates.
    if metadata["chunk_key_encoding"] not in ("Slash", "Dot", "Default"):
        raise FormatError(f"{where}: an unknown encoding of chunk keys")
    variant, value = js.as_variant(metadata["fill_value"], "the fill value", where=where)
    data_type, bits = metadata["data_type"], None
    if isinstance(data_type, dict):
        name, size = js.as_variant(data_type, "the data type", where=where)
        if name != "rawbits" or variant != "RawBits":
            raise FormatError(f"{where}: an unknown data type {name[:60]!r}")
        bits = js.as_number(size, "the size of raw bits", where=where, most=999_999_999)
        data_type, variant = "bytes", "Bytes"
    elif variant in (*_NOT_YET, "RawBits") or data_type in ("string", "bytes"):
        raise FormatError(f"{where}: a fill value or data type that does not exist yet")
    transformers = metadata.get("storage_transformers")
    items = (
        metadata["shape"],
        data_type,
        metadata["chunk_shape"],
        "Slash",
        {variant: _checked(variant, value, where)},
        _pairs(metadata["codecs"], where),
        None if transformers is None else _pairs(transformers, where),
        metadata.get("dimension_names"),
    )
    document = rebuild_document(items, attributes, where=where)
    return document if bits is None else _with_raw_bits(document, bits)


def _without_raw_bits(document: bytes) -> tuple[bytes, int | None]:
    """The document with raw bits called bytes, which the early shape holds alike."""
    if b'"r' not in document:
        return document, None
    try:
        fields = json.loads(document)
    except (ValueError, RecursionError):
        return document, None
    data_type = fields.get("data_type") if isinstance(fields, dict) else None
    match = _RAW.fullmatch(data_type) if isinstance(data_type, str) else None
    if match is None:
        return document, None
    fill = fields.get("fill_value")
    if isinstance(fill, str):
        try:
            fill = list(base64.standard_b64decode(fill.encode()))
        except (binascii.Error, UnicodeEncodeError):
            fill = None
    return json.dumps(fields | {"data_type": "bytes", "fill_value": fill}).encode(), int(match[1])


def _with_raw_bits(document: bytes, bits: int) -> bytes:
    fields = json.loads(document)
    fill = base64.standard_b64encode(bytes(fields["fill_value"])).decode()
    fields |= {"data_type": f"r{bits}", "fill_value": fill}
    return json.dumps(fields, ensure_ascii=False).encode()


def _finite(variant: str, value: Any) -> Any:
    """JSON has no numbers for what is not finite: Zarr's names stand for them."""
    if variant in _FLOATS:
        return _named(value)
    return [_named(part) for part in value] if variant in _COMPLEX else value


def _named(number: float) -> float | str:
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def _checked(variant: str, value: Any, where: str) -> Any:
    parts = value if variant in _COMPLEX else [value] if variant in _FLOATS else []
    for part in js.as_list(parts, "a complex fill value", where=where):
        if not (part in _SPECIAL if isinstance(part, str) else type(part) in (int, float)):
            raise FormatError(f"{where}: {repr(part)[:60]} is not a number")
    return value


def _step(step: list[Any]) -> dict[str, Any]:
    name, configuration = step
    return (
        {"name": name} if configuration is None else {"name": name, "configuration": configuration}
    )


def _pairs(steps: object, where: str) -> list[list[Any]]:
    pairs = []
    for step in js.as_list(steps, "a list of codecs", where=where):
        fields = js.as_object(step, "a codec", where=where, required=["name"])
        pairs.append([fields["name"], fields.get("configuration")])
    return pairs
