"""`IcechunkCheckOperator`: it stops bad data, and leaves its report with what it let by."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.airflow_contexts import make_context, retried

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.engine.checks.checks import CHECKS_KEY
from airflow_provider_icechunk.exceptions import CheckFailedError, InvalidInputError
from airflow_provider_icechunk.operators.check import IcechunkCheckOperator
from airflow_provider_icechunk.operators.publish import IcechunkPublishOperator

CHECKS = [{"check": "range", "array": "field", "minimum": 0, "maximum": 100}]


@pytest.fixture
def repository(folder: Path) -> Repository:
    made = Repository.create(local_filesystem_storage(folder / "weather"))
    made.create_branch("staging", made.lookup_branch("main"))
    return made


def stage(repository: Repository, value: float) -> str:
    session = repository.writable_session("staging")
    root = zarr.open_group(session.store, mode="a")
    root.require_array("field", shape=(4,), chunks=(2,), dtype="float64")[:] = value
    return session.commit("staged")


def check(context: Any, **arguments: Any) -> dict[str, Any]:
    given = {"repository": "weather", "branch": "staging", "checks": CHECKS, **arguments}
    return IcechunkCheckOperator(task_id="check", **given).execute(context)


def publish(context: Any, **arguments: Any) -> dict[str, Any]:
    operator = IcechunkPublishOperator(
        task_id="publish", repository="weather", source="staging", **arguments
    )
    return operator.execute(context)


def watched() -> tuple[Any, dict[str, Any]]:
    context, pushed = make_context(), {}
    context["ti"].xcom_push = lambda key, value: pushed.update({key: value})
    return context, pushed


def test_what_passed_is_published_with_its_report(repository: Repository) -> None:
    staged = stage(repository, 5)
    report = check(make_context())
    assert report == {
        "snapshot_id": staged,
        "passed": True,
        "checks": [
            {"check": "range", "subject": "/field", "passed": True, "value": [5.0, 5.0],
             "limit": [0.0, 100.0]},
        ],
    }  # fmt: skip
    result = publish(make_context("publish"), checks=report)
    assert (result["how"], result["source_snapshot_id"]) == ("commit", staged)
    head = repository.lookup_snapshot(repository.lookup_branch("main"))
    assert head.metadata[CHECKS_KEY] == report
    store = repository.readonly_session("main").store
    assert np.asarray(zarr.open_array(store, path="field")[:]).tolist() == [5] * 4
    again = publish(retried(make_context("publish")), checks=report)
    assert (again["how"], again["snapshot_id"]) == ("already_there", head.id)


def test_what_failed_stops_the_run_and_is_never_published(repository: Repository) -> None:
    staged = stage(repository, -1)
    context, pushed = watched()
    with pytest.raises(CheckFailedError, match=r"range of /field: \[-1.0, -1.0\], limit \[0.0"):
        check(context)
    report = pushed["return_value"]
    assert (report["snapshot_id"], report["passed"]) == (staged, False)
    assert check(make_context(), fail=False) == report
    main = repository.lookup_branch("main")
    with pytest.raises(CheckFailedError, match="is not published"):
        publish(make_context("publish"), checks=report)
    assert repository.lookup_branch("main") == main


def test_a_report_about_another_snapshot_lets_nothing_pass(repository: Repository) -> None:
    audited = stage(repository, 5)
    report = check(make_context(), snapshot_id=audited)
    stage(repository, -1)
    with pytest.raises(InvalidInputError, match="are about snapshot"):
        publish(make_context("publish"), checks=report)
    assert publish(make_context("publish"), checks=report, snapshot_id=audited)["how"] == "commit"


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(900)
def test_on_spark_the_report_is_the_same(repository: Repository) -> None:
    stage(repository, 5)
    wanted = [*CHECKS, {"check": "missing", "array": "field", "most": 0}]
    here = check(make_context(), checks=wanted)
    assert check(make_context(), checks=wanted, spark="local[1]") == here
    too_low = [{**CHECKS[0], "maximum": 4}]
    context, pushed = watched()
    with pytest.raises(CheckFailedError, match=r"range of /field"):
        check(context, checks=too_low, spark="local[1]", spark_config={"spark.app.name": "checks"})
    assert pushed["return_value"]["passed"] is False
