"""The contents of the old repository: its references and the history they reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig, ResolvedConfig
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.model import Metadata
from airflow_provider_icechunk.engine.maintenance.listing import list_folder, whole
from airflow_provider_icechunk.engine.objects.objects import CacheLimits, Objects
from airflow_provider_icechunk.engine.refs import open_refs
from airflow_provider_icechunk.engine.refs.base import Refs
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.engine.world import World
from airflow_provider_icechunk.exceptions import FormatError, IcechunkError

from .fences import Unfenced
from .ref_sets import References, read_references

_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class MigrationSource:
    """The repository before the migration."""

    storage: Storage
    refs: Refs
    objects: Objects
    settings: ResolvedConfig

    @property
    def generation(self) -> Generation:
        """Generation of the stored format."""
        return self.refs.generation


def open_source(storage: Storage, generation: Generation, world: World) -> MigrationSource:
    """Open the repository of a generation, which need not be the newest one.

    Fences are ignored.
    """
    storage = Unfenced(storage)
    refs = open_refs(generation, storage, world)
    stored = refs.config()
    settings = (RepositoryConfig() if stored is None else stored.config).resolved()
    objects = Objects(storage, refs, level=settings.compression_level, limits=CacheLimits())
    return MigrationSource(storage, refs, objects, settings)


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """A snapshot without its tree."""

    id: SnapshotId
    """The id in references and children; early writers used another one for the file."""
    parent: SnapshotId | None
    flushed_at: int
    message: str
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class Survey:
    """A repository at one moment."""

    references: References
    history: Mapping[SnapshotId, SnapshotFacts]
    """Everything that the references reach, parents before children."""


def take_survey(
    source: MigrationSource,
    known: Mapping[SnapshotId, SnapshotFacts] | None = None,
    references: References | None = None,
) -> Survey:
    """Read references and history.

    History that is `known` is not read again, nor are references that are given.
    """
    references = references or read_references(source.refs, source.storage)
    facts = dict(known or {})
    ahead = {} if known else _read_ahead(source)
    frontier = [tip for tip in references.tips() if tip not in facts]
    while frontier:
        unread = [one for one in frontier if one not in ahead]
        ahead |= zip(
            unread, run_all(lambda one: _facts(source, one), unread, at_once=_AT_ONCE), strict=True
        )
        facts |= {one: ahead[one] for one in frontier}
        parents = dict.fromkeys(facts[one].parent for one in frontier)
        frontier = [one for one in parents if one is not None and one not in facts]
    return Survey(references, parents_first(references.tips(), facts))


def parents_first(
    tips: Iterable[SnapshotId], facts: Mapping[SnapshotId, SnapshotFacts]
) -> dict[SnapshotId, SnapshotFacts]:
    """The history of `tips`, parents before children. Pure."""
    ordered: dict[SnapshotId, SnapshotFacts] = {}
    for tip in tips:
        line: dict[SnapshotId, SnapshotFacts] = {}
        current: SnapshotId | None = tip
        while current is not None and current not in ordered:
            if current in line:
                raise FormatError(
                    "the history has a cycle: a snapshot has a descendant as its parent"
                )
            line[current] = facts[current]
            current = facts[current].parent
        ordered |= reversed(line.items())
    return ordered


def _read_ahead(source: MigrationSource) -> dict[SnapshotId, SnapshotFacts]:
    """Read snapshots that are probably reachable concurrently: following a chain is sequential.

    Unreadable ones are skipped: they matter only if they are reached.
    """
    layout = source.refs.layout
    listed = list_folder(source.storage, layout, layout.snapshots)

    def read(identity: SnapshotId) -> SnapshotFacts | None:
        try:
            return _facts(source, identity)
        except IcechunkError:
            return None

    identities = [SnapshotId(one) for one in whole(listed.ids)]
    found = run_all(read, identities, at_once=_AT_ONCE)
    return {one: facts for one, facts in zip(identities, found, strict=True) if facts is not None}


def _facts(source: MigrationSource, identity: SnapshotId) -> SnapshotFacts:
    snapshot = source.objects.snapshot(identity)
    parent = source.refs.parent(snapshot)
    return SnapshotFacts(identity, parent, snapshot.flushed_at, snapshot.message, snapshot.metadata)
