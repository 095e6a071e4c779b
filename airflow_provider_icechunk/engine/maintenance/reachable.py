"""What branches and tags reach: snapshots, manifests and chunk files, as sets of ids.

Collection deletes everything not in these sets, so they fail closed: if one snapshot or manifest
that is reached cannot be read or decoded, there is a `MaintenanceError` and no answer. What is
known only ever grows: after references have moved, `extend` adds what they reach now and reads
nothing twice.

Nothing is read from the caches of the repository or put there: a cached snapshot may be
older than the file (expiration rewrites snapshots in place), and every manifest of a repository
would push out what readers need.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.concurrency import run_all, together
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs
from airflow_provider_icechunk.engine.format.codec import Glancing
from airflow_provider_icechunk.engine.format.ids import ManifestId, SnapshotId
from airflow_provider_icechunk.engine.format.model import Manifest, Snapshot
from airflow_provider_icechunk.engine.refs.base import Refs, Register
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.exceptions import (
    IcechunkError,
    Kind,
    MaintenanceError,
    NotFoundError,
)

from .listing import NOTHING, Ids, IdUnion, column, contains, distinct, from_rows, of_bytes, whole


@dataclass(frozen=True, slots=True)
class Loader:
    """Reads snapshots and manifests of one repository without a cache."""

    storage: Storage
    refs: Refs
    spare: Mapping[SnapshotId, bytes] = field(default_factory=dict, repr=False)
    """Snapshot files that were just deleted and can still be restored."""
    ahead: Mapping[SnapshotId, bytes] = field(default_factory=dict, repr=False)
    """Snapshot files that were just read."""
    glancing: bool = False
    """Whether the headers of snapshots are enough: a walk then finds no manifests."""

    def snapshot(self, identity: SnapshotId) -> Snapshot:
        """A snapshot; in `alpha` its id differs from the requested one if its file is misnamed."""
        key = self.refs.layout.snapshot(identity)
        try:
            data = self.ahead.get(identity)
            if data is None:
                found = self.storage.get(key)
                data = self.spare.get(identity) if found is None else found.data
            if data is None:
                elsewhere = self.refs.relocate(identity)
                if elsewhere is not None and elsewhere != identity:
                    return self.snapshot(elsewhere)
                # Another collection may have restored it.
                found = None if elsewhere is None else self.storage.get(key)
                data = None if found is None else found.data
            if data is not None:
                return self._decode(data, identity, key)
            raise NotFoundError(f"{key} does not exist", kind=Kind.SNAPSHOT_NOT_FOUND)
        except MaintenanceError:
            raise
        except IcechunkError as error:
            raise _unreadable("snapshot", key, self.storage, error) from error

    def _decode(self, data: bytes, identity: SnapshotId, key: str) -> Snapshot:
        codec = self.refs.codec
        if self.glancing and isinstance(codec, Glancing):
            return codec.glance_at_snapshot(data, identity, where=key)
        return codec.decode_snapshot(data, identity, where=key)

    def manifest(self, identity: ManifestId) -> Manifest:
        """Read a manifest."""
        key = self.refs.layout.manifest(identity)
        try:
            found = self.storage.get(key)
            if found is None:
                raise NotFoundError(f"{key} does not exist", kind=Kind.OBJECT_MISSING)
            return self.refs.codec.decode_manifest(found.data, identity, where=key)
        except IcechunkError as error:
            raise _unreadable("manifest", key, self.storage, error) from error


def _unreadable(what: str, key: str, storage: Storage, error: IcechunkError) -> MaintenanceError:
    return MaintenanceError(
        f"the {what} {key} in {storage.location} is in use but cannot be read ({error.message}); "
        "maintenance stops, because it is unknown what it refers to. Run `verify` and repair it, "
        "or remove the branch or tag that needs it"
    )


_AT_ONCE = 16
_FILES_AT_ONCE = 256
_AHEAD_BYTES = 64 << 20
_UNKNOWN_SIZE = 1 << 20
_LARGEST = 1 << 62


@dataclass(frozen=True, slots=True)
class Roots:
    """The snapshots of all branches and tags."""

    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    listed: tuple[SnapshotId, ...] = ()
    """Unreferenced snapshots that stay because they are listed and young."""

    def tips(self) -> list[SnapshotId]:
        """The distinct snapshots."""
        return list(dict.fromkeys([*self.tags.values(), *self.branches.values(), *self.listed]))


def read_roots(refs: Refs, old: Collection[SnapshotId] | None = None) -> Roots:
    """Current branches and tags. Not an atomic read: read again before deleting.

    Given the `old` snapshot files, all others that the refs list are roots as well.
    """
    try:
        if isinstance(refs, Register):
            listed = refs.register()
            young = () if old is None else tuple(one for one in listed.snapshots if one not in old)
            return Roots(listed.branches, listed.tags, young)
        return Roots(*refs.roots())
    except IcechunkError as error:
        raise MaintenanceError(
            f"cannot read branches and tags ({error.message}); maintenance stops, because it is "
            "unknown what they need"
        ) from error


@dataclass(frozen=True, slots=True)
class Link:
    """The part of a snapshot that the walk keeps."""

    id: SnapshotId
    """The id of its file, which differs from the requested one only for misnamed files."""
    parent: SnapshotId | None
    flushed_at: int


@dataclass(frozen=True, slots=True, eq=False)
class Visited:
    """A snapshot that the walk has read."""

    link: Link
    manifests: Ids
    """Manifests in its nodes or its list of files."""
    sizes: NDArray[np.int64]
    """Size of each; an estimate if the snapshot does not say."""
    attributes: Ids
    """Attribute files that its nodes need."""


def visit(snapshot: Snapshot, parent: SnapshotId | None) -> Visited:
    """The data the walk needs from a snapshot, as columns: a long history has many."""
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
    """The part of the history reached from the roots so far.

    :param at_once: how many snapshots are read concurrently.
    """

    def __init__(self, loader: Loader, *, at_once: int = _AT_ONCE) -> None:
        self._loader = loader
        self._at_once = max(1, min(at_once, _AT_ONCE))
        self._ahead: dict[SnapshotId, Visited] = {}
        self._files: dict[SnapshotId, bytes] = {}
        self.links: dict[SnapshotId, Link] = {}
        """Snapshots by the id that refers to them."""

    def read_ahead(self, identities: Sequence[SnapshotId]) -> None:
        """Read snapshots that are probably reachable, many at once.

        A history is a chain, so following it takes sequential requests. Unreadable ones are
        skipped here: they matter only if they are reached. As many files as fit into memory wait
        undecoded, since those of expired snapshots are not needed; of others only facts are kept.
        """
        self._files, done, size = {}, 0, 0
        layout = self._loader.refs.layout
        while done < len(identities) and size < _AHEAD_BYTES:
            some = identities[done : done + _FILES_AT_ONCE]
            done += len(some)
            try:
                files = self._loader.storage.get_many([(layout.snapshot(i), None) for i in some])
            except IcechunkError:
                continue
            there = {i: file.data for i, file in zip(some, files, strict=True) if file is not None}
            self._files |= there
            size += sum(map(len, there.values()))
        left = identities[done:]
        found = run_all(self._try, left, at_once=self._at_once)
        self._ahead = {
            identity: visited
            for identity, visited in zip(left, found, strict=True)
            if visited is not None
        }

    def extend(
        self, roots: Iterable[SnapshotId], spare: Mapping[SnapshotId, bytes] | None = None
    ) -> list[Visited]:
        """Add what `roots` reach and return what is new.

        `spare` holds snapshot files that are no longer stored. On an error nothing is added.
        """
        loader = replace(self._loader, spare=spare or self._loader.spare, ahead=self._files)
        new: dict[SnapshotId, Visited] = {}
        frontier = self._unknown(roots, new)
        while frontier:
            found = run_all(
                lambda identity: self._visit(loader, identity), frontier, at_once=self._at_once
            )
            new.update(zip(frontier, found, strict=True))
            parents = (visited.link.parent for visited in found)
            frontier = self._unknown((one for one in parents if one is not None), new)
        self._ahead, self._files = {}, {}
        self.links |= {identity: visited.link for identity, visited in new.items()}
        return list(new.values())

    def files(self) -> Ids:
        """Ids of the reached snapshot files, and so of their logs."""
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
    parent = loader.refs.parent(snapshot)
    if loader.glancing:
        link = Link(snapshot.id, parent, snapshot.flushed_at)
        return Visited(link, NOTHING, np.zeros(0, np.int64), NOTHING)
    return visit(snapshot, parent)


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """How much metadata is in memory at a time."""

    snapshots: int = 50
    manifest_bytes: int = 512 << 20
    """Compressed."""
    fetches: int = 500

    @property
    def lanes(self) -> int:
        """How many manifests are read and decoded concurrently."""
        return max(1, min(self.fetches, _AT_ONCE))


class Reachable:
    """Everything reached from the roots so far. It only grows."""

    def __init__(self, loader: Loader, limits: MemoryLimits | None = None) -> None:
        self._loader = loader
        self._limits = limits or MemoryLimits()
        self.walk = Walk(loader, at_once=self._limits.snapshots)
        self._manifests = IdUnion()
        self._attributes = IdUnion()
        self._chunks = IdUnion()
        self._kept: set[SnapshotId] = set()
        self._ahead: dict[bytes, Ids] = {}

    def read_ahead(self, snapshots: Sequence[SnapshotId], manifests: Sequence[bytes] = ()) -> None:
        """Read what is probably reachable, many at once; see `Walk.read_ahead`."""
        _, found = together(
            partial(self.walk.read_ahead, snapshots),
            partial(run_all, self._try, manifests, at_once=self._limits.lanes),
        )
        self._ahead = {
            one: chunks for one, chunks in zip(manifests, found, strict=True) if chunks is not None
        }

    def extend(
        self, roots: Iterable[SnapshotId], spare: Mapping[SnapshotId, bytes] | None = None
    ) -> None:
        """Add what `roots` reach; `spare` holds snapshot files that are no longer stored."""
        self._add(self.walk.extend(roots, spare), self._chunks_of)

    def keep(
        self, unnamed: Iterable[SnapshotId], spare: Mapping[SnapshotId, bytes] | None = None
    ) -> None:
        """Add what possibly unreferenced snapshots and their ancestors need.

        Missing objects are skipped: somebody else has collected them.
        """
        loader = self._loader if spare is None else replace(self._loader, spare=spare)
        found: list[Visited] = []
        while new := self._not_kept(unnamed):
            visited = run_all(partial(_visit_alone, loader), new, at_once=self._limits.lanes)
            there = {one: got for one, got in zip(new, visited, strict=True) if got is not None}
            self._kept.update(there, (one.link.id for one in there.values()))
            found += there.values()
            unnamed = [one.link.parent for one in there.values() if one.link.parent is not None]
        self._add(found, self._chunks_left)

    def snapshots(self) -> Ids:
        """Ids of snapshot files, and so of their logs."""
        return of_bytes([*whole(self.walk.files()), *self._kept])

    def logs(self) -> Ids:
        """Ids of logs: those of the snapshots, and of expired ones between them."""
        refs = self._loader.refs
        names = [
            log for identity in self.walk.links for log in (identity, *refs.pruned_logs(identity))
        ]
        return of_bytes([*names, *whole(self.snapshots())])

    def manifests(self) -> Ids:
        """Ids of manifest files."""
        return self._manifests.ids()

    def attributes(self) -> Ids:
        """Ids of attribute files."""
        return self._attributes.ids()

    def chunks(self) -> Ids:
        """Ids of chunk files. A shared file is in use while one of its chunks is."""
        return self._chunks.ids()

    def _add(self, visited: list[Visited], chunks_of: Callable[[bytes], Ids]) -> None:
        sizes = sizes_by_id(visited, known=self._manifests.ids())
        for one in visited:
            self._attributes.add(one.attributes)
        for wave in waves(list(sizes.items()), self._limits.manifest_bytes):
            for ids in run_all(chunks_of, wave, at_once=self._limits.lanes):
                self._chunks.add(ids)
        self._manifests.add(of_bytes(sizes))
        self._ahead = {}

    def _try(self, identity: bytes) -> Ids | None:
        try:
            return chunk_ids(self._loader.manifest(ManifestId(identity)))
        except MaintenanceError:
            return None

    def _chunks_of(self, identity: bytes) -> Ids:
        if identity in self._ahead:
            return self._ahead[identity]
        return chunk_ids(self._loader.manifest(ManifestId(identity)))

    def _chunks_left(self, identity: bytes) -> Ids:
        try:
            return chunk_ids(self._loader.manifest(ManifestId(identity)))
        except MaintenanceError as error:
            if isinstance(error.__cause__, NotFoundError):
                return NOTHING
            raise

    def _not_kept(self, identities: Iterable[SnapshotId]) -> list[SnapshotId]:
        known = self.walk.links
        return [
            one for one in dict.fromkeys(identities) if one not in known and one not in self._kept
        ]


def _visit_alone(loader: Loader, identity: SnapshotId) -> Visited | None:
    """A snapshot that no refs list: its parent is the one in its file."""
    try:
        snapshot = loader.snapshot(identity)
        return visit(snapshot, snapshot.parent_id)
    except MaintenanceError as error:
        if isinstance(error.__cause__, NotFoundError):
            return None
        raise


def sizes_by_id(visited: Iterable[Visited], known: Ids) -> dict[bytes, int]:
    """Manifests of the snapshots, with their sizes, except those already known."""
    sizes: dict[bytes, int] = {}
    for one in visited:
        new = ~contains(known, one.manifests)
        sizes.update(zip(whole(one.manifests[new]), one.sizes[new].tolist(), strict=True))
    return sizes


def chunk_ids(manifest: Manifest) -> Ids:
    """Distinct chunk files that a manifest refers to, in all its parts."""
    parts = [from_rows(refs.native_ids()) for refs in all_refs(manifest)]
    return distinct(np.concatenate([NOTHING, *parts]))


def all_refs(manifest: Manifest) -> Iterator[ChunkRefs]:
    """The references of all arrays of a manifest."""
    return (refs for parts in manifest.arrays.values() for refs in parts)


def waves(sized: Sequence[tuple[bytes, int]], most: int) -> Iterator[list[bytes]]:
    """Ids in groups of at most `most` bytes; a larger one is a separate group. Pure."""
    wave: list[bytes] = []
    total = 0
    for identity, size in sized:
        if wave and total + size > most:
            yield wave
            wave, total = [], 0
        wave.append(identity)
        total += size
    if wave:
        yield wave
