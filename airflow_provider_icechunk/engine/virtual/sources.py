"""Foreign files as a whole: what they are now, and reading here and there in them.

For programs that look into a file to find its chunks. The same grants decide as for the chunks.
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

from airflow_provider_icechunk.exceptions import (
    InvalidInputError,
    VirtualAccessDeniedError,
    VirtualChunkError,
)
from airflow_provider_icechunk.format.references import Checksum, ETag, LastModified, Virtual
from airflow_provider_icechunk.storage.retry import Retry
from airflow_provider_icechunk.virtual.fetch_file import local_etag
from airflow_provider_icechunk.virtual.grants import Grant
from airflow_provider_icechunk.virtual.locations import Location, shown

if TYPE_CHECKING:
    import urllib3
    from mypy_boto3_s3.client import S3Client

    from airflow_provider_icechunk.virtual.fetch import VirtualReader

ChecksumKind = Literal["auto", "etag", "modified"]
"""What tells that a file is still the one that was referenced.

Official releases differ in the entity tags that they give local files, so `auto` takes the time of
last modification for these, and the entity tag for what a server gives out.
"""

_BLOCK = 256 << 10
_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class Source:
    """A foreign file as it is now."""

    location: str
    size: int
    etag: str | None
    modified: int | None
    """Seconds since 1970, rounded up: official readers compare with parts of a second."""

    def checksum(self, kind: ChecksumKind = "auto") -> Checksum | None:
        """What to keep with references into the file; the other kind if the store has no such."""
        tag = None if self.etag is None else ETag(self.etag)
        time = None if self.modified is None else LastModified(self.modified)
        if kind == "auto":
            kind = "modified" if self.location.startswith("file:") else "etag"
        return (tag or time) if kind == "etag" else (time or tag)


def location_of(file: str) -> str:
    """A file as references name it: URLs stay, absolute paths become `file://`."""
    return f"file://{quote(file)}" if file.startswith("/") else file


class SourceFile(io.RawIOBase):
    """A file to read and seek in, by blocks that are kept; refused once the file has changed."""

    def __init__(self, reader: VirtualReader, source: Source) -> None:
        super().__init__()
        self._reader = reader
        self._whole = Virtual(source.location, 0, source.size, source.checksum("etag"))
        self._place = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a place counted from the begin, from here or from the end."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._whole.length}
        if whence not in start or start[whence] + offset < 0:
            raise InvalidInputError("a file has no place before its begin")
        self._place = start[whence] + offset
        return self._place

    def tell(self) -> int:
        """Where the next read begins."""
        return self._place

    def readinto(self, target: object, /) -> int:
        """Fill a buffer from the current place on; returns how many bytes there were."""
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


def describe_file(grant: Grant, location: Location, url: str) -> Source:
    """A regular file below the granted directory."""
    where = shown(url)
    root, path = os.path.realpath(grant.prefix.path), os.path.realpath(location.path)
    if os.path.commonpath((root, path)) != root:
        raise VirtualAccessDeniedError(
            f"{where} is a link that leads out of the granted directory {grant.url_prefix!r}"
        )
    try:
        status = Path(path).stat()
    except OSError as error:
        raise VirtualChunkError(f"cannot open {where}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise VirtualChunkError(f"{where} is not a regular file")
    return Source(url, status.st_size, local_etag(status), -(-status.st_mtime_ns // 10**9))


def describe_s3(client: S3Client, location: Location, url: str, retry: Retry) -> Source:
    """An object of a bucket."""
    from airflow_provider_icechunk.storage.s3_errors import FAILURES, PASSING, classify, code_of

    for last in retry.attempts():
        try:
            answer = client.head_object(Bucket=location.host, Key=location.key)
        except FAILURES as error:
            trouble = classify(error)
            if trouble in PASSING and not last:
                continue
            raise VirtualChunkError(
                f"cannot look at {shown(url)}: {trouble.value} ({code_of(error)})"
            ) from None
        modified: datetime | None = answer.get("LastModified")
        return Source(
            url,
            int(answer["ContentLength"]),
            answer.get("ETag"),
            None if modified is None else int(modified.timestamp()),
        )
    raise AssertionError("unreachable: the last attempt returns or raises")


def describe_http(pool: urllib3.PoolManager, location: Location, url: str) -> Source:
    """A file on a web server, which has to tell its size."""
    from urllib3.exceptions import HTTPError

    from airflow_provider_icechunk.virtual.fetch_http import moment

    try:
        answer = pool.request(
            "HEAD", str(location), headers={"Accept-Encoding": "identity"}, redirect=False
        )
    except (HTTPError, OSError) as error:
        raise VirtualChunkError(f"cannot look at {shown(url)}: {type(error).__name__}") from None
    size = answer.headers.get("Content-Length", "")
    if answer.status != 200 or not (size.isascii() and size.isdecimal() and len(size) < 20):
        raise VirtualChunkError(
            f"cannot look at {shown(url)}: the server answers {answer.status}, or without a size"
        )
    tag = answer.headers.get("ETag")
    modified = moment(answer.headers.get("Last-Modified"))
    return Source(
        url,
        int(size),
        # A weak tag stays the same over changes that move bytes.
        None if tag is None or tag.startswith("W/") else tag,
        None if modified is None else int(modified.timestamp()),
    )
