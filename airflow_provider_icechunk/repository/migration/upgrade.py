"""The official name and arguments of the migration from generation `1` to `2`."""

from __future__ import annotations

from typing import Any, TypeVar

from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.repository.migration.run import migrate
from airflow_provider_icechunk.repository.repository import BaseRepository

AnyRepository = TypeVar("AnyRepository", bound=BaseRepository[Any])


def upgrade_icechunk_repository(
    repo: AnyRepository,
    *,
    dry_run: bool,
    delete_unused_v1_files: bool = True,
    prefetch_concurrency: int | None = None,
) -> AnyRepository:
    """Bring a repository to generation `2` and open it anew; `repo` still is the old one.

    `migrate` does the same, says what it did, and keeps the old files unless asked. Where they stay
    they are fenced against programs that know only generation `1`, which officially they are not.
    Snapshots are read one after the other, so that `prefetch_concurrency` changes nothing.
    """
    del prefetch_concurrency
    migrate(repo, Generation.V2, dry_run=dry_run, remove_old=delete_unused_v1_files)
    engine = repo._engine
    return type(repo).open(
        repo.storage,
        engine.given,
        repo._authorize,
        packing=engine.packing,
        world=engine.world,
    )
