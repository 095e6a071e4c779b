"""What the engine counts: as a server in the middle saw it, and as commits went through it."""

import os
import threading

import numpy as np
import pytest
import zarr
from support import moto_server
from support.lossy import Asked, Fate, losing

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine import counters
from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.exceptions import RebaseFailedError

PHASES = {
    "commit_seconds",
    "commit_rebase_seconds",
    "commit_store_seconds",
    "commit_branch_seconds",
}


def write(session: icechunk.Session, value: int) -> None:
    array = zarr.open_group(session.store, mode="a").require_array(
        "field", shape=(2,), chunks=(2,), dtype="i4"
    )
    array[:] = value


def test_requests_bytes_and_retries_are_those_that_the_store_saw(moto_endpoint: str) -> None:
    seen: list[Asked] = []

    def judge(asked: Asked) -> Fate:
        seen.append(asked)
        return Fate.FAULTS if len(seen) == 4 and asked.method == "GET" else Fate.PASSES

    with losing(moto_endpoint, judge) as address:
        storage = icechunk.s3_storage(
            bucket=moto_server.BUCKET, prefix="counted", endpoint_url=address, region="us-east-1",
            allow_http=True, force_path_style=True, **moto_server.KEYS,
        )  # fmt: skip
        storage.put("small", b"1234567", expect=Anything())
        seen.clear()
        counters.take()
        for _ in range(6):
            assert storage.get("small")
        storage.put("large", bytes(1000), expect=Anything())
    counted = counters.take()
    assert counted == {
        "requests": len(seen), "retries": 1, "bytes_read": 6 * 7, "bytes_written": 1000,
    }  # fmt: skip
    assert len(seen) == 8


def test_a_commit_counts_what_it_went_through() -> None:
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    first = repository.writable_session("main")
    write(first, 1)
    counters.take()
    first.commit("first")
    counted = counters.take()
    assert counted.pop("commits") == 1
    assert counted.keys() <= PHASES

    slow, quick = (repository.writable_session("main") for _ in range(2))
    zarr.create_array(slow.store, name="other", data=np.arange(3))
    write(quick, 2)
    quick.commit("quick")
    counters.take()
    slow.commit("slow", rebase_with=icechunk.ConflictDetector())
    counted = counters.take()
    assert (counted["commits"], counted["rebases"]) == (1, 1)
    assert counted.keys() >= PHASES
    assert "conflicts" not in counted


def test_a_conflict_is_counted_and_no_commit() -> None:
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    write(session, 1)
    session.commit("first")
    slow, quick = (repository.writable_session("main") for _ in range(2))
    write(slow, 3)
    write(quick, 2)
    quick.commit("quick")
    counters.take()
    with pytest.raises(RebaseFailedError):
        slow.commit("slow", rebase_with=icechunk.ConflictDetector())
    counted = counters.take()
    assert counted["conflicts"] == 1
    assert "commits" not in counted


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_threads_lose_nothing_and_a_fork_begins_at_nothing() -> None:
    counters.take()
    threads = [
        threading.Thread(target=lambda: [counters.add("requests") for _ in range(500)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    child = os.fork()
    if child == 0:
        os._exit(0 if counters.take() == {} else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert counters.take() == {"requests": 2000}
