"""The driver of an array job: plan regions, run them as tasks, leave one fragment for the commit.

It never commits. The Airflow task that opened the session owns the transaction: a driver whose task
was killed may live on, and then nothing it writes is ever seen.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from functools import partial

from pyspark.sql import SparkSession

from airflow_provider_icechunk.exceptions import IcechunkError
from airflow_provider_icechunk.format.fragments import Fragment, decode_fragment
from airflow_provider_icechunk.repository.handoff import WorkUnit, merge_fragments
from airflow_provider_icechunk.repository.jobs import JobFolder
from airflow_provider_icechunk.spark.environment import die_with_parent, start
from airflow_provider_icechunk.spark.plan import check_complete, plan_regions
from airflow_provider_icechunk.spark.specification import JobSpecification, parse_job
from airflow_provider_icechunk.spark.tasks import (
    SCHEMA,
    RegionTask,
    Work,
    open_array,
    run_partition,
)
from airflow_provider_icechunk.zarr_store.sessions import ForkSession, Repository

RESULT_MARK = "ICECHUNK_RESULT"
"""Starts the line of the output that holds the report as JSON."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the job that the only argument specifies; the entry point for `spark-submit`."""
    die_with_parent()
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) != 1:
        raise SystemExit("usage: main.py '<job specification as JSON>' | @<file>")
    try:
        specification = parse_job(given[0])
        spark = start(f"icechunk {specification.session.repository}")
        try:
            result = run(spark, specification)
        finally:
            spark.stop()
    except IcechunkError as error:
        raise SystemExit(f"icechunk: {error}") from error
    _say(f"{RESULT_MARK} {json.dumps(result, sort_keys=True)}")


def run(spark: SparkSession, specification: JobSpecification) -> dict[str, object]:
    """Write everything that is specified and leave the fragment; returns a small report."""
    began = time.monotonic()
    session = specification.session
    repository = Repository.open(session.place.storage())
    fork = repository.fork(session.work_unit)
    count = specification.tasks or 2 * spark.sparkContext.defaultParallelism
    tasks = plan(fork, specification, count)
    _say(f"icechunk: {len(tasks)} regions to write in {repository.storage.location}")
    results = execute(spark, Work(session, tuple(tasks)))
    merged = _merge(fork, results, specification.writer)
    folder = JobFolder(repository.storage, merged.job)
    report: dict[str, object] = {
        "fragment": folder.put_fragment(specification.writer, merged),
        "writer": specification.writer,
        "tasks": len(tasks),
        "chunks": len(merged),
        "seconds": round(time.monotonic() - began, 3),
    }
    folder.put_result(specification.writer, report)
    return report


def plan(fork: ForkSession, specification: JobSpecification, parts: int) -> list[RegionTask]:
    """The tasks of a job: whole chunks (with shards, whole shards) of every array."""
    tasks = []
    for write in specification.writes:
        array = open_array(fork, write.array)
        regions = plan_regions(array.shape, array.shards or array.chunks, parts)
        tasks += [RegionTask(write.array, write.generator, region) for region in regions]
    return tasks


def execute(spark: SparkSession, work: Work) -> list[Fragment]:
    """Run every task exactly once and return the fragments in the order of the tasks."""
    count = len(work.tasks)
    if not count:
        return []
    numbers = spark.range(0, count, 1, count)
    # One action: the tasks are lazy, and a second action would write everything again.
    rows = numbers.mapInArrow(partial(run_partition, work.to_json()), SCHEMA).collect()
    check_complete(count, [row["task"] for row in rows])
    ordered = sorted(rows, key=lambda row: int(row["task"]))
    return [
        decode_fragment(bytes(row["fragment"]), where=f"the fragment of task {row['task']}")
        for row in ordered
    ]


def _merge(fork: ForkSession, fragments: Sequence[Fragment], writer: str) -> Fragment:
    """One fragment from many; refuses chunks that two tasks wrote."""
    work: WorkUnit = fork.work
    arrays = merge_fragments(fragments, staged=fork.tree.base, job=work.job)
    return Fragment(base=work.staged, job=work.job, worker=writer, arrays=arrays)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
