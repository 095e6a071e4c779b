"""The source of streams: what changed between snapshots of a branch is told once."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
import zarr
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from support.streams import commit_attribute, history, reader, repository_at, rows, short
from support.typed_ids import spellings

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.exceptions import NotFoundError
from airflow_provider_icechunk.spark.source.options import parse_options
from airflow_provider_icechunk.spark.source.stream_read import Changes, check_gapless


def change_much(place: str) -> list[str]:
    """Three commits: write, create and erase, delete."""
    repository = repository_at(place)
    ids = []
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[:2, 8:] = 7
    ids.append(session.commit("one"))
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    zarr.open_array(session.store, path="a", mode="r+")[0, 8:] = 0
    root.attrs["x"] = 1
    root.create_array("b/c", shape=(2,), chunks=(2,), dtype="int8")[:] = 1
    ids.append(session.commit("two"))
    session = repository.writable_session("main")
    del zarr.open_group(session.store, mode="a")["b"]
    ids.append(session.commit("three"))
    return ids


def test_changes_are_told_by_commit_node_and_chunk(place: str) -> None:
    source = reader(place)
    start = source.initialOffset()
    ids = change_much(place)
    end = source.latestOffset(start, ReadAllAvailable())
    assert end == {"snapshot": ids[-1]} == source.reportLatestOffset()
    found = rows(source, start, end)
    assert short(found) == [
        ("one", "/a", "written", (0, 2)),
        ("one", "/a", "written", (1, 2)),
        ("three", "/b", "deleted", ()),
        ("three", "/b/c", "deleted", ()),
        ("two", "/", "updated", ()),
        ("two", "/a", "erased", (0, 2)),
        ("two", "/b", "created", ()),
        ("two", "/b/c", "created", ()),
        ("two", "/b/c", "written", (0,)),
    ]
    last = next(row for row in found if row["chunk"] == [1, 2])
    assert (last["start"], last["shape"]) == ([1, 8], [1, 2])
    assert (last["snapshot_id"], last["parent_id"]) == (ids[0], start["snapshot"])
    assert rows(source, end, end) == []


def test_a_batch_of_changes_can_be_limited_and_ends_where_a_run_began(place: str) -> None:
    source = reader(place, commits_per_batch="2")
    start = source.initialOffset()
    ids = change_much(place)
    assert source.getDefaultReadLimit() == ReadMaxFiles(2)
    assert source.latestOffset(start, ReadMaxFiles(2)) == {"snapshot": ids[1]}
    source.prepareForTriggerAvailableNow()
    commit_attribute(place, "late")
    assert source.latestOffset(start, ReadAllAvailable()) == {"snapshot": ids[2]}
    assert source.latestOffset({"snapshot": ids[2]}, ReadMaxFiles(2)) == {"snapshot": ids[2]}


def test_everything_is_what_is_there_and_changes_from_then_on(place: str) -> None:
    change_much(place)
    source = reader(place, since="everything", node="/a")
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    found = rows(source, start, end)
    assert short(found) == [("three", "/a", "created", ()), ("three", "/a", "written", (1, 2))]


def test_only_changes_below_a_node_are_told(place: str) -> None:
    source = reader(place, node="b", since=history(place)[0].id)
    start = source.initialOffset()
    change_much(place)
    found = rows(source, start, source.latestOffset(start, ReadAllAvailable()))
    assert {row["path"] for row in found} == {"/b", "/b/c"}


def test_a_move_is_told_with_both_paths(tmp_path: Path) -> None:
    path = tmp_path / "second"
    repository = Repository.create(local_filesystem_storage(path), spec_version=2)
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a").create_group("old")
    start = session.commit("first")
    moving = repository.rearrange_session("main")
    moving.move("/old", "/new")
    moving.commit("moved")
    source = reader(str(path), since=start)
    found = rows(source, source.initialOffset(), source.reportLatestOffset())
    assert [(row["path"], row["change"], row["moved_from"]) for row in found] == [
        ("/new", "moved", "/old")
    ]


def test_a_history_that_was_reset_is_refused(place: str) -> None:
    ids = change_much(place)
    repository_at(place).reset_branch("main", ids[0])
    source = reader(place)
    with pytest.raises(NotFoundError, match="the branch was reset") as caught:
        source.latestOffset({"snapshot": ids[1]}, ReadAllAvailable())
    assert ids[1] in str(caught.value)
    with pytest.raises(NotFoundError, match="new checkpoint"):
        reader(place, since="V1JS0NYHT3ZFE7B2QR6G").initialOffset()


def test_a_stream_goes_on_over_an_expired_history_only_from_a_snapshot_that_is_left(
    place: str,
) -> None:
    root = history(place)[-1].id
    ids = change_much(place)
    repository_at(place).expire_snapshots(datetime.now(UTC))
    source = reader(place)
    with pytest.raises(NotFoundError, match="expired"):
        source.latestOffset({"snapshot": ids[0]}, ReadAllAvailable())
    # The last commit answers for all that happened since the first snapshot: nothing is left out.
    assert short(rows(source, {"snapshot": root}, {"snapshot": ids[2]})) == [
        ("three", "/", "created", ()),
        ("three", "/a", "created", ()),
        ("three", "/a", "written", (1, 2)),
    ]


def test_a_node_that_no_commit_created_stops_the_stream(place: str) -> None:
    repository = repository_at(place)
    newest, *_, first = history(place)
    diff = repository.diff(from_snapshot_id=first.id, to_snapshot_id=newest.id)
    check_gapless(diff, newest, before=(), after=("/", "/a"))
    with pytest.raises(NotFoundError, match=f"before snapshot {newest.id} expired.*'/lost'"):
        check_gapless(diff, newest, before=(), after=("/", "/a", "/lost"))


def test_the_source_travels_without_its_repository(place: str) -> None:
    changes = Changes(parse_options({"path": place, "layout": "changes"}))
    assert changes.head() == history(place)[0].id
    copied, arguments = changes.__reduce__()
    assert copied(*arguments)._repository is None


def test_a_stream_begins_after_a_snapshot_in_any_spelling(place: str) -> None:
    start = repository_at(place).lookup_branch("main")
    change_much(place)
    for typed in spellings(start):
        assert Changes(parse_options({"path": place, "since": typed})).first() == start
