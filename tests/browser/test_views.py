"""What the browser tells of real repositories."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.browsing import SCRIPT, Ask, TestClient

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from tools.screenshots.example import temperature

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TEMPERATURE = "/surface/temperature"


def floats(text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.frombuffer(base64.b64decode(text), "<f4")


def test_home_lists_the_place_and_its_repositories(client: TestClient, ask: Ask) -> None:
    home = client.get("/key/api/home").json()
    assert [one["id"] for one in home["places"]] == ["local"]
    assert ask("repositories")["paths"] == ["hostile", "virtual", "weather"]
    assert ask("repositories", search="WEA")["paths"] == ["weather"]
    assert ask("repositories", limit=1, offset=1) == {"paths": ["virtual"], "total": 3}


def test_a_summary_counts_what_the_newest_version_holds(ask: Ask) -> None:
    found = ask("summary")
    assert (found["arrays"], found["groups"], found["branches"], found["tags"]) == (7, 3, 2, 2)
    assert found["head"]["message"].startswith("Add the station list")
    assert found["logical_bytes"] > 2 * 6 * 24 * 90 * 180 * 4


def test_pages_of_a_history_join_to_the_whole_of_it_without_repeating(ask: Ask, root: Path) -> None:
    repository = Repository.open(local_filesystem_storage(root / "weather"))
    everything = {info.id for name in ("main", "calibration")
                  for info in repository.ancestry(branch=name)}  # fmt: skip
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = ask("history", limit=3, **({"cursor": cursor} if cursor else {}))
        found += page["commits"]
        cursor = page["cursor"]
        if cursor is None:
            break
    ids = [one["id"] for one in found]
    assert len(ids) == len(set(ids))
    assert set(ids) == everything
    times = [one["written_at"] for one in found]
    assert times == sorted(times, reverse=True)
    assert found[0]["branches"] == ["main"]
    assert {"v1", "2026-03-04"} == {tag for one in found for tag in one["tags"]}
    made = found[1]["maker"]
    assert (made["dag_id"], made["task_id"], made["page"]) == ("weather_daily", "day", None)


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"text": "STATION"}, 1),
        ({"text": "no such text"}, 0),
        ({"dag": "weather"}, 8),
        ({"path": "/stations/name"}, 1),
        ({"path": TEMPERATURE}, 8),
        ({"since": "2999-01-01"}, 0),
        ({"until": "2000-01-01"}, 0),
        ({"version": "tag:2026-03-04"}, 6),
    ],
)
def test_a_history_is_filtered(ask: Ask, query: dict[str, str], count: int) -> None:
    page = ask("history", **query)
    assert len(page["commits"]) == count
    assert page["cursor"] is None


def test_a_snapshot_says_what_it_changed_against_its_parent_and_any_other_version(ask: Ask) -> None:
    found = ask("snapshot")
    assert (found["added"], found["changed"], found["removed"]) == (3, 0, 0)
    found = ask("snapshot", version="calibration")
    assert (found["added"], found["changed"], found["chunks"]) == (0, 1, 24)
    assert [one["path"] for one in found["arrays"]] == [TEMPERATURE]
    across = ask("snapshot", version="main", against="calibration")
    assert across["against"] != found["commit"]["parent_id"]
    assert {one["path"] for one in across["arrays"]} >= {TEMPERATURE, "/stations/name"}
    backwards = ask("snapshot", version="2026-03-04", against="main")
    assert backwards["removed"] == 3


def test_a_tree_is_paged_marked_and_searched(ask: Ask) -> None:
    top = ask("tree")
    assert [(one["name"], one["mark"]) for one in top["nodes"]] == [
        ("stations", "added"),
        ("surface", None),
    ]
    inside = ask("tree", path="/surface", limit=2, offset=1)
    assert ([one["name"] for one in inside["nodes"]], inside["total"]) == (
        ["longitude", "temperature"],
        5,
    )
    assert ask("tree", search="speed")["nodes"][0]["path"] == "/surface/wind_speed"
    assert [one["name"] for one in ask("tree", marked=True)["nodes"]] == ["stations"]
    gone = ask("tree", version="2026-03-04", against="main")
    assert (gone["nodes"][0]["name"], gone["nodes"][0]["mark"]) == ("stations", "removed")


def test_an_array_tells_its_metadata_and_the_kinds_of_its_chunks(ask: Ask) -> None:
    found = ask("array", path=TEMPERATURE)
    assert [axis["name"] for axis in found["axes"]] == ["time", "latitude", "longitude"]
    assert found["axes"][0]["coordinate"] == "/surface/time"
    assert found["axes"][1]["units"] == "degrees_north"
    assert found["drawable"] == "image"
    assert found["chunks"]["native"] + found["chunks"]["inline"] == 6 * 4 * 2 * 3
    assert found["logical_bytes"] == 144 * 90 * 180 * 4


def test_a_chunk_map_shows_what_is_there_missing_and_written(ask: Ask) -> None:
    found = ask("chunks", path="/surface/wind_speed", version="v1", rows=0, columns=1)
    present = np.frombuffer(base64.b64decode(found["present"]), np.uint8).reshape(24, 2)
    changed = np.frombuffer(base64.b64decode(found["changed"]), np.uint8).reshape(24, 2)
    assert (present[:20] == 255).all()
    assert present[20].tolist() == [255, 0]
    assert not present[21:].any()
    assert (
        changed.astype(bool).tolist()
        == [[False, False]] * 20 + [[True, False]] + [[False, False]] * 3
    )
    assert found["chunks"] == 20 * 6 + 3


def test_a_large_grid_shares_cells_and_shows_a_single_chunk(ask: Ask, tmp_path: Path) -> None:
    from airflow_provider_icechunk.browser.arrays import read_chunk_map
    from airflow_provider_icechunk.browser.contents import VersionDifferences

    repository = Repository.create(local_filesystem_storage(tmp_path))
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(100_000,), chunks=(1,), dtype="i1")
    array[77_777] = 1
    session.commit("one chunk of many")
    found = read_chunk_map(repository, "main", "/a", None, VersionDifferences())
    present = np.frombuffer(base64.b64decode(found.present), np.uint8)
    assert (len(present), int((present > 0).sum())) == (256, 1)
    assert int(present.argmax()) == 77_777 * 256 // 100_000


def test_a_picture_has_the_values_of_the_array(ask: Ask) -> None:
    found = ask("picture", path=TEMPERATURE, at="30,0,0")
    drawn = floats(found["values"]).reshape(90, 180)
    np.testing.assert_array_equal(drawn, temperature(1)[6])
    assert found["fixed"] == {"time": "2026-03-02 06:00:00"}
    assert found["statistics"]["maximum"] == pytest.approx(float(drawn.max()))
    assert not found["sampled"]
    turned = ask("picture", path=TEMPERATURE, at="30,0,0", rows=2, columns=1)
    np.testing.assert_array_equal(floats(turned["values"]).reshape(180, 90), temperature(1)[6].T)
    thin = ask("picture", path=TEMPERATURE, at="30,0,0", height=9, width=18)
    np.testing.assert_array_equal(
        floats(thin["values"]).reshape(9, 18), temperature(1)[6][::10, ::10]
    )
    part = ask("picture", path=TEMPERATURE, at="30,0,0", box="10,20,30,60")
    np.testing.assert_array_equal(
        floats(part["values"]).reshape(10, 30), temperature(1)[6][10:20, 30:60]
    )


def test_lines_and_texts_are_shown_as_such(ask: Ask) -> None:
    line = ask("picture", path="/stations/height")
    assert line["kind"] == "line"
    assert floats(line["values"]).tolist() == [12, 30, 11, 6, 0, 309]
    texts = ask("picture", path="/stations/name")
    assert texts["kind"] == "table"
    assert texts["texts"][4] == SCRIPT


def test_two_versions_are_subtracted(ask: Ask) -> None:
    found = ask("compare", path=TEMPERATURE, left="2026-03-04", right="calibration", at="30,0,0")
    assert found["difference"]["statistics"]["maximum"] == pytest.approx(3, abs=0.05)
    assert found["difference"]["statistics"]["minimum"] >= 0
    other = ask("compare", path="/surface/time", left="2026-03-04", right="main")
    assert other["difference"] is None
    assert "shape" in other["reason"]


def test_a_cell_tells_where_its_bytes_are(ask: Ask, root: Path) -> None:
    found = ask("cell", path=TEMPERATURE, at="30,50,100")
    assert float(found["value"]) == pytest.approx(float(temperature(1)[6, 50, 100]))
    assert found["chunk"] == [5, 1, 1]
    assert (root / "weather" / found["file"]).stat().st_size >= found["offset"] + found["length"]
    missing = ask("cell", path="/surface/wind_speed", at="140,50,100", version="v1")
    assert (missing["kind"], missing["value"]) == ("missing", "nan")


def test_virtual_chunks_are_told_and_not_read_without_a_grant(ask: Ask, root: Path) -> None:
    assert ask("array", "virtual", path="/v")["chunks"]["virtual"] == 1
    found = ask("cell", "virtual", path="/v", at="0")
    assert (found["kind"], found["file"]) == ("virtual", f"file://{root}/foreign.bin")
    assert found["value"].startswith("cannot be read")
    told = ask("picture", "virtual", path="/v", status=502)
    assert "virtual" in told["message"].lower() or "authoriz" in told["message"].lower()


def test_a_dry_run_of_maintenance_changes_nothing(ask: Ask, root: Path) -> None:
    before = sorted(path for path in (root / "weather").rglob("*") if path.is_file())
    sizes = ask("sizes")
    assert {one["name"] for one in sizes["branches"]} == {"main", "calibration"}
    assert sizes["arrays"][0]["name"] in (TEMPERATURE, "/surface/wind_speed")
    assert ask("dry-run/expire", older_than="2d")["what"] == "expire"
    assert ask("dry-run/collect", older_than="2d")["lines"][0][0] == "snapshots"
    assert "minimum age" in ask("dry-run/collect", older_than="1m", status=400)["message"]
    assert ask("verify")["ok"] is True
    assert sorted(path for path in (root / "weather").rglob("*") if path.is_file()) == before


def test_coverage_names_the_labels_that_are_missing(ask: Ask) -> None:
    found = ask("coverage", path="/surface/wind_speed", dim="time", version="v1")
    assert (found["wanted"], found["missing_total"]) == (144, 18)


@pytest.mark.parametrize("generation", ["draft", "alpha1", "alpha", "1", "2"])
def test_every_generation_can_be_looked_at(tmp_path: Path, generation: str) -> None:
    from airflow_provider_icechunk.browser import contents, history, maintenance, pictures
    from airflow_provider_icechunk.browser.places import read_standing

    made = Repository.create(local_filesystem_storage(tmp_path), spec_version=generation)
    session = made.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(4, 4), chunks=(2, 2), dtype="i4")[:] = 3
    head = session.commit("first")
    refs = read_standing(made).names
    page = history.read_page(
        made, history.heads(refs), history.Filter(), refs=refs, limit=10, page_of=lambda _: None
    )
    assert page.commits[0].id == head
    found = contents.read_snapshot(
        made, "main", None, contents.VersionDifferences(), refs, lambda _: None
    )
    assert found.added >= 1
    assert pictures.draw(made, "main", "/a", pictures.PicturePart()).statistics.mean == 3
    assert maintenance.read_summary(made, ".", refs, lambda _: None).arrays == 1
