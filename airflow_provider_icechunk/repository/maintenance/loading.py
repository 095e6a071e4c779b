"""Read metadata for maintenance: straight from the storage, never from a cache, or not at all.

A cached snapshot may be older than the file (expiration rewrites snapshots in place), and filling
the cache with every manifest of a repository would push out what readers need. Whatever cannot be
read or decoded becomes a `MaintenanceError`, because a decision to delete must not be taken on
partial knowledge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_icechunk.exceptions import (
    IcechunkError,
    Kind,
    MaintenanceError,
    NotFoundError,
)
from airflow_provider_icechunk.format.ids import ManifestId, SnapshotId
from airflow_provider_icechunk.format.snapshot import Manifest, Snapshot
from airflow_provider_icechunk.repository.ledgers.base import Ledger
from airflow_provider_icechunk.storage.base import Storage


@dataclass(frozen=True, slots=True)
class Loader:
    """Fresh snapshots and manifests of one repository."""

    storage: Storage
    ledger: Ledger
    spare: Mapping[SnapshotId, bytes] = field(default_factory=dict, repr=False)
    """Snapshot files that were deleted a moment ago and can still be put back."""

    def snapshot(self, identity: SnapshotId) -> Snapshot:
        """A snapshot; in `alpha` it may have another id than asked for, that of its file."""
        key = self.ledger.layout.snapshot(identity)
        try:
            found = self.storage.get(key)
            data = self.spare.get(identity) if found is None else found.data
            if data is not None:
                return self.ledger.codec.decode_snapshot(data, identity, where=key)
            elsewhere = self.ledger.relocate(identity)
            if elsewhere is not None and elsewhere != identity:
                return self.snapshot(elsewhere)
            raise NotFoundError(f"{key} does not exist", kind=Kind.SNAPSHOT_NOT_FOUND)
        except MaintenanceError:
            raise
        except IcechunkError as error:
            raise _unreadable("snapshot", key, self.storage, error) from error

    def manifest(self, identity: ManifestId) -> Manifest:
        """A manifest."""
        key = self.ledger.layout.manifest(identity)
        try:
            found = self.storage.get(key)
            if found is None:
                raise NotFoundError(f"{key} does not exist", kind=Kind.OBJECT_MISSING)
            return self.ledger.codec.decode_manifest(found.data, identity, where=key)
        except IcechunkError as error:
            raise _unreadable("manifest", key, self.storage, error) from error


def _unreadable(what: str, key: str, storage: Storage, error: IcechunkError) -> MaintenanceError:
    return MaintenanceError(
        f"the {what} {key} in {storage.location} is in use but cannot be read ({error.message}); "
        "maintenance stops, because what it refers to is unknown. Run `verify` and repair it, or "
        "remove the branch or tag that needs it"
    )
