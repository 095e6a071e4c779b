"""Walk the history from branches and tags: which snapshots there are, and what they stand on.

It fails closed: one reached snapshot that cannot be read, and there is no answer. What it knows
only ever grows: after references moved, `extend` adds what they reach now and reads nothing twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import IcechunkError, MaintenanceError
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.repository.ledgers.base import Ledger, Register
from airflow_provider_icechunk.repository.maintenance.idsets import Ids, column, of_bytes
from airflow_provider_icechunk.repository.maintenance.loading import Loader
from airflow_provider_icechunk.storage.pool import run_all

_AT_ONCE = 16
_UNKNOWN_SIZE = 1 << 20
_LARGEST = 1 << 62


@dataclass(frozen=True, slots=True)
class Roots:
    """Where every branch and tag is."""

    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    listed: tuple[SnapshotId, ...] = ()
    """Snapshots that stay although nothing names them, because they are listed and young."""

    def tips(self) -> list[SnapshotId]:
        """The snapshots named, each once."""
        return list(dict.fromkeys([*self.tags.values(), *self.branches.values(), *self.listed]))


def read_roots(ledger: Ledger, old: Collection[SnapshotId] | None = None) -> Roots:
    """Branches and tags as they are now. Not one moment for all: read again before deleting.

    Given the `old` snapshot files, those that a ledger lists beside them are roots as well.
    """
    try:
        if isinstance(ledger, Register):
            listed = ledger.register()
            young = () if old is None else tuple(one for one in listed.snapshots if one not in old)
            return Roots(listed.branches, listed.tags, young)
        return Roots(branches=ledger.branches(), tags=ledger.tags())
    except IcechunkError as error:
        raise MaintenanceError(
            f"branches and tags cannot be read ({error.message}); maintenance stops, because what "
            "they need is unknown"
        ) from error


@dataclass(frozen=True, slots=True)
class Link:
    """What the walk keeps of a snapshot."""

    id: SnapshotId
    """Its file; the id asked for is another one only for misnamed files of `alpha`."""
    parent: SnapshotId | None
    flushed_at: int


@dataclass(frozen=True, slots=True, eq=False)
class Visited:
    """A snapshot as the walk read it."""

    link: Link
    manifests: Ids
    """Manifests that its nodes or its list of files name."""
    sizes: NDArray[np.int64]
    """Of each; a guess where the snapshot does not say."""
    attributes: Ids
    """Attribute files that its nodes need."""


def visit(snapshot: Snapshot, parent: SnapshotId | None) -> Visited:
    """What the walk needs of a snapshot, in columns: a long history has many of them."""
    sizes = {
        ref.id: _UNKNOWN_SIZE
        for node in snapshot.nodes.values()
        if node.array is not None
        for ref in node.array.manifests
    }
    sizes |= {
        file.id: file.size_bytes or _UNKNOWN_SIZE for file in snapshot.manifest_files.values()
    }
    return Visited(
        Link(snapshot.id, parent, snapshot.flushed_at),
        column(list(sizes)),
        np.fromiter((min(size, _LARGEST) for size in sizes.values()), np.int64, len(sizes)),
        column(sorted(snapshot.attribute_files)),
    )


class Walk:
    """The part of the history that the roots given so far reach.

    :param at_once: how many snapshots are read at the same time.
    """

    def __init__(self, loader: Loader, *, at_once: int = _AT_ONCE) -> None:
        self._loader = loader
        self._at_once = max(1, min(at_once, _AT_ONCE))
        self._ahead: dict[SnapshotId, Visited] = {}
        self.links: dict[SnapshotId, Link] = {}
        """Snapshots by the id they are named by."""

    def read_ahead(self, identities: Sequence[SnapshotId]) -> None:
        """Read snapshots that are probably reached, many at once.

        A history is a chain, and following it costs one request after the other. What cannot be
        read here is left out: only if it is reached after all does that matter.
        """
        found = run_all(self._try, identities, at_once=self._at_once)
        self._ahead = {
            identity: visited
            for identity, visited in zip(identities, found, strict=True)
            if visited is not None
        }

    def extend(
        self, roots: Iterable[SnapshotId], spare: Mapping[SnapshotId, bytes] | None = None
    ) -> list[Visited]:
        """Add what `roots` reach and return what was not known before.

        `spare` holds snapshot files that storage has no more. On an error nothing is added.
        """
        loader = self._loader if spare is None else replace(self._loader, spare=spare)
        new: dict[SnapshotId, Visited] = {}
        frontier = self._unknown(roots, new)
        while frontier:
            found = run_all(
                lambda identity: self._visit(loader, identity), frontier, at_once=self._at_once
            )
            new.update(zip(frontier, found, strict=True))
            parents = (visited.link.parent for visited in found)
            frontier = self._unknown((one for one in parents if one is not None), new)
        self._ahead = {}
        self.links |= {identity: visited.link for identity, visited in new.items()}
        return list(new.values())

    def files(self) -> Ids:
        """Ids of the snapshot files reached, and so of their logs."""
        return of_bytes([*self.links, *(link.id for link in self.links.values())])

    def _unknown(
        self, identities: Iterable[SnapshotId], new: Mapping[SnapshotId, Visited]
    ) -> list[SnapshotId]:
        return [
            one for one in dict.fromkeys(identities) if one not in self.links and one not in new
        ]

    def _visit(self, loader: Loader, identity: SnapshotId) -> Visited:
        return self._ahead.get(identity) or _load(loader, identity)

    def _try(self, identity: SnapshotId) -> Visited | None:
        try:
            return _load(self._loader, identity)
        except MaintenanceError:
            return None


def _load(loader: Loader, identity: SnapshotId) -> Visited:
    snapshot = loader.snapshot(identity)
    return visit(snapshot, loader.ledger.parent(snapshot))
