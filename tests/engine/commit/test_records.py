"""Commits say which part of an array they wrote, wherever the writing happened."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_icechunk.engine.commit.records import (
    MOST_BYTES,
    WRITTEN_KEY,
    WrittenRecord,
    read_record,
    to_json,
)
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.tree.boxes import MOST_BOXES, around, joined
from airflow_provider_icechunk.engine.workers.codec import decode_fragment, encode_fragment
from airflow_provider_icechunk.exceptions import InvalidInputError

Spans = tuple[tuple[int, int], ...]


def repository(storage: object | None = None) -> Repository:
    repo = Repository.create(storage or MemoryStorage())
    session = repo.writable_session("main")
    root = zarr.open_group(session.store)
    root.create_array("t", shape=(10, 4), chunks=(5, 4), dtype="f4", fill_value=0)
    root.create_array("other", shape=(10,), chunks=(5,), dtype="f4", fill_value=0)
    session.commit("arrays")
    return repo


def write(session: Session, box: Spans, value: float, *, path: str = "/t") -> None:
    array = zarr.open_array(session.store, path=path.strip("/"), mode="r+")
    with session.recording({path: box}):
        array[tuple(slice(start, stop) for start, stop in box)] = value


def written(repo: Repository) -> object:
    return repo.lookup_snapshot(repo.lookup_branch("main")).metadata.get(WRITTEN_KEY)


def test_a_commit_names_the_regions_that_were_written() -> None:
    repo = repository()
    session = repo.writable_session("main")
    write(session, ((3, 4), (0, 4)), 1)
    write(session, ((4, 6), (0, 4)), 1)
    write(session, ((9, 10), (0, 2)), 1)
    session.commit("days")
    assert written(repo) == {
        "version": 1,
        "arrays": {"/t": [[[3, 6], [0, 4]], [[9, 10], [0, 2]]]},
    }


def test_labels_are_kept_beside_the_regions() -> None:
    repo = repository()
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="t", mode="r+")
    with session.recording({"t": [slice(3, 4), (0, 4)]}, labels={"time": ["2026-01-04"]}):
        array[3] = 1
    session.commit("day")
    kept = written(repo)
    assert kept == {
        "version": 1,
        "arrays": {"/t": [[[3, 4], [0, 4]]]},
        "labels": {"time": ["2026-01-04"]},
    }


def test_ordinary_writes_record_nothing() -> None:
    repo = repository()
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="t", mode="r+")[3] = 1
    session.commit("day")
    assert written(repo) is None


def test_one_write_that_does_not_say_where_it_went_drops_its_array_alone() -> None:
    repo = repository()
    session = repo.writable_session("main")
    write(session, ((3, 4), (0, 4)), 1)
    write(session, ((0, 5),), 1, path="/other")
    zarr.open_array(session.store, path="t", mode="r+")[8] = 1
    session.commit("day")
    assert written(repo) == {"version": 1, "arrays": {"/other": [[[0, 5]]]}}


def test_a_write_beside_the_box_that_was_named_is_not_believed() -> None:
    repo = repository()
    session = repo.writable_session("main")
    array = zarr.open_array(session.store, path="t", mode="r+")
    with session.recording({"/t": ((0, 5), (0, 4))}):
        array[7] = 1
    session.commit("day")
    assert written(repo) is None


def test_metadata_copied_from_another_commit_is_no_record_of_this_one() -> None:
    repo = repository()
    session = repo.writable_session("main")
    write(session, ((3, 4), (0, 4)), 1)
    session.commit("recorded")
    copied = repo.lookup_snapshot(repo.lookup_branch("main")).metadata
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="t", mode="r+")[8] = 1
    session.commit("unrecorded", metadata=dict(copied))
    assert written(repo) is None


def test_a_box_that_is_none_is_refused() -> None:
    session = repository().writable_session("main")
    with (
        pytest.raises(InvalidInputError, match="is not a box"),
        session.recording({"/t": [(3, 1)]}),
    ):
        pass


def test_fragments_of_workers_carry_what_they_recorded() -> None:
    repo = repository()
    session = repo.writable_session("main")
    work = session.work_unit("job")
    fragments = []
    for number, box in enumerate((((0, 2), (0, 4)), ((5, 7), (0, 4)))):
        fork = repo.fork(work)
        write(fork, box, 1 + number)
        fork.tree.changes.add_labels({"time": [str(number)]})
        fragments.append(decode_fragment(encode_fragment(fork.fragment(str(number))), where="test"))
    session.merge_fragments(fragments)
    session.commit("job")
    assert written(repo) == {
        "version": 1,
        "arrays": {"/t": [[[0, 2], [0, 4]], [[5, 7], [0, 4]]]},
        "labels": {"time": ["0", "1"]},
    }


def test_one_worker_that_records_nothing_drops_the_array() -> None:
    repo = repository()
    session = repo.writable_session("main")
    work = session.work_unit("job")
    first, second = repo.fork(work), repo.fork(work)
    write(first, ((0, 2), (0, 4)), 1)
    zarr.open_array(second.store, path="t", mode="r+")[5:7] = 2
    session.merge_fragments([first.fragment("1"), second.fragment("2")])
    session.commit("job")
    assert written(repo) is None


def test_staged_work_keeps_its_record_when_another_process_resumes_it() -> None:
    storage = MemoryStorage()
    repo = repository(storage)
    session = repo.writable_session("main")
    write(session, ((0, 2), (0, 4)), 1)
    work = session.work_unit("job")
    fork = repo.fork(work)
    write(fork, ((2, 3), (0, 4)), 1)
    resumed = Repository.open(storage).resume(work)
    resumed.merge_fragments([fork.fragment("1")])
    resumed.commit("job")
    assert written(repo) == {"version": 1, "arrays": {"/t": [[[0, 3], [0, 4]]]}}


def test_forks_bring_their_records_back_also_through_pickles(tmp_path: object) -> None:
    repo = repository(LocalStorage(str(tmp_path)))
    session = repo.writable_session("main")
    fork, there = session.fork(), session.fork()
    write(fork, ((0, 2), (0, 4)), 1)
    there = pickle.loads(pickle.dumps(there))
    write(there, ((5, 6), (0, 4)), 1)
    session.merge(fork, pickle.loads(pickle.dumps(there)))
    session.commit("forks")
    assert written(repo) == {
        "version": 1,
        "arrays": {"/t": [[[0, 2], [0, 4]], [[5, 6], [0, 4]]]},
    }


spans = st.tuples(st.integers(0, 8), st.integers(1, 4)).map(lambda one: (one[0], one[0] + one[1]))
boxes_2d = st.lists(st.tuples(spans, spans), max_size=12)


@given(boxes_2d)
def test_joining_boxes_changes_no_cell(boxes: list[Spans]) -> None:
    def cells(given: object) -> set[tuple[int, int]]:
        return {(i, j) for (a, b), (c, d) in given for i in range(a, b) for j in range(c, d)}

    assert cells(joined((), boxes)) == cells(boxes)


def test_very_many_boxes_become_the_one_around_them() -> None:
    many = [((2 * i, 2 * i + 1),) for i in range(MOST_BOXES + 1)]
    assert joined((), many) == (around(many),)


def test_a_record_never_takes_more_than_its_share_of_the_metadata() -> None:
    boxes = tuple(((2 * i, 2 * i + 1), (0, 10**9), (0, 10**9)) for i in range(MOST_BOXES))
    arrays = {f"/group/array-{number}": boxes for number in range(2000)}
    kept = to_json(WrittenRecord(arrays, {"time": ("2026-01-01",) * 9000}))
    assert len(json.dumps(kept)) <= MOST_BYTES
    assert kept["arrays"]
    assert all(found == [[[0, 1023], [0, 10**9], [0, 10**9]]] for found in kept["arrays"].values())


@pytest.mark.parametrize(
    "hostile",
    [
        None,
        "text",
        [],
        {"version": 2, "arrays": {}},
        {"version": 1, "arrays": []},
        {"version": 1, "arrays": {}, "labels": 3},
        {"version": 1, "arrays": {str(n): [] for n in range(5000)}},
    ],
)
def test_metadata_of_another_shape_is_no_record(hostile: object) -> None:
    assert read_record({WRITTEN_KEY: hostile}) is None


@pytest.mark.parametrize(
    "boxes",
    [
        "text",
        3,
        [[[0, 1]]] * (MOST_BOXES + 1),
        [[[0, 1]], [[0, 1], [0, 1]]],
        [[[1, 1]]],
        [[[-1, 1]]],
        [[[0, 1.5]]],
        [[[0, True]]],
        [[[0, 1 << 70]]],
        [[[0, 1]] * 300],
        [[[0]]],
        [[0, 1]],
    ],
)
def test_boxes_of_another_shape_are_no_record_of_their_array(boxes: object) -> None:
    kept = read_record({WRITTEN_KEY: {"version": 1, "arrays": {"/t": boxes, "/u": [[[0, 1]]]}}})
    assert kept is not None
    assert kept.arrays == {"/u": (((0, 1),),)}


def test_a_repository_without_records_reads_as_before() -> None:
    repo = repository()
    session = repo.writable_session("main")
    write(session, ((3, 4), (0, 4)), 7)
    session.commit("day")
    values = zarr.open_array(repo.readonly_session("main").store, path="t", mode="r")[:]
    expected = np.zeros((10, 4), "f4")
    expected[3] = 7
    np.testing.assert_array_equal(values, expected)
