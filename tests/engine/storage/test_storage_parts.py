"""The small parts: keys, pool, retries, credentials, locations, counting, misbehaving storages."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_provider_icechunk.engine.concurrency import PerProcess, run_all, run_while_brief
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Anything,
    Put,
    Storage,
    Written,
    check_key,
    check_prefix,
)
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.location import locate
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.storage.observed import ObservedStorage
from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings
from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage
from airflow_provider_icechunk.engine.storage.secrets import Secret, static_credentials
from airflow_provider_icechunk.engine.world import World
from airflow_provider_icechunk.exceptions import InvalidInputError, StorageError
from airflow_provider_icechunk.testing.storages import (
    Crash,
    CrashingStorage,
    FlakyStorage,
    SlowStorage,
    every_crash,
)


@pytest.mark.parametrize("key", ["a", "a/b", "refs/branch.x y/ref.json", "chunks/0A", "a#b", "é"])
def test_ordinary_keys_pass(key: str) -> None:
    assert check_key(key) == key
    assert check_prefix(f"{key}/") == f"{key}/"


def test_the_empty_prefix_passes_and_the_empty_key_does_not() -> None:
    assert check_prefix("") == ""
    with pytest.raises(InvalidInputError):
        check_key("")


def test_all_results_come_in_order_with_bounded_threads() -> None:
    running = most = 0
    lock = threading.Lock()
    meeting = threading.Barrier(4)

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meeting.wait(10)
        with lock:
            running -= 1
        return number * 2

    assert run_all(work, range(20), at_once=4) == [number * 2 for number in range(20)]
    assert most == 4


def test_the_first_failure_is_raised_and_stops_the_rest() -> None:
    done = []

    def work(number: int) -> None:
        if number == 3:
            raise Crash("here")
        done.append(number)

    with pytest.raises(Crash):
        run_all(work, range(10_000), at_once=2)
    assert len(done) < 10_000


def test_work_inside_the_pool_does_not_wait_for_the_pool() -> None:
    def outer(number: int) -> list[int]:
        return run_all(lambda inner: number + inner, range(3), at_once=8)

    assert run_all(outer, range(200), at_once=64)[199] == [199, 200, 201]


def test_work_inside_the_pool_is_shared_with_free_threads() -> None:
    meeting = threading.Barrier(4)

    def outer(number: int) -> list[int]:
        return run_all(lambda inner: meeting.wait(60), range(4), at_once=4) if not number else []

    assert sorted(run_all(outer, range(2), at_once=2)[0]) == [0, 1, 2, 3]


def test_brief_work_stays_with_the_caller_and_long_work_is_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(
        "airflow_provider_icechunk.engine.concurrency.perf_counter", lambda: clock[0]
    )
    places: list[int] = []
    meeting = threading.Barrier(4)

    def work(number: int) -> int:
        places.append(threading.get_ident())
        if number == 100:
            clock[0] += 1.0
        if number > 100:
            meeting.wait(60)
        return number * 2

    doubled = [number * 2 for number in range(201)]
    assert run_while_brief(work, range(100), at_once=4) == doubled[:100]
    assert set(places) == {threading.get_ident()}
    assert run_while_brief(work, range(201), at_once=4) == doubled
    assert set(places[100 : 100 + 101]) == {threading.get_ident()}
    assert len(set(places[100 + 101 :])) == 4
    assert run_while_brief(work, [], at_once=4) == []


def test_each_process_makes_its_own_value(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    held = PerProcess(lambda: made.append(1) or object())
    first = held.get()
    assert held.get() is first
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert held.get() is not first


def test_pauses_grow_and_are_bounded_and_the_last_try_is_known() -> None:
    pauses: list[float] = []
    world = World(sleep=pauses.append, jitter=lambda: 1.0)
    backoff = Backoff(tries=5, first_pause=1.0, longest_pause=3.0, world=world)
    assert list(backoff.attempts()) == [False, False, False, False, True]
    assert pauses == [1.0, 2.0, 3.0, 3.0]
    with pytest.raises(InvalidInputError):
        Backoff(tries=0)


def test_processes_that_got_one_pickled_retry_do_not_draw_the_same_pauses() -> None:
    pickled = pickle.dumps(Backoff(first_pause=1.0))
    pauses = {pickle.loads(pickled).pause(1) for _ in range(5)}
    assert len(pauses) == 5


def test_a_secret_is_masked_and_neither_pickled_nor_copied_in_the_open() -> None:
    secret = Secret("hush")
    assert "hush" not in f"{secret} {secret!r} {[secret]} {vars}"
    assert secret.reveal() == "hush"
    assert secret == Secret(secret)
    assert copy.deepcopy(secret) is copy.copy(secret) is secret
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(secret)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(static_credentials("id", "hush"))


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("/data/repository", "file:///data/repository"),
        ("file:///data/with%20space", "file:///data/with space"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/some/prefix/", "s3://bucket/some/prefix"),
        ("memory://one", "memory://one"),
        ("gs://bucket/some/prefix/", "gs://bucket/some/prefix"),
        ("https://host/some/path/", "https://host/some/path"),
        (
            "abfss://container@account.dfs.core.windows.net/some",
            "abfs://container@account.dfs.core.windows.net/some",
        ),
    ],
)
def test_a_url_leads_to_its_storage(url: str, location: str) -> None:
    assert locate(url).location == location


def test_a_memory_name_is_one_storage() -> None:
    assert locate("memory://same") is locate("memory://same")
    assert locate("memory://same") is not locate("memory://different")


@pytest.mark.parametrize("url", ["s3://", "s3:///key", "gs://", "file://host/path", "memory://"])
def test_a_url_that_lacks_something_is_told_so(url: str) -> None:
    with pytest.raises(InvalidInputError, match="not a complete storage URL"):
        locate(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "relative/path",
        "ftp://host/path",
        "http://host/path",
        "https://user:password@host/path",
        "gs://user:password@bucket/x",
        "az://user:password@container/x",
        "az://container/x",
        "abfs://container@elsewhere.example/x",
        "file://host/path",
        "file:relative",
        "memory://",
        "memory://a/b",
        "s3://",
        "s3://user:password@bucket/x",
        "s3://bucket/x?versionId=1",
        "s3://bucket/../x",
    ],
)
def test_any_other_url_is_refused_without_showing_passwords(url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        locate(url)
    assert "password@" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoint_url": "http://host"},
        {"endpoint_url": "https://user:password@host"},
        {"endpoint_url": "ftp://host"},
        {"page_size": 0},
        {"part_size": 1},
        {"concurrency": 0},
        {"bucket": ""},
        {"bucket": "a/b"},
        {"prefix": "a/../b"},
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        S3Settings(**{"bucket": "b", **wrong})  # type: ignore[arg-type]
    assert "password@" not in str(caught.value)


def test_a_local_repository_imports_no_boto3(tmp_path: Path) -> None:
    script = (
        "import sys; from airflow_provider_icechunk.engine.storage.location import locate; "
        f"locate({str(tmp_path)!r}).get('a'); "
        "sys.exit(any(name in sys.modules for name in ('boto3', 'botocore', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_an_s3_storage_imports_boto3_only_when_it_asks(tmp_path: Path) -> None:
    script = (
        "import sys; from airflow_provider_icechunk.engine.storage.location import locate; "
        "locate('s3://bucket'); sys.exit('boto3' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_usage_is_counted_by_verb() -> None:
    ticks = iter(range(100))
    storage = ObservedStorage(MemoryStorage(), clock=lambda: float(next(ticks)))
    storage.put_many([Put("a", b"123"), Put("b", b"45")])
    storage.put("c", b"6", expect=Absent())
    storage.get_many([("a", None), ("none", None)])
    storage.get("b")
    list(storage.scan(""))
    storage.delete(["a", "b"])
    usage = storage.usage
    assert (usage["put"].requests, usage["put"].bytes, usage["put"].seconds) == (3, 6, 2.0)
    assert (usage["get"].requests, usage["get"].bytes) == (3, 5)
    assert usage["scan"].requests == 1
    assert usage["delete"].requests == 2
    storage.reset()
    assert storage.usage == {}


@pytest.mark.parametrize(
    "wrap", [ObservedStorage, CrashingStorage, FlakyStorage, lambda inner: SlowStorage(inner, 0)]
)
def test_wrappers_are_storages_that_do_the_work(wrap: object, tmp_path: Path) -> None:
    storage = wrap(LocalStorage(tmp_path))  # type: ignore[operator]
    assert isinstance(storage, Storage)
    assert isinstance(storage.put("a/b", b"1", expect=Absent()), Written)
    storage.put_many([Put("a/c", b"2")])
    storage.settle()
    assert [one.data for one in storage.get_many([("a/b", None), ("a/c", None)])] == [b"1", b"2"]
    assert [one.key for one in storage.scan("a/")] == ["a/b", "a/c"]
    assert storage.list_folders("") == ["a"]
    assert storage.head("a/b").size == 1
    assert storage.now().tzinfo is not None
    storage.check_conditional_writes()
    assert storage.delete(["a/b"]).keys == ("a/b",)
    assert storage.location == f"file://{tmp_path}"


def _three_writes(storage: Storage) -> None:
    for number in range(3):
        storage.put(f"chunks/{number}", b"", expect=Anything())


def test_every_crash_visits_each_call_before_and_after() -> None:
    left = [
        (point.call, point.after, [one.key for one in point.storage.scan("")])
        for point in every_crash(_three_writes)
    ]
    keys = [f"chunks/{number}" for number in range(3)]
    assert left == [
        (call, after, keys[: call + after]) for call in range(3) for after in (False, True)
    ]


def test_a_crashed_process_does_nothing_more() -> None:
    inner = MemoryStorage()
    storage = CrashingStorage(inner, 0, after=True)
    for _ in range(3):
        with pytest.raises(Crash):
            storage.put("a", b"", expect=Anything())
    assert inner.objects["a"].version == "1"


def test_a_scenario_that_touches_nothing_is_an_error() -> None:
    with pytest.raises(AssertionError):
        list(every_crash(lambda _: None))


def test_a_slow_storage_waits_before_each_call() -> None:
    waits: list[float] = []
    storage = SlowStorage(MemoryStorage(), 0.5, sleep=waits.append)
    storage.put("a", b"", expect=Anything())
    storage.get("a")
    assert waits == [0.5, 0.5]


def test_the_repr_of_a_storage_is_its_location(tmp_path: Path) -> None:
    assert repr(MemoryStorage(name="x")) == "<icechunk.Storage>\ntype: in-memory\n"
    local = f"<icechunk.Storage>\ntype: local filesystem\npath: {tmp_path}\n"
    assert repr(LocalStorage(tmp_path)) == local
    bucket = "<icechunk.Storage>\ntype: S3\nbucket: b\nprefix: p\n"
    assert repr(S3Storage(S3Settings("b", "p"))) == bucket


def test_errors_of_a_broken_folder_name_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    storage = LocalStorage(tmp_path)
    assert storage.get("file/below") is None
    with pytest.raises(StorageError, match="file"):
        storage.put("file/below", b"", expect=Anything())
