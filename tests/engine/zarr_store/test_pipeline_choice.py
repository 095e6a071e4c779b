"""Which pipeline serves which store: the usual one gives way to the short way, no other does."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.zarr_cases import ZARRS_OWN, chunk_bytes, new_store, pair, zarrs_own
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.storage import LocalStore, LoggingStore, MemoryStore

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.zarr_store.pipeline import (
    IcechunkCodecPipeline,
    use_short_ways,
)

OURS = "airflow_provider_icechunk.engine.zarr_store.pipeline.IcechunkCodecPipeline"
VALUES = np.arange(16, dtype="i4").reshape(4, 4)


def test_whole_chunks_take_the_short_way_and_parts_of_chunks_that_of_zarr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("Zarr's own way")

    array = pair()[0]
    monkeypatch.setattr(BatchedCodecPipeline, "read_batch", refuse)
    monkeypatch.setattr(BatchedCodecPipeline, "write_batch", refuse)
    array[:] = VALUES
    np.testing.assert_array_equal(array[1:3, ::2], VALUES[1:3, ::2])
    with pytest.raises(AssertionError, match="own way"):
        array[0, 0] = 1


@pytest.mark.parametrize("wrapped", ["memory", "local", "logging"])
def test_arrays_of_other_stores_are_as_before(wrapped: str, tmp_path: Path) -> None:
    store: Any = {
        "memory": MemoryStore,
        "local": lambda: LocalStore(tmp_path),
        "logging": lambda: LoggingStore(new_store(), log_level="CRITICAL"),
    }[wrapped]()
    options: dict[str, Any] = {"shape": (4, 4), "chunks": (3, 3), "dtype": "i4", "name": "a"}
    array = zarr.create_array(store, **options)
    assert type(array.async_array.codec_pipeline) is IcechunkCodecPipeline
    theirs = pair(chunks=(3, 3))[1]
    for one in (array, theirs):
        one[:] = VALUES
        one[1, :] = 9
        one.oindex[[0, 3], 1:] = 8
    assert chunk_bytes(array) == chunk_bytes(theirs)
    np.testing.assert_array_equal(array[:], theirs[:])


def test_zarrs_own_pipeline_serves_our_store_when_it_is_chosen() -> None:
    store = new_store()
    with zarrs_own():
        array = zarr.create_array(store, name="a", shape=(4, 4), chunks=(2, 2), dtype="i4")
        assert type(array.async_array.codec_pipeline) is BatchedCodecPipeline
        array[:] = VALUES
        array[1] = 5
        found = array[:]
    again = zarr.open_array(store, path="a")
    assert type(again.async_array.codec_pipeline) is IcechunkCodecPipeline
    np.testing.assert_array_equal(again[:], found)
    assert found[1].tolist() == [5] * 4


@pytest.mark.parametrize(
    ("version", "before", "after"),
    [
        ("3.1.6", ZARRS_OWN, OURS),
        ("3.4.2", ZARRS_OWN, OURS),
        ("3.3.0", ZARRS_OWN, OURS),
        ("3.5.0", ZARRS_OWN, ZARRS_OWN),
        ("3.1.6", "somebody.elses.Pipeline", "somebody.elses.Pipeline"),
    ],
)
def test_only_the_usual_pipeline_of_known_releases_is_replaced(
    version: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zarr, "__version__", version)
    with zarr.config.set({"codec_pipeline.path": before}):
        use_short_ways()
        assert zarr.config.get("codec_pipeline.path") == after


CHOSEN = """
import zarr
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.registry import register_pipeline
class Chosen(BatchedCodecPipeline): pass
register_pipeline(Chosen)
import airflow_provider_icechunk.api as icechunk
store = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main").store
array = zarr.create_array(store, name="a", shape=(4,), chunks=(2,), dtype="i4")
array[:] = range(4)
print(type(array.async_array.codec_pipeline).__name__, array[:].tolist())
"""


@pytest.mark.parametrize(
    ("chosen", "used"),
    [({"ZARR_CODEC_PIPELINE__PATH": "__main__.Chosen"}, "Chosen"), ({}, "IcechunkCodecPipeline")],
)
def test_a_pipeline_that_was_chosen_before_stays(chosen: dict[str, str], used: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CHOSEN],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | chosen,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout, ran.returncode) == (f"{used} [0, 1, 2, 3]\n", 0), ran.stderr


def test_arrays_travel_with_their_pipeline(tmp_path: Path) -> None:
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(tmp_path / "r"))
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", data=VALUES, chunks=(2, 2))
    session.commit("values")
    array = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    fresh = pickle.dumps(array)
    np.testing.assert_array_equal(array[:], VALUES)
    for travelled in (fresh, pickle.dumps(array)):
        again = pickle.loads(travelled)
        assert type(again.async_array.codec_pipeline) is IcechunkCodecPipeline
        np.testing.assert_array_equal(again[1:], VALUES[1:])
