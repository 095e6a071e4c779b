"""References of `alpha1`: numbered files and tags beside them, as the specification names them."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from support.early import PARENT, SNAPSHOT, snapshot_of, unsealed

from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, UnsupportedError
from airflow_provider_icechunk.format.config import RepositoryConfig
from airflow_provider_icechunk.format.generations.alpha1.layout import decode_ref
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.repository.ledgers import open_ledger
from airflow_provider_icechunk.repository.ledgers.alpha1 import Alpha1Ledger
from airflow_provider_icechunk.repository.ledgers.base import Behind, Creation, Ledger, Moved, Trust
from airflow_provider_icechunk.repository.repository import Repository
from airflow_provider_icechunk.storage.base import Absent, Anything, Storage
from airflow_provider_icechunk.storage.local import LocalStorage
from airflow_provider_icechunk.storage.memory import MemoryStorage
from airflow_provider_icechunk.testing.storages import every_crash


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path, durable=False)


@pytest.fixture
def ledger(storage: Storage) -> Alpha1Ledger:
    ledger = Alpha1Ledger(storage)
    assert ledger.initialize(snapshot_of(id=SNAPSHOT))
    return ledger


def identity(number: int) -> SnapshotId:
    return SnapshotId(number.to_bytes(16, "big"))


def test_it_is_the_ledger_of_its_generation(storage: Storage) -> None:
    ledger: Ledger = open_ledger(Generation.ALPHA1, storage)
    assert ledger.generation is ledger.codec.generation is Generation.ALPHA1


def test_files_have_the_names_of_the_specification(ledger: Alpha1Ledger) -> None:
    assert ledger.create_tag("v1", SNAPSHOT) is Creation.CREATED
    head = SNAPSHOT
    for number in range(100):
        child = snapshot_of(id=identity(number), parent=head)
        assert ledger.commit("main", head, child) == Moved()
        head = child.id
    keys = {item.key for item in ledger.storage.scan("r/")}
    assert {"r/main/ZZZZZZZZ.json", "r/main/ZZZZZZWV.json", "r/v1.json"} <= keys
    assert Alpha1Ledger(ledger.storage).branch("main") == head


def test_reference_documents_have_their_three_members(ledger: Alpha1Ledger) -> None:
    found = ledger.storage.get("r/main/ZZZZZZZZ.json")
    assert found is not None
    assert unsealed(found.data) == {
        "snapshot": list(SNAPSHOT),
        "timestamp": "2024-09-18T09:00:00.123456Z",
        "properties": {},
    }
    ledger.create_branch("later", SNAPSHOT)
    later = ledger.storage.get("r/later/ZZZZZZZZ.json")
    assert later is not None
    assert json.loads(later.data)["timestamp"] > "2024-09-18T09:00:00.123456Z"


def test_properties_of_a_branch_survive_commits_and_resets(ledger: Alpha1Ledger) -> None:
    first = ledger.storage.get("r/main/ZZZZZZZZ.json")
    assert first is not None
    document = unsealed(first.data)
    document["properties"] = {"owner": "somebody", "nested": {"list": [1, None]}}
    document["added-later"] = True
    data = json.dumps(document).encode()
    ledger.storage.put("r/main/ZZZZZZZZ.json", data, expect=Anything())
    child = snapshot_of(id=PARENT, parent=SNAPSHOT)
    assert ledger.commit("main", SNAPSHOT, child) == Moved()
    assert ledger.reset_branch("main", SNAPSHOT, PARENT) == Moved()
    for number, name in ((PARENT, "ZZZZZZZY"), (SNAPSHOT, "ZZZZZZZX")):
        found = ledger.storage.get(f"r/main/{name}.json")
        assert found is not None
        kept = unsealed(found.data)
        assert kept.pop("timestamp")
        assert kept == {
            "snapshot": list(number),
            "properties": {"owner": "somebody", "nested": {"list": [1, None]}},
            "added-later": True,
        }
    ledger.create_branch("other", SNAPSHOT)
    other = ledger.storage.get("r/other/ZZZZZZZZ.json")
    assert other is not None
    assert unsealed(other.data)["properties"] == {}, "they belong to their branch"


def test_a_repository_is_created_once(ledger: Alpha1Ledger) -> None:
    assert not Alpha1Ledger(ledger.storage).initialize(snapshot_of(id=PARENT))
    assert ledger.branches() == {"main": SNAPSHOT}


def test_branches_and_tags_do_not_take_each_others_names(ledger: Alpha1Ledger) -> None:
    assert ledger.create_branch("x", SNAPSHOT) is Creation.CREATED
    assert ledger.create_branch("x", PARENT) is Creation.EXISTS
    assert ledger.create_tag("x", PARENT) is Creation.CREATED
    assert ledger.create_tag("x", SNAPSHOT) is Creation.EXISTS
    assert ledger.branches() == {"main": SNAPSHOT, "x": SNAPSHOT}
    assert ledger.tags() == {"x": PARENT}
    assert (ledger.branch("x"), ledger.tag("x"), ledger.tag("y")) == (SNAPSHOT, PARENT, None)
    with pytest.raises(InvalidInputError, match=r"\.json"):
        ledger.create_branch("x.json", SNAPSHOT)


def test_tags_are_for_ever(ledger: Alpha1Ledger) -> None:
    ledger.create_tag("v1", SNAPSHOT)
    with pytest.raises(InvalidInputError, match="for ever"):
        ledger.delete_tag("v1")
    assert not ledger.delete_tag("never")
    assert ledger.tag("v1") == SNAPSHOT
    assert ledger.deleted_tags() == []


def test_resetting_and_deleting_a_branch(ledger: Alpha1Ledger) -> None:
    ledger.create_branch("b", SNAPSHOT)
    assert ledger.reset_branch("b", PARENT, SNAPSHOT) == Moved()
    assert ledger.reset_branch("b", SNAPSHOT, SNAPSHOT) == Behind(PARENT)
    assert ledger.reset_branch("none", SNAPSHOT, SNAPSHOT) == Behind(None)
    assert ledger.delete_branch("b")
    assert not ledger.delete_branch("b")
    assert ledger.branch("b") is None


def test_of_many_racing_commits_exactly_one_wins_each_round(ledger: Alpha1Ledger) -> None:
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
            other = Alpha1Ledger(ledger.storage)
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
        assert ledger.branch("main") == winners[0]
        head = winners[0]


def test_a_commit_killed_at_any_call_moves_the_branch_or_does_not() -> None:
    def prepare(storage: Storage) -> None:
        Alpha1Ledger(storage).initialize(snapshot_of(id=SNAPSHOT))

    def commit(storage: Storage) -> None:
        child = snapshot_of(id=PARENT, parent=SNAPSHOT)
        Alpha1Ledger(storage).commit("main", SNAPSHOT, child)

    seen = {Alpha1Ledger(p.storage).branch("main") for p in every_crash(commit, prepare=prepare)}
    assert seen == {SNAPSHOT, PARENT}


def test_damaged_references_are_named(ledger: Alpha1Ledger) -> None:
    ledger.storage.put("r/bad/ZZZZZZZZ.json", b'{"snapshot": [1]}', expect=Absent())
    with pytest.raises(FormatError, match="r/bad/ZZZZZZZZ"):
        ledger.branch("bad")
    with pytest.raises(FormatError, match="snapshot"):
        decode_ref(b"{}", where="x")


def test_it_cannot_do_without_conditional_creates(ledger: Alpha1Ledger) -> None:
    assert ledger.trusting(Trust.NO_UPDATE) is ledger
    with pytest.raises(UnsupportedError):
        ledger.trusting(Trust.NO_CREATE)


def test_the_configuration_is_swapped(ledger: Alpha1Ledger) -> None:
    config = RepositoryConfig(inline_chunk_threshold_bytes=7)
    version = ledger.save_config(config, None)
    assert version is not None
    assert ledger.save_config(config, None) is None
    stored = ledger.config()
    assert stored is not None
    assert (stored.config, stored.version) == (config, version)


def test_foreign_files_among_references_are_passed_over() -> None:
    storage = MemoryStorage()
    repo = Repository.create(storage, spec_version="alpha1")
    for key in ("r/main/notes.txt", "r/readme", "r/folder/x", "r/main/00000000.txt"):
        storage.put(key, b"?", expect=Anything())
    repo = Repository.open(storage)
    assert (repo.list_branches(), repo.list_tags()) == ({"main"}, set())
