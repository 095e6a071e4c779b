"""A user's own function on Spark: what it is given, what it may return, and how it fails."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.workers.jobs import JobFolder
from airflow_provider_icechunk.exceptions import InvalidInputError, TaskError
from airflow_provider_icechunk.spark.specification import FunctionWrite, JobSpecification
from airflow_provider_icechunk.spark.submit import run
from airflow_provider_icechunk.spark.write.coordinates import decode_times
from airflow_provider_icechunk.spark.write.functions import FunctionWork, Region, find_function

NAMES = ("time", "x")


@pytest.fixture
def session(repository: Repository) -> Session:
    opened = repository.writable_session("main")
    root = zarr.open_group(opened.store, mode="a")
    for name in ("u", "v"):
        root.create_array(
            name, shape=(8, 10), chunks=(2, 4), dtype="int64", fill_value=-7, dimension_names=NAMES
        )
    root.create_array("mean", shape=(8,), chunks=(3,), dtype="float32", dimension_names=("time",))
    time = root.create_array("time", shape=(8,), dtype="int64", dimension_names=("time",))
    time[:] = np.arange(8)
    time.attrs["units"] = "days since 2026-02-01"
    return opened


def fill(repository: Repository, session: Session, write: dict[str, Any]) -> int:
    """What executors do, without Spark: run every task and merge what they hand back."""
    given = FunctionWrite.model_validate(write)
    work = FunctionWork(given.arrays, given.function, given.arguments, given.region, None)
    work.prepare(session)
    unit = session.work_unit("job")
    writer = work.writer(session, 2)
    fragments = []
    for number, name in enumerate(writer.names):
        fork = repository.fork(unit)
        writer(fork, number)
        fragments.append(fork.fragment(name))
    return session.merge_fragments(fragments)


def written(
    spark: SparkSession, repository: Repository, session: Session, path: Path, *writes: Any
) -> dict[str, object]:
    """Run a job with these writes and merge what it left into the session."""
    value = {
        "session": {
            "repository": "repository",
            "conn_id": "icechunk_default",
            "place": {"kind": "file", "path": str(path / "repository")},
            "work_unit": session.work_unit("job").to_json(),
            "fragments": JobFolder(repository.storage, "job").prefix,
        },
        "writes": writes,
    }
    report = run(spark, JobSpecification.model_validate(value))
    session.merge_fragments(JobFolder(repository.storage, "job").fragments())
    return report


def cells(session: Session, name: str) -> Any:
    return np.asarray(zarr.open_array(session.store, path=name, mode="r")[:])


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(900)
def test_a_function_fills_an_array_with_its_arguments(
    spark: SparkSession, repository: Repository, session: Session, tmp_path: Path
) -> None:
    write = {"array": "u", "function": "own_fields:index", "arguments": {"add": 5}}
    report = written(spark, repository, session, tmp_path, write)
    assert np.array_equal(cells(session, "u"), np.arange(80).reshape(8, 10) + 5)
    assert report["chunks"] == 12


def test_a_function_finds_the_labels_of_its_region_and_may_return_less_dimensions(
    repository: Repository, session: Session
) -> None:
    write = {"array": "u", "function": "own_fields:day_of_year"}
    fill(repository, session, write)
    assert np.array_equal(cells(session, "u"), np.repeat(np.arange(32, 40), 10).reshape(8, 10))


def test_a_region_that_cuts_chunks_is_written_exactly(
    repository: Repository, session: Session
) -> None:
    region = {"time": [3, 6], "x": [1, 9]}
    write = {"array": "u", "function": "own_fields:index", "region": region}
    fill(repository, session, write)
    expected = np.full((8, 10), -7)
    expected[3:6, 1:9] = np.arange(80).reshape(8, 10)[3:6, 1:9]
    assert np.array_equal(cells(session, "u"), expected)


def test_several_variables_come_from_one_call(repository: Repository, session: Session) -> None:
    write = {
        "variables": ["u", "v", "mean"],
        "function": "own_fields:wind",
        "region": {"time": [1, 8]},
    }
    fill(repository, session, write)
    whole = np.arange(80).reshape(8, 10)
    assert np.array_equal(cells(session, "u")[1:], whole[1:])
    assert np.array_equal(cells(session, "v")[1:], -whole[1:])
    assert np.allclose(cells(session, "mean")[1:], whole[1:].mean(axis=1))
    assert (cells(session, "u")[0] == -7).all()


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (
            {"array": "u", "function": "own_fields:wrong_shape"},
            (
                r"task \d+ of 4: own_fields:wrong_shape for 'u' at time \d:\d \(2026-02-0.*\), "
                r"x 0:10 "
                r"returned shape \(3, 3\) and type float64, expected an array of shape "
                r"\(2, 10\) and "
                "type int64"
            ),
        ),
        (
            {"array": "u", "function": "own_fields:wrong_type"},
            r"wrong_type .* returned shape \(2, 10\) and type float64, expected .* type int64",
        ),
        ({"array": "u", "function": "own_fields:text"}, "own_fields:text .* returned .*expected"),
        (
            {"variables": ["u", "v"], "function": "own_fields:index"},
            (
                "own_fields:index .* returned ndarray, expected a Dataset or a mapping with the "
                "variables 'u', 'v'"
            ),
        ),
        (
            {"variables": ["u", "v"], "function": "own_fields:no_v"},
            r"returned the variables \['u', 'w'\], expected \['u', 'v'\]: not \['w'\]",
        ),
        (
            {"variables": ["u", "v"], "function": "own_fields:wind"},
            r"returned the variables \['mean', 'u', 'v'\].*not \['mean'\]",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_function_task_and_region_before_anything_is_stored(
    repository: Repository, session: Session, write: Any, words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        fill(repository, session, write)
    assert list(repository.storage.scan("chunks/")) == []


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(900)
def test_the_users_exception_comes_first_and_the_words_of_spark_after_it(
    spark: SparkSession, repository: Repository, session: Session, tmp_path: Path
) -> None:
    write = {"array": "u", "function": "own_fields:fails"}
    with pytest.raises(TaskError) as caught:
        written(spark, repository, session, tmp_path, write)
    text = str(caught.value)
    assert text.startswith("task ")
    assert "own_fields:fails for 'u' at time" in text
    assert text.endswith("raised FileNotFoundError: no file for this day")
    assert isinstance(caught.value.__cause__, PySparkException)
    folder = JobFolder(repository.storage, "job")
    (reporter,) = folder.reporters()
    assert folder.result(reporter) == {"error": f"TaskError: {text}", "release": __version__}


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        ("no_such_module:f", {}, "'no_such_module:f' cannot be imported: ModuleNotFoundError.*py_"),
        ("own_fields:nothing", {}, "'own_fields' has no function 'nothing'"),
        ("own_fields:np", {}, "no function 'np'"),
        ("own_fields:index", {"more": 1}, r"index\(region, more=...\).*unexpected keyword"),
    ],
)
def test_a_function_that_cannot_be_called_is_found_on_the_driver(
    session: Session, function: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words):
        FunctionWork(("u",), function, arguments, {}, None).prepare(session)


def test_a_name_that_is_no_function_is_refused() -> None:
    for name in ("index", "own_fields.index", "a:b:c", "../x:y"):
        with pytest.raises(InvalidInputError, match=r"package\.module:name"):
            find_function(name)


def test_tasks_for_several_arrays_share_no_chunk_of_any(session: Session) -> None:
    arrays = ("u", "mean")
    writer = FunctionWork(arrays, "own_fields:wind", {}, {"time": (1, 8)}, 8).writer(session, 2)
    # Chunks of 2 and of 3 rows meet every 6 rows; `x` is no dimension of `mean` and stays whole.
    assert writer.boxes == (((1, 6), (0, 10)), ((6, 8), (0, 10)))
    assert len(set(writer.names)) == 2


def test_a_region_speaks_of_positions_and_shape() -> None:
    region = Region(NAMES, (slice(1, 3), slice(0, 4)), {}, "u", np.dtype("int64"), ("u",))
    assert region.sel == {"time": slice(1, 3), "x": slice(0, 4)}
    assert region.shape == (2, 4)


@pytest.mark.parametrize(
    ("values", "units", "expected"),
    [
        ([0, 59], "days since 2026-01-01", ["2026-01-01", "2026-03-01"]),
        ([6], "hours since 2026-01-01 12:00:00", ["2026-01-01T18"]),
        ([0.5], "days since 2026-01-01", ["2026-01-01T12"]),
        ([250], "milliseconds since 1970-01-01T00:00:00Z", ["1970-01-01T00:00:00.250"]),
    ],
)
def test_times_are_decoded_by_their_units(values: Any, units: str, expected: Any) -> None:
    found = decode_times(np.array(values), {"units": units})
    assert (found == np.array(expected, "datetime64[us]")).all()


def test_what_is_no_time_stays_as_it_is() -> None:
    for attributes in (
        {},
        {"units": "metres"},
        {"units": "days since 2026-01-01", "calendar": "noleap"},
    ):
        assert decode_times(np.array([1, 2]), attributes).tolist() == [1, 2]
