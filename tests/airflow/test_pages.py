"""The pages in Airflow's web server: who may look, what is shown, and that nothing is changed."""

from __future__ import annotations

import importlib
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import zarr
from fastapi import FastAPI, HTTPException
from support.typed_ids import spellings

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.engine.pipelines.checks import CHECKS_KEY
from airflow_provider_icechunk.get_provider_info import get_provider_info
from airflow_provider_icechunk.links.snapshot import (
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
SCRIPT = "<script>alert(1)</script>"
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
    app = FastAPI()
    (entry,) = IcechunkPlugin.fastapi_apps
    app.mount(entry["url_prefix"], LatePages())
    with TestClient(app, root_path="/sub", cookies={"_token": "valid"}) as client:
        yield client


def get(browser: TestClient, view: str, conn_id: str = "icechunk_default", **query: str) -> Any:
    return browser.get(
        f"{HERE}/connections/{conn_id}/{view}", params={"repository": "weather", **query}
    )


@pytest.mark.parametrize("view", ["log", "show", "tree", "diff"])
@pytest.mark.usefixtures("repository")
def test_who_is_not_logged_in_or_may_not_read_the_connection_sees_nothing(
    browser: TestClient, view: str
) -> None:
    assert get(browser, view, "another").status_code == 403
    browser.cookies.clear()
    assert get(browser, view).status_code == 401


@pytest.mark.parametrize("path", ["/", "/open?connection_id=x&repository=y"])
def test_also_the_form_needs_a_login(browser: TestClient, path: str) -> None:
    browser.cookies.clear()
    assert browser.get(f"{HERE}{path}", follow_redirects=False).status_code == 401


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
def test_nothing_is_public(browser: TestClient, path: str) -> None:
    assert browser.get(f"{HERE}{path}").status_code == 404


def test_the_history_is_shown_with_links_and_stored_text_is_only_text(
    browser: TestClient, repository: Repository
) -> None:
    answer = get(browser, "log")
    head = repository.lookup_branch("main")
    assert answer.status_code == 200
    assert f'<a href="show?repository=weather&amp;version={head}">{head}</a>' in answer.text
    assert SCRIPT not in answer.text
    assert "&lt;script&gt;" in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("generation", ["draft", "alpha1", "alpha", "1", "2"])
def test_ids_of_every_generation_are_links_that_lead_to_their_snapshot(
    browser: TestClient, folder: Path, generation: str
) -> None:
    made = Repository.create(local_filesystem_storage(folder / "weather"), spec_version=generation)
    session = made.writable_session("main")
    zarr.create_group(session.store, path="g")
    foreign = "b7a40d8e-0c44-4a4a-a6a9-0d9c8e2d6a1f 1CECHNKREP0F1RSTCMT0 VY76P925PRY57WFEK410VY76P9"
    session.commit("first", metadata={"other": foreign})
    head, first = (info.id for info in made.ancestry(branch="main"))
    for page in (get(browser, "log"), get(browser, "show", version=head)):
        for one in (head, first):
            link = f'<a href="show?repository=weather&amp;version={one}">{one}</a>'
            assert link in page.text
    assert page.text.count('<a href="show?') <= 3
    for typed in spellings(first):
        answer = get(browser, "show", version=typed)
        assert answer.status_code == 200
        assert first in answer.text


def test_a_snapshot_the_tree_and_differences_are_shown(
    browser: TestClient, repository: Repository
) -> None:
    head, first = (info.id for info in repository.ancestry(branch="main"))
    assert "/field" in get(browser, "show", version=head).text
    assert "int32" in get(browser, "tree").text
    assert "/field" in get(browser, "diff", older=first, newer="main").text


def test_a_snapshot_says_which_task_made_it_and_what_the_checks_found(
    browser: TestClient, repository: Repository
) -> None:
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="field", mode="r+")[:] = 2
    airflow = {"dag_id": "a/b", "run_id": f"r{SCRIPT}", "task_id": "t", "map_index": 3}
    verdict = {"check": "range", "subject": SCRIPT, "passed": False, "value": 5, "limit": [0, 1]}
    report = {"snapshot_id": "x", "passed": False, "checks": [verdict, "nonsense"]}
    head = session.commit("made", metadata={"airflow": airflow, CHECKS_KEY: report})
    page = get(browser, "show", version=head).text
    place = "/dags/a%2Fb/runs/r%3Cscript%3Ealert%281%29%3C%2Fscript%3E/tasks/t/mapped/3"
    assert f'<a target="_top" href="{place}">a/b / r&lt;script&gt;' in page
    assert "<td>failed</td><td>range</td><td>&lt;script&gt;" in page
    assert SCRIPT not in page
    from airflow_provider_icechunk.plugins.pages import about

    for strange in (1, {"dag_id": 1}, {"dag_id": "d", "run_id": "", "task_id": "t"}):
        assert about({"airflow": strange, CHECKS_KEY: strange}) == ""


def test_the_labels_that_are_there_are_shown(browser: TestClient, repository: Repository) -> None:
    page = get(browser, "coverage", array="field")
    assert page.status_code == 200
    assert "4 of 4 labels of 0 are there" in page.text
    assert get(browser, "coverage", array=SCRIPT).status_code == 404
    assert 'action="coverage"' in get(browser, "log").text


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
    answer = get(browser, "show", **query)
    assert answer.status_code == status
    assert 'class="problem"' in answer.text
    assert SCRIPT not in answer.text
    assert [one.name for one in folder.iterdir()] == ["weather"]


def test_a_connection_that_is_not_there_is_a_mistake_too(
    browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guard, "is_authorized_connection", lambda *_, **__: True)
    assert get(browser, "log", "nowhere").status_code == 404


@pytest.mark.parametrize("method", ["post", "put", "delete", "patch"])
@pytest.mark.usefixtures("repository")
def test_the_pages_only_read(browser: TestClient, method: str) -> None:
    address = f"{HERE}/connections/icechunk_default/log?repository=weather"
    assert getattr(browser, method)(address).status_code == 405
    for view in ("gc", "expire", "verify", "branch"):
        assert get(browser, view).status_code == 422


def test_the_form_leads_to_a_repository_below_the_address_of_the_server(
    browser: TestClient,
) -> None:
    assert f'action="{HERE}/open"' in browser.get(f"{HERE}/").text
    answer = browser.get(
        f"{HERE}/open",
        params={"connection_id": "a/../b", "repository": "x&y=1"},
        follow_redirects=False,
    )
    assert answer.headers["location"] == f"{HERE}/connections/a%2F..%2Fb/log?repository=x%26y%3D1"


@pytest.mark.usefixtures("repository")
def test_the_pages_can_be_switched_off(
    browser: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__ICECHUNK__REPOSITORY_PAGES", "False")
    assert get(browser, "log").status_code == 404
    assert browser.get(f"{HERE}/").status_code == 404


def test_airflow_finds_the_plugin_and_the_link() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["airflow.plugins"]["icechunk"].partition(":")
    assert getattr(importlib.import_module(module), name) is IcechunkPlugin
    (path,) = get_provider_info()["extra-links"]
    module, _, name = path.rpartition(".")
    assert getattr(importlib.import_module(module), name) is IcechunkSnapshotLink


def test_a_link_leads_to_the_page_of_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://host.example/sub/")
    page = snapshot_page("my/conn", "a b", "1CECHNKREP0F1RSTCMT0")
    assert page == (
        f"{HERE}/connections/my%2Fconn/show?repository=a+b&version=1CECHNKREP0F1RSTCMT0"
    )
    task: Any = SimpleNamespace()
    assert IcechunkSnapshotLink().get_link(task, ti_key=None) == ""  # type: ignore[arg-type]
    link_snapshot(task, conn_id="my/conn", repository="a b", snapshot_id="1CECHNKREP0F1RSTCMT0")
    assert IcechunkSnapshotLink().get_link(task, ti_key=None) == page  # type: ignore[arg-type]


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
