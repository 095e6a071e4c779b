"""What `test_connection` says: one sentence that tells the causes of failure apart. Reads only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    IcechunkError,
    InvalidInputError,
    Kind,
    NotFoundError,
)
from airflow_provider_icechunk.hooks.connection import ROOT

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Storage
    from airflow_provider_icechunk.hooks.connection import IcechunkConnection

_TRIES = 2
"""How often a request is sent: whoever pressed the button waits for the answer."""
_HINT = "it honours conditions on reads, and the first write will prove it for writes"


def check_root(settings: IcechunkConnection) -> tuple[bool, str]:
    """Whether the root of a connection can be used, and what is there.

    Whether a store honours conditional writes cannot be proven by reading: a store that ignores
    a condition on a read is told apart, and for the others the first write makes the proof.
    """
    from airflow_provider_icechunk.hooks.storages import build_storage
    from airflow_provider_icechunk.storage.s3 import S3Storage

    if settings.storage == "file" and not Path(settings.host).is_dir():
        return False, f"unreachable: there is no directory {settings.host} on this machine"
    try:
        storage = build_storage(settings, ROOT, tries=_TRIES)
        found = _describe(storage)
        honours = storage.honours_read_conditions() if isinstance(storage, S3Storage) else None
    except IcechunkError as error:
        return False, explain(error)
    if honours is False:
        return False, (
            f"conditions not honoured: {storage.location} answers a read whose If-Match cannot "
            f"hold, so commits that meet would be lost; use it for reading only. {found}"
        )
    return True, found if honours is None else f"{found}; {_HINT}"


def explain(error: IcechunkError) -> str:
    """What kind of failure it is, and its text."""
    match error:
        case AccessDeniedError():
            return f"no permission: {error}"
        case InvalidInputError():
            return f"wrong connection: {error}"
        case NotFoundError():
            return f"not there: {error}"
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
        return f"{storage.location} can be reached; there is no repository, it is empty"
    return (
        f"{storage.location} can be reached; it is no repository itself and holds {folders} folders"
    )
