"""The ancestors of a snapshot, the commits between two of them, and the commit with a token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.display import Shown
from airflow_provider_icechunk.engine.format.coordinates import common_rows
from airflow_provider_icechunk.engine.format.generation import Generation, History
from airflow_provider_icechunk.engine.format.ids import SnapshotId, format_id
from airflow_provider_icechunk.engine.format.model import Snapshot, TransactionLog
from airflow_provider_icechunk.engine.format.node_table import paths_by_id
from airflow_provider_icechunk.engine.objects.objects import Objects
from airflow_provider_icechunk.engine.world import from_micros
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    FormatError,
    IcechunkError,
    InvalidInputError,
    Kind,
    StorageError,
)

TOKEN_KEY = "commit_token"  # noqa: S105 - a name, not a secret
"""Snapshot metadata under which a commit keeps the token of the attempt that made it."""
PARENT_KEY = "commit_parent"
"""Snapshot metadata under which a commit that a later one may replace keeps its parent.

Only where no log is stored: nothing else shows whether commits of others came before it and have
expired.
"""


@dataclass(frozen=True, slots=True, repr=False)
class ManifestFileInfo(Shown):
    """A manifest file that a snapshot uses."""

    id: str
    size_bytes: int
    num_chunk_refs: int


@dataclass(frozen=True, slots=True, repr=False)
class SnapshotInfo(Shown):
    """One entry of the history."""

    id: str
    parent_id: str | None
    written_at: datetime
    message: str
    metadata: dict[str, Any] = field(compare=False)
    manifests: list[ManifestFileInfo] = field(compare=False, repr=False)


Commit = TypeVar("Commit", Snapshot, SnapshotInfo)


def describe(
    snapshot: Snapshot,
    parent: SnapshotId | None,
    known_as: SnapshotId,
    generation: Generation,
) -> SnapshotInfo:
    """The history entry of a snapshot."""
    return SnapshotInfo(
        id=format_id(generation, known_as),
        parent_id=None if parent is None else format_id(generation, parent),
        written_at=from_micros(snapshot.flushed_at),
        message=snapshot.message,
        metadata=dict(snapshot.metadata),
        manifests=[
            ManifestFileInfo(format_id(generation, file.id), file.size_bytes, file.num_chunk_refs)
            for file in snapshot.manifest_files.values()
        ],
    )


def ancestors(objects: Objects, start: SnapshotId, *, ahead: bool = False) -> Iterator[Snapshot]:
    """A snapshot and its ancestors, newest first.

    A cycle in stored parents is damage.

    :param ahead: whether all of them will probably be needed. Each names the next one, so a history
        takes one round trip per snapshot, unless a listing shows what to request together.
    """
    coming = SnapshotsAhead(objects) if ahead else None
    seen: set[SnapshotId] = set()
    current: SnapshotId | None = start
    while current is not None:
        if current in seen:
            raise FormatError(
                f"the history of {objects.storage.location} has a cycle at "
                f"{objects.format_id(current)}: a snapshot names a descendant as its parent"
            )
        seen.add(current)
        if coming is not None and len(seen) > _BEFORE_LISTING:
            coming.bring(current)
        snapshot = objects.snapshot_header(current)
        yield snapshot
        current = objects.refs.parent(snapshot)


_BEFORE_LISTING = 3
"""Snapshots of a history that are read one by one: most callers want no more."""


class SnapshotsAhead:
    """Reads the snapshots of a history, many at once, newest first by the times in a listing.

    Only if one page lists them all; without list permission this is skipped.
    """

    most = 1000
    batch = 32

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._left: list[SnapshotId] | None = None

    def bring(self, wanted: SnapshotId) -> None:
        """Read a snapshot along with others, unless it has been read."""
        if self._left is None:
            self._left = self._list()
        if wanted not in self._left or self._objects.has_snapshot(wanted):
            return
        some = [wanted, *(one for one in self._left if one != wanted)][: self.batch]
        self._left = [one for one in self._left if one not in set(some)]
        run_all(self._read, some, at_once=self.batch)

    def _list(self) -> list[SnapshotId]:
        objects = self._objects
        if objects.refs.generation.history is not History.FILES:
            return []
        prefix = objects.refs.layout.snapshots
        try:
            listed = list(islice(objects.storage.scan(prefix), self.most + 1))
        except AccessDeniedError:
            return []
        if len(listed) > self.most:
            return []
        names = objects.refs.layout.names_in(prefix)
        found = []
        for item in sorted(listed, key=lambda one: one.micros, reverse=True):
            try:
                found.append(SnapshotId(names.decode([item.key[len(prefix) :]])[0].tobytes()))
            except InvalidInputError:
                continue
        return [one for one in found if not objects.has_snapshot(one)]

    def _read(self, identity: SnapshotId) -> None:
        try:
            self._objects.snapshot_header(identity)
        except IcechunkError:
            # It may not be needed; reading it later raises the error.
            return


def commits_between(
    objects: Objects, older: SnapshotId, newer: SnapshotId
) -> list[Snapshot] | None:
    """Snapshots after `older` up to `newer`, oldest first; `None` if `older` is not an ancestor."""
    path: list[Snapshot] = []
    for snapshot in ancestors(objects, newer):
        if snapshot.id == older:
            return path[::-1]
        path.append(snapshot)
    return None


def find_token(commits: Iterable[Commit], token: str) -> Commit | None:
    """The first of some commits that was made with this token."""
    return next((one for one in commits if one.metadata.get(TOKEN_KEY) == token), None)


def logs_since_parent(objects: Objects, snapshot: Snapshot) -> list[TransactionLog]:
    """The logs since the parent of a snapshot, oldest first: its own log, preceded by those of
    snapshots that expired in between.

    If these are not recorded, one log of all differences between the two trees replaces them.
    """
    pruned = objects.refs.pruned_logs(snapshot.id)
    logs = [_existing_log(objects, identity) for identity in (*pruned, snapshot.id)]
    if objects.refs.generation.history is History.REPO or not objects.refs.generation.keeps_logs:
        return logs
    whole = _what_its_log_omits(objects, snapshot, logs[-1])
    return logs if whole is None else [whole, *logs]


def _what_its_log_omits(
    objects: Objects, snapshot: Snapshot, log: TransactionLog
) -> TransactionLog | None:
    """All changes between a snapshot and its parent, if they are more than its own log records.

    Only an expiry causes that, and it makes the first snapshot of the line the parent.
    """
    parent = objects.refs.parent(snapshot)
    if parent is None:
        return None
    first = objects.snapshot_header(parent)
    if objects.refs.parent(first) is not None:
        return None
    if not first.nodes:
        made = log.new_groups | log.new_arrays
        if paths_by_id(snapshot.nodes).keys() <= made:
            return None
        return objects.derived_log(snapshot.id)
    whole = objects.derived_log(snapshot.id)
    return None if whole is None or _tells_of(log, whole) else whole


def _tells_of(log: TransactionLog, whole: TransactionLog) -> bool:
    """Whether another log contains everything in the log of two compared trees."""
    logged = log.updated_groups | log.updated_arrays
    made, gone = log.new_groups | log.new_arrays, log.deleted_groups | log.deleted_arrays
    return (
        whole.new_groups | whole.new_arrays <= made
        and whole.deleted_groups | whole.deleted_arrays <= gone
        and whole.updated_groups | whole.updated_arrays <= logged | made
        and all(
            node in log.updated_chunks and common_rows(rows, log.updated_chunks[node]).all()
            for node, rows in whole.updated_chunks.items()
            if node not in made
        )
    )


def is_first_since_parent(objects: Objects, snapshot: Snapshot) -> bool:
    """Whether there are no changes by others between a snapshot and its parent, if recorded."""
    if objects.refs.generation.keeps_logs:
        return len(logs_since_parent(objects, snapshot)) == 1
    recorded, parent = snapshot.metadata.get(PARENT_KEY), objects.refs.parent(snapshot)
    return recorded is None or parent is None or recorded == objects.format_id(parent)


def required_log(objects: Objects, snapshot: Snapshot) -> TransactionLog:
    """The log of a snapshot that must have one."""
    return _existing_log(objects, snapshot.id)


def _existing_log(objects: Objects, identity: SnapshotId) -> TransactionLog:
    log = objects.log(identity)
    if log is None:
        raise StorageError(
            f"the transaction log of snapshot {objects.format_id(identity)} is missing in "
            f"{objects.storage.location}: its changes are unknown",
            kind=Kind.OBJECT_MISSING,
        )
    return log
