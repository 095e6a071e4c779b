"""Readers who may not list: to them, Amazon says "denied" about objects that do not exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import numpy as np
import pytest
import zarr

from airflow_provider_icechunk.api import Repository, RepositoryConfig
from airflow_provider_icechunk.engine.storage.base import ByteRange, Fetched, Listed
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import AccessDeniedError


class Blind(MemoryStorage):
    """The same objects as another storage, for someone without the right to list."""

    def __init__(self, whole: MemoryStorage) -> None:
        super().__init__()
        self._whole = whole
        self.hidden: set[str] = set()

    @property
    def endpoint_url(self) -> str:
        return "https://store.example"

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        found = None if key in self.hidden else self._whole.get(key, byte_range)
        return found or self._deny(key)

    def get_many(self, requests: object) -> list[Fetched | None]:
        return [self.get(*request) for request in requests]  # type: ignore[attr-defined]

    def head(self, key: str) -> Listed:
        return self._whole.head(key) or self._deny(key)

    def scan(self, prefix: str) -> Iterator[Listed]:
        self._deny(prefix)

    def list_folders(self, prefix: str) -> list[str]:
        self._deny(prefix)

    def _deny(self, key: str) -> NoReturn:
        raise AccessDeniedError(f"denied: {key}")


def filled(spec_version: int, config: RepositoryConfig | None) -> Blind:
    whole = MemoryStorage()
    session = Repository.create(whole, config, spec_version=spec_version).writable_session("main")
    zarr.create_array(session.store, name="a", data=np.arange(1000), chunks=(100,))
    session.commit("filled")
    return Blind(whole)


@pytest.mark.parametrize("config", [None, RepositoryConfig(inline_chunk_threshold_bytes=7)])
@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_repository_is_found_and_read(spec_version: int, config: RepositoryConfig | None) -> None:
    blind = filled(spec_version, config)
    repository = Repository.open(blind)
    for _ in range(2):
        store = repository.readonly_session("main").store
        assert zarr.open_array(store, path="a", mode="r")[999] == 999
    assert Repository.exists(blind)
    if config is not None:
        assert repository.config.inline_chunk_threshold_bytes == 7


@pytest.mark.parametrize("spec_version", [1, 2])
def test_without_any_readable_entry_point_nothing_is_taken_for_absent(spec_version: int) -> None:
    blind = filled(spec_version, RepositoryConfig())
    blind.hidden = {"repo", "refs/branch.main/ref.json"}
    for ask in (Repository.open, Repository.exists):
        with pytest.raises(AccessDeniedError):
            ask(blind)
