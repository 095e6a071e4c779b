"""What cannot be named, listed or read stops maintenance before anything is changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from support.maintenance import GENERATIONS, Clock, everything, keys, live_in, lived_in

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.maintenance.findings import Code
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Anything, Storage
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import FormatError, MaintenanceError

LONG = "b" * 245
"""More characters than a new name may have; other software creates such branches."""
REFERENCE_OF_SIDE = {
    "1": "refs/branch.side/ref.json",
    "alpha": "refs/branch.side/ZZZZZZZY.json",
    "alpha1": "r/side/ZZZZZZZY.json",
}
BRANCH = {"1": "refs/branch.{}/", "alpha": "refs/branch.{}/", "alpha1": "r/{}/"}
TAG = {"1": "refs/tag.{}/ref.json", "alpha": "refs/tag.{}/ref.json", "alpha1": "r/{}.json"}


def rename_side(storage: MemoryStorage, generation: str, name: str) -> None:
    """Give the only other branch a name of another program's choice."""
    old, new = (BRANCH[generation].format(one) for one in ("side", name))
    for key in keys(storage, old):
        storage.put(key.replace(old, new), storage.objects[key].data, expect=Anything())
        storage.delete([key])


@pytest.mark.parametrize("generation", ["1", "alpha", "alpha1"])
def test_a_branch_with_a_long_name_is_read_and_keeps_its_snapshots(generation: str) -> None:
    clock = Clock()
    storage, _ = lived_in(generation, clock)
    clock.wait(days=10)
    rename_side(storage, generation, LONG)
    before = everything(storage)
    assert f"branch {LONG}" in before
    Repository.open(storage).garbage_collect(clock.now)
    assert everything(storage) == before
    assert Repository.open(storage).verify().ok


def refused_and_untouched(storage: Storage, act: Callable[[Repository], object]) -> None:
    """Maintenance says no, and every key is where it was."""
    before = keys(storage)
    with pytest.raises((MaintenanceError, FormatError)):
        act(Repository.open(storage))
    assert keys(storage) == before


def collect(repo: Repository) -> object:
    return repo.garbage_collect(repo.storage.now() + timedelta(days=1))


def expire(repo: Repository) -> object:
    return repo.expire_snapshots(
        repo.storage.now() + timedelta(days=1), delete_expired_branches=True
    )


def move_up(repo: Repository) -> object:
    return icechunk.migrate(repo, "2", remove_old=True)


ACTS = [collect, expire, move_up]
MISNAMED = [
    "zzzzzzzz.json.json",
    "ZZZZZZZU.json",
    "ZZZZZZZ.json",
    "ZZZZZZZY",
    "ZZZZZZZY.json.bak",
    "ZZZZZZZY.txt",
    "old/ZZZZZZZY.json",
]
"""Not the names of branch files, though a person may have made them of such."""


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("name", ["feature#1", "back\\slash", "bell\a", os.fsdecode(b"latin-\xe9")])
@pytest.mark.parametrize("generation", ["1", "alpha", "alpha1"])
def test_a_branch_that_no_key_can_name_stops_maintenance(
    generation: str, name: str, act: Callable[[Repository], object], tmp_path: Path
) -> None:
    storage = LocalStorage(tmp_path, durable=False)
    live_in(storage, generation)
    folder = BRANCH[generation].rstrip("/")
    (tmp_path / folder.format("side")).rename(tmp_path / folder.format(name))
    refused_and_untouched(storage, act)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("name", ["back\\slash", "bell\a", os.fsdecode(b"latin-\xe9")])
@pytest.mark.parametrize("generation", ["1", "alpha", "alpha1"])
def test_a_tag_that_no_key_can_name_stops_maintenance(
    generation: str, name: str, act: Callable[[Repository], object], tmp_path: Path
) -> None:
    storage = LocalStorage(tmp_path, durable=False)
    live_in(storage, generation)
    new = tmp_path / TAG[generation].format(name)
    new.parent.mkdir(exist_ok=True)
    (tmp_path / TAG[generation].format("v1")).rename(new)
    refused_and_untouched(storage, act)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("damage", [b"", b"{", b"\0" * 40, b'{"snapshot":"short"}', b"[]"])
@pytest.mark.parametrize("generation", ["1", "alpha", "alpha1"])
def test_a_reference_that_cannot_be_parsed_stops_maintenance(
    generation: str, damage: bytes, act: Callable[[Repository], object]
) -> None:
    for key in (REFERENCE_OF_SIDE[generation], TAG[generation].format("v1")):
        storage, _ = lived_in(generation)
        assert key in storage.objects
        storage.put(key, damage, expect=Anything())
        refused_and_untouched(storage, act)


@pytest.mark.parametrize("generation", ["1", "alpha", "alpha1"])
def test_behind_a_damaged_reference_nothing_is_called_garbage(generation: str) -> None:
    storage, _ = lived_in(generation)
    assert Code.UNREACHABLE in {one.code for one in Repository.open(storage).verify().findings}
    storage.put(REFERENCE_OF_SIDE[generation], b"{", expect=Anything())
    report = Repository.open(storage).verify()
    assert not report.ok
    assert {Code.REF_UNREADABLE} == {one.code for one in report.findings}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    ("generation", "name"),
    [
        *((generation, name) for generation in ("alpha", "alpha1") for name in MISNAMED),
        *(("1", name) for name in ("ref.json.bak", "REF.JSON", "ZZZZZZZU.json", "old/ref.json")),
    ],
)
def test_a_branch_without_a_file_that_is_understood_stops_maintenance(
    generation: str, name: str, act: Callable[[Repository], object]
) -> None:
    storage, _ = lived_in(generation)
    folder = BRANCH[generation].format("side")
    data = storage.objects[REFERENCE_OF_SIDE[generation]].data
    storage.delete([*keys(storage, folder)])
    storage.put(folder + name, data, expect=Anything())
    refused_and_untouched(storage, act)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    ("generation", "key"),
    [
        ("1", "refs/tag.v1/ref.json.bak"),
        ("1", "refs/fork.v1/ref.json"),
        ("alpha", "refs/tag.v1/ref.json.bak"),
    ],
)
def test_a_tag_or_a_kind_of_reference_that_is_not_understood_stops_maintenance(
    generation: str, key: str, act: Callable[[Repository], object]
) -> None:
    storage, _ = lived_in(generation)
    tag = TAG[generation].format("v1")
    storage.put(key, storage.objects[tag].data, expect=Anything())
    storage.delete([tag])
    refused_and_untouched(storage, act)


def test_old_numbered_files_are_not_a_branch_of_generation_1() -> None:
    """A migration may leave them, and the branch may have been deleted since."""
    storage, _ = lived_in("1")
    storage.put("refs/branch.old/ZZZZZZZY.json", b"{}", expect=Anything())
    assert "old" not in Repository.open(storage).list_branches()
    collect(Repository.open(storage))


@pytest.mark.parametrize("generation", ["alpha", "alpha1"])
@pytest.mark.parametrize("name", MISNAMED)
def test_a_branch_of_misnamed_files_is_neither_absent_nor_created_again(
    generation: str, name: str
) -> None:
    storage, _ = lived_in(generation)
    repo = Repository.open(storage)
    folder = BRANCH[generation].format("side")
    at = repo.lookup_branch("main")
    storage.delete([*keys(storage, folder)])
    storage.put(folder + name, b"{}", expect=Anything())
    before = keys(storage)
    for act in (
        Repository.list_branches,
        lambda one: one.lookup_branch("side"),
        lambda one: one.writable_session("side"),
        lambda one: one.create_branch("side", at),
        lambda one: one.delete_branch("side"),
    ):
        with pytest.raises(FormatError, match=f"{folder}{name}: not the name of a branch file"):
            act(Repository.open(storage))
    assert keys(storage) == before


@pytest.mark.parametrize("generation", ["1", "alpha", "alpha1"])
def test_a_branch_with_a_strange_file_beside_is_read_and_not_deleted_around_it(
    generation: str,
) -> None:
    storage, _ = lived_in(generation)
    repo = Repository.open(storage)
    strange = BRANCH[generation].format("side") + "notes.txt"
    storage.put(strange, b"", expect=Anything())
    before = keys(storage)
    assert repo.lookup_branch("side")
    with pytest.raises(FormatError, match=f"{strange}: .*is not deleted"):
        repo.delete_branch("side")
    assert keys(storage) == before
    storage.delete([strange])
    repo.delete_branch("side")
    assert "side" not in repo.list_branches()


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("what", ["branch", "tag"])
def test_references_in_two_spellings_stop_maintenance(
    what: str, act: Callable[[Repository], object]
) -> None:
    storage, _ = lived_in("alpha")
    (old, key) = {
        "branch": (REFERENCE_OF_SIDE["alpha"], "refs/branch:other/ZZZZZZZZ.json"),
        "tag": (TAG["alpha"].format("v1"), "refs/tag:other/ref.json"),
    }[what]
    storage.put(key, storage.objects[old].data, expect=Anything())
    refused_and_untouched(storage, act)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("damage", [b"", b"{", b"\0" * 40])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_an_entry_point_that_is_not_understood_stops_maintenance(
    generation: str, damage: bytes, act: Callable[[Repository], object]
) -> None:
    storage, _ = lived_in(generation)
    key = {"2": "repo", "draft": "state.json"}.get(generation)
    if key is None:
        key = min(keys(storage, BRANCH[generation].format("main")))
    storage.put(key, damage, expect=Anything())
    refused_and_untouched(storage, act)
