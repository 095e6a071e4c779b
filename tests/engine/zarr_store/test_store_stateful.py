"""Zarr's stateful tests against our store, with commits between the steps."""

from __future__ import annotations

import json
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import assume, note, settings
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from support.places import Place, in_memory
from support.zarr_cases import UNSURE
from zarr.core.buffer import cpu
from zarr.testing.stateful import (
    SyncStoreWrapper,
    ZarrHierarchyStateMachine,
    ZarrStoreStateMachine,
)

import airflow_provider_icechunk.api as icechunk

GROUPS = ("", "a", "a/b", "a-b", "ä")
ARRAYS = ("arr", "a/arr", "a-b/arr")
SIDE = 3


def key_of(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def document(path: str, note_text: str) -> bytes:
    fields = {"zarr_format": 3, "node_type": "group", "attributes": {"note": note_text}}
    if path in ARRAYS:
        fields |= {
            "node_type": "array",
            "shape": [SIDE, SIDE],
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 1]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
        }
    return json.dumps(fields).encode()


documents = st.sampled_from([key_of(path, "zarr.json") for path in GROUPS + ARRAYS])
chunks = st.builds(
    lambda path, i, j: f"{path}/c/{i}/{j}",
    st.sampled_from(ARRAYS),
    st.integers(0, SIDE - 1),
    st.integers(0, SIDE - 1),
)
keys = st.one_of(documents, chunks)


class Committing:
    """Steps that end one session and start the next."""

    places: Callable[[], Place]
    """Where repositories can be; given by the test."""

    @rule()
    def commit(self) -> None:
        session = self.session
        if session.has_uncommitted_changes:
            session.commit("step")
        self.start_session()


class StoreMachine(Committing, ZarrStoreStateMachine):
    """Keys and values are those a repository can hold; a deleted node takes along what is below."""

    def __init__(self) -> None:
        self.repo = icechunk.Repository.create(self.places().ours())
        self.session = self.repo.writable_session("main")
        super().__init__(self.session.store)

    def start_session(self) -> None:
        self.session = self.repo.writable_session("main")
        self.store = SyncStoreWrapper(self.session.store)

    @rule(key=keys, text=st.text(max_size=5), data=st.binary(min_size=1, max_size=700))
    def set(self, key: str, text: str, data: bytes) -> None:
        path, found, _ = key.rpartition("/zarr.json") if "/" in key else ("", key, "")
        if found:
            data = document(path, text)
        else:
            assume(f"{key.partition('/c/')[0]}/zarr.json" in self.model)
        self.store.set(key, cpu.Buffer.from_bytes(data))
        self.model[key] = cpu.Buffer.from_bytes(data)

    @rule(key=keys, data=st.data())
    def get_invalid_zarr_keys(self, key: str, data: st.DataObject) -> None:
        assume(key not in self.model)
        assert self.store.get(key, self.prototype) is None

    @precondition(lambda self: bool(self.model))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        note(f"deleting {key}")
        self.store.delete(key)
        below = key.removesuffix("zarr.json") if key.endswith("zarr.json") else f"{key}/"
        self.model = {k: v for k, v in self.model.items() if k != key and not k.startswith(below)}

    @rule(key=keys)
    def exists(self, key: str) -> None:
        assert self.store.exists(key) == (key in self.model)


class HierarchyMachine(Committing, ZarrHierarchyStateMachine):
    """Unchanged but for commits between the steps."""

    def __init__(self) -> None:
        self.repo = icechunk.Repository.create(self.places().ours())
        self.session = self.repo.writable_session("main")
        super().__init__(self.session.store)

    def start_session(self) -> None:
        self.session = self.repo.writable_session("main")
        self.store = self.session.store


KINDS = [
    "memory",
    "local",
    pytest.param("moto", marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    pytest.param(
        "seaweedfs", marks=[pytest.mark.long, pytest.mark.seaweedfs, pytest.mark.timeout(1800)]
    ),
]
"""On a server every step of a machine is many requests: those runs are long."""
MACHINES = {"keys": StoreMachine, "hierarchies": HierarchyMachine}


def run(machine: str, places: Callable[[], Place], examples: int, steps: int) -> None:
    placed = type(machine, (MACHINES[machine],), {"places": staticmethod(places)})
    run_state_machine_as_test(
        placed, settings=settings(max_examples=examples, stateful_step_count=steps)
    )


@pytest.mark.filterwarnings("ignore:The data type .* does not have a Zarr V3 spec")
@pytest.mark.filterwarnings(UNSURE)
@pytest.mark.parametrize("places", KINDS, indirect=True)
@pytest.mark.parametrize("machine", MACHINES)
def test_the_store_behaves_like_zarrs_model(machine: str, places: Callable[[], Place]) -> None:
    run(machine, places, 10, 15)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore:The data type .* does not have a Zarr V3 spec")
@pytest.mark.filterwarnings(UNSURE)
@pytest.mark.parametrize("machine", MACHINES)
def test_the_store_behaves_like_zarrs_model_for_long(machine: str) -> None:
    run(machine, in_memory, 300, 40)
