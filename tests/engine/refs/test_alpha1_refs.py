"""References of `alpha1`: numbered files and tags beside them, as the specification names them."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from support.early import PARENT, SNAPSHOT, snapshot_of, unsealed

from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.legacy.alpha1.layout import decode_ref
from airflow_provider_icechunk.engine.refs import open_refs
from airflow_provider_icechunk.engine.refs.base import Behind, Creation, Moved, Refs, Trust
from airflow_provider_icechunk.engine.refs.legacy.alpha1 import Alpha1Refs
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Absent, Anything, Storage
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, UnsupportedError
from airflow_provider_icechunk.testing.storages import every_crash


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path, durable=False)


@pytest.fixture
def refs(storage: Storage) -> Alpha1Refs:
    refs = Alpha1Refs(storage)
    assert refs.initialize(snapshot_of(id=SNAPSHOT))
    return refs


def identity(number: int) -> SnapshotId:
    return SnapshotId(number.to_bytes(16, "big"))


def test_they_are_the_refs_of_their_generation(storage: Storage) -> None:
    refs: Refs = open_refs(Generation.ALPHA1, storage)
    assert refs.generation is refs.codec.generation is Generation.ALPHA1


def test_files_have_the_names_of_the_specification(refs: Alpha1Refs) -> None:
    assert refs.create_tag("v1", SNAPSHOT) is Creation.CREATED
    head = SNAPSHOT
    for number in range(100):
        child = snapshot_of(id=identity(number), parent=head)
        assert refs.commit("main", head, child) == Moved()
        head = child.id
    keys = {item.key for item in refs.storage.scan("r/")}
    assert {"r/main/ZZZZZZZZ.json", "r/main/ZZZZZZWV.json", "r/v1.json"} <= keys
    assert Alpha1Refs(refs.storage).branch("main") == head


def test_reference_documents_have_their_three_members(refs: Alpha1Refs) -> None:
    found = refs.storage.get("r/main/ZZZZZZZZ.json")
    assert found is not None
    assert unsealed(found.data) == {
        "snapshot": list(SNAPSHOT),
        "timestamp": "2024-09-18T09:00:00.123456Z",
        "properties": {},
    }
    refs.create_branch("later", SNAPSHOT)
    later = refs.storage.get("r/later/ZZZZZZZZ.json")
    assert later is not None
    assert json.loads(later.data)["timestamp"] > "2024-09-18T09:00:00.123456Z"


def test_properties_of_a_branch_survive_commits_and_resets(refs: Alpha1Refs) -> None:
    first = refs.storage.get("r/main/ZZZZZZZZ.json")
    assert first is not None
    document = unsealed(first.data)
    document["properties"] = {"owner": "somebody", "nested": {"list": [1, None]}}
    document["added-later"] = True
    data = json.dumps(document).encode()
    refs.storage.put("r/main/ZZZZZZZZ.json", data, expect=Anything())
    child = snapshot_of(id=PARENT, parent=SNAPSHOT)
    assert refs.commit("main", SNAPSHOT, child) == Moved()
    assert refs.reset_branch("main", SNAPSHOT, PARENT) == Moved()
    for number, name in ((PARENT, "ZZZZZZZY"), (SNAPSHOT, "ZZZZZZZX")):
        found = refs.storage.get(f"r/main/{name}.json")
        assert found is not None
        kept = unsealed(found.data)
        assert kept.pop("timestamp")
        assert kept == {
            "snapshot": list(number),
            "properties": {"owner": "somebody", "nested": {"list": [1, None]}},
            "added-later": True,
        }
    refs.create_branch("other", SNAPSHOT)
    other = refs.storage.get("r/other/ZZZZZZZZ.json")
    assert other is not None
    assert unsealed(other.data)["properties"] == {}, "they belong to their branch"


def test_a_repository_is_created_once(refs: Alpha1Refs) -> None:
    assert not Alpha1Refs(refs.storage).initialize(snapshot_of(id=PARENT))
    assert refs.branches() == {"main": SNAPSHOT}


def test_branches_and_tags_do_not_take_each_others_names(refs: Alpha1Refs) -> None:
    assert refs.create_branch("x", SNAPSHOT) is Creation.CREATED
    assert refs.create_branch("x", PARENT) is Creation.EXISTS
    assert refs.create_tag("x", PARENT) is Creation.CREATED
    assert refs.create_tag("x", SNAPSHOT) is Creation.EXISTS
    assert refs.branches() == {"main": SNAPSHOT, "x": SNAPSHOT}
    assert refs.tags() == {"x": PARENT}
    assert (refs.branch("x"), refs.tag("x"), refs.tag("y")) == (SNAPSHOT, PARENT, None)
    with pytest.raises(InvalidInputError, match=r"\.json"):
        refs.create_branch("x.json", SNAPSHOT)


def test_tags_are_immutable(refs: Alpha1Refs) -> None:
    refs.storage.put(refs.layout.snapshot(SNAPSHOT), b"{}", expect=Absent())
    refs.create_tag("v1", SNAPSHOT)
    with pytest.raises(InvalidInputError, match="immutable"):
        refs.delete_tag("v1")
    assert not refs.delete_tag("never")
    assert refs.tag("v1") == SNAPSHOT
    assert refs.deleted_tags() == []


def test_a_tag_whose_snapshot_is_gone_can_be_deleted_and_created_again(refs: Alpha1Refs) -> None:
    refs.create_tag("v1", SNAPSHOT)
    assert refs.delete_tag("v1")
    assert refs.tag("v1") is None
    assert refs.create_tag("v1", PARENT) is Creation.CREATED


def test_resetting_and_deleting_a_branch(refs: Alpha1Refs) -> None:
    refs.create_branch("b", SNAPSHOT)
    assert refs.reset_branch("b", PARENT, SNAPSHOT) == Moved()
    assert refs.reset_branch("b", SNAPSHOT, SNAPSHOT) == Behind(PARENT)
    assert refs.reset_branch("none", SNAPSHOT, SNAPSHOT) == Behind(None)
    assert refs.delete_branch("b")
    assert not refs.delete_branch("b")
    assert refs.branch("b") is None


def test_of_many_racing_commits_exactly_one_wins_each_round(refs: Alpha1Refs) -> None:
    head = SNAPSHOT
    for round_ in range(10):
        barrier = threading.Barrier(4)
        outcomes: dict[SnapshotId, Moved | Behind] = {}

        def run(
            own: SnapshotId,
            base: SnapshotId,
            barrier: threading.Barrier = barrier,
            outcomes: dict[SnapshotId, Moved | Behind] = outcomes,
        ) -> None:
            other = Alpha1Refs(refs.storage)
            barrier.wait()
            outcomes[own] = other.commit("main", base, snapshot_of(id=own, parent=base))

        ids = [identity(100 * round_ + n) for n in range(4)]
        threads = [threading.Thread(target=run, args=(own, head)) for own in ids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [own for own, outcome in outcomes.items() if outcome == Moved()]
        assert len(winners) == 1
        assert refs.branch("main") == winners[0]
        head = winners[0]


def test_a_commit_killed_at_any_call_moves_the_branch_or_does_not() -> None:
    def prepare(storage: Storage) -> None:
        Alpha1Refs(storage).initialize(snapshot_of(id=SNAPSHOT))

    def commit(storage: Storage) -> None:
        child = snapshot_of(id=PARENT, parent=SNAPSHOT)
        Alpha1Refs(storage).commit("main", SNAPSHOT, child)

    seen = {Alpha1Refs(p.storage).branch("main") for p in every_crash(commit, prepare=prepare)}
    assert seen == {SNAPSHOT, PARENT}


def test_damaged_references_are_named(refs: Alpha1Refs) -> None:
    refs.storage.put("r/bad/ZZZZZZZZ.json", b'{"snapshot": [1]}', expect=Absent())
    with pytest.raises(FormatError, match="r/bad/ZZZZZZZZ"):
        refs.branch("bad")
    with pytest.raises(FormatError, match="snapshot"):
        decode_ref(b"{}", where="x")


def test_it_cannot_do_without_conditional_creates(refs: Alpha1Refs) -> None:
    assert refs.trusting(Trust.NO_UPDATE).branches() == refs.branches()
    with pytest.raises(UnsupportedError):
        refs.trusting(Trust.NO_CREATE)


def test_the_configuration_is_swapped(refs: Alpha1Refs) -> None:
    config = RepositoryConfig(inline_chunk_threshold_bytes=7)
    version = refs.save_config(config, None)
    assert version is not None
    assert refs.save_config(config, None) is None
    stored = refs.config()
    assert stored is not None
    assert (stored.config, stored.version) == (config, version)


def test_foreign_files_beside_references_are_passed_over() -> None:
    storage = MemoryStorage()
    repo = Repository.create(storage, spec_version="alpha1")
    for key in ("r/main/notes.txt", "r/readme", "r/main/00000000.txt"):
        storage.put(key, b"?", expect=Anything())
    repo = Repository.open(storage)
    assert (repo.list_branches(), repo.list_tags()) == ({"main"}, set())
