"""The two oldest generations behave like generation `1` for whoever works through Zarr."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import zarr
from support.arrays import GROUP, array, contents, put
from support.early import tell

from airflow_provider_icechunk import api
from airflow_provider_icechunk.engine.commit.conflicts import ConflictDetector
from airflow_provider_icechunk.engine.format.chunk_refs import Virtual
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.workers.codec import decode_fragment, encode_fragment
from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit
from airflow_provider_icechunk.engine.world import World
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    RebaseFailedError,
)

EARLY = ["alpha1", "draft"]


@pytest.mark.parametrize("generation", EARLY)
def test_the_whole_story_reads_as_in_generation_1(generation: str) -> None:
    told = tell(api.Repository.create(MemoryStorage(), spec_version=generation))
    assert told == tell(api.Repository.create(MemoryStorage(), spec_version="1"))


@pytest.mark.parametrize("generation", EARLY)
def test_the_story_works_on_a_file_system_and_after_opening_again(
    generation: str, tmp_path: Path
) -> None:
    tell(api.Repository.create(LocalStorage(tmp_path, durable=False), spec_version=generation))
    repo = api.Repository.open(LocalStorage(tmp_path))
    assert repo.spec_version == generation
    values = zarr.open_array(repo.readonly_session("main").store, path="numbers", mode="r")[...]
    assert np.asarray(values)[0].tolist() == [-1.0] * 6
    old = zarr.open_array(repo.readonly_session(tag="v1").store, path="numbers", mode="r")
    assert old.shape == (20, 6)


@pytest.fixture(params=EARLY)
def storage(request: pytest.FixtureRequest) -> MemoryStorage:
    storage = MemoryStorage()
    session = Repository.create(storage, spec_version=request.param).writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([64], [1]))
    put(session, "/a", (0,), b"large" * 200)
    put(session, "/a", (1,), b"small")
    session.commit("start")
    return storage


def test_a_snapshot_of_alpha1_says_when_its_session_began() -> None:
    moments = [datetime(2030, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4, 5)]
    current = {"day": 0}
    world = World(now=lambda: moments[current["day"]])
    storage = MemoryStorage(clock=world.now)
    repo = Repository.create(storage, spec_version="alpha1", world=world)
    current["day"] = 1
    session = repo.writable_session("main")
    current["day"] = 2
    session.tree.put_document("/", GROUP)
    current["day"] = 3
    head = session.commit("took two days")
    document = json.loads(storage.objects[f"s/{head}.json"].data)
    assert document["started_at"] == "2030-01-02T00:00:00Z"
    assert document["metadata"]["written_at"] == "2030-01-04T00:00:00Z"
    current["day"] = 4
    second = repo.writable_session("main")
    second.tree.put_document("/a", GROUP)
    kept = second.commit("one more")
    Repository.open(storage, world=world).expire_snapshots(moments[4])
    document = json.loads(storage.objects[f"s/{head}.json"].data)
    assert document["started_at"] == "2030-01-02T00:00:00Z", "expiring rewrites it"
    rewritten = json.loads(storage.objects[f"s/{kept}.json"].data)
    assert rewritten["short_term_parents"] == 1, "it was rewritten"
    assert rewritten["started_at"] == "2030-01-05T00:00:00Z"


def test_ids_are_found_by_the_text_they_are_shown_as(storage: MemoryStorage) -> None:
    repo = Repository.open(storage)
    head = repo.lookup_branch("main")
    assert repo.lookup_snapshot(head).id == head
    assert repo.readonly_session(snapshot_id=head).snapshot_id == head
    assert json.loads(repo.inspect_snapshot(head))["id"] == head
    with pytest.raises(InvalidInputError):
        repo.lookup_snapshot("VY76P925PRY57WFEK410")
    missing = head[:-2] + ("00" if not head.endswith("00") else "0G")
    with pytest.raises(NotFoundError, match=missing):
        repo.lookup_snapshot(missing)


def test_two_writers_of_one_chunk_collide_without_any_log(storage: MemoryStorage) -> None:
    repo = Repository.open(storage)
    ours = repo.writable_session("main")
    theirs = Repository.open(storage).writable_session("main")
    put(ours, "/a", (5,), b"ours")
    put(theirs, "/a", (5,), b"theirs")
    theirs.commit("theirs")
    with pytest.raises(ConflictError) as lost:
        ours.commit("ours")
    assert lost.value.actual_parent == repo.lookup_branch("main")
    with pytest.raises(RebaseFailedError) as caught:
        ours.rebase(ConflictDetector())
    assert caught.value.conflicts[0].conflicted_chunks == [[5]]


def test_a_log_is_derived_from_what_is_stored(storage: MemoryStorage) -> None:
    repo = Repository.open(storage)
    base = repo.lookup_branch("main")
    session = repo.writable_session("main")
    put(session, "/a", (2,), b"new" * 300)
    put(session, "/a", (1,), b"small")
    session.tree.erase("/a", [(0,)])
    session.tree.put_document("/b", array([4], [2]))
    put(session, "/b", (1,), b"bb")
    session.commit("changes")
    diff = Repository.open(storage).diff(from_snapshot_id=base, to_branch="main")
    assert diff.new_arrays == {"/b"}
    assert diff.updated_arrays == set()
    assert diff.updated_chunks == {"/a": [[0], [2]], "/b": [[1]]}, "equal bytes are no change"


def test_documents_that_only_look_different_are_no_change(storage: MemoryStorage) -> None:
    repo = Repository.open(storage)
    session = repo.writable_session("main")
    session.tree.put_document("/a", array([64], [1], note="kept"))
    session.commit("ours")
    other = Repository.open(storage).writable_session("main")
    put(other, "/a", (9,), b"9")
    other.commit("theirs")
    diff = repo.diff(
        from_snapshot_id=repo.lookup_snapshot(repo.lookup_branch("main")).parent_id,
        to_branch="main",
    )
    assert diff.updated_arrays == set()
    assert diff.updated_chunks == {"/a": [[9]]}


def test_numbers_of_nodes_that_clash_are_changed_by_a_rebase(storage: MemoryStorage) -> None:
    repo = Repository.open(storage)
    one, two = repo.writable_session("main"), repo.writable_session("main")
    for session, path in ((one, "/x"), (two, "/y")):
        session.tree.node_ids._entropy = lambda size: bytes(size - 1) + b"\x05"
        session.tree.put_document(path, array([2], [1]))
        put(session, path, (0,), path.encode())
    assert one.tree.array("/x").id == two.tree.array("/y").id
    one.commit("one")
    two.commit("two", rebase_with=ConflictDetector())
    session = Repository.open(storage).readonly_session("main")
    seen = contents(session)
    assert (seen["/x[0]"], seen["/y[0]"]) == (b"/x", b"/y")
    assert session.tree.array("/x").id != session.tree.array("/y").id


def test_numbers_of_nodes_that_clash_are_changed_when_forks_are_merged(
    storage: MemoryStorage,
) -> None:
    session = api.Repository.open(storage).writable_session("main")
    forks = [session.fork() for _ in range(2)]
    for name, fork in zip("xy", forks, strict=True):
        fork.tree.node_ids._entropy = lambda size: bytes(size - 1) + b"\x05"
        zarr.create_array(fork.store, name=name, shape=(2,), chunks=(1,), dtype="u1")[:] = ord(name)
    assert forks[0].tree.array("/x").id == forks[1].tree.array("/y").id
    session.merge(*forks)
    session.commit("merged")
    store = api.Repository.open(storage).readonly_session("main").store
    for name in "xy":
        values = np.asarray(zarr.open_array(store, path=name, mode="r")[...])
        assert values.tolist() == [ord(name)] * 2


def test_workers_hand_back_fragments(storage: MemoryStorage) -> None:
    repo = api.Repository.open(storage)
    session = repo.writable_session("main")
    session.tree.put_document("/late", array([8], [1]))
    work = WorkUnit.from_json(session.work_unit("job").to_json())
    worker = Repository.open(storage).readonly_session(
        snapshot_id=repo._core.format_id(work.staged)
    )
    from airflow_provider_icechunk.engine.sessions.fork import ForkSession

    fork = ForkSession(worker._core, worker.tree.base, work)
    put(fork, "/late", (3,), b"from afar" * 100)
    put(fork, "/late", (4,), b"near")
    data = encode_fragment(fork.fragment("w1"))
    assert session.merge_fragments([decode_fragment(data, where="w1")]) == 2
    session.commit("merged")
    seen = contents(Repository.open(storage).readonly_session("main"))
    assert seen["/late[3]"] == b"from afar" * 100
    assert seen["/late[4]"] == b"near"


def test_a_session_continues_from_its_work_unit(storage: MemoryStorage) -> None:
    first = Repository.open(storage).writable_session("main")
    first.tree.put_document("/late", array([8], [1]))
    put(first, "/late", (1,), b"before")
    first.tree.erase("/a", [(0,)])
    work = first.work_unit("job").to_json()
    session = Repository.open(storage).writable_session("main")
    session.resume(WorkUnit.from_json(work))
    session.commit("resumed")
    seen = contents(Repository.open(storage).readonly_session("main"))
    assert seen["/late[1]"] == b"before"
    assert "/a[0]" not in seen


def test_a_flushed_snapshot_can_become_a_branch(storage: MemoryStorage) -> None:
    repo = Repository.open(storage)
    session = repo.writable_session("main")
    put(session, "/a", (7,), b"aside")
    flushed = session.flush("aside")
    repo = Repository.open(storage)
    repo.create_branch("flushed", flushed)
    assert [info.message for info in repo.ancestry(branch="flushed")][:2] == ["aside", "start"]
    assert contents(repo.readonly_session("flushed"))["/a[7]"] == b"aside"


def test_checksums_are_refused_when_they_are_given(storage: MemoryStorage) -> None:
    from airflow_provider_icechunk.engine.format.chunk_refs import ETag

    session = Repository.open(storage).writable_session("main")
    with pytest.raises(InvalidInputError, match="checksum"):
        session.tree.put_payload("/a", (3,), Virtual("s3://b/k", 0, 4, ETag("e")))
    session.tree.put_payload("/a", (3,), Virtual("s3://b/k", 8, 4))
    session.commit("virtual")
    again = Repository.open(storage).readonly_session("main")
    assert again.tree.chunk("/a", (3,)) == Virtual("s3://b/k", 8, 4)


def test_manifests_are_rewritten(storage: MemoryStorage) -> None:
    repo = Repository.open(storage)
    before = contents(repo.readonly_session("main"))
    rewritten = repo.rewrite_manifests("tidy", branch="main")
    assert repo.lookup_branch("main") == rewritten
    repo = Repository.open(storage)
    assert contents(repo.readonly_session("main")) == before
    parent = repo.lookup_snapshot(rewritten).parent_id
    assert repo.diff(from_snapshot_id=parent, to_branch="main").is_empty()
