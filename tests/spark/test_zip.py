"""The package as a zip: the data source arrives where nobody installed it."""

import json
import os
import site
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_icechunk.spark.runtime import zipped_package

ROOT = Path(__file__).resolve().parents[2]
SEND = """
import sys
from pyspark.cloudpickle import dumps
from airflow_provider_icechunk.spark.source.source import IcechunkSource
assert ".zip" in sys.modules["airflow_provider_icechunk"].__file__
sys.stdout.buffer.write(dumps(IcechunkSource({"path": "/somewhere", "layout": "changes"})))
"""
ARRIVE = """
import pickle, sys
source = pickle.load(sys.stdin.buffer)
print(type(source).__module__, source.schema()[:20], dict(source.options)["path"])
"""
STREAMS = """
import json, sys, tempfile
sys.path.insert(0, sys.argv[1])  # This process alone: those that Spark starts get the zip.
import numpy as np, zarr
from pyspark.sql import SparkSession
from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.spark.runtime import zipped_package
from airflow_provider_icechunk.spark.source.source import IcechunkSource

place, schema = sys.argv[2], "chunk array<bigint>, data binary"
repository = Repository.create(local_filesystem_storage(place))
session = repository.writable_session("main")
root = zarr.open_group(session.store, mode="a")
root.create_array("a", shape=(8,), chunks=(4,), dtype="int64")[:] = 5
session.commit("first")
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.sparkContext.addPyFile(str(zipped_package()))
spark.dataSource.register(IcechunkSource)

def run(frame, form, *place, **options):
    writer = frame.writeStream.format(form).option("checkpointLocation", tempfile.mkdtemp())
    writer.options(**options).trigger(availableNow=True).start(*place).awaitTermination(300)

chunks = tempfile.mkdtemp()
row = ([0], np.full(4, 9, "int64").tobytes())
spark.createDataFrame([row], schema).write.mode("append").parquet(chunks)
run(spark.readStream.schema(schema).parquet(chunks), "icechunk", place, node="a")
source = spark.readStream.format("icechunk").options(layout="changes", since="everything")
run(source.load(place), "memory", queryName="seen")
seen = sorted(tuple(row) for row in spark.sql("select path, change from seen").collect())
store = repository.readonly_session("main").store
values = zarr.open_array(store, path="a", mode="r")[:].tolist()
spark.stop()
print(json.dumps([seen, values]))
"""


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment with everything that is installed, but not with this package."""
    packages = tmp_path / "packages"
    packages.mkdir()
    ours = ("airflow_provider_icechunk", "pyspark_icechunk", "_editable_impl_")
    for folder in site.getsitepackages():
        for entry in Path(folder).iterdir():
            link = packages / entry.name
            if not entry.name.startswith(ours) and entry.suffix != ".pth" and not link.exists():
                link.symlink_to(entry)
    python = tmp_path / "python"
    # Without the module `site`, what is installed editable is not found.
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    names = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    return {
        **os.environ, **names, "PYTHONPATH": str(packages), "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip


def run(bare: dict[str, str], *arguments: str, given: bytes = b"") -> bytes:
    done = subprocess.run(
        [bare["PYSPARK_PYTHON"], "-W", "ignore", *arguments],
        env=bare,
        input=given,
        capture_output=True,
        timeout=600,
        check=False,
        cwd=Path(bare["PYSPARK_PYTHON"]).parent,
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return done.stdout


def test_a_source_arrives_in_a_python_that_never_heard_of_the_package(
    bare: dict[str, str], tmp_path: Path
) -> None:
    archive = zipped_package(tmp_path)
    path = f"{archive}{os.pathsep}{bare['PYTHONPATH']}"
    sent = run(bare | {"PYTHONPATH": path}, "-c", SEND)
    assert run(bare, "-c", ARRIVE, given=sent).decode().split() == [
        "airflow_provider_icechunk.spark.source.source", "`snapshot_id`", "string", "/somewhere",
    ]  # fmt: skip
    archive.unlink()
    with pytest.raises(AssertionError, match="No module named 'airflow_provider_icechunk'"):
        run(bare, "-c", ARRIVE, given=sent)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
def test_streams_are_read_and_written_by_a_package_that_travels_as_a_zip(
    bare: dict[str, str], tmp_path: Path
) -> None:
    answer = run(bare, "-c", STREAMS, str(ROOT), str(tmp_path / "repository"))
    seen, values = json.loads(answer.splitlines()[-1])
    written = ["/a", "written"]
    assert seen == [["/", "created"], ["/a", "created"], written, written]
    assert values == [9] * 4 + [5] * 4
