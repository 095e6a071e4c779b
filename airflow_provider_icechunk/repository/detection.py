"""Finds out which generation a storage holds, with as few requests as the answer allows.

A migration leaves the entry point of the older generation in place until its removal is asked for.
The newest entry point is the repository: the write that creates it is the migration, and before it
nothing of the newer generation is seen. One that is there and damaged is an error, never "absent".
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_icechunk.exceptions import MaintenanceError
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.generations.detect import (
    PROBE_SIZE,
    EntryPoint,
    Names,
    Opening,
    decide,
    entry_points,
)
from airflow_provider_icechunk.storage.base import Bounded, Storage


def detect_generation(storage: Storage) -> Generation | None:
    """The generation of the repository in `storage`; `None` if there is no repository.

    Raises `FormatError` for an entry point that is damaged, or fenced for a generation that is
    not there.
    """
    return decide(*_eyes(storage), where=f"{storage.location}/")


def detect_all(storage: Storage) -> Iterator[EntryPoint]:
    """Every entry point in `storage`, newest first, fenced or not; the first one counts.

    Each is looked for when it is asked for.
    """
    return entry_points(*_eyes(storage), where=f"{storage.location}/")


def check_newest(storage: Storage, generation: Generation) -> None:
    """Raise `MaintenanceError` if a repository of a newer generation is in `storage` by now.

    What opened it before would judge by old references, and delete what only the new ones name.
    """
    if generation is Generation.V2:
        return
    found = detect_generation(storage)
    if found is not generation:
        raise MaintenanceError(
            f"{storage.location} was opened as a repository of generation `{generation}` and is "
            f"one of {'no generation' if found is None else f'generation `{found}`'} now: open it "
            "anew. Nothing more is changed or deleted"
        )


def _eyes(storage: Storage) -> tuple[Opening, Names]:
    def opening(key: str) -> bytes | None:
        found = storage.get(key, Bounded(0, PROBE_SIZE))
        return None if found is None else found.data

    def names(folder: str) -> Iterator[str]:
        return (item.key.removeprefix(folder) for item in storage.scan(folder))

    return opening, names
