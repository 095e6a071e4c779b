"""Poll without blocking the triggerer, and back off while the storage fails."""

from __future__ import annotations

import asyncio
import random
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.engine.pipelines.observe import is_temporary
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.workers.releases import RELEASE, both_releases
from airflow_provider_icechunk.engine.world import World
from airflow_provider_icechunk.exceptions import IcechunkError, InvalidInputError
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook, OpenRepository

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Repository

_LONGEST_PAUSE = 600.0
_LONGEST_FIRST_PAUSE = 5.0

STAMP = {RELEASE: __version__}
"""Goes into the rows of deferred tasks, which the triggerer of another release may find."""


def check_stamp(stamp: Mapping[str, Any]) -> None:
    """Refuse arguments that this release does not know, and say whose they are."""
    unknown = sorted(stamp.keys() - STAMP.keys())
    if unknown:
        raise InvalidInputError(
            f"this trigger has no argument {', '.join(unknown)}{both_releases(stamp.get(RELEASE))}"
        )


def serialized(
    trigger: BaseTrigger, names: Sequence[str], stamp: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The class of a trigger and some of its attributes, which are its arguments."""
    made = type(trigger)
    values = {name: getattr(trigger, name) for name in names}
    return f"{made.__module__}.{made.__qualname__}", {**values, **stamp}


class Pauses:
    """How long to wait: the interval, or after consecutive failures longer, with jitter."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.failures = 0
        self._backoff = Backoff(
            None,
            first_pause=interval * 2,
            longest_pause=max(interval, _LONGEST_PAUSE),
            world=World(jitter=lambda: random.uniform(0.5, 1.0)),  # noqa: S311 - no secret
        )

    def before_first_poll(self) -> float:
        """The pause after a sensor, which has just polled, deferred.

        Airflow 3.3 fails a task that resumes before the scheduler has seen that it deferred.
        """
        return min(self.interval, _LONGEST_FIRST_PAUSE)

    def after_success(self) -> float:
        """The pause after a successful poll."""
        self.failures = 0
        return self.interval

    def after_failure(self) -> float:
        """The pause after another failed poll."""
        self.failures += 1
        return self._backoff.pause(self.failures)


class Gap:
    """Keeps events at least some seconds apart."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._earliest = 0.0

    async def keep(self) -> None:
        """Wait until the previous call is long enough ago."""
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._earliest - clock()))
        self._earliest = clock() + self._seconds


class PollingTrigger(BaseTrigger):
    """Poll a repository until there is a result, and emit it as the event.

    The event is `{"status": "success", "result": ...}` or, after a permanent error, `{"status":
    "error", "kind": ..., "message": ...}`.
    """

    arguments: ClassVar[tuple[str, ...]]
    """The arguments of a subclass."""

    def __init__(
        self,
        *,
        repository: str,
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        poll_interval: float = 60.0,
        **stamp: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        check_stamp(stamp)
        self.repository = repository
        self.icechunk_conn_id = icechunk_conn_id
        self.poll_interval = poll_interval
        self._opened = OpenRepository()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments, for the triggerer."""
        names = ("repository", *self.arguments, "icechunk_conn_id", "poll_interval")
        return serialized(self, names, STAMP)

    @abstractmethod
    def poll(self, repository: Repository) -> dict[str, Any] | None:
        """The result, or `None` to keep waiting. Runs in a thread."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the event."""
        pauses = Pauses(self.poll_interval)
        await asyncio.sleep(pauses.before_first_poll())
        while True:
            try:
                answer = await asyncio.to_thread(self._open_and_poll)
            except IcechunkError as error:
                if not is_temporary(error):
                    yield make_event(failure(error))
                    return
                self.log.info("Not yet: %s", error)
                await asyncio.sleep(pauses.after_failure())
                continue
            if answer is not None:
                yield make_event({"status": "success", "result": answer})
                return
            await asyncio.sleep(pauses.after_success())

    def _open_and_poll(self) -> dict[str, Any] | None:
        return self._opened.ask(self.icechunk_conn_id, self.repository, self.poll)


def make_event(payload: dict[str, Any]) -> TriggerEvent:
    """An event with a JSON payload."""
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]


def failure(error: IcechunkError) -> dict[str, Any]:
    """The event for a permanent error."""
    return {"status": "error", "kind": error.kind.value, "message": str(error)}
