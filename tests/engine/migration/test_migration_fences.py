"""After a migration nobody goes on with the old repository, unless its fence is taken away."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import icechunk as official
import numpy as np
import pytest
import zarr
from support import actors, moto_server
from support.arrays import put
from support.maintenance import UNPACKED, Clock, chunk, clone, write
from support.migrations import portrait
from support.places import Place, in_bucket, in_folder
from test_migration_crashes import PAIRS, every_write, small

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.format.fence import behind, fence
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

ENTRY = {"2": "repo", "1": "refs/branch.main/ref.json"}
FENCED_KEYS = {
    "1": ["refs/branch.main/ref.json", "refs/branch.side/ref.json", "config.yaml"],
    "alpha": ["refs/branch.main/ZZZZZZZW.json", "refs/branch.side/ZZZZZZZX.json"],
    "alpha1": ["r/main/ZZZZZZZW.json", "r/side/ZZZZZZZX.json"],
    "draft": ["state.json"],
}


def without_the_new_one(storage: MemoryStorage, to: str, clock: Clock) -> MemoryStorage:
    """What a program sees that knows nothing of the newer generation."""
    seen = clone(storage, clock)
    seen.delete(["repo", *([ENTRY["1"]] if to == "1" else [])])
    return seen


def fences(storage: MemoryStorage) -> list[str]:
    return sorted(key for key, one in storage.objects.items() if behind(one.data) is not None)


@pytest.mark.parametrize(("generation", "to"), PAIRS)
def test_a_migration_fences_the_old_repository_and_deletes_nothing(
    generation: str, to: str
) -> None:
    clock = Clock()
    storage = small(generation, clock)
    before, stored = portrait(storage), set(storage.objects)
    result = icechunk.migrate(storage, to, world=clock.world())
    assert (result.fenced, result.leftovers) == ((generation,), (generation,))
    assert result.as_dict()["fenced"] == [generation]
    assert fences(storage) == sorted(FENCED_KEYS[generation])
    assert stored <= set(storage.objects)
    assert portrait(storage) == before.renamed(result.ids)
    with pytest.raises(FormatError, match="was migrated to generation"):
        portrait(without_the_new_one(storage, to, clock))


@pytest.mark.parametrize(("generation", "to"), PAIRS)
def test_an_old_session_is_asked_to_open_the_repository_again(generation: str, to: str) -> None:
    clock = Clock()
    storage = small(generation, clock)
    session = Repository.open(storage, world=clock.world()).writable_session("main")
    put(session, "/a", (3,), chunk("too late"))
    icechunk.migrate(storage, to, world=clock.world())
    with pytest.raises(FormatError, match=r"migrated to generation.*again"):
        session.commit("too late")
    main = Repository.open(storage).ancestry(branch="main")
    assert "too late" not in [info.message for info in main]


@pytest.mark.parametrize(("generation", "to"), PAIRS)
def test_a_fence_can_be_taken_away_and_put_up_again(generation: str, to: str) -> None:
    clock = Clock()
    storage = small(generation, clock)
    before = portrait(storage)
    old = Repository.open(storage, world=clock.world())
    ids = icechunk.migrate(storage, to, world=clock.world()).ids
    for _ in range(2):
        result = icechunk.migrate(storage, to, fence_old=False, world=clock.world())
        assert (result.fenced, result.leftovers) == ((), (generation,))
        seen = without_the_new_one(storage, to, clock)
        # The snapshot files of `alpha` are those of generation `1` by now, which is read as well.
        assert portrait(seen) == before
        assert portrait(storage) == before.renamed(ids)
        again = icechunk.migrate(storage, to, world=clock.world())
        assert again.fenced == (generation,)
        with pytest.raises(FormatError, match="was migrated to generation"):
            portrait(without_the_new_one(storage, to, clock))
    icechunk.migrate(storage, to, fence_old=False, world=clock.world())
    clock.wait(hours=1)
    write(old, "main", 3, "in between")
    assert icechunk.migrate(storage, to, world=clock.world()).followed == 1
    assert next(iter(Repository.open(storage).ancestry(branch="main"))).message == "in between"
    assert icechunk.migrate(storage, to, world=clock.world(), remove_old=True).removed > 0
    assert fences(storage) == []


@pytest.mark.parametrize("generation", ["1", "draft"])
def test_a_repository_that_lost_its_new_entry_point_is_migrated_once_more(generation: str) -> None:
    clock = Clock()
    storage = small(generation, clock)
    before = portrait(storage)
    ids = icechunk.migrate(storage, "2", world=clock.world()).ids
    storage.delete(["repo"])
    for act in (Repository.open, Repository.exists, Repository.create):
        with pytest.raises(FormatError, match="entry point is missing"):
            act(storage)
    if generation == "1":
        with pytest.raises(FormatError, match="entry point is missing"):
            icechunk.migrate(storage, "1")
    assert icechunk.migrate(storage, "2", world=clock.world()).migrated
    assert portrait(storage) == before.renamed(ids)


def test_what_is_removed_cannot_be_left_open() -> None:
    with pytest.raises(InvalidInputError, match="cannot be combined"):
        icechunk.migrate(small("1", Clock()), "2", remove_old=True, fence_old=False)


@pytest.mark.parametrize(("generation", "to"), [("1", "2"), ("alpha", "1"), ("draft", "2")])
def test_dying_while_fencing_leaves_the_new_repository_and_is_finished_by_the_next_call(
    generation: str, to: str
) -> None:
    clock = Clock()
    base = small(generation, clock)
    before = portrait(base)
    ids = icechunk.migrate(base, to, fence_old=False, world=clock.world()).ids
    after = before.renamed(ids)

    def close(storage: Any) -> object:
        return icechunk.migrate(storage, to, world=clock.world())

    fenced = clone(base, clock)
    close(fenced)

    def reopen(storage: Any) -> object:
        return icechunk.migrate(storage, to, fence_old=False, world=clock.world())

    cases: list[tuple[Callable[[Any], object], MemoryStorage]] = [(close, base), (reopen, fenced)]
    for act, start in cases:
        count = 0
        for left in every_write(act, lambda start=start: clone(start, clock)):
            assert portrait(left) == after
            with suppress(FormatError):
                # Some branches may be fenced; those that are not show what they showed.
                assert portrait(without_the_new_one(left, to, clock)) == before
            act(left)
            assert portrait(left) == after
            count += 1
        assert count >= 2
    act(left)
    assert portrait(without_the_new_one(left, to, clock)) == before


# --- with the official libraries -----------------------------------------------------------------


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "folder":
        yield in_folder(tmp_path / "repo")
        return
    with moto_server.running() as endpoint:
        yield in_bucket(endpoint, moto_server.BUCKET, tmp_path.name, moto_server.KEYS)


@contextmanager
def hidden_repo(storage: icechunk.Storage) -> Iterator[None]:
    """Releases before 1.1.20 do not look for a `repo` object: for this one there is none."""
    found = storage.get("repo")
    assert found is not None
    storage.delete(["repo"])
    yield
    storage.put("repo", found.data, expect=Anything())


def grow(repository: Any, name: str) -> Any:
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a").create_array(name, data=np.arange(8.0))
    return session


def test_official_1_cannot_open_or_commit_to_a_fenced_repository_and_can_when_it_is_open_again(
    place: Place,
) -> None:
    assert place.official is not None
    repository = official.Repository.create(place.official())
    grow(repository, "first").commit("first")
    repository.create_branch("side", repository.lookup_branch("main"))
    late = grow(repository, "late")
    storage = place.ours()
    icechunk.migrate(storage, "2")
    with pytest.raises(official.ConflictError):
        late.commit("late")
    with pytest.raises(official.IcechunkError, match=r"0{20}"):
        list(repository.ancestry(branch="main"))
    with pytest.raises(official.IcechunkError, match="uses Icechunk v2 format"):
        official.Repository.open(place.official())
    with hidden_repo(storage):
        for act in (official.Repository.open, official.Repository.open_or_create):
            with pytest.raises(official.IcechunkError, match="was migrated to generation 2"):
                act(place.official())
        with pytest.raises(official.IcechunkError):
            official.Repository.create(place.official())
    ours = icechunk.Repository.open(storage)
    assert next(info.message for info in ours.ancestry(branch="main")) == "first"
    icechunk.migrate(storage, "2", fence_old=False)
    with hidden_repo(storage):
        again = official.Repository.open(place.official())
        assert again.list_branches() == {"main", "side"}
        grow(again, "once more").commit("once more")
    assert icechunk.migrate(storage, "2").followed == 1
    head = next(iter(icechunk.Repository.open(storage).ancestry(branch="main")))
    assert head.message == "once more"


def test_a_collection_by_official_1_deletes_nothing_of_the_new_repository(place: Place) -> None:
    assert place.official is not None
    repository = official.Repository.create(place.official())
    grow(repository, "first").commit("first")
    storage = place.ours()
    icechunk.migrate(storage, "2")
    grow(icechunk.Repository.open(storage), "newer").commit("newer")
    before = {item.key for item in storage.scan("")}
    later = datetime.now(UTC) + timedelta(days=1)
    for act in (repository.garbage_collect, repository.expire_snapshots):
        with pytest.raises(official.IcechunkError, match=r"0{20}"):
            act(later)
    assert {item.key for item in storage.scan("")} == before
    assert icechunk.Repository.open(storage).verify().ok


@pytest.mark.parametrize("generation", ["alpha1", "draft"])
def test_a_chunk_that_looks_like_a_fence_is_migrated_as_it_is(generation: str) -> None:
    clock = Clock()
    storage = small(generation, clock)
    looks = fence(b"something else " * 100, "2")
    session = Repository.open(storage, world=clock.world(), packing=UNPACKED).writable_session(
        "main"
    )
    put(session, "/a", (3,), looks)
    clock.wait(hours=1)
    session.commit("looks like a fence")
    before = portrait(storage)
    ids = icechunk.migrate(storage, "1", world=clock.world()).ids
    assert portrait(storage) == before.renamed(ids)


@actors.needs_icechunk2
def test_official_2_opens_and_commits_to_a_fenced_repository(tmp_path: Path) -> None:
    repository = official.Repository.create(official.local_filesystem_storage(str(tmp_path)))
    grow(repository, "first").commit("first")
    storage = icechunk.local_filesystem_storage(str(tmp_path))
    assert icechunk.migrate(storage, "2").fenced == ("1",)
    program = f"""
import datetime, json, icechunk, zarr
storage = icechunk.local_filesystem_storage({str(tmp_path)!r})
assert icechunk.Repository.exists(storage)
repo = icechunk.Repository.open_or_create(storage)
session = repo.writable_session("main")
zarr.open_group(session.store, mode="a").attrs["by"] = "official 2"
session.commit("second")
repo.garbage_collect(datetime.datetime.now(datetime.timezone.utc))
repo = icechunk.Repository.open(storage)
print(json.dumps([info.message for info in repo.ancestry(branch="main")]))
"""
    assert actors.PYTHON is not None
    done = subprocess.run(
        [actors.PYTHON, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])[:2] == ["second", "first"]
    ours = icechunk.Repository.open(storage)
    assert next(iter(ours.ancestry(branch="main"))).message == "second"
    assert ours.verify().ok
