"""The health of a repository at a glance: maintenance, garbage, rebases and missing labels.

Each part is determined separately within small limits. Anything that needs more is unknown, and the
response says so: a home page with dozens of repositories must not read all of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TypeVar

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.engine.objects.line import read_rebases
from airflow_provider_icechunk.exceptions import IcechunkError

from .arrays import open_version
from .bounds import RequestLimits, bounded
from .coverage import missing_labels
from .models import Health, MaintenanceRun, RefNames, cut

LATELY = timedelta(days=7)
_MOST_COMMITS = 200
_MOST_EVENTS = 200
_GLANCE = RequestLimits(seconds=3.0, requests=2_000, bytes=64 << 20)
Found = TypeVar("Found")


def read_health(
    repository: Repository, refs: RefNames, maintenance: Iterable[MaintenanceRun], *, now: datetime
) -> Health:
    """What is known about a repository without reading all of it.

    :param maintenance: maintenance known from elsewhere: task instances, or this server itself.
    """
    tip = refs.branches.get("main") or next(iter(refs.branches.values()), None)
    done = newest([*maintenance, *_operations(repository)])
    stored = _glance(lambda: _stored(repository))
    lately = _glance(lambda: _lately(repository, tip, now)) if tip else (0, 0, 0)
    missing = _glance(lambda: missing_labels(open_version(repository, tip))) if tip else {}
    return Health(
        maintenance=done,
        stored_bytes=None if stored is None else stored[0],
        garbage_bytes=None if stored is None else stored[1],
        commits_lately=None if lately is None else lately[0],
        rebased_lately=None if lately is None else lately[1],
        rebases_lately=None if lately is None else lately[2],
        missing_labels=None if missing is None else {cut(k, 300): n for k, n in missing.items()},
    )


def newest(maintenance: Iterable[MaintenanceRun]) -> list[MaintenanceRun]:
    """The newest of each kind."""
    found: dict[str, MaintenanceRun] = {}
    for one in sorted(maintenance, key=lambda one: one.at):
        found[one.what] = one
    return list(found.values())


def _glance(look: Callable[[], Found]) -> Found | None:
    try:
        with bounded(_GLANCE):
            return look()
    except IcechunkError:
        return None


def _operations(repository: Repository) -> list[MaintenanceRun]:
    """Collections and expiries in the operations log, if the repository has one."""
    found: list[MaintenanceRun] = []
    try:
        for update in islice(repository.ops_log(), _MOST_EVENTS):
            name = type(update.kind).__name__
            if "GC" in name or "Garbage" in name:
                found.append(MaintenanceRun(what="collect", at=update.updated_at, ok=True))
            elif "Expir" in name:
                found.append(MaintenanceRun(what="expire", at=update.updated_at, ok=True))
    except IcechunkError:
        return []
    return found


def _stored(repository: Repository) -> tuple[int, int]:
    files = repository.measure().files.values()
    return sum(one.bytes for one in files), sum(one.unreachable_bytes for one in files)


def _lately(repository: Repository, tip: str, now: datetime) -> tuple[int, int, int]:
    """Last week's commits on a branch, how many were rebased, and how often in total."""
    commits, rebased, rebases = 0, 0, 0
    for info in islice(repository.ancestry(snapshot_id=tip), _MOST_COMMITS):
        if info.written_at < now - LATELY:
            break
        times = read_rebases(info.metadata)
        commits, rebased, rebases = commits + 1, rebased + (times > 0), rebases + times
    return commits, rebased, rebases


def verified(*, ok: bool, findings: int) -> MaintenanceRun:
    """What this server found itself just now."""
    summary = "no errors" if ok else f"{findings} findings"
    return MaintenanceRun(what="verify", at=datetime.now(UTC), ok=ok, summary=summary)
