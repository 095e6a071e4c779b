"""The pages in Airflow's web server: who may look, what is shown, and that nothing is changed."""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import zarr
from fastapi import FastAPI, HTTPException
from support.browsing import NASTY, SCRIPT
from support.typed_ids import spellings

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.browser.app import readers
from airflow_provider_icechunk.engine.checks.checks import CHECKS_KEY
from airflow_provider_icechunk.get_provider_info import get_provider_info
from airflow_provider_icechunk.links.snapshot import (
    IcechunkRepositoryLink,
    IcechunkSnapshotLink,
    link_snapshot,
    snapshot_page,
)
from airflow_provider_icechunk.plugins.icechunk_plugin import IcechunkPlugin, LatePages

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("airflow_home"),
]
ROOT = Path(__file__).resolve().parents[2]
HERE = "/sub/icechunk"


class Guard:
    """Stands for Airflow's auth manager: says who may read which connection."""

    def __init__(self) -> None:
        self.readable = {"icechunk_default"}

    def is_authorized_connection(self, *, method: str, details: Any, user: Any) -> bool:
        assert method == "GET"
        return details.conn_id in self.readable


@pytest.fixture
def repository(folder: Path) -> Repository:
    made = Repository.create(local_filesystem_storage(folder / "weather"))
    session = made.writable_session("main")
    array = zarr.create_array(session.store, name="field", shape=(4,), chunks=(2,), dtype="i4")
    array[:] = 1
    session.commit(f"first {SCRIPT}")
    return made


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A client that is logged in if it has the cookie; the pages are mounted as Airflow does it."""
    from airflow.api_fastapi.core_api import security
    from fastapi.testclient import TestClient

    async def resolve(token: str | None) -> Any:
        if token != "valid":
            raise HTTPException(401, "not authenticated")
        return SimpleNamespace(name="somebody")

    monkeypatch.setattr(security, "resolve_user_from_token", resolve)
    monkeypatch.setattr(security, "get_auth_manager", Guard)
    monkeypatch.setattr("airflow_provider_icechunk.plugins.pages.get_auth_manager", Guard)
    app = FastAPI()
    (entry,) = IcechunkPlugin.fastapi_apps
    app.mount(entry["url_prefix"], LatePages())
    with TestClient(app, root_path="/sub", cookies={"_token": "valid"}) as client:
        yield client


def get(browser: TestClient, view: str, conn_id: str = "icechunk_default", **query: str) -> Any:
    return browser.get(
        f"{HERE}/api/places/{quote(conn_id, safe='')}/{view}",
        params={"repository": "weather", **query},
    )


VIEWS = sorted(
    route.path.removeprefix("/api/places/{connection_id}/").replace("{what}", "collect")  # type: ignore[attr-defined]
    for route in readers.routes
)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.usefixtures("repository")
def test_who_is_not_logged_in_or_may_not_read_the_connection_sees_nothing(
    browser: TestClient, view: str
) -> None:
    needed = {"path": "/field", "left": "main"}
    assert get(browser, view, "another", **needed).status_code == 403
    browser.cookies.clear()
    assert get(browser, view, **needed).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/static/plugin.js",
        "/api/home",
        "/open?connection_id=x&repository=y",
        "/connections/x/show?repository=y",
    ],
)
def test_also_the_page_its_files_and_old_addresses_need_a_login(
    browser: TestClient, path: str
) -> None:
    browser.cookies.clear()
    assert browser.get(f"{HERE}{path}", follow_redirects=False).status_code == 401


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
def test_nothing_is_public(browser: TestClient, path: str) -> None:
    assert browser.get(f"{HERE}{path}").status_code == 404


def test_home_lists_the_connections_that_the_user_may_read(
    browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    names = {"browser_one": "icechunk", "browser_two": "icechunk", "browser_other": "http"}
    with create_session() as session:
        for name, kind in names.items():
            session.add(Connection(conn_id=name, conn_type=kind, host="/x", password="hidden"))
    try:
        monkeypatch.setattr(
            Guard,
            "get_authorized_connections",
            lambda *_, **__: {"browser_one", "browser_other"},
            raising=False,
        )
        answer = browser.get(f"{HERE}/api/home")
    finally:
        with create_session() as session:
            session.execute(delete(Connection).where(Connection.conn_id.in_(names)))
    assert [one["id"] for one in answer.json()["places"]] == ["browser_one"]
    assert answer.json()["host"] == "airflow"
    assert "hidden" not in answer.text


def test_the_history_is_told_and_stored_text_is_only_text(
    browser: TestClient, repository: Repository
) -> None:
    answer = get(browser, "history")
    assert answer.status_code == 200
    assert answer.json()["commits"][0]["id"] == repository.lookup_branch("main")
    assert answer.json()["commits"][0]["message"] == f"first {SCRIPT}"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("generation", ["draft", "alpha1", "alpha", "1", "2"])
def test_ids_of_every_generation_lead_to_their_snapshot_however_they_are_typed(
    browser: TestClient, folder: Path, generation: str
) -> None:
    made = Repository.create(local_filesystem_storage(folder / "weather"), spec_version=generation)
    session = made.writable_session("main")
    zarr.create_group(session.store, path="g")
    session.commit("first")
    head, first = (info.id for info in made.ancestry(branch="main"))
    assert [one["id"] for one in get(browser, "history").json()["commits"]] == [head, first]
    for typed in spellings(first):
        answer = get(browser, "snapshot", version=typed)
        assert answer.json()["commit"]["id"] == first


def test_a_snapshot_says_which_task_made_it_and_what_the_checks_found(
    browser: TestClient, repository: Repository
) -> None:
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="field", mode="r+")[:] = 2
    airflow = {"dag_id": "a/b", "run_id": f"r{SCRIPT}", "task_id": "t", "map_index": 3}
    verdict = {"check": "range", "subject": SCRIPT, "passed": False, "value": 5, "limit": [0, 1]}
    report = {"snapshot_id": "x", "passed": False, "checks": [verdict, "nonsense"]}
    head = session.commit("made", metadata={"airflow": airflow, CHECKS_KEY: report})
    page = get(browser, "snapshot", version=head).json()
    place = "/dags/a%2Fb/runs/r%3Cscript%3Ealert%281%29%3C%2Fscript%3E/tasks/t/mapped/3"
    assert page["commit"]["maker"]["page"] == place
    assert [(one["passed"], one["check"]) for one in page["checks"]] == [("failed", "range")]
    assert get(browser, "summary").json()["checks_passed"] is False
    from airflow_provider_icechunk.browser.contents import read_checks
    from airflow_provider_icechunk.browser.history import maker_of

    for strange in (1, {"dag_id": 1}, {"dag_id": "d", "run_id": "", "task_id": "t"}):
        assert maker_of({"airflow": strange}) is None
        assert read_checks({CHECKS_KEY: strange}) == []


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"repository": "../outside"}, 400),
        ({"repository": "nowhere"}, 404),
        ({"version": "nothing"}, 404),
        ({"version": "--help"}, 404),
        ({"repository": SCRIPT}, 404),
    ],
)
@pytest.mark.usefixtures("repository")
def test_a_mistake_is_explained(
    browser: TestClient, folder: Path, query: dict[str, str], status: int
) -> None:
    answer = get(browser, "snapshot", **query)
    assert answer.status_code == status
    assert answer.json()["message"]
    assert [one.name for one in folder.iterdir()] == ["weather"]


def test_a_connection_that_is_not_there_is_a_mistake_too(
    browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guard, "is_authorized_connection", lambda *_, **__: True)
    assert get(browser, "refs", "nowhere").status_code == 404


@pytest.mark.parametrize("method", ["post", "put", "delete", "patch"])
@pytest.mark.usefixtures("repository")
def test_the_pages_only_read(browser: TestClient, method: str) -> None:
    for view in VIEWS:
        address = f"{HERE}/api/places/icechunk_default/{view}?repository=weather"
        assert getattr(browser, method)(address).status_code == 405


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("log?repository=a+b", "history"),
        ("show?repository=a+b&version=X", "snapshot?version=X"),
        ("tree?repository=a+b", "contents?version=main"),
        ("diff?repository=a+b&older=Y&newer=Z", "snapshot?version=Z&against=Y"),
        ("coverage?repository=a+b&array=%2Fv", "array?version=main&path=%2Fv"),
    ],
)
def test_addresses_of_earlier_releases_lead_to_the_new_views(
    browser: TestClient, old: str, new: str
) -> None:
    answer = browser.get(f"{HERE}/connections/my%20conn/{old}", follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/sub/plugin/icechunk#/my%20conn/a%20b/{new}"
    answer = browser.get(
        f"{HERE}/open",
        params={"connection_id": "a/../b", "repository": "x&y=1"},
        follow_redirects=False,
    )
    assert answer.headers["location"] == "/sub/plugin/icechunk#/a%2F..%2Fb/x%26y%3D1/history"


@pytest.mark.parametrize("value", NASTY)
def test_addresses_of_earlier_releases_lead_nowhere_else(browser: TestClient, value: str) -> None:
    usual = {"connection_id": "c", "repository": "r"}
    for path, names in {
        "open": ("connection_id", "repository"),
        "connections/c/show": ("repository", "version"),
        "connections/c/diff": ("older", "newer"),
        "connections/c/coverage": ("array",),
        f"connections/{quote(value, safe='')}/log": ("repository",),
    }.items():
        for name in names:
            given = {**usual, name: value}
            answer = browser.get(f"{HERE}/{path}", params=given, follow_redirects=False)
            assert "set-cookie" not in answer.headers
            if answer.status_code == 303:
                assert re.fullmatch(
                    r"/sub/plugin/icechunk#/[\w%.~/-]+(\?[\w%.~=&+-]*)?", answer.headers["location"]
                )
            else:
                # A slash in the name of a connection is another path.
                assert (answer.status_code, "log" in path) == (404, True)


@pytest.mark.usefixtures("repository")
def test_the_pages_can_be_switched_off(
    browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_icechunk.plugins.icechunk_plugin import _apps

    assert {one["destination"] for one in _apps()} == {"nav", "dag_run", "task_instance"}
    monkeypatch.setenv("AIRFLOW__ICECHUNK__REPOSITORY_PAGES", "False")
    assert get(browser, "history").status_code == 404
    assert browser.get(f"{HERE}/").status_code == 404
    assert _apps() == []


def test_airflow_finds_the_plugin_and_the_link() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["airflow.plugins"]["icechunk"].partition(":")
    assert getattr(importlib.import_module(module), name) is IcechunkPlugin
    links = (path.rpartition(".") for path in get_provider_info()["extra-links"])
    found = [getattr(importlib.import_module(module), name) for module, _, name in links]
    assert found == [IcechunkSnapshotLink, IcechunkRepositoryLink]


def test_a_link_leads_to_the_page_of_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://host.example/sub/")
    page = snapshot_page("my/conn", "a b", "1CECHNKREP0F1RSTCMT0")
    assert page == "/sub/plugin/icechunk#/my%2Fconn/a%20b/snapshot?version=1CECHNKREP0F1RSTCMT0"
    task: Any = SimpleNamespace()
    assert IcechunkSnapshotLink().get_link(task, ti_key=None) == ""  # type: ignore[arg-type]
    link_snapshot(task, conn_id="my/conn", repository="a b", snapshot_id="1CECHNKREP0F1RSTCMT0")
    assert IcechunkSnapshotLink().get_link(task, ti_key=None) == page  # type: ignore[arg-type]


def test_airflow_before_3_1_gets_a_page_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_icechunk import compat
    from airflow_provider_icechunk.plugins import icechunk_plugin

    assert compat.has_react_apps()
    assert icechunk_plugin._menu() == []
    monkeypatch.setattr(compat, "airflow_version", lambda: "3.0.6")
    assert not compat.has_react_apps()
    assert icechunk_plugin._menu() == [{"name": "Icechunk", "href": "/icechunk/"}]
    assert snapshot_page("c", "r", "X") == "/icechunk/#/c/r/snapshot?version=X"


def test_a_task_leads_to_its_repository_whether_it_wrote_or_failed() -> None:
    link, nothing = IcechunkRepositoryLink(), SimpleNamespace(repository=None)
    task: Any = SimpleNamespace(icechunk_conn_id="c", repository="a b")
    assert link.get_link(task, ti_key=None) == "/plugin/icechunk#/c/a%20b/history"  # type: ignore[arg-type]
    task.icechunk_view = "maintenance"
    assert link.get_link(task, ti_key=None).endswith("/maintenance")  # type: ignore[arg-type]
    assert link.get_link(nothing, ti_key=None) == ""  # type: ignore[arg-type]


def test_every_operator_that_makes_a_snapshot_has_the_link_and_airflow_keeps_it(
    airflow_home: Path, folder: Path
) -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    bag = DagBag(airflow_home / "dags" / "everything.py")
    dag = bag.dags["everything"]
    linked = {
        name
        for name, task in dag.task_dict.items()
        if any(isinstance(one, IcechunkSnapshotLink) for one in task.operator_extra_links)
    }
    assert {"commit", "write", "publish", "tag", "rewrite"} <= linked
    dag = DagBag(airflow_home / "dags" / "transaction.py").dags["transaction"]
    finished = dag.test()
    assert finished.state == "success"
    head = Repository.open(local_filesystem_storage(folder / "transaction")).lookup_branch("main")
    wanted = select(XComModel.value).where(
        XComModel.run_id == finished.run_id, XComModel.key == IcechunkSnapshotLink().xcom_key
    )
    with create_session() as session:
        (kept,) = session.scalars(wanted).all()
    kept = json.loads(kept) if isinstance(kept, str) and kept.startswith('"') else kept
    assert kept == snapshot_page("icechunk_default", "transaction", head)
