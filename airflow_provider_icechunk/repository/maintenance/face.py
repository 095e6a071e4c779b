"""Maintenance as methods of a repository, with the official names and signatures."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.repository.engine import Engine

# Modules are imported by the methods that need them: a session never does, and together they take
# a tenth of the time in which the package is imported.
if TYPE_CHECKING:
    from airflow_provider_icechunk.repository.maintenance.collect import Collection
    from airflow_provider_icechunk.repository.maintenance.collect_plan import GCSummary
    from airflow_provider_icechunk.repository.maintenance.compaction import CompactionRules
    from airflow_provider_icechunk.repository.maintenance.compaction_run import CompactionResult
    from airflow_provider_icechunk.repository.maintenance.findings import VerifyReport
    from airflow_provider_icechunk.repository.maintenance.measure import Measurement
    from airflow_provider_icechunk.repository.maintenance.reachable import MemoryLimits
    from airflow_provider_icechunk.repository.maintenance.retention import (
        ExpirationPlan,
        RetentionPolicy,
    )
    from airflow_provider_icechunk.repository.maintenance.rewrite import CommitMethod
    from airflow_provider_icechunk.repository.maintenance.stats import ChunkStorageStats

_MANIFEST_MEMORY = 512 * 1024 * 1024


class Maintenance:
    """Keep a repository small and sound. Mixed into repositories."""

    _engine: Engine
    _default_commit_metadata: dict[str, Any]

    @property
    def engine(self) -> Engine:
        """What the sessions of the repository share; for maintenance that runs elsewhere."""
        return self._engine

    def expire_snapshots(
        self,
        older_than: datetime,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
        dry_run: bool = False,
        keep_last: int | None = None,
    ) -> set[str]:
        """Take snapshots written before `older_than` out of the history; returns their ids.

        Nothing is deleted but, if asked for, branches and tags whose newest snapshot is that old;
        `main` never. With `keep_last` every branch keeps at least so many snapshots, however old.
        The result holds every expired snapshot, also a head that a branch or tag keeps alive; a dry
        run returns the same and changes nothing.
        """
        from airflow_provider_icechunk.repository.maintenance.retention import RetentionPolicy

        policy = RetentionPolicy(
            older_than, keep_last, delete_expired_branches, delete_expired_tags
        )
        plan = self.plan_expiration(policy)
        if not dry_run:
            plan = self.carry_out_expiration(plan)
        return {plan.show(identity) for identity in plan.released}

    def plan_expiration(self, policy: RetentionPolicy) -> ExpirationPlan:
        """What expiring by `policy` would do, reference by reference. Changes nothing."""
        from airflow_provider_icechunk.repository.maintenance.expire import make_expiration_plan

        return make_expiration_plan(self._engine, policy)

    def carry_out_expiration(self, plan: ExpirationPlan) -> ExpirationPlan:
        """Do what `plan_expiration` planned and nothing else; returns what was done.

        That is less than the plan only where others moved or deleted branches and tags meanwhile.
        """
        from airflow_provider_icechunk.repository.maintenance.expire import carry_out_expiration

        return carry_out_expiration(self._engine, plan)

    def collection(self) -> Collection:
        """One run of the garbage collector whose plan can be looked at before it is carried out."""
        from airflow_provider_icechunk.repository.maintenance.collect import Collection

        return Collection(self._engine)

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
        be read. Deletes that fail are in the summary, and nothing below them is touched.

        The last four are accepted for scripts written for official 2.3 and change nothing: what
        they limit is bounded here in other ways.
        """
        from airflow_provider_icechunk.repository.maintenance.collect import collect

        del max_decoded_manifest_mem_bytes, max_concurrent_deletes
        del max_consecutive_delete_failures, max_concurrent_listings
        limits = _limits(
            max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes,
            max_concurrent_manifest_fetches,
        )
        return collect(
            self._engine,
            delete_object_older_than,
            minimum_age=minimum_age,
            dry_run=dry_run,
            limits=limits,
        )

    def verify(self) -> VerifyReport:
        """Check that everything that branches and tags need is there and fits together."""
        from airflow_provider_icechunk.repository.maintenance.verify import verify

        return verify(self._engine)

    def measure(self) -> Measurement:
        """Sizes of every version and array, and of the files that hold them."""
        from airflow_provider_icechunk.repository.maintenance.measure import measure

        return measure(self._engine)

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
        from airflow_provider_icechunk.repository.maintenance.stats import chunk_storage_stats

        del max_decoded_manifest_mem_bytes
        limits = _limits(
            max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes,
            max_concurrent_manifest_fetches,
        )
        return chunk_storage_stats(self._engine, limits)

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
            "total_chunks_storage is deprecated; use chunk_storage_stats().native_bytes",
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
        """Write all manifests of a branch anew by the configuration in force, as one commit.

        Returns the id of the new snapshot. Its metadata says, under `splitting_config`, by which
        rules it was made. With `commit_method="amend"`, in generation `2`, it takes the place of
        the newest commit.
        """
        from airflow_provider_icechunk.repository.maintenance.rewrite import rewrite_manifests

        details = self._default_commit_metadata | dict(metadata or {})
        rewritten = rewrite_manifests(
            self._engine, message, branch=branch, metadata=details, commit_method=commit_method
        )
        return self._engine.show(rewritten)

    def compact(
        self,
        branch: str,
        *,
        rules: CompactionRules | None = None,
        message: str = "compact small chunks",
        metadata: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> CompactionResult:
        """Put neighbouring small chunks of the head of a branch into packed files, as one commit.

        Values do not change, and neither side waits for the other: a chunk that is written
        meanwhile keeps what was written. The old files stay until snapshots that need them have
        expired and garbage was collected.
        """
        from airflow_provider_icechunk.repository.maintenance.compaction_run import compact

        return compact(
            self._engine,
            branch,
            rules=rules,
            message=message,
            metadata=self._default_commit_metadata | dict(metadata or {}),
            dry_run=dry_run,
        )


def _limits(snapshots: int, manifest_bytes: int, fetches: int) -> MemoryLimits:
    from airflow_provider_icechunk.repository.maintenance.reachable import MemoryLimits

    return MemoryLimits(snapshots, manifest_bytes, fetches)
