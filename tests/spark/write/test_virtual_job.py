"""Work that needs other arrays than its session has: they travel with the fragment."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr
from pyspark.sql import SparkSession

from airflow_provider_icechunk.api import (
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    in_memory_storage,
    local_filesystem_storage,
    local_filesystem_store,
)
from airflow_provider_icechunk.engine.workers.codec import Fragment
from airflow_provider_icechunk.engine.workers.jobs import JobFolder
from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit
from airflow_provider_icechunk.exceptions import FragmentError
from airflow_provider_icechunk.spark.specification import JobSpecification
from airflow_provider_icechunk.spark.submit import run

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")


def create(repository: Repository, work: WorkUnit, name: str) -> tuple[WorkUnit, Fragment]:
    """What a worker does that creates an array of its own and fills it."""
    session = repository.resume(work)
    root = zarr.open_group(session.store, mode="a")
    root.create_array(name, shape=(4,), chunks=(2,), dtype="i4")
    again = session.work_unit(work.job)
    fork = repository.fork(again)
    zarr.open_array(fork.store, path=name, mode="r+")[:] = np.arange(4)
    return again, fork.fragment(name)


@pytest.fixture
def shared() -> Repository:
    repository = Repository.create(in_memory_storage())
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a").create_array("a", shape=(4,), chunks=(2,), dtype="i4")
    session.commit("a")
    return repository


@pytest.mark.parametrize("declared", [False, True])
def test_arrays_of_one_worker_are_committed_with_the_chunks_of_all(
    shared: Repository, declared: bool
) -> None:
    session = shared.writable_session("main")
    if declared:
        root = zarr.open_group(session.store, mode="r+")
        root.create_array("b", shape=(2,), chunks=(2,), dtype="i4")
    work = session.work_unit("job")
    _, fragment = create(shared, work, "new")
    fork = shared.fork(work)
    zarr.open_array(fork.store, path="a", mode="r+")[:2] = 7
    coordinator = shared.resume(work)
    assert coordinator.merge_fragments([fork.fragment("plain"), fragment]) == 3
    coordinator.commit("all")
    found = zarr.open_group(shared.readonly_session("main").store, mode="r")
    assert sorted(found.array_keys()) == ["a", *(["b"] if declared else []), "new"]
    values = found["new"], found["a"]
    assert [np.asarray(v[:]).tolist() for v in values if isinstance(v, zarr.Array)] == [
        [0, 1, 2, 3],
        [7, 7, 0, 0],
    ]


def test_arrays_of_two_workers_are_refused_and_nothing_is_merged(shared: Repository) -> None:
    work = shared.writable_session("main").work_unit("job")
    fragments = [create(shared, work, name)[1] for name in ("x", "y")]
    coordinator = shared.resume(work)
    with pytest.raises(FragmentError, match="two workers changed arrays"):
        coordinator.merge_fragments(fragments)
    assert not coordinator.has_uncommitted_changes


def test_only_what_was_staged_on_our_own_is_taken_over(shared: Repository) -> None:
    work = shared.writable_session("main").work_unit("job")
    session = shared.writable_session("main")
    zarr.open_group(session.store, mode="a").create_array("z", shape=(2,), dtype="i4")
    stranger = session.work_unit("job")
    _, fragment = create(shared, stranger, "new")
    coordinator = shared.resume(work)
    with pytest.raises(FragmentError, match="is based on snapshot"):
        coordinator.merge_fragments([fragment])
    assert not coordinator.has_uncommitted_changes


def test_a_session_that_changed_since_does_not_lose_its_changes(shared: Repository) -> None:
    session = shared.writable_session("main")
    work = session.work_unit("job")
    _, fragment = create(shared, work, "new")
    zarr.open_array(session.store, path="a", mode="r+")[:] = 5
    with pytest.raises(FragmentError, match="so did this session"):
        session.merge_fragments([fragment])
    assert session.has_uncommitted_changes


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(600)
def test_a_submitted_job_refers_to_files_copies_files_and_leaves_one_fragment(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = np.arange(24, dtype="float64").reshape(6, 4)
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["v"] = data[2 * number : 2 * number + 2]
    prefix = f"file://{tmp_path}/"
    config = RepositoryConfig.default()
    store = local_filesystem_store(str(tmp_path))
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store))
    place = str(tmp_path / "repository")
    repository = Repository.create(local_filesystem_storage(place), config, {prefix: None})
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("copied", shape=(0, 4), chunks=(3, 4), dtype="float64")
    work = session.work_unit("job")
    files = {"files": [f"{tmp_path}/*.h5"]}
    job = JobSpecification.model_validate(
        {
            "session": {
                "repository": "r",
                "conn_id": "c",
                "place": {"kind": "file", "path": place},
                "work_unit": work.to_json(),
                "fragments": JobFolder(repository.storage, "job").prefix,
            },
            "writes": [
                {"kind": "virtual", "along": 0, "into": "there", "authorize": [prefix], **files},
                {"kind": "files", "variable": "v", "array": "copied", **files},
            ],
        }
    )
    report = run(spark, job)
    assert (report["chunks"], report["size"]) == (3 + 2, data.nbytes)
    coordinator = repository.resume(work)
    coordinator.merge_fragments(JobFolder(repository.storage, "job").fragments())
    coordinator.commit("one commit")
    found = zarr.open_group(repository.readonly_session("main").store, mode="r")
    for path in ("there/v", "copied"):
        array = found[path]
        assert isinstance(array, zarr.Array)
        assert np.array_equal(np.asarray(array[:]), data), path
    assert len(list(repository.ancestry(branch="main"))) == 2
