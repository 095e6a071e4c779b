"""On a real standalone cluster: every front end, speculation, killed drivers and executors."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import h5py
import icechunk
import numpy as np
import pyspark
import pytest
import zarr
from support.drivers import environment, last_line, start, until
from zarr.core.buffer import default_buffer_prototype

from airflow_provider_icechunk.api import (
    ChunkType,
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    local_filesystem_storage,
    local_filesystem_store,
)

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]

DRIVER = """
import json, sys, time
from pathlib import Path
import numpy as np, zarr
from pyspark.sql import SparkSession
from airflow_provider_icechunk.spark.write.regions import write_regions
from airflow_provider_icechunk.spark.runtime import zipped_package

master, place, signs = sys.argv[1:]

def create(session):
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", shape=(8, 1000), chunks=(1, 1000), dtype="int64", compressors=None)

def values(region):
    rows, columns = region
    here = Path(signs)
    (here / f"began-{rows.start}").touch()
    until = time.monotonic() + 300
    while rows.start >= 4 and not (here / "go").exists() and time.monotonic() < until:
        time.sleep(0.05)
    return 1000 * np.arange(rows.start, rows.stop)[:, None] + np.arange(1000)[None, columns]

spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.cores", "1")
    .getOrCreate()
)
spark.sparkContext.addPyFile(str(zipped_package()))
result = write_regions(spark, place, "a", values, job="one", prepare=create, tasks=8)
print(json.dumps([result.snapshot_id, result.replayed, result.resumed, result.chunks]))
spark.stop()
"""


SESSION = """
spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.cores", "1")
    .config("spark.speculation", SPECULATE)
    .config("spark.speculation.interval", "100ms")
    .config("spark.speculation.multiplier", "1.1")
    .config("spark.speculation.quantile", "0.5")
    .getOrCreate()
)
spark.sparkContext.addPyFile(str(zipped_package()))
"""
SPECULATION = f"""
import json, sys, time
from pathlib import Path
import numpy as np, zarr
from pyspark.sql import SparkSession
from airflow_provider_icechunk.spark.write.regions import write_regions
from airflow_provider_icechunk.spark.runtime import zipped_package

master, place, signs = sys.argv[1:]
SPECULATE = "true"

def create(session):
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", shape=(4, 1000), chunks=(1, 1000), dtype="int64", compressors=None)

def values(region):
    rows, columns = region
    here = Path(signs)
    if rows.start == 0:
        try:
            (here / "first").touch(exist_ok=False)
        except FileExistsError:
            (here / "second").touch()
        until = time.monotonic() + 200
        while not (here / "second").exists() and time.monotonic() < until:
            time.sleep(0.05)
    return 1000 * np.arange(rows.start, rows.stop)[:, None] + np.arange(1000)[None, columns]
{SESSION}
result = write_regions(spark, place, "a", values, job="one", prepare=create, tasks=4)
spark.stop()
print(json.dumps(result.chunks))
"""
FRONT_ENDS = f"""
import json, sys
import numpy as np, zarr
from pyspark.sql import SparkSession
from airflow_provider_icechunk.spark.write.frames import write_chunks
from airflow_provider_icechunk.spark.write.frames import write_dataframe
from airflow_provider_icechunk.spark.write.files import ingest_files
from airflow_provider_icechunk.spark.read.frames import read_dataframe
from airflow_provider_icechunk.spark.write.regions import write_regions
from airflow_provider_icechunk.spark.runtime import zipped_package
from airflow_provider_icechunk.spark.source.source import IcechunkSource

master, place, *files = sys.argv[1:]
SPECULATE = "false"
WHOLE = np.arange(66, dtype="int64").reshape(11, 6)

def create(*names, rows=11):
    def prepare(session):
        root = zarr.open_group(session.store, mode="a")
        for name in names:
            root.create_array(name, shape=(rows, 6), chunks=(4, 4), dtype="int64")
    return prepare
{SESSION}
write_regions(
    spark, place, "regions", lambda part: WHOLE[part], job="1", tasks=3,
    prepare=create("regions", "source"),
)
ingest_files(spark, place, files, "v", "files", job="2", prepare=create("files", rows=0), tasks=3)
cells = read_dataframe(spark, place, "regions", tasks=3)
write_dataframe(
    cells, place, {{"regions": "cells"}}, ["dim_0", "dim_1"], job="3", prepare=create("cells")
)
chunks = read_dataframe(spark, place, "files", layout="chunks", tasks=3)
write_chunks(chunks, place, "chunks", job="4", prepare=create("chunks"))
spark.dataSource.register(IcechunkSource)
source = spark.read.format("icechunk").options(node="cells", layout="chunks").load(place)
source.write.format("icechunk").mode("append").options(node="source", job="5").save(place)
spark.stop()
print(json.dumps(["regions", "files", "cells", "chunks", "source"]))
"""
VIRTUAL = f"""
import json, sys
from pyspark.sql import SparkSession
from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.spark.runtime import zipped_package
from airflow_provider_icechunk.spark.write.virtual import ingest_virtual

master, place, prefix, *files = sys.argv[1:]
SPECULATE = "false"
{SESSION}
repository = Repository.open(
    local_filesystem_storage(place), authorize_virtual_chunk_access={{prefix: None}}
)
result = ingest_virtual(spark, repository, files, job="one", along=0, tasks=3)
spark.stop()
print(json.dumps([result.snapshot_id, result.chunks]))
"""


def children(parent: int, name: str) -> list[int]:
    """Processes started by `parent` whose command line has `name`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ours = int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            if ours and name in (folder / "cmdline").read_text():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@contextmanager
def running(arguments: list[str], environment: dict[str, str], log: Path) -> Iterator[int]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield process.pid
        finally:
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[int]]]:
    """A master and two workers with one core each: its address, and the workers' processes.

    The workers are on two hosts, as far as Spark knows: it never speculates on the same one.
    """
    folder = tmp_path_factory.mktemp("cluster")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    home = Path(pyspark.__file__).parent
    start_class = [str(home / "bin" / "spark-class")]
    package = "org.apache.spark.deploy"
    address = f"spark://127.0.0.1:{port}"
    daemon = {"SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_MEMORY": "256m"}
    with ExitStack() as stack:

        def run(what: str, host: str, log: Path, *arguments: str) -> int:
            common = [f"{package}.{what}", "--host", host, "--webui-port", "0"]
            env = environment(**daemon) | {"SPARK_LOCAL_IP": host}
            return stack.enter_context(running([*start_class, *common, *arguments], env, log))

        log = folder / "master.log"
        run("master.Master", "127.0.0.1", log, "--port", str(port))
        until(lambda: "New state: ALIVE" in log.read_text(), "the master")
        workers = []
        for number in range(2):
            limits = ["--cores", "1", "--memory", "1g"]
            where = ["--work-dir", str(folder / f"work-{number}"), address]
            host = f"127.0.0.{number + 1}"
            workers.append(run("worker.Worker", host, folder / f"{number}.log", *limits, *where))

        def registered() -> set[str]:
            return set(re.findall(r"Registering worker (\S+)", log.read_text()))

        until(lambda: len(registered()) == 2, "two workers")
        yield address, workers


def test_killed_drivers_and_executors_leave_one_snapshot_with_the_right_data(
    cluster: tuple[str, list[int]], tmp_path: Path
) -> None:
    address, workers = cluster
    place, signs = tmp_path / "repository", tmp_path / "signs"
    signs.mkdir()
    repository = Repository.create(local_filesystem_storage(place))

    def driver() -> subprocess.Popen[str]:
        return start(DRIVER, address, place, signs, env=environment())

    def answer(process: subprocess.Popen[str]) -> list[object]:
        parsed: list[object] = json.loads(last_line(process))
        return parsed

    first = driver()
    until(lambda: len(list(signs.glob("began-[4-7]"))) == 2, "tasks that wait")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert len(list(repository.ancestry(branch="main"))) == 1
    for sign in signs.iterdir():
        sign.unlink()

    second = driver()
    until(lambda: len(list(signs.glob("began-[4-7]"))) == 2, "tasks that wait again")
    executors = [pid for worker in workers for pid in children(worker, "CoarseGrainedExecutor")]
    os.kill(executors[0], signal.SIGKILL)
    (signs / "go").touch()
    snapshot, replayed, resumed, chunks = answer(second)
    assert (replayed, resumed, chunks) == (False, 4, 8)
    assert answer(driver())[:2] == [snapshot, True]

    assert len(list(repository.ancestry(branch="main"))) == 2
    expected = np.arange(8000).reshape(8, 1000)
    assert np.array_equal(official(place, "a"), expected)
    repository.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    assert len(list(place.glob("chunks/*"))) == 8
    assert np.array_equal(official(place, "a"), expected)


def test_a_task_that_runs_twice_by_speculation_counts_once(
    cluster: tuple[str, list[int]], tmp_path: Path
) -> None:
    place, signs = tmp_path / "repository", tmp_path / "signs"
    signs.mkdir()
    repository = Repository.create(local_filesystem_storage(place))
    chunks = json.loads(last_line(start(SPECULATION, cluster[0], place, signs, env=environment())))
    assert chunks == 4
    assert (signs / "second").exists()
    assert len(list(repository.ancestry(branch="main"))) == 2
    expected = np.arange(4000).reshape(4, 1000)
    assert np.array_equal(official(place, "a"), expected)
    repository.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    assert len(list(place.glob("chunks/*"))) == 4
    assert np.array_equal(official(place, "a"), expected)


def test_every_front_end_writes_what_one_process_would(
    cluster: tuple[str, list[int]], tmp_path: Path
) -> None:
    """One process writes the same with Zarr alone; stored documents and chunks are compared."""
    whole = np.arange(66, dtype="int64").reshape(11, 6)
    files = []
    for number, (first, last) in enumerate([(0, 3), (3, 8), (8, 11)]):
        files.append(str(tmp_path / f"{number}.h5"))
        with h5py.File(files[-1], "w") as file:
            file["v"] = whole[first:last]
    place, alone = tmp_path / "repository", tmp_path / "alone"
    repository = Repository.create(local_filesystem_storage(place))
    names = json.loads(last_line(start(FRONT_ENDS, cluster[0], place, *files, env=environment())))
    assert len(list(repository.ancestry(branch="main"))) == 1 + len(names)
    single = Repository.create(local_filesystem_storage(alone)).writable_session("main")
    for name in names:
        root = zarr.open_group(single.store, mode="a")
        root.create_array(name, shape=whole.shape, chunks=(4, 4), dtype="int64")[:] = whole
    single.commit("all")
    for name in names:
        assert np.array_equal(official(place, name), official(alone, name)), name
        assert stored(place, name) == stored(alone, name), name


def test_references_to_files_are_collected_without_moving_data(
    cluster: tuple[str, list[int]], tmp_path: Path
) -> None:
    whole = np.arange(72, dtype="int64").reshape(12, 6)
    source, place = tmp_path / "files", tmp_path / "repository"
    source.mkdir()
    for number in range(3):
        with h5py.File(source / f"{number}.h5", "w") as file:
            file.create_dataset("v", data=whole[4 * number : 4 * number + 4], chunks=(2, 6))
    prefix = f"file://{source}/"
    config = RepositoryConfig.default()
    store = local_filesystem_store(str(source))
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store))
    granted = {prefix: None}
    repository = Repository.create(local_filesystem_storage(place), config, granted)
    files = sorted(source.iterdir())
    driver = start(VIRTUAL, cluster[0], place, prefix, *files, env=environment())
    snapshot, chunks = json.loads(last_line(driver))
    assert (snapshot, chunks) == (repository.lookup_branch("main"), 6)
    assert len(list(repository.ancestry(branch="main"))) == 2
    reader = repository.readonly_session("main")
    assert np.array_equal(np.asarray(zarr.open_array(reader.store, path="v", mode="r")[:]), whole)
    assert np.array_equal(official(place, "v", granted), whole)
    kinds = {reader.chunk_type("/v", [row, 0]) for row in range(6)}
    assert kinds == {ChunkType.VIRTUAL}
    assert list(place.glob("chunks/*")) == []


def official(place: Path, array: str, granted: dict[str, None] | None = None) -> Any:
    storage = icechunk.local_filesystem_storage(str(place))
    access = None if granted is None else icechunk.containers_credentials(granted)
    repository = icechunk.Repository.open(storage, authorize_virtual_chunk_access=access)
    store = repository.readonly_session("main").store
    return np.asarray(zarr.open_array(store, path=array, mode="r")[:])


def stored(place: Path, array: str) -> dict[str, bytes]:
    """The objects of an array as Zarr's store gives them."""
    store = Repository.open(local_filesystem_storage(place)).readonly_session("main").store

    async def objects() -> dict[str, bytes]:
        found = {}
        async for key in store.list_prefix(f"{array}/"):
            value = await store.get(key, default_buffer_prototype())
            assert value is not None
            found[key] = value.to_bytes()
        return found

    return asyncio.run(objects())
