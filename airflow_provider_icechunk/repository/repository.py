"""A repository: create it, open it, name its versions, and start sessions on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import datetime
from typing import Any, Generic, Self, TypeVar

from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    Kind,
    NotFoundError,
)
from airflow_provider_icechunk.format.config import RepositoryConfig
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.generations.identities import parse_id
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.format.names import MAIN, check_new_ref_name
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.repository import creation
from airflow_provider_icechunk.repository.assets import Assets, CacheLimits
from airflow_provider_icechunk.repository.chunks import ChunkReader, Packing
from airflow_provider_icechunk.repository.commit import ClockGuard, ConditionGuard
from airflow_provider_icechunk.repository.detection import detect_generation
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.history import (
    Diff,
    SnapshotInfo,
    ancestors,
    describe,
    diff_between,
)
from airflow_provider_icechunk.repository.inspection import snapshot_json
from airflow_provider_icechunk.repository.ledgers import open_ledger
from airflow_provider_icechunk.repository.ledgers.base import Behind, Creation, Ledger, Trust
from airflow_provider_icechunk.repository.maintenance.face import Maintenance
from airflow_provider_icechunk.repository.operations import Operations
from airflow_provider_icechunk.repository.session import Session
from airflow_provider_icechunk.repository.world import REAL_WORLD, World, to_micros
from airflow_provider_icechunk.storage.base import HasEndpoint, Storage, Version
from airflow_provider_icechunk.virtual.credentials import AnyCredential
from airflow_provider_icechunk.virtual.fetch import VirtualReader

AnySession = TypeVar("AnySession", bound=Session)
Authorization = Mapping[str, AnyCredential | None]
"""URL prefixes of virtual chunks that may be read, and as whom."""


class BaseRepository(Maintenance, Operations, Generic[AnySession]):
    """References, history and sessions of one repository. Use `create`, `open` or both in one.

    Subclasses say which session class they hand out.
    """

    session_class: type[AnySession]

    def __init__(
        self,
        engine: Engine,
        *,
        config_version: Version | None,
        authorize: Authorization | None,
    ) -> None:
        self._engine = engine
        self._config_version = config_version
        self._authorize = dict(authorize or {})
        self._default_commit_metadata: dict[str, Any] = {}

    @classmethod
    def create(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization | None = None,
        *,
        spec_version: int | str | None = None,
        packing: Packing | None = None,
        world: World = REAL_WORLD,
    ) -> Self:
        """Create a repository in an empty place and open it.

        Of many that try at once exactly one succeeds; the others get `AlreadyExistsError`.
        """
        generation = _generation(spec_version)
        ledger = creation.create(storage, generation, config, world)
        return cls._assemble(
            ledger, storage, config, authorize_virtual_chunk_access, packing, world
        )

    @classmethod
    def open(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization | None = None,
        *,
        packing: Packing | None = None,
        world: World = REAL_WORLD,
    ) -> Self:
        """Open a repository of any supported generation."""
        generation = detect_generation(storage)
        if generation is None:
            raise NotFoundError(
                f"there is no repository in {storage.location}: check the path or prefix, or "
                "create one there with `Repository.create`"
            )
        ledger = open_ledger(generation, storage, world)
        return cls._assemble(
            ledger, storage, config, authorize_virtual_chunk_access, packing, world
        )

    @classmethod
    def open_or_create(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization | None = None,
        *,
        spec_version: int | str | None = None,
        packing: Packing | None = None,
        world: World = REAL_WORLD,
    ) -> Self:
        """Open the repository, or create it if there is none."""
        if not cls.exists(storage):
            try:
                return cls.create(
                    storage,
                    config,
                    authorize_virtual_chunk_access,
                    spec_version=spec_version,
                    packing=packing,
                    world=world,
                )
            except AlreadyExistsError:
                pass
        return cls.open(
            storage, config, authorize_virtual_chunk_access, packing=packing, world=world
        )

    @staticmethod
    def exists(storage: Storage) -> bool:
        """Whether there is a repository, of any generation."""
        return detect_generation(storage) is not None

    @staticmethod
    def fetch_config(storage: Storage) -> RepositoryConfig | None:
        """The configuration stored with a repository, if there is one."""
        generation = detect_generation(storage)
        if generation is None:
            return None
        stored = open_ledger(generation, storage).config()
        return None if stored is None else stored.config

    @classmethod
    def _assemble(
        cls,
        ledger: Ledger,
        storage: Storage,
        config: RepositoryConfig | None,
        authorize: Authorization | None,
        packing: Packing | None,
        world: World,
    ) -> Self:
        stored = ledger.config()
        merged = stored.config if stored else RepositoryConfig()
        if config is not None:
            merged = merged.merge(config)
        engine = build_engine(
            ledger, storage, merged, authorize, given=config, packing=packing, world=world
        )
        return cls(
            engine, config_version=None if stored is None else stored.version, authorize=authorize
        )

    def reopen(
        self,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorization | None = None,
    ) -> Self:
        """The same repository with another configuration or other grants."""
        authorize = authorize_virtual_chunk_access
        return type(self)._assemble(
            self._engine.ledger,
            self._engine.storage,
            config,
            self._authorize if authorize is None else authorize,
            self._engine.packing,
            self._engine.world,
        )

    @property
    def config(self) -> RepositoryConfig:
        """The configuration in force: defaults, then what is stored, then what the caller gave."""
        return self._engine.config

    @property
    def storage(self) -> Storage:
        """Where the repository is."""
        return self._engine.storage

    @property
    def spec_version(self) -> str:
        """Generation of the stored format, by its name."""
        return self._engine.generation.value

    @property
    def authorized_virtual_container_prefixes(self) -> set[str]:
        """URL prefixes of virtual chunks that may be read."""
        return set(self._authorize)

    def save_config(self) -> None:
        """Store the configuration in force, unless somebody stored another one meanwhile."""
        version = self._engine.ledger.save_config(self.config, self._config_version)
        if version is None:
            raise ConflictError(
                f"the configuration of {self.storage.location} was changed since this repository "
                "was opened; open it again, apply your change and save",
                kind=Kind.CONFIG_CHANGED,
            )
        self._config_version = version

    def set_default_commit_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Metadata that every commit of sessions opened from now on carries."""
        self._default_commit_metadata = dict(metadata)

    def default_commit_metadata(self) -> dict[str, Any]:
        """What `set_default_commit_metadata` set."""
        return dict(self._default_commit_metadata)

    def writable_session(self, branch: str) -> AnySession:
        """A session on the head of `branch` that can be changed and committed."""
        base = self._engine.assets.snapshot(self._branch_head(branch))
        return self.session_class(
            self._engine, base, branch=branch, metadata=self._default_commit_metadata
        )

    def readonly_session(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
    ) -> AnySession:
        """A session that reads one snapshot: a branch's head, or its last one at `as_of`."""
        if as_of is not None and branch is None:
            raise InvalidInputError("as_of needs a branch")
        start = self._resolve(branch, tag, snapshot_id)
        if as_of is not None:
            assert branch is not None
            start = self._newest_until(branch, start, as_of)
        return self.session_class(self._engine, self._engine.assets.snapshot(start))

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """Create a branch at a snapshot."""
        check_new_ref_name(branch)
        target = self._existing(snapshot_id)
        if self._engine.ledger.create_branch(branch, target) is not Creation.CREATED:
            raise AlreadyExistsError(
                f"branch {branch!r} exists already; reset it to move it", kind=Kind.BRANCH_EXISTS
            )

    def list_branches(self) -> set[str]:
        """Names of all branches."""
        return set(self._engine.ledger.branches())

    def lookup_branch(self, branch: str) -> str:
        """The snapshot at the head of a branch."""
        return self._engine.show(self._branch_head(branch))

    def reset_branch(
        self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None
    ) -> None:
        """Move a branch to any snapshot; with `from_snapshot_id` only if it is there."""
        target = self._existing(snapshot_id)
        expected = self._branch_head(branch)
        if from_snapshot_id is not None:
            expected = self._parse(from_snapshot_id)
        outcome = self._engine.ledger.reset_branch(branch, target, expected)
        if isinstance(outcome, Behind):
            show = self._engine.show
            actual = None if outcome.actual is None else show(outcome.actual)
            raise ConflictError(
                f"branch {branch!r} is at {actual}, not at {show(expected)}; it was not reset",
                expected_parent=show(expected),
                actual_parent=actual,
            )

    def delete_branch(self, branch: str) -> None:
        """Delete a branch; its snapshots stay until they are collected."""
        if branch == MAIN:
            raise InvalidInputError("main branch cannot be deleted", kind=Kind.INVALID_NAME)
        if not self._engine.ledger.delete_branch(branch):
            raise self._no_branch(branch)

    def create_tag(self, tag: str, snapshot_id: str) -> None:
        """Name a snapshot for ever."""
        check_new_ref_name(tag, "tag")
        match self._engine.ledger.create_tag(tag, self._existing(snapshot_id)):
            case Creation.EXISTS:
                raise AlreadyExistsError(
                    f"tag already exists, tags are immutable: {tag!r}", kind=Kind.TAG_EXISTS
                )
            case Creation.WAS_DELETED:
                raise AlreadyExistsError(
                    f"tag {tag!r} existed and was deleted; its name cannot be used again",
                    kind=Kind.TAG_WAS_DELETED,
                )
            case Creation.CREATED:
                return

    def list_tags(self) -> set[str]:
        """Names of all tags that were not deleted."""
        return set(self._engine.ledger.tags())

    def lookup_tag(self, tag: str) -> str:
        """The snapshot a tag names."""
        return self._engine.show(self._tagged(tag))

    def delete_tag(self, tag: str) -> None:
        """Delete a tag; its name is never free again."""
        if not self._engine.ledger.delete_tag(tag):
            raise self._no_tag(tag)

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """What is known of one snapshot."""
        known_as = self._parse(snapshot_id)
        return self._describe(self._engine.assets.snapshot(known_as), known_as)

    def ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Iterator[SnapshotInfo]:
        """A version and its ancestors, newest first."""
        return self._history(self._resolve(branch, tag, snapshot_id))

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
        older = self._resolve(from_branch, from_tag, from_snapshot_id)
        newer = self._resolve(to_branch, to_tag, to_snapshot_id)
        return diff_between(self._engine.assets, older, newer)

    def inspect_snapshot(self, snapshot_id: str, *, pretty: bool = True) -> str:
        """One snapshot as JSON: its manifests, its nodes and where their chunks are listed."""
        snapshot = self._engine.assets.snapshot(self._parse(snapshot_id))
        parent = self._engine.ledger.parent(snapshot)
        return snapshot_json(snapshot, parent, pretty=pretty, show=self._engine.show)

    async def async_ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> AsyncIterator[SnapshotInfo]:
        """`ancestry` that loads each snapshot in a thread."""
        history = self.ancestry(branch=branch, tag=tag, snapshot_id=snapshot_id)
        while (info := await asyncio.to_thread(next, history, None)) is not None:
            yield info

    def _history(self, start: SnapshotId) -> Iterator[SnapshotInfo]:
        known_as: SnapshotId | None = start
        for snapshot in ancestors(self._engine.assets, start):
            yield self._describe(snapshot, known_as)
            known_as = self._engine.ledger.parent(snapshot)

    def _describe(self, snapshot: Snapshot, known_as: SnapshotId | None) -> SnapshotInfo:
        """A history entry under the id that a reference or a child uses for the snapshot.

        Early writers stored first snapshots under another file name than the id they gave them.
        """
        parent = self._engine.ledger.parent(snapshot)
        return describe(snapshot, parent, known_as or snapshot.id, self._engine.show)

    def _resolve(self, branch: str | None, tag: str | None, snapshot_id: str | None) -> SnapshotId:
        if sum(name is not None for name in (branch, tag, snapshot_id)) != 1:
            raise InvalidInputError("Must provide one of branch, tag, or snapshot_id")
        if branch is not None:
            return self._branch_head(branch)
        if tag is not None:
            return self._tagged(tag)
        assert snapshot_id is not None
        return self._parse(snapshot_id)

    def _newest_until(self, branch: str, start: SnapshotId, as_of: datetime) -> SnapshotId:
        limit = to_micros(as_of)
        for snapshot in ancestors(self._engine.assets, start):
            if snapshot.flushed_at <= limit:
                return snapshot.id
        raise NotFoundError(
            f"branch {branch!r} has no snapshot as old as {as_of.isoformat()}",
            kind=Kind.SNAPSHOT_NOT_FOUND,
        )

    def _existing(self, snapshot_id: str) -> SnapshotId:
        """A snapshot that is stored right now; a cached one may have been collected since."""
        identity = self._parse(snapshot_id)
        if self.storage.head(self._engine.ledger.layout.snapshot(identity)) is None:
            self._engine.assets.forget_snapshot(identity)
        return self._engine.assets.snapshot(identity).id

    def _parse(self, snapshot_id: str) -> SnapshotId:
        try:
            return SnapshotId(parse_id(self._engine.generation, snapshot_id))
        except InvalidInputError as error:
            raise InvalidInputError(f"invalid snapshot id: {error}") from None

    def _branch_head(self, branch: str) -> SnapshotId:
        head = self._engine.ledger.branch(branch)
        if head is None:
            raise self._no_branch(branch)
        return head

    def _tagged(self, tag: str) -> SnapshotId:
        found = self._engine.ledger.tag(tag)
        if found is None:
            raise self._no_tag(tag)
        return found

    def _no_branch(self, branch: str) -> NotFoundError:
        known = ", ".join(sorted(self._engine.ledger.branches())[:20])
        return NotFoundError(
            f"there is no branch {branch!r} in {self.storage.location}; it has: {known}",
            kind=Kind.BRANCH_NOT_FOUND,
        )

    def _no_tag(self, tag: str) -> NotFoundError:
        known = ", ".join(sorted(self._engine.ledger.tags())[:20]) or "no tags"
        return NotFoundError(
            f"there is no tag {tag!r} in {self.storage.location}; it has: {known}",
            kind=Kind.TAG_NOT_FOUND,
        )


class Repository(BaseRepository[Session]):
    """A repository whose sessions have no Zarr store; `api.Repository` adds it."""

    session_class = Session


def build_engine(
    ledger: Ledger,
    storage: Storage,
    config: RepositoryConfig,
    authorize: Authorization | None,
    *,
    given: RepositoryConfig | None,
    packing: Packing | None,
    world: World,
) -> Engine:
    """Put the parts of an open repository together."""
    settings = config.resolved()
    trust = Trust.of(
        creates=settings.storage.use_conditional_create,
        updates=settings.storage.use_conditional_update,
    )
    ledger = ledger.trusting(trust)
    limits = CacheLimits(
        snapshot_nodes=settings.num_snapshot_nodes,
        manifest_bytes=settings.num_chunk_refs * 80,
    )
    assets = Assets(storage, ledger, level=settings.compression_level, limits=limits)
    endpoint = storage.endpoint_url if isinstance(storage, HasEndpoint) else None
    virtual = VirtualReader.from_config(
        config, authorize, given=given, trusted_endpoints=[endpoint] if endpoint else []
    )
    return Engine(
        storage=storage,
        ledger=ledger,
        assets=assets,
        reader=ChunkReader(storage, ledger.layout, virtual),
        virtual=virtual,
        config=config,
        settings=settings,
        packing=packing or Packing(),
        clock=ClockGuard(assets, world),
        conditions=ConditionGuard(storage, trust),
        world=world,
        given=given,
        authorize=dict(authorize or {}),
    )


def _generation(spec_version: int | str | None) -> Generation:
    if spec_version is None:
        return Generation.V1
    try:
        return Generation(str(spec_version))
    except ValueError:
        names = ", ".join(generation.value for generation in Generation)
        raise InvalidInputError(
            f"{spec_version!r} is no format generation; there are: {names}"
        ) from None
