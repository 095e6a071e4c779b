"""The codec of `alpha1`: JSON documents out, JSON documents and early MessagePack files in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs
from airflow_provider_icechunk.engine.format.codec import DEFAULT_LIMITS, Limits
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import (
    AttributesId,
    ManifestId,
    SnapshotId,
    encode_base32,
)
from airflow_provider_icechunk.engine.format.legacy.attributes import AttributeFiles, Rows
from airflow_provider_icechunk.engine.format.model import Manifest, Node, Snapshot, TransactionLog
from airflow_provider_icechunk.engine.format.wire import json as js
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, UnsupportedError

from . import development, manifests, snapshots
from .snapshots import Past

_REMEMBERED = 10_000


class Alpha1Codec:
    """Files of generation `alpha1` to values and back.

    A snapshot lists its ancestors, so encoding one needs the past of its parent: that of snapshots
    seen before is remembered; `fetch` returns the file of any other.
    """

    generation = Generation.ALPHA1

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        fetch: Callable[[SnapshotId], bytes | None] = lambda _: None,
        attributes: AttributeFiles | None = None,
    ) -> None:
        self._limits = limits
        self._attributes = attributes or AttributeFiles()
        self._fetch = fetch
        self._pasts: dict[SnapshotId, Past] = {}

    def decode_snapshot(self, data: bytes, expected: SnapshotId, *, where: str) -> Snapshot:
        """The snapshot in the file `where`.

        Early software stored first snapshots under a different id from the one inside; such a file
        gets the id of its name.
        """
        with Purse(len(data), where=where) as purse:
            document = self._snapshot(data, where)
            reading = self._attributes.reading(self._decode_attributes, purse)
            snapshot, past = snapshots.read_snapshot(document, where=where, outside=reading)
        if snapshot.id != expected:
            misnamed = development.is_message_pack(data) and snapshot.parent_id is None
            if not misnamed:
                raise FormatError(f"{where}: says it is snapshot {encode_base32(snapshot.id)}")
        self._remember(expected, past)
        self._attributes.finish(expected, reading)
        return replace(snapshot, id=expected)

    def embedded_id(self, data: bytes, *, where: str) -> SnapshotId:
        """The id inside a snapshot file, whatever its name."""
        return snapshots.read_past(self._snapshot(data, where), where=where).own.id

    def encode_snapshot(self, snapshot: Snapshot, *, level: int) -> bytes:
        """A whole file; `level` is for generations that compress."""
        del level
        parent = None if snapshot.parent_id is None else self._past(snapshot.parent_id)
        past = snapshots.past_of(snapshot, parent)
        writing = self._attributes.writing(snapshot.id, snapshot.parent_id)
        data = js.dump_sealed(snapshots.write_snapshot(snapshot, past, writing), "the snapshot")
        self._attributes.finish(snapshot.id, writing, _encode_attributes)
        self._remember(snapshot.id, past)
        return data

    def decode_manifest(self, data: bytes, expected: ManifestId, *, where: str) -> Manifest:
        """The manifest in the file `where`; the file holds no id that could be checked."""
        if development.is_message_pack(data):
            self._check_size(data, self._limits.manifest_bytes, where)
            entries = development.manifest_entries(data, where=where)
            return manifests.columns_of(entries, expected, where=where)
        document = js.parse_sealed(data, where=where, limit=self._limits.manifest_bytes)
        return manifests.read_manifest(document, expected, where=where)

    def encode_manifest(self, manifest: Manifest, *, level: int) -> bytes:
        """A whole file. Erased rows must have been removed."""
        del level
        return js.dump_sealed(manifests.write_manifest(manifest), "the manifest")

    def decode_log(self, data: bytes, expected: SnapshotId, *, where: str) -> TransactionLog:
        """Refused: there are no transaction logs."""
        del data, expected
        raise UnsupportedError(f"{where}: generation `alpha1` has no transaction logs")

    def encode_log(self, log: TransactionLog, *, level: int) -> bytes:
        """Refused: there are no transaction logs."""
        del log, level
        raise UnsupportedError("generation `alpha1` has no transaction logs")

    def check_node(self, node: Node) -> None:
        """Refuse what the documents cannot hold."""
        snapshots.check_node(node)

    def check_references(self, refs: ChunkRefs) -> None:
        """Refuse checksums of virtual chunks."""
        manifests.check_references(refs)

    def _decode_attributes(self, data: bytes, expected: AttributesId, where: str) -> Rows:
        document = js.parse_sealed(data, where=where, limit=self._limits.other_bytes)
        return snapshots.read_attributes(document, expected, where)

    def _snapshot(self, data: bytes, where: str) -> object:
        if development.is_message_pack(data):
            self._check_size(data, self._limits.other_bytes, where)
            return development.snapshot_document(data, where=where)
        return js.parse_sealed(data, where=where, limit=self._limits.other_bytes)

    @staticmethod
    def _check_size(data: bytes, limit: int, where: str) -> None:
        if len(data) > limit:
            raise FormatError(f"{where}: {len(data)} bytes, more than the limit of {limit}")

    def _past(self, identity: SnapshotId) -> Past:
        known = self._pasts.get(identity)
        if known is not None:
            return known
        data = self._fetch(identity)
        if data is None:
            raise InvalidInputError(
                f"the parent {encode_base32(identity)} of a new snapshot is not in this repository"
            )
        where = f"snapshot {encode_base32(identity)}"
        return snapshots.read_past(self._snapshot(data, where), where=where)

    def _remember(self, identity: SnapshotId, past: Past) -> None:
        if len(self._pasts) >= _REMEMBERED:
            self._pasts.clear()
        self._pasts[identity] = past


def _encode_attributes(identity: AttributesId, rows: Rows) -> bytes:
    return js.dump_sealed(snapshots.write_attributes(identity, rows), "the attributes")
