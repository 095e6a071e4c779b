"""A repository: create it, open it, name its versions, and start sessions on them."""

from __future__ import annotations

from collections.abc import Mapping
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
from airflow_provider_icechunk.repository import creation
from airflow_provider_icechunk.repository.chunks import Packing
from airflow_provider_icechunk.repository.detection import detect_generation
from airflow_provider_icechunk.repository.engine import Authorization, Engine, build_engine
from airflow_provider_icechunk.repository.inspection import Inspection
from airflow_provider_icechunk.repository.ledgers import open_ledger
from airflow_provider_icechunk.repository.ledgers.base import Ledger
from airflow_provider_icechunk.repository.maintenance.face import Maintenance
from airflow_provider_icechunk.repository.operations import Operations
from airflow_provider_icechunk.repository.preloading import preloaded
from airflow_provider_icechunk.repository.replaying import changes_between
from airflow_provider_icechunk.repository.session import Session
from airflow_provider_icechunk.repository.spec_versions import SpecVersion, version_of
from airflow_provider_icechunk.repository.tuning import follow
from airflow_provider_icechunk.repository.versions import Versions
from airflow_provider_icechunk.repository.world import REAL_WORLD, World
from airflow_provider_icechunk.storage.base import Storage, Version

AnySession = TypeVar("AnySession", bound=Session)


class BaseRepository(Versions, Maintenance, Operations, Inspection, Generic[AnySession]):
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
        spec_version: int | str | None = None,
        check_clean_root: bool = True,
        *,
        packing: Packing | None = None,
        world: World = REAL_WORLD,
    ) -> Self:
        """Create a repository in an empty place and open it.

        Of many that try at once exactly one succeeds; the others get `AlreadyExistsError`. With
        `check_clean_root=False` other files may be there, as long as they are no repository.
        """
        generation = generation_named(spec_version)
        storage = follow(storage, config)
        ledger = creation.create(
            storage, generation, config, world, check_clean_root=check_clean_root
        )
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
        found = cls.find(
            storage, config, authorize_virtual_chunk_access, packing=packing, world=world
        )
        if found is None:
            raise NotFoundError(
                f"there is no repository in {storage.location}: check the path or prefix, or "
                "create one there with `Repository.create`"
            )
        return found

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
        """Open the repository if there is one: `exists` and `open` in one look."""
        storage = follow(storage, config)
        generation = detect_generation(storage)
        if generation is None:
            return None
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
        create_version: int | str | None = None,
        check_clean_root: bool = True,
        *,
        spec_version: int | str | None = None,
        packing: Packing | None = None,
        world: World = REAL_WORLD,
    ) -> Self:
        """Open the repository, or create it if there is none.

        Its generation then is `create_version`, as it is called officially here; `spec_version`
        says the same.
        """
        if None not in (create_version, spec_version):
            raise InvalidInputError("give create_version or spec_version, not both")
        found = cls.find(
            storage, config, authorize_virtual_chunk_access, packing=packing, world=world
        )
        if found is not None:
            return found
        try:
            return cls.create(
                storage,
                config,
                authorize_virtual_chunk_access,
                spec_version=spec_version if create_version is None else create_version,
                check_clean_root=check_clean_root,
                packing=packing,
                world=world,
            )
        except AlreadyExistsError:
            return cls.open(
                storage, config, authorize_virtual_chunk_access, packing=packing, world=world
            )

    @staticmethod
    def exists(storage: Storage) -> bool:
        """Whether there is a repository, of any generation."""
        return detect_generation(storage) is not None

    @staticmethod
    def fetch_spec_version(storage: Storage) -> SpecVersion | str | None:
        """The generation of a repository without opening it; `None` if there is none."""
        generation = detect_generation(storage)
        return None if generation is None else version_of(generation)

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
    def spec_version(self) -> SpecVersion | str:
        """Generation of the stored format: a number, or the name of one before the numbers."""
        return version_of(self._engine.generation)

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
        base = preloaded(self._engine, self._engine.assets.snapshot(self._head_to_change(branch)))
        return self.session_class(
            self._engine, base, branch=branch, metadata=self._default_commit_metadata
        )

    def session_with_changes(
        self, branch: str, *, from_snapshot_id: str, to_snapshot_id: str
    ) -> AnySession:
        """A session for `branch` that holds what the commits after one snapshot up to another did.

        It stands on the older snapshot: on a branch that went on from there it has to rebase.
        """
        self._head_to_change(branch)
        older, newer = self._parse(from_snapshot_id), self._parse(to_snapshot_id)
        changes = changes_between(self._engine, older, newer)
        session = self.session_class(
            self._engine,
            self._engine.assets.snapshot(older),
            branch=branch,
            metadata=self._default_commit_metadata,
        )
        session.tree.changes = changes
        session.tree.held.borrows(self._engine.ledger.layout.snapshot(newer))
        return session

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
        base = preloaded(self._engine, self._engine.assets.snapshot(start))
        return self.session_class(self._engine, base)


class Repository(BaseRepository[Session]):
    """A repository whose sessions have no Zarr store; `api.Repository` adds it."""

    session_class = Session


def generation_named(spec_version: int | str | None) -> Generation:
    """The generation with a name, or the default; refuses a name that none has."""
    if spec_version is None:
        return Generation.V1
    try:
        return Generation(str(spec_version))
    except ValueError:
        names = ", ".join(generation.value for generation in Generation)
        raise InvalidInputError(
            f"{spec_version!r} is no format generation; there are: {names}"
        ) from None
