"""Which labels of a dataset are there, and which are missing."""

import json
import warnings
from typing import Any

import numpy as np
import pytest
import zarr

from airflow_provider_icechunk.api import Coverage, Repository, coverage, in_memory_storage
from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.engine.datasets.declare import ensure
from airflow_provider_icechunk.exceptions import InvalidInputError, NotFoundError


def weather(days: int = 1, **changes: Any) -> IcechunkDataset:
    values: dict[str, Any] = {
        "dims": {"time": Growing(start="2026-01-01", every="1D"), "x": 4},
        "variables": {
            "t2m": Variable("float32", ("time", "x"), chunks=(days, 2)),
            "rain": Variable("int16", ("time",), chunks=(days,)),
            "mask": Variable("bool", ("x",)),
        },
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return IcechunkDataset("weather", **(values | changes))


@pytest.fixture
def repository() -> Repository:
    return Repository.create(in_memory_storage())


def run(
    repository: Repository,
    at: Any,
    *,
    names: tuple[str, ...] = ("t2m", "rain"),
    dataset: IcechunkDataset | None = None,
    value: float = 1,
    recorded: bool = True,
) -> None:
    dataset = dataset or weather()
    session = repository.writable_session("main")
    placed = ensure(session, dataset, dataset.place(at))
    for name in names:
        region = placed.region(dataset.variables[name].dims)
        array = zarr.open_array(session.store, path=dataset.path(name), mode="r+")
        with session.recording({name: region} if recorded else {}):
            array[tuple(slice(*span) for span in region)] = value
    session.commit("run")


def day(number: int) -> dict[str, str]:
    return {"time": f"2026-01-{number:02}"}


def test_gaps_are_named_by_array_and_for_all(repository: Repository) -> None:
    for number in (1, 2, 5, 6, 9):
        run(repository, day(number))
    run(repository, day(3), names=("rain",))
    found = coverage(repository, weather())
    assert found.present == (
        ("2026-01-01", "2026-01-02"),
        ("2026-01-05", "2026-01-06"),
        ("2026-01-09", "2026-01-09"),
    )
    assert found.missing == ("2026-01-03", "2026-01-04", "2026-01-07", "2026-01-08")
    assert found.arrays["/rain"].missing == ("2026-01-04", "2026-01-07", "2026-01-08")
    assert set(found.arrays) == {"/t2m", "/rain"}
    assert (found.wanted, found.is_complete, found.shared) == (9, False, ())
    assert found.snapshot_id == repository.lookup_branch("main")


def test_the_labels_that_are_asked_about_may_lie_beyond_the_end(repository: Repository) -> None:
    run(repository, {"time": {"from": "2026-01-01", "until": "2026-01-04"}})
    march = {"time": {"from": "2026-01-02", "until": "2026-01-06"}}
    found = coverage(repository, weather(), at=march)
    assert found.present == (("2026-01-02", "2026-01-03"),)
    assert found.missing == ("2026-01-04", "2026-01-05")
    run(repository, {"time": ["2026-01-04", "2026-01-05"]})
    assert coverage(repository, weather(), at=march).is_complete


def test_an_empty_repository_lacks_everything_that_is_asked_about(repository: Repository) -> None:
    assert coverage(repository, weather()).wanted == 0
    assert coverage(repository, weather(), at=day(1)).missing == ("2026-01-01",)


@pytest.mark.parametrize("recorded", [True, False])
def test_chunks_of_many_days_are_told_apart_by_what_commits_recorded(
    repository: Repository, recorded: bool
) -> None:
    dataset = weather(10)
    for number in (1, 7):
        run(repository, day(number), dataset=dataset, recorded=recorded)
    found = coverage(repository, dataset)
    if recorded:
        assert found.present == (("2026-01-01", "2026-01-01"), ("2026-01-07", "2026-01-07"))
        assert found.shared == ()
    else:
        assert found.present == (("2026-01-01", "2026-01-07"),)
        assert found.shared == ("/t2m", "/rain")


def test_a_day_of_nothing_but_fill_is_there_if_its_commit_says_so(repository: Repository) -> None:
    run(repository, day(1))
    run(repository, day(2), value=0)
    assert coverage(repository, weather()).is_complete


def test_one_variable_can_be_asked_about(repository: Repository) -> None:
    run(repository, day(2), names=("rain",))
    assert coverage(repository, weather(), variables=["rain"]).missing == ("2026-01-01",)
    with pytest.raises(InvalidInputError, match="'mask' is not a variable along 'time'"):
        coverage(repository, weather(), variables=["mask"])


def test_labels_without_steps_are_looked_up(repository: Repository) -> None:
    dims = {"station": Growing(by="labels", dtype="str")}
    dataset = IcechunkDataset("s", dims, {"x": Variable("int16", ("station",))})
    for label in ("zurich", "basel"):
        run(repository, {"station": label}, names=("x",), dataset=dataset)
    assert coverage(repository, dataset).present == (("zurich", "basel"),)
    wanted = coverage(repository, dataset, at={"station": ["basel", "bern"]})
    assert wanted.missing == ("bern",)


def test_an_array_by_its_path_has_the_labels_that_are_stored(repository: Repository) -> None:
    for number in (2, 3):
        run(repository, day(number))
    found = coverage(repository, "t2m")
    assert found.dim == "time"
    assert found.present == (("2026-01-02", "2026-01-03"),)
    assert found.missing == ("2026-01-01",)
    assert coverage(repository, "t2m", "x").missing == ()
    with pytest.raises(NotFoundError, match="no dimension 'y': its dimensions are time, x"):
        coverage(repository, "t2m", "y")


def test_an_array_without_names_and_labels_has_positions(repository: Repository) -> None:
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(5,), chunks=(1,), dtype="i4")
    array[2:4] = 1
    session.commit("a")
    found = coverage(repository.readonly_session("main"), "a")
    assert (found.present, found.missing) == (((2, 3),), (0, 1, 4))


def test_the_answer_is_plain_json(repository: Repository) -> None:
    run(repository, day(2))
    found: Coverage = coverage(repository, weather())
    text = json.loads(json.dumps(found.as_dict()))
    assert text["present"] == [["2026-01-02", "2026-01-02"]]
    assert text["arrays"]["/t2m"]["missing"] == ["2026-01-01"]


def test_random_days_are_exactly_those_that_were_written(repository: Repository) -> None:
    random = np.random.default_rng(7)
    there = set(random.choice(np.arange(1, 29), 12, replace=False).tolist())
    for number in random.permutation(sorted(there)).tolist():
        run(repository, day(number))
    found = coverage(repository, weather())
    missing = [f"2026-01-{number:02}" for number in range(1, max(there) + 1) if number not in there]
    assert list(found.missing) == missing


@pytest.mark.parametrize("generation", [1, 2])
def test_labels_whose_commits_have_expired_are_not_missing(generation: int) -> None:
    repository = Repository.create(in_memory_storage(), spec_version=generation)
    dataset = weather(3)
    for number in (1, 2, 3, 4, 7, 8):
        run(repository, day(number), dataset=dataset)
    limit = next(repository.ancestry(branch="main")).written_at
    run(repository, day(13), dataset=dataset)
    assert coverage(repository, dataset).shared == ()
    assert repository.expire_snapshots(limit)
    found = coverage(repository, dataset)
    # Three days share a chunk. The axis ended with day 8 then, and 13 is known from its commit.
    assert found.present == (("2026-01-01", "2026-01-08"), ("2026-01-13", "2026-01-13"))
    assert found.shared == ("/t2m", "/rain")
