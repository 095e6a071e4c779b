"""The page in a real Chromium: every view, both themes, deep links, errors; and inside of Airflow.

Run by `make test-ui`, which installs the driver.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from support.browsing import SCRIPT, api_server, launch, token_of

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.browser.serve import listen, standalone
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage

pytestmark = [pytest.mark.ui, pytest.mark.long, pytest.mark.timeout(900)]
ARRAY = "path=%2Fsurface%2Ftemperature&at=30,0,0"
VIEWS = {
    "": "weather",
    "local/weather/history": "Temperature and wind of 2026-03-06",
    "local/weather/snapshot?version=tag%3Av1": "chunks written",
    "local/weather/contents": "surface",
    f"local/weather/array?{ARRAY}": "Air temperature at 2 m",
    f"local/weather/compare?{ARRAY}&left=2026-03-04&right=calibration": "Difference",
    "local/weather/maintenance": "By array",
    "local/weather/array?path=%2Fstations%2Fname": SCRIPT,
    "local/hostile/history": SCRIPT,
}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with launch() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(root: Path) -> Iterator[str]:
    with serving(lambda path: LocalStorage(root / path)) as found:
        yield found


def open_page(chromium: Any, theme: str = "light", **options: Any) -> tuple[Any, list[str]]:
    page = chromium.new_page(color_scheme=theme, **options)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: (problems.append("a dialog"), dialog.dismiss()))
    return page, problems


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_each_view_is_drawn_in_both_themes(chromium: Any, address: str, theme: str) -> None:
    page, problems = open_page(chromium, theme)
    for place, text in VIEWS.items():
        page.goto("about:blank")
        page.goto(f"{address}#/{place}")
        page.get_by_text(text).first.wait_for()
        page.wait_for_load_state("networkidle")
        assert page.locator(".problem").count() == 0, page.locator(".problem").all_inner_texts()
    colour = page.evaluate("getComputedStyle(document.querySelector('.ick')).backgroundColor")
    assert (colour == "rgb(255, 255, 255)") == (theme == "light")
    assert problems == []


def test_a_picture_has_many_colours_and_a_click_tells_the_chunk(
    chromium: Any, address: str
) -> None:
    page, problems = open_page(chromium)
    page.goto(f"{address}#/local/weather/array?{ARRAY}")
    canvas = page.locator("section[aria-label=Picture] canvas")
    canvas.wait_for()
    page.get_by_text("values shown").first.wait_for()
    colours = canvas.evaluate(
        "c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height)"
        ".data.buffer)).size"
    )
    assert colours > 100
    canvas.click(position={"x": 250, "y": 100})
    page.get_by_text("chunks/").first.wait_for()
    page.get_by_label("Position along time").fill("60")
    page.get_by_text("2026-03-03 12:00:00").first.wait_for()
    assert "at=60" in page.url
    assert problems == []


def test_a_part_that_was_drawn_over_is_shown_larger_until_one_goes_back(
    chromium: Any, address: str
) -> None:
    page, problems = open_page(chromium)
    page.goto(f"{address}#/local/weather/array?{ARRAY}")
    canvas = page.locator("section[aria-label=Picture] canvas")
    page.get_by_text("16,200 values shown").wait_for()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 120, steps=5)
    page.mouse.up()
    page.get_by_text("of 16,200 shown").wait_for()
    assert page.get_by_role("status").count() == 0, "a drag is no click"
    page.reload()
    page.get_by_text("of 16,200 shown").wait_for()
    page.go_back()
    page.get_by_text("16,200 values shown").wait_for()
    canvas.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.get_by_text("chunks/").first.wait_for()
    assert problems == []


def test_links_and_the_back_button_work(chromium: Any, address: str) -> None:
    page, problems = open_page(chromium)
    page.goto(address)
    page.get_by_role("heading", name="weather").click()
    page.get_by_role("link", name="Correct the sensor drift of 2 March").click()
    page.get_by_role("link", name="/surface/temperature").first.click()
    page.get_by_text("Air temperature at 2 m").first.wait_for()
    page.go_back()
    page.get_by_text("Compared with").wait_for()
    page.go_back()
    page.get_by_role("list", name="History, newest first").wait_for()
    page.get_by_label("Text in the message or id").fill("station")
    page.get_by_text("1 match in").wait_for()
    page.reload()
    page.get_by_text("1 match in").wait_for()
    assert problems == []


def test_the_page_fits_a_narrow_screen_and_the_keyboard(chromium: Any, address: str) -> None:
    page, _ = open_page(chromium, viewport={"width": 390, "height": 800})
    for place in VIEWS:
        page.goto("about:blank")
        page.goto(f"{address}#/{place}")
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, place
    page.goto(f"{address}#/local/weather/history")
    page.get_by_role("link", name="Add the station list").focus()
    page.keyboard.press("Enter")
    page.get_by_text("Compared with").wait_for()


@contextmanager
def serving(locate: Callable[[str], LocalStorage]) -> Iterator[str]:
    """The address of the page over some storage."""
    listener = listen(0)
    app = standalone(locate, "here", key="key")
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/key/"
    finally:
        server.should_exit = True
        thread.join(30)


def test_a_slow_storage_is_waited_for_and_said_to_be_slow(chromium: Any, root: Path) -> None:
    answers = threading.Event()

    def locate(path: str) -> LocalStorage:
        answers.wait(120)
        return LocalStorage(root / path)

    with serving(locate) as address:
        page, problems = open_page(chromium)
        for place in ("history", "contents"):
            page.goto(f"{address}#/local/weather/{place}")
            page.get_by_text("Still loading").first.wait_for()
        answers.set()
        page.get_by_text("surface").first.wait_for()
        assert page.get_by_text("Still loading").count() == 0
        page.goto("about:blank")
        assert problems == []


def test_what_is_gone_is_explained(chromium: Any, tmp_path: Path) -> None:
    import zarr

    made = Repository.create(local_filesystem_storage(tmp_path / "r"))
    session = made.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(9, 9), chunks=(9, 9), dtype="f8",
                      compressors=None)[:] = 1  # fmt: skip
    session.commit("one chunk")
    with serving(lambda path: LocalStorage(tmp_path / path)) as address:
        page, problems = open_page(chromium)
        page.goto(f"{address}#/local/nowhere/history")
        page.get_by_role("alert").get_by_text("there is no repository").first.wait_for()
        for file in (tmp_path / "r" / "chunks").iterdir():
            file.unlink()
        page.goto(f"{address}#/local/r/array?path=%2Fa")
        page.get_by_role("alert").get_by_text("is missing").first.wait_for()
        page.get_by_text("1 chunk there").first.wait_for()
        page.goto("about:blank")
        assert problems == []


@pytest.fixture(scope="module")
def airflow(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A real API server with a connection to the repositories, an admin and a viewer."""
    with api_server(root, tmp_path_factory.mktemp("airflow")) as (address, home, _):
        yield address, home


def log_in(chromium: Any, airflow: tuple[str, Path], user: str, theme: str = "light") -> Any:
    address, home = airflow
    context = chromium.new_context(color_scheme=theme, viewport={"width": 1400, "height": 900})
    context.add_cookies(
        [{"name": "_token", "value": token_of(address, home, user), "url": address}]
    )
    return context.new_page()


@pytest.mark.airflow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_inside_of_airflow_the_browser_has_its_theme_and_its_navigation(
    chromium: Any, airflow: tuple[str, Path], theme: str
) -> None:
    page = log_in(chromium, airflow, "admin", theme)
    page.goto(f"{airflow[0]}/plugin/icechunk#/icechunk_default/weather/history")
    page.get_by_text("Temperature and wind of 2026-03-06").first.wait_for(timeout=60_000)
    assert page.locator(".ick.hosted").count() == 1
    assert page.get_by_role("navigation").count() + page.locator("nav").count() > 1
    dark = page.evaluate("document.documentElement.classList.contains('dark')")
    colour = page.evaluate("getComputedStyle(document.querySelector('.ick')).backgroundColor")
    assert (colour != "rgb(255, 255, 255)") == dark
    page.get_by_role("link", name="Correct the sensor drift of 2 March").click()
    page.get_by_role("link", name="/surface/temperature").first.click()
    page.get_by_text("Air temperature at 2 m").first.wait_for()
    page.go_back()
    page.get_by_text("Compared with").wait_for()
    page.goto(f"{airflow[0]}/icechunk/connections/icechunk_default/log?repository=weather")
    page.get_by_text("Add the station list").first.wait_for()
    kept = os.environ.get("ICECHUNK_SCREENSHOTS")
    if kept:
        page.screenshot(path=Path(kept, f"airflow-{theme}.png"))


@pytest.mark.airflow
def test_who_may_not_read_the_connection_is_told_so(
    chromium: Any, airflow: tuple[str, Path]
) -> None:
    page = log_in(chromium, airflow, "viewer")
    page.goto(f"{airflow[0]}/plugin/icechunk#/icechunk_default/weather/history")
    page.get_by_text("You may not read this connection").first.wait_for(timeout=60_000)
    assert page.get_by_text("Temperature and wind").count() == 0


@pytest.mark.airflow
def test_every_route_asks_who_it_is_and_what_they_may(
    chromium: Any, airflow: tuple[str, Path]
) -> None:
    from airflow_provider_icechunk.browser.app import files, readers

    usual = "?repository=weather&path=/surface/time&left=v1&ids=x&at=0"
    routes = [
        f"/icechunk{route.path}".format(connection_id="icechunk_default", what="expire", name="x")  # type: ignore[attr-defined]
        for router in (files, readers)
        for route in router.routes
    ]
    nobody, viewer, admin = (
        chromium.new_context().request,
        log_in(chromium, airflow, "viewer").request,
        log_in(chromium, airflow, "admin").request,
    )
    for route in [*routes, "/icechunk/api/home"]:
        seen = [who.get(f"{airflow[0]}{route}{usual}").status for who in (nobody, viewer, admin)]
        allowed = 404 if route.endswith("/static/x") else 400 if route.endswith("written") else 200
        assert seen == [401, 403 if "places" in route else allowed, allowed], route
    home = viewer.get(f"{airflow[0]}/icechunk/api/home").json()
    assert home["places"] == []
