"""Long attributes live in files of their own, in the three generations that have such files."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import zarr
from support.maintenance import Clock, clone, keys, layout_of

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.maintenance.findings import Code
from airflow_provider_icechunk.engine.storage.base import Anything, Storage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import FormatError, UnsupportedError
from airflow_provider_icechunk.testing.storages import every_crash

WITH_FILES = ["alpha", "alpha1", "draft"]
LONG = {"history": ["a step of the processing"] * 20, "é": None}
OTHER = {"history": ["another step of the processing"] * 20}
SHORT = {"units": "K"}
CONFIG = RepositoryConfig(attributes_file_threshold_bytes=100)


def written(generation: str, clock: Clock) -> MemoryStorage:
    storage = MemoryStorage(clock=clock)
    repo = icechunk.Repository.create(storage, CONFIG, spec_version=generation, world=clock.world())
    session = repo.writable_session("main")
    root = zarr.create_group(session.store, attributes=LONG)
    root.create_array("a", shape=(4,), chunks=(2,), dtype="i4", attributes=OTHER)[:] = 5
    root.create_group("same", attributes=LONG)
    root.create_group("g", attributes=SHORT)
    session.commit("written")
    return storage


def attributes(storage: Storage) -> dict[str, dict]:
    store = icechunk.Repository.open(storage).readonly_session("main").store
    root = zarr.open_group(store, mode="r")
    return {"": dict(root.attrs)} | {path: dict(node.attrs) for path, node in root.members()}


def files(storage: Storage) -> set[str]:
    folder = layout_of(storage).attributes
    assert folder is not None
    return keys(storage, folder)


def change(storage: Storage, path: str, new: dict, clock: Clock) -> None:
    repo = icechunk.Repository.open(storage, world=clock.world())
    session = repo.writable_session("main")
    zarr.open(session.store, path=path, mode="r+").attrs.put(new)
    session.commit("changed")


@pytest.mark.parametrize("generation", WITH_FILES)
def test_long_attributes_come_back_and_are_stored_once(generation: str) -> None:
    clock = Clock()
    storage = written(generation, clock)
    expected = {"": LONG, "a": OTHER, "same": LONG, "g": SHORT}
    assert attributes(storage) == expected
    (first,) = files(storage)
    clock.wait(hours=1)
    change(storage, "g", {"units": "C"}, clock)
    assert files(storage) == {first}
    assert attributes(storage) == expected | {"g": {"units": "C"}}
    clock.wait(hours=1)
    change(storage, "a", {**OTHER, "more": 1}, clock)
    assert len(files(storage)) == 2
    assert attributes(storage)["a"]["more"] == 1
    assert attributes(storage)[""] == LONG
    report = icechunk.Repository.open(storage).verify()
    assert report.ok, report.errors


@pytest.mark.parametrize("generation", [*WITH_FILES, "1", "2"])
def test_by_default_attributes_stay_with_their_nodes(generation: str) -> None:
    storage = MemoryStorage()
    session = icechunk.Repository.create(storage, spec_version=generation).writable_session("main")
    zarr.create_group(session.store, attributes=LONG)
    session.commit("inline")
    assert not [key for key in keys(storage) if key.startswith(("a/", "attributes/"))]
    assert attributes(storage) == {"": LONG}


@pytest.mark.parametrize("generation", WITH_FILES)
def test_files_live_as_long_as_a_snapshot_needs_them(generation: str) -> None:
    clock = Clock()
    storage = written(generation, clock)
    clock.wait(hours=1)
    for number in range(3):
        change(storage, "", {**LONG, "n": number}, clock)
        change(storage, "a", {**OTHER, "n": number}, clock)
        clock.wait(hours=1)
    assert len(files(storage)) == 7
    clock.wait(days=2)
    repo = icechunk.Repository.open(storage, world=clock.world())
    assert repo.garbage_collect(clock.now).attributes_deleted == 0
    before = attributes(storage)
    repo.expire_snapshots(clock.now)
    summary = repo.garbage_collect(clock.now, dry_run=True)
    assert summary.attributes_deleted == 4
    assert repo.garbage_collect(clock.now).attributes_deleted == 4
    assert len(files(storage)) == 3
    assert attributes(storage) == before
    assert repo.verify().ok


@pytest.mark.parametrize("generation", WITH_FILES)
def test_a_commit_with_long_attributes_is_seen_wholly_or_not(generation: str) -> None:
    clock = Clock()
    base = written(generation, clock)
    clock.wait(hours=1)
    before = attributes(base)

    def scenario(storage: Storage) -> None:
        change(storage, "", OTHER | {"n": 1}, clock)

    seen = []
    for point in every_crash(scenario, make=lambda: clone(base, clock)):
        found = attributes(point.storage)
        assert found in (before, before | {"": OTHER | {"n": 1}}), point
        seen.append(found == before)
        assert icechunk.Repository.open(point.storage).verify().ok, point
    assert {True, False} == set(seen)


@pytest.mark.parametrize("generation", WITH_FILES)
def test_lost_and_damaged_files_are_named(generation: str) -> None:
    clock = Clock()
    storage = written(generation, clock)
    (key,) = files(storage)
    data = storage.objects[key].data
    lost = clone(storage, clock)
    lost.delete([key])
    with pytest.raises(FormatError, match="attributes file"):
        attributes(lost)
    codes = {finding.code for finding in icechunk.Repository.open(lost).verify().errors}
    assert codes == {Code.SNAPSHOT_UNREADABLE}
    chance = random.Random(generation)
    refused = 0
    for _ in range(150):
        spoilt = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
        cut = chance.choice([len(spoilt), chance.randrange(len(spoilt))])
        broken = clone(storage, clock)
        broken.put(key, bytes(spoilt[:cut]), expect=Anything())
        with suppress(FormatError, UnsupportedError):
            attributes(broken)
            refused -= 1
        refused += 1
    assert refused > 60
    for other in (b"", b"[]", b"{}", b"PAR1PAR1", b"\x92\x90\x90"):
        broken = clone(storage, clock)
        broken.put(key, other, expect=Anything())
        with pytest.raises(FormatError):
            attributes(broken)
