"""The built page belongs to its sources, and a real browser shows it."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from airflow_provider_icechunk.browser.app import FILES, STATIC
from airflow_provider_icechunk.browser.serve import listen, standalone
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage

UI = STATIC.parent / "ui"
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def test_the_bundle_was_built_from_the_sources() -> None:
    others = ["build.mjs", "package.json", "page.html", "browser.css", "icon.svg", "icon-dark.svg"]
    names = sorted([*others, *(f"src/{path.name}" for path in (UI / "src").iterdir())])
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\n".encode() + (UI / name).read_bytes())
    for name in ("page.js", "plugin.js"):
        built = (STATIC / name).read_text()
        assert f"sources {digest.hexdigest()}" in built[:200], "run `make ui` and commit the bundle"
    for name in ("page.html", "browser.css", "icon.svg", "icon-dark.svg"):
        assert (STATIC / name).read_bytes() == (UI / name).read_bytes()


def test_the_bundle_is_small_complete_and_asks_nobody_else() -> None:
    assert {path.name for path in STATIC.iterdir()} == set(FILES)
    assert (STATIC / "plugin.js").stat().st_size < 100_000
    assert (STATIC / "page.js").stat().st_size < 400_000
    assert "dangerouslySetInnerHTML:" not in (STATIC / "plugin.js").read_text()
    for source in (UI / "src").iterdir():
        text = source.read_text()
        assert "dangerouslySetInnerHTML" not in text
        assert ".innerHTML" not in text
        assert not re.search(r"https?://", text), source.name


def test_pins_are_exact_and_name_no_registry() -> None:
    package = (UI / "package.json").read_text()
    assert not re.search(r'": "[\^~]', package)
    assert "resolved" not in (UI / "package-lock.json").read_text()


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    """The standalone browser on a real port."""
    app = standalone(lambda path: LocalStorage(root / path), "here", key="key")
    listener = listen(0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/key/"
    server.should_exit = True
    thread.join(30)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: `make test-ui` brings one")
def test_a_real_browser_draws_a_history_of_hostile_texts(address: str, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    seen = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path}",
            "--virtual-time-budget=20000",
            "--dump-dom",
            f"{address}#/local/hostile/history",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in seen
    assert "Repository initialized" in seen
    assert 'role="listitem"' in seen
    assert "<script>alert" not in seen
