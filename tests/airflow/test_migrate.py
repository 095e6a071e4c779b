"""The operator that moves a repository up to a newer generation."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.airflow_contexts import make_context
from support.maintenance import live_in
from support.migrations import portrait

from airflow_provider_icechunk.api import Repository, Storage, local_filesystem_storage
from airflow_provider_icechunk.exceptions import (
    FormatError,
    InvalidInputError,
    MaintenanceError,
    UnsupportedError,
)
from airflow_provider_icechunk.operators.migrate import IcechunkMigrateOperator


@pytest.fixture
def storage(folder: Path) -> Storage:
    return local_filesystem_storage(folder / "weather")


def do(**arguments: Any) -> dict[str, Any]:
    operator = IcechunkMigrateOperator(task_id="move_up", repository="weather", **arguments)
    result: dict[str, Any] = operator.execute(make_context())
    assert json.loads(json.dumps(result)) == result
    return result


def test_a_repository_moves_up_once(storage: Storage) -> None:
    live_in(storage, "alpha1")
    before = portrait(storage)
    planned = do(dry_run="True")
    assert (planned["migrated"], Repository.open(storage).spec_version) == (False, "alpha1")
    done = do(remove_old="true")
    assert (done["from"], done["to"], done["migrated"]) == ("alpha1", "2", True)
    assert done["new_ids"] == planned["new_ids"] == len(before.snapshots)
    assert len(done["ids"]) == min(20, done["new_ids"])
    assert (done["removed"] > 0, done["leftovers"]) == (True, [])
    assert portrait(storage) == before.renamed(done["ids"])
    assert do()["migrated"] is False


def test_the_old_entry_point_is_fenced_and_opened_again_by_a_switch(storage: Storage) -> None:
    live_in(storage, "1")
    assert (do()["fenced"], Repository.open(storage).spec_version) == (["1"], "2")
    assert do(fence_old="False")["fenced"] == []
    with pytest.raises(InvalidInputError, match="cannot be combined"):
        do(fence_old=False, remove_old=True)


def test_a_repository_that_lost_its_new_entry_point_is_migrated_once_more(
    storage: Storage,
) -> None:
    live_in(storage, "1")
    before = portrait(storage)
    do()
    storage.delete(["repo"])
    with pytest.raises(FormatError, match="entry point is missing"):
        Repository.open(storage)
    assert do()["migrated"]
    assert portrait(storage) == before


def test_there_is_no_way_back(storage: Storage) -> None:
    live_in(storage, "1")
    do(to=2)
    with pytest.raises(UnsupportedError, match="cannot be migrated back"):
        do(to="1")


def test_a_switch_that_is_neither_true_nor_false_is_refused(storage: Storage) -> None:
    live_in(storage, "1")
    with pytest.raises(MaintenanceError, match="remove_old must be true or false"):
        do(remove_old="perhaps")
    assert Repository.open(storage).spec_version == "1"
