"""`browse` on the command line serves what is at and below an address."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from airflow_provider_icechunk.cli.run import main

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("below", "found"), [("", ["hostile", "virtual", "weather"]),
                                              ("weather", ["."])])  # fmt: skip
def test_browse_serves_the_repositories_at_and_below_an_address(
    root: Path, below: str, found: list[str]
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "airflow_provider_icechunk", "browse", below or ".", "--port", "0"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        address = next(line.strip() for line in process.stderr if line.startswith("  http://127."))
        asked = f"{address}api/places/local/repositories"
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert json.load(answer)["paths"] == found
        with urllib.request.urlopen(f"{address}static/page.js", timeout=60) as answer:
            assert answer.headers["content-type"].startswith("text/javascript")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode in (0, 130, -signal.SIGINT)


def test_a_port_that_is_taken_or_none_is_explained(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["browse", str(root), "--port", port]) == 1
    assert "choose another with --port" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["browse", str(root), "--port", "70000"])
