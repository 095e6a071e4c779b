"""The program around the commands: help, beginnings of ids, completions, and what is shipped."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.commands import Command, Made

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.cli import grammar, run


def test_a_bare_call_shows_the_commands(command: Command) -> None:
    answer = command()
    assert answer.code == 0
    assert "verify" in answer.out
    assert "ship" in answer.out


def test_commands_that_concern_no_repository_are_carried_out() -> None:
    assert set(run.ALONE) == {(entry.name,) for entry in grammar.ALONE}


@pytest.mark.parametrize("typed", [str.upper, str.lower])
def test_the_beginning_of_an_id_is_enough(made: Made, command: Command, typed: object) -> None:
    wanted = made.ids["m1"]
    others = [one for one in made.ids.values() if one != wanted]
    length = next(n for n in range(4, 20) if not any(o.startswith(wanted[:n]) for o in others))
    answer = command("show", made.path, typed(wanted[:length]), "--json")  # type: ignore[operator]
    assert answer.json["id"] == wanted
    parent = command("show", made.path, f"{wanted[:length]}~1", "--json")
    assert parent.json["id"] == made.ids["base"]


def test_a_beginning_that_fits_several_ids_or_none_is_refused(
    made: Made, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    ancestry = Repository.ancestry

    def two_more(self: Repository, **options: object) -> object:
        (first, *_) = found = list(ancestry(self, **options))  # type: ignore[arg-type]
        return [
            *found,
            *(first.__class__(**_fields(first) | {"id": f"ZZZZ{n * 16}"}) for n in "01"),
        ]

    monkeypatch.setattr(Repository, "ancestry", two_more)
    answer = command("show", made.path, "zzzz")
    assert answer.code == 1
    assert "is a prefix of 2 snapshot ids: ZZZZ0000000000000000" in answer.err
    assert "there is no branch, tag or snapshot 'zzzy'" in command("show", made.path, "zzzy").err


def _fields(info: object) -> dict[str, object]:
    return {name: getattr(info, name) for name in info.__dataclass_fields__}  # type: ignore[attr-defined]


def test_a_branch_wins_over_the_beginning_of_an_id(made: Made, command: Command) -> None:
    start = made.ids["m2"][:4].lower()
    repository = Repository.open(local_filesystem_storage(str(made.path)))
    repository.create_branch(start, made.ids["root"])
    assert command("show", made.path, start, "--json").json["id"] == made.ids["root"]


@pytest.mark.parametrize(("line", "expected"), [
    ("icechunk-airflow ver", ["verify"]),
    ("icechunk-airflow sta", ["stats"]),
    ("icechunk-airflow gc --dry", ["--dry-run"]),
    ("icechunk-airflow branch de", ["delete"]),
    ("icechunk-airflow verify --endp", ["--endpoint-url"]),
    ("icechunk-airflow branch create --a", ["--at", "--account", "--anonymous", "--allow-http"]),
])  # fmt: skip
def test_bash_completes_commands_and_flags(
    command: Command, tmp_path: Path, line: str, expected: list[str]
) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(command("completion", "bash").out)
    words = line.split()
    program = f"""
source {script}
COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}
_icechunk_airflow
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    bash = shutil.which("bash")
    assert bash is not None
    answer = subprocess.run(
        [bash, "-c", program], capture_output=True, text=True, check=True, cwd="/"
    )
    assert answer.stdout.split() == expected, answer.stderr


def test_other_shells_know_every_command(command: Command) -> None:
    fish, zsh = (command("completion", shell).out for shell in ("fish", "zsh"))
    for path in grammar.paths():
        assert f"-a {path[-1]} " in fish
        assert path[0] in zsh
    assert "bashcompinit" in zsh


def test_ship_says_what_executors_need(command: Command, tmp_path: Path) -> None:
    answer = command("ship", "--output", tmp_path / "deps.zip", "--json")
    assert answer.json["contained"][0].startswith("airflow-provider-icechunk==")
    assert any(name.startswith("numpy==") for name in answer.json["needed"])
    nowhere = command("ship", "--output", tmp_path / "no" / "deps.zip")
    assert nowhere.code == 1
    assert "No such file" in nowhere.err
