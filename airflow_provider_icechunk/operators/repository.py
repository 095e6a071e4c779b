"""Create repositories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import BaseOperator

from airflow_provider_icechunk.exceptions import AlreadyExistsError, InvalidInputError
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook

if TYPE_CHECKING:
    from airflow.sdk import Context


class IcechunkCreateRepositoryOperator(BaseOperator):
    """Create a repository, unless it is there already.

    :param repository: path below the root of the connection. (templated)
    :param if_exists: `skip` an existing repository, or treat it as an `error`.
    :param spec_version: generation of the stored format; `1` by default. (templated)
    :param config: configuration to store with a new repository, in the shape of its
        `config.yaml`. (templated)
    :param icechunk_conn_id: the connection.
    """

    template_fields = ("repository", "spec_version", "config")
    template_fields_renderers: ClassVar[dict[str, str]] = {"config": "json"}
    ui_color = "#d5ecf7"

    def __init__(
        self,
        *,
        repository: str,
        if_exists: Literal["skip", "error"] = "skip",
        spec_version: int | str | None = None,
        config: Mapping[str, Any] | None = None,
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.repository = repository
        self.if_exists = if_exists
        self.spec_version = spec_version
        self.config = config
        self.icechunk_conn_id = icechunk_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Create the repository and say whether it is new."""
        del context
        from airflow_provider_icechunk.format.config_codec import config_from_tree
        from airflow_provider_icechunk.repository.repository import generation_named

        if self.if_exists not in ("skip", "error"):
            raise InvalidInputError(f"if_exists is 'skip' or 'error', not {self.if_exists!r}")
        generation_named(self.spec_version)
        hook = IcechunkHook(self.icechunk_conn_id)
        config = None
        if self.config is not None:
            config = config_from_tree(dict(self.config), where="config")
        # Looked for before it is created: nearly every run of a Dag finds it there.
        found = hook.find(self.repository) if self.if_exists == "skip" else None
        if found is None:
            try:
                made = hook.create(self.repository, config=config, spec_version=self.spec_version)
            except AlreadyExistsError:
                if self.if_exists == "error":
                    raise
                found = hook.open(self.repository)
            else:
                self.log.info("Created %s", made.storage.location)
                return self._result(str(made.spec_version), created=True)
        self.log.info("%s is there already", found.storage.location)
        return self._result(str(found.spec_version), created=False)

    def _result(self, spec_version: str, *, created: bool) -> dict[str, Any]:
        return {
            "repository": self.repository,
            "conn_id": self.icechunk_conn_id,
            "spec_version": spec_version,
            "created": created,
        }
