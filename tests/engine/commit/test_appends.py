"""Runs that append to one dimension at the same time come one behind the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zarr
from support.appending import Model, Run, based, landed, modelled, run, seen, stations
from support.recording import RecordingStorage

from airflow_provider_icechunk.engine.commit.merge import MergeSolver, solver_for
from airflow_provider_icechunk.engine.datasets.declare import ensure
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import InvalidInputError

A, B, C = [Run((11,), 1)], [Run((12, 13), 2)], [Run((14,), 3)]
REPLACE = MergeSolver(on_existing_label="replace")


def begun(repo: Repository, transaction: list[Run], steps: int = 1) -> Session:
    session = run(repo.writable_session("main"), stations(steps), transaction)
    assert session is not None
    return session


@pytest.mark.parametrize(
    ("steps", "shards"), [(1, False), (3, False), (2, True)], ids=["moved", "rewritten", "shards"]
)
def test_appends_at_one_place_come_in_the_order_of_their_commits(steps: int, shards: bool) -> None:
    for order in ((A, B, C), (C, B, A)):
        assert landed(stations(steps, shards=shards), *order) == modelled(*order)


def test_first_runs_that_all_make_the_axis_come_one_behind_the_other() -> None:
    repo = Repository.create(MemoryStorage())
    for session in [begun(repo, one, steps=3) for one in (A, B, C)]:
        session.commit("first", rebase_with=MergeSolver())
    model = Model()
    for one in (A, B, C):
        model.run(one)
    assert seen(repo.readonly_session("main")) == model.seen()


def test_a_label_that_others_appended_meanwhile_is_never_there_twice() -> None:
    both, same = [Run((11, 12), 2)], [Run((11,), 1)]
    assert landed(stations(3), A, same) == modelled(A)
    assert landed(stations(3), A, both, solver=REPLACE) == modelled(A, both)
    text = landed(stations(3), A, both)
    assert isinstance(text, str)
    assert "both appended station 11" in text
    assert 'on_existing_label="replace"' in text


@pytest.mark.parametrize("steps", [1, 3], ids=["moved", "rewritten"])
def test_without_a_record_cells_of_a_label_that_were_never_written_replace_nothing(
    steps: int,
) -> None:
    whole, other = [Run((0,), 0)], [Run((1,), 0)]
    part = Run((0,), 0, levels=(0, 1))
    recorded, unrecorded = [part], [replace(part, is_recorded=False)]
    text = landed(stations(steps), whole, other, unrecorded, solver=REPLACE)
    assert isinstance(text, str), "the levels that the last run left alone got the fill value"
    assert "where this session records which cells it writes" in text
    in_order = (whole, other, recorded)
    assert landed(stations(steps), *in_order, solver=REPLACE) == modelled(*in_order)


def test_variables_of_one_label_can_come_from_two_runs() -> None:
    first, second = [Run((11,), 1, ("x",))], [Run((11,), 2, ("y", "z"))]
    assert landed(stations(3), first, second) == modelled(first, second)
    assert landed(stations(3), second, first) == modelled(first, second)


def test_an_append_beside_labels_that_were_there_moves_alone() -> None:
    mixed = [Run((3, 11), 4)]
    assert landed(stations(2), B, mixed) == modelled(B, mixed)


def test_where_whole_chunks_move_nothing_is_stored_again() -> None:
    storage = RecordingStorage(MemoryStorage())
    repo = Repository.create(storage)
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="x", shape=(2, 64, 64), chunks=(2, 64, 64), dtype="f8",
        compressors=None, dimension_names=("t", "y", "x"),
    )  # fmt: skip
    session.commit("array")
    late, early = (repo.writable_session("main") for _ in range(2))
    for number, one in enumerate((late, early), 1):
        array = zarr.open_array(one.store, path="x", mode="r+")
        array.resize((6, 64, 64))
        array[2:] = number
        one.tree.appended("/t", 2, 6)
    early.commit("early")
    late.tree.writer.flush()
    storage.puts.clear()
    late.commit("late", rebase_with=MergeSolver())
    assert storage.folders["chunks"] == 0
    found = zarr.open_array(repo.readonly_session("main").store, path="x", mode="r")
    assert found[:, 0, 0].tolist() == [0, 0, 2, 2, 2, 2, 1, 1, 1, 1]


def test_a_lost_race_places_the_append_again_behind_the_next() -> None:
    repo = based(stations(2))
    late = begun(repo, A, steps=2)
    for other in (B, C):
        begun(repo, other, steps=2).commit("other")
        late.rebase(MergeSolver())
    late.commit("late")
    assert seen(repo.readonly_session("main")) == modelled(B, C, A)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_again_goes_to_the_place_of_its_earlier_commit(is_first: bool) -> None:
    repo = based(stations(2))
    again, earlier, other = (begun(repo, one, steps=2) for one in ([Run((11,), 9)], A, B))
    for session in (earlier, other) if is_first else (other, earlier):
        work = {"work": "mine" if session is earlier else "other"}
        session.commit("done", metadata=work, rebase_with=MergeSolver())
    again.commit("again", rebase_with=MergeSolver(), replaces=lambda one: one.get("work") == "mine")
    order = (A, B) if is_first else (B, A)
    assert seen(repo.readonly_session("main")) == modelled(*order, [Run((11,), 9)])


def test_what_workers_wrote_moves_with_the_append_of_their_session() -> None:
    repo = based(stations(2))
    dataset = stations(2)
    session = repo.writable_session("main")
    placed = ensure(session, dataset, dataset.place({"station": [11]}))
    work = session.work_unit("job")
    fork = repo.fork(work)
    for name in "xyz":
        box = placed.region(dataset.variables[name].dims)
        with fork.recording({name: box}):
            array = zarr.open_array(fork.store, path=name, mode="r+")
            array[tuple(slice(*span) for span in box)] = 1
    begun(repo, B, steps=2).commit("other")
    resumed = repo.resume(work)
    resumed.merge_fragments([fork.fragment("1")])
    resumed.commit("job", rebase_with=MergeSolver())
    assert seen(repo.readonly_session("main")) == modelled(B, A)


def test_arrays_that_others_added_meanwhile_keep_up_with_the_axis() -> None:
    repo = based(stations())
    late = begun(repo, A)
    other = begun(repo, B)
    zarr.create_array(
        other.store, name="more", shape=(5,), dtype="i2", dimension_names=("station",)
    )
    other.commit("another variable")
    late.commit("late", rebase_with=MergeSolver())
    store = repo.readonly_session("main").store
    assert zarr.open_array(store, path="more").shape == (6,)


def test_the_official_library_reads_appends_that_were_moved(tmp_path: Any) -> None:
    icechunk = pytest.importorskip("icechunk")
    repo = based(stations(2), LocalStorage(str(tmp_path)))
    for session in [begun(repo, one, steps=2) for one in (A, B, C)]:
        session.commit("side by side", rebase_with=MergeSolver())
    official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))
    store = official.readonly_session("main").store
    for name, (shape, values) in modelled(A, B, C).items():
        array = zarr.open_array(store, path=name, mode="r")
        assert array.shape == shape
        assert np.asarray(array[...]).tolist() == values


def test_what_to_do_about_existing_labels_is_chosen_by_name() -> None:
    with pytest.raises(InvalidInputError, match="'fail' or 'replace'"):
        MergeSolver(on_existing_label="both")  # type: ignore[arg-type]
    assert solver_for("merge", "replace") == REPLACE
    assert solver_for("merge") == MergeSolver(on_existing_label="fail")
