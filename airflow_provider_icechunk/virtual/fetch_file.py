"""Ranges of local files that a grant covers."""

from __future__ import annotations

import os
import stat

from airflow_provider_icechunk.exceptions import (
    VirtualAccessDeniedError,
    VirtualChunkChangedError,
    VirtualChunkError,
)
from airflow_provider_icechunk.format.references import Checksum, ETag, LastModified
from airflow_provider_icechunk.virtual.grants import Grant
from airflow_provider_icechunk.virtual.locations import Location, shown
from airflow_provider_icechunk.virtual.parts import Part


def fetch_file(
    grant: Grant, location: Location, start: int, stop: int, checksum: Checksum | None
) -> Part:
    """Bytes from `start` to `stop` of a regular file below the granted directory.

    Links are followed as long as they stay below it.
    """
    where = shown(str(location))
    root = os.path.realpath(grant.prefix.path)
    path = os.path.realpath(location.path)
    if os.path.commonpath((root, path)) != root:
        raise VirtualAccessDeniedError(
            f"{where} is a link that leads out of the granted directory {grant.url_prefix!r}"
        )
    try:
        # Opening a pipe would wait for its writer for ever.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise VirtualChunkError(f"cannot open {where}: {error.strerror}") from None
    try:
        return _read(file, where, start, stop, checksum)
    except OSError as error:
        raise VirtualChunkError(f"cannot read {where}: {error.strerror}") from None
    finally:
        os.close(file)


def _read(file: int, where: str, start: int, stop: int, checksum: Checksum | None) -> Part:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise VirtualChunkError(f"{where} is not a regular file")
    tag = local_etag(status)
    match checksum:
        case ETag(value) if value.strip('"') != tag:
            raise VirtualChunkChangedError(f"{where} is not the file that was referenced any more")
        case LastModified(seconds) if status.st_mtime_ns > seconds * 10**9:
            raise VirtualChunkChangedError(f"{where} was modified after it was referenced")
    if stop > status.st_size:
        raise VirtualChunkError(
            f"{where} has {status.st_size} bytes; the chunk needs those from {start} to {stop}"
        )
    pieces = []
    while start < stop:
        piece = os.pread(file, min(stop - start, 1 << 30), start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
    return Part(b"".join(pieces), tag)


def local_etag(status: os.stat_result) -> str:
    """The entity tag the official library gives a local file: inode, microseconds, size."""
    return f"{status.st_ino:x}-{status.st_mtime_ns // 1000:x}-{status.st_size:x}"
