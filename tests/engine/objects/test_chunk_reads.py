"""Reading chunks: neighbours together, ahead where reads go on, and never other bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import cast

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.format.chunk_refs import Native
from airflow_provider_icechunk.engine.format.ids import ChunkId
from airflow_provider_icechunk.engine.format.v1.codec import V1Layout
from airflow_provider_icechunk.engine.objects.chunk_reader import (
    ChunkReader,
    ReadAhead,
    Wanted,
    coalesce,
)
from airflow_provider_icechunk.engine.objects.chunk_writer import Packing
from airflow_provider_icechunk.engine.storage.base import Anything, Bounded, ByteRange, Fetched
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.storage.observed import ObservedStorage
from airflow_provider_icechunk.engine.tree.tree import WorkingTree
from airflow_provider_icechunk.engine.virtual.reader import VirtualReader
from airflow_provider_icechunk.exceptions import StorageError

FILE = ChunkId(b"a" * 12)
OTHER = ChunkId(b"b" * 12)


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.sampled_from([FILE, OTHER]), st.integers(0, 500), st.integers(1, 60)),
        max_size=30,
    ),
    st.integers(0, 50),
)
def test_joined_requests_cover_every_range_once_and_stay_narrow(
    ranges: list[tuple[ChunkId, int, int]], gap: int
) -> None:
    spans = {n: (file, start, start + size) for n, (file, start, size) in enumerate(ranges)}
    requests = coalesce(spans, gap=gap, widest=200)
    assert sorted(place for request in requests for place in request.pieces) == sorted(spans)
    for request in requests:
        assert request.stop - request.start <= 200
        for place in request.pieces:
            file, start, stop = spans[place]
            assert file == request.chunk_id
            assert request.start <= start < stop <= request.stop


def test_random_access_reads_exactly_what_was_asked() -> None:
    ahead = ReadAhead()
    for start in (5 << 20, 1 << 20, 9 << 20):
        assert ahead.extend(FILE, start, start + 100) == start + 100


def test_reads_that_go_on_take_twice_as_much_each_time_up_to_a_limit() -> None:
    ahead = ReadAhead(widest=2 << 20)
    stop, taken = 100, []
    ahead.extend(FILE, 0, stop)
    for _ in range(5):
        until = ahead.extend(FILE, stop, stop + 100)
        taken.append(until - stop - 100)
        stop += 100
    assert taken == [512 << 10, 1 << 20, 2 << 20, 2 << 20, 2 << 20]


def test_memory_for_what_was_read_ahead_is_bounded_and_answers_are_exact() -> None:
    ahead = ReadAhead(memory=1000)
    data = bytes(range(250)) * 2
    ahead.keep(FILE, 100, data)
    assert ahead.find(FILE, 110, 120) == data[10:20]
    assert ahead.find(FILE, 99, 120) is None
    assert ahead.find(FILE, 590, 601) is None
    ahead.keep(OTHER, 0, b"x" * 600)
    assert ahead.find(FILE, 110, 120) is None
    assert ahead.find(OTHER, 0, 3) == b"xxx"


def test_a_packed_array_is_read_in_few_requests_and_equal_in_any_order() -> None:
    storage = ObservedStorage(MemoryStorage())
    repo = icechunk.Repository.create(storage)
    session = repo.writable_session("main")
    values = np.arange(1024 * 1024, dtype="u4")
    array = zarr.create_array(
        session.store, name="a", shape=values.shape, chunks=(1024,), dtype="u4", compressors=None
    )
    array[:] = values
    session.commit("packed")
    assert len(list(storage.scan("chunks/"))) == 1
    reader = icechunk.Repository.open(storage)
    array = zarr.open_array(reader.readonly_session("main").store, path="a", mode="r")
    array[:1]
    storage.reset()
    np.testing.assert_array_equal(array[:], values)
    in_order = sum(storage.usage[verb].requests for verb in storage.usage if "get" in verb)
    assert in_order <= 20, f"{in_order} requests for 1024 chunks"
    for start in (700_000, 3, 512_345, 1_000_000):
        np.testing.assert_array_equal(array[start : start + 500], values[start : start + 500])


@pytest.mark.parametrize("chunk", [8 << 10, 64 << 10, 1 << 20])
def test_all_chunks_of_a_selection_are_under_way_together_however_they_are_stored(
    chunk: int,
) -> None:
    """Files of the official package have a chunk each: packed or not, the line is filled."""
    storage = ObservedStorage(MemoryStorage())
    repo = icechunk.Repository.create(storage, packing=Packing(below=0))
    values = np.random.default_rng(1).integers(0, 256, 64 * chunk, "u1")
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=values.shape, chunks=(chunk,), dtype="u1"
    )
    array[:] = values
    session.commit("a file for each chunk")
    tree = icechunk.Repository.open(storage).readonly_session("main").tree
    wanted = [Wanted(one, 0, one.length) for one in natives(tree, 64)]
    found: dict[int, bytes] = {}
    storage.reset()

    tree.read_each(wanted, lambda place, data: found.update({place: bytes(data)}))

    assert storage.usage["get"].requests == 64
    assert storage.depth == 1
    assert [found[place] for place in range(64)] == tree.read(wanted)


def natives(tree: WorkingTree, count: int) -> list[Native]:
    found = tree.chunks("/a", [(number,) for number in range(count)])
    return [one for one in found if isinstance(one, Native)]


def test_a_large_selection_of_packed_chunks_takes_bounded_memory() -> None:
    """Nothing waits in memory that was not asked for, and little is under way beside the values."""
    storage = Sized()
    session = icechunk.Repository.create(storage).writable_session("main")
    values = np.random.default_rng(1).integers(0, 256, 24 << 20, "u1")
    array = zarr.create_array(
        session.store,
        name="a",
        shape=values.shape,
        chunks=(16 << 10,),
        dtype="u1",
        compressors=None,
    )
    array[:] = values
    session.commit("packed")
    reader = zarr.open_array(
        icechunk.Repository.open(storage).readonly_session("main").store, path="a", mode="r"
    )
    storage.sizes.clear()

    np.testing.assert_array_equal(reader[:], values)

    assert max(storage.sizes) * ChunkReader.lanes <= values.nbytes // 3
    assert sum(storage.sizes) < values.nbytes + (1 << 20)


class Sized(MemoryStorage):
    """Remembers how much was read by each request."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        found = super().get(key, byte_range)
        self.sizes.append(0 if found is None else len(found.data))
        return found


class Slow(MemoryStorage):
    """Holds reads back until they are let go, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.free = Event()
        self.asked: list[ByteRange | None] = []
        self.fails = False

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        self.asked += [byte_range for _, byte_range in requests]
        assert self.free.wait(30)
        if self.fails:
            self.fails = False
            raise StorageError("lost")
        return super().get_many(requests)


def reading(storage: MemoryStorage) -> tuple[ChunkReader, Callable[[int], Wanted]]:
    """A reader that has begun to read ahead in a file of small chunks, and its chunks."""
    layout = V1Layout()
    data = bytes(range(256)) * 4096
    storage.put(layout.chunk(FILE), data, expect=Anything())
    reader = ChunkReader(storage, layout, cast("VirtualReader", None))
    chunks = [Wanted(Native(FILE, start, 4096), 0, 4096) for start in range(0, len(data), 4096)]
    for number in range(2):
        assert reader.read(chunks[number]) == data[:4096]
    return reader, chunks.__getitem__


@pytest.mark.parametrize("fails", [False, True])
def test_what_others_are_bringing_is_waited_for(fails: bool) -> None:
    storage = Slow()
    storage.free.set()
    reader, chunk = reading(storage)
    # Go on to where what the second read brought along ends.
    after = max(span.stop for span in storage.asked if isinstance(span, Bounded)) // 4096
    for number in range(2, after):
        reader.read(chunk(number))
    storage.asked.clear()
    storage.free.clear()
    storage.fails = fails
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(reader.read, chunk(after))
        while not storage.asked:
            pass
        second = pool.submit(reader.read, chunk(after + 5))
        storage.free.wait(0.2)  # Time enough to ask twice, if it would.
        storage.free.set()
        assert second.result() == bytes(range(256)) * 16
        assert isinstance(first.exception(), StorageError) is fails
    assert len(storage.asked) == (2 if fails else 1)
