"""Sizes add up, and rewriting manifests changes how references are spread but no value."""

from __future__ import annotations

import json

import pytest
from support.maintenance import (
    GENERATIONS,
    Clock,
    chunk,
    clone,
    every_pause,
    everything,
    layout_of,
    lived_in,
    write,
)

from airflow_provider_icechunk.engine.format.chunk_refs import ETag, Virtual
from airflow_provider_icechunk.engine.format.config.model import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
)
from airflow_provider_icechunk.engine.maintenance.measure import ChunkStorageStats, Size
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.exceptions import NotFoundError

FIRST = len(chunk("first 0"))


@pytest.mark.parametrize("generation", GENERATIONS)
def test_sizes_of_versions_arrays_and_files(generation: str) -> None:
    storage, ids = lived_in(generation)
    repo = Repository.open(storage)
    measured = repo.measure()
    main = Size(
        native_chunks=4,
        native_bytes=FIRST + sum(len(chunk(text)) for text in ("second", "third", "fourth")),
        inline_chunks=1,
        inline_bytes=6,
    )
    assert measured.branches["main"] == main
    assert measured.snapshots[ids["fourth"]] == main
    assert measured.snapshots[ids["first"]] == Size(4, 4 * FIRST, 1, 6)
    assert measured.tags["v1"] == measured.snapshots[ids["second"]]
    assert measured.arrays["main"]["/b"] == Size(inline_chunks=1, inline_bytes=6)
    assert measured.arrays["main"]["/a"].native_chunks == 4
    assert len(measured.snapshots) == 6
    files = measured.files[layout_of(storage).chunks.rstrip("/")]
    assert (files.count, files.unreachable_count) == (12, 4)
    assert files.bytes - files.unreachable_bytes == repo.chunk_storage_stats().native_bytes
    json.dumps(measured.as_dict())


def test_every_stored_byte_is_counted_once() -> None:
    clock = Clock()
    storage, _ = lived_in("1", clock)
    repo = Repository.open(storage, world=clock.world())
    before = repo.chunk_storage_stats()
    session = repo.writable_session("main")
    for place, (name, offset) in enumerate([("a", 0), ("a", 0), ("a", 10), ("b", 0)]):
        virtual = Virtual(f"s3://bucket/{name}", offset, 10, ETag("x"))
        session.tree.put_payload("/b", (place,), virtual)
    session.commit("virtual")
    after = repo.chunk_storage_stats()
    assert after == ChunkStorageStats(before.native_bytes, 30, before.inlined_bytes)
    assert after.total_bytes() == after.non_virtual_bytes() + 30
    assert repo.measure().arrays["main"]["/b"] == Size(virtual_chunks=4, virtual_bytes=40)


def test_an_empty_repository_measures_nothing() -> None:
    from airflow_provider_icechunk.engine.storage.memory import MemoryStorage

    repo = Repository.create(MemoryStorage())
    assert repo.chunk_storage_stats() == ChunkStorageStats()
    assert repo.measure().branches == {"main": Size()}


def split_by(count: int) -> RepositoryConfig:
    splitting = ManifestSplittingConfig.from_dict(
        {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): count}}
    )
    return RepositoryConfig(manifest=ManifestConfig(splitting=splitting))


def references(repo: Repository, snapshot_id: str) -> list[int]:
    files = repo.list_manifest_files(snapshot_id)
    return sorted(repo.inspect_manifest(file.id)["total_chunk_refs"] for file in files)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_rewriting_spreads_references_by_the_rules_in_force(generation: str) -> None:
    clock = Clock()
    storage, _ = lived_in(generation, clock)
    before = everything(storage)
    repo = Repository.open(storage, split_by(2), world=clock.world())
    repo.set_default_commit_metadata({"by": "test"})
    identity = repo.rewrite_manifests("split", branch="main", metadata={"why": "size"})
    assert repo.lookup_branch("main") == identity
    info = repo.lookup_snapshot(identity)
    assert info.message == "split"
    assert (info.metadata["by"], info.metadata["why"]) == ("test", "size")
    assert "split_sizes" in info.metadata["splitting_config"]
    assert references(repo, identity) == [1, 2, 2]
    assert everything(storage) == before
    assert repo.verify().ok
    one = Repository.open(storage, world=clock.world())
    assert references(one, one.rewrite_manifests("join", branch="main")) == [1, 4]


def test_rewriting_an_unknown_branch_is_refused() -> None:
    clock = Clock()
    storage, _ = lived_in("1", clock)
    with pytest.raises(NotFoundError, match="nowhere"):
        Repository.open(storage, world=clock.world()).rewrite_manifests("x", branch="nowhere")


def test_rewriting_goes_over_commits_that_land_meanwhile() -> None:
    clock = Clock()
    storage, _ = lived_in("1", clock)

    def rewrite(inner: Storage) -> None:
        repo = Repository.open(inner, split_by(2), world=clock.world())
        repo.rewrite_manifests("split", branch="main")

    def commit(inner: Storage) -> None:
        write(Repository.open(inner, world=clock.world()), "main", 9, "meanwhile")

    for name, left in every_pause(lambda: clone(storage, clock), rewrite, commit):
        repo = Repository.open(left)
        seen = [info.message for info in repo.ancestry(branch="main")][:2]
        assert set(seen) == {"split", "meanwhile"}, name
        assert everything(left)["branch main"]["/a[9]"] == chunk("meanwhile"), name
        assert repo.verify().ok, name
