"""The codec of generation `1`: header, compression and identity around the three kinds of file."""

from __future__ import annotations

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.budget import Purse
from airflow_provider_icechunk.exceptions import FormatError, UnsupportedError
from airflow_provider_icechunk.format import envelope
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
from airflow_provider_icechunk.format.generations.v1.manifest_search import ManifestSearch
from airflow_provider_icechunk.format.ids import ManifestId, SnapshotId, encode_base32
from airflow_provider_icechunk.format.snapshot import Manifest, Snapshot
from airflow_provider_icechunk.format.transactions import TransactionLog

SPEC_VERSION = 1
DEFAULT_LEVEL = 3
"""The zstd level that official releases use."""


WRITER = f"apic-{__version__}"
"""How this package signs the files it writes."""


class V1Codec:
    """Files of generation `1` to values and back."""

    generation = Generation.V1

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits

    def decode_snapshot(self, data: bytes, expected: SnapshotId, *, where: str) -> Snapshot:
        """The snapshot in the file `where`."""
        return self._snapshot(data, expected, where, glance=False)

    def glance_at_snapshot(self, data: bytes, expected: SnapshotId, *, where: str) -> Snapshot:
        """The same with a tree that is decoded when it is looked into."""
        return self._snapshot(data, expected, where, glance=True)

    def encode_snapshot(self, snapshot: Snapshot, *, level: int = DEFAULT_LEVEL) -> bytes:
        """A whole file, header included, compressed at `level`."""
        return _seal(FileType.SNAPSHOT, snapshots.encode(snapshot), level)

    def decode_manifest(self, data: bytes, expected: ManifestId, *, where: str) -> Manifest:
        """The manifest in the file `where`, with orders, ranks and bounds checked."""
        with Purse(len(data), where=where) as purse:
            payload = self._open(data, FileType.MANIFEST, where, purse)
            manifest = manifests.decode(payload, where=where, memory=purse)
        _check_identity(manifest.id, expected, where)
        return manifest

    def search_manifest(self, data: bytes, expected: ManifestId, *, where: str) -> ManifestSearch:
        """The same for whoever wants single references."""
        with Purse(len(data), where=where) as purse:
            payload = self._open(data, FileType.MANIFEST, where, purse)
            search = ManifestSearch(payload, where=where, memory=purse)
        _check_identity(search.id, expected, where)
        return search

    def encode_manifest(self, manifest: Manifest, *, level: int = DEFAULT_LEVEL) -> bytes:
        """A whole file. Erased rows must have been removed."""
        return _seal(FileType.MANIFEST, manifest_records.encode(manifest), level)

    def decode_log(self, data: bytes, expected: SnapshotId, *, where: str) -> TransactionLog:
        """The transaction log in the file `where`."""
        with Purse(len(data), where=where) as purse:
            payload = self._open(data, FileType.TRANSACTION_LOG, where, purse)
            log = logs.decode(payload, where=where, memory=purse)
        _check_identity(log.id, expected, where)
        return log

    def encode_log(self, log: TransactionLog, *, level: int = DEFAULT_LEVEL) -> bytes:
        """A whole file."""
        return _seal(FileType.TRANSACTION_LOG, logs.encode(log), level)

    def _snapshot(self, data: bytes, expected: SnapshotId, where: str, *, glance: bool) -> Snapshot:
        with Purse(len(data), where=where) as purse:
            payload = self._open(data, FileType.SNAPSHOT, where, purse)
            snapshot = snapshots.decode(payload, where=where, glance=glance, memory=purse)
        _check_identity(snapshot.id, expected, where)
        return snapshot

    def _open(self, data: bytes, file_type: FileType, where: str, purse: Purse) -> bytes:
        limits = self._limits
        limit = limits.manifest_bytes if file_type is FileType.MANIFEST else limits.other_bytes
        opened = envelope.unpack(data, where=where, expected=file_type, limit=limit, purse=purse)
        if opened.spec_version != SPEC_VERSION:
            raise UnsupportedError(
                f"{where}: a file of format generation `2`; open the repository as generation `2`"
            )
        return opened.payload


def _seal(file_type: FileType, payload: bytearray, level: int) -> bytes:
    return envelope.pack(file_type, payload, spec_version=SPEC_VERSION, level=level, writer=WRITER)


def _check_identity(found: bytes, expected: bytes, where: str) -> None:
    if found != expected:
        raise FormatError(
            f"{where}: the file says it is {encode_base32(found)}, "
            f"not {encode_base32(expected)}; it was moved or replaced"
        )
