"""Waiting: poking and deferring give the same answers; what can not come fails at once."""

import asyncio
import importlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import zarr
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    TaskDeferred,
)
from airflow.serialization.serialized_objects import BaseSerialization
from airflow.triggers.base import BaseTrigger, TriggerEvent
from support.airflow_contexts import make_context
from support.branch_changes import change
from support.provider_classes import AT, DATASET, listed, parameters
from support.typed_ids import spellings

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.engine.datasets.declare import ensure
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.sensors.branch import IcechunkBranchSensor
from airflow_provider_icechunk.sensors.coverage import IcechunkCoverageSensor
from airflow_provider_icechunk.sensors.presence import IcechunkNodeSensor, IcechunkTagSensor
from airflow_provider_icechunk.triggers.base import Pauses
from airflow_provider_icechunk.triggers.branch import IcechunkBranchTrigger
from airflow_provider_icechunk.triggers.coverage import IcechunkCoverageTrigger
from airflow_provider_icechunk.triggers.presence import IcechunkNodeTrigger, IcechunkTagTrigger

pytestmark = pytest.mark.timeout(60)
WAIT = {"poke_interval": 0.01, "timeout": 30}


@pytest.fixture
def repository(folder: Path) -> Repository:
    made = Repository.create(local_filesystem_storage(folder / "weather"))
    change(made, "begin")
    return made


def sensor(kind: type, /, **arguments: Any) -> Any:
    return kind(**{"task_id": "wait", "repository": "weather", **WAIT, **arguments})


def poked(kind: type, /, **arguments: Any) -> dict[str, Any] | None:
    """What one poke says."""
    return sensor(kind, **arguments).poke(make_context()).xcom_value


async def first(trigger: BaseTrigger) -> dict[str, Any]:
    events: AsyncIterator[TriggerEvent] = trigger.run()
    async for event in events:
        return dict(event.payload)
    raise AssertionError("the trigger ended without an event")


def deferred(kind: type, /, **arguments: Any) -> tuple[Any, BaseTrigger]:
    """A sensor that had to defer, and the trigger it left after a journey through JSON."""
    waiting = sensor(kind, deferrable=True, **arguments)
    with pytest.raises(TaskDeferred) as caught:
        waiting.execute(make_context())
    assert caught.value.method_name == "execute_complete"
    return waiting, travelled(caught.value.trigger)


def travelled(trigger: BaseTrigger) -> BaseTrigger:
    path, arguments = trigger.serialize()
    module, _, name = path.rpartition(".")
    stored = json.loads(json.dumps(BaseSerialization.serialize(arguments)))
    return getattr(importlib.import_module(module), name)(**BaseSerialization.deserialize(stored))


TRAVELLERS = [
        IcechunkBranchTrigger(
            repository="a/b", branch="dev", icechunk_conn_id="c", start_from="beginning", path="/x",
            message_matches="^x", metadata_has={"k": [1, {"n": None}]}, poll_interval=1.5,
            event_gap=2.5, once=True, watcher_id="w",
        ),
        IcechunkBranchTrigger(repository="a"),
        IcechunkTagTrigger(repository="a", tag="v1", icechunk_conn_id="c", poll_interval=2.0),
        IcechunkNodeTrigger(
            repository="a", path="/x", branch="dev", kind="array", attributes={"k": 1},
            minimum_shape=[1, 2], icechunk_conn_id="c", poll_interval=2.0,
        ),
        IcechunkCoverageTrigger(
            repository="a", dataset=DATASET.to_json(), at=AT, variables=["daily"], branch="dev",
            icechunk_conn_id="c", poll_interval=2.0,
        ),
]  # fmt: skip


def test_every_trigger_travels() -> None:
    assert {type(one) for one in TRAVELLERS} == set(listed("triggers"))
    for one in TRAVELLERS:
        given = set(one.serialize()[1]) - {"release"}
        assert given == set(parameters(type(one))) - {"stamp"}, "an argument is lost on the way"


def test_rows_of_deferred_tasks_say_who_wrote_them_and_watchers_stay_who_they_are() -> None:
    stamped = [one for one in TRAVELLERS if one.serialize()[1].get("release") == __version__]
    assert [one for one in TRAVELLERS if one not in stamped] == [TRAVELLERS[1]]


@pytest.mark.parametrize("trigger", TRAVELLERS)
def test_a_row_of_another_release_is_taken_or_refused_with_both_names(trigger: BaseTrigger) -> None:
    arguments = {**trigger.serialize()[1], "release": "0.0.9"}
    assert type(trigger)(**arguments).serialize() == trigger.serialize()
    with pytest.raises(InvalidInputError, match=f"argument later.*'0.0.9'.* {__version__}"):
        type(trigger)(**arguments, later=1)


@pytest.mark.parametrize("trigger", TRAVELLERS)
def test_a_trigger_travels_with_all_its_arguments(trigger: BaseTrigger) -> None:
    copy = travelled(trigger)
    assert type(copy) is type(trigger)
    assert copy.serialize() == trigger.serialize()
    arguments = trigger.serialize()[1]
    arguments.pop("release", None)
    assert {name: getattr(trigger, name) for name in arguments} == arguments


def meet_day(repository: Repository) -> None:
    session = repository.writable_session("main")
    placed = ensure(session, DATASET, DATASET.place(AT))
    zarr.open_array(session.store, path="daily", mode="r+")[slice(*placed.regions["day"])] = 1
    session.commit("day")


def meet_branch(repository: Repository) -> None:
    change(repository, "next", quality="good")


CASES: list[tuple[type, dict[str, Any], Callable[[Repository], Any]]] = [
    (IcechunkBranchSensor, {}, meet_branch),
    (IcechunkBranchSensor, {"message_matches": "^ne.t$"}, meet_branch),
    (IcechunkBranchSensor, {"metadata_has": {"quality": "good"}}, meet_branch),
    (IcechunkBranchSensor, {"path": "b"}, lambda repo: change(repo, "next", "b/x")),
    (
        IcechunkTagSensor,
        {"tag": "v1"},
        lambda repo: repo.create_tag("v1", repo.lookup_branch("main")),
    ),
    (
        IcechunkNodeSensor,
        {"path": "b/x", "kind": "array", "attributes": {"ready": True}, "minimum_shape": [2]},
        lambda repo: change(repo, "next", "b/x"),
    ),
    (IcechunkCoverageSensor, {"dataset": DATASET, "at": AT}, lambda repo: meet_day(repo)),
]


def test_every_sensor_is_compared() -> None:
    assert {kind for kind, _, _ in CASES} == set(listed("sensors"))


@pytest.mark.parametrize("mode", ["poke", "reschedule", "deferrable"])
@pytest.mark.parametrize(("kind", "arguments", "meet"), CASES)
def test_what_does_not_come_is_waited_for_in_every_mode(
    repository: Repository, kind: type, arguments: dict[str, Any], meet: object, mode: str
) -> None:
    del meet
    if kind is IcechunkBranchSensor:
        arguments = {**arguments, "since_snapshot_id": repository.lookup_branch("main")}
    waiting: dict[str, tuple[dict[str, Any], type[BaseException]]] = {
        "poke": ({"timeout": 0.02}, AirflowSensorTimeout),
        "reschedule": ({"mode": "reschedule", "poke_interval": 60}, AirflowRescheduleException),
        "deferrable": ({"deferrable": True}, TaskDeferred),
    }
    given, error = waiting[mode]
    with pytest.raises(error):
        sensor(kind, **arguments, **given).execute(make_context())


@pytest.mark.parametrize(("kind", "arguments", "meet"), CASES)
def test_poking_and_deferring_give_the_same_answer(
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    kind: type,
    arguments: dict[str, Any],
    meet: Callable[..., Any],
) -> None:
    if kind is IcechunkBranchSensor:
        arguments = {**arguments, "since_snapshot_id": repository.lookup_branch("main")}
    assert poked(kind, **arguments) is None
    waiting, trigger = deferred(kind, **arguments)

    polls = threading.Semaphore(0)
    really_open = IcechunkHook.open

    def counted(hook: IcechunkHook, *given: Any, **options: Any) -> Repository:
        polls.release()
        return really_open(hook, *given, **options)

    async def wait() -> dict[str, Any]:
        task = asyncio.create_task(first(trigger))
        # A second poll begins when the first one has found nothing.
        for _ in range(2):
            await asyncio.to_thread(polls.acquire)
        assert not task.done()
        await asyncio.to_thread(meet, repository)
        return await task

    with monkeypatch.context() as patched:
        patched.setattr(IcechunkHook, "open", counted)
        event = asyncio.run(wait())
    answer = waiting.execute_complete(make_context(), event)
    assert answer == poked(kind, **arguments)
    assert answer == sensor(kind, deferrable=True, **arguments).execute(make_context())
    for mode in ("poke", "reschedule"):
        assert answer == sensor(kind, mode=mode, **arguments).execute(make_context())
    assert json.loads(json.dumps(answer)) == answer


def test_a_commit_that_does_not_matter_is_passed_over(repository: Repository) -> None:
    since = repository.lookup_branch("main")
    change(repository, "noise", "a/x")
    wanted = change(repository, "signal", "b/x")
    change(repository, "later", "b/x")
    for condition in ({"path": "/b/"}, {"message_matches": "signal"}):
        answer = poked(IcechunkBranchSensor, since_snapshot_id=since, **condition)
        assert answer is not None
        assert (answer["snapshot_id"], answer["reset"]) == (wanted, False)
    assert poked(IcechunkBranchSensor, since_snapshot_id=since, path="b/xy") is None


def test_the_snapshot_to_wait_after_may_be_typed_in_any_spelling(repository: Repository) -> None:
    since = repository.lookup_branch("main")
    for typed in spellings(since):
        assert poked(IcechunkBranchSensor, since_snapshot_id=typed) is None
    wanted = change(repository, "wanted")
    for typed in spellings(since):
        answer = poked(IcechunkBranchSensor, since_snapshot_id=typed)
        assert answer is not None
        assert (answer["snapshot_id"], answer["reset"]) == (wanted, False)


def test_without_a_snapshot_every_commit_counts_but_not_the_empty_beginning(
    folder: Path,
) -> None:
    made = Repository.create(local_filesystem_storage(folder / "weather"))
    assert poked(IcechunkBranchSensor) is None
    change(made, "one")
    answer = poked(IcechunkBranchSensor)
    assert answer is not None
    assert answer["message"] == "one"


def test_a_branch_that_lost_the_snapshot_says_reset(repository: Repository) -> None:
    begin = repository.lookup_branch("main")
    lost = change(repository, "lost")
    repository.reset_branch("main", begin)
    head = change(repository, "instead")
    answer = poked(IcechunkBranchSensor, since_snapshot_id=lost)
    assert answer is not None
    assert (answer["snapshot_id"], answer["reset"]) == (head, True)


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    ("kind", "arguments", "says"),
    [
        (IcechunkBranchSensor, {"since_snapshot_id": "None"}, "invalid snapshot id"),
        (IcechunkBranchSensor, {"message_matches": "("}, "regular expression"),
        (IcechunkNodeSensor, {"path": "a", "kind": "table"}, "kind"),
        (IcechunkTagSensor, {"tag": "v", "repository": "../x"}, "outside_root"),
    ],
)
def test_what_can_never_come_fails_in_every_mode(
    kind: type, arguments: dict[str, Any], says: str
) -> None:
    with pytest.raises(AirflowFailException, match=says):
        sensor(kind, **arguments).poke(make_context())
    waiting = sensor(kind, **arguments)
    event = asyncio.run(first(travelled(waiting.make_trigger())))
    with pytest.raises(AirflowFailException, match=says):
        waiting.execute_complete(make_context(), event)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (IcechunkBranchSensor, {}),
        (IcechunkTagSensor, {"tag": "v1"}),
        (IcechunkNodeSensor, {"path": "a"}),
    ],
)
def test_a_damaged_repository_is_not_waited_for(
    repository: Repository, folder: Path, kind: type, arguments: dict[str, Any]
) -> None:
    assert repository.spec_version == "1"
    (folder / "weather" / "repo").write_bytes(b"")
    with pytest.raises(AirflowFailException, match=r"format_invalid: .*/repo: it is empty"):
        sensor(kind, **arguments).poke(make_context())
    event = asyncio.run(first(travelled(sensor(kind, **arguments).make_trigger())))
    assert (event["status"], event["kind"]) == ("error", "format_invalid")


@pytest.mark.usefixtures("folder")
def test_a_repository_or_branch_that_is_not_there_yet_is_waited_for(folder: Path) -> None:
    assert poked(IcechunkTagSensor, tag="v1") is None
    made = Repository.create(local_filesystem_storage(folder / "weather"))
    assert poked(IcechunkBranchSensor, branch="dev") is None
    assert poked(IcechunkNodeSensor, path="a", branch="dev") is None
    made.create_branch("dev", made.lookup_branch("main"))
    change(made, "one", branch="dev")
    assert poked(IcechunkBranchSensor, branch="dev") is not None
    assert poked(IcechunkNodeSensor, path="a", branch="dev", kind="array") is None
    assert poked(IcechunkNodeSensor, path="a/x", branch="dev", minimum_shape=[3]) is None
    assert poked(IcechunkNodeSensor, path="a/x", branch="dev", minimum_shape=[1, 1]) is None
    found = poked(IcechunkNodeSensor, path="a", branch="dev", kind="group")
    assert found is not None
    assert (found["path"], found["shape"]) == ("/a", None)


def test_a_deferred_sensor_hands_on_what_nobody_expected(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such connection")

    monkeypatch.setattr(IcechunkBranchTrigger, "_poll", fail)
    trigger = IcechunkBranchTrigger(repository="weather", once=True, poll_interval=0.01)
    with pytest.raises(RuntimeError):
        asyncio.run(first(trigger))


@pytest.mark.parametrize(("interval", "pause"), [(60.0, 5.0), (2.0, 2.0)])
@pytest.mark.parametrize(
    "trigger",
    [
        lambda **given: IcechunkBranchTrigger(start_from="beginning", once=True, **given),
        lambda **given: IcechunkTagTrigger(tag="v1", **given),
        lambda **given: IcechunkNodeTrigger(path="a/x", **given),
    ],
)
def test_a_deferred_sensor_is_not_resumed_before_airflow_knows_that_it_deferred(
    trigger: Callable[..., BaseTrigger],
    interval: float,
    pause: float,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository.create_tag("v1", repository.lookup_branch("main"))
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def first() -> TriggerEvent:
        return await anext(trigger(repository="weather", poll_interval=interval).run())

    assert asyncio.run(first()).payload["status"] == "success"
    assert slept == [pause]


def test_pauses_grow_with_failures_and_stay_bounded() -> None:
    pauses = Pauses(10.0)
    waits = [pauses.after_failure() for _ in range(100)]
    assert waits[0] <= 20.0
    assert all(5.0 <= wait <= 600.0 for wait in waits)
    assert waits[-1] >= 300.0
    assert pauses.after_success() == 10.0
    assert pauses.after_failure() <= 20.0


def test_what_a_sensor_waits_for_stays_the_same_between_two_polls(repository: Repository) -> None:
    waiting = sensor(IcechunkBranchSensor, since_snapshot_id=repository.lookup_branch("main"))
    before = dict(vars(waiting))
    waiting.poke(make_context())
    change(repository, "next")
    waiting.poke(make_context())
    assert vars(waiting) == before
