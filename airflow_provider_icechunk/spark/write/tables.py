"""Save a frame as arrays: its columns are dimensions with labels, and values for them.

Users need not know Zarr: arrays and coordinates are made from the frame, and rows find their cells
by the stored coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import zarr
from numpy.typing import NDArray
from pyspark.sql import DataFrame

from airflow_provider_icechunk.engine.arrays.cf import decoding
from airflow_provider_icechunk.engine.arrays.epochs import Counting, counting
from airflow_provider_icechunk.engine.commit.conflicts import ConflictSolver
from airflow_provider_icechunk.engine.pipelines.job import Prepare
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.exceptions import AlreadyExistsError, InvalidInputError, Kind
from airflow_provider_icechunk.spark.runtime import RepositoryLike, on_executors

from .frames import run_cells
from .job import JobResult, SparkWriteJob

SaveMode = Literal["error", "ignore", "append", "overwrite"]
Method = Literal["exact", "nearest"]
_MOST_LABELS = 1_000_000
_CELLS = 1 << 20
"""About how many cells a chunk has, unless the call says otherwise."""
_TYPES = {
    "tinyint": "int8", "smallint": "int16", "int": "int32", "bigint": "int64",
    "float": "float32", "double": "float64", "boolean": "bool",
}  # fmt: skip
_TIMES = ("timestamp", "timestamp_ntz", "date")
_MICROS = "microseconds since 1970-01-01"
_POSITION = "icechunk_position_{}"


def save_dataframe(
    frame: DataFrame,
    repository: RepositoryLike,
    dimensions: Sequence[str],
    variables: Sequence[str] | Mapping[str, str] | None = None,
    *,
    job: str,
    mode: SaveMode = "error",
    group: str = "",
    method: Method = "exact",
    tolerance: float | None = None,
    chunks: Mapping[str, int] | None = None,
    fill: Mapping[str, float] | None = None,
    branch: str = "main",
    prepare: Prepare | None = None,
    tasks: int | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    rebase_with: ConflictSolver | None = None,
) -> JobResult | None:
    """Save a frame as arrays of a group, one row for each cell, and commit once.

    The frame is evaluated two or three times: for its labels, to count rows, and to write. Two rows
    for one cell are refused; a NULL, or no row, is a missing cell.

    :param dimensions: the columns with labels, in the order of the arrays' dimensions.
    :param variables: the columns with values, or columns and the names of arrays; by default all
        others.
    :param mode: if the arrays exist: refuse (`error`); write nothing and return `None` (`ignore`);
        put new labels of the first dimension after the existing ones (`append`); or overwrite only
        the cells of the rows (`overwrite`). If there are no arrays, every mode creates them.
    :param method: in existing arrays, take the cell whose label is equal, or the nearest one.
    :param tolerance: how far away the nearest label may be; for times, in seconds.
    :param chunks: chunk lengths of new arrays by dimension.
    :param fill: for new arrays, the value that stands for a missing one; floats have NaN, others
        need one unless every cell has a row.
    """
    if mode not in ("error", "ignore", "append", "overwrite"):
        raise InvalidInputError(f"there is no mode {mode!r}: error, ignore, append or overwrite")
    if method not in ("exact", "nearest"):
        raise InvalidInputError(f"there is no method {method!r}: exact or nearest")
    table = _Table.of(frame, dimensions, variables, group)

    def make(session: Session) -> None:
        if prepare is not None:
            prepare(session)
        found = table.existing(session)
        if found and mode in ("error", "ignore"):
            raise _ThereAlreadyError(
                f"{found[0]!r} exists already: choose mode='append' or 'overwrite', another group, "
                "or other names",
                kind=Kind.NODE_EXISTS,
            )
        if found:
            table.check_existing(session, found)
            if mode == "append":
                table.append(session)
        else:
            table.create(session, chunks or {}, fill or {})

    try:
        writing = SparkWriteJob.open(
            frame.sparkSession, repository, job=job, branch=branch, prepare=make
        )
    except _ThereAlreadyError:
        if mode == "ignore":
            return None
        raise
    if writing.committed_as is None:
        labels = {name: table.labels(writing.view, name) for name in dimensions}
        placed = _placed(frame, table, labels, method, tolerance)
        positions = [_POSITION.format(number) for number in range(len(dimensions))]
        run_cells(writing, placed, table.arrays, positions, missing="keep", tasks=tasks)
    described = ", ".join(table.arrays.values())
    return writing.commit(
        message or f"save {described}", metadata=metadata, rebase_with=rebase_with
    )


class _ThereAlreadyError(AlreadyExistsError):
    """The arrays exist, and the mode says what that means."""


@dataclass(frozen=True, slots=True)
class _Table:
    """A frame and where its columns go."""

    frame: DataFrame
    group: str
    dimensions: tuple[str, ...]
    arrays: Mapping[str, str]
    """Columns of values, and the path of the array of each."""
    types: Mapping[str, str]
    """The Spark type of each column."""

    @classmethod
    def of(
        cls,
        frame: DataFrame,
        dimensions: Sequence[str],
        variables: Sequence[str] | Mapping[str, str] | None,
        group: str,
    ) -> _Table:
        types = {one.name: one.dataType.simpleString() for one in frame.schema.fields}
        if variables is None:
            variables = [name for name in types if name not in dimensions]
        if not isinstance(variables, Mapping):
            variables = {name: name for name in variables}
        for name in (*dimensions, *variables):
            if name not in types:
                raise InvalidInputError(f"the frame has no column {name!r}; it has {list(types)}")
        if not dimensions or not variables or len(set(dimensions)) < len(dimensions):
            raise InvalidInputError("a frame needs distinct dimensions, and values for them")
        for name in variables:
            if types[name] not in _TYPES or name in dimensions:
                raise InvalidInputError(
                    f"the column {name!r} ({types[name]}) cannot be values of an array: cast it, "
                    "or leave it out with `variables`"
                )
        for name in dimensions:
            if types[name] not in (*_TYPES, *_TIMES, "string") or types[name] == "boolean":
                raise InvalidInputError(
                    f"the column {name!r} ({types[name]}) cannot be labels: cast it"
                )
        inside = group.strip("/")
        paths = {name: "/".join(filter(None, (inside, one))) for name, one in variables.items()}
        return cls(frame, inside, tuple(dimensions), paths, types)

    def path(self, dimension: str) -> str:
        return "/".join(filter(None, (self.group, dimension)))

    def existing(self, session: Session) -> list[str]:
        root = zarr.open_group(session.store, mode="a")
        return [path for path in self.arrays.values() if path in root]

    def check_existing(self, session: Session, found: Sequence[str]) -> None:
        """Check that all arrays exist, with the dimensions that the call names."""
        root = zarr.open_group(session.store, mode="r")
        for path in self.arrays.values():
            if path not in found:
                raise InvalidInputError(
                    f"{found[0]!r} exists and {path!r} does not: save new variables by themselves"
                )
            node = root[path]
            names = getattr(node.metadata, "dimension_names", None)
            if not isinstance(node, zarr.Array) or tuple(names or ()) != self.dimensions:
                raise InvalidInputError(
                    f"{path!r} has the dimensions {names}, the call names {self.dimensions}"
                )
        for name in self.dimensions:
            self._coordinate(root, name)

    def _coordinate(self, root: zarr.Group, name: str) -> zarr.Array[Any]:
        node = root.get(self.path(name))
        if not isinstance(node, zarr.Array) or node.ndim != 1:
            raise InvalidInputError(
                f"there is no coordinate {self.path(name)!r}, by whose labels rows find their "
                "cells: write it, or give positions to `write_dataframe`"
            )
        return node

    def labels(self, session: Session, name: str) -> NDArray[Any]:
        """The labels of a dimension, in the form that the frame has."""
        node = self._coordinate(zarr.open_group(session.store, mode="r"), name)
        values = np.asarray(node[...])
        if self.types[name] in _TIMES:
            decoded, absent = decoding(node.dtype, dict(node.attrs)).decode(values)
            if decoded.dtype.kind != "M" or absent is not None:
                raise InvalidInputError(
                    f"the coordinate {node.path!r} has labels that are no times"
                )
            return decoded.astype("M8[us]")
        if self.types[name] == "string":
            return values.astype(object)
        if values.dtype.kind not in "iuf":
            raise InvalidInputError(
                f"the coordinate {node.path!r} holds {values.dtype}, the column {self.types[name]}"
            )
        return values

    def create(
        self, session: Session, chunks: Mapping[str, int], fill: Mapping[str, float]
    ) -> None:
        """Create the arrays, and the coordinates that do not exist."""
        root = zarr.open_group(session.store, mode="a")
        place = root.require_group(self.group) if self.group else root
        lengths = []
        for name in self.dimensions:
            if self.path(name) in root:
                lengths.append(self._coordinate(root, name).shape[0])
                continue
            labels = self._distinct(name)
            lengths.append(len(labels))
            _write_labels(place, name, labels)
        unknown = set(chunks) - set(self.dimensions)
        if unknown:
            raise InvalidInputError(f"there is no dimension {min(unknown)!r} to have chunks")
        shape = _chunk_shape(lengths, [chunks.get(name) for name in self.dimensions])
        self._check_complete(lengths, fill)
        for name, path in self.arrays.items():
            dtype = np.dtype(_TYPES[self.types[name]])
            value = fill.get(name, math.nan if dtype.kind == "f" else 0)
            root.create_array(
                path,
                shape=tuple(lengths),
                chunks=shape,
                dtype=dtype,
                fill_value=dtype.type(value),
                dimension_names=self.dimensions,
                attributes={"_FillValue": value} if name in fill and value == value else {},
            )

    def _check_complete(self, lengths: Sequence[int], fill: Mapping[str, float]) -> None:
        """Refuse whole numbers without a value for missing ones, unless none is missing."""
        bare = [
            n for n in self.arrays if self.types[n] not in ("float", "double") and n not in fill
        ]
        if not bare:
            return
        rows = on_executors(self.frame.select(*bare).dropna("any").count)
        if rows != math.prod(lengths):
            raise InvalidInputError(
                f"{rows} rows have values for {math.prod(lengths)} cells, and {bare[0]!r} "
                f"({self.types[bare[0]]}) has none that means a missing one: name it with `fill`"
            )

    def append(self, session: Session) -> None:
        """Append the new labels of the frame to those of the first dimension."""
        name = self.dimensions[0]
        root = zarr.open_group(session.store, mode="r+")
        node, known = self._coordinate(root, name), self.labels(session, name)
        labels = self._distinct(name)
        there = np.isin(labels, known)
        if there.any():
            raise InvalidInputError(
                f"{labels[there][0]!r} is a label of {node.path!r} already: to append is to add "
                "labels; mode='overwrite' writes over cells"
            )
        if len(known) > 1 and len(labels) and known[0] > known[-1]:
            labels = labels[::-1]
        others = [self._coordinate(root, one).shape[0] for one in self.dimensions[1:]]
        marked = {one: 0.0 for one, path in self.arrays.items() if "_FillValue" in root[path].attrs}
        self._check_complete([len(labels), *others], marked)
        stored = _as_stored(labels, node)
        old = node.shape[0]
        node.resize((old + len(labels),))
        node[old:] = stored
        for path in self.arrays.values():
            array = root[path]
            assert isinstance(array, zarr.Array)
            array.resize((old + len(labels), *array.shape[1:]))

    def _distinct(self, name: str) -> NDArray[Any]:
        """The labels of the frame, sorted."""
        column = self.frame.select(name).distinct().limit(_MOST_LABELS + 1)
        found = on_executors(partial(_to_arrow, column))
        if found.num_rows > _MOST_LABELS:
            raise InvalidInputError(f"{name!r} has more than {_MOST_LABELS} labels")
        labels = _numbers(found.column(0), self.types[name])
        if found.column(0).null_count or (labels.dtype.kind == "f" and np.isnan(labels).any()):
            raise InvalidInputError(f"rows without a label in {name!r} have no cell")
        return np.sort(labels)


def _to_arrow(frame: DataFrame) -> pa.Table:
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    # Before Spark 4 no public function keeps times as they are.
    return pa.Table.from_batches(frame._collect_as_arrow())


def _numbers(column: Any, kind: str) -> NDArray[Any]:
    """Labels of a column as NumPy values; times in UTC, NULLs as zero."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if kind in _TIMES:
        unit = pa.timestamp("us") if kind != "timestamp" else pa.timestamp("us", tz="UTC")
        micros = whole.cast(unit).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return np.asarray(micros).astype("M8[us]")
    if kind == "string":
        return np.asarray(whole.fill_null("").to_pylist(), object)
    return np.asarray(whole.fill_null(0).to_numpy(zero_copy_only=False))


def _write_labels(place: zarr.Group, name: str, labels: NDArray[Any]) -> None:
    attributes: dict[str, Any] = {}
    if labels.dtype.kind == "M":
        whole = labels == labels.astype("M8[s]")
        unit, resolution = ("seconds", "s") if whole.all() else ("microseconds", "us")
        attributes = {"units": f"{unit} since 1970-01-01", "calendar": "proleptic_gregorian"}
        labels = labels.astype(f"M8[{resolution}]").astype(np.int64)
    node = place.create_array(
        name,
        shape=labels.shape,
        chunks=(max(1, len(labels)),),
        dtype=str if labels.dtype == object else labels.dtype,
        dimension_names=(name,),
        attributes=attributes,
    )
    if len(labels):
        node[...] = labels


def _as_stored(labels: NDArray[Any], node: zarr.Array[Any]) -> NDArray[Any]:
    """New labels in the type of a coordinate and, for times, with its epoch."""
    if labels.dtype.kind == "M":
        target = counting(node.attrs.get("units"), node.attrs.get("calendar"))
        own = counting(_MICROS)
        assert isinstance(own, Counting)
        stored = None if target is None else own.again(labels.astype(np.int64), target, node.dtype)
        if stored is None:
            raise InvalidInputError(
                f"{node.path!r} counts {node.attrs.get('units')!r} in {node.dtype}, which cannot "
                "express the times of the frame"
            )
        return stored
    if labels.dtype == object:
        return labels
    stored = labels.astype(node.dtype)
    if not np.array_equal(stored, labels):
        raise InvalidInputError(f"{node.path!r} holds {node.dtype}, which cannot hold the labels")
    return stored


def _chunk_shape(lengths: Sequence[int], given: Sequence[int | None]) -> tuple[int, ...]:
    """The requested chunk lengths; the longest of the others is halved until the chunk fits."""
    shape = [
        max(1, length if one is None else one) for length, one in zip(lengths, given, strict=True)
    ]
    while math.prod(shape) > _CELLS:
        free = [axis for axis, one in enumerate(given) if one is None and shape[axis] > 1]
        if not free:
            break
        axis = max(free, key=lambda axis: shape[axis])
        shape[axis] = -(-shape[axis] // 2)
    return tuple(shape)


def _placed(
    frame: DataFrame,
    table: _Table,
    labels: Mapping[str, NDArray[Any]],
    method: Method,
    tolerance: float | None,
) -> DataFrame:
    """The values of a frame with the position of each row; NULL for rows without a cell."""
    from pyspark.sql import types

    place = _LabelSearch(
        tuple((table.types[name], labels[name]) for name in table.dimensions),
        method,
        tolerance,
    )
    fields = [
        types.StructField(_POSITION.format(n), types.LongType())
        for n in range(len(table.dimensions))
    ]
    chosen = frame.select(*table.dimensions, *table.arrays)
    fields += chosen.schema.fields[len(table.dimensions) :]
    return chosen.mapInArrow(place, types.StructType(fields))


@dataclass(frozen=True, slots=True)
class _LabelSearch:
    """Finds the cells of rows by their labels; travels to executors."""

    labels: tuple[tuple[str, NDArray[Any]], ...]
    method: Method
    tolerance: float | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        finders = [_Finder(kind, labels, self) for kind, labels in self.labels]
        count = len(finders)
        for batch in batches:
            columns = [find(batch.column(n)) for n, find in enumerate(finders)]
            names = [_POSITION.format(n) for n in range(count)] + batch.schema.names[count:]
            yield pa.RecordBatch.from_arrays([*columns, *batch.columns[count:]], names=names)


class _Finder:
    """The labels of one dimension, sorted to be searched."""

    def __init__(self, kind: str, labels: NDArray[Any], how: _LabelSearch) -> None:
        self._kind, self._how = kind, how
        self._order = np.argsort(labels, kind="stable")
        self._sorted = labels[self._order]

    def __call__(self, column: Any) -> pa.Array:
        wanted = _numbers(column, self._kind)
        known = column.is_valid().to_numpy(zero_copy_only=False)
        if not len(self._sorted):
            return pa.nulls(len(wanted), pa.int64())
        after = np.searchsorted(self._sorted, wanted)
        place = np.minimum(after, len(self._sorted) - 1)
        if self._how.method == "nearest" and self._kind != "string":
            before = np.maximum(after - 1, 0)
            near = self._away(wanted, before) <= self._away(wanted, place)
            place = np.where(near, before, place)
            if self._how.tolerance is not None:
                known &= self._away(wanted, place) <= self._how.tolerance
            else:
                known &= ~np.isnan(self._away(wanted, place))
        else:
            known &= np.asarray(self._sorted[place] == wanted, np.bool_)
        return pa.array(self._order[place].astype(np.int64), pa.int64(), mask=~known)

    def _away(self, wanted: NDArray[Any], place: NDArray[np.intp]) -> NDArray[np.float64]:
        """How far away labels are; for times, in seconds."""
        if wanted.dtype.kind == "M":
            micros = (wanted - self._sorted[place]).astype("m8[us]").astype(np.float64)
            return np.asarray(np.abs(micros) / 1e6, np.float64)
        away: NDArray[np.float64] = wanted.astype(np.float64)
        return np.abs(away - self._sorted[place].astype(np.float64))
