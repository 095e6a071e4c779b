"""The hook: open and create the repositories of an Airflow connection."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk.log import mask_secret

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.compat import BaseHook, declares_forms
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    IcechunkError,
    InvalidInputError,
    Kind,
    NotFoundError,
)

from .connection import CONN_TYPE, ROOT, IcechunkConnection, build_storage, parse_connection
from .form import field_behaviour, form_widgets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from xarray import Dataset

    from airflow_provider_icechunk.api import Repository, RepositoryConfig, Session, WorkUnit
    from airflow_provider_icechunk.dataset import IcechunkDataset, Placement
    from airflow_provider_icechunk.engine.storage.base import Storage
    from airflow_provider_icechunk.engine.storage.location import StorageLocation


T = TypeVar("T")

_POLLS = 30
"""How often an open repository is queried before it is opened again."""

_TRIES = 2
"""How often a request is sent: the person who pressed the button is waiting."""
_HINT = "it honours conditional reads; the first write will check conditional writes"


def check_root(settings: IcechunkConnection) -> tuple[bool, str]:
    """Whether the root of a connection is usable, and what it holds.

    Reading cannot prove that a store honours conditional writes: a store that ignores conditional
    reads fails here, others are checked by the first write.
    """
    from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage

    if settings.storage == "file" and not Path(settings.host).is_dir():
        return False, f"unreachable: no directory {settings.host} on this machine"
    try:
        storage = build_storage(settings, ROOT, tries=_TRIES)
        found = _describe(storage)
        honours = storage.honours_read_conditions() if isinstance(storage, S3Storage) else None
        warnings = storage.warnings() if isinstance(storage, S3Storage) else []
    except IcechunkError as error:
        return False, explain(error)
    if honours is False:
        return False, (
            f"conditions not honoured: {storage.location} ignores If-Match on reads, so concurrent "
            f"commits could be lost; use it for reading only. {found}"
        )
    return True, "; ".join([found, *([] if honours is None else [_HINT]), *warnings])


def explain(error: IcechunkError) -> str:
    """The kind of failure, and its message."""
    match error:
        case AccessDeniedError():
            return f"no permission: {error}"
        case InvalidInputError():
            return f"wrong connection: {error}"
        case NotFoundError():
            return f"not found: {error}"
    if error.kind in (Kind.STORAGE_UNREACHABLE, Kind.STORAGE_THROTTLED):
        return f"unreachable: {error}"
    return f"{error.kind.value}: {error}"


def _describe(storage: Storage) -> str:
    from airflow_provider_icechunk.api import Repository

    if Repository.exists(storage):
        repository = Repository.open(storage)
        try:
            head = f"main is at {repository.lookup_branch('main')}"
        except NotFoundError:
            head = "it has no branch main"
        return f"{storage.location} is a repository of generation {repository.spec_version}; {head}"
    folders = len(storage.list_folders(""))
    if not folders:
        return f"{storage.location} is reachable and empty"
    return f"{storage.location} is reachable; it is not a repository and holds {folders} folders"


class IcechunkHook(BaseHook):
    """Open and create the repositories of a connection.

    :param icechunk_conn_id: the Icechunk connection; its host is a bucket or a directory.
    """

    conn_name_attr = "icechunk_conn_id"
    default_conn_name = "icechunk_default"
    conn_type = CONN_TYPE
    hook_name = "Icechunk"

    # Later releases read the declaration themselves, and call a hook that has these outdated.
    if not declares_forms():
        get_connection_form_widgets = staticmethod(form_widgets)
        get_ui_field_behaviour = staticmethod(field_behaviour)

    def __init__(self, icechunk_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.icechunk_conn_id = icechunk_conn_id

    @cached_property
    def settings(self) -> IcechunkConnection:
        """The connection's settings; reading them masks its secrets in logs."""
        settings = parse_connection(self.get_connection(self.icechunk_conn_id))
        for secret in settings.secrets:
            mask_secret(secret)
        return settings

    def get_conn(self, repository: str = ROOT) -> Repository:
        """Open the repository at a path; the root itself by default."""
        return self.open(repository)

    def open(self, repository: str) -> Repository:
        """Open an existing repository."""
        found = self.find(repository)
        if found is None:
            raise NotFoundError(
                f"no repository {repository!r} at {self.storage(repository).location} (connection "
                f"{self.icechunk_conn_id!r}): check the path, or create it with "
                "IcechunkCreateRepositoryOperator"
            )
        return found

    def find(self, repository: str) -> Repository | None:
        """Open a repository, or return `None` if there is none."""
        from airflow_provider_icechunk.api import Repository

        return Repository.find(self.storage(repository))

    def get_session(
        self,
        repository: str,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
        writable: bool = False,
    ) -> Session:
        """A session on a version of a repository, by default on the head of `main`.

        :param writable: whether it can be changed and committed, which needs a branch.
        """
        opened = self.open(repository)
        if not writable:
            if (branch, tag, snapshot_id) == (None, None, None):
                branch = "main"
            return opened.readonly_session(branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of)
        if (tag, snapshot_id, as_of) != (None, None, None):
            raise InvalidInputError(
                "a writable session starts at the head of a branch: leave out tag, snapshot_id and "
                "as_of"
            )
        return opened.writable_session(branch or "main")

    def to_xarray(
        self,
        repository: str,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
        group: str | None = None,
        **options: Any,
    ) -> Dataset:
        """A version of a repository as a `Dataset` whose values are read when they are used.

        :param options: what `xarray.open_zarr` takes.
        """
        from airflow_provider_icechunk.engine.xarray_io.datasets import open_dataset

        session = self.get_session(
            repository, branch, tag=tag, snapshot_id=snapshot_id, as_of=as_of
        )
        found: Dataset = open_dataset(session, group, **options)
        return found

    def list_repositories(self, prefix: str = "") -> list[str]:
        """Paths of the repositories below the root, in order; of those below `prefix`, if given.

        Found by their entry points, without opening them. Repositories inside repositories are not
        found. Searches at most four levels and a thousand folders; more is an `InvalidInputError`,
        and a longer prefix helps.
        """
        from airflow_provider_icechunk.engine.pipelines.repositories import list_repositories

        return list_repositories(self.storage, prefix.strip("/") or ROOT)

    def create(
        self,
        repository: str,
        *,
        config: RepositoryConfig | None = None,
        spec_version: int | str | None = None,
    ) -> Repository:
        """Create a repository; raises `AlreadyExistsError` if there is one."""
        from airflow_provider_icechunk.api import Repository

        return Repository.create(self.storage(repository), config, spec_version=spec_version)

    def create_or_find(
        self,
        repository: str,
        *,
        config: Mapping[str, Any] | None = None,
        spec_version: int | str | None = None,
        may_exist: bool = True,
    ) -> tuple[Repository, bool]:
        """Create a repository or open the existing one; also returns whether it is new.

        :param config: configuration of a new repository, structured like `config.yaml`.
        """
        from airflow_provider_icechunk.engine.pipelines.repositories import create_or_find

        return create_or_find(
            self.storage(repository),
            config=config,
            spec_version=spec_version,
            may_exist=may_exist,
        )

    def exists(self, repository: str) -> bool:
        """Whether there is a repository at a path."""
        from airflow_provider_icechunk.api import Repository

        return Repository.exists(self.storage(repository))

    def storage(self, repository: str) -> Storage:
        """The storage of a repository, with the credentials of the connection."""
        return build_storage(self.settings, repository)

    def place(self, repository: str) -> StorageLocation:
        """The location of a repository without credentials, for processes with their own."""
        return self.settings.location(repository)

    def describe_session(
        self,
        repository: str,
        work: WorkUnit,
        *,
        dataset: IcechunkDataset | None = None,
        placement: Placement | None = None,
    ) -> dict[str, Any]:
        """A session as passed between tasks: plain JSON without secrets.

        :param dataset: the declaration it was opened for; `placement` is its position in it.
        """
        from airflow_provider_icechunk.engine.pipelines.description import SessionDescription
        from airflow_provider_icechunk.engine.workers.jobs import job_key

        described = SessionDescription(
            repository=repository,
            conn_id=self.icechunk_conn_id,
            place=self.place(repository),
            work_unit=work.to_json(),
            fragments=f"{job_key(work.job)}/",
            dataset=None if dataset is None else dataset.on(coords={}).to_json(),
            placement=None if placement is None else placement.to_json(),
            release=__version__,
        )
        return described.model_dump(
            exclude={"dataset", "placement"} if dataset is None or placement is None else None
        )

    def test_connection(self) -> tuple[bool, str]:
        """Whether the root is usable, and what it holds. Only reads, and fails fast."""
        try:
            return check_root(self.settings)
        except IcechunkError as error:
            return False, explain(error)


class OpenRepository:
    """A repository that stays open between polls, so that a poll requests only what may have
    changed.

    After an error, and from time to time, it is reopened: it may have been migrated, or the
    connection changed.
    """

    def __init__(self) -> None:
        self._held: tuple[str, str, Repository] | None = None
        self._polls = 0

    def __reduce__(self) -> tuple[type[OpenRepository], tuple[()]]:
        """Copies of a task open it themselves."""
        return (OpenRepository, ())

    def ask(self, conn_id: str, path: str, question: Callable[[Repository], T]) -> T:
        """The answer to a question, from the current repository."""
        held, self._held = self._held, None
        if held is not None and held[:2] == (conn_id, path) and self._polls < _POLLS:
            try:
                answer = question(held[2])
            except IcechunkError:
                pass
            else:
                self._held, self._polls = held, self._polls + 1
                return answer
        repository = IcechunkHook(conn_id).open(path)
        answer = question(repository)
        self._held, self._polls = (conn_id, path, repository), 0
        return answer
