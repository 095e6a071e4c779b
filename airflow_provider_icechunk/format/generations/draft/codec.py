"""The codec of `draft`. Parquet needs pyarrow, which is loaded when the first file is touched."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from airflow_provider_icechunk.budget import Purse
from airflow_provider_icechunk.exceptions import FormatError, UnsupportedError
from airflow_provider_icechunk.format.generations.attributes import AttributeFiles, Rows
from airflow_provider_icechunk.format.generations.base import DEFAULT_LIMITS, Generation, Limits
from airflow_provider_icechunk.format.generations.draft.layout import DraftLayout
from airflow_provider_icechunk.format.generations.draft.state import Entry
from airflow_provider_icechunk.format.ids import AttributesId, ManifestId, SnapshotId
from airflow_provider_icechunk.format.references import ChunkRefs
from airflow_provider_icechunk.format.snapshot import (
    Manifest,
    ManifestFile,
    Node,
    Snapshot,
    in_order,
)
from airflow_provider_icechunk.format.transactions import TransactionLog


class DraftCodec:
    """Files of generation `draft` to values and back.

    Message, time and parent of a snapshot are in the state file: `entry` gives what it lists, and
    with its second argument says whether to read the file again for it. `layout` learns the names
    that other software gave to files.
    """

    generation = Generation.DRAFT

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        entry: Callable[[SnapshotId, bool], Entry | None] = lambda _identity, _again: None,
        attributes: AttributeFiles | None = None,
        layout: DraftLayout | None = None,
    ) -> None:
        self._layout = layout or DraftLayout()
        self._limits = limits
        self._attributes = attributes or AttributeFiles()
        self._entry = entry

    def decode_snapshot(self, data: bytes, expected: SnapshotId, *, where: str) -> Snapshot:
        """The snapshot in the file `where`, with what the state says of it."""
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
        """The inventory in the file `where`; the file says no id that could be checked."""
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
        from airflow_provider_icechunk.format.generations.draft import structures
    except ImportError:
        raise _needs_pyarrow() from None
    return structures


def _inventories() -> ModuleType:
    try:
        from airflow_provider_icechunk.format.generations.draft import inventories
    except ImportError:
        raise _needs_pyarrow() from None
    return inventories


def _needs_pyarrow() -> UnsupportedError:
    return UnsupportedError(
        "repositories of generation `draft` are Parquet files: install pyarrow to open them"
    )
