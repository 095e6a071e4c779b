"""Import and export data, back up and restore repositories, and revert a commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_icechunk.exceptions import Kind, NotFoundError
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.links.snapshot import IcechunkSnapshotLink

from .base import MergingOperator, RepositoryOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkBackupOperator(RepositoryOperator):
    """Copy a repository to another location, and verify the copy.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.transfer import IcechunkBackupOperator

        with DAG("backup") as dag:
            IcechunkBackupOperator(
                task_id="backup",
                repository="weather",
                target="backup/weather",
                target_conn_id="icechunk_backup",
            )

    Objects that the copy already has are skipped, so a task that was killed continues where it
    stopped, and the next run copies only what is new. Refs are moved last: the copy is a valid
    repository at every moment. Nothing but refs is overwritten there, nothing is deleted, and refs
    stay if somebody committed to the copy. Returns how much was copied, and the heads of the
    branches.

    :param repository: path below the root of the connection. (templated)
    :param target: path of the copy, below the root of its connection. (templated)
    :param target_conn_id: the connection of the copy; by default that of the repository.
        (templated)
    :param overwrite: move branches of the copy even if somebody committed to it.
    :param compare: compare objects that the copy already has byte by byte, not only by size.
    :param icechunk_conn_id: the connection.
    """

    template_fields = ("repository", "target", "target_conn_id")
    _remedy = "check the path, or create it with IcechunkCreateRepositoryOperator"

    def __init__(
        self,
        *,
        target: str,
        target_conn_id: str | None = None,
        overwrite: bool = False,
        compare: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.target_conn_id = target_conn_id
        self.overwrite = overwrite
        self.compare = compare

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - as Airflow calls it
        """Copy what is missing."""
        there = IcechunkHook(self.target_conn_id or self.icechunk_conn_id).storage(self.target)
        return self._copy(self.icechunk_hook().storage(self.repository), there)

    def _copy(self, source: Any, target: Any) -> dict[str, Any]:
        from airflow_provider_icechunk.engine.pipelines.copying import copy_repository

        def report(objects: int, size: int) -> None:
            self.log.info("Copied %d objects, %d bytes", objects, size)

        try:
            result = copy_repository(
                source, target, overwrite=self.overwrite, compare=self.compare, progress=report
            ).to_json()
        except NotFoundError as error:
            if error.kind is not Kind.REPOSITORY_NOT_FOUND:
                raise
            raise NotFoundError(f"{error}: {self._remedy}") from error
        self.log.info("Copied %s to %s: %s", source.location, target.location, result)
        return result


class IcechunkRestoreOperator(IcechunkBackupOperator):
    """Restore a repository from a copy that `IcechunkBackupOperator` made, and verify it.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.transfer import IcechunkRestoreOperator

        with DAG("restore") as dag:
            IcechunkRestoreOperator(
                task_id="restore",
                repository="weather",
                target="backup/weather",
                target_conn_id="icechunk_backup",
            )

    Takes the same arguments as the backup, and copies the other way. Objects that were lost come
    back. Commits made after the backup are not lost by accident: a branch that points to one of
    them is moved back only with `overwrite`.

    :param repository: path below the root of the connection. (templated)
    :param target: path of the copy, below the root of its connection. (templated)
    :param target_conn_id: the connection of the copy; by default that of the repository.
        (templated)
    :param overwrite: move branches back even if somebody committed after the backup.
    :param compare: compare objects that are still there byte by byte, not only by size.
    :param icechunk_conn_id: the connection.
    """

    _remedy = "check target and target_conn_id, or make the copy with IcechunkBackupOperator"

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - as Airflow calls it
        """Copy back what is missing."""
        there = IcechunkHook(self.target_conn_id or self.icechunk_conn_id).storage(self.target)
        return self._copy(there, self.icechunk_hook().storage(self.repository))


class _Committing(MergingOperator, RepositoryOperator):
    """What the committing operators of this file have in common."""

    template_fields_renderers: ClassVar[dict[str, str]] = {"metadata": "json"}

    def __init__(self, *, branch: str = "main", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.branch = branch


class IcechunkRevertOperator(_Committing):
    """Revert one commit of a branch with a new commit that restores what it changed.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.transfer import IcechunkRevertOperator

        with DAG("revert") as dag:
            IcechunkRevertOperator(
                task_id="revert", repository="weather", snapshot_id="{{ params.snapshot_id }}"
            )

    Later commits stay; if one of them changed the same chunks or definitions, the task fails and
    names them. The old chunks are referenced again, not rewritten. A retry commits nothing more.
    Returns `snapshot_id`, `parent_id`, `branch`, `committed`, and under `result` what it `reverts`.

    :param repository: path below the root of the connection. (templated)
    :param snapshot_id: the commit to revert. (templated)
    :param branch: the branch that contains it and gets the new commit. (templated)
    :param message: commit message. (templated)
    :param metadata: metadata of the commit; `reverts` is added. (templated)
    :param rebase: whether to move over commits that others make meanwhile.
    :param on_conflict: with `rebase`, what to do about what both sides changed.
    :param on_existing_label: what to do about a label that another run appended meanwhile to a
        dimension without steps: `fail` if both wrote different values there, or `replace` them.
    :param on_rerun: what a task does that committed and was cleared.
    :param icechunk_conn_id: the connection.
    """

    template_fields = ("repository", "snapshot_id", "branch", "message", "metadata")

    def __init__(self, *, snapshot_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.snapshot_id = snapshot_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Commit the reversal, unless an earlier attempt of the run did."""
        from airflow_provider_icechunk.engine.pipelines.revert import revert_once

        options = self.commit_options(context, f"revert {self.snapshot_id}")
        repository = self.open_repository()
        return self.report(
            context, revert_once(repository, self.snapshot_id, options, branch=self.branch)
        )


class IcechunkImportOperator(_Committing):
    """Write a NetCDF, Zarr or GRIB file into a repository and commit it.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.transfer import IcechunkImportOperator

        with DAG("import") as dag:
            IcechunkImportOperator(
                task_id="import",
                repository="weather",
                source="/data/incoming/{{ ds }}.nc",
                region={"time": "auto"},
            )

    The file is read with Xarray, and written like a `Dataset` that a `@task.icechunk` function
    returns. Returns `snapshot_id`, `parent_id`, `branch`, `committed`, and under `result` the
    variables and sizes.

    :param repository: path below the root of the connection. (templated)
    :param source: path of the file, or of the folder of a Zarr store, on the worker. (templated)
    :param file_format: `netcdf`, `zarr` or `grib`; by default from the extension of `source`.
    :param variables: which variables; all by default.
    :param open_options: further arguments for Xarray's function that opens it. (templated)
    :param group: the group to write to. (templated)
    :param region: where to write it, by dimension. (templated)
    :param append_dim: the dimension along which to append it. (templated)
    :param mode: as in Xarray's `to_zarr`.
    :param encoding: as in Xarray's `to_zarr`.
    :param branch: branch to commit to. (templated)
    :param message: commit message. (templated)
    :param metadata: metadata of the commit. (templated)
    :param rebase: whether to move over commits that others make meanwhile.
    :param on_conflict: with `rebase`, what to do about what both sides changed.
    :param on_existing_label: what to do about a label that another run appended meanwhile to a
        dimension without steps: `fail` if both wrote different values there, or `replace` them.
    :param on_rerun: what a task does that committed and was cleared.
    :param icechunk_conn_id: the connection.
    """

    template_fields = (
        "repository",
        "source",
        "open_options",
        "group",
        "region",
        "append_dim",
        "branch",
        "message",
        "metadata",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"metadata": "json", "region": "json"}

    def __init__(
        self,
        *,
        source: str,
        file_format: str | None = None,
        variables: Sequence[str] | None = None,
        open_options: Mapping[str, Any] | None = None,
        group: str | None = None,
        region: str | Mapping[str, Any] | None = None,
        append_dim: str | None = None,
        mode: Any = None,
        encoding: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.file_format = file_format
        self.variables = variables
        self.open_options = open_options
        self.group = group
        self.region = region
        self.append_dim = append_dim
        self.mode = mode
        self.encoding = encoding

    def execute(self, context: Context) -> dict[str, Any]:
        """Read, write and commit, unless an earlier attempt of the run did."""
        from airflow_provider_icechunk.engine.pipelines.transaction import write_session
        from airflow_provider_icechunk.engine.xarray_io.datasets import write_dataset
        from airflow_provider_icechunk.engine.xarray_io.files import open_file

        def write(session: Any) -> dict[str, Any]:
            with open_file(
                self.source, self.file_format, self.variables, self.open_options
            ) as dataset:
                return write_dataset(
                    session,
                    dataset,
                    group=self.group,
                    region=self.region,
                    mode=self.mode,
                    append_dim=self.append_dim,
                    encoding=self.encoding,
                )

        options = self.commit_options(context, f"import {self.source}")
        repository = self.open_repository()
        appends = self.append_dim is not None
        return self.report(
            context, write_session(repository, self.branch, write, options, appends=appends)
        )


class IcechunkExportOperator(RepositoryOperator):
    """Write a snapshot out to a NetCDF file or a plain Zarr store.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.transfer import IcechunkExportOperator

        with DAG("export") as dag:
            IcechunkExportOperator(
                task_id="export",
                repository="weather",
                tag="v1",
                target="/data/outgoing/weather-v1.nc",
            )

    It is written beside the target and moved there when complete, so that nobody sees half a file.
    Returns `target`, `snapshot_id`, `variables`, `sizes`, and as `written` whether this attempt
    wrote it.

    :param repository: path below the root of the connection. (templated)
    :param target: path of the file or folder to write, on the worker. (templated)
    :param file_format: `netcdf` or `zarr`; by default from the extension of `target`.
    :param branch: the branch whose head is exported. (templated)
    :param tag: the tag whose snapshot is exported, instead of a branch's head. (templated)
    :param snapshot_id: the snapshot to export, instead of a branch's head. (templated)
    :param group: the group to export. (templated)
    :param variables: which variables; all by default.
    :param region: which part to export, by dimension; all by default. (templated)
    :param encoding: how variables are stored, as in Xarray.
    :param if_exists: what to do if the target exists: `error`, `replace` or `skip`.
    :param icechunk_conn_id: the connection.
    """

    template_fields = (
        "repository",
        "target",
        "branch",
        "tag",
        "snapshot_id",
        "group",
        "region",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"region": "json"}
    operator_extra_links = (IcechunkSnapshotLink(),)

    def __init__(
        self,
        *,
        target: str,
        file_format: str | None = None,
        branch: str = "main",
        tag: str | None = None,
        snapshot_id: str | None = None,
        group: str | None = None,
        variables: Sequence[str] | None = None,
        region: Mapping[str, Any] | None = None,
        encoding: Mapping[str, Any] | None = None,
        if_exists: str = "replace",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.file_format = file_format
        self.branch = branch
        self.tag = tag
        self.snapshot_id = snapshot_id
        self.group = group
        self.variables = variables
        self.region = region
        self.encoding = encoding
        self.if_exists = if_exists

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002 - as Airflow calls it
        """Write it out."""
        from airflow_provider_icechunk.engine.xarray_io.files import write_file

        named = self.snapshot_id is not None or self.tag is not None
        session = self.open_repository().readonly_session(
            None if named else self.branch, tag=self.tag, snapshot_id=self.snapshot_id
        )
        result = write_file(
            session,
            self.target,
            self.file_format,
            group=self.group,
            variables=self.variables,
            region=self.region,
            encoding=self.encoding,
            if_exists=self.if_exists,
        )
        self.link_to(session.snapshot_id)
        return result
