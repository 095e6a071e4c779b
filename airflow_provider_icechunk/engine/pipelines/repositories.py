"""The repositories below one root: create one if it is missing, list them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_icechunk.engine.format.config.codec import config_from_tree
from airflow_provider_icechunk.engine.opening import detect_generation, generation_named
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.exceptions import AlreadyExistsError, FormatError, InvalidInputError

_DEEPEST = 4
_MOST_FOLDERS = 1_000


def create_or_find(
    storage: Storage,
    *,
    config: Mapping[str, Any] | None = None,
    spec_version: int | str | None = None,
    may_exist: bool = True,
) -> tuple[Repository, bool]:
    """Create a repository or open the existing one; also returns whether it is new.

    :param config: configuration of a new repository, structured like `config.yaml`.
    """
    generation_named(spec_version)
    wanted = None if config is None else config_from_tree(dict(config), where="config")
    # Try to open it first: in nearly every DAG run it exists.
    found = Repository.find(storage) if may_exist else None
    if found is not None:
        return found, False
    try:
        return Repository.create(storage, wanted, spec_version=spec_version), True
    except AlreadyExistsError:
        if not may_exist:
            raise
        return Repository.open(storage), False


def list_repositories(storage_of: Callable[[str], Storage], root: str) -> list[str]:
    """Paths of the repositories at or below a path, in order; `.` is the root itself.

    Found by their entry points, without opening them. Repositories inside repositories are not
    found. Searches at most four levels and a thousand folders; more is an `InvalidInputError`.

    :param storage_of: the storage at a path.
    """
    found: list[str] = []
    searched, level = 0, [root]
    for _ in range(_DEEPEST + 1):
        below: list[str] = []
        for path in level:
            searched += 1
            if searched > _MOST_FOLDERS:
                raise InvalidInputError(
                    f"there are more than {_MOST_FOLDERS} folders below "
                    f"{storage_of(root).location}: use a longer prefix"
                )
            storage = storage_of(path)
            if _is_repository(storage):
                found.append(path)
            else:
                names = storage.list_folders("")
                below += [name if path == "." else f"{path}/{name}" for name in names]
        level = below
    return sorted(found)


def _is_repository(storage: Storage) -> bool:
    try:
        return detect_generation(storage) is not None
    except FormatError:
        # It is a repository, and opening it reports the error.
        return True
