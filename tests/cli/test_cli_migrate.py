"""`migrate`: shows its plan, asks, moves up, and says what is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import Command, Made
from support.maintenance import live_in
from support.migrations import portrait
from test_cli_maintenance import ESCAPE, at_terminal

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.cli.maintenance import progress_line
from airflow_provider_icechunk.engine.migration.plan import MigrationProgress, Step


def files(path: Path) -> set[Path]:
    return {one for one in path.rglob("*") if one.is_file() and ".icechunk-locks" not in one.parts}


def test_a_dry_run_shows_the_plan_and_changes_nothing(made: Made, command: Command) -> None:
    before = files(made.path)
    answer = command("migrate", made.path, "--dry-run", "--remove-old")
    assert answer.code == 0
    assert "From generation 1 to 2:" in answer.out
    assert "nothing was changed" in answer.out
    assert "would be removed" in answer.out
    assert files(made.path) == before


def test_it_moves_up_without_asking_when_told_so(made: Made, command: Command) -> None:
    storage = local_filesystem_storage(str(made.path))
    before = portrait(storage)
    answer = command("migrate", made.path, "--yes")
    assert answer.code == 0
    assert "The entry point of generation 1 still exists, fenced" in answer.out
    assert Repository.open(storage).spec_version == "2"
    assert portrait(storage) == before
    answer = command("migrate", made.path, "--yes", "--remove-old", "--json")
    found = json.loads(answer.out)
    assert (found["migrated"], found["leftovers"]) == (False, [])
    assert found["removed"] >= 3
    answer = command("migrate", made.path, "--yes")
    assert "already" in answer.out
    assert "Nothing to do" in answer.out


def test_the_fence_is_taken_away_and_put_up_when_told_so(made: Made, command: Command) -> None:
    reference = made.path / "refs" / "branch.main" / "ref.json"
    before = reference.read_bytes()
    command("migrate", made.path, "--yes")
    assert b"migrated_to" in reference.read_bytes()
    answer = command("migrate", made.path, "--yes", "--no-fence")
    assert (answer.code, "old programs can still write to it" in answer.out) == (0, True)
    assert reference.read_bytes() == before
    found = json.loads(command("migrate", made.path, "--yes", "--json").out)
    assert (found["fenced"], found["leftovers"]) == (["1"], ["1"])
    assert b"migrated_to" in reference.read_bytes()
    answer = command("migrate", made.path, "--yes", "--no-fence", "--remove-old")
    assert (answer.code, "cannot be combined" in answer.err) == (2, True)


def test_json_lists_ids_that_changed(tmp_path: Path, command: Command) -> None:
    storage = local_filesystem_storage(str(tmp_path))
    live_in(storage, "alpha1")
    before = portrait(storage)
    found = json.loads(command("migrate", tmp_path, "--to", "1", "--yes", "--json").out)
    assert len(found["ids"]) == found["snapshots"] == len(before.snapshots)
    assert portrait(storage) == before.renamed(found["ids"])


def test_it_asks_and_no_means_no(made: Made) -> None:
    answer = at_terminal("migrate", made.path, answer="n\n")
    assert answer.code == 1
    assert "Migrate to generation 2?" in answer.err
    assert Repository.open(local_filesystem_storage(str(made.path))).spec_version == "1"
    answer = at_terminal("migrate", made.path, answer="y\n")
    assert (answer.code, "Migrated; reopen the repository." in answer.out) == (0, True)
    assert ESCAPE in answer.err
    assert Repository.open(local_filesystem_storage(str(made.path))).spec_version == "2"


def test_nobody_to_ask_is_wrong_usage(made: Made, command: Command) -> None:
    answer = command("migrate", made.path)
    assert (answer.code, "--yes" in answer.err) == (2, True)


@pytest.mark.parametrize(
    ("to", "code", "text"), [("1", 1, "cannot be migrated back"), ("3", 2, "invalid choice")]
)
def test_there_is_no_way_back_and_none_further(
    made: Made, command: Command, to: str, code: int, text: str
) -> None:
    command("migrate", made.path, "--yes")
    answer = command("migrate", made.path, "--to", to, "--yes")
    assert (answer.code, text in answer.err) == (code, True)


def test_progress_shows_the_step_and_how_far_it_is() -> None:
    from rich.console import Console

    console = Console(width=120)
    with console.capture() as captured:
        console.print(progress_line(None))
        console.print(progress_line(MigrationProgress(Step.CHUNKS, 3, 12, 2048)))
        console.print(progress_line(MigrationProgress(Step.REMOVING, 4, None)))
    first, second, third = captured.get().splitlines()
    assert "reading the history" in first
    assert "copying chunk files" in second
    assert "3 of 12" in second
    assert third.rstrip().endswith("4")
