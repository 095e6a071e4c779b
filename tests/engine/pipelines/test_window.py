"""A rolling window: labels go from the front, everything else keeps its place and its values."""

import warnings
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr

from airflow_provider_icechunk.api import (
    MergeSolver,
    Repository,
    coverage,
    drop_labels,
    in_memory_storage,
    local_filesystem_storage,
    revert,
)
from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.engine.datasets.declare import ensure
from airflow_provider_icechunk.engine.pipelines.publish import publish
from airflow_provider_icechunk.engine.pipelines.reruns import Attempt
from airflow_provider_icechunk.engine.pipelines.transaction import CommitOptions
from airflow_provider_icechunk.engine.storage.observed import ObservedStorage
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    RebaseFailedError,
)

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")


def weather(days: int = 1, **changes: Any) -> IcechunkDataset:
    values: dict[str, Any] = {
        "dims": {"time": Growing(start="2026-01-01", every="1D"), "x": 4},
        "variables": {
            "t2m": Variable("float32", ("time", "x"), chunks=(days, 2), fill_value=-1.0),
            "turned": Variable("int16", ("x", "time"), chunks=(4, 1)),
            "mask": Variable("bool", ("x",)),
        },
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return IcechunkDataset("weather", **(values | changes))


@pytest.fixture
def repository() -> Repository:
    return Repository.create(in_memory_storage())


def label(day: int) -> str:
    return str(np.datetime64("2026-01-01") + (day - 1))


def start_run(repository: Repository, dataset: IcechunkDataset, day: int, value: int) -> Any:
    session = repository.writable_session("main")
    placed = ensure(session, dataset, dataset.place({"time": label(day)}))
    for name in ("t2m", "turned"):
        region = placed.region(dataset.variables[name].dims)
        array = zarr.open_array(session.store, path=name, mode="r+")
        with session.recording({name: region}):
            array[tuple(slice(*span) for span in region)] = value
    return session


def run(repository: Repository, dataset: IcechunkDataset, *days: int) -> None:
    for day in days:
        start_run(repository, dataset, day, day).commit(f"day {day}", rebase_with=MergeSolver())


def stored(repository: Repository) -> xr.Dataset:
    return xr.open_zarr(repository.readonly_session("main").store, consolidated=False).load()


def days_of(repository: Repository) -> dict[str, float]:
    found = stored(repository)
    labels = found["time"].values.astype("M8[D]").astype(str)
    assert (found["turned"].values == found["turned"].values[0]).all()
    written = found["turned"].values[0].tolist()
    t2m = found["t2m"].values[:, 0].tolist()
    assert [0 if value == -1 else value for value in t2m] == written
    return dict(zip(labels, written, strict=True))


@pytest.mark.parametrize("days", [1, 3])
def test_the_front_goes_and_every_other_day_keeps_its_value(
    repository: Repository, days: int
) -> None:
    dataset = weather(days)
    run(repository, dataset, 1, 2, 3, 5, 8, 10)
    plan, identity = drop_labels(repository, dataset, before=label(5))
    assert identity == repository.lookup_branch("main")
    assert (plan.labels, plan.dropped, plan.first) == (4, (label(1), label(4)), label(5))
    wanted = {label(day): day if day in (5, 8, 10) else 0 for day in range(5, 11)}
    assert days_of(repository) == wanted
    # What comes later, and again, finds its place; so does what comes before the end.
    run(repository, dataset, 12, 6, 8)
    wanted |= {label(6): 6, label(11): 0, label(12): 12}
    assert days_of(repository) == wanted
    # Once more, on top of the first time.
    drop_labels(repository, dataset, keep=3)
    assert days_of(repository) == {label(10): 10, label(11): 0, label(12): 12}
    run(repository, dataset, 13)
    assert list(days_of(repository)) == [label(day) for day in (10, 11, 12, 13)]


def test_a_run_for_a_label_that_was_dropped_is_told_so(repository: Repository) -> None:
    dataset = weather()
    run(repository, dataset, 1, 2, 3)
    drop_labels(repository, dataset, before=label(3))
    with pytest.raises(InvalidInputError, match=r"before 2026-01-03 were dropped.*2026-01-02"):
        run(repository, dataset, 2)
    with pytest.raises(InvalidInputError, match="before 2026-01-03 were dropped"):
        coverage(repository, dataset, at={"time": label(1)})
    moved = weather(dims={"time": Growing(start=label(3), every="1D"), "x": 4})
    with pytest.raises(AlreadyExistsError, match="`start` stays what it was when labels are"):
        run(repository, moved, 4)


def test_an_aligned_cut_reads_and_writes_no_chunk(tmp_path: Path) -> None:
    storage = ObservedStorage(local_filesystem_storage(tmp_path / "r"))
    repository = Repository.create(storage)
    dataset = weather(
        variables={"t2m": Variable("float32", ("time", "x"), chunks=(3, 4))},
        dims={"time": Growing(start="2026-01-01", every="1D", coordinate_chunk=3), "x": 4096},
    )
    session = repository.writable_session("main")
    placed = ensure(
        session, dataset, dataset.place({"time": {"from": label(1), "until": label(13)}})
    )
    values = np.random.default_rng(1).random((12, 4096), np.float32)
    zarr.open_array(session.store, path="t2m", mode="r+")[:] = values
    assert placed.regions == {"time": (0, 12)}
    session.commit("first")
    chunks = {one.key for one in storage.scan("chunks/")}
    plan, _ = drop_labels(repository, dataset, before=label(7))
    assert {cut.path: (cut.moved, cut.rewritten) for cut in plan.arrays} == {
        "/t2m": (2 * 1024, 0),
        "/time": (2, 0),
    }
    assert {one.key for one in storage.scan("chunks/")} == chunks
    assert np.array_equal(stored(repository)["t2m"].values, values[6:])


def test_a_dry_run_says_what_would_go_and_changes_nothing(repository: Repository) -> None:
    dataset = weather(3)
    run(repository, dataset, *range(1, 9))
    head = repository.lookup_branch("main")
    plan, identity = drop_labels(repository, dataset, keep=4, dry_run=True)
    assert (identity, repository.lookup_branch("main")) == (None, head)
    assert plan.to_json() == {
        "dim": "time",
        "labels": 4,
        "dropped": [label(1), label(4)],
        "first": label(5),
        "arrays": {
            "/t2m": {"shape": [4, 4], "dropped_chunks": 2, "moved_chunks": 0,
                     "rewritten_chunks": 4, "rewritten_bytes": 4 * 24},
            "/time": {"shape": [4], "dropped_chunks": 0, "moved_chunks": 0,
                      "rewritten_chunks": 1, "rewritten_bytes": 8192},
            "/turned": {"shape": [4, 4], "dropped_chunks": 4, "moved_chunks": 4,
                        "rewritten_chunks": 0, "rewritten_bytes": 0},
        },
    }  # fmt: skip
    whole, _ = drop_labels(repository, dataset, keep=4, whole_chunks=True)
    assert (whole.labels, whole.first) == (3, label(4))
    assert list(days_of(repository)) == [label(day) for day in range(4, 9)]
    assert drop_labels(repository, dataset, before=label(1))[1] is None
    with pytest.raises(InvalidInputError, match="nothing would be left of 'time'"):
        drop_labels(repository, dataset, before="2027-01-01")


def test_a_run_that_began_before_the_cut_never_lands_at_a_wrong_place(
    repository: Repository,
) -> None:
    dataset = weather()
    run(repository, dataset, 1, 2, 3, 4, 6)
    early = start_run(repository, dataset, 5, 5)
    later = start_run(repository, dataset, 9, 9)
    drop_labels(repository, dataset, before=label(3))
    for session in (early, later):
        with pytest.raises((ConflictError, RebaseFailedError)):
            session.commit("late", rebase_with=MergeSolver())
    run(repository, dataset, 5, 9)
    assert days_of(repository) == {
        label(day): day if day in (3, 4, 5, 6, 9) else 0 for day in range(3, 10)
    }


def test_a_cut_that_meets_another_commit_is_made_again_on_top(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = weather()
    run(repository, dataset, 1, 2, 3, 4)
    from airflow_provider_icechunk.engine.pipelines import window

    apply, meanwhile = window.apply_drop, [7, 5]

    def and_then(*arguments: Any) -> None:
        apply(*arguments)
        if meanwhile:
            run(repository, dataset, meanwhile.pop())

    monkeypatch.setattr(window, "apply_drop", and_then)
    drop_labels(repository, dataset, before=label(3))
    assert days_of(repository) == {label(3): 3, label(4): 4, label(5): 5, label(6): 0, label(7): 7}


@pytest.mark.parametrize("days", [1, 3])
def test_coverage_knows_the_days_that_are_left(repository: Repository, days: int) -> None:
    dataset = weather(days)
    run(repository, dataset, 1, 2, 4, 6, 7, 9)
    drop_labels(repository, dataset, before=label(3))
    run(repository, dataset, 10)
    drop_labels(repository, dataset, before=label(4))
    found = coverage(repository, dataset)
    assert found.missing == (label(5), label(8))
    assert found.present == ((label(4), label(4)), (label(6), label(7)), (label(9), label(10)))
    revert(repository, repository.lookup_branch("main"))
    assert coverage(repository, dataset).missing == (label(3), label(5), label(8))
    assert next(iter(days_of(repository))) == label(3)


def test_coverage_counts_from_the_front_that_a_commit_had_whatever_is_left_of_the_history(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = weather(3)
    run(repository, dataset, 1, 2, 4, 6)
    drop_labels(repository, dataset, before=label(3))
    run(repository, dataset, 7)
    # As if the commit of the cut had expired, and with it what it says about places.
    monkeypatch.setattr(
        "airflow_provider_icechunk.engine.datasets.coverage.read_drops", lambda _: {}
    )
    found = coverage(repository, dataset)
    assert found.present == ((label(4), label(4)), (label(6), label(7)))
    assert found.missing == (label(3), label(5))


def test_months_and_labels_without_steps_are_cut_as_well(repository: Repository) -> None:
    months = weather(
        dims={"time": Growing(start="2026-01-01", every="1M"), "x": 1},
        variables={"a": Variable("int32", ("time", "x"))},
    )
    irregular = weather(
        dims={"time": Growing(by="labels"), "x": 1},
        variables={"a": Variable("int32", ("time", "x"))},
        group="irregular",
    )

    def write(dataset: IcechunkDataset, at: str, value: int) -> None:
        session = repository.writable_session("main")
        placed = ensure(session, dataset, dataset.place({"time": at}))
        array = zarr.open_array(session.store, path=dataset.path("a"), mode="r+")
        array[slice(*placed.regions["time"])] = value
        session.commit(at)

    for dataset in (months, irregular):
        for month in (1, 2, 3):
            write(dataset, f"2026-0{month}-01", month)
        drop_labels(repository, dataset, before="2026-02-01")
        write(dataset, "2026-04-01", 4)
        store = repository.readonly_session("main").store
        found = xr.open_zarr(store, group=dataset.group or None, consolidated=False)
        assert found["time"].values.astype("M8[M]").astype(str).tolist() == [
            "2026-02", "2026-03", "2026-04",
        ]  # fmt: skip
        assert found["a"].values[:, 0].tolist() == [2, 3, 4]
    with pytest.raises(NotFoundError, match="2026-02-02T00:00:00 is not a label"):
        drop_labels(repository, irregular, before="2026-02-02")


def test_a_cut_that_is_published_on_top_of_others_tells_coverage_by_how_much_places_moved(
    repository: Repository,
) -> None:
    dataset = weather(
        dims={"time": Growing(by="labels", dtype="int64"), "x": 1},
        variables={name: Variable("int32", ("time", "x"), chunks=(3, 1)) for name in "ab"},
    )
    for at, names in ((1, "ab"), (2, "a"), (3, "ab"), (4, "ab"), (5, "a")):
        session = repository.writable_session("main")
        region = ensure(session, dataset, dataset.place({"time": at})).region(("time", "x"))
        for name in names:
            with session.recording({f"/{name}": region}):
                array = zarr.open_array(session.store, path=name, mode="r+")
                array[tuple(slice(*span) for span in region)] = at
        session.commit(str(at))
    repository.create_branch("staging", repository.lookup_branch("main"))
    drop_labels(repository, dataset, keep=3, branch="staging")
    session = repository.writable_session("main")
    zarr.create_group(session.store, path="beside")
    session.commit("of others")
    attempt = Attempt("dag/run/publish/-1", 0, 1, False, True, None, "replace")
    options = CommitOptions(attempt, "publish", {}, MergeSolver())
    outcome = publish(repository, "staging", options, target="main")
    assert outcome.result["how"] == "rebase"
    found = coverage(repository, dataset)
    assert found.arrays["/a"].present == ((3, 5),)
    assert (found.arrays["/b"].present, found.arrays["/b"].missing) == (((3, 4),), (5,))


def test_an_append_that_began_before_the_cut_is_never_lost_or_misplaced(
    repository: Repository,
) -> None:
    dataset = weather(
        dims={"time": Growing(by="labels", dtype="int64"), "x": 1},
        variables={"a": Variable("int32", ("time", "x"))},
    )

    def begin(at: int) -> Any:
        session = repository.writable_session("main")
        placed = ensure(session, dataset, dataset.place({"time": at}))
        region = placed.region(("time", "x"))
        with session.recording({"/a": region}):
            array = zarr.open_array(session.store, path="a", mode="r+")
            array[tuple(slice(*span) for span in region)] = at
        return session

    for at in (1, 2, 3):
        begin(at).commit(str(at))
    late = begin(4)
    drop_labels(repository, dataset, keep=1)
    with pytest.raises((ConflictError, RebaseFailedError)):
        late.commit("4", rebase_with=MergeSolver())
    begin(4).commit("again")
    root = zarr.open_group(repository.readonly_session("main").store, mode="r")
    assert np.asarray(root["time"][:]).tolist() == [3, 4]
    assert np.asarray(root["a"][:, 0]).tolist() == [3, 4]


def test_official_library_reads_what_is_left_bit_by_bit(tmp_path: Path) -> None:
    repository = Repository.create(local_filesystem_storage(tmp_path / "r"))
    dataset = weather(
        dims={"time": Growing(start="2026-01-01", every="1D"), "x": 5},
        variables={
            "aligned": Variable("float64", ("time", "x"), chunks=(2, 3)),
            "cut": Variable("float64", ("time", "x"), chunks=(3, 2), fill_value="NaN"),
            "shards": Variable("float64", ("time", "x"), chunks=(1, 2), shards=(4, 4)),
        },
    )
    session = repository.writable_session("main")
    ensure(session, dataset, dataset.place({"time": {"from": label(1), "until": label(11)}}))
    bits = np.random.default_rng(7).integers(0, 2**64, (10, 5), np.uint64)
    bits[4:7] = 0x7FF8000000000001  # NaN with a mark of its own
    bits[7:9] = 1 << 63  # minus zero
    for name in dataset.variables:
        zarr.open_array(session.store, path=name, mode="r+")[:] = bits.view("f8")
    session.commit("first")
    drop_labels(repository, dataset, before=label(5))
    official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "r")))
    root = zarr.open_group(official.readonly_session("main").store, mode="r")
    for name in dataset.variables:
        assert np.array_equal(np.asarray(root[name][:]).view("u8"), bits[4:]), name
    assert np.asarray(root["time"][:]).tolist() == [4, 5, 6, 7, 8, 9]
    # Erased for good: what grows again is empty, not what was cut off.
    grown = official.writable_session("main")
    zarr.open_array(grown.store, path="aligned", mode="r+").resize((10, 5))
    assert not np.asarray(zarr.open_array(grown.store, path="aligned")[6:]).any()
