"""External files as a whole: their current state, and random access to them.

For programs that inspect a file to find its chunks. The same grants apply as for chunks.
"""

from __future__ import annotations

import io
import os
import stat
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from airflow_provider_icechunk.engine.format.chunk_refs import Checksum, ETag, LastModified, Virtual
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.clouds.troubles import PASSING
from airflow_provider_icechunk.engine.storage.location import shown
from airflow_provider_icechunk.exceptions import InvalidInputError, VirtualChunkError

from .grants import Grant
from .locations import Location
from .transports import granted_path, local_etag, moment

if TYPE_CHECKING:
    import urllib3
    from mypy_boto3_s3.client import S3Client

    from .reader import VirtualReader

ChecksumKind = Literal["auto", "etag", "modified"]
"""How to recognize that a file is still the one that was referenced.

Official releases use different entity tags for local files, so `auto` uses the modification time
for these, and the entity tag for files on servers.
"""

_BLOCK = 256 << 10
_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """The current state of an external file."""

    location: str
    size: int
    etag: str | None
    modified: int | None
    """Seconds since 1970, rounded up: official readers compare fractions of a second."""

    def checksum(self, kind: ChecksumKind = "auto") -> Checksum | None:
        """The checksum for references into the file; the other kind if this one is missing."""
        tag = None if self.etag is None else ETag(self.etag)
        time = None if self.modified is None else LastModified(self.modified)
        if kind == "auto":
            kind = "modified" if self.location.startswith("file:") else "etag"
        return (tag or time) if kind == "etag" else (time or tag)


def location_of(file: str) -> str:
    """The URL of a file: absolute paths become `file://`, URLs stay."""
    return f"file://{quote(file)}" if file.startswith("/") else file


class SourceFile(io.RawIOBase):
    """A seekable file, read in cached blocks; raises once the file has changed."""

    def __init__(self, reader: VirtualReader, source: ForeignFile) -> None:
        super().__init__()
        self._reader = reader
        self._whole = Virtual(source.location, 0, source.size, source.checksum("etag"))
        self._place = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to a position relative to the start, the current position or the end."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._whole.length}
        if whence not in start or start[whence] + offset < 0:
            raise InvalidInputError("cannot seek before the start of a file")
        self._place = start[whence] + offset
        return self._place

    def tell(self) -> int:
        """The current position."""
        return self._place

    def readinto(self, target: object, /) -> int:
        """Fill a buffer from the current position on; returns the number of bytes."""
        buffer = memoryview(target).cast("B")  # type: ignore[arg-type]
        done = 0
        while done < len(buffer) and self._place < self._whole.length:
            number, inside = divmod(self._place, _BLOCK)
            part = self._block(number)[inside : inside + len(buffer) - done]
            buffer[done : done + len(part)] = part
            done += len(part)
            self._place += len(part)
        return done

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            start = number * _BLOCK
            self._blocks[number] = self._reader.read(self._whole, start, start + _BLOCK)
            if len(self._blocks) > _BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return self._blocks[number]


def describe_file(grant: Grant, location: Location, url: str) -> ForeignFile:
    """A regular file below the granted directory."""
    where = shown(url)
    try:
        status = Path(granted_path(grant, location, where)).stat()
    except OSError as error:
        raise VirtualChunkError(f"cannot open {where}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise VirtualChunkError(f"{where} is not a regular file")
    return ForeignFile(url, status.st_size, local_etag(status), -(-status.st_mtime_ns // 10**9))


def describe_s3(client: S3Client, location: Location, url: str, retry: Backoff) -> ForeignFile:
    """An object in a bucket."""
    from airflow_provider_icechunk.engine.storage.s3.errors import classify, code_of, failures

    for last in retry.attempts():
        try:
            answer = client.head_object(Bucket=location.host, Key=location.key)
        except failures() as error:
            trouble = classify(error)
            if trouble in PASSING and not last:
                continue
            raise VirtualChunkError(
                f"cannot inspect {shown(url)}: {trouble.value} ({code_of(error)})"
            ) from None
        modified: datetime | None = answer.get("LastModified")
        return ForeignFile(
            url,
            int(answer["ContentLength"]),
            answer.get("ETag"),
            None if modified is None else int(modified.timestamp()),
        )
    raise AssertionError("unreachable: the last attempt returns or raises")


def describe_http(pool: urllib3.PoolManager, location: Location, url: str) -> ForeignFile:
    """A file on a web server, which has to report its size."""
    from urllib3.exceptions import HTTPError

    try:
        answer = pool.request(
            "HEAD", str(location), headers={"Accept-Encoding": "identity"}, redirect=False
        )
    except (HTTPError, OSError) as error:
        raise VirtualChunkError(f"cannot inspect {shown(url)}: {type(error).__name__}") from None
    size = answer.headers.get("Content-Length", "")
    if answer.status != 200 or not (size.isascii() and size.isdecimal() and len(size) < 20):
        raise VirtualChunkError(
            f"cannot inspect {shown(url)}: the server responds with {answer.status}, or without a "
            "size"
        )
    tag = answer.headers.get("ETag")
    modified = moment(answer.headers.get("Last-Modified"))
    return ForeignFile(
        url,
        int(size),
        # A weak tag may stay the same although the bytes change.
        None if tag is None or tag.startswith("W/") else tag,
        None if modified is None else int(modified.timestamp()),
    )
