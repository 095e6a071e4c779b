"""The public door of the engine, with the names of the official `icechunk` package.

A script written for `icechunk` 1.1 runs with `import airflow_provider_icechunk.api as icechunk`.
What goes beyond the official package is an addition, never another spelling of the same thing.
Imports no Airflow, so that it runs on a Spark executor that has none.
"""

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    FormatError,
    FragmentError,
    IcechunkError,
    NotFoundError,
    OutcomeUnknownError,
    RebaseFailedError,
    StorageError,
)
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
    ObjectStoreConfig,
    RepositoryConfig,
    S3Options,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    VirtualChunkContainer,
)
from airflow_provider_icechunk.format.fragments import Fragment, decode_fragment, encode_fragment
from airflow_provider_icechunk.repository.chunks import Packing
from airflow_provider_icechunk.repository.conflicts import (
    BasicConflictSolver,
    Conflict,
    ConflictDetector,
    ConflictSolver,
    ConflictType,
    VersionSelection,
)
from airflow_provider_icechunk.repository.handoff import WorkUnit
from airflow_provider_icechunk.repository.history import Diff, ManifestFileInfo, SnapshotInfo
from airflow_provider_icechunk.repository.session import ChunkType
from airflow_provider_icechunk.storage.base import Storage
from airflow_provider_icechunk.virtual.specs import VirtualChunkSpec
from airflow_provider_icechunk.virtual.storages import (
    in_memory_storage,
    local_filesystem_storage,
    s3_storage,
)
from airflow_provider_icechunk.zarr_store.sessions import ForkSession, Repository, Session
from airflow_provider_icechunk.zarr_store.store import IcechunkStore

__all__ = [
    "BasicConflictSolver",
    "CachingConfig",
    "ChunkType",
    "CompressionAlgorithm",
    "CompressionConfig",
    "Conflict",
    "ConflictDetector",
    "ConflictError",
    "ConflictSolver",
    "ConflictType",
    "Diff",
    "ForkSession",
    "FormatError",
    "Fragment",
    "FragmentError",
    "IcechunkError",
    "IcechunkStore",
    "ManifestConfig",
    "ManifestFileInfo",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplittingConfig",
    "NotFoundError",
    "ObjectStoreConfig",
    "OutcomeUnknownError",
    "Packing",
    "RebaseFailedError",
    "Repository",
    "RepositoryConfig",
    "S3Options",
    "Session",
    "SnapshotInfo",
    "Storage",
    "StorageConcurrencySettings",
    "StorageError",
    "StorageRetriesSettings",
    "StorageSettings",
    "VersionSelection",
    "VirtualChunkContainer",
    "VirtualChunkSpec",
    "WorkUnit",
    "__version__",
    "decode_fragment",
    "encode_fragment",
    "in_memory_storage",
    "local_filesystem_storage",
    "s3_storage",
]
