"""The public door of the engine, with the names of the official `icechunk` package.

A script written for `icechunk` 1.1 runs with `import airflow_provider_icechunk.api as icechunk`.
What goes beyond the official package is an addition, never another spelling of the same thing.
Imports no Airflow, so that it runs on a Spark executor that has none.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    FragmentError,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    ReadOnlyError,
    RebaseFailedError,
    StorageError,
)
from airflow_provider_icechunk.exceptions import SessionError as SessionStateError
from airflow_provider_icechunk.format.config import (
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
    VirtualChunkContainer,
)
from airflow_provider_icechunk.format.config_stores import (
    AnyObjectStoreConfig,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from airflow_provider_icechunk.format.fragments import Fragment, decode_fragment, encode_fragment
from airflow_provider_icechunk.repository.async_twins import add_async_twins
from airflow_provider_icechunk.repository.chunks import Packing
from airflow_provider_icechunk.repository.conflicts import (
    BasicConflictSolver,
    Conflict,
    ConflictDetector,
    ConflictSolver,
    ConflictType,
    VersionSelection,
)
from airflow_provider_icechunk.repository.graph import AncestryGraph
from airflow_provider_icechunk.repository.handoff import WorkUnit
from airflow_provider_icechunk.repository.history import Diff, ManifestFileInfo, SnapshotInfo
from airflow_provider_icechunk.repository.operations_log import (
    FeatureFlag,
    RepoAvailability,
    RepoStatus,
    Update,
    UpdateType,
)
from airflow_provider_icechunk.repository.session import ChunkType, SessionMode
from airflow_provider_icechunk.repository.spec_versions import SpecVersion
from airflow_provider_icechunk.storage.base import Storage
from airflow_provider_icechunk.virtual.credential_functions import (
    azure_credentials,
    azure_from_env_credentials,
    azure_static_credentials,
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
from airflow_provider_icechunk.virtual.credentials import (
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
    S3Credentials,
    S3StaticCredentials,
    containers_credentials,
)
from airflow_provider_icechunk.virtual.specs import VirtualChunkSpec
from airflow_provider_icechunk.virtual.storages import (
    azure_storage,
    gcs_storage,
    in_memory_storage,
    local_filesystem_storage,
    r2_storage,
    s3_storage,
    tigris_storage,
)
from airflow_provider_icechunk.virtual.storages_of_2 import (
    hf_storage,
    http_storage,
    redirect_storage,
)
from airflow_provider_icechunk.zarr_store.sessions import (
    ForkSession,
    RearrangeSession,
    Repository,
    Session,
)

if TYPE_CHECKING:
    from airflow_provider_icechunk.repository.maintenance.collect_plan import (
        CollectionPlan,
        GCSummary,
    )
    from airflow_provider_icechunk.repository.maintenance.findings import VerifyReport
    from airflow_provider_icechunk.repository.maintenance.measure import Measurement
    from airflow_provider_icechunk.repository.maintenance.retention import (
        ExpirationPlan,
        RetentionPolicy,
    )
    from airflow_provider_icechunk.repository.maintenance.rewrite import CommitMethod
    from airflow_provider_icechunk.repository.maintenance.stats import ChunkStorageStats
    from airflow_provider_icechunk.repository.migration.plan import (
        MigrationProgress,
        MigrationResult,
    )
    from airflow_provider_icechunk.repository.migration.run import migrate
    from airflow_provider_icechunk.repository.migration.upgrade import upgrade_icechunk_repository
    from airflow_provider_icechunk.zarr_store.store import IcechunkStore

__all__ = [
    "AlreadyExistsError",
    "AncestryGraph",
    "AnyAzureCredential",
    "AnyAzureStaticCredential",
    "AnyCredential",
    "AnyGcsCredential",
    "AnyGcsStaticCredential",
    "AnyObjectStoreConfig",
    "AnyS3Credential",
    "AzureCredentials",
    "AzureStaticCredentials",
    "BasicConflictSolver",
    "CachingConfig",
    "ChunkStorageStats",
    "ChunkType",
    "CollectionPlan",
    "CommitMethod",
    "CompressionAlgorithm",
    "CompressionConfig",
    "Conflict",
    "ConflictDetector",
    "ConflictError",
    "ConflictSolver",
    "ConflictType",
    "Credentials",
    "Diff",
    "ExpirationPlan",
    "FeatureFlag",
    "ForkSession",
    "FormatError",
    "Fragment",
    "FragmentError",
    "GCSummary",
    "GcsBearerCredential",
    "GcsCredentials",
    "GcsStaticCredentials",
    "IcechunkError",
    "IcechunkStore",
    "InvalidInputError",
    "ManifestConfig",
    "ManifestFileInfo",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplittingConfig",
    "ManifestVirtualChunkLocationCompressionConfig",
    "Measurement",
    "MigrationProgress",
    "MigrationResult",
    "NotFoundError",
    "ObjectStoreConfig",
    "OutcomeUnknownError",
    "Packing",
    "ReadOnlyError",
    "RearrangeSession",
    "RebaseFailedError",
    "RepoAvailability",
    "RepoStatus",
    "RepoUpdateRetryConfig",
    "Repository",
    "RepositoryConfig",
    "RetentionPolicy",
    "S3Credentials",
    "S3Options",
    "S3StaticCredentials",
    "Session",
    "SessionMode",
    "SessionStateError",
    "SnapshotInfo",
    "SpecVersion",
    "Storage",
    "StorageConcurrencySettings",
    "StorageError",
    "StorageRetriesSettings",
    "StorageSettings",
    "Update",
    "UpdateType",
    "VerifyReport",
    "VersionSelection",
    "VirtualChunkContainer",
    "VirtualChunkSpec",
    "WorkUnit",
    "__version__",
    "azure_credentials",
    "azure_from_env_credentials",
    "azure_static_credentials",
    "azure_storage",
    "containers_credentials",
    "decode_fragment",
    "encode_fragment",
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
    "migrate",
    "print_debug_info",
    "r2_storage",
    "redirect_storage",
    "s3_anonymous_credentials",
    "s3_credentials",
    "s3_from_env_credentials",
    "s3_refreshable_credentials",
    "s3_static_credentials",
    "s3_storage",
    "s3_store",
    "set_logs_filter",
    "shutdown_telemetry",
    "spec_version",
    "supported_spec_versions",
    "tigris_storage",
    "upgrade_icechunk_repository",
]


def supported_spec_versions() -> list[SpecVersion]:
    """The numbered generations; the three before them have names only."""
    return [SpecVersion.v2, SpecVersion.v1]


def spec_version() -> int:
    """The number of the newest generation that new repositories are written in by default."""
    return 1


def initialize_logs() -> None:
    """Logging is Python's: configure the logger `airflow_provider_icechunk`."""


def set_logs_filter(log_filter_directive: str | None) -> None:
    """Set the level of this package's logger: `debug`, `info`, `warning`, `error`; `None` resets.

    Of a directive like `icechunk=debug,other=info` the last level counts.
    """
    level = (log_filter_directive or "notset").rsplit("=", 1)[-1].upper()
    names = {"TRACE": "DEBUG", "WARN": "WARNING", "OFF": "CRITICAL"}
    logging.getLogger("airflow_provider_icechunk").setLevel(names.get(level, level))


def shutdown_telemetry() -> None:
    """Nothing is exported by this package, so there is nothing to shut down."""


def print_debug_info() -> None:
    """Print versions of what matters when reporting a problem."""
    import platform
    from importlib import metadata

    lines = [f"platform: {platform.platform()}", f"python: {platform.python_version()}"]
    for name in ("airflow-provider-icechunk", "zarr", "numpy", "xarray", "pyspark", "icechunk"):
        try:
            lines.append(f"{name}: {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name}: not installed")
    print("\n".join(lines))  # noqa: T201 - printing is what it is for


_MIGRATION = "airflow_provider_icechunk.repository.migration"
_MAINTENANCE = "airflow_provider_icechunk.repository.maintenance"
_LATE = {
    "ChunkStorageStats": f"{_MAINTENANCE}.stats",
    "CollectionPlan": f"{_MAINTENANCE}.collect_plan",
    "CommitMethod": f"{_MAINTENANCE}.rewrite",
    "ExpirationPlan": f"{_MAINTENANCE}.retention",
    "GCSummary": f"{_MAINTENANCE}.collect_plan",
    "Measurement": f"{_MAINTENANCE}.measure",
    "RetentionPolicy": f"{_MAINTENANCE}.retention",
    "VerifyReport": f"{_MAINTENANCE}.findings",
    "IcechunkStore": "airflow_provider_icechunk.zarr_store.store",
    "MigrationProgress": f"{_MIGRATION}.plan",
    "MigrationResult": f"{_MIGRATION}.plan",
    "migrate": f"{_MIGRATION}.run",
    "upgrade_icechunk_repository": f"{_MIGRATION}.upgrade",
}


def __getattr__(name: str) -> Any:
    """Import what few programs name only when it is named: the store class brings Zarr along."""
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


add_async_twins(
    Repository,
    (
        "total_chunks_storage",
        "rewrite_manifests",
        "garbage_collect",
        "expire_snapshots",
        "chunk_storage_stats",
        "create",
        "create_branch",
        "create_tag",
        "delete_branch",
        "delete_tag",
        "diff",
        "disabled_feature_flags",
        "enabled_feature_flags",
        "exists",
        "feature_flags",
        "fetch_config",
        "get_metadata",
        "get_status",
        "ancestry_graph",
        "fetch_spec_version",
        "inspect_manifest",
        "inspect_repo_info",
        "inspect_snapshot",
        "inspect_transaction_log",
        "list_manifest_files",
        "list_branches",
        "list_tags",
        "lookup_branch",
        "lookup_snapshot",
        "lookup_tag",
        "open",
        "open_or_create",
        "readonly_session",
        "rearrange_session",
        "reopen",
        "reset_branch",
        "save_config",
        "set_feature_flag",
        "set_metadata",
        "set_status",
        "update_metadata",
        "writable_session",
    ),
)
for _session_class in (Session, ForkSession, RearrangeSession):
    add_async_twins(
        _session_class,
        (
            "all_virtual_chunk_locations",
            "amend",
            "chunk_type",
            "commit",
            "flush",
            "get_node_id",
            "merge",
            "move",
            "rebase",
        ),
    )
