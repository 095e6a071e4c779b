"""Nothing we write makes an official reader lose data in silence.

Each rule is one whose breach was measured to do so; the bytes are read by other code than ours.
"""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test
from support import fixtures
from support.audit import audit
from support.machines import ARRAYS, Operations, attempt

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage


def splitting(size: int) -> icechunk.RepositoryConfig:
    rule = {icechunk.ManifestSplitDimCondition.Any(): size}
    config = icechunk.ManifestSplittingConfig.from_dict(
        {icechunk.ManifestSplitCondition.AnyArray(): rule}
    )
    return icechunk.RepositoryConfig(manifest=icechunk.ManifestConfig(splitting=config))


def test_nodes_lie_in_the_order_of_raw_bytes():
    storage = MemoryStorage()
    session = icechunk.Repository.create(storage).writable_session("main")
    root = zarr.group(session.store)
    for path in ("a/b", "a", "a-b", "a b", "a.b", "ä", "ab", "a/b/c", "Z", "\U0001f9ca", "\uffee"):
        root.require_group(path)
    session.commit("names")
    assert audit(storage) == 2


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_splits_resizes_and_deletes_keep_boxes_tight_and_apart(size):
    storage = MemoryStorage()
    repo = icechunk.Repository.create(storage, splitting(size))

    def step(action):
        session = repo.writable_session("main")
        action(zarr.open_group(session.store, mode="a"))
        session.commit("step")
        audit(storage)

    step(lambda g: g.create_array("x", data=np.arange(49.0).reshape(7, 7), chunks=(1, 1)))
    step(lambda g: g["x"].resize((4, 5)))
    step(lambda g: g["x"].resize((9, 9)))
    step(lambda g: g["x"].set_basic_selection((slice(8, 9), slice(0, 9)), 5.0))
    step(lambda g: [g.store_path.store.delete_sync(f"x/c/{n}/{n}") for n in range(4)])
    step(lambda g: g.create_array("sparse", shape=(40, 40), chunks=(1, 1), dtype="i1"))
    step(lambda g: g["sparse"].set_basic_selection((39, 39), 1))
    step(lambda g: g["sparse"].set_basic_selection((0, 20), 1))
    step(lambda g: g.create_array("scalar", data=np.array(3)))
    step(lambda g: g.__delitem__("x"))
    assert repo.readonly_session("main").store is not None


def test_another_splitting_of_the_same_array_keeps_boxes_apart():
    storage = MemoryStorage()
    repo = icechunk.Repository.create(storage, splitting(3))
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="x", data=np.ones((8, 8)), chunks=(1, 1), fill_value=0, overwrite=True
    )
    session.commit("by threes")
    for size, place in ((5, (0, 0)), (1, (7, 7)), (2, (4, 3)), (100, (2, 2))):
        session = repo.reopen(splitting(size)).writable_session("main")
        zarr.open_array(session.store, path="x")[place] = size
        session.commit("split again")
        audit(storage)
    values = zarr.open_array(repo.readonly_session("main").store, path="x", mode="r")[...]
    assert (values[0, 0], values[7, 7]) == (5, 1)
    assert values.sum() == 60 + 5 + 1 + 2 + 100


def test_rebased_commits_are_as_clean_as_others():
    storage = MemoryStorage()
    repo = icechunk.Repository.create(storage, splitting(2))
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    for name in "xy":
        root.create_array(name, shape=(9,), chunks=(1,), dtype="i4")
    session.commit("start")
    sessions = [repo.writable_session("main") for _ in range(4)]
    for number, session in enumerate(sessions):
        zarr.open_array(session.store, path="x")[number * 2 : number * 2 + 3] = number + 1
        zarr.open_array(session.store, path="y")[number] = number + 1
    for session in sessions:
        session.commit("rebased", rebase_with=icechunk.BasicConflictSolver())
        audit(storage)
    values = zarr.open_array(repo.readonly_session("main").store, path="x", mode="r")[...]
    assert values.tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 4]


def test_a_clock_that_stands_still_gives_increasing_times():
    from datetime import UTC, datetime

    from airflow_provider_icechunk.engine.world import World

    moment = datetime(2030, 1, 1, tzinfo=UTC)
    storage = MemoryStorage(clock=lambda: moment)
    repo = icechunk.Repository.create(storage, world=World(now=lambda: moment))
    for number in range(3):
        session = repo.writable_session("main")
        zarr.group(session.store, path=f"g{number}")
        session.commit("tick")
    assert audit(storage) == 4


@fixtures.needs_fixtures
def test_the_auditor_sees_what_official_writers_did(tmp_path):
    sound, _ = fixtures.unpack("g3-live-icechunk-1.1.21-features", tmp_path)
    assert audit(LocalStorage(sound)) == 4
    wrong, _ = fixtures.unpack("g3-live-icechunk-2.3.0-features", tmp_path)
    with pytest.raises(AssertionError, match="stored shape"):
        audit(LocalStorage(wrong))


class AuditedMachine(Operations):
    """Random work in a repository that splits manifests, audited after each commit."""

    @initialize(size=st.integers(1, 4))
    def start(self, size):
        self.storage = MemoryStorage()
        self.repo = icechunk.Repository.create(self.storage, splitting(size))
        self.session = self.repo.writable_session("main")
        self.furnish([4])

    def change(self, action, *args):
        attempt(action, self.session.store, *args)

    @rule(other=st.sampled_from(ARRAYS), race=st.booleans())
    def commit(self, other, race):
        if race:
            rival = self.repo.writable_session("main")
            attempt(lambda: zarr.open(rival.store, path=other, mode="r+").__setitem__(0, 7))
            if rival.has_uncommitted_changes:
                rival.commit("rival")
        solver = icechunk.BasicConflictSolver()
        if not self.session.has_uncommitted_changes:
            return
        attempt(self.session.commit, "step", rebase_with=solver)
        audit(self.storage)
        self.session = self.repo.writable_session("main")


def test_whatever_is_done_the_bytes_are_clean():
    run_state_machine_as_test(
        AuditedMachine, settings=settings(max_examples=30, stateful_step_count=30)
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_whatever_is_done_for_long_the_bytes_are_clean():
    run_state_machine_as_test(
        AuditedMachine, settings=settings(max_examples=400, stateful_step_count=40)
    )
