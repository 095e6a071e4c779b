"""One bounded zstd frame: its unpacked size is limited before anything is allocated.

The blocks of the frame are checked first. That proves the frame complete and alone in its bytes,
and gives an upper bound on its content, so neither a bomb nor a false header gets memory: the
library itself trusts the declared size over `max_output_size`, and its stream reader ends silently
at a truncated frame.
"""

from __future__ import annotations

from contextlib import nullcontext

import zstandard

from airflow_provider_icechunk.engine.budget import FREE_BYTES, RATIO, Purse
from airflow_provider_icechunk.exceptions import FormatError, Kind

_MAGIC = b"\x28\xb5\x2f\xfd"
_MAX_BLOCK = 128 << 10
_MAX_BLOCKS = 1 << 20
"""A gigabyte takes 8192 full blocks; a frame of tiny ones is malicious."""
_RLE, _COMPRESSED = 1, 2
_WORTH_THREADS = 8 << 20
"""From this size on, threads save more than they cost."""


def compress(payload: bytes | bytearray | memoryview, *, level: int) -> bytes:
    """One frame with its content size in the header and a checksum."""
    threads = -1 if len(payload) >= _WORTH_THREADS else 0
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True, threads=threads)
    return compressor.compress(payload)


def decompress(
    data: bytes | memoryview, *, limit: int, where: str, purse: Purse | None = None
) -> bytes:
    """The content of the single frame in `data`, if it has at most `limit` bytes.

    A `purse` is charged for the content before it is allocated.
    """
    if bytes(data[:4]) != _MAGIC:
        raise FormatError(f"{where}: the payload is not a zstd frame")
    try:
        header_size = zstandard.frame_header_size(data)
        parameters = zstandard.get_frame_parameters(data)
    except zstandard.ZstdError:
        raise FormatError(
            f"{where}: the header of the zstd frame is damaged or truncated"
        ) from None
    bound = _content_bound(data, header_size, parameters.has_checksum, where)
    declared: int | None = parameters.content_size
    if declared == zstandard.CONTENTSIZE_UNKNOWN:
        declared = None
    # Without a declared size the library unpacks through a window whose size the frame
    # chooses. It takes memory as it fills, never more than the content.
    window = parameters.window_size if declared is None else 0
    if purse is not None:
        limit = min(limit, purse.left - min(window, -(-purse.left // 2)))
    if declared is not None and declared > bound:
        raise FormatError(f"{where}: the zstd frame says {declared} bytes but cannot hold them")
    if declared is not None and declared > limit:
        raise _too_large(where, limit)
    most = max(min(bound, limit), 1) if declared is None else declared
    with nullcontext() if purse is None else purse.lending(most + min(window, most)):
        content = _unpacked(data, most, declared is None and bound > limit, where, limit)
    if purse is not None:
        purse.charge(len(content))
    if declared is not None and len(content) != declared:
        raise FormatError(f"{where}: the zstd frame says {declared} bytes, has {len(content)}")
    return content


def _unpacked(
    data: bytes | memoryview, most: int, may_be_longer: bool, where: str, limit: int
) -> bytes:
    try:
        return zstandard.ZstdDecompressor().decompress(
            data, max_output_size=max(most, 1), read_across_frames=False
        )
    except (zstandard.ZstdError, MemoryError):
        if may_be_longer:
            raise _too_large(where, limit) from None
        raise FormatError(f"{where}: the zstd frame is damaged") from None


def _content_bound(data: bytes | memoryview, at: int, has_checksum: bool, where: str) -> int:
    """Maximum unpacked size of the blocks from `at` on; raises unless it is one whole frame."""
    total = 0
    size = len(data)
    for _ in range(_MAX_BLOCKS):
        if at + 3 > size:
            break
        header = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        kind, length = header >> 1 & 3, header >> 3
        if length > _MAX_BLOCK or kind > _COMPRESSED:
            raise FormatError(f"{where}: a block of the zstd frame is damaged")
        total += _MAX_BLOCK if kind == _COMPRESSED else length
        at += 3 + (1 if kind == _RLE else length)
        if header & 1:
            at += 4 if has_checksum else 0
            if at < size:
                raise FormatError(f"{where}: {size - at} bytes follow the zstd frame")
            if at > size:
                break
            return total
    else:
        raise FormatError(f"{where}: the zstd frame has more than {_MAX_BLOCKS} blocks")
    raise FormatError(f"{where}: the zstd frame is truncated after {size} bytes")


def _too_large(where: str, limit: int) -> FormatError:
    return FormatError(
        f"{where}: unpacks to more than {limit} bytes, far more than its size. If you trust "
        f"it, raise the limit in the environment: {FREE_BYTES} (bytes) or {RATIO} "
        "(multiple of the stored size)",
        kind=Kind.LIMIT_EXCEEDED,
    )
