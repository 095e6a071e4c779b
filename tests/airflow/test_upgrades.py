"""Work in flight survives an upgrade of the provider.

`recorded/in-flight-0.0.9.zip` has what an earlier release left in two moments: `begun`, when a
session was open, sensors had deferred and one of two writers was done; and `committed`, when the
task that commits had ended without saying so. `record` made it.
"""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support import in_flight

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).parent / "recorded" / "in-flight-0.0.9.zip"
EARLIER = "9131718"
"""A commit before records said which release wrote them; it counts as release 0.0.9."""
PLACE = "/the/root"
"""Stands in the recorded session where the folder was."""
MOMENTS = {"begun": ["begin", "write-left"], "committed": ["begin", *in_flight.WRITES, "commit"]}


def connection(root: Path) -> str:
    fields = {"conn_type": "icechunk", "host": str(root / "data"), "extra": {"storage": "file"}}
    return json.dumps(fields)


def run(step: str, root: Path, package: Path) -> dict[str, Any]:
    """Run a step in a process of the release whose package is in a folder."""
    answer = subprocess.run(
        [sys.executable, in_flight.__file__, step, str(root)],
        env=os.environ
        | {"PYTHONPATH": str(package), "AIRFLOW_CONN_ICECHUNK_DEFAULT": connection(root)},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    told: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return told


def earlier_wheel(folder: Path) -> Path:
    """Build the wheel of the earlier release, and unpack it."""
    source = folder / "source"
    source.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", EARLIER], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    subprocess.run(["tar", "-x"], input=archive, cwd=source, check=True)
    for name in ("pyproject.toml", "airflow_provider_icechunk/__init__.py"):
        file = source / name
        file.write_text(file.read_text().replace('version = "0.1.0"', 'version = "0.0.9"', 1))
        file.write_text(file.read_text().replace('version__ = "0.1.0"', 'version__ = "0.0.9"', 1))
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", folder, source], check=True)
    package = folder / "package"
    with zipfile.ZipFile(folder / "airflow_provider_icechunk-0.0.9-py3-none-any.whl") as wheel:
        wheel.extractall(package)
    return package


def record(folder: Path) -> None:
    """Make the recording again, with the earlier release."""
    package = earlier_wheel(folder / "earlier")
    RECORDED.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(RECORDED, "w", zipfile.ZIP_DEFLATED) as kept:
        for moment, steps in MOMENTS.items():
            root = folder / moment
            root.mkdir()
            told = [run(step, root, package) for step in steps]
            assert {one["release"] for one in told} == {"0.0.9"}
            session = root / "session.json"
            session.write_text(session.read_text().replace(str(root), PLACE))
            for file in sorted(file for file in root.rglob("*") if file.is_file()):
                kept.write(file, f"{moment}/{file.relative_to(root)}")


@pytest.fixture
def recorded(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """What the earlier release left in a moment."""
    with zipfile.ZipFile(RECORDED) as kept:
        kept.extractall(tmp_path)
    root = tmp_path / request.param
    session = root / "session.json"
    session.write_text(session.read_text().replace(PLACE, str(root)))
    monkeypatch.setenv("AIRFLOW_CONN_ICECHUNK_DEFAULT", connection(root))
    return root


@pytest.mark.parametrize("recorded", ["begun"], indirect=True)
def test_a_session_and_a_fragment_of_the_earlier_release_are_committed_and_sensors_wake_up(
    recorded: Path,
) -> None:
    in_flight.write(recorded, "right")
    done = in_flight.commit(recorded)
    assert (done["values"], done["chunks"]) == ([7, 7, 7, 7], 2)
    assert in_flight.resume(recorded) == dict.fromkeys(
        ("branch", "coverage", "node", "tag"), done["snapshot"]
    )


@pytest.mark.parametrize("recorded", ["committed"], indirect=True)
def test_a_commit_of_the_earlier_release_is_found_and_not_repeated(recorded: Path) -> None:
    before = list(in_flight.opened(recorded).ancestry(branch="main"))
    done = in_flight.commit(recorded, 2)
    assert done["snapshot"] == before[0].id
    assert list(in_flight.opened(recorded).ancestry(branch="main")) == before


STEPS = ["begin", "write-left", "write-right", "commit", "commit-again", "resume"]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", ["write-right", "commit-again"])
def test_the_wheel_before_hands_over_to_this_release(tmp_path: Path, first: str) -> None:
    package = earlier_wheel(tmp_path / "earlier")
    root = tmp_path / "root"
    root.mkdir()
    own = STEPS.index(first)
    told = {
        step: run(step, root, package if number < own else ROOT)
        for number, step in enumerate(STEPS)
    }
    assert {told[step]["release"] for step in STEPS[:own]} == {"0.0.9"}
    assert {told[step]["release"] for step in STEPS[own:]} == {in_flight.__version__}
    assert told["commit"]["values"] == [7, 7, 7, 7]
    assert told["commit-again"]["snapshot"] == told["commit"]["snapshot"]
    assert told["resume"]["coverage"] == told["commit"]["snapshot"]
