"""Maintenance by its operators: what goes, what stays, what is refused."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zarr
from support.airflow_contexts import make_context

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.exceptions import InvalidInputError, MaintenanceError
from airflow_provider_icechunk.hooks.cutoffs import SAFE_AGE, read_age, safe_cutoff
from airflow_provider_icechunk.operators.maintenance import (
    IcechunkExpireSnapshotsOperator,
    IcechunkGarbageCollectOperator,
    IcechunkMeasureOperator,
    IcechunkRewriteManifestsOperator,
    IcechunkVerifyOperator,
)
from airflow_provider_icechunk.storage.local import LocalStorage

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
COMMITS = 4


@pytest.fixture
def repository(folder: Path) -> Repository:
    """Four commits, each of which overwrites the one chunk of the one before."""
    made = Repository.create(local_filesystem_storage(folder / "weather"))
    for value in range(COMMITS):
        session = made.writable_session("main")
        if not value:
            shape = {"shape": (900,), "chunks": (900,), "dtype": "int32", "compressors": None}
            zarr.create_array(session.store, name="field", **shape)
        zarr.open_array(session.store, path="field", mode="r+")[:] = value + 1
        session.commit(f"{value}")
    return made


def do(operator: type, **arguments: Any) -> dict[str, Any]:
    given = {"task_id": "task", "repository": "weather", **arguments}
    result: dict[str, Any] = operator(**given).execute(make_context())
    assert json.loads(json.dumps(result)) == result
    return result


def snapshots(repository: Repository) -> list[str]:
    """The history as it is stored now; an open repository remembers what it has read."""
    fresh = Repository.open(repository.storage)
    return [info.id for info in fresh.ancestry(branch="main")]


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("30d", timedelta(days=30)),
        ("1D12h", timedelta(hours=36)),
        (" 2w ", timedelta(weeks=2)),
        ("90s5m", timedelta(seconds=390)),
    ],
)
def test_ages_are_read_as_people_write_them(text: str, age: timedelta) -> None:
    assert read_age(text) == age
    assert safe_cutoff(text, "0s", now=NOW) == NOW - age


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1y", "yesterday", "30d ago", "999999999w"])
def test_what_is_no_age_and_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        safe_cutoff(text, now=NOW)


@pytest.mark.parametrize(
    "value",
    ["2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", "2026-01-01", datetime(2026, 1, 1)],  # noqa: DTZ001
)
def test_a_time_without_a_zone_is_in_utc(value: str | datetime) -> None:
    assert safe_cutoff(value, now=NOW) == datetime(2026, 1, 1, tzinfo=UTC)


def test_a_cutoff_is_old_enough_unless_asked_otherwise_and_never_in_the_future() -> None:
    assert safe_cutoff(SAFE_AGE, now=NOW) == NOW - SAFE_AGE
    with pytest.raises(MaintenanceError, match="minimum_age"):
        safe_cutoff("23h", now=NOW)
    assert safe_cutoff("23h", timedelta(hours=1), now=NOW) == NOW - timedelta(hours=23)
    for future in (NOW + timedelta(seconds=1), timedelta(seconds=-1)):
        with pytest.raises(MaintenanceError, match="future"):
            safe_cutoff(future, "0s", now=NOW)
    with pytest.raises(InvalidInputError, match="negative"):
        safe_cutoff("1d", timedelta(seconds=-1), now=NOW)


@pytest.mark.parametrize(
    "operator", [IcechunkExpireSnapshotsOperator, IcechunkGarbageCollectOperator]
)
def test_a_young_cutoff_changes_nothing(repository: Repository, operator: type) -> None:
    before = snapshots(repository)
    with pytest.raises(MaintenanceError):
        do(operator, older_than="1h")
    with pytest.raises(MaintenanceError):
        do(operator, older_than=datetime.now(UTC) + timedelta(days=1), minimum_age="0s")
    with pytest.raises(MaintenanceError, match="dry_run"):
        do(operator, older_than="0s", minimum_age="0s", dry_run="perhaps")
    assert snapshots(repository) == before


@pytest.mark.parametrize("text", ["", "None", "-1", "ten", "0"])
def test_what_is_no_number_of_snapshots_expires_nothing(repository: Repository, text: str) -> None:
    before = snapshots(repository)
    with pytest.raises((MaintenanceError, InvalidInputError)):
        do(IcechunkExpireSnapshotsOperator, older_than="0s", minimum_age="0s", keep_last=text)
    assert snapshots(repository) == before


def test_a_dry_run_says_what_expires_and_the_run_does_just_that(repository: Repository) -> None:
    before = snapshots(repository)
    arguments = {"older_than": "0s", "minimum_age": "0s", "keep_last": 2}
    planned = do(IcechunkExpireSnapshotsOperator, dry_run="True", **{**arguments, "keep_last": "2"})
    assert planned["dry_run"] is True
    assert snapshots(repository) == before
    done = do(IcechunkExpireSnapshotsOperator, **arguments)
    assert done["snapshots"] == planned["snapshots"] == sorted(before[2:-1])
    assert done["expired"] == COMMITS - 2
    assert snapshots(repository) == [*before[:2], before[-1]]
    assert do(IcechunkExpireSnapshotsOperator, **arguments)["expired"] == 0


@pytest.mark.parametrize("generation", ["draft", "alpha", "alpha1", "1", "2"])
def test_an_expiry_reports_what_left_the_history_and_no_head_that_stays(
    folder: Path, generation: str
) -> None:
    made = Repository.create(local_filesystem_storage(folder / "weather"), spec_version=generation)
    for value in range(COMMITS):
        session = made.writable_session("main")
        zarr.open_group(session.store, mode="a").attrs["value"] = value
        session.commit(f"{value}")
    before = snapshots(made)
    made.create_tag("v1", before[2])
    arguments = {"older_than": "0s", "minimum_age": "0s"}
    planned = do(IcechunkExpireSnapshotsOperator, dry_run=True, **arguments)
    done = do(IcechunkExpireSnapshotsOperator, **arguments)
    left = {info.id for info in Repository.open(made.storage).ancestry(tag="v1")}
    gone = set(before) - set(snapshots(made)) - left
    assert gone == {before[1], before[3]}
    assert set(done["snapshots"]) == set(planned["snapshots"]) == gone
    assert done["expired"] == planned["expired"] == len(gone)


def test_branches_and_tags_that_expired_go_if_asked(repository: Repository) -> None:
    old = snapshots(repository)[2]
    repository.create_branch("old", old)
    repository.create_tag("v0", old)
    result = do(
        IcechunkExpireSnapshotsOperator,
        older_than="0s",
        minimum_age="0s",
        delete_expired_branches=True,
        delete_expired_tags=True,
    )
    assert (result["deleted_branches"], result["deleted_tags"]) == (["old"], ["v0"])
    assert repository.list_branches() == {"main"}
    assert repository.list_tags() == set()


def test_collecting_frees_what_expired_and_a_dry_run_frees_nothing(
    repository: Repository,
) -> None:
    do(IcechunkExpireSnapshotsOperator, older_than="0s", minimum_age="0s", keep_last=1)
    arguments = {"older_than": "0s", "minimum_age": "0s"}
    planned = do(IcechunkGarbageCollectOperator, dry_run=True, **arguments)
    assert planned["chunks_deleted"] == planned["snapshots_deleted"] == COMMITS - 1
    files = do(IcechunkMeasureOperator)["files"]
    assert files["chunks"]["unreachable_count"] == COMMITS - 1
    done = do(IcechunkGarbageCollectOperator, **arguments)
    without = {"dry_run", "older_than"}
    assert {k: v for k, v in done.items() if k not in without} == {
        k: v for k, v in planned.items() if k not in without
    }
    assert do(IcechunkMeasureOperator)["files"]["chunks"]["unreachable_count"] == 0
    assert do(IcechunkVerifyOperator)["ok"] is True


@pytest.mark.usefixtures("repository")
def test_what_is_younger_than_a_day_is_not_collected_by_default() -> None:
    do(IcechunkExpireSnapshotsOperator, older_than="0s", minimum_age="0s", keep_last=1)
    assert do(IcechunkGarbageCollectOperator)["bytes_deleted"] == 0


def test_rewriting_manifests_twice_makes_one_commit(repository: Repository) -> None:
    before = snapshots(repository)
    first = do(IcechunkRewriteManifestsOperator, metadata={"why": "split"})
    assert first["parent_id"] == before[0]
    assert do(IcechunkRewriteManifestsOperator, metadata={"why": "split"}) == first
    assert snapshots(repository) == [first["snapshot_id"], *before]
    assert repository.lookup_snapshot(first["snapshot_id"]).metadata["why"] == "split"


def test_a_lost_chunk_fails_the_task_or_is_reported(repository: Repository) -> None:
    lost = next(iter(repository.storage.scan("chunks/"))).key
    repository.storage.delete([lost])
    with pytest.raises(MaintenanceError, match="1 errors"):
        do(IcechunkVerifyOperator)
    report = do(IcechunkVerifyOperator, fail_on_errors=False)
    assert (report["ok"], report["errors"]) == (False, 1)
    assert report["findings"][0]["code"] == "chunk_missing"


@pytest.mark.usefixtures("repository")
def test_measuring_counts_by_branch_and_by_kind_of_file() -> None:
    result = do(IcechunkMeasureOperator)
    assert result["snapshots"] == COMMITS + 1
    assert result["branches"]["main"]["native_bytes"] == 3600
    assert result["files"]["chunks"]["bytes"] == COMMITS * 3600


@pytest.mark.usefixtures("repository")
def test_a_collection_reports_the_cutoff_that_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    behind = datetime.now(UTC) - timedelta(days=2)
    monkeypatch.setattr(LocalStorage, "now", lambda _: behind)
    told = do(IcechunkGarbageCollectOperator, older_than="25h", dry_run=True)
    assert datetime.fromisoformat(told["older_than"]) == behind - SAFE_AGE


@pytest.mark.parametrize("generation", ["1", "2", "draft"])
def test_an_expiry_reports_what_was_done_and_not_an_earlier_plan(
    folder: Path, generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_icechunk.repository.maintenance import expire

    made = Repository.create(local_filesystem_storage(folder / "weather"), spec_version=generation)
    made.create_branch("side", made.lookup_branch("main"))
    for value in range(3):
        session = made.writable_session("side")
        zarr.create_group(session.store, path=f"group{value}")
        session.commit(f"{value}")
    plan, planned = expire.make_expiration_plan, []

    def interrupted(*args: Any) -> Any:
        planned.append(plan(*args))
        session = made.writable_session("side")
        zarr.create_group(session.store, path=f"late{len(planned)}")
        session.commit("late")
        return planned[-1]

    monkeypatch.setattr(expire, "make_expiration_plan", interrupted)
    result = do(
        IcechunkExpireSnapshotsOperator,
        older_than="0s",
        minimum_age="0s",
        delete_expired_branches=True,
    )
    assert len(planned) == 1
    assert [ref.name for ref in planned[0].refs if ref.delete] == ["side"]
    assert result["deleted_branches"] == []
    left = {info.id for info in made.ancestry(branch="side")}
    assert not left & set(result["snapshots"])
    assert result["expired"] == len(result["snapshots"])
