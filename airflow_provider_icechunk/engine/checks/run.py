"""Run checks on a snapshot: values are read chunk by chunk, and only statistics are kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import zarr

from airflow_provider_icechunk.engine.arrays.regions import (
    by_axis,
    dimension_names,
    plan_box,
    show,
    slices,
    span_of,
)
from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.xarray_io.datasets import open_dataset
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, NotFoundError, TaskError

from . import checks as values
from .checks import Check, Statistics, Verdict

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.repository import Repository
    from airflow_provider_icechunk.engine.sessions.session import Session

Span = tuple[int, int]
Box = tuple[Span, ...]

_AT_ONCE = 4
_BATCH = 64
_NUMBERS = "biuf"


class Spread(Protocol):
    """Runs the work on many blocks of an array somewhere else, such as on Spark."""

    def __call__(
        self, part: ArrayPart, name: str, arguments: Sequence[Any], blocks: int
    ) -> Iterable[str]:
        """`ArrayPart.run` of all blocks, in parts of any size, in the order of the blocks."""
        ...


def run_checks(
    repository: Repository,
    session: Session,
    wanted: Sequence[Check],
    *,
    spread: Spread | None = None,
) -> tuple[list[Verdict], dict[str, Any]]:
    """All verdicts about the snapshot of a session, and the report of them.

    :param spread: what examines the blocks of arrays; by default this process. The values are the
        same: the results of blocks are combined here, in their order.
    """
    seen: dict[tuple[str, str, Box], Statistics] = {}

    def part_of(at: Session, path: str, region: Mapping[str, Any]) -> ArrayPart:
        return ArrayPart.of(at, path, region, spread)

    def statistics(at: Session, path: str, region: Mapping[str, Any]) -> Statistics:
        part = part_of(at, path, region)
        key = (at.snapshot_id, path, part.box)
        if key not in seen:
            seen[key] = part.statistics()
        return seen[key]

    verdicts = []
    for check in wanted:
        match check:
            case values.RangeCheck():
                found = statistics(session, check.path, check.region)
                verdicts.append(values.judge_range(check, found))
            case values.MissingCheck():
                found = statistics(session, check.path, check.region)
                verdicts.append(values.judge_missing(check, found))
            case values.CompleteCheck():
                part = part_of(session, check.path, check.region)
                verdicts.append(values.judge_complete(check, *part.empty_steps(check.dim)))
            case values.MonotoneCheck():
                part = part_of(session, check.path, check.region)
                verdicts.append(values.judge_monotone(check, *part.breaks()))
            case values.DriftCheck():
                then = repository.readonly_session(tag=check.tag, snapshot_id=check.snapshot_id)
                found = statistics(session, check.path, check.region)
                before = statistics(then, check.path, check.reference_region)
                verdicts.append(values.judge_drift(check, found, before))
            case values.FunctionCheck():
                answer = own_function(check.function)(
                    open_dataset(session, check.group), **check.arguments
                )
                verdicts.append(values.judge_function(check, answer))
            case values.BlocksCheck():
                part = part_of(session, check.path, check.region)
                own_function(check.function)
                failed = part.refused(check.function, check.arguments)
                verdicts.append(values.judge_blocks(check, part.count, failed))
    return verdicts, values.report_of(verdicts, session.snapshot_id)


class ArrayPart:
    """A part of a stored array, read one chunk (or shard) at a time."""

    def __init__(
        self,
        session: Session,
        array: zarr.Array[Any],
        path: str,
        box: Box,
        spread: Spread | None = None,
    ) -> None:
        self.session = session
        self._spread = spread
        self.array = array
        self.path = path
        self.box = box
        self._unit = tuple(array.shards or array.chunks)
        self._planned: list[Box] | None = None
        attributes = dict(array.attrs)
        self._scale = float(attributes.get("scale_factor", 1))  # type: ignore[arg-type]
        self._offset = float(attributes.get("add_offset", 0))  # type: ignore[arg-type]
        self._marks = [
            mark
            for name in ("_FillValue", "missing_value")
            if isinstance(mark := attributes.get(name), int | float)
        ]

    @classmethod
    def of(
        cls,
        session: Session,
        path: str,
        region: Mapping[str, Any],
        spread: Spread | None = None,
    ) -> ArrayPart:
        """The part that a check names; refuses one outside the array."""
        session.tree.array(path)
        array = zarr.open_array(session.store, path=path.strip("/"), mode="r")
        names = dimension_names(array)
        chosen = by_axis(region, names, path)
        box = tuple(
            span_of(chosen.get(axis, (0, length)), names[axis], length)
            for axis, length in enumerate(array.shape)
        )
        return cls(session, array, path, box, spread)

    def statistics(self) -> Statistics:
        """Statistics of all values of the part, scaled by the attributes."""
        if self.array.dtype.kind not in _NUMBERS:
            raise InvalidInputError(
                f"{self.path} has the type {self.array.dtype}, but this check needs numbers"
            )
        found = (Statistics(*one) for one in self._each("statistics"))
        return reduce(Statistics.joined, found, Statistics())

    def empty_steps(self, dim: str) -> tuple[list[int], int]:
        """Positions along a dimension without any value, and its length."""
        (axis,) = by_axis({dim: None}, dimension_names(self.array), self.path)
        start, stop = self.box[axis]
        filled = np.zeros(stop - start, dtype=bool)
        for low, steps in self._each("filled_steps", axis):
            there = np.frombuffer(steps.encode(), np.uint8) == ord("1")
            filled[low - start : low - start + len(there)] |= there
        return (np.flatnonzero(~filled) + start).tolist(), int(self.array.shape[axis])

    def refused(self, function: str, arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Positions of blocks that a user's function rejects, and its reasons."""
        return [
            (place, text) for place, text in filter(None, self._each("own", function, arguments))
        ]

    @property
    def count(self) -> int:
        """The number of blocks."""
        return len(self._blocks())

    def run(self, name: str, arguments: Sequence[Any], first: int, stop: int) -> str:
        """The result of the named work on some blocks, as JSON that keeps every bit of floats."""
        work = partial(_WORK[name], self, *arguments)
        return json.dumps(run_all(work, self._blocks()[first:stop], at_once=_AT_ONCE))

    def breaks(self) -> tuple[int | None, int | None]:
        """The first positions at which values do not rise, and do not fall."""
        if self.array.ndim != 1:
            raise InvalidInputError(
                f"{self.path} has {self.array.ndim} dimensions, but a coordinate has one"
            )
        falls: int | None = None
        rises: int | None = None
        last: Any = None
        for ((start, stop),) in self._blocks():
            block = np.asarray(self.array[start:stop])
            # With the value before, so that a break between two chunks is detected as well.
            line = block if last is None else np.concatenate([last, block])
            first = start - (0 if last is None else 1)
            for number, good in enumerate((line[1:] > line[:-1], line[1:] < line[:-1])):
                bad = np.flatnonzero(~good)
                if len(bad):
                    place = first + 1 + int(bad[0])
                    if number == 0 and falls is None:
                        falls = place
                    elif number == 1 and rises is None:
                        rises = place
            last = block[-1:]
        return falls, rises

    def _blocks(self) -> list[Box]:
        if self._planned is None:
            chunks = [max(1, length) for length in self._unit]
            self._planned = list(plan_box(self.box, chunks, sys.maxsize))
        return self._planned

    def _each(self, name: str, *arguments: Any) -> Iterator[Any]:
        """The result of the named work on each block, in order, never all at once."""
        count = len(self._blocks())
        if self._spread is not None and count:
            for answer in self._spread(self, name, arguments, count):
                yield from json.loads(answer)
            return
        for start in range(0, count, _BATCH):
            yield from json.loads(self.run(name, arguments, start, start + _BATCH))

    def _is_stored(self, block: Box) -> bool:
        index = tuple(
            start // max(1, length) for (start, _), length in zip(block, self._unit, strict=True)
        )
        return self.session.tree.chunk(self.path, index) is not None

    def _values(self, block: Box) -> tuple[Any, Any]:
        """The values of a chunk, and which of them are present."""
        found = np.asarray(self.array[slices(block)])
        there = np.ones(found.shape, dtype=bool)
        if found.dtype.kind in "fc":
            there &= ~np.isnan(found)
        elif found.dtype.kind in "mM":
            there &= ~np.isnat(found)
        for mark in self._marks:
            if found.dtype.kind in _NUMBERS:
                there &= found != np.asarray(mark).astype(found.dtype)
        return found, there

    def _block_statistics(self, block: Box) -> tuple[Any, ...]:
        """The fields of `Statistics`."""
        found, there = self._values(block)
        kept = found[there]
        count = int(kept.size)
        unwritten = 0 if count == 0 or self._is_stored(block) else count
        if count == 0:
            return (int(found.size),)
        real = kept.astype(np.float64)
        if (self._scale, self._offset) != (1.0, 0.0):
            real = real * self._scale + self._offset
        with np.errstate(invalid="ignore", over="ignore"):
            mean = float(real.mean())
            squares = float(np.square(real - mean).sum())
        return (
            int(found.size),
            count,
            unwritten,
            float(real.min()),
            float(real.max()),
            mean,
            squares,
        )

    def _filled_steps(self, axis: int, block: Box) -> tuple[int, str]:
        """The first position of a block along a dimension, and `1` for each that has a value."""
        start, stop = block[axis]
        if not self._is_stored(block):
            return start, "0" * (stop - start)
        _, there = self._values(block)
        steps = there.any(axis=tuple(other for other in range(there.ndim) if other != axis))
        return start, "".join("1" if one else "0" for one in steps.tolist())

    def _own(
        self, function: str, arguments: Mapping[str, Any], block: Box
    ) -> tuple[str, str] | None:
        region = dict(zip(dimension_names(self.array), block, strict=True))
        found = np.asarray(self.array[slices(block)])
        own = own_function(function)
        try:
            answer = own(found, region, **arguments)
        except Exception as error:  # the user's own code may raise anything
            where = f"{show(block)} of {self.path}"
            what = f"{type(error).__name__}: {error}"
            raise TaskError(f"{function} raised {what}, for {where}") from error
        passed, text = values.understood(function, answer)
        return None if passed else (show(block), text)


_WORK: dict[str, Callable[..., Any]] = {
    "statistics": ArrayPart._block_statistics,
    "filled_steps": ArrayPart._filled_steps,
    "own": ArrayPart._own,
}


def own_function(name: str) -> Callable[..., Any]:
    """The function of a check, by `module:name`."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise NotFoundError(
            f"the check {name!r} cannot be imported: {error}", kind=Kind.NODE_NOT_FOUND
        ) from error
    if not callable(found):
        raise InvalidInputError(f"the check {name!r} is not a function")
    return found  # type: ignore[no-any-return]
