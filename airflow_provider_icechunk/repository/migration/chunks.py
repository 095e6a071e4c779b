"""Chunk files under the names of the newer generation, where the old ones do not fit.

New names follow from the old ones, so a copy that is there and has the right size is not made
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import Kind, StorageError
from airflow_provider_icechunk.format.generations.v1.layout import V1Layout
from airflow_provider_icechunk.format.ids import ChunkId
from airflow_provider_icechunk.repository.migration.identities import check_chunks, fold_rows
from airflow_provider_icechunk.repository.migration.plan import Listener, MigrationProgress, Step
from airflow_provider_icechunk.repository.migration.survey import Source
from airflow_provider_icechunk.storage.base import Put, Storage

_BATCH_BYTES = 64 << 20
_BATCH_FILES = 256


@dataclass(frozen=True, slots=True)
class Copy:
    """One chunk file."""

    old: str
    new: str
    size: int


def plan_copies(source: Source, ids: NDArray[np.uint8]) -> list[Copy]:
    """Every chunk file in use with its old and new key; one that is missing is an error."""
    new = fold_rows(ids)
    check_chunks(ids, new)
    sizes = _sizes(source.storage, source.ledger.layout.chunks)
    copies = []
    for old_id, new_id in zip(ids, new, strict=True):
        old = source.ledger.layout.chunk(ChunkId(old_id.tobytes()))
        if old not in sizes:
            raise StorageError(
                f"the chunk file {old} is missing in {source.storage.location} although a "
                "manifest names it; nothing was migrated: run `verify` to see what is lost",
                kind=Kind.OBJECT_MISSING,
            )
        copies.append(Copy(old, V1Layout().chunk(ChunkId(new_id.tobytes())), sizes[old]))
    return copies


def copy_all(storage: Storage, copies: list[Copy], listener: Listener) -> None:
    """Copy what is not there yet."""
    there = _sizes(storage, V1Layout().chunks)
    missing = [one for one in copies if there.get(one.new) != one.size]
    done = len(copies) - len(missing)
    moved = 0
    for batch in _batches(missing):
        found = storage.get_many([(one.old, None) for one in batch])
        puts = []
        for one, fetched in zip(batch, found, strict=True):
            if fetched is None or len(fetched.data) != one.size:
                raise StorageError(
                    f"the chunk file {one.old} in {storage.location} was changed or deleted while "
                    "it was copied; nothing was migrated, run it again",
                    kind=Kind.OBJECT_MISSING,
                )
            puts.append(Put(one.new, fetched.data))
        storage.put_many(puts)
        done += len(batch)
        moved += sum(one.size for one in batch)
        listener(MigrationProgress(Step.CHUNKS, done, len(copies), moved))


def _sizes(storage: Storage, prefix: str) -> dict[str, int]:
    return {item.key: item.size for item in storage.scan(prefix)}


def _batches(copies: list[Copy]) -> Iterator[list[Copy]]:
    batch: list[Copy] = []
    held = 0
    for one in copies:
        if batch and (held + one.size > _BATCH_BYTES or len(batch) == _BATCH_FILES):
            yield batch
            batch, held = [], 0
        batch.append(one)
        held += one.size
    if batch:
        yield batch
