"""The configuration of a repository: chosen settings and effective values.

`RepositoryConfig` and its parts have the official names and can be changed by assignment; `None`
means not chosen. `RepositoryConfig.resolved` fills in the defaults and returns one frozen value for
the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

from .conditions import (
    COORDINATE_NAMES,
    ManifestPreloadCondition,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
)
from .settings import EFFECTIVE, U8, U16, U32, U64, Settings, later, one, whole
from .stores import ObjectStoreConfig, S3Options, VirtualChunkContainer

__all__ = [
    "CachingConfig",
    "CompressionAlgorithm",
    "CompressionConfig",
    "LocationCompression",
    "ManifestConfig",
    "ManifestPreloadCondition",
    "ManifestPreloadConfig",
    "ManifestSplitCondition",
    "ManifestSplitDimCondition",
    "ManifestSplittingConfig",
    "ManifestVirtualChunkLocationCompressionConfig",
    "ObjectStoreConfig",
    "RepoUpdateRetryConfig",
    "RepositoryConfig",
    "ResolvedConfig",
    "ResolvedRetries",
    "ResolvedStorage",
    "S3Options",
    "StorageConcurrencySettings",
    "StorageRetriesSettings",
    "StorageSettings",
    "StorageTimeoutSettings",
    "VirtualChunkContainer",
]

_MAX_ZSTD_LEVEL = 22
_SMALL_COORDINATES = ManifestPreloadCondition.name_matches(
    COORDINATE_NAMES
) & ManifestPreloadCondition.num_refs(None, 1001)


class CompressionAlgorithm(Enum):
    """How metadata files are compressed."""

    Zstd = 0

    @staticmethod
    def default() -> CompressionAlgorithm:
        """The only algorithm."""
        return CompressionAlgorithm.Zstd


@dataclass(slots=True, repr=False)
class CompressionConfig(Settings):
    """Compression of metadata files; chunks are compressed by Zarr, not here."""

    algorithm: CompressionAlgorithm | None = field(default=None, metadata=one(CompressionAlgorithm))
    level: int | None = field(default=None, metadata=whole(U8))

    @staticmethod
    def default() -> CompressionConfig:
        """With no settings chosen."""
        return CompressionConfig()


@dataclass(slots=True, repr=False)
class CachingConfig(Settings):
    """Cache sizes."""

    num_snapshot_nodes: int | None = field(default=None, metadata=whole(U64))
    num_chunk_refs: int | None = field(default=None, metadata=whole(U64))
    num_transaction_changes: int | None = field(default=None, metadata=whole(U64))
    num_bytes_attributes: int | None = field(default=None, metadata=whole(U64))
    num_bytes_chunks: int | None = field(default=None, metadata=whole(U64))

    @staticmethod
    def default() -> CachingConfig:
        """With no settings chosen."""
        return CachingConfig()


@dataclass(slots=True, repr=False)
class ManifestPreloadConfig(Settings):
    """Which manifests are preloaded, and at most how many references."""

    max_total_refs: int | None = field(default=None, metadata=whole(U32))
    preload_if: ManifestPreloadCondition | None = field(
        default=None, metadata=one(ManifestPreloadCondition)
    )
    max_arrays_to_scan: int | None = field(default=None, metadata=later(whole(U32)))
    """Kept, but not used: all arrays are considered."""


@dataclass(slots=True, repr=False)
class ManifestVirtualChunkLocationCompressionConfig(Settings):
    """When and how locations of virtual chunks are compressed with a dictionary, in generation `2`.

    Defaults are those of the official library: from 1000 locations on, 100 samples, a dictionary of
    2048 bytes, level 3.
    """

    min_num_chunks: int | None = field(default=None, metadata=whole(U16))
    dictionary_max_training_samples: int | None = field(default=None, metadata=whole(U16))
    dictionary_max_size_bytes: int | None = field(default=None, metadata=whole(U32))
    compression_level: int | None = field(default=None, metadata=whole(U8))


@dataclass(slots=True, repr=False)
class ManifestConfig(Settings):
    """How manifests are split and preloaded."""

    preload: ManifestPreloadConfig | None = field(
        default=None, metadata=one(ManifestPreloadConfig, merge=False)
    )
    splitting: ManifestSplittingConfig | None = field(
        default=None, metadata=one(ManifestSplittingConfig, merge=False)
    )
    virtual_chunk_location_compression: ManifestVirtualChunkLocationCompressionConfig | None = (
        field(
            default=None,
            metadata=later(one(ManifestVirtualChunkLocationCompressionConfig, merge=False)),
        )
    )
    max_concurrent_manifest_fetches_during_commit: int | None = field(
        default=None, metadata=later(whole(U16))
    )
    """Kept, but not used: a commit requests all the manifests it needs together."""


@dataclass(slots=True, repr=False)
class StorageRetriesSettings(Settings):
    """Retries of failed requests."""

    max_tries: int | None = field(default=None, metadata=whole(U16, minimum=1))
    initial_backoff_ms: int | None = field(default=None, metadata=whole(U32))
    max_backoff_ms: int | None = field(default=None, metadata=whole(U32))


@dataclass(slots=True, repr=False)
class RepoUpdateRetryConfig(Settings):
    """Retries of changes to the `repo` object of generation `2` after lost races.

    The defaults are 100 tries with pauses from 50 ms to 30 s.
    """

    default: StorageRetriesSettings | None = field(
        default=None, metadata=one(StorageRetriesSettings)
    )


@dataclass(slots=True, repr=False)
class StorageConcurrencySettings(Settings):
    """How a large object is fetched in parts."""

    max_concurrent_requests_for_object: int | None = field(
        default=None, metadata=whole(U16, minimum=1)
    )
    ideal_concurrent_request_size: int | None = field(default=None, metadata=whole(U64, minimum=1))


@dataclass(slots=True, repr=False)
class StorageTimeoutSettings(Settings):
    """How long a request may take; those of operations are kept, but not used."""

    connect_timeout_ms: int | None = field(default=None, metadata=whole(U32))
    read_timeout_ms: int | None = field(default=None, metadata=whole(U32))
    operation_timeout_ms: int | None = field(default=None, metadata=whole(U32))
    operation_attempt_timeout_ms: int | None = field(default=None, metadata=whole(U32))


@dataclass(slots=True, repr=False)
class StorageSettings(Settings):
    """Settings for the use of the storage."""

    concurrency: StorageConcurrencySettings | None = field(
        default=None, metadata=one(StorageConcurrencySettings)
    )
    retries: StorageRetriesSettings | None = field(
        default=None, metadata=one(StorageRetriesSettings)
    )
    unsafe_use_conditional_create: bool | None = field(default=None, metadata=one(bool))
    unsafe_use_conditional_update: bool | None = field(default=None, metadata=one(bool))
    unsafe_use_metadata: bool | None = field(default=None, metadata=one(bool))
    storage_class: str | None = field(default=None, metadata=one(str))
    metadata_storage_class: str | None = field(default=None, metadata=one(str))
    chunks_storage_class: str | None = field(default=None, metadata=one(str))
    minimum_size_for_multipart_upload: int | None = field(default=None, metadata=whole(U64))
    timeouts: StorageTimeoutSettings | None = field(
        default=None, metadata=later(one(StorageTimeoutSettings))
    )


@dataclass(frozen=True, slots=True)
class ResolvedStorage:
    """`StorageSettings` with every default filled in."""

    max_concurrent_requests_for_object: int = 18
    ideal_concurrent_request_size: int = 12 * 1024 * 1024
    max_tries: int = 10
    initial_backoff_ms: int = 100
    max_backoff_ms: int = 180_000
    use_conditional_create: bool = True
    use_conditional_update: bool = True
    use_metadata: bool = True
    metadata_storage_class: str | None = None
    chunks_storage_class: str | None = None
    minimum_size_for_multipart_upload: int = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ResolvedRetries:
    """Number of tries, and pauses between them."""

    max_tries: int = 100
    initial_backoff_ms: int = 50
    max_backoff_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class LocationCompression:
    """When and how locations of virtual chunks are compressed with a dictionary."""

    min_num_chunks: int = 1000
    max_samples: int = 100
    max_dictionary_bytes: int = 2048
    level: int = 3


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """`RepositoryConfig` with every default filled in."""

    inline_chunk_threshold_bytes: int = 512
    """Chunks smaller than this are stored in the manifest."""
    get_partial_values_concurrency: int = 10
    compression_level: int = 3
    max_concurrent_requests: int = 256
    num_snapshot_nodes: int = 500_000
    num_chunk_refs: int = 15_000_000
    num_transaction_changes: int = 0
    num_bytes_attributes: int = 0
    num_bytes_chunks: int = 0
    preload_max_total_refs: int = 10_000
    preload_if: ManifestPreloadCondition = _SMALL_COORDINATES
    splitting: ManifestSplittingConfig = field(default_factory=ManifestSplittingConfig)
    storage: ResolvedStorage = field(default_factory=ResolvedStorage)
    repo_update_retries: ResolvedRetries = field(default_factory=ResolvedRetries)
    num_updates_per_repo_info_file: int = 1000
    location_compression: LocationCompression | None = None
    """`None` keeps locations plain, which all official versions can read."""
    attributes_file_threshold_bytes: int | None = None


@dataclass(slots=True, repr=False)
class RepositoryConfig(Settings):
    """All settings of a repository.

    Stored with the repository by `Repository.save_config`; settings that the caller passes when
    opening override stored ones one by one, except `virtual_chunk_containers` and the parts of
    `manifest`, which replace the stored ones as a whole.
    """

    inline_chunk_threshold_bytes: int | None = field(default=None, metadata=whole(U16))
    get_partial_values_concurrency: int | None = field(default=None, metadata=whole(U16))
    compression: CompressionConfig | None = field(default=None, metadata=one(CompressionConfig))
    max_concurrent_requests: int | None = field(default=None, metadata=whole(U16))
    caching: CachingConfig | None = field(default=None, metadata=one(CachingConfig))
    storage: StorageSettings | None = field(default=None, metadata=one(StorageSettings))
    virtual_chunk_containers: dict[str, VirtualChunkContainer] | None = field(
        default=None, metadata=one(Mapping)
    )
    manifest: ManifestConfig | None = field(default=None, metadata=one(ManifestConfig))
    repo_update_retries: RepoUpdateRetryConfig | None = field(
        default=None, metadata=later(one(RepoUpdateRetryConfig))
    )
    num_updates_per_repo_info_file: int | None = field(
        default=None, metadata=later(whole(U16, minimum=1))
    )
    max_concurrent_decodes: int | None = field(default=None, metadata=later(whole(U16)))
    """Kept, but not used: memory limits how much is decoded at once."""
    attributes_file_threshold_bytes: int | None = field(default=None, metadata=later(whole(U32)))
    """Attributes of a node whose JSON is longer go to a separate file, in generations `draft`,
    `alpha1` and `alpha`. By default none do."""

    @staticmethod
    def default() -> RepositoryConfig:
        """With no settings chosen."""
        return RepositoryConfig()

    def get_virtual_chunk_container(self, name: str) -> VirtualChunkContainer | None:
        """The container with the URL prefix `name`."""
        return (self.virtual_chunk_containers or {}).get(name)

    def set_virtual_chunk_container(self, cont: VirtualChunkContainer) -> None:
        """Add a container, replacing one with the same URL prefix."""
        problem = cont.problem()
        if problem:
            raise InvalidInputError(
                f"{cont.url_prefix!r} cannot be a virtual chunk container: {problem}",
                kind=Kind.INVALID_CONFIG,
            )
        self.virtual_chunk_containers = {
            **(self.virtual_chunk_containers or {}),
            cont.url_prefix: cont,
        }

    def clear_virtual_chunk_containers(self) -> None:
        """Set no containers: stored ones are removed, not kept."""
        self.virtual_chunk_containers = {}

    def resolved(self, storage_defaults: StorageSettings | None = None) -> ResolvedConfig:
        """The effective values of this configuration.

        `storage_defaults` are the defaults of a particular storage, overridden by chosen settings.
        """
        compression = self.compression or CompressionConfig()
        manifest = self.manifest or ManifestConfig()
        preload = manifest.preload or ManifestPreloadConfig()
        caching = self.caching or CachingConfig()
        storage = (storage_defaults or StorageSettings()).merge(self.storage or StorageSettings())
        level = compression.level
        chosen = {
            "inline_chunk_threshold_bytes": self.inline_chunk_threshold_bytes,
            "get_partial_values_concurrency": self.get_partial_values_concurrency,
            "compression_level": None if level is None else min(level, _MAX_ZSTD_LEVEL),
            "max_concurrent_requests": self.max_concurrent_requests,
            "num_snapshot_nodes": caching.num_snapshot_nodes,
            "num_chunk_refs": caching.num_chunk_refs,
            "num_transaction_changes": caching.num_transaction_changes,
            "num_bytes_attributes": caching.num_bytes_attributes,
            "num_bytes_chunks": caching.num_bytes_chunks,
            "preload_max_total_refs": preload.max_total_refs,
            "preload_if": preload.preload_if,
            "splitting": manifest.splitting,
            "num_updates_per_repo_info_file": self.num_updates_per_repo_info_file,
            "location_compression": _resolved_compression(
                manifest.virtual_chunk_location_compression
            ),
            "attributes_file_threshold_bytes": self.attributes_file_threshold_bytes,
        }
        given = {name: value for name, value in chosen.items() if value is not None}
        return ResolvedConfig(
            storage=_resolved_storage(storage),
            repo_update_retries=_resolved_retries(self.repo_update_retries),
            **given,  # type: ignore[arg-type]
        )


def _resolved_retries(settings: RepoUpdateRetryConfig | None) -> ResolvedRetries:
    retries = (settings.default if settings else None) or StorageRetriesSettings()
    chosen = {
        "max_tries": retries.max_tries,
        "initial_backoff_ms": retries.initial_backoff_ms,
        "max_backoff_ms": retries.max_backoff_ms,
    }
    return ResolvedRetries(**{name: value for name, value in chosen.items() if value is not None})


def _resolved_compression(
    settings: ManifestVirtualChunkLocationCompressionConfig | None,
) -> LocationCompression | None:
    if settings is None:
        return None
    chosen = {
        "min_num_chunks": settings.min_num_chunks,
        "max_samples": settings.dictionary_max_training_samples,
        "max_dictionary_bytes": settings.dictionary_max_size_bytes,
        "level": settings.compression_level,
    }
    return LocationCompression(
        **{name: value for name, value in chosen.items() if value is not None}
    )


def _resolved_storage(settings: StorageSettings) -> ResolvedStorage:
    concurrency = settings.concurrency or StorageConcurrencySettings()
    retries = settings.retries or StorageRetriesSettings()
    chosen = {
        "max_concurrent_requests_for_object": concurrency.max_concurrent_requests_for_object,
        "ideal_concurrent_request_size": concurrency.ideal_concurrent_request_size,
        "max_tries": retries.max_tries,
        "initial_backoff_ms": retries.initial_backoff_ms,
        "max_backoff_ms": retries.max_backoff_ms,
        "use_conditional_create": settings.unsafe_use_conditional_create,
        "use_conditional_update": settings.unsafe_use_conditional_update,
        "use_metadata": settings.unsafe_use_metadata,
        "metadata_storage_class": settings.metadata_storage_class or settings.storage_class,
        "chunks_storage_class": settings.chunks_storage_class or settings.storage_class,
        "minimum_size_for_multipart_upload": settings.minimum_size_for_multipart_upload,
    }
    given = {name: value for name, value in chosen.items() if value is not None}
    return ResolvedStorage(**given)  # type: ignore[arg-type]


_CONFIG, _STORAGE, _RETRIES = ResolvedConfig(), ResolvedStorage(), ResolvedRetries()
_LOCATIONS = LocationCompression()
EFFECTIVE.update(
    {
        CompressionConfig: {
            "algorithm": CompressionAlgorithm.Zstd,
            "level": _CONFIG.compression_level,
        },
        CachingConfig: {
            "num_snapshot_nodes": _CONFIG.num_snapshot_nodes,
            "num_chunk_refs": _CONFIG.num_chunk_refs,
            "num_transaction_changes": _CONFIG.num_transaction_changes,
            "num_bytes_attributes": _CONFIG.num_bytes_attributes,
            "num_bytes_chunks": _CONFIG.num_bytes_chunks,
        },
        ManifestPreloadConfig: {
            "max_total_refs": _CONFIG.preload_max_total_refs,
            "preload_if": _CONFIG.preload_if,
        },
        ManifestVirtualChunkLocationCompressionConfig: {
            "min_num_chunks": _LOCATIONS.min_num_chunks,
            "dictionary_max_training_samples": _LOCATIONS.max_samples,
            "dictionary_max_size_bytes": _LOCATIONS.max_dictionary_bytes,
            "compression_level": _LOCATIONS.level,
        },
        ManifestConfig: {"max_concurrent_manifest_fetches_during_commit": 1},
        StorageRetriesSettings: {
            "max_tries": _STORAGE.max_tries,
            "initial_backoff_ms": _STORAGE.initial_backoff_ms,
            "max_backoff_ms": _STORAGE.max_backoff_ms,
        },
        StorageConcurrencySettings: {
            "max_concurrent_requests_for_object": _STORAGE.max_concurrent_requests_for_object,
            "ideal_concurrent_request_size": _STORAGE.ideal_concurrent_request_size,
        },
        StorageSettings: {
            "unsafe_use_conditional_create": _STORAGE.use_conditional_create,
            "unsafe_use_conditional_update": _STORAGE.use_conditional_update,
            "unsafe_use_metadata": _STORAGE.use_metadata,
            "minimum_size_for_multipart_upload": _STORAGE.minimum_size_for_multipart_upload,
        },
        RepoUpdateRetryConfig: {
            "default": StorageRetriesSettings(
                _RETRIES.max_tries, _RETRIES.initial_backoff_ms, _RETRIES.max_backoff_ms
            )
        },
        RepositoryConfig: {
            "inline_chunk_threshold_bytes": _CONFIG.inline_chunk_threshold_bytes,
            "get_partial_values_concurrency": _CONFIG.get_partial_values_concurrency,
            "max_concurrent_requests": _CONFIG.max_concurrent_requests,
            "num_updates_per_repo_info_file": _CONFIG.num_updates_per_repo_info_file,
        },
    }
)
