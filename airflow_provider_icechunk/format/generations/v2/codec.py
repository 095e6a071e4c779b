"""The codec of generation `2`: each file is read by its own header, as migration leaves files."""

from __future__ import annotations

from airflow_provider_icechunk.budget import Purse
from airflow_provider_icechunk.exceptions import FormatError, UnsupportedError
from airflow_provider_icechunk.format import envelope
from airflow_provider_icechunk.format.config import LocationCompression
from airflow_provider_icechunk.format.generations.base import (
    DEFAULT_LIMITS,
    FileType,
    Generation,
    Limits,
)
from airflow_provider_icechunk.format.generations.v1 import (
    logs,
    manifest_records,
    manifests,
    snapshots,
)
from airflow_provider_icechunk.format.generations.v1.codec import DEFAULT_LEVEL, WRITER
from airflow_provider_icechunk.format.generations.v1.manifest_search import ManifestSearch
from airflow_provider_icechunk.format.generations.v2.locations import pack_locations, unpack_frames
from airflow_provider_icechunk.format.generations.v2.unknown import unknown_field
from airflow_provider_icechunk.format.generations.v2.values import decode_value, encode_value
from airflow_provider_icechunk.format.ids import ManifestId, SnapshotId, encode_base32
from airflow_provider_icechunk.format.snapshot import Manifest, Snapshot
from airflow_provider_icechunk.format.transactions import TransactionLog

SPEC_VERSION = 2
_REMEMBERED = 10_000
SNAPSHOT_DIALECT = snapshots.Dialect(decode_value, encode_value, newer=True)


class V2Codec:
    """Files of generation `2` to values and back."""

    generation = Generation.V2

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, compression: LocationCompression | None = None
    ) -> None:
        self._limits = limits
        self._compression = compression
        self._unknown: dict[SnapshotId, str] = {}

    def decode_snapshot(self, data: bytes, expected: SnapshotId, *, where: str) -> Snapshot:
        """The snapshot in the file `where`; its parent is known to the ledger only."""
        return self._snapshot(data, expected, where, glance=False)

    def glance_at_snapshot(self, data: bytes, expected: SnapshotId, *, where: str) -> Snapshot:
        """The same with a tree that is decoded when it is looked into."""
        return self._snapshot(data, expected, where, glance=True)

    def encode_snapshot(self, snapshot: Snapshot, *, level: int = DEFAULT_LEVEL) -> bytes:
        """A whole file, header included, compressed at `level`.

        Refused on top of a snapshot that holds what only newer versions know: it would be lost.
        """
        lost = None if snapshot.parent_id is None else self._unknown.get(snapshot.parent_id)
        if lost is not None and snapshot.parent_id is not None:
            raise UnsupportedError(
                f"snapshot {encode_base32(snapshot.parent_id)} was written by a newer version of "
                f"the format: a commit on top of it would lose {lost}; update this package"
            )
        return seal(FileType.SNAPSHOT, snapshots.encode(snapshot, dialect=SNAPSHOT_DIALECT), level)

    def decode_manifest(self, data: bytes, expected: ManifestId, *, where: str) -> Manifest:
        """The manifest in the file `where`, with orders, ranks and bounds checked."""
        with Purse(len(data), where=where) as purse:
            payload = self._open(data, FileType.MANIFEST, where, purse).payload
            manifest = manifests.decode(payload, where=where, unpack=unpack_frames, memory=purse)
        _check_identity(manifest.id, expected, where)
        return manifest

    def search_manifest(self, data: bytes, expected: ManifestId, *, where: str) -> ManifestSearch:
        """The same for whoever wants single references."""
        with Purse(len(data), where=where) as purse:
            payload = self._open(data, FileType.MANIFEST, where, purse).payload
            search = ManifestSearch(payload, where=where, unpack=unpack_frames, memory=purse)
        _check_identity(search.id, expected, where)
        return search

    def encode_manifest(self, manifest: Manifest, *, level: int = DEFAULT_LEVEL) -> bytes:
        """A whole file. Erased rows must have been removed."""
        packed = None if self._compression is None else pack_locations(manifest, self._compression)
        if packed is not None:
            payload = manifest_records.encode(packed[0], newer=True, dictionary=packed[1])
        else:
            payload = manifest_records.encode(manifest, newer=True)
        return seal(FileType.MANIFEST, payload, level)

    def decode_log(self, data: bytes, expected: SnapshotId, *, where: str) -> TransactionLog:
        """The transaction log in the file `where`."""
        with Purse(len(data), where=where) as purse:
            payload = self._open(data, FileType.TRANSACTION_LOG, where, purse).payload
            log = logs.decode(payload, where=where, memory=purse)
        _check_identity(log.id, expected, where)
        return log

    def _snapshot(self, data: bytes, expected: SnapshotId, where: str, *, glance: bool) -> Snapshot:
        with Purse(len(data), where=where) as purse:
            opened = self._open(data, FileType.SNAPSHOT, where, purse)
            newer = opened.spec_version == SPEC_VERSION
            dialect = SNAPSHOT_DIALECT if newer else snapshots.DIALECT
            snapshot = snapshots.decode(
                opened.payload, where=where, dialect=dialect, glance=glance, memory=purse
            )
            _check_identity(snapshot.id, expected, where)
            found = unknown_field(opened.payload, where=where, memory=purse) if newer else None
        if found is not None and len(self._unknown) < _REMEMBERED:
            self._unknown[expected] = found
        return snapshot

    def encode_log(self, log: TransactionLog, *, level: int = DEFAULT_LEVEL) -> bytes:
        """A whole file."""
        return seal(FileType.TRANSACTION_LOG, logs.encode(log, newer=True), level)

    def _open(
        self, data: bytes, file_type: FileType, where: str, purse: Purse
    ) -> envelope.Envelope:
        limits = self._limits
        limit = limits.manifest_bytes if file_type is FileType.MANIFEST else limits.other_bytes
        return envelope.unpack(data, where=where, expected=file_type, limit=limit, purse=purse)


def seal(file_type: FileType, payload: bytearray, level: int) -> bytes:
    """A whole file of generation `2` around a payload."""
    return envelope.pack(file_type, payload, spec_version=SPEC_VERSION, level=level, writer=WRITER)


def _check_identity(found: bytes, expected: bytes, where: str) -> None:
    if found != expected:
        raise FormatError(
            f"{where}: the file says it is {encode_base32(found)}, "
            f"not {encode_base32(expected)}; it was moved or replaced"
        )
