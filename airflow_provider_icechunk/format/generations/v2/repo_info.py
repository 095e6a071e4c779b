"""The mutable state of a repository of generation `2`, as one frozen value.

Branches, tags, the list of snapshots with their parents, status, configuration and the newest part
of the operations log are all in the `repo` object, so every change is one conditional write of it.
Metadata and configuration stay encoded here: they are written back byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from airflow_provider_icechunk.format.generations.v2.events import (
    Availability,
    Event,
    RepoInitialized,
    Status,
)
from airflow_provider_icechunk.format.generations.v2.values import decode_value, encode_value
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.format.names import MAIN
from airflow_provider_icechunk.format.snapshot import Metadata, Snapshot

SPEC_VERSION = 2

Items: TypeAlias = "tuple[tuple[str, bytes], ...]"
"""Metadata names with their encoded values, in order of the names' bytes."""


def encode_items(metadata: Metadata) -> Items:
    """Metadata as it is stored."""
    ordered = sorted(metadata.items(), key=lambda item: item[0].encode(errors="surrogatepass"))
    return tuple((name, encode_value(name, value)) for name, value in ordered)


def decode_items(items: Items, *, where: str) -> Metadata:
    """The JSON values of stored metadata."""
    return {name: decode_value(value, where) for name, value in items}


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """What the repository knows of a snapshot without reading its file."""

    id: SnapshotId
    parent_id: SnapshotId | None
    flushed_at: int
    message: str
    metadata: Items = ()
    pruned_logs: tuple[SnapshotId, ...] = ()
    """Snapshots that expired between the parent and this one; their logs still count as history,
    oldest first."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> SnapshotRecord:
        """The record of a snapshot whose parent is set."""
        return cls(
            snapshot.id,
            snapshot.parent_id,
            snapshot.flushed_at,
            snapshot.message,
            encode_items(snapshot.metadata),
        )


@dataclass(frozen=True, slots=True)
class Update:
    """One entry of the operations log."""

    event: Event
    updated_at: int
    """Microseconds since 1970 UTC, strictly increasing from entry to entry."""
    backup: str | None = None
    """File below `overwritten/` in which this entry is the newest; the newest of all has none."""


@dataclass(frozen=True, slots=True)
class RepoInfo:
    """Everything in a repository that can change."""

    branches: Mapping[str, SnapshotId]
    snapshots: Mapping[SnapshotId, SnapshotRecord]
    updates: tuple[Update, ...]
    """Newest first, at least one."""
    status: Status
    tags: Mapping[str, SnapshotId] = field(default_factory=dict)
    deleted_tags: frozenset[str] = frozenset()
    metadata: Items = ()
    before_updates: str | None = None
    """File below `overwritten/` in which the log continues."""
    config: bytes | None = None
    enabled_flags: tuple[int, ...] | None = None
    disabled_flags: tuple[int, ...] | None = None
    extra: bytes | None = None
    unknown: tuple[str, ...] = ()
    """What a newer writer stored and this version does not know. Such a state can be read, but
    not written: it would lose that."""


def initial(first: Snapshot, *, at: int, config: bytes | None = None) -> RepoInfo:
    """The state of a repository that has just been created."""
    return RepoInfo(
        branches={MAIN: first.id},
        snapshots={first.id: SnapshotRecord.of(first)},
        updates=(Update(RepoInitialized(), at),),
        status=Status(Availability.ONLINE, at),
        config=config,
    )


def by_name(refs: Iterable[tuple[str, SnapshotId]]) -> dict[str, SnapshotId]:
    """References in the order official readers search by."""
    return dict(sorted(refs, key=lambda ref: ref[0].encode()))
