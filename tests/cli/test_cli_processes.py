"""The commands as processes: without Airflow, and as a part of the `airflow` command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import Made

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_AIRFLOW = """
import runpy, sys
sys.argv = ["airflow_provider_icechunk", *sys.argv[1:]]
try:
    runpy.run_module("airflow_provider_icechunk", run_name="__main__", alter_sys=True)
finally:
    assert "airflow" not in sys.modules, "the command line imported Airflow"
"""

SEVERAL = """
import json, sys
from airflow.__main__ import main
codes = []
for words in json.loads(sys.argv[1]):
    sys.argv = ["airflow", *words]
    try:
        main()
    except SystemExit as leaving:
        codes.append(leaving.code)
    print("---", flush=True)
print(json.dumps(codes))
"""


def python(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )


def test_log_runs_as_a_module(made: Made) -> None:
    answer = python("-m", "airflow_provider_icechunk", "log", made.path)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert made.ids["m2"] in answer.stdout.splitlines()[0]
    assert "\x1b" not in answer.stdout


def test_an_error_has_no_traceback_and_output_that_nobody_can_encode_is_escaped(
    made: Made,
) -> None:
    session = made.repository.writable_session("main")
    session.tree.put_chunk("/group/a", (3, 0), b"x")
    session.commit("naïve")
    answer = python("-m", "airflow_provider_icechunk", "log", made.path, PYTHONIOENCODING="ascii")
    assert (answer.returncode, "na\\xefve" in answer.stdout) == (0, True)
    wrong = python("-m", "airflow_provider_icechunk", "log", made.path, "nope")
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (1, "", 1)


def test_a_reader_that_went_away_causes_no_noise(made: Made) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    answer = subprocess.run(
        [sys.executable, "-m", "airflow_provider_icechunk", "log", str(made.path)],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    os.close(writing)
    assert (answer.returncode, answer.stderr) == (1, "")


def test_the_command_line_needs_no_airflow(made: Made) -> None:
    answer = python("-c", WITHOUT_AIRFLOW, "tree", made.path, "--json")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["nodes"][0]["path"] == "/"


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """An environment in which Airflow finds the provider, as if it were installed."""
    site = tmp_path / "site"
    about = site / "airflow_provider_icechunk-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: airflow-provider-icechunk\nVersion: 0.1.0\n"
    )
    (about / "entry_points.txt").write_text(
        "[apache_airflow_provider]\n"
        "provider_info = airflow_provider_icechunk.get_provider_info:get_provider_info\n"
    )
    return {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]),
    }


@pytest.mark.airflow
def test_airflow_has_the_same_commands_and_takes_connections(
    made: Made, installed: dict[str, str]
) -> None:
    connection = {
        "conn_type": "icechunk",
        "host": str(made.path.parent),
        "extra": {"storage": "file"},
    }
    below = ["--conn-id", "data"]
    commands = [
        ["icechunk", "--help"],
        ["icechunk", "branch", "list", str(made.path), "--json"],
        ["icechunk", "branch", "list", made.path.name, "--json", *below],
        ["icechunk", "log", made.path.name, "--region", "x", *below],
        ["icechunk", "log", "../x", *below],
        ["icechunk", "log", "x", "--conn-id", "unknown"],
        ["icechunk", "gc", made.path.name, "--older-than", "3x", *below],
    ]
    answer = python(
        "-c", SEVERAL, json.dumps(commands), AIRFLOW_CONN_DATA=json.dumps(connection), **installed
    )
    assert answer.returncode == 0, answer.stderr
    help_text, by_path, by_connection, *_, codes = answer.stdout.split("---\n")
    words = "branch collect compact diff expire gc init log measure show stats verify"
    for name in words.split():
        assert f"\n    {name} " in help_text
    assert by_path == by_connection
    assert [one["name"] for one in json.loads(by_path)["branches"]] == ["dev", "main"]
    assert "--region cannot be combined" in answer.stderr
    assert "error [outside_root]: " in answer.stderr
    assert "Airflow has no connection 'unknown'" in answer.stderr
    assert json.loads(codes) == [0, 0, 0, 2, 1, 1, 2]
