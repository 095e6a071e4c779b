"""What maintenance does on executors: list folders by shards, read manifests, join by id.

Frames hold ids as bytes. What comes to the driver are packed columns, never a row for each object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.ids import ManifestId
from airflow_provider_icechunk.format.snapshot import Manifest
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.ledgers import open_ledger
from airflow_provider_icechunk.repository.maintenance.idsets import Ids, column
from airflow_provider_icechunk.repository.maintenance.listing import Listing, list_folder
from airflow_provider_icechunk.repository.maintenance.loading import Loader
from airflow_provider_icechunk.repository.maintenance.reachable import chunk_ids
from airflow_provider_icechunk.spark.executor_errors import on_executors
from airflow_provider_icechunk.spark.places import cores
from airflow_provider_icechunk.storage.base import Listed, Storage
from airflow_provider_icechunk.storage.local import LocalStorage

OBJECTS = "id binary, size long, created long"
IDS = "id binary"
_PACKED = "ids binary, sizes binary, created binary"
_COLUMNS = ("ids", "sizes", "created")
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@dataclass(frozen=True, slots=True)
class Place:
    """A repository as executors reach it, with credentials of their own."""

    storage: Storage
    generation: Generation

    @classmethod
    def of(cls, engine: Engine) -> Place:
        """Where an engine works."""
        return cls(engine.storage, engine.generation)

    def loader(self) -> Loader:
        """Reads metadata, fresh from the storage."""
        return Loader(self.storage, open_ledger(self.generation, self.storage))

    def shards(self) -> tuple[str, ...]:
        """How names begin, so that shards together are the folder; one listing where that costs
        the same as a part of it.
        """
        early = self.generation in (Generation.DRAFT, Generation.ALPHA1)
        return ("",) if early or isinstance(self.storage, LocalStorage) else tuple(_LETTERS)


@dataclass(frozen=True, slots=True)
class _Shard:
    """A storage that lists only names with a certain beginning."""

    storage: Storage
    begin: str

    def scan(self, prefix: str) -> Iterator[Listed]:
        return self.storage.scan(prefix + self.begin)


def listed(
    spark: SparkSession, place: Place, prefix: str, *, before: int | None = None
) -> DataFrame:
    """The objects of a folder, listed by executors when Spark gets to it."""
    count = len(place.shards())
    work = partial(list_shards, place, prefix, before)
    return spark.range(0, count, 1, count).mapInArrow(work, OBJECTS)


def needed(spark: SparkSession, place: Place, manifests: Sequence[bytes]) -> DataFrame:
    """The chunk files that manifests refer to; one that cannot be read fails the whole frame."""
    return over_manifests(spark, place, manifests, _chunk_files, IDS)


def over_manifests(
    spark: SparkSession,
    place: Place,
    manifests: Sequence[bytes],
    look: Callable[[Place, Sequence[bytes]], Iterator[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """A frame of what executors find in manifests, some hundred tasks at most."""
    parts = max(1, min(len(manifests), 8 * cores(spark)))
    dealt = tuple(tuple(manifests[part::parts]) for part in range(parts))
    return spark.range(0, parts, 1, parts).mapInArrow(partial(_deal, place, dealt, look), schema)


def collected(frame: DataFrame, prefix: str, place: Place) -> Listing:
    """A frame of objects as columns on the driver, in the order of ids."""
    packed = frame.mapInArrow(_pack, _PACKED)
    rows = on_executors(packed.collect)
    layout = open_ledger(place.generation, place.storage).layout
    size = place.generation.id_size
    joined = {name: b"".join(bytes(row[name]) for row in rows) for name in _COLUMNS}
    ids = np.frombuffer(joined["ids"], f"S{size}")
    order = np.argsort(ids, kind="stable")
    return Listing(
        prefix,
        ids[order],
        np.frombuffer(joined["sizes"], np.int64)[order],
        np.frombuffer(joined["created"], np.int64)[order],
        layout.names_in(prefix),
    )


def binary(ids: Ids) -> pa.Array:
    """Ids as a column of Arrow."""
    fixed = pa.binary(ids.dtype.itemsize)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(ids).tobytes())]
    return pa.Array.from_buffers(fixed, len(ids), buffers).cast(pa.binary())


def list_shards(
    place: Place, prefix: str, before: int | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """List the shards whose numbers come in; what an executor does."""
    layout = open_ledger(place.generation, place.storage).layout
    shards = place.shards()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            shard = cast(Storage, _Shard(place.storage, shards[number]))
            found = list_folder(shard, layout, prefix, before=before)
            yield pa.RecordBatch.from_arrays(
                [binary(found.ids), pa.array(found.sizes), pa.array(found.created)],
                names=["id", "size", "created"],
            )


def _deal(
    place: Place,
    dealt: Sequence[Sequence[bytes]],
    look: Callable[[Place, Sequence[bytes]], Iterator[pa.RecordBatch]],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from look(place, dealt[number])


def read_manifests(place: Place, manifests: Sequence[bytes]) -> Iterator[Manifest]:
    """Manifests one after the other; `MaintenanceError` at the first that cannot be read."""
    loader = place.loader()
    return (loader.manifest(ManifestId(identity)) for identity in manifests)


def _chunk_files(place: Place, manifests: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    for manifest in read_manifests(place, manifests):
        yield pa.RecordBatch.from_arrays([binary(chunk_ids(manifest))], names=["id"])


def _pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        ids = batch.column(0).to_pylist()
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([column(ids).tobytes() if ids else b""], pa.binary()),
                pa.array([_numbers(batch.column(1))], pa.binary()),
                pa.array([_numbers(batch.column(2))], pa.binary()),
            ],
            names=list(_COLUMNS),
        )


def _numbers(values: pa.Array) -> bytes:
    numbers: NDArray[np.int64] = values.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers.tobytes()
