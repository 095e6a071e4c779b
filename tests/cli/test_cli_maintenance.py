"""Commands that delete: they plan, they ask, they refuse; and what terminals get to see."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.commands import Answer, Command, Made
from support.maintenance import GENERATIONS, live_in

from airflow_provider_icechunk.cli import grammar
from airflow_provider_icechunk.cli.run import locate_repository, run
from airflow_provider_icechunk.cli.screen import Screen
from airflow_provider_icechunk.engine.history.ancestry import ManifestFileInfo, SnapshotInfo
from airflow_provider_icechunk.engine.leases import CUTOFF
from airflow_provider_icechunk.engine.maintenance.retention import Freed, not_reached
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.testing.storages import WrappedStorage

ESCAPE = "\x1b["
NOW = ("--minimum-age", "0s")


class Terminal(io.StringIO):
    """A stream that somebody looks at."""

    def isatty(self) -> bool:
        return True


def at_terminal(
    *words: object,
    answer: str = "",
    out: type[io.StringIO] = Terminal,
    locate: Callable[[argparse.Namespace], Storage] = locate_repository,
    later: timedelta = timedelta(),
) -> Answer:
    """Run a command at a terminal, where somebody answers questions, perhaps `later`."""
    args = grammar.build_parser("test").parse_args([str(word) for word in words])
    screen = Screen(out(), Terminal(), Terminal(answer))
    code = run(args.command, args, locate, screen, now=lambda: datetime.now(UTC) + later)
    assert isinstance(screen.out, io.StringIO)
    assert isinstance(screen.err, io.StringIO)
    return Answer(code, screen.out.getvalue(), screen.err.getvalue())


def files(path: Path) -> set[str]:
    """Everything that is stored; the locks of a local storage are not."""
    found = {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}
    return {name for name in found if not name.startswith(".icechunk-locks/")}


def leave_garbage(made: Made) -> set[str]:
    """Make a snapshot that nothing names; returns the files that are left over."""
    before = files(made.path)
    repository = made.repository
    repository.create_branch("gone", made.ids["base"])
    session = repository.writable_session("gone")
    session.tree.put_chunk("/group/a", (0, 0), b"garbage" * 200)
    session.commit("gone")
    repository.delete_branch("gone")
    return files(made.path) - before


def test_gc_shows_its_plan_and_changes_nothing_in_a_dry_run(command: Command, made: Made) -> None:
    garbage = leave_garbage(made)
    everything = files(made.path)
    value = command("gc", made.path, *NOW, "--dry-run", "--json").json
    assert value["dry_run"] is True
    objects = {"snapshots", "transactions", "manifests", "attributes", "chunks"}
    assert set(value["plan"]) == {*objects, "jobs", "unfinished"}
    assert value["plan"]["chunks"] == {"count": 1, "bytes": 1400}
    assert value["bytes_deleted"] == sum((made.path / one).stat().st_size for one in garbage)
    text = command("gc", made.path, *NOW, "--dry-run").out
    assert "1.4 kB" in text
    assert "Dry run: nothing was changed" in text
    assert files(made.path) == everything


def test_gc_deletes_garbage_and_nothing_else(command: Command, made: Made) -> None:
    everything = files(made.path)
    garbage = leave_garbage(made)
    answer = command("gc", made.path, *NOW, "--yes", "--json")
    assert answer.code == 0
    assert answer.json["snapshots_deleted"] == 1
    assert garbage
    assert files(made.path) == everything | {CUTOFF}
    assert command("verify", made.path, "--json").json["ok"] is True
    assert "Nothing to do" in command("gc", made.path, *NOW, "--yes").out


def test_gc_leaves_what_is_younger_than_a_day_by_default(command: Command, made: Made) -> None:
    garbage = leave_garbage(made)
    assert command("gc", made.path, "--yes", "--json").json["bytes_deleted"] == 0
    assert garbage <= files(made.path)


@pytest.mark.parametrize("name", ["gc", "expire"])
@pytest.mark.parametrize(
    ("cutoff", "reason"),
    [("2999-01-01", "in the future"), ("1h", "--minimum-age"), ("0s", "--minimum-age")],
)
def test_dangerous_cutoffs_are_refused(
    command: Command, made: Made, name: str, cutoff: str, reason: str
) -> None:
    leave_garbage(made)
    before = files(made.path)
    answer = command(name, made.path, "--older-than", cutoff, "--yes")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error [maintenance_refused]: ")
    assert reason in answer.err
    assert files(made.path) == before


@pytest.mark.parametrize("words", [("gc",), ("expire", "--older-than", "0s")])
def test_without_a_terminal_yes_must_be_given(
    command: Command, made: Made, words: tuple[str, ...]
) -> None:
    answer = command(words[0], made.path, *words[1:], *NOW)
    assert (answer.code, answer.out) == (2, "")
    assert "--yes" in answer.err


@pytest.mark.parametrize("reply", ["", "n\n", "\n", "yess\n"])
def test_anything_but_yes_changes_nothing(made: Made, reply: str) -> None:
    leave_garbage(made)
    before = files(made.path)
    answer = at_terminal("gc", made.path, *NOW, answer=reply)
    assert (answer.code, answer.out) == (1, "")
    assert "Permanently delete 4 objects? [y/N]" in answer.err
    assert "1.4 kB" in answer.err
    assert "not confirmed" in answer.err
    assert files(made.path) == before


def test_yes_at_the_terminal_goes_on(made: Made) -> None:
    garbage = leave_garbage(made)
    answer = at_terminal("gc", made.path, *NOW, answer="y\n")
    assert answer.code == 0
    assert not garbage & files(made.path)


def test_gc_asks_nothing_when_there_is_nothing_to_delete(made: Made) -> None:
    answer = at_terminal("gc", made.path)
    assert (answer.code, "[y/N]" in answer.err) == (0, False)


class Undeletable(WrappedStorage):
    """Deletes fail."""

    def delete(self, keys, *, immutable=False):  # type: ignore[no-untyped-def]
        from airflow_provider_icechunk.engine.storage.base import Deleted

        return Deleted(failed=dict.fromkeys(keys, "read-only\nfile system"))


def test_deletes_that_fail_are_an_error_after_the_report(made: Made) -> None:
    leave_garbage(made)
    answer = at_terminal(
        "gc",
        made.path,
        *NOW,
        "--yes",
        "--json",
        out=io.StringIO,
        locate=lambda args: Undeletable(locate_repository(args)),
    )
    assert answer.code == 1
    assert json.loads(answer.out)["stopped_at"] == "snapshots"
    assert "error [incomplete]: 1 object could not be deleted" in answer.err


def test_expire_plans_with_counts_and_then_does_it(command: Command, made: Made) -> None:
    words = ("expire", made.path, "--older-than", "0s", *NOW)
    planned = command(*words, "--dry-run", "--json").json
    assert set(planned) == {"dry_run", "older_than", "released", "edited", "refs", "freed"}
    assert planned["freed"]["snapshots"] == 1
    assert planned["freed"]["manifest_bytes"] > 0
    assert len(command("log", made.path, "--json").json["snapshots"]) == 5
    done = command(*words, "--yes", "--json").json
    assert done["freed"] == planned["freed"]
    left = command("log", made.path, "--json").json["snapshots"]
    assert {one["message"] for one in left} == {"m2", "d1", "base of it", "Repository initialized"}
    assert "Nothing to do" in command(*words, "--yes").out


def test_expire_can_keep_the_last_and_delete_branches_and_tags(made: Made) -> None:
    at_terminal(
        "expire", made.path, "--older-than", "30d", "--keep-last", "3", "--yes",
        later=timedelta(days=40),
    )  # fmt: skip
    assert len(list(made.repository.ancestry(branch="main"))) == 4
    answer = at_terminal(
        "expire", made.path, "--older-than", "30d", "--delete-expired-branches",
        "--delete-expired-tags",
        answer="yes\n", later=timedelta(days=40),
    )  # fmt: skip
    assert "Expire these snapshots? [y/N]" in answer.err
    assert made.repository.list_branches() == {"main"}
    assert made.repository.list_tags() == set()
    assert len(list(made.repository.ancestry(branch="main"))) == 2


@pytest.mark.parametrize("generation", GENERATIONS)
def test_expire_says_how_many_snapshots_leave_in_every_generation(
    command: Command, tmp_path: Path, generation: str
) -> None:
    ids = live_in(LocalStorage(tmp_path, durable=False), generation)
    words = ("expire", tmp_path, "--older-than", "0s", *NOW)
    before = command("log", tmp_path, "--all", "--json").json["snapshots"]
    planned = command(*words, "--dry-run", "--json").json
    assert command(*words, "--yes", "--json").json["freed"] == planned["freed"]
    after = command("log", tmp_path, "--all", "--json").json["snapshots"]
    assert planned["freed"]["snapshots"] == len(before) - len(after) > 0
    assert set(planned["edited"]) <= set(ids.values())


def test_freed_counts_only_what_nothing_else_uses() -> None:
    def info(name: str, parent: str | None, *manifests: str) -> SnapshotInfo:
        used = [ManifestFileInfo(one, 10, 3) for one in manifests]
        return SnapshotInfo(name, parent, datetime.now(UTC), "", {}, used)

    infos = [
        info("root", None),
        info("a", "root", "shared", "only-a"),
        info("b", "a", "shared", "only-a", "only-b"),
        info("c", "b", "shared"),
    ]
    assert not_reached(["c"], infos, {"c": "root"}) == Freed(2, 2, 20, 6)
    assert not_reached(["c"], infos, {}) == Freed(0, 0, 0, 0)
    assert not_reached([], infos, {}) == Freed(4, 3, 30, 9)


def test_verify_reports_loss_with_code_1(command: Command, made: Made) -> None:
    assert command("verify", made.path).out.endswith("No errors found.\n")
    (chunk,) = (made.path / "chunks").iterdir()
    chunk.unlink()
    answer = command("verify", made.path)
    assert answer.code == 1
    assert "chunk_missing" in answer.out
    assert answer.err.startswith("error [incomplete]: ")
    value = command("verify", made.path, "--json").json
    assert set(value) == {"ok", "checked", "findings"}
    assert value["ok"] is False
    assert set(value["findings"][0]) == {"severity", "code", "where", "what", "remedy"}


def test_progress_is_shown_on_the_terminal_and_never_in_the_result(made: Made) -> None:
    answer = at_terminal("verify", made.path, "--json")
    assert "checking" in answer.err
    assert json.loads(answer.out)["ok"] is True


def test_colour_is_for_terminals_that_want_it(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert ESCAPE in at_terminal("log", made.path).out
    assert ESCAPE not in at_terminal("log", made.path, out=io.StringIO).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert ESCAPE not in at_terminal("log", made.path, out=io.StringIO).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert ESCAPE not in at_terminal("log", made.path).out


def test_a_narrow_terminal_cuts_lines_of_the_graph_and_a_pipe_does_not(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    assert all(len(line) <= 40 for line in at_terminal("log", made.path).out.splitlines())
    piped = at_terminal("log", made.path, out=io.StringIO).out
    assert "Repository initialized" in piped


def test_an_interruption_is_said_in_one_line(made: Made) -> None:
    def locate(args: argparse.Namespace) -> Storage:
        raise KeyboardInterrupt

    answer = at_terminal("log", made.path, locate=locate)
    assert (answer.code, answer.err) == (130, "error [interrupted]: interrupted by the user\n")
