"""Decode untrusted chunks no further than their declared size.

A few bytes can unpack to gigabytes, and Zarr's codecs unpack whatever they are given. A guard
before each decompressor determines the unpacked size without keeping the data, and refuses more
than the chunk has cells for. Codecs that cannot be measured are refused.
"""

from __future__ import annotations

import bz2
import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import zarr
import zstandard
from zarr.abc.codec import BytesBytesCodec, Codec
from zarr.codecs import ShardingCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer

from airflow_provider_icechunk.engine.budget import current
from airflow_provider_icechunk.engine.zarr_store.codecs import bytes_of
from airflow_provider_icechunk.exceptions import Kind, StorageError, UnsupportedError

_PIECE = 64 << 10
_WINDOW = 16 << 20
_MOST_TEXT = 64 << 20
_MOST_INNER_CHUNKS = 1 << 20
_KEEP_SIZE = frozenset(
    {"bytes", "crc32c", "transpose", "sharding_indexed"}
    | {
        f"numcodecs.{name}"
        for name in (
            "adler32", "astype", "bitround", "crc32", "crc32c", "delta", "fixedscaleoffset",
            "fletcher32", "jenkins_lookup3", "packbits", "quantize", "shuffle",
        )
    }
)  # fmt: skip
"""Codecs whose output is as long as their input, or a small multiple."""


def _zstd(data: memoryview, most: int) -> int:
    declared = zstandard.frame_content_size(data)
    if declared >= 0:
        # The decoder allocates this many bytes and stops there.
        return declared
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(
        data, read_across_frames=True
    )
    return _count(lambda: reader.read(_PIECE), most)


def _zlib(bits: int) -> Callable[[memoryview, int], int]:
    def size(data: memoryview, most: int) -> int:
        unpacked, rest = 0, bytes(data)
        while rest and unpacked <= most:
            stream = zlib.decompressobj(bits)
            while rest and not stream.eof and unpacked <= most:
                unpacked += len(stream.decompress(rest, _PIECE))
                rest = stream.unconsumed_tail
            rest = stream.unused_data
        return unpacked

    return size


def _bz2(data: memoryview, most: int) -> int:
    stream, given = bz2.BZ2Decompressor(), bytes(data)

    def read() -> bytes:
        nonlocal given
        if stream.eof:
            return b""
        found, given = stream.decompress(given, _PIECE), b""
        return found

    return _count(read, most)


def _count(read: Callable[[], bytes], most: int) -> int:
    unpacked = 0
    while unpacked <= most and (piece := read()):
        unpacked += len(piece)
    return unpacked


def _number(start: int) -> Callable[[memoryview, int], int]:
    """The size declared in the bytes themselves, which the decoder enforces."""
    return lambda data, _: int.from_bytes(data[start : start + 4], "little")


_UNPACK: dict[str, Callable[[memoryview, int], int]] = {
    "zstd": _zstd,
    "numcodecs.zstd": _zstd,
    "gzip": _zlib(31),
    "numcodecs.gzip": _zlib(31),
    "numcodecs.zlib": _zlib(15),
    "numcodecs.bz2": _bz2,
    "blosc": _number(4),
    "numcodecs.blosc": _number(4),
    "numcodecs.lz4": _number(0),
}
_TEXTS = frozenset({"vlen-utf8", "vlen-bytes"})


@dataclass(frozen=True)
class SizeGuard(BytesBytesCodec):
    """Follows a codec in writing order, so that when reading it sees the bytes first."""

    guarded: str
    is_fixed_size: ClassVar[bool] = True  # type: ignore[misc]

    def to_dict(self) -> dict[str, Any]:
        """It is never stored."""
        return {"name": f"guard of {self.guarded}"}

    def _decode_sync(self, data: Buffer, spec: ArraySpec) -> Buffer:
        stored = bytes_of(data)
        cells = math.prod(spec.shape)
        if self.guarded in _TEXTS:
            if _number(0)(stored, 0) != cells:
                raise _refusal(self.guarded, f"a chunk of {cells} texts says that it has others")
            return data
        item = spec.dtype.to_native_dtype()
        # Checksums and headers of inner codecs take a little more than the values.
        most = 2 * cells * item.itemsize + _PIECE
        if item.hasobject or item.kind == "T":
            most = min(current().of(len(stored)), _MOST_TEXT)
        try:
            size = _UNPACK[self.guarded](stored, most)
        except (zstandard.ZstdError, zlib.error, OSError, ValueError) as error:
            raise _refusal(self.guarded, f"its bytes do not fit the codec: {error}") from None
        if size > most:
            raise _refusal(
                self.guarded,
                f"a chunk unpacks to more than the {most} bytes that its array has room for",
            )
        return data

    async def _decode_single(self, data: Buffer, spec: ArraySpec) -> Buffer:
        return self._decode_sync(data, spec)

    def _encode_sync(self, data: Buffer, spec: ArraySpec) -> Buffer:
        del spec
        return data

    async def _encode_single(self, data: Buffer, spec: ArraySpec) -> Buffer:
        return self._encode_sync(data, spec)

    def compute_encoded_size(self, size: int, spec: ArraySpec) -> int:
        """Bytes stay as they are."""
        del spec
        return size


def _refusal(codec: str, what: str) -> StorageError:
    return StorageError(f"not decoded ({codec}): {what}", kind=Kind.LIMIT_EXCEEDED)


def guarded(array: zarr.Array[Any]) -> zarr.Array[Any]:
    """The same array with guards before the codecs that unpack."""
    metadata: Any = array.metadata
    codecs = tuple(_guard(metadata.codecs))
    return zarr.Array(type(array._async_array)(replace(metadata, codecs=codecs), array.store_path))


def _guard(codecs: Iterable[Codec]) -> Iterable[Codec]:
    for codec in codecs:
        if isinstance(codec, ShardingCodec):
            yield ShardingCodec(
                chunk_shape=codec.chunk_shape,
                codecs=tuple(_guard(codec.codecs)),
                index_codecs=tuple(_guard(codec.index_codecs)),
                index_location=codec.index_location,
            )
            continue
        yield codec
        name = str(codec.to_dict()["name"])
        if name in _UNPACK or name in _TEXTS:
            yield SizeGuard(name)
        elif name not in _KEEP_SIZE:
            raise UnsupportedError(
                f"chunks with the codec {name[:100]!r} are not decoded for a web page, because "
                "their unpacked size is unknown: use Xarray"
            )


def bytes_at_once(array: zarr.Array[Any], item_size: int) -> int:
    """The bytes decoded together: a chunk, or a shard if it can only be read as a whole."""
    inner = math.prod(array.chunks) * item_size
    if array.shards is None:
        return inner
    whole = math.prod(array.shards) * item_size
    if whole // max(1, inner) > _MOST_INNER_CHUNKS:
        raise _refusal("sharding_indexed", f"a shard has more than {_MOST_INNER_CHUNKS} chunks")
    metadata: Any = array.metadata
    return inner if len(metadata.codecs) == 1 else whole
