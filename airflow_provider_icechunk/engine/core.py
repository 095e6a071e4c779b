"""The shared parts of one open repository: storage, refs, objects, readers, settings, world."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from airflow_provider_icechunk.engine.format.config.model import (
    RepositoryConfig,
    ResolvedConfig,
    StorageRetriesSettings,
    StorageSettings,
    StorageTimeoutSettings,
)
from airflow_provider_icechunk.engine.format.generation import Generation, History
from airflow_provider_icechunk.engine.format.ids import ChunkId, format_id, new_id
from airflow_provider_icechunk.engine.objects.chunk_reader import ChunkReader
from airflow_provider_icechunk.engine.objects.chunk_writer import ChunkWriter, Packing
from airflow_provider_icechunk.engine.objects.disk_cache import CachedReads, disk_cache
from airflow_provider_icechunk.engine.objects.objects import CacheLimits, Objects
from airflow_provider_icechunk.engine.refs import open_refs
from airflow_provider_icechunk.engine.refs.base import JustRead, Refs, Trust
from airflow_provider_icechunk.engine.storage.base import HasEndpoint, Storage, Version
from airflow_provider_icechunk.engine.storage.credentials import AnyCredential
from airflow_provider_icechunk.engine.storage.tuning import Tuning, followed, tuned
from airflow_provider_icechunk.engine.virtual.reader import VirtualReader
from airflow_provider_icechunk.exceptions import Kind, StorageError

from .concurrency import Background, PerProcess
from .leases import Leasehold, Tenancy
from .logs import logger
from .world import REAL_WORLD, World

_log = logger("config")
_MILLI = 1000
_ATTRIBUTES = (
    "the last few attributes files are kept, regardless of size; omit "
    "attributes_file_threshold_bytes to have none"
)
_TIMEOUT = "use connect_timeout_ms and read_timeout_ms, and storage.retries for the whole"
_NOWHERE = {
    "caching.num_bytes_attributes": _ATTRIBUTES,
    "max_concurrent_decodes": "what was read is decoded by the threads that read it",
    "manifest.max_concurrent_manifest_fetches_during_commit": (
        "a commit reads all manifests that it needs at once, up to max_concurrent_requests"
    ),
    "manifest.preload.max_arrays_to_scan": "all arrays are considered; use preload_if instead",
    "storage.timeouts.operation_timeout_ms": _TIMEOUT,
    "storage.timeouts.operation_attempt_timeout_ms": _TIMEOUT,
}
"""Settings that no generation and no storage uses, and what to do instead."""


def follow(storage: Storage, given: RepositoryConfig | None) -> Storage:
    """The storage with the caller's settings; other settings stay as they are."""
    return storage if given is None else tuned(storage, tuning_of(given))


def follow_stored(storage: Storage, config: RepositoryConfig, chunks_prefix: str) -> Storage:
    """The storage with the effective configuration, except where its caller chose otherwise, as a
    web page does, which tries only twice.

    :param chunks_prefix: start of the keys of chunks in the generation of the repository.
    """
    chosen = replace(tuning_of(config), only_defaults=True)
    has_classes = chosen.chunks_storage_class != chosen.metadata_storage_class
    return tuned(storage, replace(chosen, chunks_prefix=chunks_prefix if has_classes else None))


def tuning_of(config: RepositoryConfig) -> Tuning:
    """The storage settings in a configuration. Pure."""
    chosen = config.storage or StorageSettings()
    retries = chosen.retries or StorageRetriesSettings()
    timeouts = chosen.timeouts or StorageTimeoutSettings()
    at_once = config.max_concurrent_requests
    return Tuning(
        requests_at_once=None if at_once is None else max(1, at_once),
        tries=retries.max_tries,
        first_pause=_seconds(retries.initial_backoff_ms),
        longest_pause=_seconds(retries.max_backoff_ms),
        use_metadata=chosen.unsafe_use_metadata,
        storage_class=chosen.storage_class,
        metadata_storage_class=chosen.metadata_storage_class,
        chunks_storage_class=chosen.chunks_storage_class,
        multipart_threshold=chosen.minimum_size_for_multipart_upload,
        connect_timeout=_seconds(timeouts.connect_timeout_ms),
        read_timeout=_seconds(timeouts.read_timeout_ms),
    )


def warn_of_unheeded(
    given: RepositoryConfig | None, storage: Storage, generation: Generation
) -> None:
    """Warn, once per process, about each setting from the caller that has no effect.

    In the log, as officially, so that a program that turns warnings into errors continues.
    Settings stored in a repository are not the caller's choice and cause no warning.
    """
    for name, instead in unheeded(given, storage, generation) if given is not None else ():
        with _lock.get():
            if (name, generation) in _warned:
                continue
            _warned.add((name, generation))
        _log.warning("the setting %s is stored but has no effect: %s", name, instead)


def unheeded(
    given: RepositoryConfig, storage: Storage, generation: Generation
) -> Iterator[tuple[str, str]]:
    """Settings with non-default values that have no effect, and what to do instead. Pure."""
    for name, instead in _NOWHERE.items():
        if _chosen(given, name):
            yield name, instead
    chosen = given.resolved()
    for name, setting in _NOT_EVERYWHERE.items():
        if not setting.by(generation) and setting.value(chosen) != setting.default:
            yield name, f"generation `{generation}` {setting.reason}"
    heeded = followed(storage)
    for name, field_ in _OF_STORAGES.items():
        value = _chosen(given, name)
        # Metadata is on by default; a caller that spells that out misses nothing.
        if field_ not in heeded and value is not None and value is not True:
            yield name, f"{storage.location} has nothing like it; it is made for buckets"


def _chosen(given: RepositoryConfig, name: str) -> object:
    """The value that was chosen for a setting, which may be one of a group; `None` if none was."""
    value: object = given
    for part in name.split("."):
        value = None if value is None else getattr(value, part)
    return value


@dataclass(frozen=True, slots=True)
class _Followed:
    """A setting that some generations ignore."""

    by: Callable[[Generation], bool]
    """Whether a generation uses it."""
    value: Callable[[ResolvedConfig], object]
    reason: str

    @property
    def default(self) -> object:
        return self.value(ResolvedConfig())


def _has_repo(generation: Generation) -> bool:
    return generation.history is History.REPO


_NO_REPO = "has no `repo` object; only generation `2` has one"
_NOT_EVERYWHERE = {
    "compression.level": _Followed(
        lambda generation: generation.compresses_files,
        lambda chosen: chosen.compression_level,
        "does not compress its metadata files",
    ),
    "manifest.virtual_chunk_location_compression": _Followed(
        lambda generation: generation.compresses_locations,
        lambda chosen: chosen.location_compression,
        "does not compress locations; only generation `2` does",
    ),
    "repo_update_retries": _Followed(
        _has_repo, lambda chosen: chosen.repo_update_retries, _NO_REPO
    ),
    "num_updates_per_repo_info_file": _Followed(
        _has_repo, lambda chosen: chosen.num_updates_per_repo_info_file, _NO_REPO
    ),
    "attributes_file_threshold_bytes": _Followed(
        lambda generation: generation.separates_attributes,
        lambda chosen: chosen.attributes_file_threshold_bytes,
        "keeps all attributes in its snapshots; the setting is for `draft`, `alpha1` and `alpha`",
    ),
}
_OF_STORAGES = {
    "max_concurrent_requests": "requests_at_once",
    "storage.retries.max_tries": "tries",
    "storage.retries.initial_backoff_ms": "first_pause",
    "storage.retries.max_backoff_ms": "longest_pause",
    "storage.unsafe_use_metadata": "use_metadata",
    "storage.storage_class": "storage_class",
    "storage.metadata_storage_class": "metadata_storage_class",
    "storage.chunks_storage_class": "chunks_storage_class",
    "storage.minimum_size_for_multipart_upload": "multipart_threshold",
    "storage.timeouts.connect_timeout_ms": "connect_timeout",
    "storage.timeouts.read_timeout_ms": "read_timeout",
}
"""Settings that a storage follows or does not, and what they are called there."""
_lock = PerProcess(threading.Lock)
_warned: set[tuple[str, Generation]] = set()


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / _MILLI


MAX_CLOCK_SKEW_SECONDS = 600

_LOG_CHANGES = 1_000_000
"""The official default is 0; with this, a rebase that loses again reads no log twice."""

_MOST_KEPT_BYTES = 1 << 30
"""Limit of the chunk cache size in a stored configuration."""

Authorization = Mapping[str, AnyCredential | None]
"""URL prefixes of virtual chunks that may be read, and as whom."""


class _Server(NamedTuple):
    """The server of a storage on a network."""

    endpoint: str | None
    """Its address; `None` for the vendor's own service, whose promises are known."""


def server_of(storage: Storage) -> _Server | None:
    """The server of a storage, even behind wrappers that observe it; `None` for a folder."""
    inner: object = storage
    while inner is not None:
        if isinstance(inner, HasEndpoint):
            return _Server(inner.endpoint_url)
        inner = getattr(inner, "inner", None)
    return None


_honest: PerProcess[set[str]] = PerProcess(set)
"""Endpoints that were found to honour conditional writes."""


class ConditionGuard:
    """Refuses commits to a store that does not honour conditional writes.

    A server is tested once per process, and never if it is the vendor's own service.
    """

    def __init__(self, storage: Storage, trust: Trust) -> None:
        self._storage = storage
        self._server = server_of(storage)
        known = self._server is not None and self._server.endpoint is None
        self._settled = known or not (trust.creates and trust.updates)

    def check(self) -> None:
        """Raise `UnsafeStorageError` if two writers could silently overwrite each other."""
        endpoint = None if self._server is None else self._server.endpoint
        if self._settled or endpoint in _honest.get():
            return
        self._storage.check_conditional_writes()
        self._settled = True
        if endpoint is not None:
            _honest.get().add(endpoint)

    def begin(self) -> list[Background[None]]:
        """`check` while the caller goes on, if a server has to be asked."""
        if self._server is None:
            self.check()
            return []
        if self._settled or self._server.endpoint in _honest.get():
            return []
        return [Background(self.check)]


_clocks: PerProcess[dict[tuple[str | None, World], tuple[float, float]]] = PerProcess(dict)
"""What is known about the clocks of servers."""


class ClockGuard:
    """Refuses commits from a host whose clock is far from the store's.

    A server is asked once per process, a folder once per repository, and again only when the
    host's wall clock has moved relative to its monotonic one, which means that it was set.
    """

    def __init__(self, objects: Objects, world: World) -> None:
        self._objects = objects
        self._world = world
        server = server_of(objects.storage)
        self._all = {} if server is None else _clocks.get()
        self._key = (None if server is None else server.endpoint, world)

    @property
    def _known(self) -> tuple[float, float] | None:
        """How far the wall clock was ahead of the monotonic one, and of the store's."""
        return self._all.get(self._key)

    @_known.setter
    def _known(self, known: tuple[float, float] | None) -> None:
        if known is None:
            self._all.pop(self._key, None)
        else:
            self._all[self._key] = known

    def store_now(self) -> datetime:
        """The store's time, never ahead of it."""
        return self._world.now() - timedelta(seconds=self._skew())

    def estimate(self) -> datetime:
        """The same without asking the store; this host's time if it was never asked."""
        known = self._known
        skew = 0.0 if known is None else known[1]
        return self._world.now() - timedelta(seconds=skew)

    def check(self) -> None:
        """Raise `StorageError` with kind `clock_skew` beyond the limit."""
        skew = self._skew()
        if abs(skew) > MAX_CLOCK_SKEW_SECONDS:
            self._known = None
            raise StorageError(
                f"this host's clock differs by {skew:+.0f} s from that of "
                f"{self._objects.storage.location}, more than {MAX_CLOCK_SKEW_SECONDS} s: commits "
                "would have wrong times and retention would treat them wrongly; set the clock",
                kind=Kind.CLOCK_SKEW,
            )

    def begin(self) -> list[Background[None]]:
        """`check` while the caller goes on, if a server has to be asked."""
        if self._is_known() or server_of(self._objects.storage) is None:
            self.check()
            return []
        return [Background(self.check)]

    def _is_known(self) -> bool:
        offset = self._world.now().timestamp() - self._world.monotonic()
        known = self._known
        return known is not None and abs(offset - known[0]) < 1

    def _skew(self) -> float:
        now = self._world.now()
        offset = now.timestamp() - self._world.monotonic()
        known = self._known
        if known is None or abs(offset - known[0]) >= 1:
            store = self._objects.storage.now()
            known = self._known = offset, (self._world.now() - store).total_seconds()
        return known[1]


@dataclass(frozen=True, slots=True)
class Core:
    """Shared by a repository and its sessions."""

    storage: Storage
    refs: Refs
    objects: Objects
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
    """The configuration the caller passed when opening; only this one is pickled."""
    config_version: Version | None = None
    """Version of the stored configuration when opening; `None` if there was none."""
    authorize: Mapping[str, AnyCredential | None] = field(default_factory=dict, repr=False)
    """URL prefixes of virtual chunks that may be read, and as whom."""

    @property
    def generation(self) -> Generation:
        """Generation of the stored format."""
        return self.refs.generation

    def new_id(self) -> bytes:
        """A random id for a new object."""
        return new_id(self.generation, self.world.entropy(self.generation.id_size))

    def format_id(self, identity: bytes) -> str:
        """An id as text."""
        return format_id(self.generation, identity)

    def begin_checks(self) -> Callable[[], None]:
        """Check the store's guarantees and its clock, while others write.

        The returned function waits for the answers and raises if they forbid a commit.
        """
        asked = [*self.conditions.begin(), *self.clock.begin()]

        def finish() -> None:
            for one in asked:
                one.result()

        return finish

    def leasehold(self, tenancy: Tenancy | None = None) -> Leasehold:
        """The lease keeper of one session or other long work."""
        return Leasehold(self.storage, self.clock, self.world, tenancy)

    def writer(self, held: Leasehold | None = None) -> ChunkWriter:
        """A chunk writer for one session, which calls `held.writing` before it stores anything."""
        return ChunkWriter(
            self.storage,
            self.refs.layout,
            inline_up_to=self.settings.inline_chunk_threshold_bytes,
            packing=self.packing,
            new_id=lambda: ChunkId(self.new_id()),
            storing=None if held is None else held.writing,
            background=server_of(self.storage) is not None,
        )


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of the caller that opens a repository."""

    config: RepositoryConfig | None = None
    """Overrides the stored one."""
    authorize: Authorization | None = None
    packing: Packing | None = None
    world: World = REAL_WORLD


def build_core(
    refs: Refs, storage: Storage, choices: Choices, found: JustRead | None = None
) -> Core:
    """Assemble the parts of an open repository.

    Its configuration is the stored one, overridden by the given one.

    :param found: what was read to detect it; not read again.
    """
    given, world = choices.config, choices.world
    refs = refs.after(found)
    stored = refs.config()
    config = stored.config if stored else RepositoryConfig()
    if given is not None:
        config = config.merge(given)
    warn_of_unheeded(given, storage, refs.generation)
    settings = config.resolved()
    chosen = follow_stored(follow(storage, given), config, refs.layout.chunks)
    if chosen is not storage:
        storage, refs = chosen, open_refs(refs.generation, chosen, world)
    trust = Trust.of(
        creates=settings.storage.use_conditional_create,
        updates=settings.storage.use_conditional_update,
    )
    refs = refs.trusting(trust).following(settings).after(found)
    logs = None if config.caching is None else config.caching.num_transaction_changes
    limits = CacheLimits(
        snapshot_nodes=settings.num_snapshot_nodes,
        manifest_bytes=settings.num_chunk_refs * 80,
        log_changes=_LOG_CHANGES if logs is None else logs,
    )
    cache = None if server_of(storage) is None else disk_cache()
    reads = storage if cache is None else CachedReads(storage, cache)
    objects = Objects(storage, refs, level=settings.compression_level, limits=limits, reads=reads)
    endpoint = storage.endpoint_url if isinstance(storage, HasEndpoint) else None
    virtual = VirtualReader.from_config(
        config, choices.authorize, given=given, trusted_endpoints=[endpoint] if endpoint else []
    )
    return Core(
        storage=storage,
        refs=refs,
        objects=objects,
        reader=ChunkReader(reads, refs.layout, virtual, kept_bytes=_kept_bytes(settings, given)),
        virtual=virtual,
        config=config,
        settings=settings,
        packing=choices.packing or Packing(),
        clock=ClockGuard(objects, world),
        conditions=ConditionGuard(storage, trust),
        world=world,
        given=given,
        config_version=None if stored is None else stored.version,
        authorize=dict(choices.authorize or {}),
    )


def _kept_bytes(settings: ResolvedConfig, given: RepositoryConfig | None) -> int:
    """Size of the chunk cache in bytes.

    A stored configuration is not trusted, so its value is limited.
    """
    chosen = None if given is None or given.caching is None else given.caching.num_bytes_chunks
    return min(settings.num_bytes_chunks, _MOST_KEPT_BYTES) if chosen is None else chosen
