"""Zarr metadata documents: the facts the engine needs, and nodes from documents.

A `zarr.json` is kept verbatim if the generation allows it. Early generations split the document of
an array into eight items (shape, data type, chunk shape, chunk key encoding, fill value, codecs,
storage transformers, dimension names) and stored the attributes beside them: `rebuild_document` and
`split_document` convert in both directions.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from airflow_provider_icechunk.engine.budget import FREE_BYTES, current
from airflow_provider_icechunk.engine.format.wire.json import memory_of
from airflow_provider_icechunk.exceptions import (
    FormatError,
    InvalidInputError,
    Kind,
    UnsupportedError,
)

from .chunk_refs import Index
from .ids import NodeId
from .model import ArrayData, Dimension, ManifestRef, Node

MAX_DOCUMENT = 64 << 20
"""Maximum size of a document in bytes."""
MAX_RANK = 64
_SMALL = 8 << 10
"""Maximum size in bytes of documents whose facts are kept."""
MAX_CHUNKS = 1 << 32
"""Chunk coordinates and ends of extents are 32 bits on disk, so new arrays have one less."""

EarlyArray = tuple[Any, ...]
"""The eight items of an array in early generations, as MessagePack values."""

_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FILL_NAMES = {
    "bool": "Bool",
    "int8": "Int8",
    "int16": "Int16",
    "int32": "Int32",
    "int64": "Int64",
    "uint8": "UInt8",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "float16": "Float16",
    "float32": "Float32",
    "float64": "Float64",
    "complex64": "Complex64",
    "complex128": "Complex128",
    "string": "String",
    "bytes": "Bytes",
}


@dataclass(frozen=True, slots=True)
class GroupDocument:
    """The document of a group: nothing in it concerns the engine."""


@dataclass(frozen=True, slots=True)
class ArrayDocument:
    """The facts about an array that the engine needs."""

    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    """In a rectilinear grid, the longest chunk along each dimension."""
    dimension_names: tuple[str | None, ...] | None
    chunk_counts: tuple[int, ...] | None = None
    """Chunks along each dimension if the grid lists them; `None` for a regular grid."""

    @property
    def num_chunks(self) -> tuple[int, ...]:
        """Chunks along each dimension; a side of length 0 has none in a regular grid."""
        if self.chunk_counts is not None:
            return self.chunk_counts
        return tuple(
            -(-length // chunk) if length else 0
            for length, chunk in zip(self.shape, self.chunk_shape, strict=True)
        )


def parse_node(document: bytes, *, rectilinear: bool = False) -> GroupDocument | ArrayDocument:
    """The facts in a `zarr.json`; raises if no generation could serve its chunks.

    Chunks of different sizes (`rectilinear`) are for generation `2` only.
    """
    _check_size(document)
    if len(document) > _SMALL:
        return _facts(document, rectilinear)
    # The same few documents recur in the snapshots of a whole history.
    return _known_facts(bytes(document), rectilinear)


def _facts(document: bytes, rectilinear: bool) -> GroupDocument | ArrayDocument:
    fields = _parse(document)
    node_type = fields.get("node_type")
    if node_type == "group":
        return GroupDocument()
    if node_type != "array":
        raise _invalid(f"`node_type` is {_show(node_type)}, neither `group` nor `array`")
    shape = _lengths(fields.get("shape"), "shape", least=0)
    _check_key_encoding(fields.get("chunk_key_encoding"))
    chunk_shape, counts = _chunk_grid(fields.get("chunk_grid"), shape, rectilinear=rectilinear)
    if len(chunk_shape) != len(shape):
        raise _invalid(f"`chunk_shape` has {len(chunk_shape)} dimensions, `shape` {len(shape)}")
    names = _dimension_names(fields.get("dimension_names"), len(shape))
    array = ArrayDocument(shape, chunk_shape, names, counts)
    for axis, (length, chunk) in enumerate(zip(shape, chunk_shape, strict=True)):
        if length and not chunk:
            raise _invalid(f"the chunks of dimension {axis} have length 0")
    if any(count > MAX_CHUNKS for count in array.num_chunks):
        raise _invalid("a dimension has more than 2**32 chunks; use longer chunks")
    return array


_known_facts = lru_cache(maxsize=256)(_facts)


def rebuild_document(
    zarr: Sequence[Any] | None,
    attributes: Mapping[str, Any] | None,
    *,
    where: str = "the Zarr metadata",
) -> bytes:
    """Rebuild the `zarr.json` from the eight items of an array, or of a group (`None`)."""
    document: dict[str, Any] = {"zarr_format": 3, "node_type": "group" if zarr is None else "array"}
    if attributes is not None:
        document["attributes"] = dict(attributes)
    try:
        if zarr is not None:
            document.update(_array_fields(zarr))
        return json.dumps(document, ensure_ascii=False).encode()
    except (
        KeyError,
        IndexError,
        OverflowError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
        struct.error,
    ) as error:
        raise FormatError(
            f"{where}: the Zarr metadata of a node does not have the early form "
            f"({type(error).__name__}); the file is damaged"
        ) from None


def split_document(document: bytes) -> tuple[EarlyArray | None, dict[str, Any] | None]:
    """The eight items of an array (`None` for a group) and the attributes of a `zarr.json`.

    Raises for what the early form cannot store, such as later data types.
    """
    fields = _parse(document)
    attributes = fields.get("attributes")
    if attributes is not None and not isinstance(attributes, dict):
        raise _invalid("`attributes` is not an object")
    node = parse_node(document)
    if isinstance(node, GroupDocument):
        return None, attributes
    data_type = fields.get("data_type")
    if not isinstance(data_type, str) or data_type not in _FILL_NAMES:
        raise _invalid(f"the early format has no data type {_show(data_type)}")
    transformers = fields.get("storage_transformers")
    zarr = (
        list(node.shape),
        data_type,
        list(node.chunk_shape),
        "Slash",
        {_FILL_NAMES[data_type]: _early_fill(data_type, fields.get("fill_value"))},
        _early_steps(fields.get("codecs"), "codecs"),
        None if transformers is None else _early_steps(transformers, "storage_transformers"),
        None if node.dimension_names is None else list(node.dimension_names),
    )
    return zarr, attributes


def _check_size(document: bytes) -> None:
    if len(document) > MAX_DOCUMENT:
        raise _invalid(f"it has {len(document)} bytes, more than {MAX_DOCUMENT}")
    if memory_of(document) > current().free_bytes:
        raise InvalidInputError(
            f"this `zarr.json` takes more memory than the {current().free_bytes} bytes allowed "
            f"for a document; if you trust it, raise {FREE_BYTES} in the environment",
            kind=Kind.LIMIT_EXCEEDED,
        )


def _parse(document: bytes) -> dict[str, Any]:
    _check_size(document)
    try:
        fields = json.loads(document)
    except (ValueError, RecursionError):
        raise _invalid("it is not JSON") from None
    if not isinstance(fields, dict):
        raise _invalid("it is not a JSON object")
    if fields.get("zarr_format") != 3 or isinstance(fields["zarr_format"], bool):
        raise _invalid(f"`zarr_format` is {_show(fields.get('zarr_format'))}; only 3 is supported")
    return fields


def _invalid(problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"this `zarr.json` cannot be used: {problem}", kind=Kind.INVALID_METADATA
    )


def _show(value: object) -> str:
    return "missing" if value is None else repr(value)[:80]


def _lengths(value: object, what: str, *, least: int) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise _invalid(f"`{what}` is {_show(value)}, not a list of integers")
    if len(value) > MAX_RANK:
        raise _invalid(f"`{what}` has {len(value)} dimensions, more than {MAX_RANK}")
    for number in value:
        if type(number) is not int or not least <= number < 1 << 63:
            raise _invalid(f"`{what}` contains {_show(number)}")
    return tuple(value)


def _named(value: object, what: str) -> tuple[str, Mapping[str, Any]]:
    """Name and configuration of an extension point; a string is just a name."""
    if isinstance(value, str):
        return value, {}
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise _invalid(f"`{what}` is {_show(value)}, without a name")
    configuration = value.get("configuration")
    if configuration is not None and not isinstance(configuration, dict):
        raise _invalid(f"the configuration of `{what}` is not an object")
    return value["name"], configuration or {}


def _chunk_grid(
    grid: object, shape: tuple[int, ...], *, rectilinear: bool
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Longest chunks and, for a grid that lists its chunks, their numbers."""
    name, configuration = _named(grid, "chunk_grid")
    if name == "rectilinear":
        if not rectilinear:
            raise UnsupportedError(
                "chunk grid `rectilinear` needs format generation `2`; use a regular grid"
            )
        return _listed_chunks(configuration, shape)
    if name != "regular":
        raise _invalid(f"chunk grid {_show(name)} is unknown; only `regular` is supported")
    return _lengths(configuration.get("chunk_shape"), "chunk_shape", least=0), None


def _listed_chunks(
    configuration: Mapping[str, Any], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if configuration.get("kind", "inline") != "inline":
        raise _invalid(f"rectilinear chunks of kind {_show(configuration['kind'])} are unknown")
    dimensions = configuration.get("chunk_shapes")
    if not isinstance(dimensions, list) or len(dimensions) > MAX_RANK:
        raise _invalid(f"`chunk_shapes` is {_show(dimensions)}, not a list of dimensions")
    if len(dimensions) != len(shape):
        raise _invalid(f"`chunk_shapes` has {len(dimensions)} dimensions, `shape` {len(shape)}")
    found = [_listed_side(*side) for side in zip(dimensions, shape, strict=True)]
    return tuple(longest for longest, _ in found), tuple(count for _, count in found)


def _listed_side(sizes: object, length: int) -> tuple[int, int]:
    """Longest chunk and number of chunks of one dimension: sizes, and runs `[size, count]`.

    A bare number is the size of all chunks, as many as the dimension needs.
    """
    if type(sizes) is int:
        (size,) = _lengths([sizes], "chunk_shapes", least=1)
        return size, -(-length // size)
    if not isinstance(sizes, list):
        raise _invalid(f"a dimension of `chunk_shapes` is {_show(sizes)}, not a list of sizes")
    runs = [run if isinstance(run, list) and len(run) == 2 else [run, 1] for run in sizes]
    for size, count in runs:
        _lengths([size, count], "chunk_shapes", least=1)
    return max((size for size, _ in runs), default=0), sum(count for _, count in runs)


def _check_key_encoding(encoding: object) -> None:
    name, configuration = _named(encoding, "chunk_key_encoding")
    if name != "default" or configuration.get("separator", "/") != "/":
        raise _invalid(
            f"chunk key encoding {_show(encoding)}; only `default` with separator `/` is supported"
        )


def _dimension_names(value: object, rank: int) -> tuple[str | None, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(n, str | None) for n in value):
        raise _invalid("`dimension_names` is not a list of strings and nulls")
    if len(value) != rank:
        raise _invalid(f"`dimension_names` has {len(value)} items, `shape` {rank}")
    return tuple(value)


def _array_fields(zarr: Sequence[Any]) -> dict[str, Any]:
    shape, data_type, chunk_shape, encoding, fill, codecs, transformers, names = zarr
    if encoding != "Slash" or data_type not in _FILL_NAMES:
        raise ValueError
    fields: dict[str, Any] = {
        "shape": [_whole(number) for number in shape],
        "data_type": data_type,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [_whole(number) for number in chunk_shape]},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": _document_fill(fill),
        "codecs": [_document_step(step) for step in codecs],
    }
    if transformers is not None:
        fields["storage_transformers"] = [_document_step(step) for step in transformers]
    if names is not None:
        fields["dimension_names"] = [_name_or_none(name) for name in names]
    return fields


def _whole(number: object) -> int:
    if type(number) is not int or not 0 <= number < 1 << 64:
        raise ValueError
    return number


def _name_or_none(name: object) -> str | None:
    if name is not None and not isinstance(name, str):
        raise TypeError
    return name


def _document_step(step: Sequence[Any]) -> dict[str, Any]:
    name, configuration = step
    if not isinstance(name, str):
        raise TypeError
    if configuration is None:
        return {"name": name}
    return {"name": name, "configuration": dict(configuration)}


def _document_fill(fill: Mapping[str, Any]) -> Any:
    ((variant, value),) = fill.items()
    match variant:
        case "Bool" | "String":
            if not isinstance(value, bool if variant == "Bool" else str):
                raise TypeError
            return value
        case "Float16" | "Float32":
            return _shown_float(value, np.float32)
        case "Float64":
            return _shown_float(value, np.float64)
        case "Complex64" | "Complex128":
            real, imaginary = value
            kind = np.float32 if variant == "Complex64" else np.float64
            return [_shown_float(real, kind), _shown_float(imaginary, kind)]
        case "Bytes":
            return list(bytes(value))
        case _ if variant in _FILL_NAMES.values():
            if type(value) is not int:
                raise TypeError
            return value
    raise KeyError(variant)


def _shown_float(value: float, kind: type[np.float32 | np.float64]) -> float | str:
    """The shortest decimal that gives the same stored number, or its JSON name."""
    with np.errstate(over="ignore"):
        number = kind(value)
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return float(str(number))


def _early_steps(value: object, what: str) -> list[list[Any]]:
    if not isinstance(value, list):
        raise _invalid(f"`{what}` is {_show(value)}, not a list")
    steps = []
    for step in value:
        name, _ = _named(step, what)
        steps.append([name, step.get("configuration") if isinstance(step, dict) else None])
    return steps


def _early_fill(data_type: str, value: Any) -> Any:
    try:
        return _FILL_READERS[data_type.rstrip("0123456789")](value, data_type)
    except (TypeError, ValueError, OverflowError, struct.error):
        raise _invalid(f"`fill_value` {_show(value)} does not fit data type {data_type}") from None


def _early_int(value: Any, data_type: str) -> int:
    limits = np.iinfo(data_type)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not limits.min <= value <= limits.max:
        raise ValueError
    return value


def _early_float(value: Any, data_type: str) -> float:
    if isinstance(value, str) and value.startswith("0x"):
        size = int(data_type.removeprefix("float")) // 8
        code = {2: ">e", 4: ">f", 8: ">d"}[size]
        return float(struct.unpack(code, int(value, 16).to_bytes(size, "big"))[0])
    if isinstance(value, str):
        if value not in _SPECIAL_FLOATS:
            raise ValueError
        return _SPECIAL_FLOATS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


def _early_complex(value: Any, data_type: str) -> list[float]:
    real, imaginary = value
    part = "float32" if data_type == "complex64" else "float64"
    return [_early_float(real, part), _early_float(imaginary, part)]


def _early_exact(value: Any, data_type: str) -> bool | str:
    if not isinstance(value, bool if data_type == "bool" else str):
        raise TypeError
    return value


def _early_bytes(value: Any, _data_type: str) -> list[int]:
    if not isinstance(value, list):
        raise TypeError
    return list(bytes(value))


_FILL_READERS: dict[str, Callable[[Any, str], Any]] = {
    "bool": _early_exact,
    "string": _early_exact,
    "bytes": _early_bytes,
    "int": _early_int,
    "uint": _early_int,
    "float": _early_float,
    "complex": _early_complex,
}


@lru_cache(maxsize=4096)
def _parsed(document: bytes) -> ArrayDocument | None:
    parsed = parse_node(document, rectilinear=True)
    return parsed if isinstance(parsed, ArrayDocument) else None


def array_document(node: Node) -> ArrayDocument:
    """Shape and chunk grid of an array from its `zarr.json`."""
    parsed = _parsed(node.user_data)
    if parsed is None:
        raise FormatError(
            f"{node.path} is stored as an array but its `zarr.json` is that of a group"
        )
    return parsed


def in_grid(node: Node, index: Index) -> bool:
    """Whether `index` is inside the chunk grid."""
    counts = array_document(node).num_chunks
    return len(index) == len(counts) and all(
        number < count for number, count in zip(index, counts, strict=True)
    )


def node_from_document(
    identity: NodeId,
    path: str,
    document: bytes,
    manifests: tuple[ManifestRef, ...] = (),
    *,
    rectilinear: bool = False,
) -> Node:
    """The node for a document; raises for documents that cannot be served.

    Chunks of different sizes (`rectilinear`) can be stored in generation `2` only.
    """
    parsed = parse_node(document, rectilinear=rectilinear)
    if not isinstance(parsed, ArrayDocument):
        return Node(identity, path, document)
    shape = tuple(
        Dimension(length, chunk, count)
        for length, chunk, count in zip(
            parsed.shape, parsed.chunk_shape, parsed.num_chunks, strict=True
        )
    )
    return Node(identity, path, document, ArrayData(shape, parsed.dimension_names, manifests))
