"""Migrate a repository to a newer generation of the format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.exceptions import NotFoundError

from .base import RepositoryOperator
from .maintenance import read_flag

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_icechunk.api import MigrationProgress

_SAMPLE = 20


class IcechunkMigrateOperator(RepositoryOperator):
    """Migrate a repository to a newer generation of the format, in place.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.migrate import IcechunkMigrateOperator

        with DAG("migrate") as dag:
            IcechunkMigrateOperator(task_id="plan", repository="weather", to="2", dry_run=True)

    Run it while nobody writes: commits of already open sessions are carried over until the old
    references are fenced, and fail from then on. If the task dies, run it again; on a migrated
    repository it does nothing. Returns `from`, `to`, `dry_run`, `migrated`, the numbers of
    snapshots, branches, tags, manifests and chunk files, `removed`, `leftovers`, `fenced`,
    `new_ids` (how many snapshots got a new id) and `ids` (the first of them).

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param to: target generation, `1` or `2`; never older than the current one. (templated)
    :param dry_run: report what would happen and change nothing. (templated)
    :param remove_old: delete the old entry point and files at the end. (templated)
    :param fence_old: keep programs that only know the old generation from using the old entry
        point; `False` removes an existing fence. (templated)
    :param icechunk_conn_id: the Icechunk connection.
    """

    template_fields = ("repository", "to", "dry_run", "remove_old", "fence_old")
    # Shadows `BaseOperator.dry_run`, which Airflow 3 never calls.
    dry_run: bool | str  # type: ignore[assignment]

    def __init__(
        self,
        *,
        to: int | str = "2",
        dry_run: bool | str = False,
        remove_old: bool | str = False,
        fence_old: bool | str = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.to = to
        self.dry_run = dry_run
        self.remove_old = remove_old
        self.fence_old = fence_old

    def execute(self, context: Context) -> dict[str, Any]:
        """Migrate, or report what would happen."""
        del context
        from airflow_provider_icechunk.api import migrate

        hook = self.icechunk_hook()
        try:
            # Through the storage: a repository without its newest entry point cannot be opened.
            result = migrate(
                hook.storage(self.repository),
                self.to,
                dry_run=read_flag("dry_run", self.dry_run),
                remove_old=read_flag("remove_old", self.remove_old),
                fence_old=read_flag("fence_old", self.fence_old),
                progress=self._log_progress,
            ).as_dict()
        except NotFoundError:
            hook.open(self.repository)  # raises an error that says what to do
            raise
        ids = result["ids"]
        assert isinstance(ids, dict)
        result["new_ids"] = len(ids)
        result["ids"] = dict(sorted(ids.items())[:_SAMPLE])
        self.log.info("Migration: %s", {key: result[key] for key in result if key != "ids"})
        return result

    def _log_progress(self, progress: MigrationProgress) -> None:
        self.log.info(
            "%s: %d of %s, %d bytes",
            progress.step.value,
            progress.done,
            "?" if progress.total is None else progress.total,
            progress.bytes_done,
        )
