"""Create repositories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .base import RepositoryOperator, check_choice

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkCreateRepositoryOperator(RepositoryOperator):
    """Create a repository, unless it already exists.

    .. code-block:: python

        from airflow.sdk import DAG

        from airflow_provider_icechunk.operators.repository import IcechunkCreateRepositoryOperator

        with DAG("create") as dag:
            IcechunkCreateRepositoryOperator(task_id="create", repository="weather")

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param if_exists: `skip` an existing repository, or treat it as an `error`.
    :param spec_version: generation of the format; `1` by default. (templated)
    :param config: configuration of a new repository, structured like `config.yaml`. (templated)
    :param icechunk_conn_id: the Icechunk connection.
    """

    template_fields = ("repository", "spec_version", "config")
    template_fields_renderers: ClassVar[dict[str, str]] = {"config": "json"}

    def __init__(
        self,
        *,
        if_exists: Literal["skip", "error"] = "skip",
        spec_version: int | str | None = None,
        config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.if_exists = if_exists
        self.spec_version = spec_version
        self.config = config

    def execute(self, context: Context) -> dict[str, Any]:
        """Create the repository; returns whether it is new."""
        del context
        check_choice("if_exists", self.if_exists, ("skip", "error"))
        found, created = self.icechunk_hook().create_or_find(
            self.repository,
            config=self.config,
            spec_version=self.spec_version,
            may_exist=self.if_exists == "skip",
        )
        location = found.storage.location
        self.log.info("Created %s" if created else "%s already exists", location)
        return {
            "repository": self.repository,
            "conn_id": self.icechunk_conn_id,
            "spec_version": str(found.spec_version),
            "created": created,
        }
