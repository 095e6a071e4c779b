"""Any file of a repository may be damaged: what is read is true, or there is an error by name."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from support.maintenance import GENERATIONS, Clock, clone, everything, layout_of, lived_in

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import (
    FormatError,
    IcechunkError,
    MaintenanceError,
    UnsupportedError,
)


def spoilt(data: bytes, chance: random.Random) -> bytes:
    """Bytes changed, cut off, doubled or replaced."""
    match chance.randrange(6):
        case 0:
            return data[: chance.randrange(len(data) + 1)]
        case 1:
            return data + data
        case 2:
            return chance.randbytes(chance.randrange(200))
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 8])):
        if changed:
            changed[chance.randrange(len(changed))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, 0x5B])
    return bytes(changed)


def look(storage: MemoryStorage) -> None:
    """Open and read whatever can be read."""
    repo = icechunk.Repository.open(storage)
    everything(storage)
    for branch in repo.list_branches():
        history = list(repo.ancestry(branch=branch))
        with suppress(IcechunkError):
            repo.diff(from_snapshot_id=history[-1].id, to_snapshot_id=history[0].id)
    if repo.spec_version == "2":
        list(repo.ops_log())
        repo.get_metadata()
        repo.inspect_repo_info()
    icechunk.Repository.fetch_config(storage)


TIMES = [
    *((generation, 2) for generation in GENERATIONS),
    *(pytest.param(generation, 20, marks=pytest.mark.long) for generation in GENERATIONS),
]


@pytest.mark.parametrize(("generation", "times"), TIMES)
def test_no_damaged_file_gives_anything_but_errors_by_name(generation: str, times: int) -> None:
    clock = Clock()
    storage, _ = lived_in(generation, clock)
    chunks, chance = layout_of(storage).chunks, random.Random(generation)
    icechunk.Repository.open(
        storage, icechunk.RepositoryConfig(inline_chunk_threshold_bytes=9), world=clock.world()
    ).save_config()
    seen = set()
    for key in sorted(storage.objects):
        if key.startswith((chunks, "jobs/")):
            continue
        for _ in range(times):
            broken = clone(storage, clock)
            broken.put(key, spoilt(storage.objects[key].data, chance), expect=Anything())
            try:
                look(broken)
            except IcechunkError as error:
                seen.add(type(error))
            with suppress(MaintenanceError, FormatError, UnsupportedError, IcechunkError):
                icechunk.Repository.open(broken).verify()
    assert FormatError in seen


@pytest.mark.parametrize(("generation", "times"), TIMES)
def test_damaged_snapshots_and_manifests_are_format_errors(generation: str, times: int) -> None:
    clock = Clock()
    storage, _ = lived_in(generation, clock)
    layout, chance = layout_of(storage), random.Random(generation)
    refused = tried = 0
    for key in sorted(storage.objects):
        if not key.startswith((layout.snapshots, layout.manifests)):
            continue
        for _ in range(times):
            broken = clone(storage, clock)
            data = storage.objects[key].data
            at = chance.randrange(len(data))
            broken.put(key, data[:at] + chance.randbytes(4) + data[at + 4 :], expect=Anything())
            tried += 1
            try:
                everything(broken)
                list(icechunk.Repository.open(broken).ancestry(branch="main"))
            except (FormatError, UnsupportedError):
                refused += 1
    # Damage of what nothing reaches, and of bytes that say nothing, is not seen.
    assert refused > tried // 4
