"""Pages of a history, whatever its length: the cost of a page depends only on what it shows.

A page is identified by the set of commits it begins with, so the server keeps nothing between two
pages and new commits do no harm.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.ids import NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.model import Coordinates, Snapshot, TransactionLog
from airflow_provider_icechunk.engine.history.versions import listed
from airflow_provider_icechunk.engine.objects.line import read_rebases
from airflow_provider_icechunk.engine.pipelines.reruns import METADATA_KEY
from airflow_provider_icechunk.engine.world import from_micros
from airflow_provider_icechunk.exceptions import FormatError, IcechunkError, InvalidInputError

from .models import (
    CommitFacts,
    HistoryPage,
    MakerFacts,
    RefNames,
    Touched,
    WrittenBytes,
    as_json,
    cut,
)
from .places import Maker, Memory

MOST_ROWS = 200
_MOST_EXAMINED = 2_000
_MOST_KEPT = 8_000
_LARGEST_KEPT = 4_000
_MOST_BRANCHES = 60
_MOST_MANIFEST_BYTES = 4 << 20
_LONGEST_NAME = 1_000
_SEPARATOR = "."


@dataclass(frozen=True, slots=True)
class Headers:
    """Commits without their trees, kept for a while: a tree may take megabytes, a commit little."""

    _kept: Memory[Snapshot] = field(default_factory=lambda: Memory(_MOST_KEPT, 120.0))

    def get(self, core: Core, identity: SnapshotId) -> Snapshot:
        """A commit, without its tree."""
        key = (core.storage.location, bytes(identity))
        found = self._kept.find(key)
        if found is None:
            whole = core.objects.snapshot_header(identity)
            found = replace(whole, nodes={}, manifest_files={})
            if len(repr(found.metadata)) < _LARGEST_KEPT:
                self._kept.put(key, found)
        return found


@dataclass(frozen=True, slots=True)
class Filter:
    """Which commits to show."""

    text: str = ""
    dag: str = ""
    path: str = ""
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_empty(self) -> bool:
        """Whether every commit passes."""
        return self == Filter()

    def passes(self, snapshot: Snapshot, identity: str) -> bool:
        """Whether a commit contains the text, comes from the DAG and is within the times."""
        at = from_micros(snapshot.flushed_at)
        if (self.since and at < self.since) or (self.until and at > self.until):
            return False
        made = maker_of(snapshot.metadata)
        if self.dag and (made is None or self.dag.lower() not in made.dag_id.lower()):
            return False
        return self.text.lower() in f"{snapshot.message}\n{identity}".lower()


PageOf = Callable[[Maker], str | None]


def read_page(
    repository: Repository,
    start: Iterable[str],
    wanted: Filter,
    *,
    refs: RefNames,
    limit: int,
    page_of: PageOf,
    headers: Headers | None = None,
) -> HistoryPage:
    """The newest commits that lead to some snapshots.

    :param start: snapshot ids: heads, or the cursor of the page before.
    """
    core = repository.core
    tips = [listed(core, one) for one in dict.fromkeys(start)]
    node = _node(core, wanted.path, refs) if wanted.path else None
    header = partial((headers or Headers()).get, core)
    ready = [_rank(one) for one in run_all(header, tips, at_once=8)]
    heapq.heapify(ready)
    waiting = {one.id for _, _, one in ready}
    found: list[Snapshot] = []
    examined, oldest = 0, None
    while ready and len(found) < limit and examined < _MOST_EXAMINED:
        _, _, snapshot = heapq.heappop(ready)
        waiting.discard(snapshot.id)
        examined, oldest = examined + 1, snapshot
        parent = core.refs.parent(snapshot)
        if parent is not None and parent not in waiting:
            waiting.add(parent)
            heapq.heappush(ready, _rank(header(parent)))
        if _passes(core, snapshot, wanted, node):
            found.append(snapshot)
    _prefetch(core, [one.id for one in found])
    return HistoryPage(
        commits=[commit_facts(core, one, refs, page_of) for one in found],
        cursor=_SEPARATOR.join(core.format_id(one.id) for _, _, one in ready) or None,
        examined=examined,
        examined_to=None if oldest is None else from_micros(oldest.flushed_at),
    )


def heads(refs: RefNames) -> list[str]:
    """Where the history of all branches begins; if there are very many, only of the first ones."""
    return list(dict.fromkeys(list(refs.branches.values())[:_MOST_BRANCHES]))


def read_cursor(text: str) -> list[str]:
    """The snapshots at which a page begins."""
    parts = text.split(_SEPARATOR)
    if len(parts) > _MOST_BRANCHES + 1:
        raise InvalidInputError(
            f"the cursor names {len(parts)} snapshots, so it does not come from a page"
        )
    return parts


def commit_facts(
    core: Core,
    snapshot: Snapshot,
    refs: RefNames,
    page_of: PageOf,
    *,
    metadata: bool = False,
    known_as: SnapshotId | None = None,
) -> CommitFacts:
    """One commit as the page shows it."""
    identity = core.format_id(known_as or snapshot.id)
    parent = core.refs.parent(snapshot)
    made = maker_of(snapshot.metadata)
    return CommitFacts(
        id=identity,
        parent_id=None if parent is None else core.format_id(parent),
        written_at=from_micros(snapshot.flushed_at),
        message=cut(snapshot.message),
        branches=[name for name, tip in refs.branches.items() if tip == identity],
        tags=[name for name, tip in refs.tags.items() if tip == identity],
        maker=None if made is None else _maker_facts(made, page_of),
        touched=None if parent is None else _touched(core, snapshot.id),
        rebases=read_rebases(snapshot.metadata),
        metadata=as_json(snapshot.metadata) if metadata else {},
    )


def maker_of(metadata: Mapping[str, object]) -> Maker | None:
    """Who made a commit. Anyone can write metadata, so an unexpected form counts as unknown."""
    task = metadata.get(METADATA_KEY)
    if not isinstance(task, Mapping):
        return None
    dag, run, name = (task.get(key) for key in ("dag_id", "run_id", "task_id"))
    for one in (dag, run, name):
        if not isinstance(one, str) or not 0 < len(one) <= _LONGEST_NAME:
            return None
    index = task.get("map_index")
    return Maker(
        str(dag), str(run), str(name), index if type(index) is int and 0 <= index < 1 << 31 else -1
    )


def _maker_facts(maker: Maker, page_of: PageOf) -> MakerFacts:
    return MakerFacts(
        dag_id=maker.dag_id,
        run_id=maker.run_id,
        task_id=maker.task_id,
        map_index=maker.map_index,
        page=page_of(maker),
    )


def _rank(snapshot: Snapshot) -> tuple[int, bytes, Snapshot]:
    return (-snapshot.flushed_at, bytes(snapshot.id), snapshot)


def _node(core: Core, path: str, refs: RefNames) -> NodeId:
    """The id of the array or group at a path in the newest version of some branch."""
    for tip in heads(refs):
        found = core.objects.snapshot_header(listed(core, tip)).nodes.get("/" + path.strip("/"))
        if found is not None:
            return found.id
    raise InvalidInputError(f"no branch has a group or an array at {path[:200]!r}")


def _passes(core: Core, snapshot: Snapshot, wanted: Filter, node: NodeId | None) -> bool:
    if wanted.is_empty:
        return True
    if not wanted.passes(snapshot, core.format_id(snapshot.id)):
        return False
    if node is None:
        return True
    log = _log(core, snapshot.id)
    return log is not None and node in _nodes(log)


def _nodes(log: TransactionLog) -> set[NodeId]:
    return {
        *log.new_groups, *log.new_arrays, *log.deleted_groups, *log.deleted_arrays,
        *log.updated_groups, *log.updated_arrays, *log.updated_chunks,
        *(move.node_id for move in log.moves),
    }  # fmt: skip


def _prefetch(core: Core, identities: list[SnapshotId]) -> None:
    try:
        core.objects.prefetch(identities)
    except FormatError:
        # One of them is damaged: read each separately, and leave that one unknown.
        return


def _log(core: Core, identity: SnapshotId) -> TransactionLog | None:
    """What a commit changed; `None` if unknown, because the history is shown anyway."""
    if not core.generation.keeps_logs:
        return None
    try:
        return core.objects.log(identity)
    except IcechunkError:
        return None


def read_written(repository: Repository, identities: Iterable[str]) -> WrittenBytes:
    """How many bytes of chunks some commits wrote."""
    core = repository.core
    found: dict[str, int | None] = {}
    for text in identities:
        try:
            found[text] = _written(core, listed(core, text))
        except FormatError:
            found[text] = None
    return WrittenBytes(bytes=found)


def _written(core: Core, identity: SnapshotId) -> int | None:
    """Bytes of the chunks that a commit changed: they are in manifests that its parent lacks."""
    snapshot = core.objects.snapshot_header(identity)
    parent, log = core.refs.parent(snapshot), _log(core, identity)
    if parent is None or log is None:
        return None
    before = core.objects.snapshot_header(parent).manifest_files
    new = [one for one in snapshot.manifest_files.values() if one.id not in before]
    if sum(one.size_bytes for one in new) > _MOST_MANIFEST_BYTES:
        return None
    total = 0
    for manifest in core.objects.manifests(one.id for one in new):
        for node, changed in log.updated_chunks.items():
            if node in manifest.arrays and len(changed):
                refs = manifest.of(node, changed.shape[1])
                total += int(refs.length[_rows_in(refs.index, changed)].sum())
    return total


def _rows_in(index: Coordinates, changed: Coordinates) -> NDArray[np.bool_]:
    if not len(index):
        return np.zeros(0, np.bool_)
    sides = np.maximum(index.max(axis=0), changed.max(axis=0)).astype(object) + 1
    if math.prod(sides) >= 1 << 62:
        wanted = set(map(tuple, changed.tolist()))
        return np.asarray([tuple(row) in wanted for row in index.tolist()], np.bool_)
    shape = tuple(int(side) for side in sides)
    flat = [
        np.ravel_multi_index(tuple(rows.T.astype(np.int64)), shape) for rows in (index, changed)
    ]
    return np.isin(flat[0], flat[1])


def _touched(core: Core, identity: SnapshotId) -> Touched | None:
    log = _log(core, identity)
    if log is None:
        return None
    arrays = {*log.new_arrays, *log.deleted_arrays, *log.updated_arrays, *log.updated_chunks}
    groups = {*log.new_groups, *log.deleted_groups, *log.updated_groups}
    return Touched(
        arrays=len(arrays),
        groups=len(groups),
        chunks=sum(len(rows) for rows in log.updated_chunks.values()),
        added=len(log.new_arrays) + len(log.new_groups),
        removed=len(log.deleted_arrays) + len(log.deleted_groups),
    )


def read_time(text: str | None) -> datetime | None:
    """A time of a filter; UTC unless it names a zone."""
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(f"{text[:60]!r} is not a time like 2026-01-31T12:00") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
