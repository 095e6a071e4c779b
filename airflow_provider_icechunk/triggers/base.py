"""Look again and again without blocking the triggerer, patiently when the storage stumbles."""

from __future__ import annotations

import asyncio
import random
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_icechunk.exceptions import IcechunkError
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.hooks.observing import is_temporary

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Repository

_LONGEST_PAUSE = 600.0
_LONGEST_FIRST_PAUSE = 5.0


class Pauses:
    """How long to wait: the interval, and after failures in a row ever longer, with jitter."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.failures = 0

    def before_first_look(self) -> float:
        """The pause after a sensor, which has just looked itself, has deferred.

        Airflow 3.3 fails a task that is resumed before its scheduler has taken note that the worker
        gave it back.
        """
        return min(self.interval, _LONGEST_FIRST_PAUSE)

    def after_success(self) -> float:
        """The pause after a look that worked."""
        self.failures = 0
        return self.interval

    def after_failure(self) -> float:
        """The pause after one more look that did not."""
        self.failures += 1
        longest = max(
            self.interval, min(_LONGEST_PAUSE, self.interval * 2.0 ** min(self.failures, 20))
        )
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter is no secret


class Gap:
    """Keeps two moments at least so many seconds apart."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._earliest = 0.0

    async def keep(self) -> None:
        """Wait until the last return of this is long enough ago."""
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._earliest - clock()))
        self._earliest = clock() + self._seconds


class PollingTrigger(BaseTrigger):
    """Ask one question of a repository until there is an answer, and pass that on as the event.

    The event is `{"status": "success", "result": ...}`, or, if waiting is hopeless, `{"status":
    "error", "kind": ..., "message": ...}`.
    """

    def __init__(self, *, repository: str, icechunk_conn_id: str, poll_interval: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.repository = repository
        self.icechunk_conn_id = icechunk_conn_id
        self.poll_interval = poll_interval

    @abstractmethod
    def look(self, repository: Repository) -> dict[str, Any] | None:
        """The answer, if there is one by now. Runs in a thread."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the one event."""
        pauses = Pauses(self.poll_interval)
        await asyncio.sleep(pauses.before_first_look())
        while True:
            try:
                answer = await asyncio.to_thread(self._open_and_look)
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

    def _open_and_look(self) -> dict[str, Any] | None:
        return self.look(IcechunkHook(self.icechunk_conn_id).open(self.repository))


def make_event(payload: dict[str, Any]) -> TriggerEvent:
    """An event with a payload of plain JSON."""
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]


def failure(error: IcechunkError) -> dict[str, Any]:
    """The event for an error that waiting does not cure."""
    return {"status": "error", "kind": error.kind.value, "message": str(error)}
