"""Draw the repository browser for the documentation: `make screenshots`.

Serves the example repository, opens each view in a headless Chromium and keeps the pictures below
`docs/pictures`, in light and dark.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path

import uvicorn

from airflow_provider_icechunk.browser.serve import HOST, listen, standalone
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage

from .chromium import MissingError, find_chromium
from .example import make_weather

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
_TEMPERATURE = "path=%2Fsurface%2Ftemperature"
VIEWS = {
    "home": ("light", ""),
    "history": ("light", "#/local/weather/history"),
    "snapshot": ("dark", "#/local/weather/snapshot?version=tag%3Av1"),
    "array": ("light", f"#/local/weather/array?{_TEMPERATURE}&version=tag%3Av1&at=30,0,0"),
    "compare": (
        "dark",
        f"#/local/weather/compare?{_TEMPERATURE}&left=2026-03-04&right=calibration&at=30,0,0",
    ),
}
"""By name: the theme, and the address after the key of the server."""


def main() -> int:
    """Make all pictures; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make screenshots", description=__doc__)
    parser.add_argument("--into", type=Path, default=PICTURES)
    into: Path = parser.parse_args().into
    try:
        chromium = find_chromium()
    except MissingError as error:
        print(error, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        make_weather(Path(folder, "weather"))
        app = standalone(lambda path: LocalStorage(Path(folder, path)), "weather archive", key="k")
        listener = listen(0)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            draw(chromium, f"http://{HOST}:{listener.getsockname()[1]}/k/", into)
        finally:
            server.should_exit = True
            thread.join()
    return 0


def draw(chromium: str, address: str, into: Path) -> None:
    """One picture of each view."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (theme, place) in VIEWS.items():
            page = browser.new_page(
                viewport={"width": 1280, "height": 860},
                color_scheme="dark" if theme == "dark" else "light",
            )
            page.goto(address + place)
            page.wait_for_load_state("networkidle")
            page.locator(".wait").first.wait_for(state="detached")
            target = into / f"browser-{name}.png"
            page.screenshot(path=target)
            print(f"  {target.name}")
            page.close()
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
