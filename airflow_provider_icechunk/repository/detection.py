"""Finds out which generation a storage holds, with as few requests as the answer allows.

A migration leaves the entry point of the older generation in place until its removal is asked for.
The newest entry point is the repository: the write that creates it is the migration, and before it
nothing of the newer generation is seen.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.generations.detect import PROBE_SIZE, entry_points
from airflow_provider_icechunk.storage.base import Bounded, Storage


def detect_generation(storage: Storage) -> Generation | None:
    """The generation of the repository in `storage`; `None` if there is no repository."""
    return next(detect_all(storage), None)


def detect_all(storage: Storage) -> Iterator[Generation]:
    """Every generation that has an entry point in `storage`, newest first; the first one counts.

    Each is looked for when it is asked for.
    """

    def opening(key: str) -> bytes | None:
        found = storage.get(key, Bounded(0, PROBE_SIZE))
        return None if found is None else found.data

    def names(folder: str) -> Iterator[str]:
        return (item.key.removeprefix(folder) for item in storage.scan(folder))

    return entry_points(opening, names)
