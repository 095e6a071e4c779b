"""A whole job on a real Spark, against the same work done by one process."""

import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from pyspark.sql import SparkSession

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.engine.storage.base import Fetched
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.workers.jobs import JobFolder
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.runtime import zipped_package
from airflow_provider_icechunk.spark.specification import JobSpecification
from airflow_provider_icechunk.spark.submit import run
from airflow_provider_icechunk.spark.write.generated import generate

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]
SHAPE, CHUNKS = (11, 6, 8), (2, 3, 8)


def specification(repository: Repository, path: Path, **changes: Any) -> JobSpecification:
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", shape=SHAPE, chunks=CHUNKS, dtype="int64")
    root.create_array("b", shape=SHAPE, chunks=CHUNKS, dtype="float32")
    work = session.work_unit("job")
    value = {
        "session": {
            "repository": "repository",
            "conn_id": "icechunk_default",
            "place": {"kind": "file", "path": str(path / "repository")},
            "work_unit": work.to_json(),
            "fragments": JobFolder(repository.storage, "job").prefix,
        },
        "writes": [
            {"array": "a", "generator": "index"},
            {"array": "/b", "generator": "temperature"},
        ],
        "tasks": 5,
    }
    return JobSpecification.model_validate(value | changes)


def test_the_driver_learns_the_generation_and_opens_the_repository_once(
    spark: SparkSession,
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = specification(repository, tmp_path)
    reads: Counter[str] = Counter()
    get = LocalStorage.get

    def counted(storage: LocalStorage, key: str, *given: Any) -> Fetched | None:
        reads[key] += 1
        return get(storage, key, *given)

    monkeypatch.setattr(LocalStorage, "get", counted)
    run(spark, job)
    assert (reads["repo"], reads["config.yaml"]) == (1, 1)


def test_a_job_writes_what_one_process_would_and_the_official_library_reads_it(
    spark: SparkSession, repository: Repository, tmp_path: Path
) -> None:
    job = specification(repository, tmp_path)
    report = run(spark, job)
    assert (report["tasks"], report["chunks"]) == (10, 24)
    assert len(list(repository.ancestry(branch="main"))) == 1
    folder = JobFolder(repository.storage, "job")
    assert folder.writers() == [job.writer]
    assert folder.result(job.writer) == {**report, "release": __version__}
    session = repository.resume(job.session.work_unit)
    session.merge_fragments(folder.fragments())
    session.commit("from Spark")
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repository"))
    store = icechunk.Repository.open(storage).readonly_session("main").store
    whole = tuple((0, length) for length in SHAPE)
    for name, generator in (("a", "index"), ("b", "temperature")):
        values = np.asarray(zarr.open_array(store, path=name, mode="r")[:])
        assert np.array_equal(values, generate(generator, whole, SHAPE)), name


def test_a_job_that_runs_again_replaces_its_fragment(
    spark: SparkSession, repository: Repository, tmp_path: Path
) -> None:
    job = specification(repository, tmp_path)
    run(spark, job)
    run(spark, job.model_copy(update={"tasks": 2}))
    session = repository.resume(job.session.work_unit)
    assert session.merge_fragments(JobFolder(repository.storage, "job").fragments()) == 24


def test_a_part_of_an_array_is_written_exactly_and_the_rest_is_left(
    spark: SparkSession, repository: Repository, tmp_path: Path
) -> None:
    part = {"array": "a", "generator": "index", "region": {"0": [5, 8]}}
    job = specification(repository, tmp_path, writes=[part])
    report = run(spark, job)
    assert report["chunks"] == 4
    found = JobFolder(repository.storage, "job").result(job.writer)
    assert found == {**report, "release": __version__}
    session = repository.resume(job.session.work_unit)
    session.merge_fragments(JobFolder(repository.storage, "job").fragments())
    values = np.asarray(zarr.open_array(session.store, path="a", mode="r")[:])
    whole = generate("index", tuple((0, length) for length in SHAPE), SHAPE)
    assert np.array_equal(values[5:8], whole[5:8])
    assert not values[:5].any()
    assert not values[8:].any()


def test_an_array_that_the_session_lacks_is_refused_before_anything_runs(
    spark: SparkSession, repository: Repository, tmp_path: Path
) -> None:
    job = specification(repository, tmp_path, writes=[{"array": "c", "generator": "index"}])
    with pytest.raises(InvalidInputError, match="'c'") as refused:
        run(spark, job)
    folder = JobFolder(repository.storage, "job")
    assert folder.writers() == []
    error = f"InvalidInputError: {refused.value}"
    assert folder.result(job.writer) == {"error": error, "release": __version__}


def test_the_shipped_zip_is_the_package_and_runs_from_it(tmp_path: Path) -> None:
    first = zipped_package(tmp_path)
    content = first.read_bytes()
    assert zipped_package(tmp_path).read_bytes() == content
    with zipfile.ZipFile(first) as archive:
        assert "airflow_provider_icechunk/spark/write/generated.py" in archive.namelist()
    code = "import airflow_provider_icechunk.spark.write.generated as t; print(t.__file__)"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(first), "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert str(first) in answer.stdout, answer.stderr
