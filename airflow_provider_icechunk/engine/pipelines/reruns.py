"""Decide what an attempt of a task must do: its work, its work again, or nothing because it is
done.

A retry after a crash finds the commit of the previous attempt and returns it. A deliberate rerun (a
cleared task or run, a backfill that reprocesses) does the work again. Airflow raises `max_tries`
only when a task is cleared, so the token of a commit contains it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.history.ancestry import SnapshotInfo
    from airflow_provider_icechunk.engine.repository import Repository

log = logging.getLogger(__name__)

OnRerun = Literal["replace", "skip", "always"]
"""What a deliberate rerun does: its work, nothing, or its work in every retry too."""

METADATA_KEY = "airflow"
"""Metadata of a snapshot that says which task committed it."""
SUPERSEDES_KEY = "supersedes"
"""Key below it: the snapshot of an earlier run of the same task that this one supersedes."""
RESULT_KEY = "result"
"""Key below it: what the task's function returned, for an attempt that finds the commit."""
CHUNKS_KEY = "chunks"
"""Below it: how many chunks writers left for the commit, for an attempt that finds it."""
LARGEST_RESULT = 4096
"""Bytes of JSON that are kept with a commit: everybody who walks the history reads them."""

_NEWEST = 1_000
_RUN = re.compile(r"@[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of one task instance."""

    identity: str
    """Dag, run, task and map index: the same for every attempt and every rerun."""
    run: int
    """The same for an attempt and its retries, but another once the task was cleared."""
    number: int
    """Counts all attempts ever made."""
    is_rerun: bool
    """Whether the task was cleared at some time."""
    is_first: bool
    """Whether no attempt came before it since the task was cleared, or at all."""
    since: datetime | None
    """The time before which the task instance cannot have committed anything, if it is known."""
    on_rerun: OnRerun

    @property
    def token(self) -> str:
        """The token of the commit: the same for all attempts that must commit once together."""
        attempt = f".{self.number}" if self.on_rerun == "always" else ""
        return f"{self.identity}@{self.run}{attempt}"

    def made(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a snapshot with this metadata is a commit of the task instance, of any run."""
        token = _token(metadata)
        if not isinstance(token, str) or not token.startswith(self.identity):
            return False
        return not (rest := token[len(self.identity) :]) or _RUN.fullmatch(rest) is not None

    def is_answered_by(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a commit of the task instance with this metadata leaves nothing to do."""
        return self.on_rerun == "skip" or self.is_of_this_run(metadata)

    def is_of_this_run(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a snapshot with this metadata was committed for the same run of the task."""
        token = _token(metadata)
        # Earlier releases used only the identity, which only a retry can have left now.
        return token == self.token or (token == self.identity and not self.is_rerun)


@dataclass(frozen=True, slots=True)
class EarlierCommit:
    """The newest commit of a task instance, found by a later attempt of it."""

    info: SnapshotInfo
    answers: bool
    """Whether the attempt only has to return it."""
    is_of_this_run: bool
    """Whether it was made since the task was last cleared, so it has not been reported yet."""
    is_below_base: bool
    """Whether the session to commit is based on it, or on something after it."""

    @classmethod
    def of_this_run(cls, info: SnapshotInfo) -> EarlierCommit:
        """A commit by a concurrent attempt of the same run."""
        return cls(info, answers=True, is_of_this_run=True, is_below_base=False)

    @property
    def is_known(self) -> bool:
        """Whether an earlier run of the task has already reported it."""
        return self.answers and not self.is_of_this_run

    @property
    def attempt(self) -> int | None:
        """The number of the attempt that made it."""
        return attempt_that_made(self.info)

    @property
    def supersedes(self) -> str | None:
        """The snapshot it superseded."""
        snapshot = _task(self.info).get(SUPERSEDES_KEY)
        return snapshot if isinstance(snapshot, str) else None

    @property
    def result(self) -> Any:
        """What the task's function returned; `None` if that was not kept."""
        return _task(self.info).get(RESULT_KEY)

    @property
    def chunks(self) -> int | None:
        """How many chunks writers left for it; `None` if that was not kept."""
        count = _task(self.info).get(CHUNKS_KEY)
        return count if type(count) is int else None

    def __str__(self) -> str:
        when = self.info.written_at.isoformat(timespec="seconds")
        return f"snapshot {self.info.id} (attempt {self.attempt or 'unknown'}, {when})"


def find_earlier(
    repository: Repository, branch: str, attempt: Attempt, *, base: str | None = None
) -> EarlierCommit | None:
    """The newest commit of the task instance among the newest of a branch, if there is one.

    Searches no further back than the task instance can have committed. The result is logged:
    Airflow's numbers cannot always distinguish a retry from a rerun.

    :param base: the base of the session to commit; by default the head.
    """
    return among(_newest(repository.ancestry(branch=branch), attempt), attempt, base=base)


def among(
    history: Iterable[SnapshotInfo], attempt: Attempt, *, base: str | None = None
) -> EarlierCommit | None:
    """The newest commit of the task instance in a history that begins with the newest."""
    passed_base = base is None
    for info in history:
        passed_base = passed_base or info.id == base
        if attempt.made(info.metadata):
            earlier = EarlierCommit(
                info,
                answers=attempt.is_answered_by(info.metadata),
                is_of_this_run=attempt.is_of_this_run(info.metadata),
                is_below_base=passed_base,
            )
            _tell(attempt, earlier)
            return earlier
    return None


def _token(metadata: Mapping[str, Any]) -> object:
    from airflow_provider_icechunk.engine.history.ancestry import TOKEN_KEY

    return metadata.get(TOKEN_KEY)


def _newest(history: Iterable[SnapshotInfo], attempt: Attempt) -> Iterator[SnapshotInfo]:
    """The commits that the task instance can have made."""
    for info in islice(history, _NEWEST):
        if attempt.since is not None and info.written_at < attempt.since:
            return
        yield info


def attempt_that_made(info: SnapshotInfo) -> int | None:
    """The number of the attempt that made a commit, if a task did."""
    number = _task(info).get("try_number")
    return number if isinstance(number, int) else None


def kept_result(result: Any) -> dict[str, Any]:
    """The part of a function's result for the commit's metadata, if it is small JSON."""
    if result is None:
        return {}
    if _is_small_json(result):
        return {RESULT_KEY: result}
    log.info(
        "The result is not kept with the commit, because it is not JSON of at most %d bytes: a "
        "retry that finds the commit returns None",
        LARGEST_RESULT,
    )
    return {}


def _is_small_json(value: Any) -> bool:
    """Whether a value survives JSON unchanged, and is small enough."""
    try:
        text = json.dumps(value, allow_nan=False)
        return len(text.encode()) <= LARGEST_RESULT and bool(json.loads(text) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def _tell(attempt: Attempt, earlier: EarlierCommit) -> None:
    if earlier.answers:
        log.info(
            "This task committed %s already: attempt %d does nothing and returns it",
            earlier,
            attempt.number,
        )
    else:
        log.info(
            "This task committed %s before and runs again: the commit of attempt %d supersedes it",
            earlier,
            attempt.number,
        )


def _task(info: SnapshotInfo) -> Mapping[str, Any]:
    task = info.metadata.get(METADATA_KEY)
    return task if isinstance(task, Mapping) else {}


def appends(write: object) -> bool:
    """Whether an entry of a job's list goes to the end of an array, wherever that is by then."""
    if not isinstance(write, Mapping):
        return False
    return write.get("kind") in ("files", "virtual") and write.get("start") is None
