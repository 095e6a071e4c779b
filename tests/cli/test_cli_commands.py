"""Every command that looks, names or creates: what people read, what programs read, and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.commands import Command, Made
from support.typed_ids import spellings

from airflow_provider_icechunk.cli import grammar
from airflow_provider_icechunk.cli.history import parted_at
from airflow_provider_icechunk.cli.render import json_value, size
from airflow_provider_icechunk.cli.run import COMMANDS

TIME = re.compile(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
SNAPSHOT_KEYS = {"id", "parent_id", "written_at", "message", "metadata", "branches", "tags"}
CHANGE_KEYS = {
    "new_groups", "new_arrays", "updated_groups", "updated_arrays", "deleted_groups",
    "deleted_arrays", "updated_chunks",
}  # fmt: skip


def test_every_command_of_the_grammar_does_something_and_no_other() -> None:
    assert set(grammar.paths()) == set(COMMANDS)


@pytest.mark.parametrize(
    "arguments", [("log",), ("gc", "--yes"), ("verify",), ("migrate", "--yes"), ("stats",)]
)
def test_no_command_takes_a_damaged_repository_for_an_older_one(
    made: Made, command: Command, arguments: tuple[str, ...]
) -> None:
    command("migrate", made.path, "--yes")
    (made.path / "repo").write_bytes((made.path / "repo").read_bytes()[:38])
    name, *options = arguments
    answer = command(name, made.path, *options)
    assert (answer.code, "/repo: it ends after 38 of the 39 bytes" in answer.err) == (1, True)


def test_every_command_can_print_json() -> None:
    parser = grammar.build_parser("test")
    extra = {
        ("cat",): ["array"],
        ("coverage",): ["array"],
        ("diff",): ["main"],
        ("expire",): ["--older-than", "1d"],
        ("branch", "reset"): ["x", "--to", "main"],
        ("plot",): ["array", "--output", "array.png"],
    }
    for path in grammar.paths():
        names = ["x"] if path[-1] in {"create", "delete"} else []
        args = parser.parse_args([*path, "somewhere", *extra.get(path, names), "--json"])
        assert (args.command, args.json) == (path, True)


def test_init_creates_once(command: Command, tmp_path: Path) -> None:
    place = tmp_path / "new"
    first = command("init", place, "--json")
    assert first.code == 0
    assert first.json == {"created": True, "location": place.as_uri(), "spec_version": "1"}
    second = command("init", place)
    assert (second.code, second.out) == (1, "")
    assert second.err.startswith("error [repository_exists]: ")
    third = command("init", place, "--if-missing", "--json")
    assert (third.code, third.json["created"]) == (0, False)


def test_init_chooses_the_generation(command: Command, tmp_path: Path) -> None:
    assert command("init", tmp_path / "old", "--spec-version", "alpha", "--json").json[
        "spec_version"
    ] == ("alpha")
    wrong = command("init", tmp_path / "wrong", "--spec-version", "beta")
    assert (wrong.code, wrong.err[:24]) == (1, "error [invalid_argument]")
    assert not (tmp_path / "wrong").exists()


def test_log_draws_branches_and_tags(command: Command, made: Made) -> None:
    answer = command("log", made.path)
    assert answer.code == 0
    assert TIME.sub("", made.named(answer.out)) == (
        "* m2 (main) m2\n"
        "| * d1 (dev) d1\n"
        "* | m1 m1\n"
        "|/\n"
        "* base (tag: v1) base of it\n"
        "* root Repository initialized\n"
    )


def test_log_in_json_is_in_the_order_of_the_graph(command: Command, made: Made) -> None:
    answer = command("log", made.path, "--json").json
    assert set(answer) == {"snapshots", "more"}
    assert answer["more"] is False
    assert [one["message"] for one in answer["snapshots"]] == [
        "m2", "d1", "m1", "base of it", "Repository initialized",
    ]  # fmt: skip
    assert all(set(one) == SNAPSHOT_KEYS for one in answer["snapshots"])
    assert answer["snapshots"][3]["tags"] == ["v1"]
    assert answer["snapshots"][3]["metadata"] == {"run": 7}


def test_log_is_limited_and_says_so(command: Command, made: Made) -> None:
    answer = command("log", made.path, "-n", "2")
    assert answer.out.splitlines()[2:] == [": :", "More snapshots exist: use --limit or --all."]
    assert command("log", made.path, "-n", "2", "--json").json["more"] is True
    assert command("log", made.path, "-n", "2", "--all", "--json").json["more"] is False


@pytest.mark.parametrize(
    ("version", "messages"),
    [
        ("v1", ["base of it", "Repository initialized"]),
        ("dev", ["d1", "base of it", "Repository initialized"]),
        ("main~1", ["m1", "base of it", "Repository initialized"]),
        ("branch:main~", ["m1", "base of it", "Repository initialized"]),
        ("tag:v1", ["base of it", "Repository initialized"]),
    ],
)
def test_versions_can_be_named_in_many_ways(
    command: Command, made: Made, version: str, messages: list[str]
) -> None:
    answer = command("log", made.path, version, "--json").json
    assert [one["message"] for one in answer["snapshots"]] == messages


def test_a_version_can_be_a_snapshot_id(command: Command, made: Made) -> None:
    for text in (made.ids["m1"], f"snapshot:{made.ids['m1']}"):
        assert command("show", made.path, text, "--json").json["message"] == "m1"


def test_a_name_of_a_branch_and_a_tag_must_be_made_clear(command: Command, made: Made) -> None:
    made.repository.create_tag("dev", made.ids["m1"])
    unclear = command("show", made.path, "dev")
    assert (unclear.code, "tag:dev" in unclear.err) == (1, True)
    assert command("show", made.path, "tag:dev", "--json").json["message"] == "m1"
    assert command("show", made.path, "branch:dev", "--json").json["message"] == "d1"


def test_show_says_what_a_snapshot_changed(command: Command, made: Made) -> None:
    text = command("show", made.path, "v1").out
    for part in (made.ids["base"], made.ids["root"], "(tag: v1)", "base of it", "run", "7"):
        assert part in text
    assert "+ group /group\n" in text
    assert "+ array /group/a\n" in text
    assert re.search(r"/group/a +2 +\[0-3, 0-1\]", text)
    value = command("show", made.path, "v1", "--json").json
    assert set(value) == SNAPSHOT_KEYS | {"manifests", "changes"}
    assert set(value["changes"]) == CHANGE_KEYS
    assert value["changes"]["updated_chunks"] == {
        "/group/a": {"count": 2, "within": [[0, 3], [0, 1]]}
    }


def test_show_of_the_first_snapshot_has_no_changes(command: Command, made: Made) -> None:
    value = command("show", made.path, made.ids["root"], "--json").json
    assert (value["parent_id"], value["changes"]) == (None, None)
    assert "the first snapshot" in command("show", made.path, made.ids["root"]).out


def test_show_goes_on_without_a_log_and_says_so(command: Command, made: Made) -> None:
    (made.path / "transactions" / made.ids["m1"]).unlink()
    answer = command("show", made.path, "main~1")
    assert answer.code == 0
    assert "unknown: the transaction log" in answer.out
    assert command("show", made.path, "main~1", "--json").json["changes"] is None


def test_diff_is_along_a_line(command: Command, made: Made) -> None:
    value = command("diff", made.path, "v1", "--json").json
    assert set(value) == CHANGE_KEYS | {"from", "to"}
    assert (value["from"], value["to"]) == (made.ids["base"], made.ids["m2"])
    assert value["updated_chunks"] == {"/group/a": {"count": 2, "within": [[1, 2], [0, 0]]}}
    full = command("diff", made.path, "v1", "main", "--chunks", "--json").json
    assert full["updated_chunks"]["/group/a"]["coordinates"] == [[1, 0], [2, 0]]
    assert "/group/a [2, 0]\n" in command("diff", made.path, "v1", "--chunks").out
    assert command("diff", made.path, "main", "main").out == "nothing changed\n"
    turned = command("diff", made.path, "main", "v1")
    assert (turned.code, "not an ancestor" in turned.err) == (1, True)


def test_diff_of_two_branches_says_what_each_did_since_they_parted(
    command: Command, made: Made
) -> None:
    value = command("diff", made.path, "dev", "main", "--json").json
    assert set(value) == {"from", "to", "parted_at", "only_from", "only_to"}
    assert value["parted_at"] == made.ids["base"]
    sides = [
        value[side]["updated_chunks"]["/group/a"]["within"] for side in ("only_from", "only_to")
    ]
    assert sides == [[[2, 2], [0, 0]], [[1, 2], [0, 0]]]
    told = made.named(command("diff", made.path, "dev", "main", "--chunks").out)
    assert told.startswith("parted at base\n\ndev\n")
    assert told.index("/group/a [2, 0]") < told.index("\nmain\n") < told.index("/group/a [1, 0]")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("dcba", "xba", "b"),
        ("xba", "dcba", "b"),
        ("ba", "dcba", "b"),
        ("a", "a", "a"),
        ("ab", "xy", None),
    ],
)
def test_histories_part_where_they_last_agree(
    first: str, second: str, expected: str | None
) -> None:
    assert parted_at(first, second) == expected


def test_coverage_shows_what_is_there_and_what_is_missing(command: Command, made: Made) -> None:
    shown = command("coverage", made.path, "group/a").out
    assert shown.splitlines()[0].endswith(" of 40 labels of 0 are there")
    value = command("coverage", made.path, "group/a", "--json").json
    assert value["shared"] == ["/group/a"]
    assert value["wanted"] == 40
    for first, last in value["present"]:
        assert (first % 10, last % 10) == (0, 9)
        assert f"{first} to {last}" in shown
    wrong = command("coverage", made.path, "group/a", "--dim", "time")
    assert (wrong.code, "its dimensions are 0, 1" in wrong.err) == (1, True)


def test_tree_shows_shapes_and_counts(command: Command, made: Made) -> None:
    assert command("tree", made.path).out == (
        "/\n└── group\n    └── a uint8 (40, 4) chunks (10, 2)\n"
    )
    counted = command("tree", made.path, "v1", "--chunks", "--path", "group").out
    assert counted == ("/group\n└── a uint8 (40, 4) chunks (10, 2)  2 of 8 chunks, 1.2 kB\n")
    value = command("tree", made.path, "v1", "--chunks", "--json").json
    assert value["snapshot_id"] == made.ids["base"]
    assert [node["path"] for node in value["nodes"]] == ["/", "/group", "/group/a"]
    assert value["nodes"][2] == {
        "path": "/group/a",
        "type": "array",
        "shape": [40, 4],
        "chunk_shape": [10, 2],
        "grid": [4, 2],
        "data_type": "uint8",
        "dimension_names": None,
        "chunks": 2,
        "bytes": 1206,
    }
    missing = command("tree", made.path, "--path", "/nothing")
    assert (missing.code, missing.err[:22]) == (1, "error [node_not_found]")


def test_branches_are_created_moved_listed_and_deleted(command: Command, made: Made) -> None:
    created = command("branch", "create", made.path, "new", "--at", "v1", "--json")
    assert created.json == {
        "action": "created", "branch": "new", "snapshot_id": made.ids["base"], "was": None,
    }  # fmt: skip
    moved = command("branch", "reset", made.path, "new", "--to", "dev", "--json")
    assert moved.json == {
        "action": "moved",
        "branch": "new",
        "snapshot_id": made.ids["d1"],
        "was": made.ids["base"],
    }
    names = [one["name"] for one in command("branch", "list", made.path, "--json").json["branches"]]
    assert names == ["dev", "main", "new"]
    assert re.search(rf"new +{made.ids['d1']} ", command("branch", "list", made.path).out)
    deleted = command("branch", "delete", made.path, "new")
    assert deleted.out == f"deleted branch new (it was at {made.ids['d1']})\n"
    assert made.repository.list_branches() == {"main", "dev"}


def test_a_reset_with_a_wrong_expectation_moves_nothing(command: Command, made: Made) -> None:
    answer = command(
        "branch", "reset", made.path, "dev", "--to", "main", "--from", made.ids["root"]
    )
    assert (answer.code, answer.err[:16]) == (1, "error [conflict]")
    assert made.repository.lookup_branch("dev") == made.ids["d1"]


def test_tags_are_created_listed_and_deleted_for_ever(command: Command, made: Made) -> None:
    assert command("tag", "create", made.path, "v2").code == 0
    value = command("tag", "list", made.path, "--json").json["tags"]
    assert [(one["name"], one["snapshot"]["id"]) for one in value] == [
        ("v1", made.ids["base"]),
        ("v2", made.ids["m2"]),
    ]
    assert command("tag", "delete", made.path, "v2").code == 0
    again = command("tag", "create", made.path, "v2")
    assert (again.code, again.err[:23]) == (1, "error [tag_was_deleted]")
    assert command("tag", "delete", made.path, "v1").code == 0
    assert command("tag", "list", made.path).out == "no tags\n"


def test_stats_measure_versions_files_and_arrays(command: Command, made: Made) -> None:
    value = command("stats", made.path, "--json").json
    assert set(value) == {"snapshots", "branches", "tags", "arrays", "files", "chunk_bytes"}
    assert set(value["chunk_bytes"]) == {"native_bytes", "inlined_bytes", "virtual_bytes"}
    assert value["chunk_bytes"]["native_bytes"] == 1200
    assert value["files"]["snapshots"]["count"] == 5
    text = command("stats", made.path, "--arrays").out
    assert re.search(r"branch main +4 +1\.2 kB", text)
    assert re.search(r"/group/a +3 +1\.2 kB", text)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["show", "REPOSITORY", "nope"], "branch_not_found"),
        (["show", "REPOSITORY", "branch:nope"], "branch_not_found"),
        (["show", "REPOSITORY", "tag:nope"], "tag_not_found"),
        (["show", "REPOSITORY", "0000000000000000000G"], "snapshot_not_found"),
        (["show", "REPOSITORY", "main~99"], "snapshot_not_found"),
        (["show", "REPOSITORY", ".."], "invalid_name"),
        (["log", "REPOSITORY", "../main"], "invalid_name"),
        (["branch", "create", "REPOSITORY", ".."], "invalid_name"),
        (["branch", "create", "REPOSITORY", "a/b"], "invalid_name"),
        (["branch", "create", "REPOSITORY", "dev"], "branch_exists"),
        (["branch", "delete", "REPOSITORY", "main"], "invalid_name"),
        (["branch", "delete", "REPOSITORY", "nope"], "branch_not_found"),
        (["branch", "reset", "REPOSITORY", "..", "--to", "main"], "invalid_name"),
        (["tag", "create", "REPOSITORY", "v1"], "tag_exists"),
        (["tag", "delete", "REPOSITORY", "nope"], "tag_not_found"),
        (["log", "ftp://example.org/x"], "invalid_config"),
        (["log", "s3://user:secret@bucket/x"], "invalid_config"),
    ],
)
def test_an_error_is_one_line_with_its_kind_and_code_1(
    command: Command, made: Made, words: list[str], kind: str
) -> None:
    answer = command(*(made.path if word == "REPOSITORY" else word for word in words))
    assert (answer.code, answer.out) == (1, "")
    assert re.fullmatch(rf"error \[{kind}\]: [^\n]+\n", answer.err), answer.err
    assert "secret" not in answer.err


@pytest.mark.parametrize("name", ["log", "stats", "verify"])
def test_a_place_without_a_repository_is_said_and_left_alone(
    command: Command, tmp_path: Path, name: str
) -> None:
    answer = command(name, tmp_path / "nothing")
    assert answer.code == 1
    assert answer.err.startswith("error [repository_not_found]: ")
    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_starts_in_the_current_folder(
    command: Command, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = made.path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    assert command("log", "..", "--json").code == 0
    assert command("log", made.path.as_uri(), "--json").code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["branch"],
        ["dance", "x"],
        ["log"],
        ["log", "x", "-n", "0"],
        ["expire", "x"],
        ["gc", "x", "--older-than", "3x"],
        ["gc", "x", "--minimum-age", "-1d"],
        ["log", ""],
    ],
)
def test_wrong_usage_is_code_2(command: Command, words: list[str]) -> None:
    answer = command(*words)
    assert (answer.code, answer.out) == (2, "")
    assert "error" in answer.err


def test_json_says_numbers_it_cannot_hold_as_text() -> None:
    value = json_value({"a": float("nan"), "b": [float("inf"), 1.5, None, True], "c": {"x"}})
    assert json.loads(json.dumps(value, allow_nan=False)) == {
        "a": "nan", "b": ["inf", 1.5, None, True], "c": ["x"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"),
        (5 * 10**15, "5.0 PB"), (5 * 10**18, "5,000.0 PB"),
    ],
)  # fmt: skip
def test_sizes_are_short(count: int, shown: str) -> None:
    assert size(count) == shown


def test_a_snapshot_is_found_by_its_id_in_any_spelling(command: Command, made: Made) -> None:
    for number, typed in enumerate(spellings(made.ids["m1"])):
        assert command("show", made.path, typed, "--json").json["id"] == made.ids["m1"]
        assert (
            command("show", made.path, f"snapshot:{typed}", "--json").json["id"] == made.ids["m1"]
        )
        assert command("diff", made.path, typed, "main", "--json").json["from"] == made.ids["m1"]
        name = f"typed{number}"
        told = command("branch", "create", made.path, name, "--at", typed, "--json").json
        assert told["snapshot_id"] == made.ids["m1"]
        words = ("branch", "reset", made.path, name, "--to", "main", "--from", typed)
        assert command(*words, "--json").json["was"] == made.ids["m1"]
