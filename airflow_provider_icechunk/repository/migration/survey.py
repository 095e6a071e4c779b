"""What the old repository holds: its references, and the history that they reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_icechunk.exceptions import FormatError, IcechunkError
from airflow_provider_icechunk.format.config import RepositoryConfig, ResolvedConfig
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.format.snapshot import Metadata
from airflow_provider_icechunk.repository.assets import Assets, CacheLimits
from airflow_provider_icechunk.repository.ledgers import open_ledger
from airflow_provider_icechunk.repository.ledgers.base import Ledger
from airflow_provider_icechunk.repository.maintenance.idsets import whole
from airflow_provider_icechunk.repository.maintenance.listing import list_folder
from airflow_provider_icechunk.repository.migration.fences import Unfenced
from airflow_provider_icechunk.repository.migration.references import References, read_references
from airflow_provider_icechunk.repository.world import World
from airflow_provider_icechunk.storage.base import Storage
from airflow_provider_icechunk.storage.pool import run_all

_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Source:
    """The repository as it is."""

    storage: Storage
    ledger: Ledger
    assets: Assets
    settings: ResolvedConfig

    @property
    def generation(self) -> Generation:
        """Generation of the stored format."""
        return self.ledger.generation


def open_source(storage: Storage, generation: Generation, world: World) -> Source:
    """The repository behind the entry point of a generation, which need not be the newest one.

    Fences that a removal has put up are looked through.
    """
    storage = Unfenced(storage)
    ledger = open_ledger(generation, storage, world)
    stored = ledger.config()
    settings = (RepositoryConfig() if stored is None else stored.config).resolved()
    assets = Assets(storage, ledger, level=settings.compression_level, limits=CacheLimits())
    return Source(storage, ledger, assets, settings)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a snapshot without its tree."""

    id: SnapshotId
    """By which references and children name it; early writers used another for its file."""
    parent: SnapshotId | None
    flushed_at: int
    message: str
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class Survey:
    """A repository at one moment."""

    references: References
    history: Mapping[SnapshotId, Facts]
    """All that the references reach, parents before their children."""


def take_survey(
    source: Source,
    known: Mapping[SnapshotId, Facts] | None = None,
    references: References | None = None,
) -> Survey:
    """Read references and history.

    What is `known` of the history is not read again, nor are references that are given.
    """
    references = references or read_references(source.ledger, source.storage)
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
    tips: Iterable[SnapshotId], facts: Mapping[SnapshotId, Facts]
) -> dict[SnapshotId, Facts]:
    """What `tips` reach, every snapshot after its parent. Pure."""
    ordered: dict[SnapshotId, Facts] = {}
    for tip in tips:
        line: dict[SnapshotId, Facts] = {}
        current: SnapshotId | None = tip
        while current is not None and current not in ordered:
            if current in line:
                raise FormatError(
                    "the history goes in a circle: a snapshot names a descendant as its parent"
                )
            line[current] = facts[current]
            current = facts[current].parent
        ordered |= reversed(line.items())
    return ordered


def _read_ahead(source: Source) -> dict[SnapshotId, Facts]:
    """Snapshots that are probably reached, many at once: following a chain takes one at a time.

    One that cannot be read matters only if it is reached after all.
    """
    layout = source.ledger.layout
    listed = list_folder(source.storage, layout, layout.snapshots)

    def read(identity: SnapshotId) -> Facts | None:
        try:
            return _facts(source, identity)
        except IcechunkError:
            return None

    identities = [SnapshotId(one) for one in whole(listed.ids)]
    found = run_all(read, identities, at_once=_AT_ONCE)
    return {one: facts for one, facts in zip(identities, found, strict=True) if facts is not None}


def _facts(source: Source, identity: SnapshotId) -> Facts:
    snapshot = source.assets.snapshot(identity)
    parent = source.ledger.parent(snapshot)
    return Facts(identity, parent, snapshot.flushed_at, snapshot.message, snapshot.metadata)
