"""Maintenance by its operators: what goes, what stays, what is refused."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import zarr
from support.airflow_contexts import cleared, make_context, retried

from airflow_provider_icechunk import spark
from airflow_provider_icechunk.api import Repository, RetentionPolicy, local_filesystem_storage
from airflow_provider_icechunk.cli import grammar
from airflow_provider_icechunk.cli.run import main
from airflow_provider_icechunk.engine.maintenance.ages import SAFE_AGE, read_age, safe_cutoff
from airflow_provider_icechunk.engine.objects.chunk_writer import Packing
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.exceptions import InvalidInputError, MaintenanceError
from airflow_provider_icechunk.operators import maintenance
from airflow_provider_icechunk.operators.maintenance import (
    IcechunkCollectOperator,
    IcechunkCompactOperator,
    IcechunkExpireOperator,
    IcechunkMeasureOperator,
    IcechunkRewriteManifestsOperator,
    IcechunkVerifyOperator,
)

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


@pytest.mark.parametrize("operator", [IcechunkExpireOperator, IcechunkCollectOperator])
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
        do(IcechunkExpireOperator, older_than="0s", minimum_age="0s", keep_last=text)
    assert snapshots(repository) == before


def test_a_dry_run_says_what_expires_and_the_run_does_just_that(repository: Repository) -> None:
    before = snapshots(repository)
    arguments = {"older_than": "0s", "minimum_age": "0s", "keep_last": 2}
    planned = do(IcechunkExpireOperator, dry_run="True", **{**arguments, "keep_last": "2"})
    assert planned["dry_run"] is True
    assert snapshots(repository) == before
    done = do(IcechunkExpireOperator, **arguments)
    assert done["snapshots"] == planned["snapshots"] == sorted(before[2:-1])
    assert done["expired"] == COMMITS - 2
    assert snapshots(repository) == [*before[:2], before[-1]]
    assert do(IcechunkExpireOperator, **arguments)["expired"] == 0


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
    planned = do(IcechunkExpireOperator, dry_run=True, **arguments)
    done = do(IcechunkExpireOperator, **arguments)
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
        IcechunkExpireOperator,
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
    do(IcechunkExpireOperator, older_than="0s", minimum_age="0s", keep_last=1)
    arguments = {"older_than": "0s", "minimum_age": "0s"}
    planned = do(IcechunkCollectOperator, dry_run=True, **arguments)
    assert planned["chunks_deleted"] == planned["snapshots_deleted"] == COMMITS - 1
    files = do(IcechunkMeasureOperator)["files"]
    assert files["chunks"]["unreachable_count"] == COMMITS - 1
    done = do(IcechunkCollectOperator, **arguments)
    without = {"dry_run", "older_than"}
    assert {k: v for k, v in done.items() if k not in without} == {
        k: v for k, v in planned.items() if k not in without
    }
    assert do(IcechunkMeasureOperator)["files"]["chunks"]["unreachable_count"] == 0
    assert do(IcechunkVerifyOperator)["ok"] is True


@pytest.mark.usefixtures("repository")
def test_what_is_younger_than_a_day_is_not_collected_by_default() -> None:
    do(IcechunkExpireOperator, older_than="0s", minimum_age="0s", keep_last=1)
    assert do(IcechunkCollectOperator)["bytes_deleted"] == 0


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
    told = do(IcechunkCollectOperator, older_than="25h", dry_run=True)
    assert datetime.fromisoformat(told["older_than"]) == behind - SAFE_AGE


@pytest.mark.parametrize("generation", ["1", "2", "draft"])
def test_an_expiry_reports_what_was_done_and_not_an_earlier_plan(
    folder: Path, generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_icechunk.engine.maintenance import expire

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
        IcechunkExpireOperator,
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


@pytest.mark.parametrize("work", ["collect", "compact", "expire", "measure", "verify"])
def test_each_work_has_a_method_an_operator_a_command_and_a_spark_form_of_one_name(
    work: str,
) -> None:
    assert callable(getattr(Repository, work))
    operator = getattr(maintenance, f"Icechunk{work.title()}Operator")
    assert operator.__name__ == f"Icechunk{work.title()}Operator"
    assert (work,) in grammar.paths()
    if work != "expire":
        assert callable(getattr(spark, work))


def test_official_names_of_maintenance_lead_to_the_same() -> None:
    assert maintenance.IcechunkExpireSnapshotsOperator is IcechunkExpireOperator
    assert maintenance.IcechunkGarbageCollectOperator is IcechunkCollectOperator
    assert spark.garbage_collect is spark.collect
    parse = grammar.build_parser("test").parse_args
    for alias, name in (("gc", "collect"), ("stats", "measure")):
        assert parse([alias, "x"]).command == parse([name, "x"]).command == (name,)


@pytest.mark.parametrize("generation", ["1", "2", "alpha", "alpha1", "draft"])
@pytest.mark.parametrize(
    "options",
    [{}, {"keep_last": 2}, {"delete_expired_branches": True, "delete_expired_tags": True}],
    ids=["plain", "keep_last", "delete"],
)
def test_method_operator_and_command_expire_the_same(
    folder: Path, generation: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "weather"
    made = Repository.create(local_filesystem_storage(path), spec_version=generation)
    for number in range(5):
        session = made.writable_session("main")
        zarr.create_array(session.store, name=f"field{number}", shape=(1,), dtype="int32")
        session.commit(f"{number}")
        if number == 2:
            made.create_tag("v1", made.lookup_branch("main"))
            made.create_branch("side", made.lookup_branch("main"))
    flags = [f"--{name.replace('_', '-')}" for name in options if name != "keep_last"]
    flags += ["--keep-last", "2"] if "keep_last" in options else []
    words = ["expire", str(path), "--older-than", "0s", "--minimum-age", "0s", "--json", *flags]

    def command(*more: str) -> Any:
        capsys.readouterr()
        assert main([*words, *more]) == 0
        answer = json.loads(capsys.readouterr().out)
        del answer["dry_run"], answer["older_than"]
        return answer

    shown, now = command("--dry-run"), datetime.now(UTC)
    planned = do(IcechunkExpireOperator, older_than="0s", minimum_age="0s", dry_run=True, **options)
    assert sorted(made.expire_snapshots(now, dry_run=True, **options)) == shown["released"]
    assert planned["expired"] == shown["freed"]["snapshots"] == len(planned["snapshots"])
    assert command("--yes") == shown
    assert made.reopen().expire(RetentionPolicy(now, **options)).is_empty


RULES = {"small": 5_000, "target": "20000", "enough": 10_000}


@pytest.fixture
def scattered(folder: Path) -> Repository:
    """Eight small chunks, each in a file of its own."""
    storage = local_filesystem_storage(folder / "weather")
    made = Repository.create(storage, packing=Packing(below=0))
    session = made.writable_session("main")
    shape = {"shape": (7200,), "chunks": (900,), "dtype": "int32", "compressors": None}
    zarr.create_array(session.store, name="field", **shape)[:] = range(1, 7201)
    session.commit("begin")
    return made


def test_a_compaction_moves_chunks_once_and_a_retry_returns_the_same(scattered: Repository) -> None:
    planned = do(IcechunkCompactOperator, rules=RULES, dry_run="true")
    assert len(snapshots(scattered)) == 2
    first = do(IcechunkCompactOperator, rules=RULES)
    counts = {"chunks": 8, "bytes": 28_800, "files": 2, "skipped": 0}
    assert planned | {"dry_run": False} == {
        "dry_run": False, "snapshot_id": None, "parent_id": None, "branch": "main", **counts,
    }  # fmt: skip
    assert first == planned | {
        "dry_run": False,
        "snapshot_id": snapshots(scattered)[0],
        "parent_id": snapshots(scattered)[1],
    }
    given = {"task_id": "task", "repository": "weather", "rules": RULES}
    again = IcechunkCompactOperator(**given).execute(retried(make_context()))
    assert again == first
    nothing = IcechunkCompactOperator(**given).execute(cleared(make_context()))
    assert (nothing["snapshot_id"], nothing["chunks"]) == (None, 0)
    assert len(snapshots(scattered)) == 3
    session = Repository.open(scattered.storage).readonly_session("main")
    assert list(zarr.open_array(session.store, path="field", mode="r")[:]) == [*range(1, 7201)]


def test_a_rule_of_compaction_that_does_not_exist_is_refused(scattered: Repository) -> None:
    with pytest.raises(
        InvalidInputError, match="'smal' is not a compaction rule; the rules are: small"
    ):
        do(IcechunkCompactOperator, rules={"smal": 1})
    with pytest.raises(MaintenanceError, match="small must be an integer, not 'many'"):
        do(IcechunkCompactOperator, rules={"small": "many"})
    assert len(snapshots(scattered)) == 2


def test_a_compaction_by_command_shows_its_plan_and_commits(
    scattered: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    where = scattered.storage.location
    words = ["compact", where, "--small", "5000", "--target", "20000", "--enough", "10000"]
    assert main([*words, "--dry-run"]) == 0
    assert "8 small chunks" in (text := capsys.readouterr().out)
    assert "Dry run: nothing was changed" in text
    assert len(snapshots(scattered)) == 2
    assert main([*words, "--message", "tidy", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["chunks"], done["files"], done["branch"]) == (8, 2, "main")
    info = Repository.open(scattered.storage).lookup_snapshot(done["snapshot_id"])
    assert (info.message, info.metadata["compaction"]["chunks"]) == ("tidy", 8)
    assert main(words) == 0
    assert "Nothing to do" in capsys.readouterr().out
