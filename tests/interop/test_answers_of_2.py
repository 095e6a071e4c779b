"""What programs for official 2.x ask is answered here as there, where a difference is silent."""

from __future__ import annotations

import json
import pickle
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zarr
from support import actors, answers

import airflow_provider_icechunk.api as icechunk


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Any:
    found = answers.answers(icechunk, tmp_path_factory.mktemp("ours"))
    return json.loads(json.dumps(found))


@actors.needs_icechunk2
def test_every_answer_is_that_of_the_official_library(ours: Any, tmp_path: Path) -> None:
    assert actors.PYTHON is not None
    done = subprocess.run(
        [actors.PYTHON, "-W", "ignore", answers.__file__, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    for question, answer in theirs.items():
        assert ours[question] == answer, question
    assert ours.keys() == theirs.keys()


def test_kinds_in_columns_are_found_by_their_names(ours: Any) -> None:
    kinds = ours["kinds of chunks"]
    assert kinds["('large', 'native')"] == [True, True]
    assert kinds["('large', 'inline')"] == [False, False]
    assert kinds["('small', 'inline')"] == [True, True]
    assert str(icechunk.ChunkType.native) == "ChunkType.NATIVE"


def test_a_path_does_not_list_its_neighbours(ours: Any) -> None:
    keys = ours["keys below a path"]["keys"]
    assert {key.split("/")[0] for key in keys["foo"]} == {"foo"}
    assert {key.split("/")[1] for key in keys["foo/a"]} == {"a"}
    assert len(keys["foobar"]) == 13


def test_an_expired_snapshot_cannot_be_opened_and_others_can(ours: Any) -> None:
    for question, works in ours["what expired"].items():
        assert works is not question.startswith("old"), question


def test_a_closed_repository_hands_out_no_session_that_writes(ours: Any) -> None:
    allowed = {question for question, works in ours["a closed repository"].items() if works}
    assert allowed == {"own reading", "other reading", "again"}


def test_a_local_file_that_is_a_moment_younger_than_its_reference_is_refused(ours: Any) -> None:
    virtual = ours["virtual chunks"]
    moments = {name: works for name, works in virtual.items() if name.endswith("later")}
    assert {name for name, works in moments.items() if works} == {"-1 ns later", "0 ns later"}
    assert virtual["number"] == [None, 7]
    assert virtual["by name"] == virtual["whole"] == ["a.bin"]


def test_maintenance_that_finds_nothing_is_in_the_operations_log(ours: Any) -> None:
    assert ours["the operations log"][:3] == ["GCRan", "ExpirationRan", "NewCommit"]


def test_generations_are_numbers_and_their_old_spelling_still_is_understood() -> None:
    storage = icechunk.in_memory_storage()
    version = icechunk.Repository.create(storage, spec_version=2).spec_version
    assert version == icechunk.SpecVersion.v2 == 2
    assert (version == "2", version == "1", version != "2", f"{version}") == (
        True,
        False,
        False,
        "2",
    )
    assert {version: "a"}[2] == "a"
    early = icechunk.Repository.create(icechunk.in_memory_storage(), spec_version="alpha")
    assert early.spec_version == "alpha"


def test_a_reader_that_was_sent_away_goes_on_after_its_snapshot_expired(tmp_path: Path) -> None:
    storage = icechunk.local_filesystem_storage(tmp_path)
    repo = icechunk.Repository.create(storage, spec_version=2)
    for number in range(2):
        session = repo.writable_session("main")
        zarr.open_group(session.store, mode="a").attrs["number"] = number
        if number:
            sent = pickle.dumps(repo.readonly_session("main"))
        session.commit(str(number))
    repo.expire_snapshots(datetime.now(UTC))
    arrived = pickle.loads(sent)
    assert zarr.open_group(arrived.store, mode="r").attrs["number"] == 0
    with pytest.raises(icechunk.NotFoundError, match="expired"):
        repo.readonly_session(snapshot_id=arrived.snapshot_id)
