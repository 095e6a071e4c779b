"""The codec of `draft`, its keys and its node documents.

Fill values, codec configurations and attributes are JSON in binary columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs
from airflow_provider_icechunk.engine.format.codec import DEFAULT_LIMITS, Limits
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import AttributesId, ManifestId, SnapshotId
from airflow_provider_icechunk.engine.format.legacy.attributes import AttributeFiles, Rows
from airflow_provider_icechunk.engine.format.model import (
    Manifest,
    ManifestFile,
    Node,
    Snapshot,
    TransactionLog,
    in_order,
)
from airflow_provider_icechunk.engine.format.wire import json as js
from airflow_provider_icechunk.engine.format.zarr_metadata import (
    MAX_DOCUMENT,
    MAX_RANK,
    ArrayDocument,
    parse_node,
)
from airflow_provider_icechunk.exceptions import (
    FormatError,
    InvalidInputError,
    Kind,
    UnsupportedError,
)

from .layout import DraftLayout
from .state import StateEntry


class DraftCodec:
    """Files of generation `draft` to values and back.

    Message, time and parent of a snapshot are in the state file: `entry` returns what it lists; its
    second argument says whether to read the file again. `layout` records the names that other
    software gave to files.
    """

    generation = Generation.DRAFT

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        entry: Callable[[SnapshotId, bool], StateEntry | None] = lambda _identity, _again: None,
        attributes: AttributeFiles | None = None,
        layout: DraftLayout | None = None,
    ) -> None:
        self._layout = layout or DraftLayout()
        self._limits = limits
        self._attributes = attributes or AttributeFiles()
        self._entry = entry

    def decode_snapshot(self, data: bytes, expected: SnapshotId, *, where: str) -> Snapshot:
        """The snapshot in the file `where`, combined with its entry in the state file."""
        limit = self._limits.other_bytes
        with Purse(len(data), where=where) as purse:
            reading = self._attributes.reading(self._decode_attributes, purse)
            structure = _structures().decode_structure(
                data, self._layout, where=where, limit=limit, outside=reading
            )
        self._attributes.finish(expected, reading)
        facts, entry = structure.facts, self._entry(expected, structure.facts is None)
        if facts is not None and facts.id != expected:
            raise FormatError(f"{where}: says it is snapshot {facts.id.hex()}")
        nodes = structure.nodes
        used = {ref.id for node in nodes if node.array for ref in node.array.manifests}
        files = {identity: ManifestFile(identity, 0, 0) for identity in sorted(used)}
        if entry is not None:
            exact = facts is not None and facts.flushed_at // 1000 == entry.timestamp_ms
            return Snapshot(
                id=expected,
                parent_id=entry.parent,
                flushed_at=facts.flushed_at if facts and exact else entry.timestamp_ms * 1000,
                message=entry.message,
                metadata=entry.metadata,
                nodes=in_order(nodes),
                manifest_files=files,
                attribute_files=reading.files,
            )
        if facts is None:
            raise FormatError(f"{where}: neither the file nor the state says which snapshot it is")
        return Snapshot(
            id=expected,
            parent_id=facts.parent,
            flushed_at=facts.flushed_at,
            message=facts.message,
            metadata=facts.metadata,
            nodes=in_order(nodes),
            manifest_files=files,
            attribute_files=reading.files,
        )

    def encode_snapshot(self, snapshot: Snapshot, *, level: int) -> bytes:
        """A whole structure file."""
        writing = self._attributes.writing(snapshot.id, snapshot.parent_id)
        data: bytes = _structures().encode_structure(snapshot, self._layout, writing, level=level)
        self._attributes.finish(
            snapshot.id, writing, lambda _, rows: _structures().encode_attributes(rows, level=level)
        )
        return data

    def _decode_attributes(self, data: bytes, expected: AttributesId, where: str) -> Rows:
        del expected
        limit = self._limits.other_bytes
        with Purse(len(data), where=where) as purse:
            rows: Rows = _structures().decode_attributes(
                data, where=where, limit=limit, memory=purse
            )
        return rows

    def decode_manifest(self, data: bytes, expected: ManifestId, *, where: str) -> Manifest:
        """The inventory in the file `where`; the file holds no id that could be checked."""
        limit = self._limits.manifest_bytes
        with Purse(len(data), where=where) as purse:
            manifest: Manifest = _inventories().decode_inventory(
                data, expected, self._layout.chunk_files, where=where, limit=limit, memory=purse
            )
        return manifest

    def encode_manifest(self, manifest: Manifest, *, level: int) -> bytes:
        """A whole inventory file. Erased rows must have been removed."""
        data: bytes = _inventories().encode_inventory(
            manifest, self._layout.chunk_files, level=level
        )
        return data

    def decode_log(self, data: bytes, expected: SnapshotId, *, where: str) -> TransactionLog:
        """Refused: there are no transaction logs."""
        del data, expected
        raise UnsupportedError(f"{where}: generation `draft` has no transaction logs")

    def encode_log(self, log: TransactionLog, *, level: int) -> bytes:
        """Refused: there are no transaction logs."""
        del log, level
        raise UnsupportedError("generation `draft` has no transaction logs")

    def check_node(self, node: Node) -> None:
        """Refuse what a row has no place for."""
        _structures().check_node(node)

    def check_references(self, refs: ChunkRefs) -> None:
        """Refuse what a row has no place for."""
        _inventories().check_references(refs)


def _structures() -> ModuleType:
    try:
        from . import structures
    except ImportError:
        raise _needs_pyarrow() from None
    return structures


def _inventories() -> ModuleType:
    try:
        from . import inventories
    except ImportError:
        raise _needs_pyarrow() from None
    return inventories


def _needs_pyarrow() -> UnsupportedError:
    return UnsupportedError(
        "repositories of generation `draft` are Parquet files: install pyarrow to open them"
    )


TOP = (1 << 16) - 1
"""The largest number that the columns of sides, chunk lengths and extents can hold."""

_MEMBERS = {
    "zarr_format",
    "node_type",
    "attributes",
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
    "storage_transformers",
    "dimension_names",
}


def from_zarr_json(document: bytes) -> tuple[dict[str, Any] | None, bytes | None]:
    """Array metadata (`None` for a group) and attributes; refuses what has no column."""
    node = parse_node(document)
    fields = json.loads(document)
    attributes = fields.get("attributes")
    inline = None if attributes is None else js.dump(attributes, "the attributes")
    homeless = [name for name, value in fields.items() if name not in _MEMBERS and value]
    if homeless or fields.get("storage_transformers"):
        name = homeless[0] if homeless else "storage_transformers"
        raise _no_place(f"the member {name[:80]!r} of a `zarr.json`")
    if not isinstance(node, ArrayDocument):
        return None, inline
    if not isinstance(fields.get("data_type"), str):
        raise _no_place(f"the data type {repr(fields.get('data_type'))[:80]}")
    if not isinstance(fields.get("codecs"), list):
        raise _no_place("an array without a list of codecs")
    for what, numbers in (("sides", node.shape), ("chunks", node.chunk_shape)):
        if any(number > TOP for number in numbers):
            raise _no_place(f"{what} longer than {TOP} ({list(numbers)[:8]})")
    metadata = {
        "shape": list(node.shape),
        "data_type": fields["data_type"],
        "fill_value": js.dump(fields.get("fill_value"), "the fill value"),
        "dimension_names": None if node.dimension_names is None else list(node.dimension_names),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(node.chunk_shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [_codec(codec) for codec in fields["codecs"]],
    }
    return metadata, inline


def to_zarr_json(metadata: object, attributes: object, *, where: str) -> tuple[bytes, Any]:
    """The `zarr.json` of a row, and its facts; everything is checked."""
    fields: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "group" if metadata is None else "array",
    }
    if attributes is not None:
        fields["attributes"] = js.as_object(
            _json(attributes, "the attributes", where), "the attributes", where=where
        )
    if metadata is not None:
        fields |= _array_fields(metadata, where)
    try:
        js.check_depth(fields)
        document = json.dumps(fields, ensure_ascii=False).encode()
        return document, parse_node(document)
    except (InvalidInputError, ValueError) as error:
        raise FormatError(f"{where}: {error}") from None


def _array_fields(value: object, where: str) -> dict[str, Any]:
    required = ("shape", "data_type", "chunk_grid", "chunk_key_encoding")
    metadata = js.as_object(value, "array metadata", where=where, required=required)
    grid, encoding = (
        js.as_object(metadata[name], name, where=where, required=["name", "configuration"])
        for name in required[2:]
    )
    sides = js.as_object(grid["configuration"], "chunk_grid", where=where, required=["chunk_shape"])
    fields: dict[str, Any] = {
        "shape": _numbers(metadata["shape"], where),
        "data_type": js.as_text(metadata["data_type"], "a data type", where=where),
        "chunk_grid": {
            "name": grid["name"],
            "configuration": {"chunk_shape": _numbers(sides["chunk_shape"], where)},
        },
        "chunk_key_encoding": _key_encoding(encoding, where),
        "fill_value": _json(metadata.get("fill_value"), "a fill value", where),
        "codecs": [
            _read_codec(codec, where)
            for codec in js.as_list(metadata.get("codecs") or [], "codecs", where=where)
        ],
    }
    if metadata.get("dimension_names") is not None:
        fields["dimension_names"] = js.as_list(
            metadata["dimension_names"], "the dimension names", where=where
        )
    return fields


def _key_encoding(encoding: js.Object, where: str) -> dict[str, Any]:
    """Only Zarr's name for a chunk depends on it: references are kept by coordinates."""
    configuration = js.as_object(encoding["configuration"], "chunk_key_encoding", where=where)
    if encoding["name"] == "default" and configuration.get("separator") == ".":
        return {"name": "default", "configuration": {"separator": "/"}}
    return {"name": encoding["name"], "configuration": dict(configuration)}


def _numbers(value: object, where: str) -> list[int]:
    numbers = js.as_list(value, "a shape", where=where)
    if len(numbers) > MAX_RANK:
        raise FormatError(f"{where}: an array has {len(numbers)} dimensions")
    return [js.as_number(number, "a side", where=where, most=(1 << 63) - 1) for number in numbers]


def _codec(codec: object) -> dict[str, Any]:
    if isinstance(codec, str):
        return {"name": codec, "configuration": None}
    if not isinstance(codec, dict) or not isinstance(codec.get("name"), str):
        raise _no_place(f"the codec {repr(codec)[:80]}")
    if codec.keys() - {"name", "configuration"}:
        raise _no_place(f"the codec {repr(codec)[:80]}")
    configuration = codec.get("configuration")
    stored = None if configuration is None else js.dump(configuration, "a codec")
    return {"name": codec["name"], "configuration": stored}


def _read_codec(value: object, where: str) -> dict[str, Any]:
    codec = js.as_object(value, "a codec", where=where, required=["name"])
    fields: dict[str, Any] = {"name": js.as_text(codec["name"], "a codec", where=where)}
    if codec.get("configuration") is not None:
        fields["configuration"] = _json(codec["configuration"], "a codec", where)
    return fields


def _json(value: object, what: str, where: str) -> Any:
    if value is None:
        return None
    if not isinstance(value, bytes):
        raise FormatError(f"{where}: {what} is not binary")
    return js.parse(value, where=f"{where}, {what}", limit=MAX_DOCUMENT)


def _no_place(what: str) -> InvalidInputError:
    return InvalidInputError(
        f"generation `draft` has no place for {what}; use a newer generation",
        kind=Kind.INVALID_METADATA,
    )
