"""The life of a repository on every kind of storage."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import zarr
from support import trees
from support.audit import audit
from support.maintenance import GENERATIONS

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
)

Backend = Callable[[], Storage]


def write(session, path, data, **options):
    zarr.open_group(session.store, mode="a").create_array(path, data=data, **options)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_repository_lives(backend: Backend, generation: str) -> None:
    assert not icechunk.Repository.exists(backend())
    with pytest.raises(NotFoundError):
        icechunk.Repository.open(backend())
    repo = icechunk.Repository.create(backend(), spec_version=generation)
    with pytest.raises(AlreadyExistsError):
        icechunk.Repository.create(backend())
    session = repo.writable_session("main")
    data = np.arange(40_000, dtype="f8").reshape(200, 200)
    write(session, "big", data, chunks=(200, 100), compressors=None)
    write(session, "packed", data[:40, :40], chunks=(10, 10), compressors=None)
    write(session, "small", np.arange(7), chunks=(2,))
    first = session.commit("one", {"n": 1})
    repo.create_tag("v1", first)
    repo.create_branch("dev", first)

    again = icechunk.Repository.open(backend())
    assert again.spec_version == generation
    session = again.writable_session("dev")
    zarr.open_array(session.store, path="small")[0] = 99
    zarr.open_array(session.store, path="packed").resize((20, 40))
    second = session.commit("two")

    third = icechunk.Repository.open(backend())
    assert third.list_branches() == {"main", "dev"}
    assert [info.id for info in third.ancestry(branch="dev")][:2] == [second, first]
    old, new = third.readonly_session(tag="v1"), third.readonly_session("dev")
    assert (trees.values(old, "/big") == data).all()
    assert (trees.values(old, "/packed") == data[:40, :40]).all()
    assert (trees.values(new, "/packed") == data[:20, :40]).all()
    assert trees.values(new, "/small").tolist() == [99, 1, 2, 3, 4, 5, 6]
    diff = third.diff(from_tag="v1", to_branch="dev")
    assert (diff.updated_arrays, diff.updated_chunks["/small"]) == ({"/packed"}, [[0]])
    third.delete_branch("dev")
    if generation == "alpha1":
        with pytest.raises(InvalidInputError, match="immutable"):
            third.delete_tag("v1")
    else:
        third.delete_tag("v1")
    with pytest.raises(AlreadyExistsError):
        third.create_tag("v1", first)
    third.reset_branch("main", second, from_snapshot_id=first)
    assert icechunk.Repository.open(backend()).lookup_branch("main") == second
    if generation == "1":
        assert audit(backend()) == 3


def test_the_configuration_is_stored_and_guarded(backend: Backend) -> None:
    config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=7)
    icechunk.Repository.create(backend(), config)
    one, two = icechunk.Repository.open(backend()), icechunk.Repository.open(backend())
    assert one.config.inline_chunk_threshold_bytes == 7
    changed = one.reopen(icechunk.RepositoryConfig(inline_chunk_threshold_bytes=9))
    changed.save_config()
    with pytest.raises(ConflictError):
        two.save_config()
    assert icechunk.Repository.fetch_config(backend()).inline_chunk_threshold_bytes == 9


@pytest.mark.parametrize("generation", GENERATIONS)
def test_racing_writers_all_get_in_and_lose_nothing(backend: Backend, generation: str) -> None:
    writers = 4
    repo = icechunk.Repository.create(backend(), spec_version=generation)
    session = repo.writable_session("main")
    write(session, "x", np.zeros((writers, 3), "i4"), chunks=(1, 3), compressors=None)
    session.commit("start")
    failures = []
    barrier = threading.Barrier(writers)

    def work(number: int) -> None:
        try:
            mine = icechunk.Repository.open(backend()).writable_session("main")
            zarr.open_array(mine.store, path="x")[number] = number + 1
            barrier.wait()
            mine.commit(f"row {number}", rebase_with=icechunk.ConflictDetector())
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    head = icechunk.Repository.open(backend())
    expected = np.repeat(np.arange(1, writers + 1), 3).reshape(writers, 3)
    assert (trees.values(head.readonly_session("main"), "/x") == expected).all()
    messages = [info.message for info in head.ancestry(branch="main")]
    assert sorted(messages[:writers]) == [f"row {number}" for number in range(writers)]


def test_a_lost_race_without_a_solver_changes_nothing(backend: Backend) -> None:
    repo = icechunk.Repository.create(backend())
    session = repo.writable_session("main")
    zarr.group(session.store)
    session.commit("root")
    sessions = [repo.writable_session("main") for _ in range(2)]
    for number, session in enumerate(sessions):
        zarr.group(session.store, path=f"g{number}")
    winner = sessions[0].commit("first")
    with pytest.raises(ConflictError) as lost:
        sessions[1].commit("second")
    assert lost.value.actual_parent == winner == repo.lookup_branch("main")
    assert sessions[1].has_uncommitted_changes
    sessions[1].rebase(icechunk.ConflictDetector())
    sessions[1].commit("second")
    assert trees.documents(repo.readonly_session("main")).keys() == {"/", "/g0", "/g1"}


def test_work_is_handed_out_and_taken_back(backend: Backend) -> None:
    repo = icechunk.Repository.create(backend())
    session = repo.writable_session("main")
    write(session, "x", np.zeros((4, 200)), chunks=(1, 200), compressors=None)
    unit = session.work_unit("job").to_json()
    fragments = []
    for number in range(4):
        fork = icechunk.Repository.open(backend()).fork(unit)
        zarr.open_array(fork.store, path="x")[number] = number + 1
        fragments.append(icechunk.encode_fragment(fork.fragment(str(number))))
    resumed = icechunk.Repository.open(backend()).resume(unit)
    resumed.merge_fragments(
        [icechunk.decode_fragment(data, where="a worker") for data in fragments]
    )
    resumed.commit("together")
    values = trees.values(repo.readonly_session("main"), "/x")
    assert values[:, 0].tolist() == [1, 2, 3, 4]
