"""A script of a few lines: under a task it leaves a fragment, by hand it commits, or neither."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import own_fields
import pytest
import zarr
from pyspark.sql import SparkSession

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.engine.commit.records import read_record
from airflow_provider_icechunk.engine.pipelines.transaction import OpenTransaction, open_for
from airflow_provider_icechunk.engine.workers.jobs import JobFolder
from airflow_provider_icechunk.spark.script import pipeline_job

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]
with warnings.catch_warnings():
    # Chunks of four days, so that a region is less than its chunk.
    warnings.simplefilter("ignore", UserWarning)
    DATA = IcechunkDataset(
        "repository",
        dims={"time": Growing(start="2026-02-01", every="1D"), "x": 10},
        variables={
            "u": Variable("int64", ("time", "x"), chunks=(4, 10)),
            "v": Variable("int64", ("time", "x")),
        },
    )


@pytest.fixture
def opened(repository: Repository) -> OpenTransaction:
    return open_for(repository, branch="main", job="task", dataset=DATA, at={"time": "2026-02-06"})


def argument(repository: Repository, path: Path, opened: OpenTransaction) -> str:
    assert opened.placement is not None
    return json.dumps(
        {
            "session": {
                "repository": "repository",
                "conn_id": "icechunk_default",
                "place": {"kind": "file", "path": str(path / "repository")},
                "work_unit": opened.work.to_json(),
                "fragments": JobFolder(repository.storage, opened.work.job).prefix,
                "dataset": DATA.to_json(),
                "placement": opened.placement.to_json(),
            },
            "arguments": {"add": 2},
        }
    )


def cells(repository: Repository, name: str) -> Any:
    store = repository.readonly_session("main").store
    return np.asarray(zarr.open_array(store, path=name, mode="r")[:])


def commits(repository: Repository) -> int:
    return len(list(repository.ancestry(branch="main"))) - 1


def test_under_a_task_several_writes_leave_one_fragment_for_its_commit(
    spark: SparkSession, repository: Repository, tmp_path: Path, opened: OpenTransaction
) -> None:
    given = ["--mine", argument(repository, tmp_path, opened)]
    for _ in range(2):
        with pipeline_job(given, spark=spark) as job:
            assert job.at == {"time": ["2026-02-06"]}
            assert job.dataset == DATA
            assert "u" in zarr.open_group(job.session.store, mode="r")
            job.write_regions("u", own_fields.index, arguments=job.arguments)
            job.write_regions("v", own_fields.day_of_year)
    assert commits(repository) == 0
    folder = JobFolder(repository.storage, opened.work.job)
    assert len(folder.writers()) == 1, "a script that ran twice replaces its fragment"
    session = repository.resume(opened.work)
    session.merge_fragments(folder.fragments())
    snapshot = session.commit("by the task")
    assert cells(repository, "u")[5].tolist() == list(range(52, 62))
    assert not cells(repository, "u")[:5].any()
    assert cells(repository, "v")[5].tolist() == [37] * 10
    record = read_record(repository.lookup_snapshot(snapshot).metadata)
    assert record is not None
    assert record.arrays["/u"] == (((5, 6), (0, 10)),), "the region, and not its chunk of four days"
    assert record.labels == {"time": ("2026-02-06",)}


def test_an_exception_leaves_nothing_but_its_report(
    spark: SparkSession, repository: Repository, tmp_path: Path, opened: OpenTransaction
) -> None:
    def stop() -> None:
        with pipeline_job([argument(repository, tmp_path, opened)], spark=spark) as job:
            job.write_regions("u", own_fields.index)
            raise OSError("out of days")

    with pytest.raises(OSError, match="out of days"):
        stop()
    folder = JobFolder(repository.storage, opened.work.job)
    assert folder.writers() == []
    (reporter,) = folder.reporters()
    expected = {"error": "OSError: out of days", "release": __version__}
    assert folder.result(reporter) == expected


def test_by_hand_it_opens_commits_once_and_prints(
    spark: SparkSession,
    repository: Repository,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--repository", str(tmp_path / "repository"), "--at", "time=2026-02-03"]
    given += ["--message", "mine", "--argument", "add=7"]
    with pipeline_job(given, dataset=DATA, spark=spark) as job:
        job.write_regions(["u"], own_fields.index, arguments=job.arguments)
    (info, _) = repository.ancestry(branch="main")
    assert info.message == "mine"
    assert f"committed {info.id} to main" in capsys.readouterr().out
    assert cells(repository, "u")[2].tolist() == list(range(27, 37))


def test_by_hand_an_exception_commits_nothing(
    spark: SparkSession, repository: Repository, tmp_path: Path
) -> None:
    given = ["--repository", str(tmp_path / "repository"), "--at", "time=2026-02-07"]

    def stop() -> None:
        with pipeline_job(given, dataset=DATA, spark=spark) as job:
            job.write_regions("u", own_fields.index)
            job.write_regions("v", own_fields.fails)

    with pytest.raises(SystemExit, match=r"own_fields:fails for 'v' .* FileNotFoundError"):
        stop()
    assert commits(repository) == 0
