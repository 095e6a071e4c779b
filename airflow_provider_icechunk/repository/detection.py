"""Finds out which generation a storage holds, with as few requests as the answer allows."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.generations.detect import PROBE_SIZE, decide
from airflow_provider_icechunk.storage.base import Bounded, Storage


def detect_generation(storage: Storage) -> Generation | None:
    """The generation of the repository in `storage`; `None` if there is no repository."""

    def opening(key: str) -> bytes | None:
        found = storage.get(key, Bounded(0, PROBE_SIZE))
        return None if found is None else found.data

    def names(folder: str) -> Iterator[str]:
        return (item.key.removeprefix(folder) for item in storage.scan(folder))

    return decide(opening, names)
