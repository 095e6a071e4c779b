from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_icechunk.engine.storage.base import Absent, Anything, Put
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.testing.conformance import StorageSuite


class TestMemoryStorage(StorageSuite):
    many = 1500
    increments = 25

    @pytest.fixture
    def storage(self) -> MemoryStorage:
        return MemoryStorage()


def test_times_come_from_the_injected_clock() -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    ticks = iter(start + timedelta(days=n) for n in range(10))
    storage = MemoryStorage(clock=lambda: next(ticks))
    storage.put("a", b"", expect=Anything())
    storage.put("b", b"", expect=Anything())
    times = [one.created_at for one in storage.scan("")]
    assert times == [start, start + timedelta(days=1)]
    assert storage.now() == start + timedelta(days=2)


def test_metadata_is_kept_for_tests_to_see() -> None:
    storage = MemoryStorage(name="seen")
    storage.put("a", b"", expect=Absent(), metadata={"x": "y"}, content_type="text/plain")
    storage.put_many([Put("b", b"", {"z": "1"})])
    assert storage.objects["a"].metadata == {"x": "y"}
    assert storage.objects["a"].content_type == "text/plain"
    assert storage.objects["b"].metadata == {"z": "1"}
    assert storage.location == "memory://seen"


def test_a_scan_is_not_disturbed_by_writes_and_deletes_meanwhile() -> None:
    storage = MemoryStorage()
    storage.put_many([Put(f"{n}", b"") for n in range(5)])
    found = []
    for one in storage.scan(""):
        storage.delete(["3"])
        storage.put("9", b"", expect=Anything())
        found.append(one.key)
    assert found == ["0", "1", "2", "3", "4"]
