"""From an Airflow connection to repositories; secrets come in here and go nowhere else."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from airflow_provider_icechunk.exceptions import IcechunkError, NotFoundError
from airflow_provider_icechunk.hooks.connection import (
    CONN_TYPE,
    ROOT,
    IcechunkConnection,
    parse_connection,
)

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Repository, RepositoryConfig, Storage
    from airflow_provider_icechunk.spark.specification import FilePlace, S3Place


class IcechunkHook(BaseHook):
    """Open and create the repositories below the root of a connection.

    :param icechunk_conn_id: the connection. Its host is the bucket or the directory.
    """

    conn_name_attr = "icechunk_conn_id"
    default_conn_name = "icechunk_default"
    conn_type = CONN_TYPE
    hook_name = "Icechunk"

    def __init__(self, icechunk_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.icechunk_conn_id = icechunk_conn_id

    @cached_property
    def settings(self) -> IcechunkConnection:
        """What the connection says; its secrets are masked in logs from here on."""
        settings = parse_connection(self.get_connection(self.icechunk_conn_id))
        for secret in (settings.password, settings.session_token):
            if secret is not None:
                mask_secret(secret.get_secret_value())
        return settings

    def get_conn(self, repository: str = ROOT) -> Repository:
        """The repository at a path below the root; the root itself by default."""
        return self.open(repository)

    def open(self, repository: str) -> Repository:
        """Open an existing repository."""
        found = self.find(repository)
        if found is None:
            raise NotFoundError(
                f"there is no repository {repository!r} at {self.storage(repository).location} "
                f"(connection {self.icechunk_conn_id!r}): check the path, or create it with "
                "IcechunkCreateRepositoryOperator"
            )
        return found

    def find(self, repository: str) -> Repository | None:
        """Open a repository if there is one: `exists` and `open` in one look."""
        from airflow_provider_icechunk.api import Repository

        return Repository.find(self.storage(repository))

    def create(
        self,
        repository: str,
        *,
        config: RepositoryConfig | None = None,
        spec_version: int | str | None = None,
    ) -> Repository:
        """Create a repository; one that exists already is an `AlreadyExistsError`."""
        from airflow_provider_icechunk.api import Repository

        return Repository.create(self.storage(repository), config, spec_version=spec_version)

    def exists(self, repository: str) -> bool:
        """Whether there is a repository at a path."""
        from airflow_provider_icechunk.api import Repository

        return Repository.exists(self.storage(repository))

    def storage(self, repository: str) -> Storage:
        """The storage of a repository, with the credentials of the connection."""
        from airflow_provider_icechunk.hooks.storages import build_storage

        return build_storage(self.settings, repository)

    def place(self, repository: str) -> FilePlace | S3Place:
        """Where a repository is, without credentials, for processes that have their own."""
        from airflow_provider_icechunk.spark.specification import FilePlace, S3Place

        settings = self.settings
        if settings.storage == "file":
            return FilePlace(path=settings.folder(repository))
        return S3Place(
            bucket=settings.host,
            prefix=settings.key_prefix(repository),
            region=settings.region,
            endpoint_url=settings.endpoint_url,
            allow_http=settings.allow_http,
            force_path_style=settings.force_path_style,
            anonymous=settings.anonymous,
        )

    def test_connection(self) -> tuple[bool, str]:
        """Whether the root can be used, and what is there. Reads only, and gives up soon."""
        from airflow_provider_icechunk.hooks.checking import check_root, explain

        try:
            return check_root(self.settings)
        except IcechunkError as error:
            return False, explain(error)
