"""Kerchunk references as virtual chunks: its JSON files, Parquet folders and mappings.

They describe arrays in Zarr 2 form; arrays are created in Zarr 3 form, with the same codecs. So
every format that Kerchunk supports, such as NetCDF3, can be referenced, as long as its chunks can
be decoded by codecs of Zarr 3.
"""

from __future__ import annotations

import base64
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BytesCodec

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Inline, concatenate
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.virtual.sources import ChecksumKind, location_of
from airflow_provider_icechunk.engine.zarr_store.virtual_refs import columns
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    InvalidInputError,
    Kind,
    UnsupportedError,
)

from .contents import for_xarray

_DOCUMENTS = (".zgroup", ".zarray", ".zattrs", ".zmetadata")
_DIMENSIONS = "_ARRAY_DIMENSIONS"
_TEMPLATE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_BASE64 = "base64:"
_ARRAY_FILTERS = frozenset(
    {"astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize"}
)
_BYTE_FILTERS = frozenset(
    {"adler32", "blosc", "bz2", "crc32", "fletcher32", "gzip", "lz4", "lzma", "shuffle", "zlib"}
    | {"zstd"}
)
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_WHOLE = (0, 0)
"""Offset and length of a reference to a whole file."""


@dataclass(frozen=True, slots=True, eq=False)
class ArrayReferences:
    """Where the chunks of one array are."""

    index: NDArray[np.uint32]
    locations: Sequence[str]
    ranges: NDArray[np.uint64]
    """Offset and length of each; both are 0 for a whole file."""
    inline: Mapping[tuple[int, ...], bytes] = field(default_factory=dict)
    """Chunks that are in the references themselves."""


@dataclass(frozen=True, slots=True)
class ReferenceSet:
    """Documents of Zarr 2 by key, and the references of each array by its path."""

    documents: Mapping[str, Any]
    arrays: Mapping[str, ArrayReferences]


def refer_to_kerchunk(
    session: Session,
    references: str | Path | Mapping[str, Any],
    variables: Sequence[str] | None = None,
    *,
    into: str = "",
    checksum: ChecksumKind | None = "auto",
) -> int:
    """Create the arrays of a Kerchunk reference set and refer to their chunks; returns how many.

    Nothing is committed. The repository must declare virtual chunk containers that cover the
    files, and be opened with access to them.

    :param references: a JSON file, a Parquet folder, or the mapping that Kerchunk returns.
    :param variables: paths of the arrays to include; by default all.
    :param into: a group for everything.
    :param checksum: what shows later that a file has changed, its entity tag or its time, for which
        each file is asked once; `None` trusts files never to change.
    """
    found = read_references(references)
    wanted = sorted(found.arrays) if variables is None else [one.strip("/") for one in variables]
    missing = [one for one in wanted if one not in found.arrays]
    if missing:
        raise InvalidInputError(
            f"there is no array {missing[0]!r}; there are {sorted(found.arrays)}"
        )
    planned = {path: _planned(path, found.documents) for path in wanted}
    root = zarr.open_group(session.store, mode="a")
    _create_groups(root, found.documents, wanted, into)
    files = _Files(session, checksum)
    total = 0
    for path, description in planned.items():
        target = "/".join(filter(None, (into.strip("/"), path)))
        refs = ChunkRefs.of(concatenate(list(_references(found.arrays[path], files))))
        _create(root, target, description)
        if len(refs):
            session.tree.put_references(f"/{target}", refs)
        total += len(refs)
    return total


def read_references(references: str | Path | Mapping[str, Any]) -> ReferenceSet:
    """A reference set in any of its forms."""
    if isinstance(references, Mapping):
        return parse_references(references)
    path = Path(references)
    if path.is_dir():
        return _read_parquet(path)
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InvalidInputError(f"there are no references in {path}: no such file") from None
    except ValueError as error:
        raise InvalidInputError(f"{path} is not a Kerchunk JSON file: {error}") from None
    if not isinstance(document, Mapping):
        raise InvalidInputError(f"{path} is not a Kerchunk JSON file: it has no references")
    return parse_references(document)


def parse_references(document: Mapping[str, Any]) -> ReferenceSet:
    """A mapping from keys to references, alone or below `refs`. Pure."""
    if document.get("gen"):
        raise UnsupportedError(
            "the references have generated keys (`gen`): let Kerchunk or fsspec expand them first"
        )
    templates = {str(name): str(text) for name, text in (document.get("templates") or {}).items()}
    refs = document.get("refs", document)
    documents: dict[str, Any] = {}
    chunks: dict[str, dict[str, Any]] = {}
    for key, value in refs.items():
        path, _, leaf = key.rpartition("/")
        if leaf in _DOCUMENTS:
            documents[key] = json.loads(value) if isinstance(value, str | bytes) else value
        elif leaf != "zarr.json":
            chunks.setdefault(path, {})[leaf] = value
        else:
            raise UnsupportedError(
                f"{key}: references to Zarr 3 are not supported; Kerchunk writes Zarr 2"
            )
    arrays = {
        path: _of_keys(path, chunks, documents[key], templates)
        for key in documents
        for path, _, leaf in [key.rpartition("/")]
        if leaf == ".zarray"
    }
    return ReferenceSet(documents, arrays)


def _of_keys(
    path: str,
    chunks: Mapping[str, Mapping[str, Any]],
    document: Mapping[str, Any],
    templates: Mapping[str, str],
) -> ArrayReferences:
    rank = len(document["shape"])
    nested = document.get("dimension_separator", ".") == "/" and rank > 1
    found = _nested(path, chunks) if nested else chunks.get(path, {})
    index, locations, ranges = [], [], []
    inline: dict[tuple[int, ...], bytes] = {}
    for key, value in found.items():
        place = _place(f"{path}/{key}", key.split("/" if nested else "."), rank)
        if isinstance(value, str | bytes):
            inline[place] = _inlined(value)
            continue
        location, offset, length = (*value, *_WHOLE) if len(value) == 1 else value
        index.append(place)
        locations.append(_expanded(location, templates))
        ranges.append((offset, length))
    return ArrayReferences(
        np.array(index, np.uint32).reshape(len(index), rank),
        locations,
        np.array(ranges, np.uint64).reshape(len(ranges), 2),
        inline,
    )


def _nested(path: str, chunks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        f"{folder[len(path) :].strip('/')}/{leaf}".strip("/"): value
        for folder, found in chunks.items()
        if folder == path or folder.startswith(f"{path}/")
        for leaf, value in found.items()
    }


def _place(key: str, parts: list[str], rank: int) -> tuple[int, ...]:
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidInputError(f"{key!r} is neither a document nor a chunk in Zarr 2")
    if not rank and parts == ["0"]:
        return ()
    if len(parts) != rank:
        raise InvalidInputError(f"the chunk {key!r} has {len(parts)} numbers, its array {rank}")
    return tuple(map(int, parts))


def _inlined(value: str | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    return base64.b64decode(value[len(_BASE64) :]) if value.startswith(_BASE64) else value.encode()


def _expanded(location: str, templates: Mapping[str, str]) -> str:
    def text(found: re.Match[str]) -> str:
        if found[1] not in templates:
            raise InvalidInputError(
                f"the references use a template {found[1]!r} that they do not define"
            )
        return templates[found[1]]

    whole = _TEMPLATE.sub(text, location)
    if "{{" in whole:
        raise UnsupportedError(f"the template in {location[:200]!r} is not a plain name")
    return location_of(whole.replace("gcs://", "gs://", 1) if whole.startswith("gcs://") else whole)


def _read_parquet(folder: Path) -> ReferenceSet:
    """A folder: `.zmetadata`, and for each array files with a fixed number of references each."""
    import pyarrow.parquet as pq

    try:
        stored = json.loads((folder / ".zmetadata").read_bytes())
        documents, record = stored["metadata"], int(stored["record_size"])
    except (OSError, ValueError, KeyError) as error:
        raise InvalidInputError(f"{folder} is not a Kerchunk Parquet folder: {error!r}") from None
    arrays = {}
    for key, document in documents.items():
        path, _, leaf = key.rpartition("/")
        if leaf != ".zarray":
            continue
        grid = [
            -(-length // chunk)
            for length, chunk in zip(document["shape"], document["chunks"], strict=True)
        ]
        parts = [
            _of_table(pq.read_table(file).to_pydict(), int(file.name.split(".")[1]) * record, grid)
            for file in sorted((folder / path).glob("refs.*.parq"))
        ]
        arrays[path] = _joined(parts, len(grid))
    return ReferenceSet(documents, arrays)


def _of_table(table: Mapping[str, list[Any]], first: int, grid: Sequence[int]) -> ArrayReferences:
    """References of one file: the row says which chunk, counted in row-major order."""
    rows = len(table["path"])
    raw = table.get("raw") or [None] * rows
    chunks = math.prod(grid)
    kept = [n for n, one in enumerate(table["path"]) if one and first + n < chunks]
    numbers = np.array([first + n for n in kept], np.intp)
    places = np.stack(np.unravel_index(numbers, tuple(grid) or (1,)), axis=1)
    inline = {
        tuple(map(int, np.unravel_index(first + n, grid))) if grid else (): bytes(one)
        for n, one in enumerate(raw)
        if one is not None and first + n < chunks
    }
    return ArrayReferences(
        places[:, : len(grid)].astype(np.uint32),
        [_expanded(table["path"][n], {}) for n in kept],
        np.array(
            [(table["offset"][n] or 0, table["size"][n] or 0) for n in kept], np.uint64
        ).reshape(len(kept), 2),
        inline,
    )


def _joined(parts: Sequence[ArrayReferences], rank: int) -> ArrayReferences:
    return ArrayReferences(
        np.concatenate([np.zeros((0, rank), np.uint32), *(one.index for one in parts)]),
        [location for one in parts for location in one.locations],
        np.concatenate([np.zeros((0, 2), np.uint64), *(one.ranges for one in parts)]),
        {place: data for one in parts for place, data in one.inline.items()},
    )


class _Files:
    """What is known about the files; each is queried once."""

    def __init__(self, session: Session, checksum: ChecksumKind | None) -> None:
        self.reader = session.virtual
        self.checksum = checksum
        self._known: dict[str, Any] = {}

    def describe(self, location: str) -> Any:
        """The state of a file."""
        if location not in self._known:
            self._known[location] = self.reader.describe(location)
        return self._known[location]


def _references(found: ArrayReferences, files: _Files) -> Iterator[ChunkRefs]:
    """The references of one array, file by file."""
    rank = found.index.shape[1]
    yield ChunkRefs.from_items(
        rank, [(place, Inline(data)) for place, data in found.inline.items()]
    )
    names = {name: number for number, name in enumerate(dict.fromkeys(found.locations))}
    which = np.fromiter(map(names.__getitem__, found.locations), np.int64, len(found.locations))
    for location, number in names.items():
        files.reader.validate_location(location)
        rows = which == number
        ranges = found.ranges[rows]
        whole = (ranges == _WHOLE).all(axis=1)
        if whole.any():
            ranges[whole, 1] = files.describe(location).size
        kind = files.checksum
        yield columns(
            found.index[rows],
            [location] * int(rows.sum()),
            ranges[:, 0],
            ranges[:, 1],
            None if kind is None else files.describe(location).checksum(kind),
        )


@dataclass(frozen=True, slots=True)
class _Description:
    """An array of Zarr 2 in the terms of Zarr 3."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    filters: list[Any]
    compressors: list[Any]
    fill: Any
    dimensions: tuple[str, ...] | None
    attributes: dict[str, Any]


def _planned(path: str, documents: Mapping[str, Any]) -> _Description:
    document = documents[f"{path}/.zarray"]
    attributes = dict(documents.get(f"{path}/.zattrs") or {})
    problem = None
    if document.get("zarr_format") != 2:
        problem = "it is not described as Zarr 2 does"
    elif not isinstance(document["dtype"], str) or np.dtype(document["dtype"]).kind not in "biufc":
        problem = f"values of type {document['dtype']} have no counterpart in Zarr 3"
    elif document.get("order", "C") != "C" and len(document["shape"]) > 1:
        problem = "its chunks are in the order of Fortran"
    if problem:
        raise UnsupportedError(
            f"{path!r} cannot be referred to: {problem}; choose others with `variables`"
        )
    dtype = np.dtype(document["dtype"])
    filters, compressors = _codecs(path, document)
    dimensions = attributes.pop(_DIMENSIONS, None)
    fill = document.get("fill_value")
    if fill is not None:
        fill = _SPECIAL.get(fill, fill)
        # Zarr 2 has one value for missing cells and missing chunks; Zarr 3 has two.
        attributes.setdefault("_FillValue", fill)
    return _Description(
        tuple(document["shape"]),
        tuple(max(1, length) for length in document["chunks"]),
        dtype,
        filters,
        compressors,
        dtype.type(0 if fill is None else fill),
        None if dimensions is None else tuple(dimensions),
        for_xarray(attributes, dtype),
    )


def _codecs(path: str, document: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    filters: list[Any] = []
    compressors: list[Any] = []
    for one in (*(document.get("filters") or ()), document.get("compressor")):
        if one is None:
            continue
        name = one["id"]
        made = {
            "name": f"numcodecs.{name}",
            "configuration": {key: value for key, value in one.items() if key != "id"},
        }
        if name in _ARRAY_FILTERS and not compressors:
            filters.append(made)
        elif name in _BYTE_FILTERS:
            compressors.append(made)
        else:
            raise UnsupportedError(
                f"{path!r} cannot be referred to: no codec of Zarr 3 decodes {name!r}; choose "
                "others with `variables`, or copy its values from the file"
            )
    return filters, compressors


def _create_groups(
    root: zarr.Group, documents: Mapping[str, Any], wanted: Sequence[str], into: str
) -> None:
    """Groups above the arrays, with the attributes that they have in the references."""
    above = {"", *(path.rpartition("/")[0] for path in wanted)}
    for group in sorted({part for one in above for part in _and_above(one)}):
        target = "/".join(filter(None, (into.strip("/"), group)))
        node = root.require_group(target) if target else root
        attributes = documents.get(f"{group}/.zattrs".lstrip("/")) or {}
        if not dict(node.attrs):
            node.attrs.update(attributes)


def _and_above(path: str) -> Iterator[str]:
    parts = path.split("/") if path else []
    yield from ("/".join(parts[:count]) for count in range(len(parts) + 1))


def _create(root: zarr.Group, path: str, description: _Description) -> None:
    if path in root:
        raise AlreadyExistsError(
            f"{path} already exists; choose another group with `into`", kind=Kind.NODE_EXISTS
        )
    dtype = description.dtype
    endian = "big" if dtype.byteorder == ">" else "little"
    with warnings.catch_warnings():
        # Zarr warns about codecs outside its specification; there are no others for Zarr 2.
        warnings.simplefilter("ignore")
        root.create_array(
            path,
            shape=description.shape,
            chunks=description.chunks,
            dtype=dtype,
            filters=description.filters or None,
            serializer=BytesCodec(endian=endian if dtype.itemsize > 1 else None),
            compressors=description.compressors or None,
            fill_value=description.fill,
            dimension_names=description.dimensions,
            attributes=description.attributes,
        )
