"""The codec of generation `1`, its keys and its ref documents."""

from __future__ import annotations

import json

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.codec import (
    DEFAULT_LIMITS,
    FileNames,
    FileType,
    Limits,
)
from airflow_provider_icechunk.engine.format.fence import check_unfenced
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import (
    ChunkId,
    ManifestId,
    SnapshotId,
    decode_base32,
    encode_base32,
)
from airflow_provider_icechunk.engine.format.model import Manifest, Snapshot, TransactionLog
from airflow_provider_icechunk.engine.format.names import check_ref_name
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, UnsupportedError

from . import logs, manifest_read, manifest_write, snapshots
from .manifest_read import ManifestSearch

SPEC_VERSION = 1
DEFAULT_LEVEL = 3
"""The zstd level that official releases use."""
WRITER = f"apic-{__version__}"
"""The writer name in the files of this package."""


class V1Codec:
    """Files of generation `1` to values and back."""

    generation = Generation.V1
    spec_version = SPEC_VERSION

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._unpack: manifest_read.Unpack | None = None

    def decode_snapshot(self, data: bytes, expected: SnapshotId, *, where: str) -> Snapshot:
        """The snapshot in the file `where`."""
        return self._snapshot(data, expected, where, glance=False)

    def glance_at_snapshot(self, data: bytes, expected: SnapshotId, *, where: str) -> Snapshot:
        """The same with a tree that is decoded on first access."""
        return self._snapshot(data, expected, where, glance=True)

    def encode_snapshot(self, snapshot: Snapshot, *, level: int = DEFAULT_LEVEL) -> bytes:
        """A whole file, header included, compressed at `level`."""
        return _seal(FileType.SNAPSHOT, snapshots.encode(snapshot), level)

    def decode_manifest(self, data: bytes, expected: ManifestId, *, where: str) -> Manifest:
        """The manifest in the file `where`, with orders, ranks and bounds checked."""
        with Purse(len(data), where=where) as purse:
            payload = self._open(data, FileType.MANIFEST, where, purse).payload
            manifest = manifest_read.decode(payload, where=where, unpack=self._unpack, memory=purse)
        check_identity(manifest.id, expected, where)
        return manifest

    def search_manifest(self, data: bytes, expected: ManifestId, *, where: str) -> ManifestSearch:
        """The same, for single references."""
        with Purse(len(data), where=where) as purse:
            payload = self._open(data, FileType.MANIFEST, where, purse).payload
            search = ManifestSearch(payload, where=where, unpack=self._unpack, memory=purse)
        check_identity(search.id, expected, where)
        return search

    def encode_manifest(self, manifest: Manifest, *, level: int = DEFAULT_LEVEL) -> bytes:
        """A whole file. Erased rows must have been removed."""
        return _seal(FileType.MANIFEST, manifest_write.encode(manifest), level)

    def decode_log(self, data: bytes, expected: SnapshotId, *, where: str) -> TransactionLog:
        """The transaction log in the file `where`."""
        with Purse(len(data), where=where) as purse:
            payload = self._open(data, FileType.TRANSACTION_LOG, where, purse).payload
            log = logs.decode(payload, where=where, memory=purse)
        check_identity(log.id, expected, where)
        return log

    def encode_log(self, log: TransactionLog, *, level: int = DEFAULT_LEVEL) -> bytes:
        """A whole file."""
        return _seal(FileType.TRANSACTION_LOG, logs.encode(log), level)

    def _snapshot(self, data: bytes, expected: SnapshotId, where: str, *, glance: bool) -> Snapshot:
        with Purse(len(data), where=where) as purse:
            payload = self._open(data, FileType.SNAPSHOT, where, purse).payload
            snapshot = snapshots.decode(payload, where=where, glance=glance, memory=purse)
        check_identity(snapshot.id, expected, where)
        return snapshot

    def _open(
        self, data: bytes, file_type: FileType, where: str, purse: Purse
    ) -> envelope.Envelope:
        limits = self._limits
        limit = limits.manifest_bytes if file_type is FileType.MANIFEST else limits.other_bytes
        opened = envelope.unpack(data, where=where, expected=file_type, limit=limit, purse=purse)
        if opened.spec_version > self.spec_version:
            raise UnsupportedError(
                f"{where}: a file of format generation `2`; open the repository as generation `2`"
            )
        return opened


def _seal(file_type: FileType, payload: bytearray, level: int) -> bytes:
    return envelope.pack(file_type, payload, spec_version=SPEC_VERSION, level=level, writer=WRITER)


def check_identity(found: bytes, expected: bytes, where: str) -> None:
    """Raise for a file that was moved or replaced."""
    if found != expected:
        raise FormatError(
            f"{where}: the file says it is {encode_base32(found)}, "
            f"not {encode_base32(expected)}; it was moved or replaced"
        )


CONFIG_KEY = "config.yaml"
REFS = "refs/"
BRANCH_PREFIX = "refs/branch."
TAG_PREFIX = "refs/tag."
REF_FILE = "ref.json"
TOMBSTONE_FILE = "ref.json.deleted"

_MAX_REF = 64 << 10


class V1Layout:
    """Keys of the immutable objects of generations `1` and `2`."""

    snapshots = "snapshots/"
    manifests = "manifests/"
    transactions = "transactions/"
    chunks = "chunks/"
    attributes: str | None = None

    def names_in(self, prefix: str) -> FileNames:
        """All file names are ids."""
        del prefix
        return FileNames()

    def snapshot(self, identity: SnapshotId) -> str:
        """Key of a snapshot file."""
        return self.snapshots + encode_base32(identity)

    def manifest(self, identity: ManifestId) -> str:
        """Key of a manifest file."""
        return self.manifests + encode_base32(identity)

    def transaction(self, identity: SnapshotId) -> str:
        """Key of the log of a snapshot."""
        return self.transactions + encode_base32(identity)

    def chunk(self, identity: ChunkId) -> str:
        """Key of a chunk file."""
        return self.chunks + encode_base32(identity)


def branch_key(name: str) -> str:
    """Key of the ref document of a branch."""
    return f"{BRANCH_PREFIX}{check_ref_name(name, 'branch')}/{REF_FILE}"


def tag_key(name: str) -> str:
    """Key of the ref document of a tag."""
    return f"{TAG_PREFIX}{check_ref_name(name, 'tag')}/{REF_FILE}"


def tombstone_key(name: str) -> str:
    """Key of the empty object that permanently marks a tag as deleted."""
    return f"{TAG_PREFIX}{check_ref_name(name, 'tag')}/{TOMBSTONE_FILE}"


def encode_ref(snapshot_id: SnapshotId) -> bytes:
    """Encode the document of a branch or a tag."""
    return b'{"snapshot":"%s"}' % encode_base32(snapshot_id).encode()


def decode_ref(data: bytes, *, where: str) -> SnapshotId:
    """The snapshot in a branch or tag document; other keys in it are ignored."""
    if len(data) > _MAX_REF:
        raise FormatError(f"{where}: a reference document with {len(data)} bytes is too large")
    check_unfenced(data, where=where)
    try:
        document = json.loads(data)
        snapshot = document["snapshot"] if isinstance(document, dict) else None
        if isinstance(snapshot, str):
            return SnapshotId(decode_base32(snapshot))
    except (ValueError, RecursionError, KeyError, InvalidInputError):
        pass
    raise FormatError(
        f'{where}: not a reference document; expected {{"snapshot":"<20 characters>"}}'
    )
