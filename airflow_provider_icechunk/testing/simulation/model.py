"""The effect of commits on arrays, in plain bytes: the model that a repository is compared with.

A tree of the model has, for each array, its attributes and its cells. A commit is a list of edits;
the state of a snapshot is that of its parent after the edits of its commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_icechunk.engine.format.chunk_refs import Inline, Payload
from airflow_provider_icechunk.engine.objects.chunk_reader import Wanted
from airflow_provider_icechunk.engine.sessions.session import Session

CHUNK = 600
"""Cells of a chunk, one byte each: more than what is stored inline."""
GROUP = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()


@dataclass(frozen=True, slots=True)
class CellValues:
    """Set all cells from `start` up to `stop` to one value; an array that is too short grows."""

    path: str
    start: int
    stop: int
    value: int


@dataclass(frozen=True, slots=True)
class Add:
    """Read a cell, and write its value plus one."""

    path: str
    cell: int


@dataclass(frozen=True, slots=True)
class Label:
    """Set an attribute."""

    path: str
    key: str
    value: int


@dataclass(frozen=True, slots=True)
class Erase:
    """Delete an array."""

    path: str


Edit = CellValues | Add | Label | Erase


@dataclass(frozen=True, slots=True)
class Array:
    """An array of the model."""

    attributes: Mapping[str, Any]
    cells: bytes


State = Mapping[str, Array]
"""Arrays by path."""


def after(state: State, edits: Sequence[Edit]) -> State:
    """The state after a commit. Pure."""
    arrays = dict(state)
    for edit in edits:
        if isinstance(edit, Erase):
            arrays.pop(edit.path, None)
            continue
        array = arrays.get(edit.path) or Array({}, bytes(CHUNK))
        match edit:
            case CellValues(_, start, stop, value):
                cells = bytearray(array.cells.ljust(_whole(stop), b"\0"))
                cells[start:stop] = bytes([value]) * (stop - start)
                array = Array(array.attributes, bytes(cells))
            case Add(_, cell):
                cells = bytearray(array.cells)
                cells[cell] = (cells[cell] + 1) % 256
                array = Array(array.attributes, bytes(cells))
            case Label(_, key, value):
                array = Array({**array.attributes, key: value}, array.cells)
        arrays[edit.path] = array
    return arrays


def perform(session: Session, edits: Sequence[Edit]) -> None:
    """Apply the same edits in a session, as a program without Zarr would."""
    for edit in edits:
        if isinstance(edit, Erase):
            session.tree.delete(edit.path)
            continue
        _ensure(session, edit)
        match edit:
            case CellValues(path, start, stop, value):
                with session.recording({path: [(start, stop)]}):
                    for number in range(start // CHUNK, -(-stop // CHUNK)):
                        first = number * CHUNK
                        low, high = max(start, first) - first, min(stop, first + CHUNK) - first
                        data = bytearray(
                            b"" if (low, high) == (0, CHUNK) else _read(session, path, number)
                        )
                        data = data or bytearray(CHUNK)
                        data[low:high] = bytes([value]) * (high - low)
                        session.tree.put_chunk(path, (number,), bytes(data))
            case Add(path, cell):
                number, place = divmod(cell, CHUNK)
                data = bytearray(_read(session, path, number))
                data[place] = (data[place] + 1) % 256
                session.tree.put_chunk(path, (number,), bytes(data))
            case Label():
                pass


def seen(session: Session) -> State:
    """What a reader sees."""
    found: dict[str, Array] = {}
    for node in session.tree.nodes():
        if node.array is None:
            continue
        document = json.loads(node.user_data)
        cells = bytearray(document["shape"][0])
        refs = session.tree.references(node)
        wanted = [
            _wanted(payload) for payload in (refs[row] for row in range(len(refs))) if payload
        ]
        for row, data in enumerate(session.tree.read(wanted)):
            first = int(refs.index[row][0]) * CHUNK
            cells[first : first + CHUNK] = data
        found[node.path] = Array(document.get("attributes", {}), bytes(cells))
    return found


def difference(expected: State, found: State) -> str | None:
    """A description of how two states differ; `None` if they do not."""
    if expected.keys() != found.keys():
        return f"arrays are {sorted(found)}, not {sorted(expected)}"
    for path, array in expected.items():
        other = found[path]
        if dict(array.attributes) != dict(other.attributes):
            return f"attributes of {path} are {other.attributes}, not {array.attributes}"
        if len(array.cells) != len(other.cells):
            return f"{path} has {len(other.cells)} cells, not {len(array.cells)}"
        if array.cells == other.cells:
            continue
        for cell, (ours, theirs) in enumerate(zip(array.cells, other.cells, strict=True)):
            if ours != theirs:
                return f"cell {cell} of {path} is {theirs}, not {ours}"
    return None


def document(length: int, attributes: Mapping[str, Any]) -> bytes:
    """The `zarr.json` of an array of the model."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [length],
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [CHUNK]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            "attributes": dict(attributes),
        }
    ).encode()


def _ensure(session: Session, edit: CellValues | Add | Label) -> None:
    node = session.tree.node(edit.path)
    fields = None if node is None else json.loads(node.user_data)
    length = CHUNK if fields is None else int(fields["shape"][0])
    attributes = {} if fields is None else dict(fields.get("attributes", {}))
    wanted = max(length, _whole(edit.stop)) if isinstance(edit, CellValues) else length
    labelled = {**attributes, edit.key: edit.value} if isinstance(edit, Label) else attributes
    if fields is None or wanted != length or labelled != attributes:
        session.tree.put_document(edit.path, document(wanted, labelled))


def _whole(cells: int) -> int:
    return -(-cells // CHUNK) * CHUNK


def _read(session: Session, path: str, number: int) -> bytes:
    payload = session.tree.chunk(path, (number,))
    return bytes(CHUNK) if payload is None else session.tree.read([_wanted(payload)])[0]


def _wanted(payload: Payload) -> Wanted:
    length = len(payload.data) if isinstance(payload, Inline) else payload.length
    return Wanted(payload, 0, length)
