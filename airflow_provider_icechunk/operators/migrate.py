"""Move a repository up to a newer generation of the format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.exceptions import NotFoundError
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.operators.base import RepositoryOperator
from airflow_provider_icechunk.operators.maintenance import read_flag

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_icechunk.api import MigrationProgress

_SAMPLE = 20


class IcechunkMigrateOperator(RepositoryOperator):
    """Bring a repository to a newer generation of the format, in place.

    Run it while nobody writes: what sessions that were opened before commit meanwhile is brought
    over, and once the old references are fenced their commits fail. A task that died is simply run
    again; one that runs on a migrated repository does nothing. Returns `from`, `to`, `dry_run`,
    `migrated`, how many snapshots, branches, tags, manifests and chunk files there are, `removed`,
    `leftovers`, `fenced`, `new_ids` (how many snapshots got another id) and `ids` (the first of
    them).

    :param repository: path below the root of the connection. (templated)
    :param to: the generation, `1` or `2`; never an older one than it has. (templated)
    :param dry_run: report what would be done and change nothing. (templated)
    :param remove_old: delete the old entry point and old files at the end. (templated)
    :param fence_old: keep programs that know only the old generation from opening the old entry
        point; `False` takes a fence away that is there. (templated)
    :param icechunk_conn_id: the connection.
    """

    template_fields = ("repository", "to", "dry_run", "remove_old", "fence_old")
    # Hides a method of the base class that renders templates and that Airflow 3 never calls.
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
        """Migrate, or say what would be done."""
        del context
        from airflow_provider_icechunk.api import migrate

        hook = IcechunkHook(self.icechunk_conn_id)
        try:
            # By its storage: one that lost its newest entry point cannot be opened, but migrated.
            result = migrate(
                hook.storage(self.repository),
                self.to,
                dry_run=read_flag("dry_run", self.dry_run),
                remove_old=read_flag("remove_old", self.remove_old),
                fence_old=read_flag("fence_old", self.fence_old),
                progress=self._tell,
            ).as_dict()
        except NotFoundError:
            hook.open(self.repository)  # which says what to do where there is none
            raise
        ids = result["ids"]
        assert isinstance(ids, dict)
        result["new_ids"] = len(ids)
        result["ids"] = dict(sorted(ids.items())[:_SAMPLE])
        self.log.info("Migration: %s", {key: result[key] for key in result if key != "ids"})
        return result

    def _tell(self, progress: MigrationProgress) -> None:
        self.log.info(
            "%s: %d of %s, %d bytes",
            progress.step.value,
            progress.done,
            "?" if progress.total is None else progress.total,
            progress.bytes_done,
        )
