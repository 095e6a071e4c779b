"""The codec of `alpha` and its keys.

Shapes are identified by their content: a header, a bare zstd stream or plain MessagePack outside,
and inside either MessagePack or, in two unreleased states, FlatBuffers with `Ichk` at bytes 4 to 8.

A branch is a folder of numbered files. Names count down from the largest 8-character number, so the
newest file sorts first. The first shape separated kind and name of a ref by `:`, all later
ones by `.`.
"""

from __future__ import annotations

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.codec import DEFAULT_LIMITS, FileType, Limits
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import (
    AttributesId,
    ManifestId,
    SnapshotId,
    decode_base32,
    encode_base32,
)
from airflow_provider_icechunk.engine.format.legacy.attributes import AttributeFiles, Rows
from airflow_provider_icechunk.engine.format.model import Manifest, Snapshot, TransactionLog
from airflow_provider_icechunk.engine.format.names import check_ref_name
from airflow_provider_icechunk.engine.format.v1.codec import REFS, WRITER, V1Codec, V1Layout
from airflow_provider_icechunk.engine.format.wire import zstd
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, Kind

from . import logs, manifests, snapshots

_SPEC_VERSION = 1
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_FLATBUFFERS = b"Ichk"


class AlphaCodec:
    """Files of generation `alpha` to values and back."""

    generation = Generation.ALPHA

    def __init__(
        self, limits: Limits = DEFAULT_LIMITS, attributes: AttributeFiles | None = None
    ) -> None:
        self._limits = limits
        self._attributes = attributes or AttributeFiles()
        self._flatbuffers = V1Codec(limits)

    def decode_snapshot(self, data: bytes, expected: SnapshotId, *, where: str) -> Snapshot:
        """The snapshot in the file `where`; its id is that of the file name."""
        with Purse(len(data), where=where) as purse:
            payload = self._payload(data, FileType.SNAPSHOT, where, purse)
            if not _is_flatbuffers(payload):
                reading = self._attributes.reading(self._decode_attributes, purse)
                found = snapshots.decode_snapshot(payload, expected, where=where, outside=reading)
                self._attributes.finish(expected, reading)
                return found
        return self._flatbuffers.decode_snapshot(data, expected, where=where)

    def embedded_id(self, data: bytes, *, where: str) -> SnapshotId | None:
        """The id inside a snapshot file; `None` where file name and id cannot differ."""
        with Purse(len(data), where=where) as purse:
            payload = self._payload(data, FileType.SNAPSHOT, where, purse)
            if _is_flatbuffers(payload):
                return None
            return snapshots.embedded_id(payload, where=where, memory=purse)

    def encode_snapshot(self, snapshot: Snapshot, *, level: int) -> bytes:
        """A whole file, header included, compressed at `level`."""
        writing = self._attributes.writing(snapshot.id, snapshot.parent_id)
        payload = snapshots.encode_snapshot(snapshot, writing)
        self._attributes.finish(
            snapshot.id,
            writing,
            lambda identity, rows: _file(
                FileType.ATTRIBUTES, snapshots.encode_attributes(identity, rows), level
            ),
        )
        return _file(FileType.SNAPSHOT, payload, level)

    def decode_manifest(self, data: bytes, expected: ManifestId, *, where: str) -> Manifest:
        """The manifest in the file `where`; only later shapes hold an id that can be checked."""
        with Purse(len(data), where=where) as purse:
            payload = self._payload(data, FileType.MANIFEST, where, purse)
            if not _is_flatbuffers(payload):
                return manifests.decode_manifest(payload, expected, where=where, memory=purse)
        return self._flatbuffers.decode_manifest(data, expected, where=where)

    def encode_manifest(self, manifest: Manifest, *, level: int) -> bytes:
        """A whole file. Erased rows must have been removed."""
        return _file(FileType.MANIFEST, manifests.encode_manifest(manifest), level)

    def decode_log(self, data: bytes, expected: SnapshotId, *, where: str) -> TransactionLog:
        """The transaction log in the file `where`."""
        with Purse(len(data), where=where) as purse:
            payload = self._payload(data, FileType.TRANSACTION_LOG, where, purse)
            if not _is_flatbuffers(payload):
                return logs.decode_log(payload, expected, where=where, memory=purse)
        return self._flatbuffers.decode_log(data, expected, where=where)

    def encode_log(self, log: TransactionLog, *, level: int) -> bytes:
        """A whole file."""
        return _file(FileType.TRANSACTION_LOG, logs.encode_log(log), level)

    def _decode_attributes(self, data: bytes, expected: AttributesId, where: str) -> Rows:
        with Purse(len(data), where=where) as purse:
            payload = self._payload(data, FileType.ATTRIBUTES, where, purse)
            return snapshots.decode_attributes(payload, expected, where, purse)

    def _payload(self, data: bytes, file_type: FileType, where: str, purse: Purse) -> bytes:
        is_manifest = file_type is FileType.MANIFEST
        limit = self._limits.manifest_bytes if is_manifest else self._limits.other_bytes
        if envelope.has_header(data):
            opened = envelope.unpack(
                data, where=where, expected=file_type, limit=limit, purse=purse
            )
            return opened.payload
        if data[:4] == _ZSTD_MAGIC:
            return zstd.decompress(data, limit=limit, where=where, purse=purse)
        if len(data) > limit:
            raise FormatError(
                f"{where}: {len(data)} bytes, more than the limit of {limit}",
                kind=Kind.LIMIT_EXCEEDED,
            )
        return data


def _is_flatbuffers(payload: bytes) -> bool:
    return payload[4:8] == _FLATBUFFERS


def _file(file_type: FileType, payload: bytes, level: int) -> bytes:
    return envelope.pack(file_type, payload, spec_version=_SPEC_VERSION, level=level, writer=WRITER)


SEPARATORS = (".", ":")
"""First the one that is written, then the one of the first shape."""
LAST_SEQUENCE = (1 << 40) - 1

_SEQUENCE_BYTES = 5
_SUFFIX = ".json"


class AlphaLayout(V1Layout):
    """Keys of the immutable objects: the same folders as in all later generations, and one more."""

    attributes = "attributes/"


def branch_prefix(name: str, separator: str = ".") -> str:
    """The folder of a branch, with its slash."""
    return f"{REFS}branch{separator}{check_ref_name(name)}/"


def tag_key(name: str, separator: str = ".") -> str:
    """The ref file of a tag."""
    return f"{REFS}tag{separator}{check_ref_name(name, 'tag')}/ref.json"


def tombstone_key(name: str, separator: str = ".") -> str:
    """The empty file that marks a tag as deleted."""
    return tag_key(name, separator) + ".deleted"


def sequence_file(number: int) -> str:
    """The file name of the `number`-th state of a branch, counted from 0."""
    if not 0 <= number <= LAST_SEQUENCE:
        raise InvalidInputError(f"a branch has no state number {number}; its numbers are used up")
    return encode_base32((LAST_SEQUENCE - number).to_bytes(_SEQUENCE_BYTES, "big")) + _SUFFIX


def parse_sequence_file(name: str) -> int | None:
    """The number in a file name; `None` for other files in the folder."""
    if not name.endswith(_SUFFIX):
        return None
    try:
        countdown = decode_base32(name.removesuffix(_SUFFIX), _SEQUENCE_BYTES)
    except InvalidInputError:
        return None
    return LAST_SEQUENCE - int.from_bytes(countdown, "big")
