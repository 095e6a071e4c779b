"""Metadata of a repository as frames: the values that the command line prints.

Small tables are one task. Chunks are read by one task per array, files by one per folder, and they
stay columns from the manifest to the frame.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_icechunk.engine.datasets.coverage import coverage
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, RefKind
from airflow_provider_icechunk.engine.format.model import Node
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document
from airflow_provider_icechunk.engine.history.graph import arrange
from airflow_provider_icechunk.engine.maintenance.listing import list_folder
from airflow_provider_icechunk.engine.pipelines.versions import newest, read_heads
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.tree.entries import read_entry
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.columns import (
    NUMBERS,
    TEXT,
    TIME,
    Column,
    arrow_schema,
    lists,
    spark_schema,
)
from airflow_provider_icechunk.spark.runtime import RepositoryLike, opened

from .frames import open_snapshot

MetadataTable = Literal["snapshots", "refs", "history", "arrays", "chunks", "files", "coverage"]

_TEXTS = ("array<string>", pa.list_(pa.field("element", pa.string())))
_LONG = ("long", pa.int64())
_COMMIT = (
    Column("snapshot_id", *TEXT),
    Column("parent_id", *TEXT),
    Column("written_at", *TIME),
    Column("message", *TEXT),
    Column("metadata", *TEXT),
)

METADATA_COLUMNS: dict[MetadataTable, tuple[Column, ...]] = {
    "snapshots": (*_COMMIT, Column("branches", *_TEXTS), Column("tags", *_TEXTS)),
    "refs": (
        Column("type", *TEXT),
        Column("name", *TEXT),
        Column("snapshot_id", *TEXT),
        Column("written_at", *TIME),
        Column("message", *TEXT),
    ),
    "history": (Column("back", *_LONG), *_COMMIT),
    "arrays": (
        Column("path", *TEXT),
        Column("shape", *NUMBERS),
        Column("chunk_shape", *NUMBERS),
        Column("grid", *NUMBERS),
        Column("data_type", *TEXT),
        Column("dimension_names", *_TEXTS),
        Column("chunks", *_LONG),
        Column("bytes", *_LONG),
    ),
    "chunks": (
        Column("array", *TEXT),
        Column("chunk", *NUMBERS),
        Column("kind", *TEXT),
        Column("file", *TEXT),
        Column("offset", *_LONG),
        Column("length", *_LONG),
    ),
    "files": (
        Column("folder", *TEXT),
        Column("name", *TEXT),
        Column("bytes", *_LONG),
        Column("written_at", *TIME),
    ),
    "coverage": (
        Column("array", *TEXT),
        Column("dim", *TEXT),
        Column("first", *TEXT),
        Column("last", *TEXT),
        Column("present", "boolean", pa.bool_()),
    ),
}
_KINDS = pa.array([kind.name.lower() for kind in RefKind])
_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class MetadataRead:
    """A table of metadata. It is sent to executors and opens the repository there."""

    repository: Repository
    table: MetadataTable
    snapshot_id: str
    tasks: tuple[str, ...]
    """Paths of arrays, names of folders, or one empty text."""
    dim: str | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the table."""
        return METADATA_COLUMNS[self.table]

    def read(self, task: str) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        if self.table == "chunks":
            yield from self._chunks(task)
        elif self.table == "files":
            yield from self._files(task)
        else:
            rows = list(_ROWS_OF[self.table](self, task))
            columns = zip(*rows, strict=True) if rows else [()] * len(self.columns)
            yield self._batch(
                [pa.array(list(c), of.arrow) for c, of in zip(columns, self.columns, strict=True)]
            )

    def snapshots(self, _: str) -> Iterator[tuple[Any, ...]]:
        """All snapshots that branches and tags reach, children before their parents."""
        heads = read_heads(self.repository)
        infos, _more = newest(self.repository, heads.tips(), None)
        by_id = {info.id: info for info in infos}
        for commit in arrange([heads.commit(info) for info in infos]):
            yield (*_commit(by_id[commit.id]), list(commit.branches), list(commit.tags))

    def refs(self, _: str) -> Iterator[tuple[Any, ...]]:
        """Branches and tags by name."""
        heads = read_heads(self.repository)
        for kind, names in (("branch", heads.branches), ("tag", heads.tags)):
            for name, tip in sorted(names.items()):
                info = self.repository.lookup_snapshot(tip)
                yield kind, name, tip, info.written_at, info.message

    def history(self, _: str) -> Iterator[tuple[Any, ...]]:
        """The snapshot and its ancestors."""
        for back, info in enumerate(self.repository.ancestry(snapshot_id=self.snapshot_id)):
            yield (back, *_commit(info))

    def arrays(self, path: str) -> Iterator[tuple[Any, ...]]:
        """One array."""
        tree = self.repository.readonly_session(snapshot_id=self.snapshot_id).tree
        one = read_entry(tree, tree.array(path), count_chunks=True)
        yield (
            one.path,
            one.shape,
            one.chunk_shape,
            one.grid,
            one.data_type,
            one.dimension_names,
            one.chunks,
            one.bytes,
        )

    def coverage(self, path: str) -> Iterator[tuple[Any, ...]]:
        """Ranges of present labels, and each missing label."""
        session = self.repository.readonly_session(snapshot_id=self.snapshot_id)
        found = coverage(session, path, self.dim)
        for first, last in found.present:
            yield path, found.dim, str(first), str(last), True
        for label in found.missing:
            yield path, found.dim, str(label), str(label), False

    def _chunks(self, path: str) -> Iterator[pa.RecordBatch]:
        session = self.repository.readonly_session(snapshot_id=self.snapshot_id)
        refs = session.tree.references(session.tree.array(path))
        for first in range(0, len(refs), _ROWS):
            part = refs.take(np.arange(first, min(first + _ROWS, len(refs))))
            yield self._batch(
                [
                    pa.array([path]).take(pa.array(np.zeros(len(part), np.int64))),
                    lists(part.index.astype(np.int64)),
                    _KINDS.take(pa.array(part.kind)),
                    pa.array(self._places(part), pa.string()),
                    pa.array(part.offset.astype(np.int64)),
                    pa.array(part.length.astype(np.int64)),
                ]
            )

    def _places(self, refs: ChunkRefs) -> list[str | None]:
        """The file of each chunk: the name of a native one, the address of a foreign one."""
        layout = self.repository.core.refs.layout
        places = np.full(len(refs), None, object)
        native = refs.kind == np.uint8(RefKind.NATIVE)
        places[native] = layout.names_in(layout.chunks).encode(refs.chunk_id[native])
        for row in np.flatnonzero(refs.kind == np.uint8(RefKind.VIRTUAL)).tolist():
            start, stop = map(int, refs.span[row])
            places[row] = bytes(refs.heap[start:stop]).decode()
        return places.tolist()

    def _files(self, folder: str) -> Iterator[pa.RecordBatch]:
        core = self.repository.core
        found = list_folder(core.storage, core.refs.layout, folder)
        keys = found.keys()
        for first in range(0, len(found), _ROWS):
            part = slice(first, first + _ROWS)
            names = [key.removeprefix(folder) for key in keys[part]]
            yield self._batch(
                [
                    pa.array([folder.rstrip("/")] * len(names), pa.string()),
                    pa.array(names, pa.string()),
                    pa.array(found.sizes[part]),
                    pa.array(found.created[part].astype("datetime64[us]")).cast(TIME[1]),
                ]
            )

    def _batch(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(columns), schema=arrow_schema(self.columns))


_ROWS_OF = {
    "snapshots": MetadataRead.snapshots,
    "refs": MetadataRead.refs,
    "history": MetadataRead.history,
    "arrays": MetadataRead.arrays,
    "coverage": MetadataRead.coverage,
}


def read_metadata(
    spark: SparkSession,
    repository: RepositoryLike,
    table: MetadataTable,
    path: str = "/",
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    dim: str | None = None,
) -> DataFrame:
    """A table of metadata of the repository, as a frame.

    `snapshots`, `refs` and `files` are about the repository, the others about one version of it.

    :param table: `snapshots`, `refs`, `history`, `arrays`, `chunks`, `files` or `coverage`.
    :param path: for arrays, chunks and coverage: an array, or a group with all arrays below it.
    :param dim: for coverage: the dimension; by default the first.
    """
    source = opened(repository)
    session = open_snapshot(source, branch, tag, snapshot_id, as_of)
    reading = plan_metadata(source, table, path, session.snapshot_id, dim)
    count = len(reading.tasks)
    numbers = spark.range(0, count, 1, max(1, count))
    return numbers.mapInArrow(partial(_read_numbers, reading), spark_schema(reading.columns))


def plan_metadata(
    repository: Repository, table: str, path: str, snapshot_id: str, dim: str | None
) -> MetadataRead:
    """Plan to read a table of metadata."""
    if table not in METADATA_COLUMNS:
        raise InvalidInputError(
            f"there is no table {table!r} of metadata: choose one of "
            f"{', '.join(get_args(MetadataTable))}"
        )
    if dim is not None and table != "coverage":
        raise InvalidInputError(f"`dim` applies to coverage, not to {table}")
    tasks: tuple[str, ...] = ("",)
    if table in ("arrays", "chunks", "coverage"):
        tree = repository.readonly_session(snapshot_id=snapshot_id).tree
        nodes = tree.nodes("/" + path.strip("/"))
        if not nodes:
            raise InvalidInputError(f"there is no array and no group at {path!r}")
        found = [node for node in nodes if not node.is_group]
        if table == "coverage" and nodes[0].is_group:
            found = [node for node in found if _has(node, dim or _first(node))]
        tasks = tuple(node.path for node in found)
    elif table == "files":
        layout = repository.core.refs.layout
        folders = (layout.snapshots, layout.transactions, layout.manifests, layout.chunks)
        tasks = (*folders, *([] if layout.attributes is None else [layout.attributes]))
    return MetadataRead(repository, table, snapshot_id, tasks, dim)


def _commit(info: Any) -> tuple[Any, ...]:
    metadata = json.dumps(info.metadata, sort_keys=True)
    return info.id, info.parent_id, info.written_at, info.message, metadata


def _first(node: Node) -> str | None:
    return next(iter(array_document(node).dimension_names or ()), None)


def _has(node: Node, dim: str | None) -> bool:
    """Whether an array has a dimension, and is not the coordinate that names its labels."""
    names = array_document(node).dimension_names or ()
    return names != (dim,) and (dim is None or dim in names)


def _read_numbers(
    reading: MetadataRead, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from reading.read(reading.tasks[number])
