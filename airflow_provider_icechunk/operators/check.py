"""Check data before others see it: the audit step of write, audit, publish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_icechunk.links.snapshot import IcechunkSnapshotLink

from .base import RepositoryOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkCheckOperator(RepositoryOperator):
    """Check the values of a snapshot, and fail if a check does not pass.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.check import IcechunkCheckOperator

        with DAG("check") as dag:
            IcechunkCheckOperator(
                task_id="check",
                repository="weather",
                branch="staging",
                checks=[
                    {"check": "range", "array": "t2m", "minimum": 180, "maximum": 340},
                    {"check": "missing", "array": "t2m", "most": 0.01},
                    {"check": "complete", "array": "t2m", "dim": "time"},
                    {"check": "monotone", "array": "time", "direction": "increasing"},
                    {"check": "drift", "array": "t2m", "tag": "v1", "most": 0.5},
                    {"check": "function", "function": "weather_checks:no_stripes"},
                    {"check": "blocks", "array": "t2m", "function": "weather_checks:smooth"},
                ],
            )

    Arrays are read chunk by chunk, once for all checks of the same part, and with `spark` in Spark
    tasks; the report is the same to the last bit. Returns `snapshot_id`, `passed` and `checks`: the
    name, subject, value and limit of each. The report is also in XCom if a check failed. Pass it to
    `IcechunkPublishOperator` as `checks`: then only what was checked is published, and the report
    is stored with the commit.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param checks: the checks, one mapping each. `range`, `missing`, `complete`, `monotone`,
        `drift` and `blocks` have an `array` and may have a `region`: for each dimension a position,
        or `[first, one after the last]`. (templated)
    :param branch: the branch whose head is checked. (templated)
    :param snapshot_id: the snapshot to check, instead of a branch's head. (templated)
    :param tag: the tag whose snapshot is checked, instead of a branch's head. (templated)
    :param spark: read arrays in Spark tasks: the master of a Spark that the task starts, such as
        `local[8]` or `yarn`, or the address of a Spark Connect server, `sc://host:15002`. A
        `function`, which gets the whole `Dataset`, and coordinates stay in this process.
        (templated)
    :param spark_config: settings of that Spark. (templated)
    :param fail: whether a failed check fails the task; if not, see `passed` in the result.
    :param icechunk_conn_id: the connection.
    """

    template_fields = (
        "repository", "checks", "branch", "snapshot_id", "tag", "spark", "spark_config",
    )  # fmt: skip
    template_fields_renderers: ClassVar[dict[str, str]] = {"checks": "json", "spark_config": "json"}
    operator_extra_links = (IcechunkSnapshotLink(),)

    def __init__(
        self,
        *,
        checks: Sequence[Mapping[str, Any]],
        branch: str = "main",
        snapshot_id: str | None = None,
        tag: str | None = None,
        spark: str | None = None,
        spark_config: Mapping[str, str] | None = None,
        fail: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checks = checks
        self.branch = branch
        self.snapshot_id = snapshot_id
        self.tag = tag
        self.spark = spark
        self.spark_config = spark_config
        self.fail = fail

    def execute(self, context: Context) -> dict[str, Any]:
        """Run all checks, even if one of them fails."""
        from airflow_provider_icechunk.engine.checks.checks import parse_checks, refusal
        from airflow_provider_icechunk.engine.checks.run import run_checks

        wanted = parse_checks(self.checks)
        repository = self.open_repository()
        named = self.snapshot_id is not None or self.tag is not None
        session = repository.readonly_session(
            None if named else self.branch, tag=self.tag, snapshot_id=self.snapshot_id
        )
        if self.spark:
            verdicts, report = self._run_on_spark(repository, session, wanted)
        else:
            verdicts, report = run_checks(repository, session, wanted)
        for verdict in verdicts:
            self.log.info("%s %s", "passed" if verdict.passed else "FAILED", verdict)
        self.link_to(session.snapshot_id)
        if self.fail and not report["passed"]:
            context["ti"].xcom_push(key="return_value", value=report)
            raise refusal(verdicts, report)
        return report

    def _run_on_spark(
        self, repository: Any, session: Any, wanted: Any
    ) -> tuple[list[Any], dict[str, Any]]:
        from airflow_provider_icechunk.spark.checks import run_checks
        from airflow_provider_icechunk.spark.runtime import start_for_task

        address = str(self.spark)
        is_server = address.startswith("sc://")
        with start_for_task(
            f"{self.dag_id}.{self.task_id}",
            master="local[*]" if is_server else address,
            remote=address if is_server else None,
            config=self.spark_config or {},
        ) as spark:
            return run_checks(spark, repository, session, wanted)
