"""A dimension goes by its name or its number, and nothing else is taken for one."""

import json
from typing import Any

import numpy as np
import pytest
import zarr

from airflow_provider_icechunk.api import Repository, in_memory_storage
from airflow_provider_icechunk.engine.arrays.regions import axis_of, by_axis, span_of
from airflow_provider_icechunk.engine.datasets.dataset import Placement
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.read.plan import Selection, plan_reading
from airflow_provider_icechunk.spark.source.options import parse_options
from airflow_provider_icechunk.spark.specification import ArrayWrite, parse_job
from airflow_provider_icechunk.spark.submit import GeneratedWork
from airflow_provider_icechunk.spark.write.files import FilesWork
from airflow_provider_icechunk.spark.write.places import place_of_write
from airflow_provider_icechunk.spark.write.regions import plan_part

NAMES = ("time", "lat", "lon")


@pytest.fixture
def session() -> Session:
    session = Repository.create(in_memory_storage()).writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("t", shape=(120, 4, 8), chunks=(30, 4, 8), dtype="f4", dimension_names=NAMES)
    root.create_array("bare", shape=(6, 4), chunks=(2, 4), dtype="f4")
    return session


def array(session: Session, path: str = "t") -> zarr.Array[Any]:
    return zarr.open_array(session.store, path=path, mode="r")


@pytest.mark.parametrize("key", ["time", 0, "0", np.int64(0)])
def test_a_region_is_written_and_read_by_name_or_number(session: Session, key: Any) -> None:
    whole = ((0, 4), (0, 8))
    regions = plan_part(array(session), {key: (30, 60)}, 1, 1)
    assert regions == [((30, 60), *whole)]
    assert plan_part(array(session), {key: slice(30, 60)}, 1, 1) == regions
    reading = plan_reading(
        session, "t", layout="long", variables=None, selection=Selection({key: (31, 33)}, {}),
        coordinates=True, tasks=1, cores=1,
    )  # fmt: skip
    assert [task.region for task in reading.tasks] == [((31, 33), *whole)]


def test_a_write_of_a_job_names_its_region_and_keeps_its_identity(session: Session) -> None:
    def job(region: dict[Any, Any]) -> Any:
        write = {"array": "t", "generator": "index", "region": region}
        place = {"kind": "file", "path": "/x"}
        described = {
            "repository": "r", "conn_id": "c", "place": place, "work_unit": {}, "fragments": "f",
        }  # fmt: skip
        return parse_job(json.dumps({"session": described, "writes": [write]}))

    by_name, by_number = job({"time": [0, 60]}), job({"0": [0, 60]})
    for found in (by_name, by_number):
        (write,) = found.writes
        (task,) = GeneratedWork(write, 1).writer(session, 1).tasks
        assert task.region == ((0, 60), (0, 4), (0, 8))
    # What a job with a number was called before names were understood.
    assert by_number.writer == "spark-ca7c7964a22b762a"
    assert ArrayWrite(array="t", generator="index", region={1: (0, 2)}).region == {"1": (0, 2)}


def test_a_dimension_by_its_number_and_the_same_in_text_is_refused_in_a_job() -> None:
    """One of both parts would silently be the one that is written."""
    with pytest.raises(ValueError, match="is named by its number twice"):
        ArrayWrite(array="t", generator="index", region={0: (0, 2), "0": (2, 4)})


@pytest.mark.parametrize("key", ["time", "0"])
def test_a_region_goes_before_the_place_of_the_run_also_by_number(
    session: Session, key: str
) -> None:
    run = Placement({"time": (30, 60)}, {}, {})
    assert place_of_write(session, ["t"], run, {key: (0, 5)}) == {"time": (0, 5)}
    assert place_of_write(session, ["t"], run, {"lat": (0, 2)}) == {"time": (30, 60), "lat": (0, 2)}
    assert place_of_write(session, ["t"], run, {}) == {"time": (30, 60)}
    assert place_of_write(session, ["t"], None, {key: (0, 5)}) == {key: (0, 5)}


def test_files_follow_each_other_along_a_dimension_by_name_or_number(session: Session) -> None:
    for axis in ("lat", 1, "1"):
        work = FilesWork(("/a", "/b"), "v", "t", axis, 0, 1, ((120, 1, 8), (120, 2, 8)))
        work.prepare(session)
        assert work.writer(session, 1).borders == (0, 1, 3)
    with pytest.raises(InvalidInputError, match=r"no dimension 'latitude'.*'time', 'lat', 'lon'"):
        FilesWork(("/a",), "v", "t", "latitude", 0, 1, ((120, 1, 8),)).prepare(session)


@pytest.mark.parametrize("key", ["Time", "t", "3", 3, -1, "-1", 0.0, True, None, ("time",), ""])
def test_anything_else_is_refused_with_the_names_there_are(session: Session, key: Any) -> None:
    words = "'t' has no dimension .* it has the dimensions 'time', 'lat', 'lon'"
    with pytest.raises(InvalidInputError, match=words):
        plan_part(array(session), {key: (0, 60)}, 1, 1)
    for selection in (Selection({key: 0}, {}), Selection({}, {key: (0, 1)})):
        with pytest.raises(InvalidInputError, match=words):
            plan_reading(
                session, "t", layout="long", variables=None, selection=selection,
                coordinates=True, tasks=1, cores=1,
            )  # fmt: skip


def test_dimensions_without_names_go_by_number_or_by_the_name_that_reads_show() -> None:
    assert axis_of("dim_1", ("dim_0", "dim_1"), "'bare'") == 1
    assert axis_of(1, ("dim_0", "dim_1"), "'bare'") == 1
    with pytest.raises(InvalidInputError, match="it has no dimensions"):
        axis_of(0, (), "'number'")


def test_a_name_that_looks_like_a_number_is_a_name() -> None:
    assert axis_of("1", ("1", "0"), "'a'") == 0
    assert axis_of(1, ("1", "0"), "'a'") == 1
    with pytest.raises(InvalidInputError, match="more than one dimension 'x'"):
        axis_of("x", ("x", "x"), "'a'")
    assert axis_of(1, ("x", "x"), "'a'") == 1


def test_a_dimension_that_is_chosen_twice_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="'time' of 't' is selected twice"):
        by_axis({"time": (0, 1), 0: (1, 2)}, NAMES, "'t'")


@pytest.mark.parametrize("part", [(2, 9), (-1, 2), (3, 2), 5, slice(0, 6), -1])
def test_a_part_beyond_the_array_is_refused_instead_of_cut(part: Any) -> None:
    with pytest.raises(InvalidInputError, match="are outside dimension 'x' of length 5"):
        span_of(part, "x", 5)


@pytest.mark.parametrize("part", ["0", 1.5, (1,), (1, 2, 3), (0, 1.5), None, slice(0, 4, 2), {}])
def test_a_part_that_is_not_one_is_refused(part: Any) -> None:
    with pytest.raises(InvalidInputError, match="not a range of dimension 'x'"):
        span_of(part, "x", 5)


def test_an_empty_region_writes_nothing(session: Session) -> None:
    assert plan_part(array(session), {"time": (45, 45)}, 1, 1) == []


def test_options_of_the_data_source_take_names_and_numbers() -> None:
    options = parse_options({"path": "/x", "isel": '{"0": [0, 3], "lat": 1}'})
    assert by_axis(options.isel, NAMES, "'t'") == {0: (0, 3), 1: 1}
