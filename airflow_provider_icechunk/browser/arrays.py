"""One array: its metadata, the map of its chunks, its coverage, and the location of a cell."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.api import Repository, Session
from airflow_provider_icechunk.engine.format.chunk_refs import (
    ETag,
    Inline,
    LastModified,
    Native,
    RefKind,
    Virtual,
)
from airflow_provider_icechunk.engine.format.model import Node
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document
from airflow_provider_icechunk.engine.history.versions import listed
from airflow_provider_icechunk.engine.pipelines.versions import find_version
from airflow_provider_icechunk.engine.tree.chunk_map import binned, cells_of_all, sides_of
from airflow_provider_icechunk.exceptions import IcechunkError, InvalidInputError, Kind

from .contents import VersionDifferences, data_type
from .models import ArrayFacts, AxisFacts, Cell, ChunkKinds, ChunkMap, as_json, cut, cut_value

_MOST_CELLS = 256
"""Cells along each side of a chunk map; more chunks share a cell."""
_ITEM_SIZES = {"bool": 1, "complex64": 8, "complex128": 16}
_TEXTS = ("string", "fixed_length_utf32", "null_terminated_bytes", "variable_length_utf8")


def open_version(repository: Repository, version: str) -> Session:
    """A session on a version given by name."""
    core = repository.core
    # Only the requested part of a large tree is decoded.
    base = core.objects.snapshot_header(listed(core, find_version(repository, version)))
    return Session(core, base)


def find_array(session: Session, path: str) -> Node:
    """The array at a path."""
    return session.tree.array("/" + path.strip("/"))


def document_of(node: Node) -> dict[str, Any]:
    """The `zarr.json` of a node."""
    found: dict[str, Any] = json.loads(node.user_data)
    return found


def attributes_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes in a `zarr.json`; anything but an object counts as none."""
    found = document.get("attributes")
    return found if isinstance(found, dict) else {}


def item_size(document: Mapping[str, Any]) -> int:
    """Bytes of one value; texts count as 16."""
    given = document.get("data_type")
    name = data_type(given)
    if isinstance(given, Mapping):
        settings = given.get("configuration")
        length = settings.get("length_bytes") if isinstance(settings, Mapping) else None
        if type(length) is int and 0 < length < 1 << 31:
            return length
    if name in _ITEM_SIZES:
        return _ITEM_SIZES[name]
    digits = name.lstrip("abcdefghijklmnopqrstuvwxyz_.")
    return int(digits) // 8 if digits in ("8", "16", "32", "64", "128") else 16


def axes_of(session: Session, node: Node) -> list[AxisFacts]:
    """The dimensions of an array, with the information from their coordinates."""
    document = array_document(node)
    axes = []
    for number, length in enumerate(document.shape):
        name = (document.dimension_names or [None] * len(document.shape))[number]
        coordinate = None if name is None else find_coordinate(session, node, name, length)
        about = {} if coordinate is None else attributes_of(document_of(coordinate))
        axes.append(
            AxisFacts(
                name=cut(name, 200) if name else f"dim {number}",
                length=length,
                chunk=document.chunk_shape[number],
                chunks=document.num_chunks[number],
                units=text_of(about, "units"),
                long_name=text_of(about, "long_name") or text_of(about, "standard_name"),
                coordinate=None if coordinate is None else coordinate.path,
            )
        )
    return axes


def find_coordinate(session: Session, node: Node, name: str, length: int) -> Node | None:
    """The one-dimensional array with the labels of a dimension, beside the array or above it."""
    if not name or "/" in name:
        return None
    group = node.path
    while group:
        group = group.rpartition("/")[0]
        found = session.tree.node(f"{group}/{name}")
        if found is not None and found.array is not None:
            return found if array_document(found).shape == (length,) else None
    return None


def text_of(attributes: Mapping[str, Any], name: str) -> str | None:
    """An attribute, if it is a text."""
    found = attributes.get(name)
    return cut(found, 300) if isinstance(found, str) and found else None


def read_array(repository: Repository, version: str, path: str) -> ArrayFacts:
    """The metadata of an array, and its chunks by kind where their manifests can be read."""
    session = open_version(repository, version)
    node = find_array(session, path)
    document = document_of(node)
    codecs = document.get("codecs")
    kinds, unknown = None, None
    try:
        kinds = _kinds(session, node)
    except IcechunkError as error:
        unknown = error.message
    shape = array_document(node).shape
    return ArrayFacts(
        snapshot_id=session.snapshot_id,
        path=node.path,
        data_type=data_type(document.get("data_type")),
        axes=axes_of(session, node),
        fill_value=cut(str(document.get("fill_value")), 100),
        codecs=[as_json(one) for one in codecs[:20] if isinstance(one, Mapping)]
        if isinstance(codecs, list)
        else [],
        attributes=as_json(attributes_of(document)),
        logical_bytes=math.prod(shape) * item_size(document),
        chunks=kinds,
        chunks_unknown=unknown,
        drawable=drawable(document, shape),
    )


def drawable(document: Mapping[str, Any], shape: Sequence[int]) -> Any:
    """How the values of an array are shown."""
    name = data_type(document.get("data_type"))
    if 0 in shape:
        return "none"
    if not shape:
        return "value"
    if name in _TEXTS or name.startswith(("variable", "string", "fixed_length", "null_term")):
        return "table"
    return "line" if len(shape) == 1 else "image"


def _kinds(session: Session, node: Node) -> ChunkKinds:
    refs = session.tree.references(node)
    whole = math.prod(array_document(node).num_chunks)
    count = {kind: int((refs.kind == kind).sum()) for kind in RefKind}
    return ChunkKinds(
        inline=count[RefKind.INLINE],
        native=count[RefKind.NATIVE],
        virtual=count[RefKind.VIRTUAL],
        missing=max(0, whole - len(refs)),
        stored_bytes=int(refs.length.sum()),
    )


def read_chunk_map(
    repository: Repository,
    version: str,
    path: str,
    against: str | None,
    differences: VersionDifferences,
    *,
    rows: int | None = None,
    columns: int | None = None,
) -> ChunkMap:
    """Which chunks exist and which were written, over two dimensions of the grid.

    Chunks of the other dimensions, and neighbours on a large grid, share a cell.
    """
    session = open_version(repository, version)
    node = find_array(session, path)
    grid = array_document(node).num_chunks
    other = differences.against(repository, session.tree.base, against)
    down, across = _sides(grid, rows, columns)
    refs = session.tree.references(node)
    changed = np.zeros((0, len(grid)), np.uint32)
    if other is not None:
        found = differences.between(repository, other, session.snapshot_id)
        changed = found.chunks.get(node.path, changed)
    changed = changed[(changed < np.asarray(grid, np.int64)).all(axis=1)]
    sides = (1 if down is None else grid[down], 1 if across is None else grid[across])
    height, width = (min(side, _MOST_CELLS) for side in sides)
    whole = cells_of_all(grid, down, across, height, width)
    present = binned(refs.index, grid, down, across, height, width)
    names = array_document(node).dimension_names
    axis_name = [
        None if axis is None else cut((names[axis] if names else None) or f"dim {axis}", 200)
        for axis in (down, across)
    ]
    return ChunkMap(
        snapshot_id=session.snapshot_id,
        against=other,
        rows=height,
        columns=width,
        row_axis=axis_name[0],
        column_axis=axis_name[1],
        grid=list(sides),
        present=_shares(present, whole),
        changed=_shares(binned(changed, grid, down, across, height, width), whole),
        coverage=len(refs) / max(1, math.prod(grid)),
        chunks=len(refs),
        chunks_changed=len(changed),
    )


def _sides(
    grid: Sequence[int], rows: int | None, columns: int | None
) -> tuple[int | None, int | None]:
    """The two dimensions of a map: the requested ones, or the two with the most chunks."""
    for axis in (rows, columns):
        if axis is not None and not 0 <= axis < len(grid):
            raise InvalidInputError(
                f"the array has {len(grid)} dimensions, but no dimension {axis}"
            )
    if rows is not None and rows == columns:
        raise InvalidInputError("rows and columns are the same dimension")
    if rows is not None or columns is not None:
        return rows, columns
    return sides_of(grid)


def _shares(found: NDArray[np.int64], whole: NDArray[np.float64]) -> str:
    """One byte for each cell; a cell with anything in it is never shown as empty."""
    share = np.where(found > 0, np.clip(np.ceil(found * 255 / np.maximum(whole, 1)), 1, 255), 0)
    return base64.b64encode(share.astype(np.uint8).tobytes()).decode()


def chunk_place(session: Session, node: Node, index: Sequence[int]) -> dict[str, Any]:
    """The chunk of a cell, and where that chunk is stored."""
    document = array_document(node)
    if document.chunk_counts is not None:
        raise InvalidInputError(
            "the chunks of this array have different lengths", kind=Kind.INVALID_METADATA
        )
    chunk = tuple(at // size for at, size in zip(index, document.chunk_shape, strict=True))
    payload = session.tree.chunk(node.path, chunk)
    layout = session.tree.core.refs.layout
    facts: dict[str, Any] = {"kind": "missing"}
    match payload:
        case Inline(data):
            facts = {"kind": "inline", "length": len(data)}
        case Native(identity, offset, length):
            name = layout.chunk(identity)
            facts = {"kind": "native", "file": name, "offset": offset, "length": length}
        case Virtual(location, offset, length, checksum):
            facts = {"kind": "virtual", "file": cut(location, 1000), "offset": offset}
            facts["length"] = length
            match checksum:
                case ETag(value):
                    facts["checksum"] = cut(f"ETag {value}", 300)
                case LastModified(seconds):
                    facts["checksum"] = f"not modified after {seconds}"
    return {"chunk": list(chunk), **facts}


def cell_of(
    session: Session, node: Node, index: Sequence[int], value: object, labels: dict[str, str]
) -> Cell:
    """One value with its location."""
    return Cell(
        value=cut(str(cut_value(value)), 1000),
        index=list(index),
        labels=labels,
        **chunk_place(session, node, index),
    )
