"""What a run wrote, where Airflow already shows the run: a real scheduler, a real run, a Chromium.

Run by `make test-ui`. `ICECHUNK_SCREENSHOTS` names a folder for pictures of what was seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.browsing import launch
from support.standalone import Airflow, running, settings

pytestmark = [pytest.mark.ui, pytest.mark.long, pytest.mark.airflow, pytest.mark.timeout(1500)]
DAG = """
from airflow.sdk import DAG, Asset, task

from airflow_provider_icechunk.operators.maintenance import IcechunkVerifyOperator
from airflow_provider_icechunk.operators.repository import IcechunkCreateRepositoryOperator

with DAG("write_waves", schedule=None):
    create = IcechunkCreateRepositoryOperator(task_id="create", repository="waves")

    @task.icechunk(repository="waves", message="Heights of waves", outlets=[Asset("waves")])
    def write(store=None):
        import numpy as np
        import zarr

        array = zarr.create_array(
            store, name="height", shape=(60, 90), chunks=(30, 30), dtype="f4",
            dimension_names=["y", "x"], attributes={"units": "m", "long_name": "Wave height"},
        )
        array[:] = np.add.outer(np.sin(np.arange(60) / 9), np.cos(np.arange(90) / 7))

    create >> write() >> IcechunkVerifyOperator(task_id="verify", repository="waves")

with DAG("fail_to_write", schedule=None):

    @task.icechunk(repository="waves", retries=0)
    def fail(store=None):
        raise ValueError("as planned")

    fail()
"""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    (home / "dags" / "waves.py").write_text(DAG)
    connection = {"conn_type": "icechunk", "host": str(home), "extra": {"storage": "file"}}
    environment = settings(home, home / "dags", icechunk_default=connection)
    with running(environment) as found:
        yield found


@pytest.fixture(scope="module")
def page(airflow: Airflow) -> Iterator[Any]:
    with launch() as chromium:
        token = airflow._ask("GET", "/auth/token", token=None)["access_token"]
        context = chromium.new_context(viewport={"width": 1400, "height": 900})
        context.add_cookies([{"name": "_token", "value": token, "url": airflow.address}])
        context.set_default_timeout(60_000)
        yield context.new_page()


def keep(page: Any, name: str) -> None:
    if folder := os.environ.get("ICECHUNK_SCREENSHOTS"):
        page.wait_for_load_state("networkidle")
        page.screenshot(path=Path(folder, f"{name}.png"))


def test_a_run_and_its_tasks_show_what_they_wrote(airflow: Airflow, page: Any) -> None:
    run = airflow.succeed("write_waves")
    here = f"{airflow.address}/dags/write_waves/runs/{quote(run, safe='')}"
    # The tab on the run.
    page.goto(here)
    page.get_by_role("link", name="Icechunk", exact=True).last.click()
    page.get_by_text("Heights of waves").first.wait_for()
    page.get_by_role("link", name="/height").first.wait_for()
    keep(page, "tab-run")
    # The tab on the task instance, and from there the picture, without leaving the run.
    page.goto(f"{here}/tasks/write/plugin/icechunk-task")
    page.get_by_text("Heights of waves").first.wait_for()
    page.get_by_role("link", name="/height").first.click()
    page.get_by_text("Wave height").first.wait_for()
    assert "/tasks/write/" in page.url
    keep(page, "tab-task")
    page.go_back()
    page.get_by_text("Compared with").wait_for()
    # A task that writes nothing says so.
    page.goto(f"{here}/tasks/create/plugin/icechunk-task")
    page.get_by_text("has written nothing").wait_for()


def test_extra_links_keep_the_navigation_of_airflow(airflow: Airflow, page: Any) -> None:
    run = next(iter(airflow.runs("write_waves")))
    path = f"dags/write_waves/dagRuns/{quote(run, safe='')}/taskInstances"
    links = airflow.ask("GET", f"{path}/write/links")["extra_links"]
    assert links["Icechunk snapshot"].startswith("/plugin/icechunk#/icechunk_default/waves/")
    page.goto(airflow.address + links["Icechunk snapshot"])
    page.get_by_text("Heights of waves").first.wait_for()
    assert page.locator(".ick.hosted").count() == 1
    # The commit leads back to the task that made it.
    page.get_by_role("link", name="write_waves").first.click()
    page.wait_for_url(f"**/dags/write_waves/runs/{quote(run, safe='')}/tasks/write**")
    links = airflow.ask("GET", f"{path}/verify/links")["extra_links"]
    assert links["Icechunk repository"] == "/plugin/icechunk#/icechunk_default/waves/maintenance"
    page.goto(airflow.address + links["Icechunk repository"])
    page.get_by_text("waiting to be collected").wait_for()


def test_health_knows_the_tasks_that_verified_and_that_failed(airflow: Airflow) -> None:
    run = airflow.start("fail_to_write")
    assert airflow.finish("fail_to_write", run) == "failed"
    token = airflow._ask("GET", "/auth/token", token=None)["access_token"]
    path = "/icechunk/api/places/icechunk_default/health?repository=waves"
    health = airflow._ask("GET", path, token=token)
    (run,) = health["maintenance"]
    assert (run["what"], run["ok"]) == ("verify", True)
    assert run["page"].endswith("/tasks/verify")
    assert health["failed_lately"] == 1


def test_the_events_of_an_asset_lead_to_the_snapshot(airflow: Airflow, page: Any) -> None:
    (asset,) = airflow.ask("GET", "assets?name_pattern=waves")["assets"]
    (event,) = airflow.ask("GET", f"assets/events?asset_id={asset['id']}")["asset_events"]
    assert event["extra"]["snapshot_id"]
    assert event["source_task_id"] == "write"
    page.goto(f"{airflow.address}/assets/{asset['id']}")
    page.get_by_text("write_waves").first.wait_for()
    keep(page, "asset")
