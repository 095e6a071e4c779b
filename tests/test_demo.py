"""The tour: what it shows of a run, how it fails, and (long) that all of it works, twice."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.demo import airflow_process, settings, ui
from tools.demo.airflow_process import AirflowProcess
from tools.demo.progress import TASKS, telling
from tools.demo.settings import TourError

ROOT = Path(__file__).resolve().parent.parent
SIZE = 300
"""Lines that a module of the tour may have."""


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("[DAG TEST] starting task_id=verify map_index=-1", "  - verify that everything is there"),
        ("[DAG TEST] starting task_id=unheard_of", "  - unheard_of"),
        ("INFO - Committed snapshot 1CECHNKREP0F1RSTCMT0 to main", "      Committed snapshot 1CE"),
        ("icechunk: 4 tasks to run for /data", "      4 tasks to run"),
        ("2026-01-01 INFO something else", None),
    ],
)
def test_only_what_tells_how_far_the_run_is_is_shown(line: str, shown: str | None) -> None:
    told = telling(line)
    assert told == shown or (told is not None and shown is not None and told.startswith(shown))


def test_every_task_of_the_dags_on_the_way_has_words_of_its_own() -> None:
    files = [ROOT / "dags/icechunk_maintenance.py", ROOT / "tools/demo/dags/icechunk_tour.py"]
    text = "".join(file.read_text() for file in files)
    tasks = {*re.findall(r'task_id="(\w+)"', text), "add_mean", "is_expected"}
    assert tasks - {"approve"} == set(TASKS)


def test_the_modules_of_the_tour_are_small() -> None:
    for file in (ROOT / "tools/demo").rglob("*.py"):
        assert len(file.read_text().splitlines()) < SIZE, file


def test_a_missing_tool_is_named_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(TourError, match=r"`spark-submit`.*make setup"):
        settings.check_tools({"PATH": str(tmp_path)})


def test_connections_of_the_web_page_are_in_its_tables_and_not_in_its_environment() -> None:
    env = ui.settings({"PATH": ""}, 8123)
    assert not [name for name in env if name.startswith("AIRFLOW_CONN_")]
    assert env["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://localhost:8123/execution/"


def start(monkeypatch: pytest.MonkeyPatch, folder: Path, code: str) -> AirflowProcess:
    """A process of the tour that runs `code` instead of an Airflow."""
    real = subprocess.Popen

    def popen(command: list[str], **options: Any) -> Any:
        return real([command[0], "-c", code], **options)

    monkeypatch.setattr(airflow_process, "DEMO", folder)
    monkeypatch.setattr(airflow_process.subprocess, "Popen", popen)
    return AirflowProcess("airflow", {**os.environ, "AIRFLOW_HOME": str(folder)})


def test_a_process_that_dies_is_told_with_the_end_of_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    process = start(monkeypatch, tmp_path, "print('before'); raise SystemExit('no tables')")
    with pytest.raises(TourError, match=r"no tables(?s:.*)it ended while(?s:.*)airflow\.log"):
        process.wait_until_ready()
    process.stop()


def test_a_run_that_fails_stops_the_tour(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer = 'TOUR-ANSWER {"state": "failed", "run_id": "r1", "results": {}}'
    process = start(monkeypatch, tmp_path, f"input(); print('ERROR no disk'); print('{answer}')")
    with pytest.raises(TourError, match=r"ERROR no disk(?s:.*)r1 ended as failed"):
        process.run("some_dag")
    process.stop()


def test_a_run_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(airflow_process, "LONGEST", 0.1)
    process = start(monkeypatch, tmp_path, "import time; time.sleep(60)")
    with pytest.raises(TourError, match="took longer than"):
        process.wait_until_ready()
    process.stop()


@pytest.mark.long
@pytest.mark.airflow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_tour_runs_from_an_empty_folder_and_a_second_time() -> None:
    for _ in range(2):
        answer = subprocess.run(
            [sys.executable, "-m", "tools.demo"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert "Rebased onto" in answer.stdout
        assert "it supersedes" in answer.stdout
        assert "8 days, each equal to its input file" in answer.stdout
        assert settings.PICTURE.read_bytes().startswith(b"\x89PNG")
