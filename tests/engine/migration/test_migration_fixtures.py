"""Repositories that the original software wrote, migrated, and all that they held still there."""

from __future__ import annotations

from pathlib import Path

import icechunk as official
import numpy as np
import pytest
import zarr
from support import fixtures, trees
from support.audit import audit
from support.migrations import bytes_of, in_memory, portrait

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.opening import detect_generation
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import UnsupportedError

pytestmark = fixtures.needs_fixtures

ALPHA = [*fixtures.names("g2-"), *fixtures.names("g3-f1dc")]
FIRST = [name for name in fixtures.names("g3-") if "f1dc" not in name]
SECOND = fixtures.names("g4-")
COLONS = "g2-ed5fcba7-test-repo"
"""Its references are called `branch:main`; official releases stumble over such names."""
PAIRS = [
    *((name, to) for name in ALPHA for to in ("1", "2")),
    *((name, "2") for name in FIRST),
]


def loaded(name: str, tmp_path: Path) -> MemoryStorage:
    return in_memory(fixtures.unpack(name, tmp_path)[0])


@pytest.mark.parametrize(("name", "to"), PAIRS)
def test_trees_values_and_histories_are_the_same_before_and_after(name, to, tmp_path):
    storage = loaded(name, tmp_path)
    before, chunks = portrait(storage), set(storage.objects)
    result = icechunk.migrate(storage, to)
    assert detect_generation(storage) == to
    assert portrait(storage) == before
    assert (result.migrated, result.ids, result.chunk_files) == (True, {}, 0)
    assert result.snapshots == len(before.snapshots)
    assert {key for key in storage.objects if key.startswith("chunks/")} <= chunks
    if to == "1":
        assert audit(storage) >= 5

    assert icechunk.migrate(storage, to, remove_old=True).removed > 0
    assert portrait(storage) == before
    kept = [key for key in storage.objects if key.startswith("refs/")]
    assert not kept if to == "2" else all("ref.json" in key for key in kept)
    again = icechunk.migrate(storage, to, remove_old=True)
    assert (again.migrated, again.removed, again.leftovers) == (False, 0, ())


@pytest.mark.parametrize(("name", "to"), PAIRS[: 2 * len(ALPHA) : 5])
def test_what_changed_is_known_after_a_migration(name, to, tmp_path):
    storage = loaded(name, tmp_path)
    icechunk.migrate(storage, to)
    repo = icechunk.Repository.open(storage)
    first = list(repo.ancestry(branch="main"))[-1]
    diff = repo.diff(from_snapshot_id=first.id, to_branch="main")
    session = repo.readonly_session("main")
    paths = {node.path for node in session.tree.nodes()}
    assert diff.new_groups | diff.new_arrays == paths


@pytest.mark.parametrize(("name", "to"), PAIRS[::7])
def test_a_dry_run_writes_nothing(name, to, tmp_path):
    storage = loaded(name, tmp_path)
    before = bytes_of(storage)
    planned = icechunk.migrate(storage, to, dry_run=True, remove_old=True)
    assert bytes_of(storage) == before
    assert planned.dry_run
    assert not planned.migrated
    done = icechunk.migrate(storage, to)
    for fact in ("source", "target", "snapshots", "branches", "tags", "deleted_tags", "manifests"):
        assert getattr(planned, fact) == getattr(done, fact), fact


@pytest.mark.parametrize("name", SECOND)
def test_generation_2_stays_and_is_never_taken_back(name, tmp_path):
    storage = loaded(name, tmp_path)
    before = bytes_of(storage)
    assert not icechunk.migrate(storage, 2).migrated
    with pytest.raises(UnsupportedError, match="cannot be migrated back"):
        icechunk.migrate(storage, 1)
    assert bytes_of(storage) == before


@pytest.mark.parametrize("name", ALPHA[::4])
def test_from_alpha_to_1_to_2_is_the_same_as_at_once(name, tmp_path):
    storage = loaded(name, tmp_path)
    before = portrait(storage)
    icechunk.migrate(storage, "1")
    result = icechunk.migrate(storage, "2")
    assert result.leftovers == ("1", "alpha")
    assert portrait(storage) == before
    assert icechunk.migrate(storage, "2", remove_old=True).removed > 0
    assert portrait(storage) == before


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if number % 4 == 2 or name == COLONS else pytest.mark.long)
        for number, name in enumerate(ALPHA)
    ],
)
def test_official_1_reads_and_continues_what_alpha_became(name, tmp_path):
    root, expected = fixtures.unpack(name, tmp_path)
    storage = icechunk.local_filesystem_storage(root)
    ours = trees.contents(icechunk.Repository.open(storage).readonly_session("main"))
    icechunk.migrate(storage, "1", remove_old=name == COLONS)
    theirs = official.Repository.open(official.local_filesystem_storage(str(root)))
    assert {b: theirs.lookup_branch(b) for b in theirs.list_branches()} == expected["branches"]
    assert {t: theirs.lookup_tag(t) for t in theirs.list_tags()} == expected["tags"]
    for ref, history in expected["ancestry"].items():
        kind, _, of = ref.partition(":")
        found = [(info.id, info.message) for info in theirs.ancestry(**{kind: of})]
        assert found == [(item["id"], item["message"]) for item in history]
    assert trees.contents(theirs.readonly_session("main")) == ours
    for ref, contents in expected["contents"].items():
        kind, _, of = ref.partition(":")
        for path, array in contents["arrays"].items():
            if array["sha256"] and not array["chunk_refs"].get("virtual"):
                values = trees.values(theirs.readonly_session(**{kind: of}), path)
                assert trees.digest(values) == array["sha256"], (ref, path)
    session = theirs.writable_session("main")
    added = zarr.open_group(session.store, mode="a").create_array(
        "theirs", data=np.arange(6.0), chunks=(2,)
    )
    assert added[1] == 1
    head = session.commit("by the official library")
    repo = icechunk.Repository.open(storage)
    assert repo.lookup_branch("main") == head
    assert (trees.values(repo.readonly_session("main"), "/theirs") == np.arange(6.0)).all()
