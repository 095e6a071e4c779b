"""Job specifications: closed, without secrets, named the same on a retry."""

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_icechunk.exceptions import InvalidInputError, UnsupportedError
from airflow_provider_icechunk.spark.runtime import check_versions
from airflow_provider_icechunk.spark.specification import parse_job
from airflow_provider_icechunk.spark.submit import named_files

SESSION = {
    "repository": "weather",
    "conn_id": "icechunk_default",
    "place": {"kind": "file", "path": "/data/weather"},
    "work_unit": {"version": 1, "job": "j"},
    "fragments": "jobs/abc/",
}
JOB: dict[str, Any] = {"session": SESSION, "writes": [{"array": "t", "generator": "index"}]}


def test_a_job_is_read_from_text_and_from_a_file(tmp_path: Path) -> None:
    text = json.dumps(JOB)
    (tmp_path / "job.json").write_text(text)
    assert parse_job(text) == parse_job(f"@{tmp_path}/job.json")


@pytest.mark.parametrize(
    "change",
    [
        {"colour": "blue"},
        {"writes": []},
        {"tasks": 0},
        {"writes": [{"array": "t", "generator": "index", "region": {"0": [-1, 5]}}]},
        {"session": {**SESSION, "place": {"kind": "ftp"}}},
        {"session": {**SESSION, "place": {"kind": "file", "path": "relative"}}},
        {"session": {**SESSION, "place": {**SESSION["place"], "password": "marker-secret"}}},
    ],
)
def test_what_is_not_in_the_schema_is_refused_without_being_shown(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_job(json.dumps(JOB | change))
    assert "marker-secret" not in str(caught.value)


VIRTUAL = {"kind": "virtual", "files": ["s3://b/1.nc"], "authorize": ["s3://b/"]}
FILES = {"kind": "files", "files": ["/1.nc"], "variable": "v", "array": "a"}


def test_kinds_of_work_are_told_apart_and_each_is_closed() -> None:
    found = parse_job(json.dumps(JOB | {"writes": [*JOB["writes"], VIRTUAL, FILES]}))
    assert [write.kind for write in found.writes] == ["generator", "virtual", "files"]
    wrong: list[dict[str, Any]] = [
        VIRTUAL | {"files": []},
        VIRTUAL | {"authorize": []},
        VIRTUAL | {"checksum": "md5"},
        VIRTUAL | {"generator": "index"},
        FILES | {"axis": -1},
        FILES | {"kind": "code"},
    ]
    for write in wrong:
        with pytest.raises(InvalidInputError, match="specification"):
            parse_job(json.dumps(JOB | {"writes": [write]}))


def test_patterns_of_paths_are_replaced_by_sorted_names(tmp_path: Path) -> None:
    for name in ("b.nc", "a.nc", "c.txt"):
        (tmp_path / name).touch()
    found = named_files([f"{tmp_path}/*.nc", "s3://bucket/z.nc"])
    assert found == (f"{tmp_path}/a.nc", f"{tmp_path}/b.nc", "s3://bucket/z.nc")
    for pattern in (f"{tmp_path}/*.h5", "s3://bucket/*.nc"):
        with pytest.raises(InvalidInputError, match=r"\*"):
            named_files([pattern])


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="specification"):
        parse_job("nonsense")


def test_the_writer_has_the_same_name_on_a_retry_and_another_for_other_work() -> None:
    first = parse_job(json.dumps(JOB))
    assert parse_job(json.dumps(JOB | {"tasks": 9})).writer == first.writer
    other = JOB | {"writes": [{"array": "u", "generator": "index"}]}
    assert parse_job(json.dumps(other)).writer != first.writer


def test_a_mixture_of_pyspark_and_spark_is_named() -> None:
    check_versions("4.2.0", "4.2.0")
    with pytest.raises(UnsupportedError, match=r"4\.2\.0.*4\.3\.0"):
        check_versions("4.2.0", "4.3.0")
