"""The state of `draft`: one document, swapped as a whole, in which every change counts once."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.arrays import GROUP, array, contents, put
from support.early import PARENT, SNAPSHOT, snapshot_of, unsealed

from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.legacy.draft.state import MESSAGE, decode_state
from airflow_provider_icechunk.engine.refs import open_refs
from airflow_provider_icechunk.engine.refs.base import Behind, Creation, Moved, Refs, Trust
from airflow_provider_icechunk.engine.refs.legacy.draft import DraftRefs
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Anything, Storage
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from airflow_provider_icechunk.testing.storages import every_crash

TEXT = str(UUID(bytes=SNAPSHOT))


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path, durable=False)


@pytest.fixture
def refs(storage: Storage) -> DraftRefs:
    refs = DraftRefs(storage)
    assert refs.initialize(snapshot_of(id=SNAPSHOT))
    return refs


def identity(number: int) -> SnapshotId:
    return SnapshotId(number.to_bytes(16, "big"))


def state(storage: Storage) -> dict[str, Any]:
    found = storage.get("state.json")
    assert found is not None
    value: dict[str, Any] = unsealed(found.data)
    return value


def save(storage: Storage, value: dict[str, Any]) -> None:
    storage.put("state.json", json.dumps(value).encode(), expect=Anything())


def test_they_are_the_refs_of_their_generation(storage: Storage) -> None:
    refs: Refs = open_refs(Generation.DRAFT, storage)
    assert refs.generation is refs.codec.generation is Generation.DRAFT


def test_the_document_has_the_members_of_the_sketch(refs: DraftRefs) -> None:
    value = state(refs.storage)
    UUID(value.pop("id"))
    assert value == {
        "generation": 1,
        "snapshots": [
            {
                "snapshot-id": TEXT,
                "parent-snapshot-id": None,
                "timestamp-ms": 1_726_650_000_123,
                "structure-file": f"{SNAPSHOT.hex()}.parquet",
                "properties": {
                    "author": "someone",
                    "nested": {"list": [1, None, "x"]},
                    "commit-message": "a message",
                },
            }
        ],
        "refs": {"main": {"name": "main", "snapshot-id": TEXT, "type": "branch"}},
    }


def test_every_change_counts_once(refs: DraftRefs) -> None:
    assert refs.commit("main", SNAPSHOT, snapshot_of(id=PARENT, parent=SNAPSHOT)) == Moved()
    refs.create_branch("b", SNAPSHOT)
    refs.create_tag("t", PARENT)
    refs.reset_branch("b", PARENT, SNAPSHOT)
    refs.delete_branch("b")
    refs.delete_tag("t")
    assert state(refs.storage)["generation"] == 7
    assert refs.commit("main", SNAPSHOT, snapshot_of(id=identity(1))) == Behind(PARENT)
    assert refs.create_branch("main", PARENT) is Creation.EXISTS
    assert not refs.delete_branch("b")
    assert state(refs.storage)["generation"] == 7, "what changes nothing writes nothing"
    listed = [one["snapshot-id"] for one in state(refs.storage)["snapshots"]]
    assert listed == [TEXT, str(UUID(bytes=PARENT))]


def test_a_commit_that_landed_is_recognised(refs: DraftRefs) -> None:
    child = snapshot_of(id=PARENT, parent=SNAPSHOT)
    assert refs.commit("main", SNAPSHOT, child) == Moved()
    assert refs.commit("main", SNAPSHOT, child) == Moved()
    assert state(refs.storage)["generation"] == 2


def test_branches_and_tags_share_one_list_of_names(refs: DraftRefs) -> None:
    assert refs.create_tag("v1", SNAPSHOT) is Creation.CREATED
    assert refs.create_tag("v1", SNAPSHOT) is Creation.EXISTS
    with pytest.raises(AlreadyExistsError, match="share one list"):
        refs.create_branch("v1", SNAPSHOT)
    with pytest.raises(AlreadyExistsError, match="share one list"):
        refs.create_tag("main", SNAPSHOT)
    assert (refs.tags(), refs.branches()) == ({"v1": SNAPSHOT}, {"main": SNAPSHOT})


def test_the_name_of_a_deleted_tag_is_never_free_again(refs: DraftRefs) -> None:
    refs.create_tag("v1", SNAPSHOT)
    assert refs.delete_tag("v1")
    assert not refs.delete_tag("v1")
    fresh = DraftRefs(refs.storage)
    assert fresh.create_tag("v1", SNAPSHOT) is Creation.WAS_DELETED
    assert (fresh.tag("v1"), fresh.deleted_tags()) == (None, ["v1"])


def test_a_reference_to_a_snapshot_that_is_nowhere_is_refused(refs: DraftRefs) -> None:
    with pytest.raises(NotFoundError):
        refs.create_branch("b", PARENT)
    assert state(refs.storage)["generation"] == 1


def test_of_many_racing_commits_on_one_branch_one_wins_and_other_branches_are_kept(
    refs: DraftRefs,
) -> None:
    names = ["main", "main", "x", "y"]
    for name in ("x", "y"):
        refs.create_branch(name, SNAPSHOT)
    heads = dict.fromkeys(names, SNAPSHOT)
    for round_ in range(8):
        barrier = threading.Barrier(len(names))
        outcomes: dict[int, Moved | Behind] = {}

        def run(
            number: int,
            name: str,
            own: SnapshotId,
            base: SnapshotId,
            barrier: threading.Barrier = barrier,
            outcomes: dict[int, Moved | Behind] = outcomes,
        ) -> None:
            other = DraftRefs(refs.storage)
            barrier.wait()
            outcomes[number] = other.commit(name, base, snapshot_of(id=own, parent=base))

        ids = [identity(100 * round_ + n + 1) for n in range(len(names))]
        threads = [
            threading.Thread(target=run, args=(number, name, ids[number], heads[name]))
            for number, name in enumerate(names)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        won = [number for number in range(len(names)) if outcomes[number] == Moved()]
        assert won[1:] == [2, 3], "one on main, and both others"
        heads |= {names[number]: ids[number] for number in won}
        assert refs.branches() == heads
    assert state(refs.storage)["generation"] == 1 + 2 + 8 * 3


def test_a_change_killed_at_any_call_is_whole_or_absent() -> None:
    def prepare(storage: Storage) -> None:
        DraftRefs(storage).initialize(snapshot_of(id=SNAPSHOT))

    def commit(storage: Storage) -> None:
        child = snapshot_of(id=PARENT, parent=SNAPSHOT)
        DraftRefs(storage).commit("main", SNAPSHOT, child)

    seen = set()
    for point in every_crash(commit, prepare=prepare):
        found = point.storage.get("state.json")
        assert found is not None
        document = decode_state(found.data)
        head = document.named("branch")["main"]
        assert head in document.snapshots
        seen.add((head, document.generation))
    assert seen == {(SNAPSHOT, 1), (PARENT, 2)}


def test_a_state_that_went_back_is_not_built_upon(refs: DraftRefs) -> None:
    old = state(refs.storage)
    refs.create_tag("v1", SNAPSHOT)
    save(refs.storage, old)
    with pytest.raises(StorageError, match="went back from generation 2 to 1"):
        refs.create_tag("v2", SNAPSHOT)
    assert DraftRefs(refs.storage).tags() == {}, "opened again, the copy is what there is"


def test_a_state_without_references_has_its_newest_snapshot_as_main(refs: DraftRefs) -> None:
    refs.commit("main", SNAPSHOT, snapshot_of(id=PARENT, parent=SNAPSHOT, flushed_at=10**16))
    value = state(refs.storage)
    del value["refs"]
    save(refs.storage, value)
    assert refs.branches() == {"main": PARENT}
    refs.create_tag("v1", SNAPSHOT)
    assert state(refs.storage)["refs"].keys() == {"main", "v1"}
    assert refs.branch("main") == PARENT


def test_references_may_be_a_list_and_unknown_members_are_kept(refs: DraftRefs) -> None:
    value = state(refs.storage)
    value["refs"] = list(value["refs"].values())
    value["comment"] = {"kept": True}
    save(refs.storage, value)
    refs.create_tag("v1", SNAPSHOT)
    assert refs.branches() == {"main": SNAPSHOT}
    assert state(refs.storage)["comment"] == {"kept": True}


def test_it_cannot_do_without_conditional_writes(refs: DraftRefs) -> None:
    for trust in (Trust.NO_CREATE, Trust.NO_UPDATE, Trust.NOTHING):
        with pytest.raises(UnsupportedError):
            refs.trusting(trust)


def test_the_configuration_is_swapped(refs: DraftRefs) -> None:
    config = RepositoryConfig(inline_chunk_threshold_bytes=7)
    assert refs.save_config(config, None) is not None
    assert refs.save_config(config, None) is None
    stored = refs.config()
    assert stored is not None
    assert stored.config == config


# through the engine


@pytest.fixture
def repo(storage: Storage) -> Repository:
    repo = Repository.create(storage, spec_version="draft")
    session = repo.writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([64], [1]))
    put(session, "/a", (3,), b"three")
    session.commit("start", metadata={"k": "v"})
    return repo


def test_a_structure_file_may_have_any_name(repo: Repository) -> None:
    head = repo.lookup_branch("main")
    value = state(repo.storage)
    entry = next(one for one in value["snapshots"] if one["snapshot-id"] == head)
    found = repo.storage.get(f"s/{entry['structure-file']}")
    assert found is not None
    repo.storage.delete([f"s/{entry['structure-file']}"])
    repo.storage.put("s/structure of today", found.data, expect=Anything())
    entry["structure-file"] = "structure of today"
    save(repo.storage, value | {"generation": value["generation"] + 1})
    opened = Repository.open(repo.storage)
    assert opened.lookup_snapshot(head).message == "start"
    assert contents(opened.readonly_session("main"))["/a[3]"] == b"three"


def test_snapshots_are_named_by_random_uuids(repo: Repository) -> None:
    ids = [UUID(info.id) for info in repo.ancestry(branch="main")]
    assert [one.version for one in ids] == [4, 4]


def test_what_does_not_fit_is_refused_before_anything_is_stored(repo: Repository) -> None:
    before = {item.key for item in repo.storage.scan("")}
    session = repo.writable_session("main")
    for shape, chunks in (([65_536], [1]), ([65_535], [65_536])):
        with pytest.raises(InvalidInputError, match="65535"):
            session.tree.put_document("/wide", array(shape, chunks))
    with pytest.raises(InvalidInputError, match="65535"):
        session.tree.put_document("/a", array([70_000], [1]))
    assert not session.has_uncommitted_changes
    session.tree.put_document("/wide", array([65_535], [1]))
    put(session, "/wide", (65_534,), b"last")
    assert {item.key for item in repo.storage.scan("")} == before
    session.commit("fits")
    seen = contents(Repository.open(repo.storage).readonly_session("main"))
    assert seen["/wide[65534]"] == b"last"


def test_the_name_of_the_message_is_taken(repo: Repository) -> None:
    session = repo.writable_session("main")
    put(session, "/a", (0,), b"x")
    head = repo.lookup_branch("main")
    with pytest.raises(InvalidInputError, match=MESSAGE):
        session.commit("no", metadata={MESSAGE: "mine"})
    assert repo.lookup_branch("main") == head


def test_nodes_run_out(repo: Repository) -> None:
    from airflow_provider_icechunk.engine.tree.changes import ChangeSet, NodeIds, number_id

    ids = NodeIds(Generation.DRAFT, lambda size: bytes(size))
    base = repo.readonly_session("main").tree.base
    changes = ChangeSet()
    first = ids.new(base, changes)
    assert ids.new(base, changes) != first
    ids._taken |= {number_id(number) for number in range(1 << 16)}
    with pytest.raises(InvalidInputError, match="65536 nodes"):
        ids.new(base, changes)
