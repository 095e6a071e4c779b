"""Follow a branch: until one commit for a deferred sensor, endlessly for an asset watcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger

from airflow_provider_icechunk.engine.pipelines.observe import (
    CommitFilter,
    NewCommits,
    is_temporary,
    keep_position,
    poll_branch,
    position_key,
    read_position,
)
from airflow_provider_icechunk.exceptions import IcechunkError
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook, OpenRepository

from .base import STAMP, Gap, Pauses, check_stamp, failure, make_event, serialized

if TYPE_CHECKING:
    from airflow.triggers.base import TriggerEvent

    from airflow_provider_icechunk.api import Repository

WATERMARK = "last_snapshot_id"
"""Key of an asset watcher's position in the state store of its asset."""
_ARGUMENTS = (
    "repository", "branch", "icechunk_conn_id", "start_from", "path", "message_matches",
    "metadata_has", "poll_interval", "event_gap", "once", "watcher_id",
)  # fmt: skip


class IcechunkBranchTrigger(BaseEventTrigger):
    """Emit one event for every new commit on a branch, oldest first.

    In an `AssetWatcher` it runs endlessly. Its position is stored one interval after the events
    were emitted, so a triggerer that dies loses none; it may emit some again, which consumers
    recognise by `snapshot_id`. Airflow keeps the position with the asset since 3.3; before, an
    object in the repository's storage has it, below `watchers/`. If the branch no longer contains
    the last commit seen, the newest one is emitted with `reset` set. All errors are logged and
    retried.

    Events are spaced out because Airflow starts only one run for the events that arrive between two
    scheduler loops, and holds the others back until the next event.

    :param repository: path of the repository, relative to the connection's root.
    :param branch: the branch to follow.
    :param icechunk_conn_id: the Icechunk connection.
    :param start_from: where a watcher without stored state starts: at the `head` (only later
        commits match), at the `beginning`, or after the snapshot with this id.
    :param path: only commits that changed something at or under this path match.
    :param message_matches: only commits whose message contains a match of this regular expression
        match.
    :param metadata_has: only commits whose metadata has these entries match.
    :param poll_interval: seconds between polls.
    :param event_gap: minimum seconds between two events; longer than a scheduler loop, so that
        every commit starts its own run.
    :param once: stop after the first event, as deferred sensors need; a permanent error is also an
        event then.
    :param watcher_id: any text that distinguishes two watchers. Airflow runs identical triggers
        once, for one asset's state only: give each asset its own id.
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
        **stamp: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        check_stamp(stamp)
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
        self._opened = OpenRepository()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments, for the triggerer."""
        # The stamp is not for a watcher: to Airflow, other arguments are another watcher.
        return serialized(self, _ARGUMENTS, STAMP if self.once else {})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the events."""
        pauses, gap = Pauses(self.poll_interval), Gap(self.event_gap)
        start = ""
        if self.once:
            await asyncio.sleep(pauses.before_first_poll())
        while True:
            try:
                start = start or await self._watermark() or self.start_from
                seen = await asyncio.to_thread(self._poll, start)
            except Exception as error:
                if self.once:
                    if not isinstance(error, IcechunkError):
                        raise
                    if not is_temporary(error):
                        yield make_event(failure(error))
                        return
                # Airflow would restart a watcher that ended at once, endlessly.
                self.log.warning("Polling %s failed: %s", self.repository, error)
                await asyncio.sleep(pauses.after_failure())
                continue
            for event in seen.events:
                if self.once:
                    yield make_event({"status": "success", "result": dict(event)})
                    return
                await gap.keep()
                yield make_event(dict(event))
            # Stored only after this pause: by then Airflow has persisted the events.
            await asyncio.sleep(pauses.after_success())
            if seen.watermark != start:
                start = seen.watermark
                await self._remember(start)

    def _poll(self, start: str) -> NewCommits:
        def poll(repository: Repository) -> NewCommits:
            return poll_since(
                repository,
                self.repository,
                self.branch,
                start=start,
                conditions=CommitFilter(self.path, self.message_matches, self.metadata_has or {}),
            )

        return self._opened.ask(self.icechunk_conn_id, self.repository, poll)

    async def _watermark(self) -> str | None:
        if not self._has_state():
            return None if self.once else await asyncio.to_thread(self._read_position)
        if self.asset_state_store is None:
            return None
        stored = await self.asset_state_store.aget(WATERMARK)
        return stored if isinstance(stored, str) else None

    async def _remember(self, snapshot_id: str) -> None:
        try:
            if not self._has_state():
                await asyncio.to_thread(self._keep_position, snapshot_id)
            elif self.asset_state_store is not None:
                await self.asset_state_store.aset(WATERMARK, snapshot_id)
        except Exception as error:  # noqa: BLE001 - it is Airflow's, and may be any
            # Lost only if the triggerer ends before the next commit, which is then emitted again.
            self.log.warning("Cannot store the position in %s: %s", self.repository, error)

    def _has_state(self) -> bool:
        """Whether this Airflow keeps the state of assets, as it does since 3.3."""
        return hasattr(self, "asset_state_store")

    def _position_key(self) -> str:
        pace = ("poll_interval", "event_gap", "once", "icechunk_conn_id")
        return position_key({k: v for k, v in self.serialize()[1].items() if k not in pace})

    def _read_position(self) -> str | None:
        def read(repository: Repository) -> str | None:
            return read_position(repository.storage, self._position_key())

        return self._opened.ask(self.icechunk_conn_id, self.repository, read)

    def _keep_position(self, snapshot_id: str) -> None:
        def keep(repository: Repository) -> None:
            keep_position(repository.storage, self._position_key(), snapshot_id)

        self._opened.ask(self.icechunk_conn_id, self.repository, keep)


def poll_since(
    repository: Repository, name: str, branch: str, *, start: str, conditions: CommitFilter
) -> NewCommits:
    """New commits on a branch since `start`: `head`, `beginning` or a snapshot id."""
    if start == "head":
        return NewCommits(repository.lookup_branch(branch), [])
    since = None if start == "beginning" else start
    return poll_branch(repository, name, branch, since=since, conditions=conditions)
