"""What maintenance does on executors: listings, references and checks as frames.

Frames hold ids as bytes. The driver receives packed columns, never one row per object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.chunk_refs import Extents, RefKind
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import ManifestId, NodeId
from airflow_provider_icechunk.engine.format.model import Manifest
from airflow_provider_icechunk.engine.maintenance import findings
from airflow_provider_icechunk.engine.maintenance.listing import (
    Ids,
    Listing,
    column,
    from_rows,
    list_folder,
)
from airflow_provider_icechunk.engine.maintenance.measure import Size, sizes_in
from airflow_provider_icechunk.engine.maintenance.reachable import Loader, all_refs, chunk_ids
from airflow_provider_icechunk.engine.refs import open_refs
from airflow_provider_icechunk.engine.storage.base import Listed, Storage
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.exceptions import MaintenanceError
from airflow_provider_icechunk.spark.runtime import cores, on_executors

OBJECTS = "id binary, size long, created long"
IDS = "id binary"
_PACKED = "ids binary, sizes binary, created binary"
_COLUMNS = ("ids", "sizes", "created")
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@dataclass(frozen=True, slots=True)
class Place:
    """A repository as executors open it, with their own credentials."""

    storage: Storage
    generation: Generation

    @classmethod
    def of(cls, core: Core) -> Place:
        """The place of a core."""
        return cls(core.storage, core.generation)

    def loader(self) -> Loader:
        """Reads metadata, fresh from the storage."""
        return Loader(self.storage, open_refs(self.generation, self.storage))

    def shards(self) -> tuple[str, ...]:
        """The name prefixes that divide a folder into shards; a single one if listing a part costs
        as much as listing all.
        """
        whole = isinstance(self.storage, LocalStorage) or not self.generation.splits_listings
        return ("",) if whole else tuple(_LETTERS)


@dataclass(frozen=True, slots=True)
class _Shard:
    """A storage that lists only names with a prefix."""

    storage: Storage
    begin: str

    def scan(self, prefix: str) -> Iterator[Listed]:
        return self.storage.scan(prefix + self.begin)


def listed(
    spark: SparkSession, place: Place, prefix: str, *, before: int | None = None
) -> DataFrame:
    """The objects of a folder, listed lazily by executors."""
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
    examine: Callable[[Place, Sequence[bytes]], Iterator[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """A frame of what executors find in manifests, in a few hundred tasks at most."""
    parts = max(1, min(len(manifests), 8 * cores(spark)))
    dealt = tuple(tuple(manifests[part::parts]) for part in range(parts))
    return spark.range(0, parts, 1, parts).mapInArrow(partial(_deal, place, dealt, examine), schema)


def collected(frame: DataFrame, prefix: str, place: Place) -> Listing:
    """A frame of objects as columns on the driver, sorted by id."""
    packed = frame.mapInArrow(_pack, _PACKED)
    rows = on_executors(packed.collect)
    layout = open_refs(place.generation, place.storage).layout
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
    """Ids as an Arrow column."""
    fixed = pa.binary(ids.dtype.itemsize)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(ids).tobytes())]
    return pa.Array.from_buffers(fixed, len(ids), buffers).cast(pa.binary())


def list_shards(
    place: Place, prefix: str, before: int | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """List the shards with the given numbers; runs on executors."""
    layout = open_refs(place.generation, place.storage).layout
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
    examine: Callable[[Place, Sequence[bytes]], Iterator[pa.RecordBatch]],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from examine(place, dealt[number])


def read_manifests(place: Place, manifests: Sequence[bytes]) -> Iterator[Manifest]:
    """Manifests one by one; `MaintenanceError` at the first that cannot be read."""
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


_EXAMINED = "manifest binary, facts string, id binary, stop long"
_ARROW = pa.schema(
    [
        ("manifest", pa.binary()),
        ("facts", pa.string()),
        ("id", pa.binary()),
        ("stop", pa.int64()),
    ]
)
_LAST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ManifestFacts:
    """The facts the driver needs about an intact manifest."""

    references: int
    boxes: dict[NodeId, tuple[Extents, ...]]


def examined(spark: SparkSession, place: Place, manifests: Sequence[bytes]) -> DataFrame:
    """One row for each readable manifest, and one for each chunk file it needs."""
    return over_manifests(spark, place, manifests, _examine, _EXAMINED)


def facts_of(looked: DataFrame) -> dict[ManifestId, ManifestFacts]:
    """The facts of the readable manifests."""
    rows = on_executors(looked.where("facts is not null").select("manifest", "facts").collect)
    return {ManifestId(bytes(row["manifest"])): _facts(row["facts"]) for row in rows}


def unsound(looked: DataFrame, stored: DataFrame) -> dict[ManifestId, dict[bytes, int | None]]:
    """Chunk files that are missing (no size) or too short, by the manifest that needs them."""
    asked = looked.where("id is not null").select("manifest", "id", "stop")
    joined = asked.join(stored.select("id", "size"), "id", "left")
    wrong = joined.where("size is null or size < stop").select("manifest", "id", "size")
    found: dict[ManifestId, dict[bytes, int | None]] = {}
    for row in on_executors(wrong.collect):
        manifest = ManifestId(bytes(row["manifest"]))
        found.setdefault(manifest, {})[bytes(row["id"])] = row["size"]
    return found


def unnamed(looked: DataFrame, stored: DataFrame) -> DataFrame:
    """Chunk files that no manifest needs."""
    return stored.join(looked.where("id is not null").select("id"), "id", "left_anti")


def sizes_of(
    spark: SparkSession, place: Place, manifests: Sequence[ManifestId]
) -> dict[ManifestId, dict[NodeId, Size]]:
    """The references to each array in each manifest."""
    frame = over_manifests(spark, place, manifests, _measure, "manifest binary, sizes string")
    return {
        ManifestId(bytes(row["manifest"])): {
            NodeId(bytes.fromhex(node_id)): Size(**size)
            for node_id, size in json.loads(row["sizes"]).items()
        }
        for row in on_executors(frame.collect)
    }


def _examine(place: Place, manifests: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    for identity in manifests:
        try:
            (manifest,) = read_manifests(place, [identity])
        except MaintenanceError:
            # The driver reads it again, to report the reason.
            continue
        ids, stops = _stops(manifest)
        rows = len(ids)
        facts = json.dumps(
            {
                "references": len(manifest),
                "boxes": {key.hex(): value for key, value in findings.boxes(manifest).items()},
            }
        )
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([identity] * (rows + 1), pa.binary()),
                pa.array([facts] + [None] * rows, pa.string()),
                pa.concat_arrays([pa.array([None], pa.binary()), binary(ids)]),
                pa.array([0, *stops], pa.int64()),
            ],
            schema=_ARROW,
        )


def _stops(manifest: Manifest) -> tuple[Ids, list[int]]:
    """The chunk files of a manifest and the minimum length of each."""
    parts = [refs.take(refs.kind == np.uint8(RefKind.NATIVE)) for refs in all_refs(manifest)]
    parts = [refs for refs in parts if len(refs)]
    if not parts:
        return np.zeros(0, "S12"), []
    ids = np.concatenate([from_rows(refs.chunk_id) for refs in parts])
    stops = np.concatenate([np.minimum(refs.offset + refs.length, _LAST) for refs in parts])
    order = np.lexsort((stops, ids))
    last = np.append(ids[order][1:] != ids[order][:-1], True)
    return ids[order][last], stops[order][last].tolist()


def _measure(place: Place, manifests: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    for identity, manifest in zip(manifests, read_manifests(place, manifests), strict=True):
        sizes = {key.hex(): asdict(size) for key, size in sizes_in(manifest).items()}
        yield pa.RecordBatch.from_arrays(
            [pa.array([identity], pa.binary()), pa.array([json.dumps(sizes)])],
            names=["manifest", "sizes"],
        )


def _facts(text: str) -> ManifestFacts:
    reported = json.loads(text)
    boxes = {
        NodeId(bytes.fromhex(node_id)): tuple(
            tuple((low, high) for low, high in box) for box in parts
        )
        for node_id, parts in reported["boxes"].items()
    }
    return ManifestFacts(reported["references"], boxes)
