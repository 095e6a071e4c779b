"""Chunks that unpack to far more than they should: refused before memory grows."""

from __future__ import annotations

import bz2
import gzip
import resource
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zstandard
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs.numcodecs import BZ2, LZ4, LZMA, Zlib

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.browser import pictures
from airflow_provider_icechunk.browser.bounds import RequestLimits, bounded
from airflow_provider_icechunk.exceptions import IcechunkError, Kind

pytestmark = pytest.mark.filterwarnings("ignore:.*Numcodecs codecs.*")
ZEROS = bytes(64 << 20)
CELLS = 4096


def _unknown_size(data: bytes) -> bytes:
    made = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return made.compress(data) + made.flush()


BOMBS: dict[str, tuple[Any, bytes]] = {
    "zstd with its size": (ZstdCodec, zstandard.compress(ZEROS)),
    "zstd without": (ZstdCodec, _unknown_size(ZEROS)),
    "zstd that lies about the rest": (ZstdCodec, _unknown_size(b"x") + _unknown_size(ZEROS)),
    "gzip": (GzipCodec, gzip.compress(ZEROS, 1)),
    "gzip in parts": (GzipCodec, gzip.compress(b"x") + gzip.compress(ZEROS, 1)),
    "zlib": (Zlib, zlib.compress(ZEROS, 1)),
    "bz2": (BZ2, bz2.compress(ZEROS[: 16 << 20], 1)),
    "lz4": (LZ4, struct.pack("<I", 1 << 31) + bytes(64)),
    "blosc": (BloscCodec, struct.pack("<BBBBIII", 2, 1, 1, 4, 1 << 31, 4096, 80)),
}


def _stored(folder: Path, codec: Any, bomb: bytes | None, **more: Any) -> Repository:
    """A repository with one array of small chunks, the first of which is the bomb."""
    repository = Repository.create(local_filesystem_storage(folder))
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(2 * CELLS,), chunks=(CELLS,), dtype="f4",
        compressors=[codec] if codec else None, **more,
    )  # fmt: skip
    array[:] = np.arange(2 * CELLS)
    if bomb is not None:
        session.tree.put_chunks("/a", [((0,), memoryview(bomb))])
    session.commit("made by a stranger")
    return repository


def _draw(repository: Repository) -> Any:
    with bounded(RequestLimits()):
        return pictures.draw(repository, "main", "/a", pictures.PicturePart())


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_memory_grows(tmp_path: Path, name: str) -> None:
    codec, bomb = BOMBS[name]
    repository = _stored(tmp_path, codec(), bomb)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(IcechunkError) as caught:
        _draw(repository)
    assert caught.value.kind is Kind.LIMIT_EXCEEDED
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 << 10
    assert _cell(repository, CELLS) == float(CELLS), "the other chunk is as good as before"
    assert "cannot be read" in str(_cell(repository, 0))


def _cell(repository: Repository, at: int) -> Any:
    with bounded(RequestLimits()):
        text = pictures.read_cell(repository, "main", "/a", (at,)).value
    return text if text.startswith("cannot") else float(text)


@pytest.mark.parametrize("codec", [ZstdCodec, GzipCodec, Zlib, BZ2, LZ4, BloscCodec, None])
def test_honest_chunks_are_drawn(tmp_path: Path, codec: Any) -> None:
    found = _draw(_stored(tmp_path, codec() if codec else None, None))
    assert (found.statistics.minimum, found.statistics.missing) == (0.0, 0)


def test_shards_are_guarded_inside(tmp_path: Path) -> None:
    repository = _stored(tmp_path / "good", ZstdCodec(), None, shards=(2 * CELLS,))
    assert _draw(repository).statistics.maximum > CELLS
    inner = zstandard.compress(ZEROS)
    index = struct.pack("<QQQQ", 0, len(inner), 2**64 - 1, 2**64 - 1)
    import google_crc32c

    bomb = inner + index + struct.pack("<I", google_crc32c.value(index))
    repository = _stored(tmp_path / "bad", ZstdCodec(), bomb, shards=(2 * CELLS,))
    with pytest.raises(IcechunkError) as caught:
        _draw(repository)
    assert caught.value.kind is Kind.LIMIT_EXCEEDED


def test_texts_have_as_many_as_there_are_cells(tmp_path: Path) -> None:
    repository = Repository.create(local_filesystem_storage(tmp_path))
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(4,), dtype="string", compressors=None)
    session.tree.put_chunks("/a", [((0,), memoryview(struct.pack("<I", 1 << 31) + bytes(8)))])
    session.commit("two thousand million texts")
    with pytest.raises(IcechunkError) as caught:
        _draw(repository)
    assert caught.value.kind is Kind.LIMIT_EXCEEDED


def test_a_codec_that_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IcechunkError) as caught:
        _draw(_stored(tmp_path, LZMA(), None))
    assert "numcodecs.lzma" in caught.value.message
