"""The 39-byte header of metadata files since 2025: magic, writer, version, type, compression.

Files are always written with zstd: code 0 (none) is defined and read, but official releases refuse
it. The version byte distinguishes FlatBuffers files of generations `1` and `2`, but not the
MessagePack files of `alpha`, which have 1 as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.wire import zstd
from airflow_provider_icechunk.exceptions import FormatError, UnsupportedError

from .codec import FileType

MAGIC = bytes.fromhex("494345F09FA78A4348554E4B")
HEADER_SIZE = 39
KNOWN_SPEC_VERSIONS = (1, 2)

_WRITER_SIZE = 24
_UNCOMPRESSED, _ZSTD = 0, 1
_CODES = {
    FileType.SNAPSHOT: 1,
    FileType.MANIFEST: 2,
    FileType.ATTRIBUTES: 3,
    FileType.TRANSACTION_LOG: 4,
    FileType.CHUNK: 5,
    FileType.REPO_INFO: 6,
}
_TYPES = {code: file_type for file_type, code in _CODES.items()}


@dataclass(frozen=True, slots=True)
class Envelope:
    """An opened file."""

    spec_version: int
    writer: str
    """The writer named in the file; for information only."""
    payload: bytes


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file."""

    writer: str
    spec_version: int
    file_type: str
    compression: str


def pack(
    file_type: FileType,
    payload: bytes | bytearray | memoryview,
    *,
    spec_version: int,
    level: int,
    writer: str,
) -> bytes:
    """A whole file: header and payload as one zstd frame of `level`."""
    name = writer.encode()[:_WRITER_SIZE].ljust(_WRITER_SIZE)
    tail = bytes((spec_version, _CODES[file_type], _ZSTD))
    return b"".join((MAGIC, name, tail, zstd.compress(payload, level=level)))


def has_header(data: bytes) -> bool:
    """Whether `data` begins like a file with a header."""
    return data[: len(MAGIC)] == MAGIC


def read_header(data: bytes) -> Header:
    """The unchecked header of a file that has one, for display."""
    spec_version, code, compression = data[36:HEADER_SIZE].ljust(3, b"\xff")
    return Header(
        bytes(data[12:36]).decode("utf-8", "replace").rstrip(),
        spec_version,
        str(_TYPES.get(code, code)),
        {_UNCOMPRESSED: "none", _ZSTD: "zstd"}.get(compression, str(compression)),
    )


def unpack(
    data: bytes | bytearray | memoryview,
    *,
    where: str,
    expected: FileType,
    limit: int,
    purse: Purse | None = None,
) -> Envelope:
    """The payload of a file of the `expected` type that unpacks to at most `limit` bytes."""
    view = memoryview(data)
    if view[: len(MAGIC)] != MAGIC:
        raise FormatError(f"{where}: not an Icechunk file (the first {len(MAGIC)} bytes are wrong)")
    if len(view) < HEADER_SIZE:
        raise FormatError(f"{where}: truncated inside its header, after {len(view)} bytes")
    spec_version, code, compression = view[36:HEADER_SIZE]
    if spec_version not in KNOWN_SPEC_VERSIONS:
        raise UnsupportedError(
            f"{where}: written in version {spec_version} of the format; "
            f"this package supports {KNOWN_SPEC_VERSIONS}"
        )
    if code != _CODES[expected]:
        found = _TYPES.get(code)
        raise FormatError(f"{where}: a {found or f'file of type {code}'}, not a {expected}")
    body = view[HEADER_SIZE:]
    if compression == _ZSTD:
        payload = zstd.decompress(body, limit=limit, where=where, purse=purse)
    elif compression == _UNCOMPRESSED and len(body) <= limit:
        payload = bytes(body)
    else:
        raise FormatError(
            f"{where}: compression {compression} is unknown, or the file is too large"
        )
    writer = bytes(view[12:36]).decode("utf-8", "replace").rstrip()
    return Envelope(spec_version, writer, payload)
