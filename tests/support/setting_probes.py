"""One observation per setting of a repository: what changes with another value."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from support.arrays import GROUP, array, put
from zarr.core.buffer import default_buffer_prototype

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine import core
from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Virtual
from airflow_provider_icechunk.engine.format.config.model import LocationCompression
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import ManifestId, NodeId
from airflow_provider_icechunk.engine.format.model import Manifest
from airflow_provider_icechunk.engine.format.v2.codec import V2Codec
from airflow_provider_icechunk.engine.objects.chunk_reader import Wanted
from airflow_provider_icechunk.engine.objects.chunk_writer import Packing
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Anything,
    Exactly,
    Expectation,
    Lost,
    PutOutcome,
)
from airflow_provider_icechunk.engine.storage.clouds.requests import Body
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings
from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage
from airflow_provider_icechunk.engine.storage.s3.writes import WritableBucket
from airflow_provider_icechunk.engine.storage.secrets import static_credentials
from airflow_provider_icechunk.engine.virtual.reader import VirtualReader
from airflow_provider_icechunk.engine.virtual.transports import Part
from airflow_provider_icechunk.engine.world import World
from airflow_provider_icechunk.exceptions import ConflictError, StorageError, UnsupportedError
from airflow_provider_icechunk.testing.storages import WrappedStorage

Config = icechunk.RepositoryConfig
ONE_FILE_EACH = Packing(below=0)


class Recorded(WrappedStorage):
    """Records what is requested, and how many objects are requested together."""

    def __init__(self, lose: str | None = None) -> None:
        super().__init__(MemoryStorage())
        self.read: list[str] = []
        self.together: list[int] = []
        self.conditions: dict[str, Expectation] = {}
        self._lose = lose

    def get(self, key: str, byte_range: Any = None) -> Any:
        self.read.append(key)
        return super().get(key, byte_range)

    def get_many(self, requests: Any) -> Any:
        self.together.append(len(requests))
        return super().get_many(requests)

    def put(self, key: str, data: Any, *, expect: Expectation, **rest: Any) -> PutOutcome:
        self.conditions[key] = expect
        if key == self._lose:
            return Lost()
        return super().put(key, data, expect=expect, **rest)

    def reads(self, folder: str) -> int:
        """How many objects of a folder were read since the last question."""
        count = sum(key.startswith(folder) for key in self.read)
        self.read.clear()
        return count


def filled(
    storage: Any, config: Config | None = None, *, spec_version: int | str = 1, chunks: int = 4
) -> icechunk.Repository:
    """A repository with the arrays `a` and `time`, of one native chunk file for each chunk."""
    repo = icechunk.Repository.create(
        storage, config, spec_version=spec_version, packing=ONE_FILE_EACH
    )
    session = repo.writable_session("main")
    session.tree.put_document("/", GROUP)
    for path in ("/a", "/time"):
        session.tree.put_document(path, array([chunks], [1]))
        for place in range(chunks):
            put(session, path, (place,), b"%d" % place * 600)
    session.commit("filled")
    return repo


def layout(repo: icechunk.Repository) -> Any:
    """Where the files of a repository are."""
    return repo.core.refs.layout


def opened(storage: Any, config: Config | None = None) -> icechunk.Repository:
    repo = icechunk.Repository.open(storage, config)
    repo.storage.read.clear()
    return repo


def inline_chunk_threshold_bytes(generation: str) -> None:
    for threshold, files in ((599, 8), (600, 0)):
        chosen = Config(inline_chunk_threshold_bytes=threshold)
        repo = filled(MemoryStorage(), chosen, spec_version=generation)
        assert len(list(repo.storage.scan(layout(repo).chunks))) == files


def get_partial_values_concurrency(generation: str) -> None:
    storage = Recorded()
    filled(storage, spec_version=generation)
    wanted = [(f"a/c/{place}", None) for place in range(4)]
    for chosen, widest in ((None, 4), (3, 3), (1, 1)):
        store = (
            opened(storage, Config(get_partial_values_concurrency=chosen))
            .readonly_session("main")
            .store
        )
        storage.together.clear()
        found = asyncio.run(store.get_partial_values(default_buffer_prototype(), wanted))
        assert [len(one) for one in found] == [600] * 4
        assert max(storage.together) == widest


def compression_algorithm() -> None:
    chosen = icechunk.CompressionConfig(icechunk.CompressionAlgorithm.Zstd)
    repo = filled(MemoryStorage(), Config(compression=chosen))
    key = f"snapshots/{repo.lookup_branch('main')}"
    found = repo.storage.get(key)
    assert found is not None
    assert envelope.read_header(found.data).compression == "zstd"


def compression_level(generation: str) -> None:
    sizes = []
    for level in (1, 22):
        repo = icechunk.Repository.create(
            MemoryStorage(),
            Config(compression=icechunk.CompressionConfig(level=level)),
            spec_version=generation,
        )
        session = repo.writable_session("main")
        for number in range(300):
            session.tree.put_document(f"/array-{number * 7919 % 1000}", array([number + 1], [1]))
        session.commit("many")
        sizes.append(max(one.size for one in repo.storage.scan(layout(repo).snapshots)))
    assert sizes[1] < sizes[0]


def max_concurrent_requests() -> None:
    given = S3Settings("bucket", endpoint_url="http://127.0.0.1:1", allow_http=True)
    storage = core.follow(S3Storage(given), Config(max_concurrent_requests=3))
    inside, most, lock = 0, 0, threading.Lock()
    # Every call inside waits for a fourth, which never comes.
    four = threading.Barrier(4, timeout=1)

    class Watched(WritableBucket):
        def _get(self, key: str, asked: Any) -> Body:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
            with contextlib.suppress(threading.BrokenBarrierError):
                four.wait()
            with lock:
                inside -= 1
            return Body(b"", "", is_range=False)

    assert isinstance(storage, S3Storage)
    storage._bucket = Watched(storage.settings)
    threads = [
        threading.Thread(target=lambda: storage.get_many([("a", None)] * 3)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 3


def caching(
    generation: str, setting: str, folder: str, look: Callable[[icechunk.Repository], object]
) -> None:
    """Nothing of a kind is kept with a limit of 0, and all of it with a large one."""
    storage = Recorded()
    where = getattr(layout(filled(storage, spec_version=generation)), folder)
    others = {"num_chunk_refs": 0} if setting == "num_transaction_changes" else {}
    for limit, again in ((0, True), (10_000_000, False)):
        kept = icechunk.CachingConfig(**others | {setting: limit})
        repo = opened(storage, Config(caching=kept))
        look(repo)
        assert storage.reads(where) > 0
        look(repo)
        assert (storage.reads(where) > 0) is again


def num_snapshot_nodes(generation: str) -> None:
    caching(
        generation, "num_snapshot_nodes", "snapshots", lambda repo: repo.readonly_session("main")
    )


def num_chunk_refs(generation: str) -> None:
    caching(generation, "num_chunk_refs", "manifests", read_one)


def num_transaction_changes(generation: str) -> None:
    """Where there are no logs, changes are derived from manifests, which are not kept here."""

    def look(repo: icechunk.Repository) -> None:
        newest, oldest = (info.id for info in repo.ancestry(branch="main"))
        repo.diff(from_snapshot_id=oldest, to_snapshot_id=newest)

    folder = "transactions" if Generation(generation).keeps_logs else "manifests"
    caching(generation, "num_transaction_changes", folder, look)


def num_bytes_chunks(generation: str) -> None:
    caching(generation, "num_bytes_chunks", "chunks", read_one)


def read_one(repo: icechunk.Repository) -> None:
    tree = repo.readonly_session("main").tree
    payload = tree.chunk("/a", (2,))
    assert payload is not None
    assert tree.read([Wanted(payload, 0, 600)]) == [b"2" * 600]


def preload(generation: str, **chosen: Any) -> int:
    """Manifests that are read when a session opens: there is one for each array."""
    storage = Recorded()
    split = icechunk.ManifestSplittingConfig.from_dict({})
    divided = Config(manifest=icechunk.ManifestConfig(splitting=split))
    where = layout(filled(storage, divided, spec_version=generation)).manifests
    given = icechunk.ManifestConfig(preload=icechunk.ManifestPreloadConfig(**chosen))
    repo = opened(storage, Config(manifest=given))
    repo.readonly_session("main")
    loaded = storage.reads(where)
    read_one(repo)
    assert storage.reads(where) + loaded >= 1
    return loaded


def preload_if(generation: str) -> None:
    anything = icechunk.ManifestPreloadCondition.true()
    assert preload(generation, preload_if=icechunk.ManifestPreloadCondition.false()) == 0
    assert (
        preload(generation, preload_if=icechunk.ManifestPreloadCondition.name_matches("nothing"))
        == 0
    )
    assert (
        preload(generation, preload_if=icechunk.ManifestPreloadCondition.num_refs(100, None)) == 0
    )
    assert preload(generation, preload_if=anything) >= 1
    storage = Recorded()
    where = layout(filled(storage, spec_version=generation)).manifests
    opened(storage).writable_session("main")
    assert storage.reads(where) == 0


def preload_max_total_refs(generation: str) -> None:
    anything = icechunk.ManifestPreloadCondition.true()
    assert preload(generation, max_total_refs=0, preload_if=anything) == 0
    assert preload(generation, max_total_refs=3, preload_if=anything) == 0
    assert preload(generation, max_total_refs=8, preload_if=anything) >= 1


def splitting(generation: str) -> None:
    every = icechunk.ManifestSplitDimCondition.Any()
    for size, files in ((1, 8), (4, 2)):
        split = icechunk.ManifestSplittingConfig.from_dict(
            {icechunk.ManifestSplitCondition.path_matches("."): {every: size}}
        )
        chosen = Config(manifest=icechunk.ManifestConfig(splitting=split))
        repo = filled(MemoryStorage(), chosen, spec_version=generation)
        assert len(list(repo.storage.scan(layout(repo).manifests))) == files


def location_compression(name: str, less: int, more: int) -> Callable[[], None]:
    """Another value results in another stored manifest."""

    def probe() -> None:
        items = [
            ((n,), Virtual(f"s3://bucket/long/prefix/year={n % 30}/file-{n * 7919}.nc", n, 10))
            for n in range(1200)
        ]
        refs = ChunkRefs.from_items(1, items)
        manifest = Manifest(ManifestId(bytes(12)), {NodeId(bytes(8)): (refs,)})
        stored = set()
        for value in (less, more):
            group = icechunk.ManifestVirtualChunkLocationCompressionConfig(**{name: value})
            chosen = icechunk.ManifestConfig(virtual_chunk_location_compression=group)
            follows = Config(manifest=chosen).resolved().location_compression
            assert isinstance(follows, LocationCompression)
            stored.add(V2Codec(compression=follows).encode_manifest(manifest, level=3))
        assert len(stored) == 2

    return probe


def retries() -> None:
    pauses: list[float] = []
    retry = Backoff(world=World(sleep=pauses.append, jitter=lambda: 1.0))
    unreachable = S3Settings(
        "bucket",
        endpoint_url="http://127.0.0.1:1",
        allow_http=True,
        force_path_style=True,
        credentials=static_credentials("a", "b"),
        retry=retry,
    )
    chosen = icechunk.StorageRetriesSettings(4, 30, 70)
    config = Config(storage=icechunk.StorageSettings(retries=chosen))
    with pytest.raises(StorageError):
        icechunk.Repository.open(S3Storage(unreachable), config)
    assert sorted(set(pauses)) == [0.03, 0.06, 0.07]


def conditions(name: str, refused: type) -> Callable[[str], None]:
    def probe(generation: str) -> None:
        for chosen in (True, False):
            storage = Recorded()
            settings = icechunk.StorageSettings(**{name: chosen})
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    repo = filled(storage, Config(storage=settings), spec_version=generation)
                except UnsupportedError:
                    # Some generations cannot do without it, and say so.
                    assert not chosen
                    continue
                repo.create_branch("other", repo.lookup_branch("main"))
                repo.save_config()
                repo.save_config()
            used = {type(condition) for condition in storage.conditions.values()}
            assert (refused in used) is chosen
            assert {Absent, Exactly} - used <= {refused}
            assert Anything in used

    return probe


def parts_of(concurrency: icechunk.StorageConcurrencySettings) -> list[int]:
    """The sizes of the parts in which 1000 bytes of a foreign object are requested."""
    asked: list[int] = []

    class Remote:
        def fetch(self, grant: Any, location: Any, start: int, stop: int, checksum: Any) -> Part:
            asked.append(stop - start)
            return Part(bytes(stop - start), "one")

    prefix = "s3://bucket/"
    container = icechunk.VirtualChunkContainer(prefix, icechunk.s3_store(anonymous=True))
    config = Config(storage=icechunk.StorageSettings(concurrency=concurrency))
    config.set_virtual_chunk_container(container)
    reader = VirtualReader.from_config(config, {prefix: None}, transport=Remote())
    assert len(reader.read(Virtual(f"{prefix}x", 0, 1000))) == 1000
    return asked


def ideal_concurrent_request_size() -> None:
    assert sorted(parts_of(icechunk.StorageConcurrencySettings(10, 400))) == [332, 334, 334]
    assert parts_of(icechunk.StorageConcurrencySettings(10, 1000)) == [1000]


def max_concurrent_requests_for_object() -> None:
    assert len(parts_of(icechunk.StorageConcurrencySettings(2, 100))) == 2
    assert len(parts_of(icechunk.StorageConcurrencySettings(5, 100))) == 5


def virtual_chunk_containers(generation: str) -> None:
    config = Config()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer("s3://bucket/", icechunk.s3_store(anonymous=True))
    )
    for given, declared in ((config, True), (None, False)):
        repo = icechunk.Repository.create(MemoryStorage(), given, spec_version=generation)
        session = repo.readonly_session("main")
        assert session.virtual.is_declared("s3://bucket/file") is declared


def repo_update_retries(generation: str) -> None:
    pauses: list[float] = []
    storage = Recorded()
    filled(storage, spec_version=generation)
    losing = Recorded(lose="repo")
    losing.inner = storage.inner
    chosen = icechunk.RepoUpdateRetryConfig(icechunk.StorageRetriesSettings(10, 30, 70))
    repo = icechunk.Repository.open(
        losing,
        Config(repo_update_retries=chosen),
        world=World(sleep=pauses.append, jitter=lambda: 1.0),
    )
    with pytest.raises(ConflictError, match="10 times"):
        repo.create_tag("v1", repo.lookup_branch("main"))
    assert pauses
    assert set(pauses) == {0.06, 0.07}


def num_updates_per_repo_info_file(generation: str) -> None:
    for chosen in (2, 5):
        given = Config(num_updates_per_repo_info_file=chosen)
        repo = filled(MemoryStorage(), given, spec_version=generation)
        for number in range(8):
            repo.create_tag(f"t{number}", repo.lookup_branch("main"))
        assert len(repo.core.refs.info().updates) == chosen


def attributes_file_threshold_bytes(generation: str) -> None:
    for threshold, files in ((None, 0), (10, 1)):
        given = Config(attributes_file_threshold_bytes=threshold)
        repo = icechunk.Repository.create(MemoryStorage(), given, spec_version=generation)
        session = repo.writable_session("main")
        session.tree.put_document(
            "/", b'{"zarr_format":3,"node_type":"group","attributes":{"long":"xxxxxxxxxxxxxxxx"}}'
        )
        session.commit("attributes")
        assert len(list(repo.storage.scan(layout(repo).attributes))) == files
