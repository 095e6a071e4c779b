"""Following a branch for ever: nothing is lost, whatever dies or stumbles."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent
from support.branch_changes import change

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.exceptions import AccessDeniedError, StorageError
from airflow_provider_icechunk.triggers.branch import WATERMARK, IcechunkBranchTrigger

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def repository(folder: Path) -> Repository:
    made = Repository.create(local_filesystem_storage(folder / "weather"))
    change(made, "begin")
    return made


class Store:
    """The state of an asset, as the triggerer injects it."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.stored = asyncio.Event()

    async def aget(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    async def aset(self, key: str, value: Any) -> None:
        self.values[key] = value
        self.stored.set()


def watcher(store: Store, **arguments: Any) -> IcechunkBranchTrigger:
    trigger = IcechunkBranchTrigger(
        **{"repository": "weather", "poll_interval": 0.01, "event_gap": 0.0, "watcher_id": "w"}
        | arguments
    )
    trigger.asset_state_store = store  # type: ignore[assignment]
    return trigger


async def take(events: AsyncIterator[TriggerEvent], count: int) -> list[dict[str, Any]]:
    return [dict((await anext(events)).payload) for _ in range(count)]


async def until(store: Store, snapshot_id: str, events: AsyncIterator[TriggerEvent]) -> None:
    """Let the watcher go on until it has stored how far it came."""
    task = asyncio.ensure_future(anext(events))
    while store.values.get(WATERMARK) != snapshot_id:
        await store.stored.wait()
        store.stored.clear()
    task.cancel()


def test_a_watcher_tells_every_commit_oldest_first_and_remembers_after_that(
    repository: Repository,
) -> None:
    begin = repository.lookup_branch("main")
    ids = [change(repository, f"{number}") for number in range(3)]

    async def watch() -> None:
        store = Store()
        store.values[WATERMARK] = begin
        events = watcher(store).run()
        told = await take(events, 3)
        assert [event["snapshot_id"] for event in told] == ids
        assert [event["parent_id"] for event in told] == [begin, *ids[:2]]
        assert store.values[WATERMARK] == begin
        # A triggerer that dies here tells them again: none is lost.
        assert await take(watcher(store).run(), 3) == told
        await until(store, ids[-1], events)
        later = await asyncio.to_thread(change, repository, "later")
        (event,) = await take(watcher(store).run(), 1)
        assert event["snapshot_id"] == later

    asyncio.run(watch())


@pytest.mark.parametrize("start", ["head", "beginning", "snapshot"])
def test_a_watcher_without_state_begins_where_it_is_told(
    repository: Repository, start: str
) -> None:
    begin = repository.lookup_branch("main")
    first_new = change(repository, "first")
    given = begin if start == "snapshot" else start

    async def watch() -> str:
        store = Store()
        events = watcher(store, start_from=given).run()
        if start == "head":
            await until(store, first_new, events)
            assert await asyncio.to_thread(change, repository, "second")
            events = watcher(store, start_from=given).run()
        (event,) = await take(events, 1)
        return str(event["message"])

    expected = {"head": "second", "beginning": "begin", "snapshot": "first"}
    assert asyncio.run(watch()) == expected[start]


def test_a_watcher_survives_every_error_of_the_storage(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = repository.lookup_branch("main")
    new = change(repository, "new")
    errors: list[Exception] = [
        StorageError("busy"), AccessDeniedError("no"), RuntimeError("no such connection"),
        StorageError("busy"),
    ]  # fmt: skip
    real = IcechunkBranchTrigger._poll

    def stumble(self: IcechunkBranchTrigger, start: str) -> Any:
        if errors:
            raise errors.pop()
        return real(self, start)

    monkeypatch.setattr(IcechunkBranchTrigger, "_poll", stumble)
    (event,) = asyncio.run(take(watcher(Store(), start_from=since).run(), 1))
    assert event["snapshot_id"] == new
    assert not errors


def test_a_watcher_survives_a_state_store_that_does_not_answer(repository: Repository) -> None:
    since = repository.lookup_branch("main")
    ids = [change(repository, f"{number}") for number in range(2)]

    class Stumbling(Store):
        fails = 2

        async def aget(self, key: str, default: Any = None) -> Any:
            self.stumble()
            return await super().aget(key, default)

        async def aset(self, key: str, value: Any) -> None:
            self.stumble()
            await super().aset(key, value)

        def stumble(self) -> None:
            if self.fails:
                self.fails -= 1
                raise OSError("no answer")

    async def watch() -> None:
        store = Stumbling()
        store.values[WATERMARK] = since
        events = watcher(store, start_from="beginning").run()
        told = await take(events, 2)
        assert [event["snapshot_id"] for event in told] == ids, "it began elsewhere"
        store.fails = 1
        later = await asyncio.to_thread(change, repository, "later")
        (event,) = await take(events, 1)
        assert event["snapshot_id"] == later
        assert store.values[WATERMARK] == since, "the store did answer"
        await until(store, later, events)

    asyncio.run(watch())


def test_events_keep_their_distance(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = repository.lookup_branch("main")
    for number in range(3):
        change(repository, f"{number}")
    waits: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    trigger = watcher(Store(), start_from=since, event_gap=7.0)
    asyncio.run(take(trigger.run(), 3))
    assert waits[0] == 0.0
    assert all(6.0 < wait <= 7.0 for wait in waits[1:3])


def test_an_airflow_without_state_of_assets_keeps_the_position_beside_the_data(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IcechunkBranchTrigger, "_has_state", lambda _: False)
    stored = asyncio.Event()
    keep = IcechunkBranchTrigger._keep_position

    def keep_and_tell(trigger: IcechunkBranchTrigger, snapshot_id: str) -> None:
        keep(trigger, snapshot_id)
        loop.call_soon_threadsafe(stored.set)

    monkeypatch.setattr(IcechunkBranchTrigger, "_keep_position", keep_and_tell)
    loop = asyncio.new_event_loop()

    async def follow(count: int, **arguments: Any) -> list[str]:
        given = {"repository": "weather", "poll_interval": 0.01, "event_gap": 0.0} | arguments
        trigger = IcechunkBranchTrigger(**given)
        events = trigger.run()
        found = [event["snapshot_id"] for event in await take(events, count)]
        rest = asyncio.ensure_future(anext(events))
        await stored.wait()
        stored.clear()
        rest.cancel()
        return found

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        first = change(repository, "first")
        begun = runner.run(follow(2, start_from="beginning", path="/"))
        assert begun[-1] == first
        second = change(repository, "second")
        # Another triggerer, at another pace, goes on where the first one stopped.
        went_on = runner.run(follow(1, start_from="beginning", path="/", poll_interval=0.02))
        assert went_on == [second]
    (kept,) = repository.storage.scan("watchers/")
    assert kept.key.endswith(".json")
