"""A cache on disk that processes share: bounded, private, and never wrong."""

from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import zarr

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine import core
from airflow_provider_icechunk.engine.objects.disk_cache import (
    FOLDER,
    LIMIT,
    CachedReads,
    DiskCache,
    disk_cache,
)
from airflow_provider_icechunk.engine.storage.base import Anything, Bounded
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.storage.observed import ObservedStorage
from airflow_provider_icechunk.exceptions import InvalidInputError


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


def test_what_was_kept_is_found_by_other_processes(tmp_path: Path) -> None:
    DiskCache(tmp_path / "c").put("one", b"bytes")
    assert DiskCache(tmp_path / "c").get("one") == b"bytes"
    assert DiskCache(tmp_path / "c").get("other") is None


def test_files_are_private(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "c")
    cache.put("one", b"bytes")
    for path in [tmp_path / "c", *(tmp_path / "c").rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077


@pytest.mark.parametrize("mode", [0o750, 0o702, 0o777])
def test_a_folder_that_others_can_enter_is_refused(mode: int, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c").chmod(mode)
    with pytest.raises(InvalidInputError, match="chmod 700"):
        DiskCache(tmp_path / "c")


@pytest.mark.parametrize("cut", [0, 1, 5, 29, 30, 35])
def test_a_truncated_file_counts_as_absent(cut: int, tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "c")
    cache.put("one", b"bytes of one")
    (path,) = files(tmp_path / "c")
    path.write_bytes(path.read_bytes()[:cut])
    assert cache.get("one") is None
    assert not files(tmp_path / "c")


def test_a_changed_or_exchanged_file_counts_as_absent(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "c")
    cache.put("one", b"bytes of one")
    (path,) = files(tmp_path / "c")
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert cache.get("one") is None, place
    cache.put("one", b"bytes of one")
    cache.put("two", b"bytes of two")
    (other,) = (found for found in files(tmp_path / "c") if found != path)
    path.write_bytes(other.read_bytes())
    assert cache.get("one") is None
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(other)
    assert cache.get("one") is None


def test_the_size_is_bounded_and_the_oldest_go_first(tmp_path: Path) -> None:
    limit = 4 << 20
    for _ in range(3):  # each as a new process would: with no memory of what is there
        cache = DiskCache(tmp_path / "c", limit)
        for number in range(1500):
            cache.put(f"{number} {os.urandom(4).hex()}", os.urandom(2000))
        assert size(tmp_path / "c") <= limit + limit // 16
    cache.put("last", b"used")
    assert cache.get("last") == b"used"


def test_what_is_too_large_is_not_kept(tmp_path: Path) -> None:
    DiskCache(tmp_path / "c", 64 << 10).put("one", bytes(1024))
    assert not files(tmp_path / "c")


def test_files_of_killed_writers_are_removed(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "c")
    cache.put("one", b"bytes")
    (path,) = files(tmp_path / "c")
    left = path.with_name(".left")
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    DiskCache(tmp_path / "c").put("one", b"bytes")
    assert files(tmp_path / "c") == [path]


def _write_all(folder: str) -> None:
    cache = DiskCache(folder, 4 << 20)
    for number in range(300):
        cache.put(str(number % 50), bytes([number % 50]) * 1000)
        data = cache.get(str((number * 7) % 50))
        assert data in (None, bytes([(number * 7) % 50]) * 1000)


def test_processes_share_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write_all, args=(str(tmp_path / "c"),)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4


def test_only_what_was_not_read_before_is_asked_for(tmp_path: Path) -> None:
    storage = ObservedStorage(MemoryStorage())
    storage.put("chunks/a", b"0123456789", expect=Anything())
    for expected in (3, 0):
        reads = CachedReads(storage, DiskCache(tmp_path / "c"))
        storage.reset()
        found = reads.get_many([("chunks/a", None), ("chunks/a", Bounded(2, 5))])
        assert [one and one.data for one in found] == [b"0123456789", b"234"]
        space = memoryview(bytearray(3))
        assert reads.get_into("chunks/a", 4, space) == 3
        assert bytes(space) == b"456"
        usage = storage.usage.get("get")
        assert (0 if usage is None else usage.requests) == expected


def test_a_disk_that_fails_does_not_fail_a_read(tmp_path: Path) -> None:
    storage = MemoryStorage()
    storage.put("chunks/a", b"0123456789", expect=Anything())
    reads = CachedReads(storage, DiskCache(tmp_path / "c"))
    (tmp_path / "c").rmdir()
    (tmp_path / "c").write_bytes(b"")
    found = reads.get("chunks/a")
    assert found is not None
    assert found.data == b"0123456789"


def test_a_second_process_reads_chunks_and_manifests_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = ObservedStorage(MemoryStorage())
    repo = icechunk.Repository.create(storage)
    session = repo.writable_session("main")
    values = np.arange(40_000, dtype="i4")
    zarr.create_array(session.store, name="a", data=values, chunks=(4000,), compressors=None)
    session.commit("values")
    monkeypatch.setenv(FOLDER, str(tmp_path / "c"))
    monkeypatch.setattr(core, "server_of", lambda _: core._Server(None))

    def read() -> int:
        storage.reset()
        opened = icechunk.Repository.open(storage).readonly_session("main")
        assert (zarr.open_array(opened.store, path="a")[:] == values).all()
        return storage.usage["get"].bytes

    assert read() > values.nbytes
    assert read() < 10_000


def test_the_environment_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    assert disk_cache() is None
    monkeypatch.setenv(FOLDER, str(tmp_path / "c"))
    monkeypatch.setenv(LIMIT, "1 GB")
    with pytest.raises(InvalidInputError, match=LIMIT):
        disk_cache()
