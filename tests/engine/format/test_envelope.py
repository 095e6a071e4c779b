from __future__ import annotations

import contextlib
import os

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.codec import FileType
from airflow_provider_icechunk.engine.format.wire import zstd
from airflow_provider_icechunk.exceptions import FormatError, Kind, UnsupportedError

LIMIT = 1 << 20


def sealed(payload: bytes = b"payload", file_type: FileType = FileType.MANIFEST) -> bytes:
    return envelope.pack(file_type, payload, spec_version=1, level=3, writer="apic-1")


def opened(data: bytes, *, limit: int = LIMIT) -> envelope.Envelope:
    return envelope.unpack(data, where="manifests/X", expected=FileType.MANIFEST, limit=limit)


@given(st.binary(max_size=2000), st.sampled_from([1, 2]), st.integers(1, 19))
def test_what_is_packed_unpacks(payload: bytes, version: int, level: int) -> None:
    data = envelope.pack(
        FileType.SNAPSHOT, payload, spec_version=version, level=level, writer="apic-1"
    )
    found = envelope.unpack(data, where="x", expected=FileType.SNAPSHOT, limit=LIMIT)
    assert found == envelope.Envelope(version, "apic-1", payload)


def test_the_header_is_the_one_official_readers_expect() -> None:
    data = sealed()
    assert data[:12] == "ICE🧊CHUNK".encode()
    assert data[12:36] == b"apic-1".ljust(24)
    assert data[36:39] == bytes((1, 2, 1))
    assert zstandard.decompress(data[39:]) == b"payload"


def test_a_long_writer_name_is_cut_to_its_field() -> None:
    data = envelope.pack(FileType.MANIFEST, b"", spec_version=1, level=1, writer="w" * 99)
    assert opened(data).writer == "w" * 24


def test_uncompressed_and_foreign_files_are_read() -> None:
    data = bytearray(sealed()[:39] + b"plain")
    data[38] = 0
    data[12:36] = b"\xff" * 24
    assert opened(bytes(data)).payload == b"plain"


def test_frames_without_a_content_size_are_read() -> None:
    payload = os.urandom(300_000) + bytes(300_000)
    frame = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(
        payload
    )
    assert opened(sealed()[:39] + frame).payload == payload


@pytest.mark.parametrize("size", [0, 5, 11, 12, 38])
def test_a_cut_header_is_refused(size: int) -> None:
    with pytest.raises(FormatError, match="manifests/X"):
        opened(sealed()[:size])


@pytest.mark.parametrize(
    ("at", "value", "problem"),
    [
        (0, 0, "not an Icechunk file"),
        (37, 1, "a snapshot, not a manifest"),
        (37, 9, "type 9"),
        (38, 7, "compression 7"),
    ],
)
def test_a_wrong_header_is_refused(at: int, value: int, problem: str) -> None:
    data = bytearray(sealed())
    data[at] = value
    with pytest.raises(FormatError, match=problem):
        opened(bytes(data))


def test_a_later_version_is_not_called_damage() -> None:
    data = bytearray(sealed())
    data[36] = 3
    with pytest.raises(UnsupportedError, match="version 3"):
        opened(bytes(data))


@pytest.mark.parametrize("size", [0, 1, 100, 300_000])
@pytest.mark.parametrize("declared", [True, False])
def test_cut_frames_and_what_follows_a_frame_are_refused(size: int, declared: bool) -> None:
    payload = os.urandom(size)
    frame = zstandard.ZstdCompressor(write_content_size=declared).compress(payload)
    assert zstd.decompress(frame, limit=size, where="x") == payload
    for cut in {1, 4, 5, len(frame) // 2, len(frame) - 1}:
        with pytest.raises(FormatError):
            zstd.decompress(frame[:cut], limit=LIMIT, where="x")
    for rest in (b"\0", frame, zstandard.compress(b"")):
        with pytest.raises(FormatError, match="follow the zstd frame"):
            zstd.decompress(frame + rest, limit=LIMIT, where="x")


@pytest.mark.parametrize("declared", [True, False])
def test_a_bomb_is_refused_before_it_takes_memory(declared: bool) -> None:
    bomb = zstandard.ZstdCompressor(write_content_size=declared).compress(bytes(64 << 20))
    assert len(bomb) < 8192
    with pytest.raises(FormatError) as caught:
        zstd.decompress(bomb, limit=1 << 20, where="x")
    assert caught.value.kind is Kind.LIMIT_EXCEEDED


def test_a_header_that_lies_about_its_size_is_refused() -> None:
    frame = bytearray(zstandard.compress(bytes(1000)))
    parameters = zstandard.get_frame_parameters(bytes(frame))
    assert parameters.content_size == 1000
    at = bytes(frame).index((1000 - 256).to_bytes(2, "little"))
    for lie in (b"\xff\xff", b"\0\0"):
        frame[at : at + 2] = lie
        with pytest.raises(FormatError):
            zstd.decompress(bytes(frame), limit=LIMIT, where="x")


def test_a_frame_of_endless_empty_blocks_is_refused() -> None:
    head = zstandard.ZstdCompressor(write_content_size=False).compress(b"")[:-3]
    with pytest.raises(FormatError, match="blocks"):
        zstd.decompress(head + bytes(3) * (1 << 20) + b"\x01\0\0", limit=LIMIT, where="x")


def test_the_limit_is_exact() -> None:
    for frame in (
        zstandard.compress(bytes(5000)),
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(5000)),
    ):
        assert zstd.decompress(frame, limit=5000, where="x") == bytes(5000)
        with pytest.raises(FormatError, match="more than 4999 bytes"):
            zstd.decompress(frame, limit=4999, where="x")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_content_or_a_format_error(data: bytes) -> None:
    for candidate in (data, b"\x28\xb5\x2f\xfd" + data):
        with contextlib.suppress(FormatError):
            zstd.decompress(candidate, limit=LIMIT, where="x")


@pytest.mark.parametrize("payload", [b"ICE" * 200, bytes(range(256)) * 3, b"\0" * 5000])
def test_no_flipped_bit_of_a_frame_gives_other_content(payload: bytes) -> None:
    frame = zstd.compress(payload, level=3)
    refused = 0
    for place in range(len(frame)):
        for bit in range(8):
            rotten = bytearray(frame)
            rotten[place] ^= 1 << bit
            try:
                assert zstd.decompress(bytes(rotten), limit=1 << 20, where="a file") == payload
            except FormatError:
                refused += 1
    assert refused > 4 * len(frame)
