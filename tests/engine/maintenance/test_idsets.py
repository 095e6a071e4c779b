"""Sets of ids as columns behave as sets of bytes do, trailing zeros included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.maintenance import Clock

from airflow_provider_icechunk.engine.format.ids import encode_base32
from airflow_provider_icechunk.engine.maintenance import listing
from airflow_provider_icechunk.engine.maintenance.listing import abandoned_jobs, list_objects
from airflow_provider_icechunk.engine.maintenance.reachable import waves
from airflow_provider_icechunk.engine.storage.base import Absent
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.world import to_micros

few = st.sampled_from([b"\0" * 12, b"a" + b"\0" * 11, b"\0" * 11 + b"a", b"ab" + b"\0" * 10])
ids = st.lists(st.binary(min_size=12, max_size=12) | few, max_size=30)


@given(ids, ids)
def test_membership_is_that_of_sets(members: list[bytes], asked: list[bytes]) -> None:
    column = np.frombuffer(b"".join(asked), listing.DTYPE)
    found = listing.contains(listing.of_bytes(members), column)
    assert found.tolist() == [one in set(members) for one in asked]


@given(ids)
def test_a_set_is_sorted_and_without_repetition(members: list[bytes]) -> None:
    assert listing.whole(listing.of_bytes(members)) == sorted(set(members))


@given(ids)
def test_rows_and_ids_are_the_same_bytes(members: list[bytes]) -> None:
    rows = np.frombuffer(b"".join(members), np.uint8).reshape(-1, 12)
    assert (listing.to_rows(listing.from_rows(rows)) == rows).all()


@given(st.lists(ids, max_size=5))
def test_a_union_grows_to_the_union(parts: list[list[bytes]]) -> None:
    union = listing.IdUnion()
    for part in parts:
        union.add(np.frombuffer(b"".join(part), listing.DTYPE))
    assert listing.whole(union.ids()) == sorted({one for part in parts for one in part})


def test_a_union_merges_before_it_holds_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MERGE_AT", 10)
    union = listing.IdUnion()
    for _ in range(100):
        union.add(listing.of_bytes([b"x" * 12, b"y" * 12, b"z" * 12]))
    assert union._pending <= 10
    assert len(union.ids()) == 3


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 60))
def test_waves_are_bounded_and_lose_nothing(sizes: list[int], most: int) -> None:
    sized = [(bytes([place]), size) for place, size in enumerate(sizes)]
    found = list(waves(sized, most))
    assert [one for wave in found for one in wave] == [identity for identity, _ in sized]
    for wave in found:
        assert len(wave) == 1 or sum(sizes[one[0]] for one in wave) <= most


def test_a_listing_passes_over_what_is_not_named_like_an_object() -> None:
    clock = Clock()
    storage = MemoryStorage(clock=clock)
    identity = bytes(range(12))
    good = encode_base32(identity)
    for name in (
        good,
        "README.md",
        good[:-1] + "Z",
        good.lower(),
        good + "X",
        "sub/" + good,
        "é" * 20,
    ):
        storage.put(f"chunks/{name}", b"12345", expect=Absent())
    found = list_objects(storage, "chunks/")
    assert found.keys() == [f"chunks/{good}"]
    assert listing.whole(found.ids) == [identity]
    assert found.total_bytes == 5
    assert found.created.tolist() == [to_micros(clock.now)]


def test_a_listing_can_leave_out_what_is_young() -> None:
    clock = Clock()
    storage = MemoryStorage(clock=clock)
    old, young = encode_base32(b"o" * 12), encode_base32(b"y" * 12)
    storage.put(f"chunks/{old}", b"", expect=Absent())
    later = clock.wait(hours=1)
    storage.put(f"chunks/{young}", b"", expect=Absent())
    assert list_objects(storage, "chunks/", before=to_micros(later)).keys() == [f"chunks/{old}"]
    assert len(list_objects(storage, "chunks/")) == 2
    assert len(list_objects(storage, "nothing/")) == 0


def test_a_job_folder_with_one_young_file_is_kept_whole() -> None:
    clock = Clock()
    storage = MemoryStorage(clock=clock)
    for key in ("jobs/done/1", "jobs/done/2", "jobs/running/1", "jobs/loose"):
        storage.put(key, b"x", expect=Absent())
    limit = clock.wait(hours=1)
    storage.put("jobs/running/2", b"x", expect=Absent())
    found = abandoned_jobs(storage.scan("jobs/"), to_micros(limit))
    assert found.keys() == ["jobs/done/1", "jobs/done/2"]
    assert found.total_bytes == 2
