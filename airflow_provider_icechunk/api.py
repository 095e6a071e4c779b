"""The public API of the engine, with the names of the official `icechunk` package.

A script written for `icechunk` 1.1 runs with `import airflow_provider_icechunk.api as icechunk`.
Names beyond the official package are additions, never another name for the same thing. Imports no
Airflow, so that it runs on Spark executors.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.engine import logs
from airflow_provider_icechunk.engine.storage.base import Storage as AnyStorage
from airflow_provider_icechunk.engine.world import World
from airflow_provider_icechunk.error_kinds import ErrorKind
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    AlreadyExistsError,
    CheckFailedError,
    ConflictError,
    ForkError,
    FormatError,
    FragmentError,
    IcechunkError,
    InternalError,
    InvalidInputError,
    Kind,
    MaintenanceError,
    NodeNotFoundError,
    NoJsonError,
    NotFoundError,
    OutcomeUnknownError,
    ReadOnlyError,
    RebaseFailedError,
    RefNotFoundError,
    RepositoryNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
    StorageError,
    TaskError,
    UnsafeStorageError,
    UnsupportedError,
    VirtualAccessDeniedError,
    VirtualChunkChangedError,
    VirtualChunkError,
)

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.commit.conflicts import (
        BasicConflictSolver,
        Conflict,
        ConflictDetector,
        ConflictSolver,
        ConflictType,
        VersionSelection,
    )
    from airflow_provider_icechunk.engine.commit.merge import MergeSolver
    from airflow_provider_icechunk.engine.datasets.coverage import ArrayCoverage, Coverage, coverage
    from airflow_provider_icechunk.engine.datasets.dataset import (
        Coordinate,
        Growing,
        IcechunkDataset,
        Placement,
        Variable,
    )
    from airflow_provider_icechunk.engine.format.config.conditions import ManifestSplitValues
    from airflow_provider_icechunk.engine.format.config.model import (
        CachingConfig,
        CompressionAlgorithm,
        CompressionConfig,
        ManifestConfig,
        ManifestPreloadCondition,
        ManifestPreloadConfig,
        ManifestSplitCondition,
        ManifestSplitDimCondition,
        ManifestSplittingConfig,
        ManifestVirtualChunkLocationCompressionConfig,
        ObjectStoreConfig,
        RepositoryConfig,
        RepoUpdateRetryConfig,
        S3Options,
        StorageConcurrencySettings,
        StorageRetriesSettings,
        StorageSettings,
        StorageTimeoutSettings,
        VirtualChunkContainer,
    )
    from airflow_provider_icechunk.engine.format.config.stores import (
        AnyObjectStoreConfig,
        ChecksumAlgorithm,
        gcs_store,
        http_store,
        local_filesystem_store,
        s3_store,
    )
    from airflow_provider_icechunk.engine.format.generation import SpecVersion
    from airflow_provider_icechunk.engine.history.ancestry import ManifestFileInfo, SnapshotInfo
    from airflow_provider_icechunk.engine.history.diff import Diff
    from airflow_provider_icechunk.engine.history.graph import AncestryGraph
    from airflow_provider_icechunk.engine.history.operations import (
        FeatureFlag,
        RepoAvailability,
        RepoStatus,
        Update,
        UpdateType,
    )
    from airflow_provider_icechunk.engine.ingest.apply import plan_files, refer_to_files
    from airflow_provider_icechunk.engine.ingest.kerchunk import refer_to_kerchunk
    from airflow_provider_icechunk.engine.ingest.plan import VirtualPlan
    from airflow_provider_icechunk.engine.maintenance.collect import Collection
    from airflow_provider_icechunk.engine.maintenance.collect_plan import (
        CollectionPlan,
        GCSummary,
        Layer,
    )
    from airflow_provider_icechunk.engine.maintenance.compact import (
        CompactionResult,
        CompactionRules,
    )
    from airflow_provider_icechunk.engine.maintenance.findings import (
        Code,
        Finding,
        Severity,
        VerifyReport,
    )
    from airflow_provider_icechunk.engine.maintenance.measure import (
        ChunkStorageStats,
        Measurement,
        Size,
        Stored,
    )
    from airflow_provider_icechunk.engine.maintenance.retention import (
        Edit,
        ExpirationPlan,
        RefDecision,
        RetentionPolicy,
    )
    from airflow_provider_icechunk.engine.maintenance.rewrite import CommitMethod
    from airflow_provider_icechunk.engine.migration.plan import (
        Listener,
        MigrationProgress,
        MigrationResult,
        Step,
    )
    from airflow_provider_icechunk.engine.objects.chunk_writer import Packing
    from airflow_provider_icechunk.engine.pipelines.changes import declare, set_attributes
    from airflow_provider_icechunk.engine.pipelines.copying import CopyProgress, CopyResult
    from airflow_provider_icechunk.engine.pipelines.revert import revert
    from airflow_provider_icechunk.engine.pipelines.window import ArrayCut, DropPlan, drop_labels
    from airflow_provider_icechunk.engine.repository import Repository
    from airflow_provider_icechunk.engine.retry import Backoff
    from airflow_provider_icechunk.engine.sessions.fork import ForkSession
    from airflow_provider_icechunk.engine.sessions.rearrange import RearrangeSession
    from airflow_provider_icechunk.engine.sessions.session import Session, SessionMode
    from airflow_provider_icechunk.engine.storage.attribution import Attribution
    from airflow_provider_icechunk.engine.storage.constructors import (
        azure_storage,
        gcs_storage,
        hf_storage,
        http_storage,
        in_memory_storage,
        local_filesystem_storage,
        r2_storage,
        redirect_storage,
        s3_storage,
        tigris_storage,
    )
    from airflow_provider_icechunk.engine.storage.credentials import (
        AnyAzureCredential,
        AnyAzureStaticCredential,
        AnyCredential,
        AnyGcsCredential,
        AnyGcsStaticCredential,
        AnyS3Credential,
        AzureCredentials,
        AzureStaticCredentials,
        Credentials,
        GcsBearerCredential,
        GcsCredentials,
        GcsStaticCredentials,
        HttpAccess,
        LocalFileSystemAccess,
        S3Credentials,
        S3StaticCredentials,
        azure_credentials,
        azure_from_env_credentials,
        azure_static_credentials,
        containers_credentials,
        gcs_credentials,
        gcs_from_env_credentials,
        gcs_refreshable_credentials,
        gcs_static_credentials,
        s3_anonymous_credentials,
        s3_credentials,
        s3_from_env_credentials,
        s3_refreshable_credentials,
        s3_static_credentials,
    )
    from airflow_provider_icechunk.engine.storage.faces import (
        Storage,
        StorageObjectInfo,
        s3_object_store_storage,
    )
    from airflow_provider_icechunk.engine.storage.location import StorageLocation
    from airflow_provider_icechunk.engine.tree.chunk_map import ArrayMap
    from airflow_provider_icechunk.engine.tree.chunk_table import ChunkType
    from airflow_provider_icechunk.engine.virtual.locations import VirtualChunkSpec
    from airflow_provider_icechunk.engine.workers.codec import (
        Fragment,
        decode_fragment,
        encode_fragment,
    )
    from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit
    from airflow_provider_icechunk.engine.xarray_io.dask_writes import (
        extract_session,
        merge_sessions,
        session_merge_reduction,
        store_dask,
    )
    from airflow_provider_icechunk.engine.xarray_io.datasets import to_icechunk
    from airflow_provider_icechunk.engine.zarr_store.store import IcechunkStore

__all__ = [
    "AccessDeniedError",
    "AlreadyExistsError",
    "AncestryGraph",
    "AnyAzureCredential",
    "AnyAzureStaticCredential",
    "AnyCredential",
    "AnyGcsCredential",
    "AnyGcsStaticCredential",
    "AnyObjectStoreConfig",
    "AnyS3Credential",
    "ArrayCoverage",
    "ArrayCut",
    "ArrayMap",
    "Attribution",
    "AzureCredentials",
    "AzureStaticCredentials",
    "Backoff",
    "BasicConflictSolver",
    "CachingConfig",
    "CheckFailedError",
    "ChecksumAlgorithm",
    "ChunkStorageStats",
    "ChunkType",
    "Code",
    "Collection",
    "CollectionPlan",
    "CommitMethod",
    "CompactionResult",
    "CompactionRules",
    "CompressionAlgorithm",
    "CompressionConfig",
    "Conflict",
    "ConflictDetector",
    "ConflictError",
    "ConflictSolver",
    "ConflictType",
    "Coordinate",
    "CopyProgress",
    "CopyResult",
    "Coverage",
    "Credentials",
    "Diff",
    "DropPlan",
    "Edit",
    "ErrorKind",
    "ExpirationPlan",
    "FeatureFlag",
    "Finding",
    "ForkError",
    "ForkSession",
    "FormatError",
    "Fragment",
    "FragmentError",
    "GCSummary",
    "GcsBearerCredential",
    "GcsCredentials",
    "GcsStaticCredentials",
    "Growing",
    "HttpAccess",
    "IcechunkDataset",
    "IcechunkError",
    "IcechunkStore",
    "InternalError",
    "InvalidInputError",
    "Kind",
    "Layer",
    "Listener",
    "LocalFileSystemAccess",
    "MaintenanceError",
    "ManifestConfig",
    "ManifestFileInfo",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplitValues",
    "ManifestSplittingConfig",
    "ManifestVirtualChunkLocationCompressionConfig",
    "Measurement",
    "MergeSolver",
    "MigrationProgress",
    "MigrationResult",
    "NoJsonError",
    "NodeNotFoundError",
    "NotFoundError",
    "ObjectStoreConfig",
    "OutcomeUnknownError",
    "Packing",
    "Placement",
    "ReadOnlyError",
    "RearrangeSession",
    "RebaseFailedError",
    "RefDecision",
    "RefNotFoundError",
    "RepoAvailability",
    "RepoStatus",
    "RepoUpdateRetryConfig",
    "Repository",
    "RepositoryConfig",
    "RepositoryNotFoundError",
    "RetentionPolicy",
    "S3Credentials",
    "S3Options",
    "S3StaticCredentials",
    "Session",
    "SessionMode",
    "SessionStateError",
    "Severity",
    "Size",
    "SnapshotInfo",
    "SnapshotNotFoundError",
    "SpecVersion",
    "Step",
    "Storage",
    "StorageConcurrencySettings",
    "StorageError",
    "StorageLocation",
    "StorageObjectInfo",
    "StorageRetriesSettings",
    "StorageSettings",
    "StorageTimeoutSettings",
    "Stored",
    "TaskError",
    "UnsafeStorageError",
    "UnsupportedError",
    "Update",
    "UpdateType",
    "Variable",
    "VerifyReport",
    "VersionSelection",
    "VirtualAccessDeniedError",
    "VirtualChunkChangedError",
    "VirtualChunkContainer",
    "VirtualChunkError",
    "VirtualChunkSpec",
    "VirtualPlan",
    "WorkUnit",
    "__version__",
    "azure_credentials",
    "azure_from_env_credentials",
    "azure_static_credentials",
    "azure_storage",
    "containers_credentials",
    "copy_repository",
    "coverage",
    "declare",
    "decode_fragment",
    "drop_labels",
    "encode_fragment",
    "extract_session",
    "gcs_credentials",
    "gcs_from_env_credentials",
    "gcs_refreshable_credentials",
    "gcs_static_credentials",
    "gcs_storage",
    "gcs_store",
    "hf_storage",
    "http_storage",
    "http_store",
    "in_memory_storage",
    "initialize_logs",
    "local_filesystem_storage",
    "local_filesystem_store",
    "merge_sessions",
    "migrate",
    "plan_files",
    "print_debug_info",
    "r2_storage",
    "redirect_storage",
    "refer_to_files",
    "refer_to_kerchunk",
    "revert",
    "s3_anonymous_credentials",
    "s3_credentials",
    "s3_from_env_credentials",
    "s3_object_store_storage",
    "s3_refreshable_credentials",
    "s3_static_credentials",
    "s3_storage",
    "s3_store",
    "session_merge_reduction",
    "set_attributes",
    "set_logs_filter",
    "shutdown_telemetry",
    "spec_version",
    "store_dask",
    "supported_spec_versions",
    "tigris_storage",
    "to_icechunk",
    "upgrade_icechunk_repository",
    "user_agent",
]


def migrate(
    repository: Repository | AnyStorage,
    to: int | str = 2,
    *,
    dry_run: bool = False,
    remove_old: bool = False,
    fence_old: bool = True,
    progress: Listener | None = None,
    world: World | None = None,
) -> MigrationResult:
    """Migrate a repository to a newer generation of the format, in place. Reopen it afterwards.

    Keeps everything that branches and tags reach: trees, values, messages, times, metadata, deleted
    tags, the configuration. Readers see the old repository until one write switches to the new one.
    If the call dies, repeat it. Sessions that were already open commit to the old references until
    these are fenced; their commits are carried over.

    :param repository: an open repository, or its storage.
    :param to: target generation, `1` or `2`; never older than the current one.
    :param dry_run: report what would happen and change nothing.
    :param remove_old: delete the old entry point and files at the end.
    :param fence_old: keep programs that only know the old generation from using the old entry
        point; deletes nothing. `False` removes an existing fence, and such programs then read and
        write a history that nobody else sees.
    :param progress: called with the progress of each step.
    """
    from airflow_provider_icechunk.engine.migration import run
    from airflow_provider_icechunk.engine.repository import Repository

    return run.migrate(
        repository.core if isinstance(repository, Repository) else repository,
        to,
        dry_run=dry_run,
        remove_old=remove_old,
        fence_old=fence_old,
        progress=progress,
        world=world,
    )


def upgrade_icechunk_repository(
    repo: Repository,
    *,
    dry_run: bool,
    delete_unused_v1_files: bool = True,
    prefetch_concurrency: int | None = None,
) -> Repository:
    """Migrate a repository to generation `2` and reopen it; `repo` remains the old one.

    `migrate` does the same, reports what it did, and keeps the old files by default. Unlike the
    official function, this one fences old files that remain against programs that only know
    generation `1`. Snapshots are read one by one, so `prefetch_concurrency` has no effect.
    """
    from airflow_provider_icechunk.engine.migration.run import upgrade
    from airflow_provider_icechunk.engine.repository import Repository

    del prefetch_concurrency
    return Repository(
        upgrade(repo.core, dry_run=dry_run, delete_unused_v1_files=delete_unused_v1_files)
    )


def copy_repository(
    repository: Repository | AnyStorage,
    target: AnyStorage,
    *,
    overwrite: bool = False,
    compare: bool = False,
    progress: CopyProgress | None = None,
) -> CopyResult:
    """Copy a whole repository, of any generation, to an empty place or an earlier copy; verify it.

    Repeated later, or after a failure, it copies what is missing. In the other direction it
    restores. Immutable objects are never overwritten, and refs are moved last. A target whose
    branches are at snapshots that the source does not have is refused: somebody committed there.
    Virtual chunks are not copied.

    :param repository: the source: an open repository, or its storage.
    :param overwrite: move such branches of the target anyway.
    :param compare: compare existing objects byte by byte, not only by size.
    :param progress: called with the number of objects copied so far, and their bytes.
    """
    from airflow_provider_icechunk.engine.pipelines import copying
    from airflow_provider_icechunk.engine.repository import Repository

    source = repository.storage if isinstance(repository, Repository) else repository
    return copying.copy_repository(
        source, target, overwrite=overwrite, compare=compare, progress=progress
    )


def supported_spec_versions() -> list[SpecVersion]:
    """The numbered generations; the three older ones only have names."""
    from airflow_provider_icechunk.engine.format.generation import SpecVersion

    return [SpecVersion.v2, SpecVersion.v1]


def spec_version() -> int:
    """The generation of new repositories by default."""
    return 1


def user_agent() -> str:
    """What this package calls itself in requests."""
    from airflow_provider_icechunk.engine.storage.attribution import AGENT

    return AGENT


def _all_error_kinds() -> list[str]:
    """The official codes, under the name that the official tests know."""
    return [kind.value for kind in ErrorKind]


def initialize_logs() -> None:
    """Print log lines as set by `ICECHUNK_LOG`; called when this module is imported."""
    if logs.VARIABLE in os.environ:
        logs.set_filter(None)


def set_logs_filter(log_filter_directive: str | None) -> None:
    """Print the log lines that pass a filter, such as `debug` or `icechunk=debug,warn`.

    `None` uses the filter in `ICECHUNK_LOG`, and prints nothing without one. In any case, lines
    also go through Python's logging under `icechunk`.
    """
    logs.set_filter(log_filter_directive)
    directive = (log_filter_directive or "").rsplit("=", 1)[-1].upper()
    names = {"TRACE": "DEBUG", "WARN": "WARNING", "OFF": "CRITICAL", "": "NOTSET"}
    level = logging.getLevelNamesMapping().get(names.get(directive, directive))
    if level is not None:
        logging.getLogger("airflow_provider_icechunk").setLevel(level)


def shutdown_telemetry() -> None:
    """Do nothing: this package exports no telemetry."""


def print_debug_info() -> None:
    """Print the versions that matter in a bug report."""
    import platform
    from importlib import metadata

    lines = [f"platform: {platform.platform()}", f"python: {platform.python_version()}"]
    for name in ("airflow-provider-icechunk", "zarr", "numpy", "xarray", "pyspark", "icechunk"):
        try:
            lines.append(f"{name}: {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name}: not installed")
    print("\n".join(lines))  # noqa: T201 - printing is what it is for


_HOMES = {
    "engine.commit.conflicts": (
        "BasicConflictSolver Conflict ConflictDetector ConflictSolver ConflictType VersionSelection"
    ),
    "engine.commit.merge": "MergeSolver",
    "engine.datasets.coverage": "ArrayCoverage Coverage coverage",
    "engine.datasets.dataset": "Coordinate Growing IcechunkDataset Placement Variable",
    "engine.format.config.conditions": "ManifestSplitValues",
    "engine.format.config.model": (
        "CachingConfig CompressionAlgorithm CompressionConfig ManifestConfig "
        "ManifestPreloadCondition ManifestPreloadConfig ManifestSplitCondition "
        "ManifestSplitDimCondition ManifestSplittingConfig "
        "ManifestVirtualChunkLocationCompressionConfig ObjectStoreConfig RepositoryConfig "
        "RepoUpdateRetryConfig S3Options StorageConcurrencySettings StorageRetriesSettings "
        "StorageSettings StorageTimeoutSettings VirtualChunkContainer"
    ),
    "engine.format.config.stores": (
        "AnyObjectStoreConfig ChecksumAlgorithm gcs_store http_store local_filesystem_store "
        "s3_store"
    ),
    "engine.format.generation": "SpecVersion",
    "engine.history.ancestry": "ManifestFileInfo SnapshotInfo",
    "engine.history.diff": "Diff",
    "engine.history.graph": "AncestryGraph",
    "engine.history.operations": "FeatureFlag RepoAvailability RepoStatus Update UpdateType",
    "engine.ingest.apply": "plan_files refer_to_files",
    "engine.ingest.kerchunk": "refer_to_kerchunk",
    "engine.ingest.plan": "VirtualPlan",
    "engine.maintenance.collect": "Collection",
    "engine.maintenance.collect_plan": "CollectionPlan GCSummary Layer",
    "engine.maintenance.compact": "CompactionResult CompactionRules",
    "engine.maintenance.findings": "Code Finding Severity VerifyReport",
    "engine.maintenance.measure": "ChunkStorageStats Measurement Size Stored",
    "engine.maintenance.retention": "Edit ExpirationPlan RefDecision RetentionPolicy",
    "engine.maintenance.rewrite": "CommitMethod",
    "engine.migration.plan": "Listener MigrationProgress MigrationResult Step",
    "engine.objects.chunk_writer": "Packing",
    "engine.pipelines.changes": "declare set_attributes",
    "engine.pipelines.copying": "CopyProgress CopyResult",
    "engine.pipelines.revert": "revert",
    "engine.pipelines.window": "ArrayCut DropPlan drop_labels",
    "engine.repository": "Repository",
    "engine.retry": "Backoff",
    "engine.sessions.fork": "ForkSession",
    "engine.sessions.rearrange": "RearrangeSession",
    "engine.sessions.session": "Session SessionMode",
    "engine.storage.attribution": "Attribution",
    "engine.storage.constructors": (
        "azure_storage gcs_storage hf_storage http_storage in_memory_storage "
        "local_filesystem_storage r2_storage redirect_storage s3_storage tigris_storage"
    ),
    "engine.storage.credentials": (
        "AnyAzureCredential AnyAzureStaticCredential AnyCredential AnyGcsCredential "
        "AnyGcsStaticCredential AnyS3Credential AzureCredentials AzureStaticCredentials "
        "Credentials GcsBearerCredential GcsCredentials GcsStaticCredentials HttpAccess "
        "LocalFileSystemAccess S3Credentials S3StaticCredentials azure_credentials "
        "azure_from_env_credentials azure_static_credentials containers_credentials "
        "gcs_credentials gcs_from_env_credentials gcs_refreshable_credentials "
        "gcs_static_credentials s3_anonymous_credentials s3_credentials s3_from_env_credentials "
        "s3_refreshable_credentials s3_static_credentials"
    ),
    "engine.storage.faces": "Storage StorageObjectInfo s3_object_store_storage",
    "engine.storage.location": "StorageLocation",
    "engine.tree.chunk_map": "ArrayMap",
    "engine.tree.chunk_table": "ChunkType",
    "engine.virtual.locations": "VirtualChunkSpec",
    "engine.workers.codec": "Fragment decode_fragment encode_fragment",
    "engine.workers.work_unit": "WorkUnit",
    "engine.xarray_io.dask_writes": (
        "extract_session merge_sessions session_merge_reduction store_dask"
    ),
    "engine.xarray_io.datasets": "to_icechunk",
    "engine.zarr_store.store": "IcechunkStore",
}
"""Names by the module that has them."""
_LATE = {name: home for home, names in _HOMES.items() for name in names.split()}

_ROOMS = frozenset(
    {
        "config",
        "conflicts",
        "credentials",
        "dask",
        "distributed",
        "ops",
        "repository",
        "session",
        "snapshots",
        "stats",
        "storage",
        "store",
        "virtual",
        "xarray",
    }
)
"""Modules of the official package: `icechunk.xarray.to_icechunk` is a name of this one."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: importing all of them takes longer than most scripts."""
    if name in _LATE:
        home = _LATE[name]
        found = getattr(import_module(f"airflow_provider_icechunk.{home}"), name)
        if home.startswith("engine.storage."):
            _give_default_settings()
        globals()[name] = found
        return found
    if name in _ROOMS:
        return import_module(__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def _give_default_settings() -> None:
    """Complete the official interface of storages, whose room does not know configurations."""
    from airflow_provider_icechunk.engine.storage.faces import Storage

    Storage.default_settings = _default_settings  # type: ignore[attr-defined]


def _default_settings(storage: Storage) -> StorageSettings:
    """The settings of a storage where a configuration chooses none."""
    from airflow_provider_icechunk.engine.format.config import model

    del storage
    return model.StorageSettings(
        concurrency=model.StorageConcurrencySettings(),
        retries=model.StorageRetriesSettings(),
        timeouts=model.StorageTimeoutSettings(),
    )


initialize_logs()
