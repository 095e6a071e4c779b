# The `*_async` twins of public methods, for type checkers.
# Made by `python -m tools.async_stubs` from the methods they run; a test compares.

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Self

from numpy.typing import ArrayLike

from airflow_provider_icechunk.engine.commit.conflicts import ConflictSolver
from airflow_provider_icechunk.engine.commit.rebase import Replaces
from airflow_provider_icechunk.engine.core import Authorization
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig, StorageSettings
from airflow_provider_icechunk.engine.format.generation import SpecVersion
from airflow_provider_icechunk.engine.history.ancestry import ManifestFileInfo, SnapshotInfo
from airflow_provider_icechunk.engine.history.diff import Diff
from airflow_provider_icechunk.engine.history.graph import AncestryGraph
from airflow_provider_icechunk.engine.history.operations import FeatureFlag, RepoStatus
from airflow_provider_icechunk.engine.maintenance.collect_plan import GCSummary
from airflow_provider_icechunk.engine.maintenance.measure import ChunkStorageStats
from airflow_provider_icechunk.engine.maintenance.rewrite import CommitMethod
from airflow_provider_icechunk.engine.objects.chunk_writer import Packing
from airflow_provider_icechunk.engine.sessions.rearrange import RearrangeSession
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.attribution import Attribution
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.engine.tree.chunk_table import ChunkType
from airflow_provider_icechunk.engine.virtual.locations import VirtualChunkSpec
from airflow_provider_icechunk.engine.world import World
from airflow_provider_icechunk.engine.zarr_store.store import Coordinates

class IcechunkStoreTwins:
    async def set_virtual_ref_async(
        self,
        key: str,
        location: str,
        *,
        offset: int,
        length: int,
        checksum: str | datetime | None = ...,
        validate_container: bool = ...,
    ) -> None: ...
    async def set_virtual_refs_arr_async(
        self,
        array_path: str,
        chunk_grid_shape: tuple[int, ...],
        locations: Sequence[str],
        offsets: ArrayLike,
        lengths: ArrayLike,
        *,
        validate_containers: bool = ...,
        arr_offset: tuple[int, ...] | None = ...,
        checksum: datetime | str | None = ...,
    ) -> Coordinates | None: ...
    async def set_virtual_refs_async(
        self,
        array_path: str,
        chunks: Sequence[VirtualChunkSpec],
        *,
        validate_containers: bool = ...,
    ) -> Coordinates | None: ...

class RepositoryTwins:
    async def ancestry_graph_async(
        self,
        *,
        branch: str | None = ...,
        tag: str | None = ...,
        snapshot_id: str | None = ...,
        plain: bool = ...,
    ) -> AncestryGraph: ...
    async def chunk_storage_stats_async(
        self,
        *,
        max_snapshots_in_memory: int = ...,
        max_compressed_manifest_mem_bytes: int = ...,
        max_concurrent_manifest_fetches: int = ...,
        max_decoded_manifest_mem_bytes: int | None = ...,
    ) -> ChunkStorageStats: ...
    @classmethod
    async def create_async(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = ...,
        authorize_virtual_chunk_access: Authorization | None = ...,
        spec_version: int | str | None = ...,
        check_clean_root: bool = ...,
        attribution: Attribution | None = ...,
        *,
        packing: Packing | None = ...,
        world: World = ...,
    ) -> Self: ...
    async def create_branch_async(self, branch: str, snapshot_id: str) -> None: ...
    async def create_tag_async(self, tag: str, snapshot_id: str) -> None: ...
    async def delete_branch_async(self, branch: str) -> None: ...
    async def delete_tag_async(self, tag: str) -> None: ...
    async def diff_async(
        self,
        *,
        from_branch: str | None = ...,
        from_tag: str | None = ...,
        from_snapshot_id: str | None = ...,
        to_branch: str | None = ...,
        to_tag: str | None = ...,
        to_snapshot_id: str | None = ...,
    ) -> Diff: ...
    async def disabled_feature_flags_async(self) -> list[FeatureFlag]: ...
    async def enabled_feature_flags_async(self) -> list[FeatureFlag]: ...
    @classmethod
    async def exists_async(
        cls, storage: Storage, storage_settings: StorageSettings | None = ...
    ) -> bool: ...
    async def expire_snapshots_async(
        self,
        older_than: datetime,
        *,
        delete_expired_branches: bool = ...,
        delete_expired_tags: bool = ...,
        dry_run: bool = ...,
        keep_last: int | None = ...,
    ) -> set[str]: ...
    async def feature_flags_async(self) -> list[FeatureFlag]: ...
    @classmethod
    async def fetch_config_async(
        cls, storage: Storage, storage_settings: StorageSettings | None = ...
    ) -> RepositoryConfig | None: ...
    @classmethod
    async def fetch_spec_version_async(
        cls, storage: Storage, storage_settings: StorageSettings | None = ...
    ) -> SpecVersion | str | None: ...
    async def garbage_collect_async(
        self,
        delete_object_older_than: datetime,
        *,
        dry_run: bool = ...,
        max_snapshots_in_memory: int = ...,
        max_compressed_manifest_mem_bytes: int = ...,
        max_concurrent_manifest_fetches: int = ...,
        minimum_age: timedelta | None = ...,
        max_decoded_manifest_mem_bytes: int | None = ...,
        max_concurrent_deletes: int | None = ...,
        max_consecutive_delete_failures: int | None = ...,
        max_concurrent_listings: int | None = ...,
    ) -> GCSummary: ...
    async def get_metadata_async(self) -> dict[str, Any]: ...
    async def get_status_async(self) -> RepoStatus: ...
    async def inspect_manifest_async(self, manifest_id: str) -> dict[str, Any]: ...
    async def inspect_repo_info_async(self) -> dict[str, Any]: ...
    async def inspect_snapshot_async(self, snapshot_id: str, *, pretty: bool = ...) -> str: ...
    async def inspect_transaction_log_async(self, snapshot_id: str) -> dict[str, Any]: ...
    async def list_branches_async(self) -> set[str]: ...
    async def list_manifest_files_async(self, snapshot_id: str) -> list[ManifestFileInfo]: ...
    async def list_tags_async(self) -> set[str]: ...
    async def lookup_branch_async(self, branch: str) -> str: ...
    async def lookup_snapshot_async(self, snapshot_id: str) -> SnapshotInfo: ...
    async def lookup_tag_async(self, tag: str) -> str: ...
    @classmethod
    async def open_async(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = ...,
        authorize_virtual_chunk_access: Authorization | None = ...,
        attribution: Attribution | None = ...,
        *,
        packing: Packing | None = ...,
        world: World = ...,
    ) -> Self: ...
    @classmethod
    async def open_or_create_async(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = ...,
        authorize_virtual_chunk_access: Authorization | None = ...,
        create_version: int | str | None = ...,
        check_clean_root: bool = ...,
        attribution: Attribution | None = ...,
        *,
        spec_version: int | str | None = ...,
        packing: Packing | None = ...,
        world: World = ...,
    ) -> Self: ...
    async def readonly_session_async(
        self,
        branch: str | None = ...,
        *,
        tag: str | None = ...,
        snapshot_id: str | None = ...,
        as_of: datetime | None = ...,
    ) -> Session: ...
    async def rearrange_session_async(self, branch: str) -> RearrangeSession: ...
    async def reopen_async(
        self,
        config: RepositoryConfig | None = ...,
        authorize_virtual_chunk_access: Authorization | None = ...,
    ) -> Self: ...
    async def reset_branch_async(
        self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = ...
    ) -> None: ...
    async def rewrite_manifests_async(
        self,
        message: str,
        *,
        branch: str,
        metadata: Mapping[str, Any] | None = ...,
        commit_method: CommitMethod = ...,
    ) -> str: ...
    async def save_config_async(self) -> None: ...
    async def set_feature_flag_async(self, name: str, setting: bool | None) -> None: ...
    async def set_metadata_async(self, metadata: Mapping[str, Any]) -> None: ...
    async def set_status_async(self, status: RepoStatus) -> None: ...
    async def total_chunks_storage_async(
        self,
        *,
        max_snapshots_in_memory: int = ...,
        max_compressed_manifest_mem_bytes: int = ...,
        max_concurrent_manifest_fetches: int = ...,
        max_decoded_manifest_mem_bytes: int | None = ...,
    ) -> int: ...
    async def update_metadata_async(self, metadata: Mapping[str, Any]) -> dict[str, Any]: ...
    async def writable_session_async(self, branch: str) -> Session: ...

class SessionTwins:
    async def all_virtual_chunk_locations_async(self) -> list[str]: ...
    async def amend_async(
        self, message: str, *, metadata: Mapping[str, Any] | None = ..., allow_empty: bool = ...
    ) -> str: ...
    async def chunk_type_async(
        self, array_path: str, chunk_coordinates: Sequence[int]
    ) -> ChunkType: ...
    async def commit_async(
        self,
        message: str,
        metadata: Mapping[str, Any] | None = ...,
        rebase_with: ConflictSolver | None = ...,
        rebase_tries: int = ...,
        *,
        token: str | None = ...,
        allow_empty: bool = ...,
        patience: float = ...,
        replaces: Replaces | None = ...,
    ) -> str: ...
    async def flush_async(self, message: str, metadata: Mapping[str, Any] | None = ...) -> str: ...
    async def get_node_id_async(self, path: str) -> str: ...
    async def merge_async(self, *others: Session) -> None: ...
    async def move_async(self, from_path: str, to_path: str) -> None: ...
    async def rebase_async(self, solver: ConflictSolver) -> None: ...
