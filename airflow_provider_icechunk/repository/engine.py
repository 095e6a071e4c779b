"""What the sessions of one open repository share: storage, caches, configuration, the world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_icechunk.format.config import RepositoryConfig, ResolvedConfig
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.generations.identities import new_id, show_id
from airflow_provider_icechunk.format.ids import ChunkId
from airflow_provider_icechunk.repository.assets import Assets, CacheLimits
from airflow_provider_icechunk.repository.chunks import ChunkReader, ChunkWriter, Packing
from airflow_provider_icechunk.repository.commit import ClockGuard, ConditionGuard
from airflow_provider_icechunk.repository.leases import Leasehold, Tenancy
from airflow_provider_icechunk.repository.ledgers import open_ledger
from airflow_provider_icechunk.repository.ledgers.base import Ledger, Trust
from airflow_provider_icechunk.repository.tuning import follow, follow_stored, warn_of_unheeded
from airflow_provider_icechunk.repository.world import World
from airflow_provider_icechunk.storage.base import HasEndpoint, Storage
from airflow_provider_icechunk.virtual.credentials import AnyCredential
from airflow_provider_icechunk.virtual.fetch import VirtualReader

_LOG_CHANGES = 1_000_000
"""More than officially, where none are kept: a rebase that lost again reads no log twice."""

_MOST_KEPT_BYTES = 1 << 30
"""Most bytes of chunks that are kept because a stored configuration says so."""

Authorization = Mapping[str, AnyCredential | None]
"""URL prefixes of virtual chunks that may be read, and as whom."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Shared by a repository and its sessions."""

    storage: Storage
    ledger: Ledger
    assets: Assets
    reader: ChunkReader
    virtual: VirtualReader
    config: RepositoryConfig
    settings: ResolvedConfig
    """`config` with every default filled in."""
    packing: Packing
    clock: ClockGuard
    conditions: ConditionGuard
    world: World
    given: RepositoryConfig | None = None
    """What the caller passed when opening, without what is stored: all that may travel."""
    authorize: Mapping[str, AnyCredential | None] = field(default_factory=dict, repr=False)
    """URL prefixes of virtual chunks that may be read, and as whom."""

    @property
    def generation(self) -> Generation:
        """Generation of the stored format."""
        return self.ledger.generation

    def new_id(self) -> bytes:
        """A random id for a new object."""
        return new_id(self.generation, self.world.entropy(self.generation.id_size))

    def show(self, identity: bytes) -> str:
        """An id as people see it."""
        return show_id(self.generation, identity)

    def leasehold(self, tenancy: Tenancy | None = None) -> Leasehold:
        """What one session, or another long work, has to know to keep what it stores."""
        return Leasehold(self.storage, self.clock, self.world, tenancy)

    def writer(self, held: Leasehold | None = None) -> ChunkWriter:
        """A chunk writer for one session, which tells `held` before it stores anything."""
        return ChunkWriter(
            self.storage,
            self.ledger.layout,
            inline_up_to=self.settings.inline_chunk_threshold_bytes,
            packing=self.packing,
            new_id=lambda: ChunkId(self.new_id()),
            storing=None if held is None else held.writing,
        )


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
    warn_of_unheeded(given, storage)
    settings = config.resolved()
    chosen = follow_stored(follow(storage, given), config, ledger.layout.chunks)
    if chosen is not storage:
        storage, ledger = chosen, open_ledger(ledger.generation, chosen, world)
    trust = Trust.of(
        creates=settings.storage.use_conditional_create,
        updates=settings.storage.use_conditional_update,
    )
    ledger = ledger.trusting(trust).following(settings)
    logs = None if config.caching is None else config.caching.num_transaction_changes
    limits = CacheLimits(
        snapshot_nodes=settings.num_snapshot_nodes,
        manifest_bytes=settings.num_chunk_refs * 80,
        log_changes=_LOG_CHANGES if logs is None else logs,
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
        reader=ChunkReader(
            storage, ledger.layout, virtual, kept_bytes=_kept_bytes(settings, given)
        ),
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


def _kept_bytes(settings: ResolvedConfig, given: RepositoryConfig | None) -> int:
    """How much of the chunks that were read stays in memory.

    What is only stored with a repository may be anything, and is followed up to a limit.
    """
    chosen = None if given is None or given.caching is None else given.caching.num_bytes_chunks
    return min(settings.num_bytes_chunks, _MOST_KEPT_BYTES) if chosen is None else chosen
