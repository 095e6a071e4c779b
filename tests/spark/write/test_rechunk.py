"""An array gets other chunks on Spark: the same values, bit by bit, in one commit."""

import math
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from pyspark.sql import SparkSession

from airflow_provider_icechunk.api import ConflictError, Repository, local_filesystem_storage
from airflow_provider_icechunk.engine.arrays.rechunk import RechunkPlan, block_shape
from airflow_provider_icechunk.exceptions import InvalidInputError, NotFoundError
from airflow_provider_icechunk.spark import rechunk

pytestmark = pytest.mark.spark
SHAPE = (23, 10, 9)


@pytest.fixture
def bits(repository: Repository) -> Any:
    session = repository.writable_session("main")
    values = np.random.default_rng(3).integers(0, 2**32, SHAPE, np.uint32)
    values[:, :5] = 0x7FC00001  # NaN with a mark of its own
    values[:4] = 1 << 31  # minus zero
    root = zarr.open_group(session.store, mode="a")
    array = root.create_array("t2m", shape=SHAPE, chunks=(1, 10, 9), dtype="float32",
                              fill_value=np.nan, dimension_names=("time", "y", "x"),
                              attributes={"units": "K"})  # fmt: skip
    array[:20] = values.view("f4")[:20]
    values[20:] = 0x7FC00000
    session.commit("first")
    return values


def official(tmp_path: Path) -> Any:
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repository"))
    store = icechunk.Repository.open(storage).readonly_session("main").store
    return zarr.open_array(store, path="t2m", mode="r")


def test_values_stay_bit_by_bit_with_chunks_and_with_shards(
    spark: SparkSession, repository: Repository, bits: Any, tmp_path: Path
) -> None:
    asked = rechunk(None, repository, "t2m", (8, 4, 3), job="one", memory=2000, dry_run=True)
    assert isinstance(asked, RechunkPlan)
    plan = asked.to_json()
    assert (plan["chunks_before"], plan["chunks_after"], plan["bytes"]) == (23, 27, bits.nbytes)
    assert plan["bytes_per_task"] <= 2000
    assert plan["tasks"] == len(asked.blocks) > 1
    done = rechunk(spark, repository, "t2m", (8, 4, 3), job="one", memory=2000)
    assert done.tasks == plan["tasks"]
    found = official(tmp_path)
    assert (found.chunks, found.shards, dict(found.attrs)) == ((8, 4, 3), None, {"units": "K"})
    assert found.metadata.dimension_names == ("time", "y", "x")
    assert np.array_equal(np.asarray(found[:]).view("u4"), bits)
    # Twice is once.
    again = rechunk(spark, repository, "t2m", (8, 4, 3), job="one", memory=2000)
    assert (again.replayed, again.snapshot_id) == (True, done.snapshot_id)
    rechunk(spark, repository, "t2m", (2, 5, 3), shards=(12, 5, 9), job="two")
    assert (official(tmp_path).chunks, official(tmp_path).shards) == ((2, 5, 3), (12, 5, 9))
    assert np.array_equal(np.asarray(official(tmp_path)[:]).view("u4"), bits)
    messages = [info.message for info in repository.ancestry(branch="main")]
    assert messages[:2] == ["rechunk t2m to (2, 5, 3)", "rechunk t2m to (8, 4, 3)"]


def test_what_was_never_written_stays_so_and_a_writer_meanwhile_is_a_conflict(
    spark: SparkSession, repository: Repository, bits: Any
) -> None:
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="t2m", mode="r+")[5] = 1
    done = rechunk(spark, repository, "t2m", (4, 10, 9), job="one")
    assert done.chunks == 5
    with pytest.raises(ConflictError):
        session.commit("late")


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"chunks": (4, 4)}, InvalidInputError, r"chunks \(4, 4\) do not fit /t2m"),
        ({"chunks": (4, 0, 4)}, InvalidInputError, "at least 1"),
        ({"chunks": (4, 4, 4), "shards": (6, 4, 4)}, InvalidInputError, "not multiples"),
        ({"chunks": (4, 4, 4), "array": "rain"}, NotFoundError, "/rain"),
    ],
)
@pytest.mark.usefixtures("bits")
def test_what_cannot_be_done_is_refused_before_anything_runs(
    repository: Repository, given: dict[str, Any], error: type[Exception], says: str
) -> None:
    arguments = {"array": "t2m", "job": "x", "dry_run": True, **given}
    with pytest.raises(error, match=says):
        rechunk(None, repository, **arguments)


@pytest.mark.parametrize(
    ("shape", "before", "after"),
    [
        ((365, 721, 1440), (1, 721, 1440), (365, 10, 10)),
        ((365, 721, 1440), (365, 10, 10), (1, 721, 1440)),
        ((1000,), (7,), (11,)),
        ((5, 5), (5, 5), (50, 50)),
        ((), (), ()),
    ],
)
def test_blocks_are_whole_new_chunks_within_the_memory(
    shape: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    memory = 64 << 20
    block = block_shape(shape, before, after, 4, memory)
    chunk = math.prod(min(new, whole) for new, whole in zip(after, shape, strict=True)) * 4
    assert math.prod(min(b, s) for b, s in zip(block, shape, strict=True)) * 4 <= max(memory, chunk)
    for length, new, whole in zip(block, after, shape, strict=True):
        assert length >= whole or length % new == 0
    # More memory never reads more.
    wide = block_shape(shape, before, after, 4, memory * 16)
    assert all(w >= b for w, b in zip(wide, block, strict=True))


def test_a_repository_elsewhere_needs_no_spark_for_a_plan(tmp_path: Path) -> None:
    made = Repository.create(local_filesystem_storage(tmp_path / "r"))
    session = made.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(0, 4), chunks=(1, 4), dtype="int8")
    session.commit("empty")
    plan = rechunk(None, made, "a", (2, 2), job="x", dry_run=True)
    assert (plan.to_json()["tasks"], plan.to_json()["bytes"]) == (0, 0)
