"""Follow a branch: for a deferred sensor until one commit, for an asset watcher for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger

from airflow_provider_icechunk.exceptions import IcechunkError
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.hooks.observing import (
    Conditions,
    Seen,
    is_temporary,
    look_at_branch,
)
from airflow_provider_icechunk.triggers.polling import Gap, Pauses, failure, make_event

if TYPE_CHECKING:
    from airflow.triggers.base import TriggerEvent

    from airflow_provider_icechunk.api import Repository

WATERMARK = "last_snapshot_id"
"""Where an asset watcher keeps, in the state store of its asset, how far it has come."""


class IcechunkBranchTrigger(BaseEventTrigger):
    """One event for every new commit on a branch, oldest first.

    In an `AssetWatcher` it runs for ever. How far it came is stored one interval after the events
    were handed over, so that a triggerer that dies loses none; one that dies in between tells the
    same commits again, and consumers can tell by `snapshot_id`. If the branch no longer contains
    what was seen last, the newest commit is told with `reset` set. Errors are logged and waited
    out, whatever they are.

    Events keep a distance, because Airflow starts a run with the first of several that come between
    two rounds of its scheduler, and keeps the others until the next event comes.

    :param repository: path below the root of the connection.
    :param branch: the branch to follow.
    :param icechunk_conn_id: the connection.
    :param start_from: where a watcher begins that has no state yet: at the `head`, so that only
        later commits count, at the `beginning`, or after the snapshot with this id.
    :param path: tell only commits that changed something at or below this path.
    :param message_matches: tell only commits in whose message this regular expression is found.
    :param metadata_has: tell only commits whose metadata has these entries.
    :param poll_interval: seconds between two looks.
    :param event_gap: least number of seconds between two events; longer than a round of the
        scheduler, so that every commit starts a run of its own.
    :param once: end after the first event, as a deferred sensor needs it, or with an error event if
        waiting is hopeless.
    :param watcher_id: anything that tells two watchers apart. Airflow runs equal triggers once and
        cannot keep the state of two assets then: give each asset its own.
    """

    def __init__(
        self,
        *,
        repository: str,
        branch: str = "main",
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        start_from: str = "head",
        path: str | None = None,
        message_matches: str | None = None,
        metadata_has: Mapping[str, Any] | None = None,
        poll_interval: float = 60.0,
        event_gap: float = 5.0,
        once: bool = False,
        watcher_id: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.repository = repository
        self.branch = branch
        self.icechunk_conn_id = icechunk_conn_id
        self.start_from = start_from
        self.path = path
        self.message_matches = message_matches
        self.metadata_has = metadata_has
        self.poll_interval = poll_interval
        self.event_gap = event_gap
        self.once = once
        self.watcher_id = watcher_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments, for the triggerer."""
        return (
            "airflow_provider_icechunk.triggers.branch.IcechunkBranchTrigger",
            {
                "repository": self.repository,
                "branch": self.branch,
                "icechunk_conn_id": self.icechunk_conn_id,
                "start_from": self.start_from,
                "path": self.path,
                "message_matches": self.message_matches,
                "metadata_has": self.metadata_has,
                "poll_interval": self.poll_interval,
                "event_gap": self.event_gap,
                "once": self.once,
                "watcher_id": self.watcher_id,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the events."""
        pauses, gap = Pauses(self.poll_interval), Gap(self.event_gap)
        start = ""
        if self.once:
            await asyncio.sleep(pauses.before_first_look())
        while True:
            try:
                start = start or await self._watermark() or self.start_from
                seen = await asyncio.to_thread(self._look, start)
            except Exception as error:
                if self.once:
                    if not isinstance(error, IcechunkError):
                        raise
                    if not is_temporary(error):
                        yield make_event(failure(error))
                        return
                # A watcher that ended would be started again at once, for ever.
                self.log.warning("Looking at %s failed: %s", self.repository, error)
                await asyncio.sleep(pauses.after_failure())
                continue
            for event in seen.events:
                if self.once:
                    yield make_event({"status": "success", "result": dict(event)})
                    return
                await gap.keep()
                yield make_event(dict(event))
            # Stored only after this pause: by then Airflow has written the events down.
            await asyncio.sleep(pauses.after_success())
            if seen.upto != start:
                start = seen.upto
                await self._remember(start)

    def _look(self, start: str) -> Seen:
        repository = IcechunkHook(self.icechunk_conn_id).open(self.repository)
        return look(
            repository,
            self.repository,
            self.branch,
            start=start,
            conditions=Conditions(self.path, self.message_matches, self.metadata_has or {}),
        )

    async def _watermark(self) -> str | None:
        if self.asset_state_store is None:
            return None
        stored = await self.asset_state_store.aget(WATERMARK)
        return stored if isinstance(stored, str) else None

    async def _remember(self, snapshot_id: str) -> None:
        if self.asset_state_store is None:
            return
        try:
            await self.asset_state_store.aset(WATERMARK, snapshot_id)
        except Exception as error:  # noqa: BLE001 - it is Airflow's, and may be any
            # Forgotten only if the triggerer ends before the next commit, and told again then.
            self.log.warning("How far %s was told is not stored: %s", self.repository, error)


def look(
    repository: Repository, name: str, branch: str, *, start: str, conditions: Conditions
) -> Seen:
    """What is new on a branch since `start`: `head`, `beginning` or a snapshot id."""
    if start == "head":
        return Seen(repository.lookup_branch(branch), [])
    since = None if start == "beginning" else start
    return look_at_branch(repository, name, branch, since=since, conditions=conditions)
