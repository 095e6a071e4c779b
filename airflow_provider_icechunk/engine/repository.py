"""A repository: every official name on one class, each calling the room that does the work."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_icechunk.engine.commit.conflicts import ConflictSolver
from airflow_provider_icechunk.engine.commit.replay import changes_between
from airflow_provider_icechunk.engine.display import Shown
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig, StorageSettings
from airflow_provider_icechunk.engine.format.generation import SpecVersion, version_of
from airflow_provider_icechunk.engine.history import versions
from airflow_provider_icechunk.engine.history.ancestry import ManifestFileInfo, SnapshotInfo
from airflow_provider_icechunk.engine.history.diff import Diff, diff_between
from airflow_provider_icechunk.engine.history.graph import AncestryGraph
from airflow_provider_icechunk.engine.objects.chunk_writer import Packing
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.engine.sessions.preload import preloaded
from airflow_provider_icechunk.engine.sessions.rearrange import RearrangeSession
from airflow_provider_icechunk.engine.sessions.session import Origin, Session
from airflow_provider_icechunk.engine.storage.attribution import Attribution
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.engine.storage.tuning import Tuning, tuned
from airflow_provider_icechunk.engine.workers.coordinator import read_work
from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit
from airflow_provider_icechunk.exceptions import InvalidInputError

from . import opening
from .concurrency import add_async_twins, in_thread
from .core import Authorization, Choices, Core, follow
from .logs import logger
from .opening import detect_generation
from .world import REAL_WORLD, World

# Maintenance and what generation `2` keeps in one file are imported by the methods that need them:
# most processes never do, and importing each takes a tenth of the time of the package.
if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.async_twins import RepositoryTwins
    from airflow_provider_icechunk.engine.history.operations import (
        FeatureFlag,
        RepoStatus,
        Update,
    )
    from airflow_provider_icechunk.engine.maintenance.collect import Collection
    from airflow_provider_icechunk.engine.maintenance.collect_plan import GCSummary
    from airflow_provider_icechunk.engine.maintenance.compact import (
        CompactionResult,
        CompactionRules,
    )
    from airflow_provider_icechunk.engine.maintenance.findings import VerifyReport
    from airflow_provider_icechunk.engine.maintenance.measure import ChunkStorageStats, Measurement
    from airflow_provider_icechunk.engine.maintenance.retention import (
        ExpirationPlan,
        RetentionPolicy,
    )
    from airflow_provider_icechunk.engine.maintenance.rewrite import CommitMethod
    from airflow_provider_icechunk.engine.zarr_store.store import IcechunkStore
else:
    RepositoryTwins = object

_log = logger("repository")
_MANIFEST_MEMORY = 512 * 1024 * 1024


class Repository(Shown, RepositoryTwins):
    """References, history and sessions of one repository. Use `create`, `open` or both in one."""

    def __init__(self, core: Core, attribution: Attribution | None = None) -> None:
        self._core = core
        self._attribution = attribution or Attribution()
        self._config_version = core.config_version
        self._default_commit_metadata: dict[str, Any] = {}

    def shown_name(self) -> str:
        """With the generation of the format."""
        version = self.spec_version
        return f"icechunk.Repository ({version if isinstance(version, str) else f'v{version}'})"

    def shown_facts(self) -> Mapping[str, object]:
        """Where it is; the whole configuration would hide that."""
        storage = self._core.storage
        shown = storage if isinstance(storage, Shown) else storage.location
        return {"storage": shown, "config": "<RepositoryConfig ...>"}

    def __reduce__(self) -> tuple[Any, ...]:
        """Reopened by the receiving process, which uses its own credentials."""
        facts = (self._default_commit_metadata, self._attribution)
        return (_reopened, (type(self), Origin.of(self._core), *facts))

    @property
    def core(self) -> Core:
        """The shared parts of the repository's sessions, for maintenance that runs elsewhere."""
        return self._core

    @classmethod
    def create(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization | None = None,
        spec_version: int | str | None = None,
        check_clean_root: bool = True,
        attribution: Attribution | None = None,
        *,
        packing: Packing | None = None,
        world: World = REAL_WORLD,
    ) -> Self:
        """Create a repository in an empty location and open it.

        If many try at once, exactly one succeeds; the others get `AlreadyExistsError`. With
        `check_clean_root=False` the location may contain other files, as long as they are not a
        repository.

        :param attribution: labels that requests to an object store carry in their user agent.
        """
        _log.debug("Creating Repository in %s", storage.location)
        return cls(
            opening.create_core(
                _attributed(storage, attribution),
                spec_version,
                Choices(config, authorize_virtual_chunk_access, packing, world),
                check_clean_root=check_clean_root,
            ),
            attribution,
        )

    @classmethod
    def open(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization | None = None,
        attribution: Attribution | None = None,
        *,
        packing: Packing | None = None,
        world: World = REAL_WORLD,
    ) -> Self:
        """Open a repository of any supported generation."""
        _log.debug("Opening Repository in %s", storage.location)
        return cls(
            opening.open_core(
                _attributed(storage, attribution),
                Choices(config, authorize_virtual_chunk_access, packing, world),
            ),
            attribution,
        )

    @classmethod
    def find(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization | None = None,
        *,
        packing: Packing | None = None,
        world: World = REAL_WORLD,
    ) -> Self | None:
        """Open the repository if there is one: `exists` and `open` in one call."""
        found = opening.find_core(
            storage, Choices(config, authorize_virtual_chunk_access, packing, world)
        )
        return None if found is None else cls(found)

    @classmethod
    def open_or_create(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization | None = None,
        create_version: int | str | None = None,
        check_clean_root: bool = True,
        attribution: Attribution | None = None,
        *,
        spec_version: int | str | None = None,
        packing: Packing | None = None,
        world: World = REAL_WORLD,
    ) -> Self:
        """Open the repository, or create it if there is none.

        A new one gets the generation `create_version`, which is the official name; `spec_version`
        is the same.
        """
        if None not in (create_version, spec_version):
            raise InvalidInputError("give create_version or spec_version, not both")
        return cls(
            opening.open_or_create_core(
                _attributed(storage, attribution),
                spec_version if create_version is None else create_version,
                Choices(config, authorize_virtual_chunk_access, packing, world),
                check_clean_root=check_clean_root,
            ),
            attribution,
        )

    @staticmethod
    def exists(storage: Storage, storage_settings: StorageSettings | None = None) -> bool:
        """Whether there is a repository, of any generation."""
        storage = _with_settings(storage, storage_settings)
        return detect_generation(storage) is not None

    @staticmethod
    def fetch_spec_version(
        storage: Storage, storage_settings: StorageSettings | None = None
    ) -> SpecVersion | str | None:
        """The generation of a repository without opening it; `None` if there is none."""
        storage = _with_settings(storage, storage_settings)
        generation = detect_generation(storage)
        return None if generation is None else version_of(generation)

    @staticmethod
    def fetch_config(
        storage: Storage, storage_settings: StorageSettings | None = None
    ) -> RepositoryConfig | None:
        """The configuration stored with a repository; `None` if none is stored there."""
        return opening.stored_config(_with_settings(storage, storage_settings))

    def reopen(
        self,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization | None = None,
    ) -> Self:
        """The same repository with another configuration or other grants."""
        core = opening.reopen_core(self._core, config, authorize_virtual_chunk_access)
        return type(self)(core, self._attribution)

    @property
    def config(self) -> RepositoryConfig:
        """The effective configuration: defaults, overridden by the stored one, then by the
        caller's.
        """
        return self._core.config

    @property
    def storage(self) -> Storage:
        """Where the repository is."""
        return self._core.storage

    @property
    def attribution(self) -> Attribution:
        """The labels that requests carry."""
        return self._attribution

    @property
    def spec_version(self) -> SpecVersion | str:
        """Generation of the stored format: a number, or the name of one before the numbers."""
        return version_of(self._core.generation)

    @property
    def authorized_virtual_container_prefixes(self) -> set[str]:
        """URL prefixes of virtual chunks that may be read."""
        return set(self._core.authorize)

    def save_config(self) -> None:
        """Store the effective configuration, unless somebody else has changed the stored one."""
        self._config_version = opening.save_config(self._core, self._config_version)

    def set_default_commit_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Metadata for every commit of sessions opened from now on."""
        self._default_commit_metadata = dict(metadata)

    def default_commit_metadata(self) -> dict[str, Any]:
        """What `set_default_commit_metadata` set."""
        return dict(self._default_commit_metadata)

    def writable_session(self, branch: str) -> Session:
        """A session on the head of `branch` that can be changed and committed."""
        head = versions.head_to_change(self._core, branch)
        base = preloaded(self._core, self._core.objects.snapshot(head))
        return Session(self._core, base, branch=branch, metadata=self._default_commit_metadata)

    def session_with_changes(
        self, branch: str, *, from_snapshot_id: str, to_snapshot_id: str
    ) -> Session:
        """A session for `branch` with the changes of the commits after one snapshot up to another.

        It is based on the older snapshot: if the branch has moved on, the session must be rebased.
        """
        core = self._core
        versions.head_to_change(core, branch)
        older = versions.parse_snapshot_id(core, from_snapshot_id)
        newer = versions.parse_snapshot_id(core, to_snapshot_id)
        changes = changes_between(core, older, newer)
        base, metadata = core.objects.snapshot(older), self._default_commit_metadata
        session = Session(core, base, branch=branch, metadata=metadata)
        session.tree.changes = changes
        session.tree.held.borrows(core.refs.layout.snapshot(newer))
        return session

    def readonly_session(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
    ) -> Session:
        """A session that reads one snapshot: a branch's head, or its last one at `as_of`."""
        start = versions.resolve_at(self._core, branch, tag, snapshot_id, as_of)
        return Session(self._core, preloaded(self._core, self._core.objects.snapshot(start)))

    def rearrange_session(self, branch: str) -> RearrangeSession:
        """A session that renames nodes at the head of `branch`, and does nothing else."""
        base = self._core.objects.snapshot(versions.head_to_change(self._core, branch))
        return RearrangeSession(
            self._core, base, branch=branch, metadata=self._default_commit_metadata
        )

    def resume(self, work: WorkUnit | Mapping[str, Any] | str) -> Session:
        """The session that handed out `work`, in another process or after a restart."""
        unit = read_work(self._core, work)
        session = self.writable_session(unit.branch)
        session.resume(unit)
        return session

    def fork(self, work: WorkUnit | Mapping[str, Any] | str) -> ForkSession:
        """A worker's session for a work unit that another process handed out."""
        unit = read_work(self._core, work)
        return ForkSession(self._core, self._core.objects.snapshot(unit.staged), unit)

    @contextmanager
    def transaction(
        self,
        branch: str,
        *,
        message: str,
        metadata: Mapping[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1_000,
    ) -> Iterator[IcechunkStore]:
        """Commit what the block writes to the store; an exception leaves nothing behind."""
        session = self.writable_session(branch)
        yield session.store
        session.commit(
            message, metadata=metadata, rebase_with=rebase_with, rebase_tries=rebase_tries
        )

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """Create a branch at a snapshot."""
        versions.create_branch(self._core, branch, snapshot_id)

    def list_branches(self) -> set[str]:
        """Names of all branches."""
        return set(self._core.refs.branches())

    def lookup_branch(self, branch: str) -> str:
        """The snapshot at the head of a branch."""
        return self._core.format_id(versions.branch_head(self._core, branch))

    def reset_branch(
        self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None
    ) -> None:
        """Move a branch to any snapshot; with `from_snapshot_id` only if it is at that one."""
        versions.reset_branch(self._core, branch, snapshot_id, from_snapshot_id)

    def delete_branch(self, branch: str) -> None:
        """Delete a branch; its snapshots stay until they are collected."""
        versions.delete_branch(self._core, branch)

    def create_tag(self, tag: str, snapshot_id: str) -> None:
        """Create an immutable tag."""
        versions.create_tag(self._core, tag, snapshot_id)

    def list_tags(self) -> set[str]:
        """Names of all tags that were not deleted."""
        return set(self._core.refs.tags())

    def lookup_tag(self, tag: str) -> str:
        """The snapshot a tag names."""
        return self._core.format_id(versions.tagged(self._core, tag))

    def delete_tag(self, tag: str) -> None:
        """Delete a tag; its name is never free again."""
        versions.delete_tag(self._core, tag)

    def read_snapshot_id(self, text: str) -> str:
        """A typed id in this repository's spelling; refuses anything that cannot be one.

        Two ids are the same if they are equal in this spelling. Does not check that the snapshot
        exists.
        """
        return self._core.format_id(versions.parse_snapshot_id(self._core, text))

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """What is known about one snapshot."""
        return versions.lookup_snapshot(self._core, snapshot_id)

    def ancestry(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: str | None = None
    ) -> Iterator[SnapshotInfo]:
        """A version and its ancestors, newest first."""
        start = versions.resolve(self._core, branch, tag, snapshot_id)
        return versions.history(self._core, start)

    async def async_ancestry(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: str | None = None
    ) -> AsyncIterator[SnapshotInfo]:
        """`ancestry` that loads each snapshot in a thread."""
        history = self.ancestry(branch=branch, tag=tag, snapshot_id=snapshot_id)
        while (info := await in_thread(next, history, None)) is not None:
            yield info

    def ancestry_graph(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        plain: bool = False,
    ) -> AncestryGraph:
        """The history as a picture: of one version, or of all branches if none is given.

        `print` shows it in colours, notebooks as a drawing; `plain` leaves out the colours.
        """
        start = None
        if (branch, tag, snapshot_id) != (None, None, None):
            start = versions.resolve(self._core, branch, tag, snapshot_id)
        return versions.history_graph(self._core, start, plain=plain)

    def diff(
        self,
        *,
        from_branch: str | None = None,
        from_tag: str | None = None,
        from_snapshot_id: str | None = None,
        to_branch: str | None = None,
        to_tag: str | None = None,
        to_snapshot_id: str | None = None,
    ) -> Diff:
        """What changed from an ancestor to a later version."""
        older = versions.resolve(self._core, from_branch, from_tag, from_snapshot_id)
        newer = versions.resolve(self._core, to_branch, to_tag, to_snapshot_id)
        return diff_between(self._core.objects, older, newer)

    def inspect_snapshot(self, snapshot_id: str, *, pretty: bool = True) -> str:
        """One snapshot as JSON: its manifests, its nodes and where their chunks are listed."""
        from airflow_provider_icechunk.engine.history import inspect

        return inspect.inspect_snapshot(self._core, snapshot_id, pretty=pretty)

    def inspect_repo_info(self) -> dict[str, Any]:
        """Branches, tags, snapshots and the newest operations; generation `2` only."""
        from airflow_provider_icechunk.engine.history import inspect

        return inspect.inspect_repo_info(self._core)

    def inspect_manifest(self, manifest_id: str) -> dict[str, Any]:
        """How many chunks of which kind a manifest lists for each array."""
        from airflow_provider_icechunk.engine.history import inspect

        return inspect.inspect_manifest(self._core, manifest_id)

    def inspect_transaction_log(self, snapshot_id: str) -> dict[str, Any]:
        """What one commit changed, by ids of nodes.

        If expiration removed snapshots before it, their logs are included.
        """
        from airflow_provider_icechunk.engine.history import inspect

        return inspect.inspect_transaction_log(self._core, snapshot_id)

    def list_manifest_files(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """The manifest files that a snapshot uses."""
        from airflow_provider_icechunk.engine.history import inspect

        return inspect.list_manifest_files(self._core, snapshot_id)

    def ops_log(self) -> Iterator[Update]:
        """What happened to the repository, newest first."""
        from airflow_provider_icechunk.engine.history import operations

        return operations.operations(self._core)

    async def ops_log_async(self) -> AsyncIterator[Update]:
        """`ops_log` that reads each part in a thread."""
        entries = self.ops_log()
        while (entry := await in_thread(next, entries, None)) is not None:
            yield entry

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the repository itself."""
        return self.get_metadata()

    def get_metadata(self) -> dict[str, Any]:
        """The metadata of the repository itself."""
        from airflow_provider_icechunk.engine.history import operations

        return operations.get_metadata(self._core)

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata of the repository."""
        from airflow_provider_icechunk.engine.history import operations

        operations.set_metadata(self._core, metadata)

    def update_metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Set some entries of the metadata and leave the others; returns all of it."""
        from airflow_provider_icechunk.engine.history import operations

        return operations.update_metadata(self._core, metadata)

    @property
    def status(self) -> RepoStatus:
        """Whether the repository may be changed."""
        return self.get_status()

    def get_status(self) -> RepoStatus:
        """Whether the repository may be changed."""
        from airflow_provider_icechunk.engine.history import operations

        return operations.get_status(self._core)

    def set_status(self, status: RepoStatus) -> None:
        """Set whether the repository may be changed; works even while it may not."""
        from airflow_provider_icechunk.engine.history import operations

        operations.set_status(self._core, status)

    def feature_flags(self) -> list[FeatureFlag]:
        """All features and how they are set."""
        from airflow_provider_icechunk.engine.history import operations

        return operations.feature_flags(self._core)

    def enabled_feature_flags(self) -> list[FeatureFlag]:
        """Features that may be used."""
        return [flag for flag in self.feature_flags() if flag.enabled]

    def disabled_feature_flags(self) -> list[FeatureFlag]:
        """Features that may not be used."""
        return [flag for flag in self.feature_flags() if not flag.enabled]

    def set_feature_flag(self, name: str, setting: bool | None) -> None:
        """Turn a feature on or off; `None` resets it to its default."""
        from airflow_provider_icechunk.engine.history import operations

        operations.set_feature_flag(self._core, name, setting)

    def expire_snapshots(
        self,
        older_than: datetime,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
        dry_run: bool = False,
        keep_last: int | None = None,
    ) -> set[str]:
        """Remove snapshots written before `older_than` from the history; returns their ids.

        Nothing is deleted except, if requested, branches and tags whose newest snapshot is that
        old; never `main`. With `keep_last` every branch keeps at least that many snapshots, however
        old. The result contains every expired snapshot, even a head that a branch or tag keeps
        alive; a dry run returns the same and changes nothing.
        """
        from airflow_provider_icechunk.engine.maintenance.retention import RetentionPolicy

        policy = RetentionPolicy(
            older_than, keep_last, delete_expired_branches, delete_expired_tags
        )
        plan = self.expire(policy, dry_run=dry_run)
        return {plan.format_id(identity) for identity in plan.released}

    def expire(self, policy: RetentionPolicy, *, dry_run: bool = False) -> ExpirationPlan:
        """Remove from the history what `policy` does not keep; returns what was done, or would be.

        `plan_expiration` and `carry_out_expiration` are its two steps, so that a caller can ask in
        between.
        """
        from airflow_provider_icechunk.engine.maintenance.expire import expire

        return expire(self._core, policy, dry_run=dry_run)

    def plan_expiration(self, policy: RetentionPolicy) -> ExpirationPlan:
        """What expiring by `policy` would do, ref by ref. Changes nothing."""
        from airflow_provider_icechunk.engine.maintenance.expire import make_expiration_plan

        return make_expiration_plan(self._core, policy)

    def carry_out_expiration(self, plan: ExpirationPlan) -> ExpirationPlan:
        """Do what `plan_expiration` planned and nothing else; returns what was done.

        That is less than the plan only where others moved or deleted branches and tags meanwhile.
        """
        from airflow_provider_icechunk.engine.maintenance.expire import carry_out_expiration

        return carry_out_expiration(self._core, plan)

    def collection(self) -> Collection:
        """One run of the garbage collector whose plan can be inspected before it is carried out."""
        from airflow_provider_icechunk.engine.maintenance.collect import Collection

        return Collection(self._core)

    def collect(
        self,
        older_than: datetime,
        *,
        minimum_age: timedelta | None = None,
        dry_run: bool = False,
        released: ExpirationPlan | Iterable[str] | None = None,
    ) -> GCSummary:
        """Delete what nothing reaches and was stored before a time, as `garbage_collect` does.

        :param released: what an expiration did, or ids of snapshots that left the history. Only
            they and what they refer to are considered, with the same care, and no large folder is
            listed. Leftovers of failed writers remain for a complete collection.
        """
        from airflow_provider_icechunk.engine.maintenance.collect import collect
        from airflow_provider_icechunk.engine.maintenance.retention import ExpirationPlan

        if isinstance(released, ExpirationPlan):
            chosen = released.leaving
        else:
            chosen = frozenset(
                versions.parse_snapshot_id(self._core, one) for one in released or ()
            )
        return collect(
            self._core,
            older_than,
            minimum_age=minimum_age,
            dry_run=dry_run,
            released=None if released is None else chosen,
        )

    def garbage_collect(
        self,
        delete_object_older_than: datetime,
        *,
        dry_run: bool = False,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = _MANIFEST_MEMORY,
        max_concurrent_manifest_fetches: int = 500,
        minimum_age: timedelta | None = None,
        max_decoded_manifest_mem_bytes: int | None = None,
        max_concurrent_deletes: int | None = None,
        max_consecutive_delete_failures: int | None = None,
        max_concurrent_listings: int | None = None,
    ) -> GCSummary:
        """Delete objects that no branch or tag reaches and that were stored before a given time.

        What a session has written and not yet committed is protected by its age, and once it is 15
        minutes old by its lease: what began before the cut-off moves the cut-off back. So a time
        that is less than 15 minutes ago needs a repository that nobody writes to, and one in the
        future gives a warning. `minimum_age` keeps the time away from the present by the store's
        own clock. Raises `MaintenanceError`, with nothing deleted, if any reachable metadata cannot
        be read.

        Snapshots are deleted first, then logs, manifests and attributes together, and chunks last.
        Deletes that fail are in the summary; what comes after them is not begun.

        The last four are accepted for scripts written for official 2.3 and change nothing: what
        they limit is bounded here in other ways.
        """
        from airflow_provider_icechunk.engine.maintenance.collect import collect
        from airflow_provider_icechunk.engine.maintenance.reachable import MemoryLimits

        del max_decoded_manifest_mem_bytes, max_concurrent_deletes
        del max_consecutive_delete_failures, max_concurrent_listings
        limits = MemoryLimits(
            max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes,
            max_concurrent_manifest_fetches,
        )
        return collect(
            self._core,
            delete_object_older_than,
            minimum_age=minimum_age,
            dry_run=dry_run,
            limits=limits,
        )

    def verify(self) -> VerifyReport:
        """Check that everything that branches and tags need exists and is consistent."""
        from airflow_provider_icechunk.engine.maintenance.verify import verify

        return verify(self._core)

    def measure(self) -> Measurement:
        """Sizes of every version and array, and of the files that hold them."""
        from airflow_provider_icechunk.engine.maintenance.measure import measure

        return measure(self._core)

    def chunk_storage_stats(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = _MANIFEST_MEMORY,
        max_concurrent_manifest_fetches: int = 500,
        max_decoded_manifest_mem_bytes: int | None = None,
    ) -> ChunkStorageStats:
        """Bytes of all chunks that branches and tags reach, by kind.

        `max_decoded_manifest_mem_bytes` is accepted for scripts written for official 2.3 and
        changes nothing: few manifests are decoded at a time.
        """
        from airflow_provider_icechunk.engine.maintenance.measure import chunk_storage_stats
        from airflow_provider_icechunk.engine.maintenance.reachable import MemoryLimits

        del max_decoded_manifest_mem_bytes
        limits = MemoryLimits(
            max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes,
            max_concurrent_manifest_fetches,
        )
        return chunk_storage_stats(self._core, limits)

    def total_chunks_storage(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = _MANIFEST_MEMORY,
        max_concurrent_manifest_fetches: int = 500,
        max_decoded_manifest_mem_bytes: int | None = None,
    ) -> int:
        """Bytes of all native chunks. Deprecated, as officially: use `chunk_storage_stats`."""
        warnings.warn(
            "total_chunks_storage and total_chunks_storage_async are deprecated; use "
            "chunk_storage_stats().native_bytes",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.chunk_storage_stats(
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
        ).native_bytes

    def rewrite_manifests(
        self,
        message: str,
        *,
        branch: str,
        metadata: Mapping[str, Any] | None = None,
        commit_method: CommitMethod = "new_commit",
    ) -> str:
        """Rewrite all manifests of a branch with the current configuration, as one commit.

        A repository without rules for splitting gets the standard ones.

        Returns the id of the new snapshot. Its metadata says, under `splitting_config`, by which
        rules it was made. With `commit_method="amend"`, in generation `2`, it replaces the newest
        commit.
        """
        from airflow_provider_icechunk.engine.maintenance.rewrite import rewrite_manifests

        details = self._default_commit_metadata | dict(metadata or {})
        rewritten = rewrite_manifests(
            self._core, message, branch=branch, metadata=details, commit_method=commit_method
        )
        return self._core.format_id(rewritten)

    def compact(
        self,
        branch: str,
        *,
        rules: CompactionRules | None = None,
        message: str = "compact small chunks",
        metadata: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> CompactionResult:
        """Pack neighbouring small chunks of the head of a branch into larger files, as one commit.

        Values do not change, and neither side waits for the other: a chunk written in the meantime
        keeps its new value. The old files stay until snapshots that need them have expired and
        garbage was collected.
        """
        from airflow_provider_icechunk.engine.maintenance.compact import compact

        return compact(
            self._core,
            branch,
            rules=rules,
            message=message,
            metadata=self._default_commit_metadata | dict(metadata or {}),
            dry_run=dry_run,
        )


def _reopened(
    cls: type[Repository], origin: Origin, metadata: dict[str, Any], attribution: Attribution
) -> Repository:
    """A repository that came from another process."""
    repository = cls(origin.open(), attribution)
    repository.set_default_commit_metadata(metadata)
    return repository


def _attributed(storage: Storage, attribution: Attribution | None) -> Storage:
    if attribution is None:
        return storage
    return tuned(storage, Tuning(user_agent=attribution.user_agent))


def _with_settings(storage: Storage, settings: StorageSettings | None) -> Storage:
    return storage if settings is None else follow(storage, RepositoryConfig(storage=settings))


add_async_twins(
    Repository,
    (
        *("ancestry_graph", "chunk_storage_stats", "create", "create_branch", "create_tag"),
        *("delete_branch", "delete_tag", "diff", "disabled_feature_flags", "enabled_feature_flags"),
        *("exists", "expire_snapshots", "feature_flags", "fetch_config", "fetch_spec_version"),
        *("garbage_collect", "get_metadata", "get_status", "inspect_manifest"),
        *("inspect_repo_info", "inspect_snapshot", "inspect_transaction_log", "list_branches"),
        *("list_manifest_files", "list_tags", "lookup_branch", "lookup_snapshot", "lookup_tag"),
        *("open", "open_or_create", "readonly_session", "rearrange_session", "reopen"),
        *("reset_branch", "rewrite_manifests", "save_config", "set_feature_flag", "set_metadata"),
        *("set_status", "total_chunks_storage", "update_metadata", "writable_session"),
    ),
)
