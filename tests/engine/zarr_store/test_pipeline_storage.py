"""The short way to chunks wherever bytes are, with storages that fail, and in many threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
from zarr.core.buffer.cpu import Buffer
from zarr.core.sync import sync

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.objects.chunk_writer import Packing
from airflow_provider_icechunk.engine.storage.base import Anything, Storage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.zarr_store import pipeline
from airflow_provider_icechunk.exceptions import Kind, StorageError
from airflow_provider_icechunk.testing.storages import WrappedStorage

T = TypeVar("T")
USUAL = {"_LARGE": 1 << 20, "_WINDOW": 8 << 20, "_FEW": 16}
ALL_LARGE = {"_LARGE": 1}
MANY_WINDOWS = {"_WINDOW": 5000, "_FEW": 0}
SIZES = [USUAL, ALL_LARGE, MANY_WINDOWS]
LOOSE = Packing(below=0)
"""Each chunk is a file of its own."""
PACKED = Packing(target=3000, pending=8000)
VALUES = np.arange(20 * 256, dtype="f8").reshape(20, 256)
"""20 chunks of 2 KiB, one for each row."""


@contextmanager
def limits(sizes: dict[str, int]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, size in sizes.items():
            patch.setattr(pipeline, name, size)
        yield


class Watched(WrappedStorage):
    """Remembers what chunk files were asked for, and fails where it is told to."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.calls: list[str] = []
        self.fails: Callable[[int], bool] = lambda _: False
        """Whether the call with this number goes wrong."""

    def watch(self, fails: Callable[[int], bool] = lambda _: False) -> None:
        self.calls, self.fails = [], fails

    def _call(self, name: str, act: Callable[[], T]) -> T:
        if " chunks/" in name:
            self.calls.append(name)
            if self.fails(len(self.calls) - 1):
                raise StorageError(f"failed on purpose: {name}")
        return act()


def repository(
    storage: Storage, packing: Packing | None = None, *, inline: int = 0
) -> icechunk.Repository:
    config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=inline)
    return icechunk.Repository.create(storage, config, packing=packing)


def create(store: Any, **options: Any) -> zarr.Array[Any]:
    given = {"shape": VALUES.shape, "chunks": (1, 256), "dtype": "f8", "compressors": None}
    return zarr.create_array(store, name="a", **given | options)


def reopened(storage: Storage) -> zarr.Array[Any]:
    """The array as another process sees it."""
    store = icechunk.Repository.open(storage).readonly_session("main").store
    return zarr.open_array(store, path="a", mode="r")


def committed(packing: Packing | None = None, **options: Any) -> Watched:
    """A storage with the values."""
    storage = Watched(MemoryStorage())
    session = repository(storage, packing).writable_session("main")
    create(session.store, **options)[:] = VALUES
    session.commit("values")
    storage.watch()
    return storage


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("packing", "inline"), [(None, 0), (PACKED, 0), (LOOSE, 0), (None, 4096)])
@pytest.mark.parametrize("codecs", [None, ZstdCodec(level=1), BloscCodec(cname="lz4")])
def test_values_are_equal_before_a_commit_after_it_and_when_opened_again(
    sizes: dict[str, int], packing: Packing | None, inline: int, codecs: Any
) -> None:
    storage = MemoryStorage()
    session = repository(storage, packing, inline=inline).writable_session("main")
    expected = VALUES.copy()
    with limits(sizes):
        array = create(session.store, compressors=codecs)
        array[:10] = VALUES[:10]
        array[10:] = VALUES[10:]
        np.testing.assert_array_equal(array[:], expected)
        array[3:7] = expected[3:7] = 1.5
        array[11, 5] = expected[11, 5] = -1
        np.testing.assert_array_equal(array[:], expected)
        session.commit("values")
        np.testing.assert_array_equal(array[:], expected)
        again = reopened(storage)
        np.testing.assert_array_equal(again[:], expected)
        np.testing.assert_array_equal(again[::3, 100:], expected[::3, 100:])
        np.testing.assert_array_equal(again.oindex[[19, 0, 4], :], expected[[19, 0, 4]])
        np.testing.assert_array_equal(
            again.vindex[[9, 9, 1], [0, 255, 3]], expected[[9, 9, 1], [0, 255, 3]]
        )


def test_chunks_of_a_mebibyte_are_read_and_written() -> None:
    storage = MemoryStorage()
    session = repository(storage).writable_session("main")
    values = np.arange(3 << 17, dtype="f8").reshape(3, -1)
    array = create(session.store, shape=values.shape, chunks=(1, 1 << 17))
    array[:] = values
    np.testing.assert_array_equal(array[:], values)
    session.commit("large")
    again = reopened(storage)
    np.testing.assert_array_equal(again[:], values)
    np.testing.assert_array_equal(again[1:, 7:9], values[1:, 7:9])
    np.testing.assert_array_equal(again.oindex[[2, 0], ::7], values[[2, 0], ::7])
    np.testing.assert_array_equal(again.oindex[1:, [9, 5]], values[1:, [9, 5]])
    np.testing.assert_array_equal(again.vindex[[1, 1], [3, 4]], values[1, 3:5])


@pytest.mark.parametrize("sizes", SIZES)
def test_an_array_without_axes_is_read(sizes: dict[str, int]) -> None:
    storage = MemoryStorage()
    session = repository(storage, LOOSE).writable_session("main")
    array = create(session.store, shape=(), chunks=())
    with limits(sizes):
        array[...] = 5
        assert array[...] == 5
        session.commit("five")
        assert reopened(storage)[()] == 5


@pytest.mark.parametrize("sizes", SIZES)
def test_chunks_of_all_kinds_are_read_together(sizes: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "far.bin").write_bytes(VALUES[:2].tobytes())
    prefix, storage = f"file://{tmp_path}/", MemoryStorage()
    far = icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(str(tmp_path)))

    def config(inline: int) -> icechunk.RepositoryConfig:
        found = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=inline)
        found.set_virtual_chunk_container(far)
        return found

    def opened(packing: Packing, inline: int = 0) -> icechunk.Session:
        grants = {prefix: None}
        found = icechunk.Repository.open(storage, config(inline), grants, packing=packing)
        return found.writable_session("main")

    icechunk.Repository.create(storage, config(0))
    expected = np.full_like(VALUES, 7)
    with limits(sizes):
        session = opened(PACKED)
        create(session.store, fill_value=7)
        for row in range(2):
            session.store.set_virtual_ref(
                f"a/c/{row}/0", f"{prefix}far.bin", offset=2048 * row, length=2048
            )
        session.commit("virtual")
        for rows, packing, inline in (
            (slice(2, 6), PACKED, 0),
            (slice(6, 9), LOOSE, 0),
            (slice(9, 12), LOOSE, 4096),
        ):
            session = opened(packing, inline)
            zarr.open_array(session.store, path="a")[rows] = VALUES[rows]
            session.commit("rows")
        session = opened(Packing())
        array = zarr.open_array(session.store, path="a")
        array[12:15] = VALUES[12:15]
        array[8] = 7
        expected[:15] = VALUES[:15]
        expected[8] = 7
        kinds = [session.chunk_type("/a", [row, 0]).name for row in (0, 2, 6, 9, 12, 8, 19)]
        nothing = "UNINITIALIZED"
        assert kinds == ["VIRTUAL", "NATIVE", "NATIVE", "INLINE", "NATIVE", nothing, nothing]
        np.testing.assert_array_equal(array[:], expected)
        np.testing.assert_array_equal(array[1::4, 3:], expected[1::4, 3:])
        session.commit("all")
        reader = icechunk.Repository.open(storage, config(0), {prefix: None})
        again = zarr.open_array(reader.readonly_session("main").store, path="a", mode="r")
        np.testing.assert_array_equal(again[:], expected)


def test_a_packed_array_is_read_with_a_request_for_each_file() -> None:
    storage = committed()
    array = reopened(storage)
    np.testing.assert_array_equal(array[:], VALUES)
    assert len(storage.calls) == 1
    again = reopened(storage)
    storage.watch()
    np.testing.assert_array_equal(again[::2], VALUES[::2])
    assert len(storage.calls) == 1


def test_many_small_chunks_are_read_with_few_requests() -> None:
    storage = Watched(MemoryStorage())
    session = repository(storage).writable_session("main")
    values = np.arange(200 * 256, dtype="f8")
    create(session.store, shape=values.shape, chunks=(256,))[:] = values
    assert storage.calls == []
    session.commit("packed")
    assert len(storage.calls) == 1
    array = reopened(storage)
    storage.watch()
    np.testing.assert_array_equal(array[:], values)
    assert len(storage.calls) == 1


def test_large_chunks_are_read_with_a_request_each() -> None:
    storage = committed(LOOSE)
    array = reopened(storage)
    with limits(ALL_LARGE):
        np.testing.assert_array_equal(array[5:10], VALUES[5:10])
    assert len(storage.calls) == 5
    assert len(set(storage.calls)) == 5


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("packing", [LOOSE, Packing(target=3000, pending=3000)])
@pytest.mark.parametrize("fails", [0, 3, 9])
def test_a_write_that_fails_is_told_and_can_be_repeated(
    sizes: dict[str, int], packing: Packing, fails: int
) -> None:
    storage = Watched(MemoryStorage())
    session = repository(storage, packing).writable_session("main")
    with limits(sizes):
        array = create(session.store, fill_value=-1)
        storage.watch(lambda number: number == fails)
        with pytest.raises(StorageError, match="on purpose: put"):
            array[:] = VALUES
        storage.watch()
        rows = array[:]
        written = (rows == VALUES).all(axis=1)
        assert (rows[~written] == -1).all()
        assert not written.all()
        array[:] = VALUES
        session.commit("again")
    np.testing.assert_array_equal(reopened(storage)[:], VALUES)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("packing", [LOOSE, PACKED])
@pytest.mark.parametrize("fails", [0, 2])
def test_a_read_that_fails_is_told_and_can_be_repeated(
    sizes: dict[str, int], packing: Packing, fails: int
) -> None:
    storage = committed(packing)
    array = reopened(storage)
    storage.watch(lambda number: number >= fails)
    with limits(sizes):
        with pytest.raises(StorageError, match="on purpose: get"):
            array[:]
        storage.watch()
        np.testing.assert_array_equal(array[:], VALUES)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("packing", [LOOSE, PACKED])
@pytest.mark.parametrize("left", [None, 100])
def test_missing_bytes_are_an_error_and_no_fill_value(
    sizes: dict[str, int], packing: Packing, left: int | None
) -> None:
    storage = committed(packing)
    *_, last = [item.key for item in storage.scan("chunks/")]
    if left is None:
        storage.delete([last])
    else:
        storage.put(last, bytes(left), expect=Anything())
    array = reopened(storage)
    with limits(sizes), pytest.raises(StorageError, match=r"missing|shorter") as caught:
        array[:]
    assert caught.value.kind is Kind.OBJECT_MISSING


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(
    "codec", [ZstdCodec(level=1, checksum=True), GzipCodec(level=1), Crc32cCodec()]
)
def test_damaged_bytes_are_an_error_and_no_values(sizes: dict[str, int], codec: Any) -> None:
    storage = committed(LOOSE, compressors=[codec])
    *_, last = [item.key for item in storage.scan("chunks/")]
    found = storage.get(last)
    assert found is not None
    damaged = bytearray(found.data)
    damaged[len(damaged) // 2] ^= 0x10
    storage.put(last, damaged, expect=Anything())
    with limits(sizes), pytest.raises((ValueError, RuntimeError, OSError)):
        reopened(storage)[:]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("size", [1, 2040, 2047, 2049, 2056, 4096])
def test_chunks_of_another_size_are_an_error(sizes: dict[str, int], size: int) -> None:
    session = repository(MemoryStorage(), LOOSE).writable_session("main")
    array = create(session.store)
    array[:] = VALUES
    sync(session.store.set("a/c/3/0", Buffer.from_bytes(bytes(size))))
    with limits(sizes), pytest.raises(ValueError, match=r"reshape|dtype"):
        array[:]
    np.testing.assert_array_equal(array[4:], VALUES[4:])


@pytest.mark.parametrize("sizes", SIZES)
def test_many_threads_read_and_write_arrays_of_one_store(sizes: dict[str, int]) -> None:
    storage = MemoryStorage()
    session = repository(storage, PACKED).writable_session("main")
    root = zarr.group(session.store)

    def work(number: int) -> None:
        codec = [None, ZstdCodec(level=0), BloscCodec(cname="lz4")][number % 3]
        array = root.create_array(
            f"a{number}",
            shape=VALUES.shape,
            chunks=(1 + number, 100),
            dtype="f8",
            compressors=codec,
        )
        for turn in range(4):
            expected = VALUES + number + 100 * turn
            array[:] = expected
            np.testing.assert_array_equal(array[:], expected)
            array[turn, ::3] = expected[turn, ::3] = 0
            np.testing.assert_array_equal(array[turn], expected[turn])

    with limits(sizes), ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    session.commit("all")
    store = icechunk.Repository.open(storage).readonly_session("main").store
    expected = VALUES + 300
    expected[3, ::3] = 0
    arrays = [zarr.open_array(store, path=f"a{number}", mode="r") for number in range(6)]
    with limits(sizes), ThreadPoolExecutor(6) as pool:
        for number, values in enumerate(pool.map(lambda array: array[:], arrays)):
            cells = np.where(expected == 0, 0, expected + number)
            np.testing.assert_array_equal(values, cells)
