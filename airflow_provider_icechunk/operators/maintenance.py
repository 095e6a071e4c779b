"""Maintain a repository: expire, collect, compact, rewrite, verify, measure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_icechunk.engine.maintenance.ages import (
    SAFE_AGE,
    OlderThan,
    read_age,
    safe_cutoff,
)
from airflow_provider_icechunk.exceptions import MaintenanceError
from airflow_provider_icechunk.links.snapshot import IcechunkRepositoryLink

from .base import CommittingOperator, RepositoryOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

_SAMPLE = 20
"""How many entries of a long list a result contains."""


class _MaintenanceOperator(RepositoryOperator):
    """Maintenance that makes no snapshot; its link shows the page about maintenance."""

    operator_extra_links = (IcechunkRepositoryLink(),)
    icechunk_view = "maintenance"


class IcechunkExpireOperator(_MaintenanceOperator):
    """Remove old snapshots from the history; garbage collection deletes their objects later.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.maintenance import IcechunkExpireSnapshotsOperator

        with DAG("expire") as dag:
            IcechunkExpireSnapshotsOperator(
                task_id="expire", repository="weather", older_than="30d"
            )

    Returns `dry_run`, `older_than`, `expired` (how many snapshots were removed), `snapshots` (the
    first of them), `deleted_branches` and `deleted_tags`.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param older_than: cut-off for the snapshots to remove, as a time or an age: a `datetime`, a
        `timedelta`, or a string like `30d` or `2026-01-31T12:00:00Z`. (templated)
    :param keep_last: how many snapshots each branch keeps regardless of age. (templated)
    :param delete_expired_branches: whether to delete branches whose head expired; never `main`.
    :param delete_expired_tags: whether to delete tags of expired snapshots.
    :param minimum_age: refuse a more recent cut-off than this. (templated)
    :param dry_run: report what would happen and change nothing. (templated)
    :param icechunk_conn_id: the Icechunk connection.
    """

    template_fields = ("repository", "older_than", "keep_last", "minimum_age", "dry_run")

    def __init__(
        self,
        *,
        older_than: OlderThan,
        keep_last: int | str | None = None,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
        minimum_age: timedelta | str = SAFE_AGE,
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.older_than = older_than
        self.keep_last = keep_last
        self.delete_expired_branches = delete_expired_branches
        self.delete_expired_tags = delete_expired_tags
        self.minimum_age = minimum_age
        self.dry_run = dry_run

    def execute(self, context: Context) -> dict[str, Any]:
        """Expire, or report what would expire."""
        del context
        from airflow_provider_icechunk.api import RetentionPolicy

        cutoff = safe_cutoff(self.older_than, self.minimum_age, now=datetime.now(UTC))
        dry_run = read_flag("dry_run", self.dry_run)
        keep_last = read_count("keep_last", self.keep_last)
        policy = RetentionPolicy(
            cutoff, keep_last, self.delete_expired_branches, self.delete_expired_tags
        )
        plan = self.open_repository().expire(policy, dry_run=dry_run)
        expired = [plan.format_id(identity) for identity in plan.leaving]
        deleted = [ref for ref in plan.refs if ref.delete]
        self.log.info(
            "%d snapshots before %s %s",
            len(expired),
            cutoff.isoformat(),
            "would expire" if dry_run else "expired",
        )
        return {
            "dry_run": dry_run,
            "older_than": cutoff.isoformat(),
            "expired": len(expired),
            "snapshots": sorted(expired)[:_SAMPLE],
            "deleted_branches": [ref.name for ref in deleted if ref.type == "branch"],
            "deleted_tags": [ref.name for ref in deleted if ref.type == "tag"],
        }


IcechunkExpireSnapshotsOperator = IcechunkExpireOperator
"""The official name."""


class IcechunkCollectOperator(_MaintenanceOperator):
    """Delete objects that no branch or tag reaches and that are old enough.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.maintenance import IcechunkGarbageCollectOperator

        with DAG("collect") as dag:
            IcechunkGarbageCollectOperator(task_id="collect", repository="weather")

    Uncommitted data of a running session is protected by its age and, after 15 minutes, by its
    lease; a session that wrote nothing for more than a day cannot commit if its data was collected.
    Ages are measured by the store's clock. Returns `dry_run`, `older_than`, the number of deleted
    objects of each kind and `bytes_deleted`; if an object cannot be deleted, the task fails and can
    be retried. The returned `older_than` is the cut-off used, which a lease or a slow store clock
    can move back.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param older_than: cut-off for the objects to delete, as a time or an age; by default
        `minimum_age`. (templated)
    :param minimum_age: refuse a more recent cut-off than this; lower it only if nobody writes.
        (templated)
    :param dry_run: report what would happen and change nothing. (templated)
    :param icechunk_conn_id: the Icechunk connection.
    """

    template_fields = ("repository", "older_than", "minimum_age", "dry_run")

    def __init__(
        self,
        *,
        older_than: OlderThan | None = None,
        minimum_age: timedelta | str = SAFE_AGE,
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.older_than = older_than
        self.minimum_age = minimum_age
        self.dry_run = dry_run

    def execute(self, context: Context) -> dict[str, Any]:
        """Collect, or report what would be collected."""
        del context
        least = read_age(self.minimum_age)
        cutoff = safe_cutoff(self.older_than, least, now=datetime.now(UTC))
        summary = self.open_repository().collect(
            cutoff, dry_run=read_flag("dry_run", self.dry_run), minimum_age=least
        )
        if summary.plan is not None:
            cutoff = summary.plan.cutoff
        result = {"older_than": cutoff.isoformat(), **summary.as_dict()}
        self.log.info("Garbage collection: %s", result)
        if summary.plan is not None and summary.plan.leases:
            self.log.info(
                "%d sessions or jobs from before the cut-off may still be running: it was moved "
                "back to the start of the oldest",
                summary.plan.leases,
            )
        if summary.problem is not None:
            raise MaintenanceError(summary.problem)
        del result["failed"], result["stopped_at"]
        return result


IcechunkGarbageCollectOperator = IcechunkCollectOperator
"""The official name."""


class IcechunkCompactOperator(CommittingOperator, RepositoryOperator):
    """Pack neighbouring small chunks of a branch into larger files, as one commit.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.maintenance import IcechunkCompactOperator

        with DAG("compact") as dag:
            IcechunkCompactOperator(task_id="compact", repository="weather")

    Values do not change, and chunks written in the meantime keep their new values. The old files
    remain until their snapshots have expired and been collected. Returns `dry_run`, `snapshot_id`
    (`None` if there was nothing to pack, which emits no asset event), `parent_id`, `branch`, the
    numbers of `chunks`, `bytes` and `files` moved, the number of chunks `skipped` because they
    changed in the meantime and, if a rerun replaced an earlier snapshot, `supersedes`.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param branch: the branch to compact. (templated)
    :param rules: which chunks to pack and how large packed files become, in bytes: `small`,
        `target`, `enough` and `inline_from`, as in `CompactionRules`. (templated)
    :param message: commit message. (templated)
    :param metadata: commit metadata; `airflow` (DAG, run and task) is added. (templated)
    :param dry_run: report what would happen and change nothing. (templated)
    :param on_rerun: what to do if the task committed and was then cleared: `replace` compacts
        again, `skip` returns the existing commit, `always` also lets retries compact again.
    :param icechunk_conn_id: the Icechunk connection.
    """

    template_fields = ("repository", "branch", "rules", "message", "metadata", "dry_run")
    template_fields_renderers: ClassVar[dict[str, str]] = {"rules": "json", "metadata": "json"}

    def __init__(
        self,
        *,
        branch: str = "main",
        rules: Mapping[str, int | str] | None = None,
        message: str = "compact small chunks",
        dry_run: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(message=message, **kwargs)
        self.branch = branch
        self.rules = rules
        self.dry_run = dry_run

    def execute(self, context: Context) -> dict[str, Any]:
        """Compact, unless an earlier attempt already did, or report what would move."""
        from airflow_provider_icechunk.engine.maintenance.compact import CompactionRules
        from airflow_provider_icechunk.engine.pipelines.transaction import compact

        dry_run = read_flag("dry_run", self.dry_run)
        rules = {name: read_count(name, value) for name, value in (self.rules or {}).items()}
        options = self.commit_options(context)
        outcome = compact(
            self.open_repository(),
            self.branch,
            options,
            rules=CompactionRules.of(rules),
            dry_run=dry_run,
        )
        self.log.info("Compaction: %s", outcome.result)
        return {"dry_run": dry_run, **self.report(context, outcome)}


class IcechunkRewriteManifestsOperator(CommittingOperator, RepositoryOperator):
    """Rewrite all manifests of a branch with the current configuration, as one commit.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.maintenance import IcechunkRewriteManifestsOperator

        with DAG("rewrite") as dag:
            IcechunkRewriteManifestsOperator(task_id="rewrite", repository="weather")

    No data changes. Returns `snapshot_id`, `parent_id`, `branch` and, if a rerun replaced an
    earlier snapshot, `supersedes`.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param branch: the branch to rewrite. (templated)
    :param message: commit message. (templated)
    :param metadata: commit metadata; `airflow` (DAG, run and task) is added. (templated)
    :param on_rerun: what to do if the task committed and was then cleared: `replace` rewrites
        again, `skip` returns the existing commit, `always` also lets retries rewrite again.
    :param icechunk_conn_id: the Icechunk connection.
    """

    template_fields = ("repository", "branch", "message", "metadata")
    template_fields_renderers: ClassVar[dict[str, str]] = {"metadata": "json"}

    def __init__(
        self,
        *,
        branch: str = "main",
        message: str = "rewrite manifests",
        **kwargs: Any,
    ) -> None:
        super().__init__(message=message, **kwargs)
        self.branch = branch

    def execute(self, context: Context) -> dict[str, Any]:
        """Rewrite, unless an earlier attempt already did."""
        from airflow_provider_icechunk.engine.pipelines.transaction import rewrite_manifests

        options = self.commit_options(context)
        outcome = rewrite_manifests(self.open_repository(), self.branch, options)
        return self.report(context, outcome)


class IcechunkVerifyOperator(_MaintenanceOperator):
    """Check that all objects branches and tags need exist and are consistent.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.maintenance import IcechunkVerifyOperator

        with DAG("verify") as dag:
            IcechunkVerifyOperator(task_id="verify", repository="weather")

    Returns `ok`, `checked`, the numbers of `errors` and `warnings`, and the worst `findings`.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param fail_on_errors: whether the task fails if errors are found.
    :param icechunk_conn_id: the Icechunk connection.
    """

    template_fields = ("repository",)

    def __init__(self, *, fail_on_errors: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fail_on_errors = fail_on_errors

    def execute(self, context: Context) -> dict[str, Any]:
        """Verify and report."""
        del context
        report = self.open_repository().verify()
        for finding in report.findings[:_SAMPLE]:
            self.log.warning("%s %s: %s", finding.severity.value, finding.where, finding.what)
        if report.errors and self.fail_on_errors:
            worst = report.errors[0]
            raise MaintenanceError(
                f"{len(report.errors)} errors in {self.repository}, first {worst.where}: "
                f"{worst.what}. {worst.remedy}"
            )
        severities = [finding.severity.value for finding in report.findings]
        return {
            "ok": report.ok,
            "checked": dict(report.checked),
            "errors": severities.count("error"),
            "warnings": severities.count("warning"),
            "findings": [finding.as_dict() for finding in report.findings[:_SAMPLE]],
        }


class IcechunkMeasureOperator(_MaintenanceOperator):
    """Measure a repository, and how much of it garbage collection could free.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.maintenance import IcechunkMeasureOperator

        with DAG("measure") as dag:
            IcechunkMeasureOperator(task_id="measure", repository="weather")

    Returns the number of `snapshots`, and sizes by `branches`, `tags` and `files` (folders).

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param icechunk_conn_id: the Icechunk connection.
    """

    template_fields = ("repository",)

    def execute(self, context: Context) -> dict[str, Any]:
        """Measure."""
        del context
        measurement = self.open_repository().measure()
        sizes = measurement.as_dict()
        return {
            "snapshots": len(measurement.snapshots),
            "branches": sizes["branches"],
            "tags": sizes["tags"],
            "files": sizes["files"],
        }


def read_count(name: str, value: int | str | None) -> int | None:
    """An integer, which a template may have rendered as text."""
    if value is None or isinstance(value, int):
        return value
    text = value.strip()
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise MaintenanceError(
            f"{name} must be an integer, not {value[:100]!r}; nothing was changed"
        )
    return int(text)


def read_flag(name: str, value: bool | str) -> bool:
    """A boolean, which a template may have rendered as text."""
    if isinstance(value, bool):
        return value
    match value.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise MaintenanceError(
        f"{name} must be true or false, not {value[:100]!r}; nothing was changed"
    )
