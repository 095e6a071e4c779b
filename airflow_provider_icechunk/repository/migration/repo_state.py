"""The `repo` object of a repository that was migrated, as the official migration makes it. Pure.

The operations log is made up from what is known: the commits at their times, branches and tags a
moment after the snapshot that they name. No entry has a backup, and the migration is the newest.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_icechunk.format.generations.v2 import events as ev
from airflow_provider_icechunk.format.generations.v2.repo_info import (
    RepoInfo,
    SnapshotRecord,
    Update,
    encode_items,
)
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.format.names import MAIN
from airflow_provider_icechunk.repository.migration.references import References
from airflow_provider_icechunk.repository.migration.survey import Facts

_FROM, _TO = 1, 2
"""Older generations have no number that official readers would accept."""
_MOMENT = 1000


def migrated_state(
    references: References,
    history: Mapping[SnapshotId, Facts],
    *,
    config: bytes | None,
    at: int,
) -> RepoInfo:
    """The first state of the repository in generation `2`; everything under its new ids."""
    past = made_up_log(references, history)
    newest = Update(ev.RepoMigrated(_FROM, _TO), max(at, past[0].updated_at + 1))
    root = _line(references.branches[MAIN], history)[-1]
    return RepoInfo(
        branches=dict(references.branches),
        snapshots={
            facts.id: SnapshotRecord(
                facts.id,
                facts.parent,
                facts.flushed_at,
                facts.message,
                encode_items(facts.metadata),
            )
            for facts in history.values()
        },
        updates=(newest, *past),
        status=ev.Status(ev.Availability.ONLINE, root.flushed_at),
        tags=dict(references.tags),
        deleted_tags=frozenset(references.buried),
        config=config,
    )


def made_up_log(references: References, history: Mapping[SnapshotId, Facts]) -> tuple[Update, ...]:
    """What must have happened, newest first, with times that strictly increase."""
    main = _line(references.branches[MAIN], history)
    root = main[-1].flushed_at
    entries: list[tuple[ev.Event, int]] = [(ev.RepoInitialized(), root)]
    told = {facts.id for facts in main}
    entries += [(ev.NewCommit(MAIN, facts.id), facts.flushed_at) for facts in reversed(main[:-1])]
    for name, tip in references.branches.items():
        if name == MAIN:
            continue
        entries.append((ev.BranchCreated(name), history[tip].flushed_at + _MOMENT))
        for facts in reversed(_line(tip, history)):
            if facts.id not in told:
                told.add(facts.id)
                entries.append((ev.NewCommit(name, facts.id), facts.flushed_at))
    for name, named in references.tags.items():
        entries.append((ev.TagCreated(name), history[named].flushed_at + _MOMENT))
    for name, once in references.buried.items():
        if once is not None:
            time = history[once].flushed_at if once in history else root
            entries.append((ev.TagCreated(name), time + _MOMENT))
            entries.append((ev.TagDeleted(name, once), time + 2 * _MOMENT))
    return _strictly_later(sorted(entries, key=lambda entry: entry[1]))


def _strictly_later(entries: list[tuple[ev.Event, int]]) -> tuple[Update, ...]:
    updates: list[Update] = []
    for event, at in entries:
        after = updates[-1].updated_at + 1 if updates else 0
        updates.append(Update(event, max(at, after)))
    return tuple(reversed(updates))


def _line(tip: SnapshotId, history: Mapping[SnapshotId, Facts]) -> list[Facts]:
    """A snapshot and its ancestors, newest first."""
    line = [history[tip]]
    while (parent := line[-1].parent) is not None:
        line.append(history[parent])
    return line
