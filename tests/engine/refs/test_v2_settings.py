"""What a configuration can choose about generation 2, here and for the official library."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from support import actors
from support.arrays import GROUP, array

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    ETag,
    LastModified,
    Virtual,
)
from airflow_provider_icechunk.engine.storage.base import (
    Anything,
    Expectation,
    Lost,
    PutOutcome,
    Storage,
)
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import ConflictError, FormatError, Kind, UnsupportedError
from airflow_provider_icechunk.testing.storages import WrappedStorage

COUNT = 1500
RETRIES = icechunk.StorageRetriesSettings(3, 1, 2)
COMPRESSION = icechunk.ManifestVirtualChunkLocationCompressionConfig(1000)


def config() -> icechunk.RepositoryConfig:
    return icechunk.RepositoryConfig(
        repo_update_retries=icechunk.RepoUpdateRetryConfig(RETRIES),
        num_updates_per_repo_info_file=3,
        manifest=icechunk.ManifestConfig(
            virtual_chunk_location_compression=(
                icechunk.ManifestVirtualChunkLocationCompressionConfig(
                    1000,
                    dictionary_max_training_samples=50,
                    dictionary_max_size_bytes=1024,
                    compression_level=5,
                )
            )
        ),
    )


def location(number: int) -> str:
    return f"s3://bucket/some/long/prefix/year={1990 + number % 30}/file-{number:06d}.nc"


def references(count: int) -> ChunkRefs:
    checksums = (None, ETag("tag"), LastModified(1_700_000_000))
    return ChunkRefs.from_items(
        1,
        [((n,), Virtual(location(n // 2), n * 10, 100, checksums[n % 3])) for n in range(count)],
    )


def with_locations(
    storage: Storage, count: int, config: icechunk.RepositoryConfig | None
) -> icechunk.Repository:
    repo = icechunk.Repository.create(storage, config, spec_version=2)
    session = repo.writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/v", array([2 * COUNT], [1]))
    session.tree.put_references("/v", references(count))
    session.tree.put_chunk("/v", (count,), b"inline")
    session.commit("virtual")
    return repo


def compression(repo: icechunk.Repository) -> dict:
    (file,) = repo.list_manifest_files(repo.lookup_branch("main"))
    return repo.inspect_manifest(file.id)["compression"]


@pytest.mark.parametrize(
    ("count", "chosen", "compressed"),
    [(COUNT, True, COUNT), (999, True, 0), (COUNT, False, 0)],
    ids=["many", "few", "by default"],
)
def test_locations_are_compressed_when_chosen_and_worth_it(
    count: int, chosen: bool, compressed: int
) -> None:
    storage = MemoryStorage()
    repo = with_locations(storage, count, config() if chosen else None)
    assert compression(repo)["num_compressed_refs"] == compressed
    session = icechunk.Repository.open(storage).readonly_session("main")
    found = session.tree.references(session.tree.array("/v"))
    expected = references(count)
    assert [found[row] for row in range(count)] == [expected[row] for row in range(count)]
    assert len(found) == count + 1


@actors.needs_icechunk2
def test_the_official_library_reads_dictionaries_and_settings(tmp_path: Path) -> None:
    repo = with_locations(icechunk.local_filesystem_storage(tmp_path), COUNT, config())
    repo.save_config()
    ours, worker = actors.local(icechunk), actors.Worker()
    try:
        for action, options in (
            ("locations", {}),
            ("settings", {}),
            ("inspect", {"branch": "main"}),
        ):
            theirs = worker(tmp_path, action, **options)
            mine = ours(tmp_path, action, **options)
            if action == "inspect":
                del mine["snapshot"]["parent_id"]
            assert mine == theirs, action
        assert len(worker(tmp_path, "locations")) == COUNT // 2
        edits = [["attributes", "", {"by": "them"}]]
        worker(tmp_path, "change", branch="main", edits=edits, message="theirs", how="commit")
    finally:
        worker.close()
    again = icechunk.Repository.open(icechunk.local_filesystem_storage(tmp_path))
    assert len(again.readonly_session("main").all_virtual_chunk_locations()) == COUNT // 2


def test_locations_that_differ_too_much_stay_plain() -> None:
    storage = MemoryStorage()
    chosen = icechunk.RepositoryConfig(
        manifest=icechunk.ManifestConfig(
            virtual_chunk_location_compression=(
                icechunk.ManifestVirtualChunkLocationCompressionConfig(1)
            )
        )
    )
    repo = icechunk.Repository.create(storage, chosen, spec_version=2)
    session = repo.writable_session("main")
    session.tree.put_document("/v", array([3], [1]))
    long = Virtual("s3://bucket/" + "x" * 2000, 0, 1)
    session.tree.put_references("/v", ChunkRefs.from_items(1, [((0,), long)]))
    session.commit("one long location")
    assert not compression(repo)["uses_location_compression"]
    session = icechunk.Repository.open(storage).readonly_session("main")
    assert session.tree.chunk("/v", (0,)) == long


def test_damaged_dictionaries_raise_nothing_but_refusals() -> None:
    storage = MemoryStorage()
    repo = with_locations(storage, 1200, config())
    (file,) = repo.list_manifest_files(repo.lookup_branch("main"))
    codec = repo._core.refs.codec
    from airflow_provider_icechunk.engine.format import envelope
    from airflow_provider_icechunk.engine.format.codec import FileType
    from airflow_provider_icechunk.engine.format.ids import ManifestId, decode_base32
    from airflow_provider_icechunk.engine.format.v2.codec import seal

    key, identity = f"manifests/{file.id}", ManifestId(decode_base32(file.id))
    data = storage.objects[key].data
    opened = envelope.unpack(data, where=key, expected=FileType.MANIFEST, limit=1 << 30)
    payload, chance = opened.payload, random.Random(3)
    refused = 0
    for _ in range(300):
        spoilt = bytearray(payload)
        for _ in range(chance.choice([1, 3, 20])):
            spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
        try:
            found = codec.decode_manifest(seal(FileType.MANIFEST, spoilt, 1), identity, where=key)
            for parts in found.arrays.values():
                for refs in parts:
                    refs.locations()
        except (FormatError, UnsupportedError):
            refused += 1
    assert refused > 50
    storage.put(key, data[:-9], expect=Anything())
    session = icechunk.Repository.open(storage).readonly_session("main")
    with pytest.raises(FormatError):
        session.tree.references(session.tree.array("/v"))


def test_chosen_retries_are_all_there_are() -> None:
    class Losing(WrappedStorage):
        tries = 0

        def put(self, key: str, data: bytes, *, expect: Expectation, **rest: object) -> PutOutcome:
            if key != "repo":
                return self.inner.put(key, data, expect=expect, **rest)
            self.tries += 1
            return Lost()

    storage = MemoryStorage()
    icechunk.Repository.create(storage, config(), spec_version=2)
    losing = Losing(storage)
    with pytest.raises(ConflictError, match="3 times") as caught:
        icechunk.Repository.open(losing).set_metadata({"a": 1})
    assert caught.value.kind is Kind.ATTEMPTS_EXHAUSTED
    assert losing.tries == 3
    generous = icechunk.RepositoryConfig(
        repo_update_retries=icechunk.RepoUpdateRetryConfig(
            icechunk.StorageRetriesSettings(max_tries=5)
        )
    )
    losing = Losing(storage)
    with pytest.raises(ConflictError, match="5 times"):
        icechunk.Repository.open(losing, generous).set_metadata({"a": 1})


def test_the_log_is_as_long_as_chosen_and_continues() -> None:
    repo = icechunk.Repository.create(MemoryStorage(), config(), spec_version=2)
    for number in range(7):
        repo.set_metadata({"n": number})
    assert len(repo.inspect_repo_info()["latest_updates"]) == 3
    assert len(list(repo.ops_log())) == 8
