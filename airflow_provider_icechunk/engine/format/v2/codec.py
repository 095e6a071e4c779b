"""The codec of generation `2`: each file is read by its header, since migration keeps old files."""

from __future__ import annotations

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.codec import DEFAULT_LIMITS, FileType, Limits
from airflow_provider_icechunk.engine.format.config.model import LocationCompression
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId, encode_base32
from airflow_provider_icechunk.engine.format.model import Manifest, Snapshot, TransactionLog
from airflow_provider_icechunk.engine.format.v1 import logs, manifest_write, snapshots
from airflow_provider_icechunk.engine.format.v1.codec import (
    DEFAULT_LEVEL,
    WRITER,
    V1Codec,
    check_identity,
)
from airflow_provider_icechunk.engine.format.v1.manifest_read import IDENTIFIER
from airflow_provider_icechunk.engine.format.v1.snapshot_layout import Dialect
from airflow_provider_icechunk.engine.format.wire import flexbuffers
from airflow_provider_icechunk.engine.format.wire.flatbuffers_read import Buffer, batches
from airflow_provider_icechunk.engine.format.wire.flexbuffers import Json
from airflow_provider_icechunk.exceptions import (
    FormatError,
    InvalidInputError,
    Kind,
    NoJsonError,
    UnsupportedError,
)

from .locations import pack_locations, unpack_frames

_SNAPSHOT_SLOTS = 9
_NODES, _NODE_SLOTS = 2, 6
_MANIFESTS, _MANIFEST_SLOTS = 7, 4


def unknown_field(payload: bytes, *, where: str, memory: Purse | None = None) -> str | None:
    """The first unknown field; `None` if all are known."""
    root = Buffer(payload, where=where, memory=memory).root(IDENTIFIER)
    if any(root.slots[_SNAPSHOT_SLOTS:]):
        return "a field of the snapshot"
    for slot, known, what in (
        (_NODES, _NODE_SLOTS, "a node"),
        (_MANIFESTS, _MANIFEST_SLOTS, "a manifest file"),
    ):
        if root.has(slot):
            for batch in batches(root.buffer, root.offsets(slot)):
                if any(batch.slots[known:]):
                    return f"a field of {what}"
    return None


MAX_VALUE = 1 << 20
"""Maximum size of an encoded value."""


def decode_value(data: bytes, where: str, memory: Purse | None = None) -> Json:
    """The JSON value in `data`."""
    if len(data) > MAX_VALUE:
        raise FormatError(f"{where}: a metadata value has {len(data)} bytes, too many")
    return flexbuffers.decode(data, where=where, memory=memory)


def encode_value(name: str, value: object) -> bytes:
    """`value` as FlexBuffers; raises for what JSON cannot express."""
    try:
        data = flexbuffers.encode(value)
    except InvalidInputError as error:
        raise NoJsonError(f"the metadata value {name[:80]!r}: {error.message}") from None
    if len(data) > MAX_VALUE:
        raise InvalidInputError(
            f"the metadata value {name[:80]!r} has {len(data)} bytes, more than {MAX_VALUE}",
            kind=Kind.INVALID_METADATA,
        )
    return data


SPEC_VERSION = 2
_REMEMBERED = 10_000
SNAPSHOT_DIALECT = Dialect(decode_value, encode_value, newer=True)


class V2Codec(V1Codec):
    """Files of generation `2` to values and back; only the refs know the parents."""

    generation = Generation.V2
    spec_version = SPEC_VERSION

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, compression: LocationCompression | None = None
    ) -> None:
        super().__init__(limits)
        self._unpack = unpack_frames
        self._compression = compression
        self._unknown: dict[SnapshotId, str] = {}

    def encode_snapshot(self, snapshot: Snapshot, *, level: int = DEFAULT_LEVEL) -> bytes:
        """A whole file, header included, compressed at `level`.

        Raises if it builds on a snapshot with unknown fields of newer versions: they would be lost.
        """
        lost = None if snapshot.parent_id is None else self._unknown.get(snapshot.parent_id)
        if lost is not None and snapshot.parent_id is not None:
            raise UnsupportedError(
                f"snapshot {encode_base32(snapshot.parent_id)} was written by a newer version of "
                f"the format: a commit on top of it would lose {lost}; update this package"
            )
        return seal(FileType.SNAPSHOT, snapshots.encode(snapshot, dialect=SNAPSHOT_DIALECT), level)

    def encode_manifest(self, manifest: Manifest, *, level: int = DEFAULT_LEVEL) -> bytes:
        """A whole file. Erased rows must have been removed."""
        packed = None if self._compression is None else pack_locations(manifest, self._compression)
        if packed is not None:
            payload = manifest_write.encode(packed[0], newer=True, dictionary=packed[1])
        else:
            payload = manifest_write.encode(manifest, newer=True)
        return seal(FileType.MANIFEST, payload, level)

    def _snapshot(self, data: bytes, expected: SnapshotId, where: str, *, glance: bool) -> Snapshot:
        with Purse(len(data), where=where) as purse:
            opened = self._open(data, FileType.SNAPSHOT, where, purse)
            newer = opened.spec_version == SPEC_VERSION
            dialect = SNAPSHOT_DIALECT if newer else snapshots.DIALECT
            snapshot = snapshots.decode(
                opened.payload, where=where, dialect=dialect, glance=glance, memory=purse
            )
            check_identity(snapshot.id, expected, where)
            found = unknown_field(opened.payload, where=where, memory=purse) if newer else None
        if found is not None and len(self._unknown) < _REMEMBERED:
            self._unknown[expected] = found
        return snapshot

    def encode_log(self, log: TransactionLog, *, level: int = DEFAULT_LEVEL) -> bytes:
        """A whole file."""
        return seal(FileType.TRANSACTION_LOG, logs.encode(log, newer=True), level)


def seal(file_type: FileType, payload: bytearray, level: int) -> bytes:
    """A whole file of generation `2` around a payload."""
    return envelope.pack(file_type, payload, spec_version=SPEC_VERSION, level=level, writer=WRITER)
