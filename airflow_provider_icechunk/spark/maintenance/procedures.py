"""Maintenance by name, with a frame as the answer: `call(spark, "collect", place, ...)`.

Ages and times are written as on the command line, and procedures that delete have a minimum age.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import timedelta
from inspect import signature
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_icechunk.engine.maintenance.ages import (
    SAFE_AGE,
    OlderThan,
    read_age,
    safe_cutoff,
)
from airflow_provider_icechunk.engine.maintenance.compact import CompactionRules
from airflow_provider_icechunk.engine.maintenance.retention import RetentionPolicy
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.runtime import RepositoryLike, opened
from airflow_provider_icechunk.spark.write.rechunk import rechunk

from .compact import compact
from .maintenance import collect, measure, verify

Answer = Mapping[str, Any]


def call(
    spark: SparkSession, procedure: str, repository: RepositoryLike, **arguments: Any
) -> DataFrame:
    """Run maintenance on the cluster by its name; the answer is a frame with one row.

    The row has what the command of the same name prints as JSON: numbers and texts as columns,
    everything else as JSON text.

    :param procedure: `expire`, `collect`, `compact`, `verify`, `measure`, `rechunk` or
        `rewrite_manifests`; a prefix such as `system.` is ignored.
    :param arguments: those of the procedure, by name.
    """
    name = procedure.rpartition(".")[2]
    chosen = _PROCEDURES.get(name)
    if chosen is None:
        raise InvalidInputError(
            f"there is no procedure {procedure!r}: choose one of {', '.join(_PROCEDURES)}"
        )
    known = list(signature(chosen).parameters)[2:]
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise InvalidInputError(
            f"{name} has no argument {unknown[0]!r}: it has {', '.join(known) or 'none'}"
        )
    answer = chosen(spark, opened(repository), **arguments)
    return _frame(spark, answer)


def _expire(
    spark: SparkSession,
    repository: Repository,
    older_than: OlderThan | None = None,
    keep_last: int | None = None,
    minimum_age: timedelta | str = SAFE_AGE,
    delete_expired_branches: bool = False,
    delete_expired_tags: bool = False,
    dry_run: bool = False,
) -> Answer:
    del spark  # The history is small: the driver reads and rewrites it.
    cutoff = safe_cutoff(older_than, minimum_age, now=repository.core.world.now())
    policy = RetentionPolicy(cutoff, keep_last, delete_expired_branches, delete_expired_tags)
    plan = repository.expire(policy, dry_run=dry_run)
    return {"dry_run": dry_run, "older_than": cutoff.isoformat(), **plan.as_dict()}


def _collect(
    spark: SparkSession,
    repository: Repository,
    older_than: OlderThan | None = None,
    minimum_age: timedelta | str = SAFE_AGE,
    dry_run: bool = False,
) -> Answer:
    cutoff = safe_cutoff(older_than, minimum_age, now=repository.core.world.now())
    least = read_age(minimum_age)
    summary = collect(spark, repository, cutoff, minimum_age=least, dry_run=dry_run)
    return {"dry_run": dry_run, "older_than": cutoff.isoformat(), **summary.as_dict()}


def _compact(
    spark: SparkSession,
    repository: Repository,
    branch: str = "main",
    small: int | None = None,
    target: int | None = None,
    enough: int | None = None,
    inline_from: int | None = None,
    dry_run: bool = False,
) -> Answer:
    rules = CompactionRules.of(
        {"small": small, "target": target, "enough": enough, "inline_from": inline_from}
    )
    result = compact(spark, repository, branch, rules=rules, dry_run=dry_run)
    return {"dry_run": dry_run, "branch": branch, **result.as_dict()}


def _verify(spark: SparkSession, repository: Repository) -> Answer:
    report = verify(spark, repository)
    return {"ok": report.ok, **report.as_dict()}


def _measure(spark: SparkSession, repository: Repository) -> Answer:
    return measure(spark, repository).as_dict()


def _rechunk(
    spark: SparkSession,
    repository: Repository,
    array: str,
    chunks: Sequence[int],
    shards: Sequence[int] | None = None,
    branch: str = "main",
    job: str | None = None,
    dry_run: bool = False,
) -> Answer:
    found = rechunk(
        spark,
        repository,
        array,
        chunks,
        shards=shards,
        branch=branch,
        job=job or f"rechunk/{uuid4().hex}",
        dry_run=dry_run,
    )
    assert is_dataclass(found)
    return {"dry_run": dry_run, "array": array, **asdict(found)}


def _rewrite_manifests(
    spark: SparkSession,
    repository: Repository,
    branch: str = "main",
    message: str = "rewrite manifests",
) -> Answer:
    del spark  # The driver reads one manifest after another.
    return {"branch": branch, "snapshot_id": repository.rewrite_manifests(message, branch=branch)}


_PROCEDURES: dict[str, Callable[..., Answer]] = {
    "expire": _expire,
    "collect": _collect,
    "compact": _compact,
    "verify": _verify,
    "measure": _measure,
    "rechunk": _rechunk,
    "rewrite_manifests": _rewrite_manifests,
}
_TYPES = {bool: "boolean", int: "long", float: "double", str: "string"}


def _frame(spark: SparkSession, answer: Answer) -> DataFrame:
    """One row; values that are neither numbers nor text become JSON."""
    cells = [
        value if type(value) in _TYPES or value is None else json.dumps(value, default=str)
        for value in answer.values()
    ]
    names = [
        f"`{name}` {_TYPES.get(type(cell), 'string')}"
        for name, cell in zip(answer, cells, strict=True)
    ]
    return spark.createDataFrame([tuple(cells)], ", ".join(names))
