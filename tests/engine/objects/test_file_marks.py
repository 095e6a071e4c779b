"""What the store is told about every file that a repository wrote."""

from __future__ import annotations

import re

import pytest
import zarr
from support.maintenance import GENERATIONS, Clock

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage, StoredObject

LONG = {"history": ["a step of the processing"] * 20}
MARKED = ["alpha", "1", "2"]
KEYS = {"icspecver", "icclient", "icfiletype", "iccompalg"}


def written(generation: str) -> dict[str, StoredObject]:
    """All objects of a repository that was created, written, tagged and expired."""
    clock = Clock()
    storage = MemoryStorage(clock=clock)
    config = RepositoryConfig()
    if Generation(generation).separates_attributes:
        config.attributes_file_threshold_bytes = 100
    repo = icechunk.Repository.create(storage, config, spec_version=generation, world=clock.world())
    for number in range(3):
        clock.wait(hours=1)
        session = repo.writable_session("main")
        root = zarr.open_group(session.store, mode="a", attributes=LONG)
        root.create_array(f"a{number}", shape=(4,), chunks=(2,), dtype="i4")[:] = 5
        repo.create_tag(f"v{number}", session.commit(f"written {number}"))
    clock.wait(hours=1)
    repo.expire_snapshots(older_than=clock())
    return dict(storage.objects)


@pytest.mark.parametrize("generation", MARKED)
def test_every_file_with_a_header_carries_its_file_information(generation: str) -> None:
    found = written(generation)
    kinds = set()
    for key, stored in found.items():
        if not envelope.has_header(stored.data):
            assert not KEYS & stored.metadata.keys(), key
            continue
        header = envelope.read_header(stored.data)
        assert stored.metadata == {
            "icspecver": str(header.spec_version),
            "icclient": header.writer,
            "icfiletype": header.file_type,
            "iccompalg": header.compression,
        }, key
        assert stored.content_type == "application/octet-stream", key
        kinds.add(header.file_type)
    expected = {"snapshot", "manifest", "transaction-log"}
    expected |= {"attributes"} if generation == "alpha" else set()
    expected |= {"repo-info"} if generation == "2" else set()
    assert kinds == expected


@pytest.mark.parametrize("generation", GENERATIONS)
def test_names_of_object_metadata_survive_proxies(generation: str) -> None:
    for key, stored in written(generation).items():
        for name in stored.metadata:
            assert re.fullmatch("[a-z0-9]+", name), (key, name)
