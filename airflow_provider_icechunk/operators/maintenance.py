"""Keep a repository small and sound: expire, collect, rewrite manifests, verify, measure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_icechunk.exceptions import MaintenanceError
from airflow_provider_icechunk.hooks.cutoffs import SAFE_AGE, OlderThan, read_age, safe_cutoff
from airflow_provider_icechunk.hooks.reruns import METADATA_KEY, OnRerun, find_earlier
from airflow_provider_icechunk.links.snapshot import IcechunkSnapshotLink
from airflow_provider_icechunk.operators.base import RepositoryOperator, report_to_outlets
from airflow_provider_icechunk.operators.identity import attempt_of, task_metadata

if TYPE_CHECKING:
    from airflow.sdk import Context

_SAMPLE = 20
"""How many entries of a long list a result holds beside their number."""


class IcechunkExpireSnapshotsOperator(RepositoryOperator):
    """Take old snapshots out of the history; their objects wait for the garbage collection.

    Returns `dry_run`, `older_than`, `expired` (how many leave the history; a head that stays is
    none of them), `snapshots` (the first of them), `deleted_branches` and `deleted_tags`.

    :param repository: path below the root of the connection. (templated)
    :param older_than: snapshots written before this time, or of this age, may go: a `datetime`, a
        `timedelta`, or a text like `30d` or `2026-01-31T12:00:00Z`. (templated)
    :param keep_last: how many snapshots every branch keeps at least, however old they are.
        (templated)
    :param delete_expired_branches: whether branches go whose newest snapshot is that old; `main`
        never does.
    :param delete_expired_tags: the same for tags.
    :param minimum_age: a cut-off younger than this is refused. (templated)
    :param dry_run: report what would go and change nothing. (templated)
    :param icechunk_conn_id: the connection.
    """

    template_fields = ("repository", "older_than", "keep_last", "minimum_age", "dry_run")
    # Hides a method of the base class that renders templates and that Airflow 3 never calls.
    dry_run: bool | str  # type: ignore[assignment]

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
        """Expire, or say what would expire."""
        del context
        from airflow_provider_icechunk.api import RetentionPolicy

        cutoff = safe_cutoff(self.older_than, self.minimum_age, now=datetime.now(UTC))
        dry_run = read_flag("dry_run", self.dry_run)
        keep_last = read_count("keep_last", self.keep_last)
        policy = RetentionPolicy(
            cutoff, keep_last, self.delete_expired_branches, self.delete_expired_tags
        )
        repository = self.open_repository()
        plan = repository.plan_expiration(policy)
        if not dry_run:
            plan = repository.carry_out_expiration(plan)
        expired = [plan.show(identity) for identity in plan.leaving]
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


class IcechunkGarbageCollectOperator(RepositoryOperator):
    """Delete objects that no branch or tag reaches and that are old enough.

    What a running session has written and not yet committed is protected by its age and, after a
    quarter of an hour, by its lease; one that wrote nothing for longer than a day is refused its
    commit if it was collected. The store's own clock counts. Returns
    `dry_run`, `older_than`, the number of deleted objects of each kind and `bytes_deleted`; an
    object that could not be deleted fails the task, which can run again. `older_than` is the
    cut-off that was used: earlier than asked for if the store's clock is behind or a lease says so.

    :param repository: path below the root of the connection. (templated)
    :param older_than: objects stored before this time, or of this age, may go; by default of
        `minimum_age`. (templated)
    :param minimum_age: a cut-off younger than this is refused; lower it only if nobody writes.
        (templated)
    :param dry_run: report what would go and change nothing. (templated)
    :param icechunk_conn_id: the connection.
    """

    template_fields = ("repository", "older_than", "minimum_age", "dry_run")
    # Hides a method of the base class that renders templates and that Airflow 3 never calls.
    dry_run: bool | str  # type: ignore[assignment]

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
        """Collect, or say what would be collected."""
        del context
        least = read_age(self.minimum_age)
        cutoff = safe_cutoff(self.older_than, least, now=datetime.now(UTC))
        summary = self.open_repository().garbage_collect(
            cutoff, dry_run=read_flag("dry_run", self.dry_run), minimum_age=least
        )
        if summary.plan is not None:
            cutoff = summary.plan.cutoff
        result = {"older_than": cutoff.isoformat(), **summary.as_dict()}
        self.log.info("Garbage collection: %s", result)
        if summary.plan is not None and summary.plan.leases:
            self.log.info(
                "%d sessions or jobs that began before the cut-off may still run: it was moved "
                "back to the beginning of the oldest",
                summary.plan.leases,
            )
        if summary.problem is not None:
            raise MaintenanceError(summary.problem)
        del result["failed"], result["stopped_at"]
        return result


class IcechunkRewriteManifestsOperator(RepositoryOperator):
    """Write all manifests of a branch anew by the configuration in force, as one commit.

    Returns `snapshot_id`, `parent_id`, `branch` and, if a run again committed in the place of an
    earlier snapshot, `supersedes`. No data changes.

    :param repository: path below the root of the connection. (templated)
    :param branch: the branch. (templated)
    :param message: commit message. (templated)
    :param metadata: metadata of the commit; `airflow` is added: who committed. (templated)
    :param on_rerun: what a task does that committed and was cleared: `replace` rewrites anew,
        `skip` returns the commit that is there, `always` lets retries rewrite anew as well.
    :param icechunk_conn_id: the connection.
    """

    template_fields = ("repository", "branch", "message", "metadata")
    operator_extra_links = (IcechunkSnapshotLink(),)
    template_fields_renderers: ClassVar[dict[str, str]] = {"metadata": "json"}

    def __init__(
        self,
        *,
        branch: str = "main",
        message: str = "rewrite manifests",
        metadata: Mapping[str, Any] | None = None,
        on_rerun: OnRerun = "replace",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.branch = branch
        self.message = message
        self.metadata = metadata
        self.on_rerun = on_rerun

    def execute(self, context: Context) -> dict[str, Any]:
        """Rewrite, unless an earlier attempt did."""
        from airflow_provider_icechunk.hooks.transactions import superseding
        from airflow_provider_icechunk.repository.session import TOKEN_KEY

        attempt = attempt_of(context, self.on_rerun)
        repository = self.open_repository()
        earlier = find_earlier(repository, self.branch, attempt)
        if earlier is not None and earlier.answers:
            info, superseded = earlier.info, earlier.supersedes
        else:
            superseded = None if earlier is None else earlier.info.id
            metadata = {**(self.metadata or {}), METADATA_KEY: task_metadata(context)}
            identity = repository.rewrite_manifests(
                self.message,
                branch=self.branch,
                metadata={**superseding(metadata, earlier), TOKEN_KEY: attempt.token},
            )
            info = repository.lookup_snapshot(identity)
        self.link_to(info.id)
        result = {"snapshot_id": info.id, "parent_id": info.parent_id, "branch": self.branch}
        if superseded is not None:
            result["supersedes"] = superseded
        is_new = earlier is None or not earlier.is_known
        report_to_outlets(self, context, result, is_new=is_new)
        return result


class IcechunkVerifyOperator(RepositoryOperator):
    """Check that everything that branches and tags need is there and fits together.

    Returns `ok`, `checked`, `errors` and `warnings` (how many) and `findings` (the worst of them).

    :param repository: path below the root of the connection. (templated)
    :param fail_on_errors: whether the task fails if something is lost.
    :param icechunk_conn_id: the connection.
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


class IcechunkMeasureOperator(RepositoryOperator):
    """How much a repository holds, and how much of it a garbage collection could free.

    Returns `snapshots` (how many), and sizes by `branches`, `tags` and `files` (folder).

    :param repository: path below the root of the connection. (templated)
    :param icechunk_conn_id: the connection.
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
    """A number that may have come out of a template as text; refuses any other text."""
    if value is None or isinstance(value, int):
        return value
    text = value.strip()
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise MaintenanceError(f"{name} is a number, not {value[:100]!r}; nothing was changed")
    return int(text)


def read_flag(name: str, value: bool | str) -> bool:
    """A switch that may have come out of a template as text; refuses what is neither."""
    if isinstance(value, bool):
        return value
    match value.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise MaintenanceError(f"{name} is true or false, not {value[:100]!r}; nothing was changed")
