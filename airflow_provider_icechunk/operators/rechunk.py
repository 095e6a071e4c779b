"""Give an array other chunks, on Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .maintenance import read_flag
from .spark import SparkTransactionOperator, SparkWork

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkRechunkOperator(SparkTransactionOperator):
    """Give an array other chunks on Spark, as one commit; its values stay the same, bit by bit.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.rechunk import IcechunkRechunkOperator

        with DAG("rechunk") as dag:
            IcechunkRechunkOperator(
                task_id="rechunk", repository="weather", array="t2m", chunks=[365, 73, 72]
            )

    Executors read the cells from the version below and write them again, a block of about `memory`
    bytes for each task; the array keeps its path, attributes, codecs and fill value, and cells that
    were never written stay so. Earlier versions keep the old chunks until they expire. Who writes
    to the array meanwhile and commits first makes the task fail with a conflict: let it run while
    nobody does. Takes all arguments of `SparkSubmitOperator`. Returns `snapshot_id`, `parent_id`,
    `branch`, `chunks` and, if a rerun replaced an earlier snapshot, `supersedes`. With `dry_run` no
    job is submitted, `snapshot_id` is `None`, and `plan` says chunks before and after, bytes, how
    many of them are read, and tasks.

    :param array: path of the array. (templated)
    :param chunks: the new lengths of chunks.
    :param shards: lengths of shards, whole numbers of chunks; by default there are none.
    :param memory: bytes of values that a task holds at once, if a chunk is not larger; 128 MB by
        default. More of it means that fewer chunks are read twice.
    :param dry_run: report what would happen and change nothing. (templated)
    :param repository: path of the repository, relative to the connection's root. (templated)
    :param branch: branch to start from and commit to. (templated)
    :param message: commit message. (templated)
    :param metadata: commit metadata; `airflow` (DAG, run and task) is added. (templated)
    :param rebase: whether to rebase onto commits that were made in the meantime.
    :param on_conflict: with `rebase`, how to resolve conflicting changes of other arrays.
    :param on_chunk_conflict: the earlier name of `on_conflict`.
    :param on_rerun: what to do if the task committed and was then cleared.
    :param application: the application, by default this provider's. (templated)
    :param icechunk_conn_id: the Icechunk connection.
    """

    template_fields = (*SparkTransactionOperator.template_fields, "array", "dry_run")

    def __init__(
        self,
        *,
        repository: str,
        array: str,
        chunks: Sequence[int],
        shards: Sequence[int] | None = None,
        memory: int | None = None,
        dry_run: bool | str = False,
        message: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(repository=repository, message=message or f"rechunk {array}", **kwargs)
        self.array = array
        self.chunks = chunks
        self.shards = shards
        self.memory = memory
        self.dry_run = dry_run

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Rechunk and commit, or return the plan."""
        if read_flag("dry_run", self.dry_run):
            return self._plan()
        return super().execute(context)

    def _planned(self) -> SparkWork:
        write = {"kind": "rechunk", "array": self.array, "chunks": list(self.chunks)}
        return SparkWork([{**write, **self._more()}])

    def _more(self) -> dict[str, Any]:
        """What was given beside the chunks."""
        given = {"shards": self.shards, "memory": self.memory}
        return {name: value for name, value in given.items() if value is not None}

    def _plan(self) -> dict[str, Any]:
        from airflow_provider_icechunk.engine.arrays.rechunk import plan_stored

        store = self.open_repository().readonly_session(self.branch).store
        path = "/" + self.array.strip("/")
        plan = plan_stored(store, path, self.chunks, **self._more()).to_json()
        self.log.info("Would rechunk: %s", plan)
        return {"dry_run": True, "snapshot_id": None, "branch": self.branch, "plan": plan}
