"""What tests of the repository browser share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.standalone import until

from tools.screenshots.chromium import MissingError, find_chromium
from tools.seaweedfs import free_ports

with warnings.catch_warnings():
    # It recommends another HTTP library.
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

__all__ = ["NASTY", "SCRIPT", "Ask", "TestClient", "api_server", "launch", "token_of"]

SCRIPT = "<script>alert(1)</script>"
Ask = Callable[..., Any]
NASTY = [
    SCRIPT,
    "../../etc/passwd",
    "..%2f..%2fetc",
    "/etc/passwd",
    "file:///etc/passwd",
    "a\\..\\b",
    "\x00",
    "\u202e",
    "' OR 1=1 --",
    "{{7*7}}",
    "%0d%0aSet-Cookie:x=1",
    "-1",
    "9" * 40,
    "snapshot:../x",
    "main~999999999",
    "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
]
"""What someone may type instead of a name, a path or a number."""


@contextmanager
def launch() -> Iterator[Any]:
    """A headless Chromium; a test that needs one is skipped if there is none."""
    pytest.importorskip("playwright", reason="`make test-ui` installs the driver")
    from playwright.sync_api import sync_playwright

    try:
        path = find_chromium()
    except MissingError as error:
        pytest.skip(str(error))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def _answers(server: subprocess.Popen[bytes], address: str, home: Path) -> bool:
    assert server.poll() is None, (home / "server.log").read_text()[-2000:]
    try:
        urllib.request.urlopen(f"{address}/api/v2/monitor/health", timeout=5).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


@contextmanager
def api_server(root: Path, home: Path) -> Iterator[tuple[str, Path, int]]:
    """Airflow's API server with a connection to a folder, an admin and a viewer.

    Yields its address, its home and its process id.
    """
    (port,) = free_ports(1)
    env = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://localhost:{port}",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,viewer:viewer",
    }
    command = [sys.executable, "-m", "airflow"]
    extra = json.dumps({"storage": "file"})
    for words in (
        ["db", "migrate"],
        ["connections", "add", "icechunk_default", "--conn-type", "icechunk",
         "--conn-host", str(root), "--conn-extra", extra],
    ):  # fmt: skip
        subprocess.run([*command, *words], env=env, check=True, capture_output=True)
    with (home / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "api-server"], env=env, stdout=log, stderr=log, start_new_session=True
        )
    address = f"http://localhost:{port}"
    try:
        until(lambda: _answers(server, address, home), "the API server answers")
        yield address, home, server.pid
    finally:
        server.terminate()
        server.wait(60)
        shutil.rmtree(home, ignore_errors=True)


def token_of(address: str, home: Path, user: str) -> str:
    """Log in; the token that Airflow's pages send."""
    passwords = json.loads((home / "simple_auth_manager_passwords.json.generated").read_text())
    request = urllib.request.Request(
        f"{address}/auth/token",
        json.dumps({"username": user, "password": passwords[user]}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        token: str = json.load(answer)["access_token"]
    return token
