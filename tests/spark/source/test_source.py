"""The data source: found without registration, one commit for each job, an abort that is safe."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, BinaryType, LongType, StructField, StructType

from airflow_provider_icechunk.api import (
    Repository,
    RepositoryConfig,
    VirtualChunkContainer,
    local_filesystem_storage,
    local_filesystem_store,
)
from airflow_provider_icechunk.engine.workers.codec import encode_fragment
from airflow_provider_icechunk.exceptions import (
    InvalidInputError,
    VirtualAccessDeniedError,
)
from airflow_provider_icechunk.spark.read.frames import read_dataframe
from airflow_provider_icechunk.spark.source.options import parse_options
from airflow_provider_icechunk.spark.source.source import (
    IcechunkSource,
    IcechunkWriter,
    TaskMessage,
)

SCHEMA = StructType(
    [StructField("data", BinaryType()), StructField("chunk", ArrayType(LongType()))]
)
VALUES = np.arange(1200, dtype="int64").reshape(40, 30)


@pytest.fixture
def place(repository: Repository, tmp_path: Path) -> str:
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    array = root.create_array(
        "a", shape=(40, 30), chunks=(16, 16), dtype="int64", dimension_names=("y", "x")
    )
    array[:] = VALUES
    root.create_array("copy", shape=(40, 30), chunks=(16, 16), dtype="int64", compressors=None)
    session.commit("first")
    return str(tmp_path / "repository")


def content(place: str, array: str) -> Any:
    store = Repository.open(locate(place)).readonly_session("main").store
    return np.asarray(zarr.open_array(store, path=array, mode="r")[:])


def locate(place: str) -> Any:
    return parse_options({"path": place}).storage()


def begun(place: str, **options: str) -> tuple[IcechunkWriter, list[TaskMessage]]:
    """A writer, and the messages of two tasks that wrote a chunk each."""
    writer = IcechunkWriter.begin(parse_options({"path": place, "node": "copy", **options}), SCHEMA)
    repository = Repository.open(locate(place))
    messages = []
    for number in range(2):
        fork = repository.fork(writer._work)
        array = zarr.open_array(fork.store, path="copy", mode="r+")
        array[:16, 16 * number : 16 * number + 16] = number + 1
        messages.append(TaskMessage(encode_fragment(fork.fragment(f"task {number}"))))
    return writer, messages


def chunk_files(place: str) -> int:
    return len(list(Path(place).glob("chunks/*")))


def test_an_abort_deletes_only_what_was_never_committed(place: str) -> None:
    before = chunk_files(place)
    writer, messages = begun(place)
    assert chunk_files(place) == before + 2
    writer.abort([messages[0], None])
    assert chunk_files(place) == before + 1


def test_an_abort_after_a_commit_deletes_nothing(place: str) -> None:
    writer, messages = begun(place)
    writer.commit(list(messages))
    files = chunk_files(place)
    writer.abort(list(messages))
    assert chunk_files(place) == files
    assert content(place, "copy")[:16].tolist() == [[1] * 16 + [2] * 14] * 16


def test_a_job_of_one_id_commits_once_also_if_its_record_is_gone(place: str) -> None:
    writer, messages = begun(place, job="one")
    writer.commit(list(messages))
    writer.commit(list(messages))
    (record,) = (Path(place) / "jobs").glob("*/job.json")
    record.unlink()
    again, messages = begun(place, job="one")
    again.commit(list(messages))
    again.abort([messages[0], None])
    repository = Repository.open(locate(place))
    assert len(list(repository.ancestry(branch="main"))) == 3
    assert content(place, "copy")[0, 0] == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "path: Field required"),
        ({"path": "/x", "secret_key": "hidden-81"}, "secret_key: Extra inputs"),
        ({"path": "/x", "layout": "wide"}, "layout"),
        ({"path": "/x", "isel": "{"}, "isel"),
    ],
)
def test_wrong_options_are_refused_without_their_values(
    options: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidInputError, match=words) as caught:
        parse_options(options)
    assert "hidden-81" not in str(caught.value)


def cells(source: IcechunkSource) -> list[int]:
    """What the tasks of Spark would read, each with a reader that travelled."""
    reader = CloudPickleSerializer().loads(CloudPickleSerializer().dumps(source.reader(SCHEMA)))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return sorted(row["v"] for batch in batches for row in batch.to_pylist())


def test_virtual_chunks_are_read_where_they_are_authorized_and_nowhere_else(tmp_path: Path) -> None:
    files = tmp_path / "a,b"
    files.mkdir()
    (files / "1.bin").write_bytes(bytes(range(8)))
    config, prefix = RepositoryConfig.default(), f"file://{files}/"
    store = local_filesystem_store(str(files))
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store))
    place = tmp_path / "repository"
    repository = Repository.create(local_filesystem_storage(place), config)
    repository.save_config()
    session = repository.writable_session("main")
    zarr.group(session.store).create_array(
        "v", shape=(8,), chunks=(4,), dtype="uint8", compressors=None, fill_value=0
    )
    for number in range(2):
        url = f"{prefix}1.bin"
        session.store.set_virtual_ref(f"v/c/{number}", url, offset=4 * number, length=4)
    session.commit("foreign")
    options = {"path": str(place), "node": "v", "tasks": "2"}
    with pytest.raises(VirtualAccessDeniedError, match="authorize"):
        cells(IcechunkSource(options))
    with pytest.raises(VirtualAccessDeniedError, match="authorize"):
        cells(IcechunkSource({**options, "authorize": "file:///elsewhere/"}))
    assert cells(IcechunkSource({**options, "authorize": json.dumps([prefix])})) == list(range(8))


def test_prefixes_to_authorize_have_commas_between_them_or_are_a_list() -> None:
    for text in ("s3://b/x/, s3://b/y/", '["s3://b/x/", "s3://b/y/"]'):
        options = parse_options({"path": "/x", "authorize": text})
        assert options.authorize == ("s3://b/x/", "s3://b/y/")
    for text in ("[", '{"s3://b/x/": "secret-82"}', "[1]", "s3://b/x/,"):
        with pytest.raises(InvalidInputError, match="authorize") as refused:
            parse_options({"path": "/x", "authorize": text})
        assert "secret-82" not in str(refused.value)


def test_what_cannot_be_written_is_refused(place: str) -> None:
    source = IcechunkSource({"path": place, "node": "copy"})
    with pytest.raises(InvalidInputError, match="append"):
        source.writer(SCHEMA, overwrite=True)
    with pytest.raises(InvalidInputError, match="no column 'chunk'"):
        source.writer(StructType([StructField("data", BinaryType())]), overwrite=False)
    with pytest.raises(InvalidInputError, match="'b'"):
        IcechunkSource({"path": place, "node": "b"}).writer(SCHEMA, overwrite=False)


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(600)
def test_spark_finds_the_source_and_reads_and_writes_with_it(
    spark: SparkSession, place: str
) -> None:
    options = {"node": "a", "isel": '{"y": [30, 40]}', "tasks": "2"}
    cells = spark.read.format("icechunk").options(**options).load(place)
    assert cells.dtypes == [("y", "bigint"), ("x", "bigint"), ("a", "bigint")]
    assert sorted(row["a"] for row in cells.collect()) == VALUES[30:].reshape(-1).tolist()
    writer = (
        read_dataframe(spark, place, "a", layout="chunks").write.format("icechunk").mode("append")
    )
    writer.options(node="copy", job="copy", message="copied").save(place)
    assert np.array_equal(content(place, "copy"), VALUES)
    history = list(Repository.open(locate(place)).ancestry(branch="main"))
    assert [info.message for info in history][:2] == ["copied", "first"]


@pytest.fixture
def weather(repository: Repository, tmp_path: Path) -> str:
    """Ten days in chunks of one, with times and scaled numbers of which one is missing."""
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    days = root.create_array("time", data=np.arange(10), dimension_names=("time",))
    days.attrs["units"] = "days since 2026-01-01"
    stored = np.arange(40, dtype="int16").reshape(10, 4)
    array = root.create_array("t", data=stored, chunks=(1, 4), dimension_names=("time", "x"))
    array.attrs.update({"scale_factor": 0.5, "_FillValue": 38})
    session.commit("filled")
    return str(tmp_path / "repository")


@pytest.mark.spark
def test_where_on_a_coordinate_reads_only_its_chunks(spark: SparkSession, weather: str) -> None:
    late = "time >= timestamp'2026-01-09 00:00:00+00:00' and x = 2"

    def read() -> DataFrame:
        return spark.read.format("icechunk").options(node="t").load(weather).where(late)

    assert read().rdd.getNumPartitions() == 10
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = read()
        assert pushed.rdd.getNumPartitions() == 2
        assert "Filter" not in pushed._jdf.queryExecution().executedPlan().nodeName()
        assert [row.t for row in pushed.orderBy("time").collect()] == [17.0, None]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.spark
def test_a_view_is_read_by_name(spark: SparkSession, weather: str) -> None:
    options = f"OPTIONS (path '{weather}', node 't')"
    spark.sql(f"CREATE TEMPORARY VIEW days USING icechunk {options}")
    try:
        (row,) = spark.sql("SELECT count(t) AS known FROM days WHERE x < 4").collect()
        assert row.known == 39
    finally:
        spark.sql("DROP VIEW days")
    with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE days USING icechunk {options}")


def test_usual_names_of_time_travel_are_known() -> None:
    options = parse_options({"path": "/p", "versionAsOf": "ABC", "timestampAsOf": "2026-01-01"})
    assert options.snapshot == "ABC"
    assert str(options.asof) == "2026-01-01 00:00:00"
    with pytest.raises(InvalidInputError, match="versionasof"):
        parse_options({"path": "/p", "versionAsOf": "ABC", "snapshot": "DEF"})


@pytest.mark.spark
def test_stored_values_are_shown_on_request(spark: SparkSession, weather: str) -> None:
    frame = spark.read.format("icechunk").options(node="t", decode="false").load(weather)
    assert [(one.name, one.dataType.simpleString()) for one in frame.schema] == [
        ("time", "bigint"),
        ("x", "bigint"),
        ("t", "smallint"),
    ]
    assert frame.agg({"t": "sum"}).collect()[0][0] == sum(range(40))
