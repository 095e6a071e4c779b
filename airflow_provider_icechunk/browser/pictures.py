"""Pictures of arrays: few values from few chunks, whatever the size of the array.

A screen has a few hundred rows and columns. If the positions to show are in more chunks than a
request may decode, evenly spaced chunks are left out, and the response says so.
"""

from __future__ import annotations

import base64
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from airflow_provider_icechunk.api import Repository, Session
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document
from airflow_provider_icechunk.exceptions import (
    IcechunkError,
    InvalidInputError,
    Kind,
    StorageError,
    UnsupportedError,
)

from .arrays import (
    attributes_of,
    cell_of,
    document_of,
    drawable,
    find_array,
    find_coordinate,
    item_size,
    open_version,
    text_of,
)
from .decoding import bytes_at_once, guarded
from .models import Cell, Comparison, Picture, PictureAxis, ShownStatistics, cut

MOST_SIDE = 1_024
_MOST_DECODED = 64 << 20
"""Bytes of the chunks that one picture decodes."""
_MOST_CHUNKS = 2_048
_MOST_ROWS = 200
_AT_ONCE = 4
_PATIENCE = 10.0
_SECONDS = {
    "days": 86_400.0, "day": 86_400.0, "hours": 3_600.0, "hour": 3_600.0, "minutes": 60.0,
    "minute": 60.0, "seconds": 1.0, "second": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6,
    "nanoseconds": 1e-9,
}  # fmt: skip
_slots = threading.BoundedSemaphore(_AT_ONCE)


@dataclass(frozen=True, slots=True)
class PicturePart:
    """Which part of an array to draw."""

    rows: int | None = None
    columns: int | None = None
    at: tuple[int, ...] = ()
    """Positions along all dimensions; those of rows and columns do not count."""
    height: int = 360
    width: int = 640
    box: tuple[int, int, int, int] | None = None
    """First row, end of rows, first column, end of columns: the part zoomed into."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The positions of a picture along one dimension, and their chunks."""

    indices: NDArray[np.int64]
    chunks: int
    all_chunks: int


@contextmanager
def taking_turns() -> Iterator[None]:
    """Only a few pictures are decoded at once: their memory adds up."""
    if not _slots.acquire(timeout=_PATIENCE):
        raise StorageError(
            "too many pictures are being drawn at the moment: try again",
            kind=Kind.STORAGE_THROTTLED,
        )
    try:
        yield
    finally:
        _slots.release()


def sample(start: int, stop: int, chunk: int, most: int, most_chunks: int) -> Sampling:
    """At most `most` positions out of at most `most_chunks` chunks, evenly spread. Pure."""
    first, last = start // chunk, (stop - 1) // chunk
    all_chunks = last - first + 1
    count = min(most, stop - start)
    if all_chunks <= most_chunks:
        indices = start + np.arange(count, dtype=np.int64) * (stop - start) // count
        touched = len(np.unique(indices // chunk))
        return Sampling(indices, touched, all_chunks)
    kept = first + (np.arange(most_chunks, dtype=np.int64) * 2 + 1) * all_chunks // (
        2 * most_chunks
    )
    each = max(1, count // most_chunks)
    parts = []
    for number in kept.tolist():
        low, high = max(start, number * chunk), min(stop, (number + 1) * chunk)
        some = min(each, high - low)
        parts.append(low + np.arange(some, dtype=np.int64) * (high - low) // some)
    return Sampling(np.concatenate(parts), most_chunks, all_chunks)


def plan(
    spans: Sequence[tuple[int, int]],
    chunks: Sequence[int],
    sides: Sequence[int],
    chunk_bytes: int,
) -> list[Sampling]:
    """The positions along one or two dimensions, within the limits of a request. Pure."""
    allowed = max(1, min(_MOST_CHUNKS, _MOST_DECODED // max(1, chunk_bytes)))
    counts = [
        min(side, (stop - 1) // chunk - start // chunk + 1)
        for (start, stop), chunk, side in zip(spans, chunks, sides, strict=True)
    ]
    if math.prod(counts) > allowed:
        shrink = (allowed / math.prod(counts)) ** (1 / len(counts))
        counts = [max(1, int(count * shrink)) for count in counts]
    return [
        sample(start, stop, chunk, side, count)
        for (start, stop), chunk, side, count in zip(spans, chunks, sides, counts, strict=True)
    ]


class Canvas:
    """One array of one version, ready to be drawn."""

    def __init__(self, session: Session, path: str) -> None:
        self.session = session
        self.node = find_array(session, path)
        self.document = document_of(self.node)
        self.shape = array_document(self.node).shape
        self.kind = drawable(self.document, self.shape)
        self.attributes = attributes_of(self.document)

    def open(self) -> zarr.Array[Any]:
        """The array, unless a single chunk of it is too large for a page."""
        if array_document(self.node).chunk_counts is not None:
            raise UnsupportedError("arrays whose chunks have different lengths are not drawn")
        try:
            array = guarded(
                zarr.open_array(self.session.store, path=self.node.path.strip("/"), mode="r")
            )
        except IcechunkError:
            raise
        except Exception as error:  # noqa: BLE001 - Zarr raises all kinds of errors for a strange document
            raise UnsupportedError(
                f"{self.node.path} cannot be opened by Zarr: {type(error).__name__}: "
                f"{cut(str(error), 300)}"
            ) from None
        if self.chunk_bytes(array) > _MOST_DECODED:
            raise StorageError(
                f"one chunk of {self.node.path} has {self.chunk_bytes(array) >> 20} MiB, and a "
                f"page decodes {_MOST_DECODED >> 20} MiB at most: use Xarray",
                kind=Kind.LIMIT_EXCEEDED,
            )
        return array

    def chunk_bytes(self, array: zarr.Array[Any]) -> int:
        """Bytes of one decoded chunk."""
        return bytes_at_once(array, item_size(self.document))

    def name(self, axis: int) -> str:
        """The name of a dimension."""
        names = array_document(self.node).dimension_names
        return cut((names[axis] if names else None) or f"dim {axis}", 200)

    def labels(self, axis: int, indices: NDArray[np.int64]) -> tuple[list[str], str | None]:
        """The labels of positions and their units; positions where there is no coordinate."""
        names = array_document(self.node).dimension_names
        name = names[axis] if names else None
        plain = [str(one) for one in indices.tolist()]
        coordinate = name and find_coordinate(self.session, self.node, name, self.shape[axis])
        if not coordinate or coordinate.path == self.node.path:
            return plain, None
        try:
            other = Canvas(self.session, coordinate.path)
            array = other.open()
            if math.prod(array.shape) * item_size(other.document) > _MOST_DECODED:
                return plain, None
            found = np.asarray(array.oindex[indices] if len(indices) else [])
        except (IcechunkError, ValueError, TypeError, IndexError):
            return plain, None
        units = text_of(other.attributes, "units")
        times = cf_times(found, units, other.attributes.get("calendar"))
        if times is not None:
            return times, None
        return [_label(one) for one in found.tolist()], units


def cf_times(values: NDArray[Any], units: str | None, calendar: object) -> list[str] | None:
    """Numbers with units such as `hours since 2000-01-01` as times; `None` for others. Pure."""
    if values.dtype.kind == "M":
        return [str(one) for one in np.datetime_as_string(values, unit="auto").tolist()]
    if calendar not in (None, "standard", "gregorian", "proleptic_gregorian"):
        return None
    unit, since, start = (units or "").partition(" since ")
    if not since or unit.strip().lower() not in _SECONDS or values.dtype.kind not in "iuf":
        return None
    try:
        origin = datetime.fromisoformat(start.strip().removesuffix(" UTC"))
        origin = origin if origin.tzinfo else origin.replace(tzinfo=UTC)
        step = _SECONDS[unit.strip().lower()]
        found = [origin + timedelta(seconds=float(one) * step) for one in values.tolist()]
    except (ValueError, OverflowError):
        return None
    whole = all(one.hour == one.minute == one.second == 0 for one in found)
    return [one.strftime("%Y-%m-%d" if whole else "%Y-%m-%d %H:%M:%S") for one in found]


def _label(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else cut(str(value), 100)


def draw(repository: Repository, version: str, path: str, wanted: PicturePart) -> Picture:
    """Two dimensions of an array as an image, one as a line, texts as a table."""
    picture, _ = _draw(open_version(repository, version), path, wanted)
    return picture


def _draw(session: Session, path: str, wanted: PicturePart) -> tuple[Picture, NDArray[Any]]:
    canvas = Canvas(session, path)
    if canvas.kind == "none":
        raise InvalidInputError(
            f"{canvas.node.path} has no values: one of its dimensions has length 0"
        )
    with taking_turns():
        array = canvas.open()
        axes = _axes(canvas, wanted)
        at = list(wanted.at) or [0] * len(canvas.shape)
        _check_position(canvas, at, skip=axes)
        spans = _spans(canvas, axes, wanted)
        most = [wanted.height, wanted.width][2 - len(axes) :]
        if canvas.kind == "table":
            most = [min(one, _MOST_ROWS) for one in most]
        sides = plan(spans, [array.chunks[a] for a in axes], most, canvas.chunk_bytes(array))
        selection: list[Any] = list(at)
        for axis, side in zip(axes, sides, strict=True):
            selection[axis] = side.indices
        values = _read(array, selection, axes)
        pictured = [
            PictureAxis(
                name=canvas.name(axis),
                units=(named := canvas.labels(axis, side.indices))[1],
                indices=side.indices.tolist(),
                labels=named[0],
            )
            for axis, side in zip(axes, sides, strict=True)
        ]
        fixed = {
            canvas.name(axis): canvas.labels(axis, np.asarray([at[axis]]))[0][0]
            for axis in range(len(canvas.shape))
            if axis not in axes
        }
    whole = math.prod(side.all_chunks for side in sides)
    read = math.prod(side.chunks for side in sides)
    texts = _texts(values) if canvas.kind == "table" or values.dtype.kind not in "biufc" else []
    numbers = np.zeros(0) if texts else scaled(values, canvas.attributes)
    return (
        Picture(
            snapshot_id=session.snapshot_id,
            path=canvas.node.path,
            kind="table" if texts and axes else canvas.kind,
            rows=pictured[0] if len(pictured) == 2 else None,
            columns=pictured[-1] if pictured else None,
            fixed=fixed,
            values=encode(numbers),
            texts=texts,
            statistics=statistics(numbers)
            if not texts
            else ShownStatistics(count=len(texts), missing=0),
            units=text_of(canvas.attributes, "units"),
            long_name=text_of(canvas.attributes, "long_name"),
            chunks_read=read,
            chunks_total=whole,
            sampled=any(side.chunks < side.all_chunks for side in sides),
        ),
        numbers,
    )


def _axes(canvas: Canvas, wanted: PicturePart) -> list[int]:
    """The dimensions of a picture: the requested ones, or the last two."""
    ndim = len(canvas.shape)
    if canvas.kind == "value":
        return []
    if ndim == 1 or canvas.kind == "table":
        return [
            wanted.columns if wanted.columns is not None and wanted.columns < ndim else ndim - 1
        ]
    if wanted.rows is None and wanted.columns is not None:
        return [_axis(canvas, wanted.columns)]
    rows = ndim - 2 if wanted.rows is None else _axis(canvas, wanted.rows)
    columns = ndim - 1 if wanted.columns is None else _axis(canvas, wanted.columns)
    if rows == columns:
        raise InvalidInputError("rows and columns are the same dimension")
    return [rows, columns]


def _axis(canvas: Canvas, axis: int) -> int:
    if not 0 <= axis < len(canvas.shape):
        raise InvalidInputError(
            f"{canvas.node.path} has {len(canvas.shape)} dimensions, but no dimension {axis}"
        )
    return axis


def _check_position(canvas: Canvas, at: Sequence[int], skip: Sequence[int] = ()) -> None:
    if len(at) != len(canvas.shape):
        raise InvalidInputError(
            f"{canvas.node.path} has {len(canvas.shape)} dimensions, {len(at)} positions were given"
        )
    for axis, (position, length) in enumerate(zip(at, canvas.shape, strict=True)):
        if axis not in skip and not 0 <= position < length:
            raise InvalidInputError(
                f"{canvas.name(axis)} has {length} positions, but no position {position}"
            )


def _spans(canvas: Canvas, axes: Sequence[int], wanted: PicturePart) -> list[tuple[int, int]]:
    whole = [(0, canvas.shape[axis]) for axis in axes]
    if wanted.box is None or not axes:
        return whole
    given = [wanted.box[:2], wanted.box[2:]][2 - len(axes) :]
    for (start, stop), (_, length) in zip(given, whole, strict=True):
        if not 0 <= start < stop <= length:
            raise InvalidInputError(f"{start} to {stop} is not within 0 to {length}")
    return [(start, stop) for start, stop in given]


def _read(array: zarr.Array[Any], selection: list[Any], axes: Sequence[int]) -> NDArray[Any]:
    try:
        found = np.asarray(array.oindex[tuple(selection)] if selection else array[...])
    except IcechunkError:
        raise
    except Exception as error:  # noqa: BLE001 - a codec may raise anything for bytes that are not its own
        raise StorageError(
            f"the chunks of /{array.path} cannot be decoded: {type(error).__name__}: "
            f"{cut(str(error), 300)}",
            kind=Kind.OBJECT_MISSING if isinstance(error, FileNotFoundError) else None,
        ) from None
    return found.T if list(axes) != sorted(axes) else found


def scaled(values: NDArray[Any], attributes: dict[str, Any]) -> NDArray[np.float64]:
    """Numbers decoded by their CF attributes, with NaN for missing values. Pure."""
    real = np.abs(values) if values.dtype.kind == "c" else values
    numbers = real.astype(np.float64)
    for name in ("_FillValue", "missing_value"):
        mark = attributes.get(name)
        if isinstance(mark, int | float) and values.dtype.kind in "iuf":
            with np.errstate(over="ignore"):
                numbers[values == np.asarray(mark, np.float64).astype(values.dtype)] = np.nan
    scale, offset = (attributes.get(name) for name in ("scale_factor", "add_offset"))
    if isinstance(scale, int | float):
        numbers = numbers * float(scale)
    if isinstance(offset, int | float):
        numbers = numbers + float(offset)
    return numbers


def statistics(numbers: NDArray[np.float64]) -> ShownStatistics:
    """Statistics of the present values. Pure."""
    there = numbers[np.isfinite(numbers)]
    missing = int(numbers.size - there.size)
    if not there.size:
        return ShownStatistics(count=0, missing=missing)
    return ShownStatistics(
        count=int(there.size),
        missing=missing,
        minimum=float(there.min()),
        maximum=float(there.max()),
        mean=float(there.mean()),
        deviation=float(there.std()),
    )


def encode(numbers: NDArray[np.float64]) -> str:
    """Base64 of little-endian 32-bit floats."""
    with np.errstate(over="ignore"):
        return base64.b64encode(numbers.astype("<f4").tobytes()).decode()


def _texts(values: NDArray[Any]) -> list[str]:
    flat = values.reshape(-1)[:_MOST_ROWS]
    if values.dtype.kind in "mM":
        return [str(one) for one in flat]
    return [
        cut(one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one), 1_000)
        for one in flat.tolist()
    ]


def compare(
    repository: Repository, left: str, right: str, path: str, wanted: PicturePart
) -> Comparison:
    """An array in two versions, and right minus left where both can be subtracted."""
    before, old = _draw(open_version(repository, left), path, wanted)
    after, new = _draw(open_version(repository, right), path, wanted)
    if before.texts or after.texts:
        return Comparison(left=before, right=after, difference=None, reason="these are not numbers")
    sides = [(side and side.indices) for one in (before, after) for side in (one.rows, one.columns)]
    if old.shape != new.shape or sides[:2] != sides[2:]:
        return Comparison(
            left=before,
            right=after,
            difference=None,
            reason="the array has another shape in the two versions",
        )
    with np.errstate(invalid="ignore"):
        change = new - old
    difference = after.model_copy(
        update={"values": encode(change), "statistics": statistics(change)}
    )
    return Comparison(left=before, right=after, difference=difference)


def read_cell(repository: Repository, version: str, path: str, at: tuple[int, ...]) -> Cell:
    """One value, its chunk, and where that chunk is stored."""
    session = open_version(repository, version)
    canvas = Canvas(session, path)
    _check_position(canvas, at)
    labels = {
        canvas.name(axis): canvas.labels(axis, np.asarray([position]))[0][0]
        for axis, position in enumerate(at)
    }
    with taking_turns():
        value: object
        try:
            found = canvas.open()[at] if at else canvas.open()[...]
            plain = np.asarray(found)
            # As a scalar of its own type: a 32-bit float does not have 17 digits.
            value = str(plain[()]) if plain.dtype.kind in "mMSUTObiufc" else plain.item()
        except (IcechunkError, ValueError, TypeError) as error:
            # Its location is useful even if it cannot be read.
            value = f"cannot be read: {error}"
    return cell_of(session, canvas.node, at, value, labels)
