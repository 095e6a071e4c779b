"""Repositories of the two oldest generations, whose ids and chunk files get other names."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from support import september
from support.arrays import GROUP
from support.audit import audit
from support.early import tell
from support.maintenance import Clock, clone, keys, live_in, lived_in, write
from support.migrations import bytes_of, portrait

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.format.v1.codec import V1Layout
from airflow_provider_icechunk.engine.migration.plan import Step
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Put
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import StorageError, UnsupportedError
from airflow_provider_icechunk.testing.storages import WrappedStorage

EARLY = ["draft", "alpha1"]
OLD = ["draft", "alpha1", "alpha"]
NEW_FOLDERS = {
    "refs", "repo", "snapshots", "transactions", "manifests", "chunks", "jobs", "migrations",
    "overwritten",
}  # fmt: skip


@pytest.mark.parametrize("to", ["1", "2"])
@pytest.mark.parametrize("generation", OLD)
def test_everything_comes_along(generation, to):
    storage, _ = lived_in(generation)
    if generation != "alpha1":
        repo = Repository.open(storage)
        repo.create_tag("buried", repo.lookup_branch("main"))
        repo.delete_tag("buried")
    before = portrait(storage)
    result = icechunk.migrate(storage, to)
    assert portrait(storage) == before.renamed(result.ids)
    assert (len(result.ids) == len(before.snapshots)) is (generation in EARLY)
    assert len(set(result.ids.values())) == len(result.ids)
    assert (result.chunk_files > 0) is (generation in EARLY)
    assert Repository.open(storage).verify().ok
    if to == "1":
        assert audit(storage) == len(before.snapshots)

    removed = icechunk.migrate(storage, to, remove_old=True)
    assert removed.removed > 0
    assert portrait(storage) == before.renamed(result.ids)
    if generation in EARLY:
        folders = {key.split("/")[0] for key in storage.objects}
        assert folders <= NEW_FOLDERS


@pytest.mark.parametrize("generation", EARLY)
def test_a_story_goes_on_in_the_new_generation(generation):
    storage = MemoryStorage()
    tell(icechunk.Repository.create(storage, spec_version=generation))
    before = portrait(storage)
    diffs = [icechunk.Repository.open(storage).diff(from_tag="v1", to_branch="main")]
    result = icechunk.migrate(storage, "2")
    assert portrait(storage) == before.renamed(result.ids)
    repo = icechunk.Repository.open(storage)
    diffs.append(repo.diff(from_tag="v1", to_branch="main"))
    assert diffs[0] == diffs[1]
    assert diffs[0].updated_chunks == diffs[1].updated_chunks
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="numbers")[:3] = 5
    session.commit("goes on")
    array = zarr.open_array(repo.readonly_session("main").store, path="numbers", mode="r")
    assert (np.asarray(array[:3]) == 5).all()


def test_the_configuration_comes_along():
    config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=7)
    for generation in OLD:
        for to in ("1", "2"):
            storage = MemoryStorage()
            icechunk.Repository.create(storage, config, spec_version=generation)
            icechunk.migrate(storage, to, remove_old=True)
            assert icechunk.Repository.open(storage).config.inline_chunk_threshold_bytes == 7


@pytest.mark.parametrize("generation", OLD)
def test_attributes_in_files_of_their_own_come_along(generation):
    storage = MemoryStorage()
    config = icechunk.RepositoryConfig(attributes_file_threshold_bytes=20)
    repo = icechunk.Repository.create(storage, config, spec_version=generation)
    session = repo.writable_session("main")
    zarr.create_group(session.store, attributes={"long": "x" * 500, "nested": [1, {"a": None}]})
    session.commit("described")
    before = portrait(storage)
    result = icechunk.migrate(storage, "2", remove_old=True)
    assert portrait(storage) == before.renamed(result.ids)
    assert {key.split("/")[0] for key in storage.objects} <= NEW_FOLDERS


class Counting(WrappedStorage):
    """Notes every key that is written."""

    def __init__(self, inner):
        super().__init__(inner)
        self.written: list[str] = []

    def _call(self, name, act):
        if name.startswith("put "):
            self.written.append(name.removeprefix("put "))
        return act()


@pytest.mark.parametrize("generation", EARLY)
def test_what_an_earlier_attempt_copied_is_not_copied_again(generation):
    storage, _ = lived_in(generation)
    half = clone(storage, Clock())
    icechunk.migrate(half, "2")
    chunks = sorted(keys(half, "chunks/"))
    manifests = keys(half, "manifests/")
    half.delete(["repo", chunks[0], *(key for key in half.objects if key.startswith("snapshots/"))])
    counting = Counting(half)
    result = icechunk.migrate(counting, "2")
    assert [key for key in counting.written if key.startswith("chunks/")] == chunks[:1]
    assert not manifests & set(counting.written)
    assert result.chunk_files == len(chunks)
    assert portrait(half) == portrait(storage).renamed(result.ids)


def test_a_dry_run_counts_and_writes_nothing():
    for generation in OLD:
        storage, _ = lived_in(generation)
        before = bytes_of(storage)
        planned = icechunk.migrate(storage, "1", dry_run=True, remove_old=True)
        assert bytes_of(storage) == before
        done = icechunk.migrate(storage, "1", remove_old=True)
        facts, wanted = done.as_dict(), planned.as_dict()
        for fact in ("snapshots", "manifests", "chunk_files", "chunk_bytes", "ids"):
            assert facts[fact] == wanted[fact], (generation, fact)


def test_progress_is_told_step_by_step():
    storage, _ = lived_in("alpha1")
    told: list[icechunk.MigrationProgress] = []
    result = icechunk.migrate(storage, "1", progress=told.append, remove_old=True)
    steps = list(dict.fromkeys(one.step for one in told))
    assert steps == [Step.READING, Step.MANIFESTS, Step.CHUNKS, Step.SNAPSHOTS, Step.REMOVING]
    last = {one.step: one for one in told}
    assert last[Step.SNAPSHOTS].done == last[Step.SNAPSHOTS].total == result.snapshots
    assert last[Step.CHUNKS].done == result.chunk_files
    assert last[Step.CHUNKS].bytes_done == result.chunk_bytes


@pytest.mark.parametrize("folder", ["c/", "m/"])
def test_a_damaged_repository_is_left_alone(folder):
    storage, _ = lived_in("alpha1")
    before = portrait(storage).branches
    storage.delete(sorted(keys(storage, folder)))
    with pytest.raises(StorageError, match="missing"):
        icechunk.migrate(storage, "1")
    assert Repository.open(storage).spec_version == "alpha1"
    assert {name: line[0] for name, line in before.items()} == {
        name: Repository.open(storage).lookup_branch(name) for name in before
    }


def test_ids_that_would_meet_are_refused(monkeypatch: pytest.MonkeyPatch):
    storage, _ = lived_in("alpha1")
    monkeypatch.setattr(
        "airflow_provider_icechunk.engine.migration.identities.fold", lambda _: bytes(12)
    )
    with pytest.raises(UnsupportedError, match="collide"):
        icechunk.migrate(storage, "1")
    assert not keys(storage, V1Layout.snapshots)


@pytest.mark.parametrize("generation", OLD)
def test_references_that_an_abandoned_attempt_left_are_brought_to_date(generation):
    clock = Clock()
    storage, _ = lived_in(generation, clock)
    done = clone(storage, clock)
    icechunk.migrate(done, "1")
    prepared = {k for k in keys(done, "refs/branch.side/") if k.endswith("/ref.json")}
    assert prepared
    for key in prepared:
        storage.put_many([_copied(done, key)])
    storage.put_many([_copied(done, next(iter(prepared)), "refs/branch.long-gone/ref.json")])
    write(Repository.open(storage, world=clock.world()), "side", 9, "later")
    before = portrait(storage)
    result = icechunk.migrate(storage, "1")
    assert portrait(storage) == before.renamed(result.ids)


def _copied(storage: MemoryStorage, key: str, to: str | None = None) -> Put:
    found = storage.get(key)
    assert found is not None
    return Put(to or key, found.data)


@pytest.mark.parametrize("to", ["1", "2"])
def test_what_software_of_september_2024_wrote_moves_up_too(to):
    storage = september.repository()
    before = portrait(storage)
    result = icechunk.migrate(storage, to, remove_old=True)
    assert portrait(storage) == before.renamed(result.ids)
    left = {key for key in storage.objects if key[:2] in ("r/", "s/", "m/", "c/")}
    assert left == {"r/branch:main/notes.txt"}
    write_more(storage)


def write_more(storage: MemoryStorage) -> None:
    """It could only be read before."""
    repo = Repository.open(storage)
    session = repo.writable_session("main")
    session.tree.put_document("/ours", GROUP)
    session.commit("goes on")


def test_a_migration_is_the_same_on_every_kind_of_storage(backend):
    live_in(backend(), "alpha1")
    before = portrait(backend())
    result = icechunk.migrate(backend(), "1")
    assert portrait(backend()) == before.renamed(result.ids)
    assert icechunk.migrate(backend(), "2", remove_old=True).migrated
    assert portrait(backend()) == before.renamed(result.ids)
    assert {item.key.split("/")[0] for item in backend().scan("")} <= NEW_FOLDERS
