"""The ledger of generation `1`: one conditional `ref.json` per branch and tag, one `config.yaml`.

A process that dies at any point leaves a reference that names the old or the new snapshot: each
change is one conditional write. A tag's deletion is the creation of a tombstone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from airflow_provider_icechunk.exceptions import ConflictError, Kind, StorageError
from airflow_provider_icechunk.format.config import RepositoryConfig, ResolvedConfig
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.generations.v1.codec import V1Codec
from airflow_provider_icechunk.format.generations.v1.layout import (
    REFS,
    V1Layout,
    branch_key,
    decode_ref,
    encode_ref,
    tag_key,
    tombstone_key,
)
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.format.names import MAIN, check_ref_name
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.repository.ledgers.base import (
    Behind,
    Creation,
    Moved,
    StoredConfig,
    Trust,
)
from airflow_provider_icechunk.repository.ledgers.config_file import read_config, swap_config
from airflow_provider_icechunk.repository.ledgers.listed import listed_names
from airflow_provider_icechunk.storage.base import Storage, Version, Written

_BRANCH = "branch."
_TAG = "tag."
_SAME_TIP_TRIES = 10
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class V1Ledger:
    """References and configuration as separate, conditionally written objects."""

    storage: Storage
    generation: Generation = Generation.V1
    codec: V1Codec = field(default_factory=V1Codec)
    layout: V1Layout = field(default_factory=V1Layout)
    trust: Trust = Trust.CONDITIONS
    holds_config: bool = False

    def initialize(self, first: Snapshot, config: RepositoryConfig | None = None) -> bool:
        """Create `main`; the creator of the reference is the creator of the repository."""
        del config
        return self._create(branch_key(MAIN), first.id)

    def branches(self) -> dict[str, SnapshotId]:
        """All branches; a folder without its `ref.json` is a deleted one."""
        return self._named(_BRANCH, branch_key)

    def branch(self, name: str) -> SnapshotId | None:
        """Where the branch is."""
        return self._read(branch_key(check_ref_name(name)))

    def create_branch(self, name: str, to: SnapshotId) -> Creation:
        """Create the reference unless it exists."""
        created = self._create(branch_key(check_ref_name(name)), to)
        return Creation.CREATED if created else Creation.EXISTS

    def commit(self, name: str, expected: SnapshotId, snapshot: Snapshot) -> Moved | Behind:
        """Swap the reference from `expected` to the new snapshot."""
        return self.reset_branch(name, snapshot.id, expected)

    def announce(self, snapshot: Snapshot) -> None:
        """Snapshots are found by their files alone."""

    def reset_branch(self, name: str, to: SnapshotId, expected: SnapshotId) -> Moved | Behind:
        """Swap the reference from `expected` to `to`.

        A lost swap of a reference that still names `expected` (rewritten with the same content) is
        tried again; anything else is somebody else's move.
        """
        key = branch_key(check_ref_name(name))
        for _ in range(_SAME_TIP_TRIES):
            found = self.storage.get(key)
            if found is None:
                return Behind(None)
            actual = decode_ref(found.data, where=key)
            if actual != expected:
                return Behind(actual)
            expect = self.trust.update(found.version)
            outcome = self.storage.put(key, encode_ref(to), expect=expect, content_type=_JSON)
            if isinstance(outcome, Written):
                return Moved()
        raise ConflictError(
            f"{key} was rewritten {_SAME_TIP_TRIES} times while it was being moved; try again",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def delete_branch(self, name: str) -> bool:
        """Delete the reference."""
        key = branch_key(check_ref_name(name))
        if self.storage.head(key) is None:
            return False
        self._must_delete(key)
        return True

    def tags(self) -> dict[str, SnapshotId]:
        """All tags without a tombstone."""
        buried = set(self.deleted_tags())
        return {
            name: snapshot
            for name, snapshot in self._named(_TAG, tag_key).items()
            if name not in buried
        }

    def tag(self, name: str) -> SnapshotId | None:
        """What the tag names, unless it has a tombstone."""
        check_ref_name(name, "tag")
        found, tombstone = self.storage.get_many(
            [(tag_key(name), None), (tombstone_key(name), None)]
        )
        if found is None or tombstone is not None:
            return None
        return decode_ref(found.data, where=tag_key(name))

    def deleted_tags(self) -> list[str]:
        """Names with a tombstone."""
        names = self._names(_TAG)
        stones = self.storage.get_many([(tombstone_key(name), None) for name in names])
        return [name for name, stone in zip(names, stones, strict=True) if stone is not None]

    def create_tag(self, name: str, to: SnapshotId) -> Creation:
        """Create the reference unless it or its tombstone exists."""
        check_ref_name(name, "tag")
        if self.storage.head(tombstone_key(name)) is not None:
            return Creation.WAS_DELETED
        return Creation.CREATED if self._create(tag_key(name), to) else Creation.EXISTS

    def delete_tag(self, name: str) -> bool:
        """Create the tombstone; the reference itself stays, as official readers expect."""
        if self.tag(name) is None:
            return False
        expect = self.trust.create()
        outcome = self.storage.put(tombstone_key(name), b"", expect=expect, content_type=_JSON)
        return isinstance(outcome, Written)

    def config(self) -> StoredConfig | None:
        """The stored `config.yaml`."""
        return read_config(self.storage)

    def save_config(self, config: RepositoryConfig, expected: Version | None) -> Version | None:
        """Swap `config.yaml`."""
        return swap_config(self.storage, config, expected, self.trust)

    def parent(self, snapshot: Snapshot) -> SnapshotId | None:
        """Parents are in the snapshot files."""
        return snapshot.parent_id

    def trusting(self, trust: Trust) -> V1Ledger:
        """The same ledger on a store whose conditional writes are used or not."""
        return replace(self, trust=trust)

    def pruned_logs(self, identity: SnapshotId) -> tuple[SnapshotId, ...]:
        """Expiration forgets what it takes out of the history."""
        del identity
        return ()

    def check_writable(self) -> None:
        """It can be written."""

    def following(self, settings: ResolvedConfig) -> V1Ledger:
        """Nothing here is chosen by the configuration."""
        del settings
        return self

    def relocate(self, missing: SnapshotId) -> SnapshotId | None:
        """Every snapshot is stored under its own id."""
        del missing
        return None

    def _read(self, key: str) -> SnapshotId | None:
        found = self.storage.get(key)
        return None if found is None else decode_ref(found.data, where=key)

    def _create(self, key: str, to: SnapshotId) -> bool:
        if not self.trust.creates and self.storage.head(key) is not None:
            return False
        expect = self.trust.create()
        outcome = self.storage.put(key, encode_ref(to), expect=expect, content_type=_JSON)
        return isinstance(outcome, Written)

    def _names(self, prefix: str) -> list[str]:
        folders = self.storage.list_folders(REFS)
        names = (name.removeprefix(prefix) for name in folders if name.startswith(prefix))
        return listed_names(names, REFS + prefix, prefix.rstrip("."))

    def _named(self, prefix: str, key_of: Callable[[str], str]) -> dict[str, SnapshotId]:
        names = self._names(prefix)
        keys = [key_of(name) for name in names]
        found = self.storage.get_many([(key, None) for key in keys])
        return {
            name: decode_ref(fetched.data, where=key)
            for name, key, fetched in zip(names, keys, found, strict=True)
            if fetched is not None
        }

    def _must_delete(self, key: str) -> None:
        failed = self.storage.delete([key]).failed
        if failed:
            raise StorageError(f"cannot delete {key} in {self.storage.location}: {failed[key]}")
