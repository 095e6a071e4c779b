"""What executors see in manifests, for verifying and measuring."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_icechunk.exceptions import MaintenanceError
from airflow_provider_icechunk.format.ids import ManifestId, NodeId
from airflow_provider_icechunk.format.references import Extents, RefKind
from airflow_provider_icechunk.format.snapshot import Manifest
from airflow_provider_icechunk.repository.maintenance import checks
from airflow_provider_icechunk.repository.maintenance.idsets import Ids, from_rows
from airflow_provider_icechunk.repository.maintenance.measure import Size, sizes_in
from airflow_provider_icechunk.repository.maintenance.reachable import all_refs
from airflow_provider_icechunk.spark.executor_errors import on_executors
from airflow_provider_icechunk.spark.upkeep_frames import (
    Place,
    binary,
    over_manifests,
    read_manifests,
)

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
class Facts:
    """What the driver has to know of a manifest that is sound."""

    references: int
    boxes: dict[NodeId, tuple[Extents, ...]]


def examined(spark: SparkSession, place: Place, manifests: Sequence[bytes]) -> DataFrame:
    """A row of facts for each manifest that can be read, and one for each chunk file it needs."""
    return over_manifests(spark, place, manifests, _examine, _EXAMINED)


def facts_of(looked: DataFrame) -> dict[ManifestId, Facts]:
    """The facts; a manifest without cannot be read."""
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
    """What each manifest holds of each array."""
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
            # The driver reads it again, to report why it cannot.
            continue
        ids, stops = _stops(manifest)
        rows = len(ids)
        facts = json.dumps(
            {
                "references": len(manifest),
                "boxes": {key.hex(): value for key, value in checks.boxes(manifest).items()},
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
    """The chunk files of a manifest and how long each has to be."""
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


def _facts(text: str) -> Facts:
    told = json.loads(text)
    boxes = {
        NodeId(bytes.fromhex(node_id)): tuple(
            tuple((low, high) for low, high in box) for box in parts
        )
        for node_id, parts in told["boxes"].items()
    }
    return Facts(told["references"], boxes)
