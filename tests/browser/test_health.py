"""What the home page and the history tell beside the commits themselves."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import zarr
from support.browsing import Ask, TestClient

from airflow_provider_icechunk.api import (
    ConflictDetector,
    Repository,
    in_memory_storage,
    local_filesystem_storage,
)
from airflow_provider_icechunk.browser.answers import Answers
from airflow_provider_icechunk.browser.history import read_written
from airflow_provider_icechunk.browser.serve import standalone
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_health_tells_missing_labels_garbage_and_the_last_verify(ask: Ask, root: Path) -> None:
    found = ask("health")
    assert found["missing_labels"] == {"/surface/wind_speed": 18}
    assert found["stored_bytes"] > 10_000_000
    assert (found["garbage_bytes"], found["rebases_lately"]) == (0, 0)
    assert found["commits_lately"] >= 7
    assert ask("verify")["ok"]
    (run,) = ask("health")["maintenance"]
    assert (run["what"], run["ok"], run["summary"]) == ("verify", True, "no errors")


def test_garbage_of_a_deleted_branch_is_seen(tmp_path: Path) -> None:
    made = Repository.create(local_filesystem_storage(tmp_path / "r"), spec_version=2)
    made.create_branch("gone", made.lookup_branch("main"))
    session = made.writable_session("gone")
    zarr.create_array(session.store, name="a", shape=(999,), dtype="f8", compressors=None)[:] = 1
    session.commit("soon unneeded")
    made.delete_branch("gone")
    app = standalone(lambda path: LocalStorage(tmp_path / path), "here", key="key")
    with TestClient(app, base_url="http://localhost") as client:
        answer = client.get("/key/api/places/local/health", params={"repository": "r"})
    assert answer.json()["garbage_bytes"] >= 8 * 999


@pytest.mark.parametrize("generation", ["1", "2"])
def test_a_commit_tells_its_bytes_and_its_rebases(generation: str) -> None:
    made = Repository.create(in_memory_storage(), spec_version=generation)
    session = made.writable_session("main")
    for name in "ab":
        zarr.create_array(
            session.store, name=name, shape=(1024, 2), chunks=(512, 1), dtype="f4", compressors=None
        )[:] = 1
    first = session.commit("all chunks")
    late = made.writable_session("main")
    zarr.open_array(late.store, path="a", mode="r+")[:512, 1] = 2
    for number in range(2):
        other = made.writable_session("main")
        zarr.open_array(other.store, path="b", mode="r+")[:, 0] = number
        other.commit("in its way")
    second = late.commit("one chunk", rebase_with=ConflictDetector())
    found = read_written(made, [first, second]).bytes
    assert found == {first: 8 * 512 * 4, second: 512 * 4}
    assert made.lookup_snapshot(second).metadata["__icechunk"] == {"rebase_attempts": 1}
    assert "__icechunk" not in made.lookup_snapshot(first).metadata


def test_the_history_shows_rebases_and_bytes(ask: Ask) -> None:
    commits = ask("history")["commits"]
    assert {one["rebases"] for one in commits} == {0}
    ids = [one["id"] for one in commits]
    found = ask("written", ids=".".join(ids))["bytes"]
    assert found[ids[-1]] is None, "the first snapshot has no log"
    assert found[ids[1]] > 1_000_000
    assert ask("written", ids="x" * 3000, status=400)["kind"]


def test_an_answer_is_kept_until_a_branch_moves(tmp_path: Path) -> None:
    made = Repository.create(local_filesystem_storage(tmp_path / "r"))
    app = standalone(lambda path: LocalStorage(tmp_path / path), "here", key="key")
    desk = app.routes[0].app.state.desk  # type: ignore[attr-defined]
    with TestClient(app, base_url="http://localhost") as client:

        def messages() -> list[str]:
            desk.shelf._standing.forget(("local", "r"))
            answer = client.get("/key/api/places/local/history", params={"repository": "r"})
            return [one["message"] for one in answer.json()["commits"]]

        assert messages() == messages() == ["Repository initialized"]
        assert len(desk.answers._kept) == 1
        session = made.writable_session("main")
        zarr.create_array(session.store, name="a", shape=(2,), dtype="i4")
        session.commit("next")
        assert messages()[0] == "next"
        assert len(desk.answers._kept) == 2


def test_answers_are_made_once_and_bounded_in_bytes() -> None:
    now = [0.0]
    answers = Answers(100, clock=lambda: now[0])
    started, go_on = threading.Event(), threading.Event()
    made: list[int] = []

    def slow() -> bytes:
        made.append(1)
        started.set()
        go_on.wait(30)
        return b"x" * 40

    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(answers.get("a", slow))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    started.wait(30)
    go_on.set()
    for thread in threads:
        thread.join()
    assert (len(made), len(found)) == (1, 5)
    with pytest.raises(ZeroDivisionError):
        answers.get("b", lambda: bytes(1 // 0))
    assert answers.get("b", lambda: b"y" * 40) == b"y" * 40
    answers.get("c", lambda: b"z" * 40)
    assert (answers.find("a"), answers.size) == (None, 80)
    now[0] = 61
    assert answers.find("c") is None


def test_texts_of_a_hostile_commit_count_nothing(tmp_path: Path) -> None:
    made = Repository.create(in_memory_storage())
    session = made.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(2,), dtype="i4")[:] = np.arange(2)
    identity = session.commit("lies", metadata={"__icechunk": {"rebase_attempts": "many"}})
    from airflow_provider_icechunk.engine.objects.line import read_rebases

    assert read_rebases(made.lookup_snapshot(identity).metadata) == 0
    assert read_rebases({"__icechunk": {"rebase_attempts": 1 << 40}}) == 0
    assert read_rebases({"commit_line": ["older release"]}) == 1
