"""Forks: what they may change, how they come together, and how sessions travel."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import zarr
from support import trees

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.workers.codec import decode_changes, encode_changes
from airflow_provider_icechunk.exceptions import (
    FormatError,
    FragmentError,
    InvalidInputError,
    SessionError,
)


@pytest.fixture
def repo(tmp_path):
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(tmp_path / "repo"))
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    root.create_array("a", shape=(6,), chunks=(1,), dtype="i4", fill_value=0)
    root.create_group("g")
    session.commit("structure")
    return repo


def write(place, value):
    def act(store):
        zarr.open_array(store, path="a")[place] = value

    return act


def attributes(**given):
    def act(store):
        zarr.open_array(store, path="a").attrs.update(given)

    return act


def group(path, **given):
    def act(store):
        zarr.create_group(store, path=path, attributes=given)

    return act


def array(path, side, place):
    def act(store):
        made = zarr.create_array(
            store, name=path, shape=(side,), chunks=(1,), dtype="i4", fill_value=0
        )
        made[place] = 9

    return act


def delete(path):
    def act(store):
        asyncio.run(store.delete_dir(path))

    return act


def merged(repo, *acts):
    """A session into which one fork for each act was merged."""
    session = repo.writable_session("main")
    forks = [session.fork() for _ in acts]
    for fork, act in zip(forks, acts, strict=True):
        act(fork.store)
    session.merge(*(pickle.loads(pickle.dumps(fork)) for fork in forks))
    return session


def committed(repo, session):
    session.commit("merged")
    return repo.readonly_session("main")


def test_chunks_of_all_forks_are_kept_and_the_last_writer_of_a_chunk_wins(repo):
    session = merged(repo, write(slice(0, 3), 1), write(slice(2, 5), 2))
    assert trees.values(session, "/a").tolist() == [1, 1, 2, 2, 2, 0]
    assert trees.values(committed(repo, session), "/a").tolist() == [1, 1, 2, 2, 2, 0]


def test_forks_may_create_update_and_delete_nodes(repo):
    session = merged(
        repo, array("new", 3, 1), group("h", x=1), attributes(unit="K"), delete("g"), write(0, 5)
    )
    assert session.status().new_arrays == {"/new"}
    after = committed(repo, session)
    assert trees.documents(after).keys() == {"/", "/a", "/h", "/new"}
    assert trees.values(after, "/new").tolist() == [0, 9, 0]
    assert trees.values(after, "/a").tolist() == [5, 0, 0, 0, 0, 0]
    assert trees.documents(after)["/a"]["attributes"] == {"unit": "K"}


def test_equal_creations_become_one_node_with_the_chunks_of_both(repo):
    session = merged(repo, array("new", 3, 0), array("new", 3, 2))
    assert trees.values(committed(repo, session), "/new").tolist() == [9, 0, 9]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (group("n", a=1), group("n", a=2)),
        (array("n", 2, 0), array("n", 3, 0)),
        (group("n"), array("n", 3, 0)),
        (attributes(x=1), attributes(x=2)),
        (delete("a"), write(0, 1)),
        (write(0, 1), delete("a")),
        (delete("a"), attributes(x=1)),
        (attributes(x=1), delete("a")),
        (delete("g"), group("g/x")),
        (group("g/x"), delete("g")),
    ],
)
def test_contradictions_are_refused_and_nothing_is_merged(repo, first, second):
    with pytest.raises(FragmentError, match="cannot be merged"):
        merged(repo, first, second)
    session = repo.writable_session("main")
    forks = [session.fork(), session.fork()]
    first(forks[0].store)
    second(forks[1].store)
    with pytest.raises(FragmentError):
        session.merge(*forks)
    assert not session.has_uncommitted_changes


def test_agreements_are_not_contradictions(repo):
    for act in (delete("a"), attributes(x=1), group("n")):
        merged(repo, act, act)


def test_a_fork_sees_and_keeps_what_its_session_changed_before(repo):
    session = repo.writable_session("main")
    made = zarr.create_array(session.store, name="mine", shape=(4,), chunks=(1,), dtype="i4")
    made[0] = 1
    first = session.fork()
    made[1] = 2
    second = session.fork()
    assert trees.values(first, "/mine").tolist() == [1, 0, 0, 0]
    assert trees.values(second, "/mine").tolist() == [1, 2, 0, 0]
    zarr.open_array(first.store, path="mine")[2] = 3
    zarr.open_array(second.store, path="mine").resize((5,))
    zarr.open_array(second.store, path="mine")[4] = 5
    session.merge(first, second)
    assert trees.values(committed(repo, session), "/mine").tolist() == [1, 2, 3, 0, 5]


def test_unchanged_sessions_stage_nothing_and_equal_forks_stage_once(repo):
    session = repo.writable_session("main")
    assert session.fork().snapshot_id == session.snapshot_id
    zarr.open_array(session.store, path="a")[0] = 1
    assert session.fork().snapshot_id == session.fork().snapshot_id != session.snapshot_id


def test_only_forks_of_this_session_are_merged(repo):
    session, other = repo.writable_session("main"), repo.writable_session("main")
    with pytest.raises(TypeError, match="fork"):
        session.merge(other)
    zarr.open_array(other.store, path="a")[0] = 1
    session.fork()
    with pytest.raises(FragmentError):
        session.merge(other.fork())


def test_forks_cannot_commit(repo):
    fork = repo.writable_session("main").fork()
    for refused in (lambda: fork.commit("x"), lambda: fork.flush("x")):
        with pytest.raises(SessionError, match="fork"):
            refused()


def _work(fork, place):
    zarr.open_array(fork.store, path="a")[place] = np.int32(place + 1)
    return fork


def test_forks_work_in_other_processes(repo):
    session = repo.writable_session("main")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        forks = list(pool.map(_work, [session.fork()] * 3, range(3)))
    session.merge(*forks)
    assert trees.values(committed(repo, session), "/a").tolist() == [1, 2, 3, 0, 0, 0]


def _write_elsewhere(store, path, place):
    zarr.open_array(store, path=path)[place] = 7
    return store.session


def _in_other_processes(store, path):
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        return list(pool.map(_write_elsewhere, [store] * 4, [path] * 4, range(4)))


def test_work_that_stayed_in_other_processes_is_missed_when_forks_are_merged(repo):
    session = repo.writable_session("main")
    fork = session.fork()
    zarr.create_array(fork.store, name="t", shape=(4,), chunks=(1,), dtype="f4", fill_value=0)
    zarr.create_array(fork.store, name="empty", shape=(0,), chunks=(1,), dtype="f4")
    copies = _in_other_processes(fork.store, "t")
    with pytest.warns(
        UserWarning, match=r"none of the 1 merged forks .* any: /t\. .*store\.session"
    ):
        session.merge(fork)
    # What the warning says to do.
    session = repo.writable_session("main")
    session.fork()
    session.merge(*copies)
    assert trees.values(committed(repo, session), "/t").tolist() == [7, 7, 7, 7]


def test_work_is_missed_in_arrays_that_the_session_made_or_a_fork_made_longer(repo):
    session = repo.writable_session("main")
    for name in ("made", "filled"):
        zarr.create_array(session.store, name=name, shape=(2,), chunks=(1,), dtype="i4")
    zarr.open_array(session.store, path="filled")[:] = 1
    forks = [session.fork(), session.fork()]
    zarr.open_array(forks[0].store, path="a").resize((9,))
    with pytest.warns(UserWarning, match=r"none of the 2 merged forks .* any: /a, /made\. "):
        session.merge(*forks)


def test_forks_of_which_one_wrote_or_which_had_nothing_to_write_are_merged_in_silence(repo):
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="made", shape=(2,), chunks=(1,), dtype="i4")
    forks = [session.fork(), session.fork()]
    zarr.open_array(forks[1].store, path="made")[0] = 1
    session.merge(*forks)
    session.merge()
    merged(repo, attributes(x=1), group("n"), delete("g"))


def test_writable_sessions_and_their_stores_do_not_travel(repo):
    session = repo.writable_session("main")
    for thing in (session, session.store):
        with pytest.raises(ValueError, match="fork"):
            pickle.dumps(thing)


def test_readers_travel(repo):
    session = repo.readonly_session("main")
    twin = pickle.loads(pickle.dumps(session))
    assert (twin.snapshot_id, twin.read_only) == (session.snapshot_id, True)
    assert pickle.loads(pickle.dumps(session.store)) == session.store == twin.store
    assert trees.documents(twin) == trees.documents(session)


def test_secrets_do_not_travel():
    repo_keys = {"access_key_id": "key", "secret_access_key": "hunter2"}
    storage = icechunk.s3_storage(bucket="b", prefix="p", region="us-east-1", **repo_keys)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(storage)
    environment = icechunk.s3_storage(bucket="b", prefix="p", region="us-east-1", from_env=True)
    twin = pickle.loads(pickle.dumps(environment))
    assert (twin.location, twin.settings.region) == (environment.location, "us-east-1")


def test_a_storage_in_memory_stays_in_its_process():
    storage = MemoryStorage()
    assert pickle.loads(pickle.dumps(storage)) is storage
    stale = pickle.dumps(MemoryStorage())
    with pytest.raises(InvalidInputError, match="in memory"):
        pickle.loads(stale)


def test_damaged_changes_are_refused(repo):
    session = repo.writable_session("main")
    fork = session.fork()
    for act in (array("new", 3, 0), attributes(x=1), write(1, 4), delete("g")):
        act(fork.store)
    base = fork.tree.base
    data = encode_changes(fork.tree.changes, base)
    decode_changes(data, base, where="here")
    for place in range(len(data)):
        for damaged in (
            data[:place],
            data[:place] + bytes([data[place] ^ 0x15]) + data[place + 1 :],
        ):
            with contextlib.suppress(FormatError):
                decode_changes(damaged, base, where="here")


def test_forks_made_before_changes_were_discarded_stand_on_other_ground(repo):
    session = repo.writable_session("main")
    clean = session.fork()
    write(0, 1)(session.store)
    discarded = session.fork()
    session.discard_changes()
    write(1, 2)(session.store)
    assert trees.values(session.fork(), "/a").tolist() == [0, 2, 0, 0, 0, 0]
    with pytest.raises(FragmentError, match="only forks of this session"):
        session.merge(discarded)
    write(2, 3)(clean.store)
    session.merge(clean)
    assert trees.values(session, "/a").tolist() == [0, 2, 3, 0, 0, 0]


def test_chunks_cut_off_before_work_was_handed_out_stay_gone_after_a_resume(repo):
    session = repo.writable_session("main")
    write(slice(0, 6), 7)(session.store)
    session.commit("full")
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a").resize((2,))
    resumed = repo.resume(session.work_unit("job").to_json())
    zarr.open_array(resumed.store, path="a").resize((6,))
    assert trees.values(resumed, "/a").tolist() == [7, 7, 0, 0, 0, 0]
    assert trees.values(committed(repo, resumed), "/a").tolist() == [7, 7, 0, 0, 0, 0]


def test_forks_merge_into_each_other_before_they_are_merged_back() -> None:
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(6,), chunks=(2,), dtype="i4")
    session.commit("array")
    session = repo.writable_session("main")
    forks = [session.fork() for _ in range(3)]
    for number, fork in enumerate(forks):
        zarr.open_array(fork.store, path="a")[2 * number : 2 * number + 2] = number + 1
    forks[0].merge(forks[1], forks[2])
    session.merge(forks[0])
    session.commit("merged")
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert array[:].tolist() == [1, 1, 2, 2, 3, 3]


def test_forks_and_rearranging_sessions_are_sessions(repo):
    assert isinstance(repo.writable_session("main").fork(), icechunk.Session)
    assert isinstance(repo.rearrange_session("main"), icechunk.Session)


def test_a_rearranging_session_travels_once_it_has_committed(repo):
    session = repo.rearrange_session("main")
    session.move("/g", "/h")
    with pytest.raises(ValueError, match="a writable session does not leave its process"):
        pickle.dumps(session)
    session.commit("moved")
    reader = pickle.loads(pickle.dumps(session))
    assert (reader.read_only, reader.snapshot_id) == (True, session.snapshot_id)
    assert "h" in zarr.open_group(reader.store, mode="r")
