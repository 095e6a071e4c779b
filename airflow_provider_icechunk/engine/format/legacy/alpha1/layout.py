"""Keys of `alpha1` and its ref documents.

A branch is a folder of numbered files, a tag a file beside these folders. Software of September
2024 spelled both differently and used 13-character numbers; `Spelling` distinguishes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from airflow_provider_icechunk.engine.format.codec import FileNames
from airflow_provider_icechunk.engine.format.fence import check_unfenced
from airflow_provider_icechunk.engine.format.ids import (
    EARLY_OBJECT_ID_SIZE,
    ChunkId,
    ManifestId,
    SnapshotId,
    decode_base32,
    encode_base32,
)
from airflow_provider_icechunk.engine.format.legacy.alpha.codec import parse_sequence_file
from airflow_provider_icechunk.engine.format.legacy.alpha.scalars import decode_time, encode_time
from airflow_provider_icechunk.engine.format.names import check_ref_name
from airflow_provider_icechunk.engine.format.wire import json as js
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, Kind

REFS = "r/"
CONFIG_KEY = "config.yaml"

_JSON = ".json"
_MAX_REF = 64 << 10
_LONG_BYTES = 8
_LONG_LAST = (1 << 64) - 1


class Spelling(Enum):
    """Which names the files of a repository have."""

    SPECIFIED = ".json"
    """As specified; the suffix of metadata files is this project's choice."""
    DEVELOPMENT = ".msgpack"
    """As software of September 2024 wrote them."""


@dataclass(frozen=True, slots=True)
class Alpha1Layout:
    """Keys of the immutable objects. There are no transaction logs: their folder is empty."""

    spelling: Spelling = Spelling.SPECIFIED
    snapshots: str = "s/"
    manifests: str = "m/"
    transactions: str = "t/"
    chunks: str = "c/"
    attributes: str = "a/"

    def names_in(self, prefix: str) -> FileNames:
        """Ids of 16 bytes; metadata files have an extension."""
        suffix = "" if prefix == self.chunks else self.spelling.value
        return FileNames(EARLY_OBJECT_ID_SIZE, suffix)

    def snapshot(self, identity: SnapshotId) -> str:
        """Key of a snapshot file."""
        return self.snapshots + encode_base32(identity) + self.spelling.value

    def manifest(self, identity: ManifestId) -> str:
        """Key of a manifest file."""
        return self.manifests + encode_base32(identity) + self.spelling.value

    def transaction(self, identity: SnapshotId) -> str:
        """A key under which nothing is ever stored."""
        return self.transactions + encode_base32(identity) + self.spelling.value

    def chunk(self, identity: ChunkId) -> str:
        """Key of a chunk file."""
        return self.chunks + encode_base32(identity)


def branch_prefix(name: str, spelling: Spelling = Spelling.SPECIFIED) -> str:
    """The folder of a branch, with its slash."""
    check_ref_name(name)
    return f"{REFS}{name}/" if spelling is Spelling.SPECIFIED else f"{REFS}branch:{name}/"


def tag_key(name: str, spelling: Spelling = Spelling.SPECIFIED) -> str:
    """The ref file of a tag."""
    check_ref_name(name, "tag")
    return (
        f"{REFS}{name}{_JSON}" if spelling is Spelling.SPECIFIED else f"{REFS}tag:{name}/ref.json"
    )


def check_new_branch(name: str) -> None:
    """Refuse a branch whose folder could have the name of a tag's file."""
    if name.endswith(_JSON):
        raise InvalidInputError(
            f"{name[:80]!r} cannot be the name of a branch in generation `alpha1`: its folder "
            "would have the name of a tag's file; choose one that does not end with `.json`",
            kind=Kind.INVALID_NAME,
        )


def parse_state_file(name: str) -> int | None:
    """The number of a branch file in either spelling; `None` for other files in the folder."""
    number = parse_sequence_file(name)
    if number is not None or not name.endswith(_JSON):
        return number
    try:
        countdown = decode_base32(name.removesuffix(_JSON), _LONG_BYTES)
    except InvalidInputError:
        return None
    return _LONG_LAST - int.from_bytes(countdown, "big")


def encode_ref(snapshot: SnapshotId, timestamp: int) -> bytes:
    """The document of a branch or a tag; `timestamp` in microseconds since 1970 UTC."""
    document = {"snapshot": list(snapshot), "timestamp": encode_time(timestamp), "properties": {}}
    return js.dump_sealed(document, "a reference")


def follow_ref(previous: bytes, snapshot: SnapshotId, timestamp: int, *, where: str) -> bytes:
    """The document that follows `previous` on a branch, whose properties it keeps."""
    document = {
        "properties": {},
        **_read_ref(previous, where),
        "snapshot": list(snapshot),
        "timestamp": encode_time(timestamp),
    }
    return js.dump_sealed(document, "a reference")


def _read_ref(data: bytes, where: str) -> js.Object:
    value = js.parse_sealed(data, where=where, limit=_MAX_REF)
    return js.as_object(value, "a reference", where=where, required=["snapshot"])


def decode_ref(data: bytes, *, where: str) -> SnapshotId:
    """The snapshot that a document names: as 16 numbers, or as text in early files."""
    check_unfenced(data, where=where)
    document = _read_ref(data, where)
    if "timestamp" in document:
        decode_time(document["timestamp"], where=where)
    js.as_object(document.get("properties", {}), "properties", where=where)
    snapshot = document["snapshot"]
    if not isinstance(snapshot, str):
        return SnapshotId(decode_id(snapshot, where=where))
    try:
        if len(snapshot) == 2 * EARLY_OBJECT_ID_SIZE:
            return SnapshotId(bytes.fromhex(snapshot))
        return SnapshotId(decode_base32(snapshot, EARLY_OBJECT_ID_SIZE))
    except ValueError:
        raise FormatError(f"{where}: {snapshot[:64]!r} is not the id of a snapshot") from None


def decode_id(value: object, *, where: str) -> bytes:
    """The id from a list of 16 numbers."""
    try:
        if isinstance(value, list) and len(value) == EARLY_OBJECT_ID_SIZE:
            return bytes(value)
    except (ValueError, TypeError):
        pass
    raise FormatError(
        f"{where}: {repr(value)[:60]} is not an id: expected a list of 16 numbers from 0 to 255"
    )
