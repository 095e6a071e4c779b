"""Nodes that are found without decoding all of them are the same as those that are."""

from __future__ import annotations

import random

import pytest
import zarr

from airflow_provider_icechunk.api import Repository, in_memory_storage
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.model import Deferred, Snapshot
from airflow_provider_icechunk.engine.format.node_table import count_arrays, paths_by_id
from airflow_provider_icechunk.engine.format.v1.snapshots import DIALECT, decode, encode
from airflow_provider_icechunk.exceptions import FormatError


def _tree(generation: str) -> tuple[Repository, Snapshot]:
    made = Repository.create(in_memory_storage(), spec_version=generation)
    session = made.writable_session("main")
    for number in range(30):
        group = zarr.create_group(session.store, path=f"g{number % 3}/é{number}")
        names = ["x"] if number % 2 else None
        group.create_array("a", shape=(number,), dtype="i4", dimension_names=names)
    made.core.objects.forget_snapshot(SnapshotId(b""))
    identity = session.commit("some nodes")
    fresh = Repository.open(made.storage)
    head = fresh.core.refs.branch("main")
    assert head is not None
    assert fresh.core.format_id(head) == identity
    return fresh, fresh.core.objects.snapshot_header(head)


@pytest.mark.parametrize("generation", ["1", "2"])
def test_lazy_nodes_are_those_that_decoding_finds(generation: str) -> None:
    repository, glanced = _tree(generation)
    lazy = glanced.nodes
    assert isinstance(lazy, Deferred)
    whole = Repository.open(repository.storage).core.objects.snapshot(glanced.id).nodes
    assert list(lazy) == list(whole)
    assert dict(lazy.items()) == dict(whole.items())
    assert paths_by_id(lazy) == paths_by_id(dict(whole)) == {n.id: p for p, n in whole.items()}
    assert count_arrays(lazy) == count_arrays(dict(whole)) == 30
    assert "/g1/é1/a" in lazy
    assert lazy.get("/nothing") is None
    lazy.content()
    assert dict(lazy.items()) == dict(whole.items())
    assert (count_arrays(lazy), paths_by_id(lazy)) == (30, {n.id: p for p, n in whole.items()})


def test_damaged_files_are_refused_and_nothing_outside_is_read() -> None:
    _, snapshot = _tree("1")
    payload = bytearray(encode(snapshot))
    rng = random.Random(7)
    refused = 0
    for _ in range(400):
        damaged = bytearray(payload)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            found = decode(bytes(damaged), where="here", dialect=DIALECT, glance=True).nodes
            for path in found:
                assert found[path].path == path
        except FormatError:
            refused += 1
    assert refused > 20


def test_two_nodes_with_one_path_are_refused() -> None:
    _, snapshot = _tree("1")
    payload = bytes(encode(snapshot)).replace("/g1/é1".encode(), "/g1/é4".encode())
    with pytest.raises(FormatError, match="same path"):
        list(decode(payload, where="here", glance=True).nodes)
