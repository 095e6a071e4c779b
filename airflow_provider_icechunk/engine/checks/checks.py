"""Quality checks: closed, frozen values, and pure verdicts over statistics of arrays.

`run` reads the arrays and computes the statistics, chunk by chunk.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from airflow_provider_icechunk.engine.closed import ClosedModel, describe
from airflow_provider_icechunk.exceptions import CheckFailedError, InvalidInputError

CHECKS_KEY = "airflow_provider_icechunk.checks"
"""Snapshot metadata of a commit that published a checked version: the report."""

_SHOWN = 20


class _OfArray(ClosedModel):
    array: str = Field(min_length=1)
    region: dict[str, int | tuple[int, int]] = Field(default_factory=dict)
    """Parts by dimension: a position, or from the first up to but not including the second."""

    @property
    def path(self) -> str:
        """The array's path, from the root."""
        return "/" + self.array.strip("/")


class RangeCheck(_OfArray):
    """No value is outside the limits; missing ones are ignored."""

    check: Literal["range"]
    minimum: float | None = None
    maximum: float | None = None

    @model_validator(mode="after")
    def _limits(self) -> RangeCheck:
        if self.minimum is None and self.maximum is None:
            raise ValueError("pass minimum, maximum or both")
        return self


class MissingCheck(_OfArray):
    """At most a share of the values is missing: NaN, the `_FillValue`, or never written."""

    check: Literal["missing"]
    most: float = Field(ge=0, le=1)


class CompleteCheck(_OfArray):
    """Every step along a dimension has a value that is not missing."""

    check: Literal["complete"]
    dim: str
    least: int | None = Field(default=None, ge=0)
    """The minimum length of the dimension."""


class MonotoneCheck(_OfArray):
    """A coordinate increases (or decreases, or either) throughout, without repeating a value."""

    check: Literal["monotone"]
    direction: Literal["increasing", "decreasing", "any"] = "any"


class DriftCheck(_OfArray):
    """The mean differs from that of a tag or snapshot by at most this many standard deviations."""

    check: Literal["drift"]
    tag: str | None = None
    snapshot_id: str | None = None
    most: float = Field(ge=0)
    reference_region: dict[str, int | tuple[int, int]] = Field(default_factory=dict)
    """Parts of the array there; all of it by default, because positions differ between versions."""

    @model_validator(mode="after")
    def _one_reference(self) -> DriftCheck:
        if (self.tag is None) == (self.snapshot_id is None):
            raise ValueError("pass either tag or snapshot_id")
        return self


class FunctionCheck(ClosedModel):
    """A user's function of the `Dataset`, `module:name`.

    `True` or `None` passes, `False` fails, a text fails with that text.
    """

    check: Literal["function"]
    function: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    arguments: dict[str, Any] = Field(default_factory=dict)
    group: str | None = None


class BlocksCheck(_OfArray):
    """A user's function for each block of an array, `module:name`, called with values and
    position.

    A block is a chunk (with shards, a shard), cut to the region. The function receives the stored
    values, and the first and end position by dimension. It returns the same as in `FunctionCheck`.
    """

    check: Literal["blocks"]
    function: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    arguments: dict[str, Any] = Field(default_factory=dict)


Check = Annotated[
    RangeCheck
    | MissingCheck
    | CompleteCheck
    | MonotoneCheck
    | DriftCheck
    | FunctionCheck
    | BlocksCheck,
    Field(discriminator="check"),
]
_CHECKS: TypeAdapter[list[Check]] = TypeAdapter(list[Check])


def parse_checks(value: Sequence[Mapping[str, Any]] | str) -> list[Check]:
    """The checks from a list or JSON text; raises an error that explains what is wrong."""
    try:
        found = (
            _CHECKS.validate_json(value)
            if isinstance(value, str)
            else _CHECKS.validate_python(list(value))
        )
    except ValidationError as error:
        raise InvalidInputError(f"the checks are invalid: {describe(error)}") from None
    if not found:
        raise InvalidInputError("there are no checks: without any, everything would pass")
    return found


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of the values of a part of an array."""

    cells: int = 0
    valid: int = 0
    """Cells that hold a value, as a reader sees it."""
    unwritten: int = 0
    """Of these, cells of chunks that were never stored: a reader sees the fill value."""
    minimum: float | None = None
    maximum: float | None = None
    mean: float = 0.0
    squares: float = 0.0
    """Sum of the squared distances from the mean."""

    @property
    def share_missing(self) -> float:
        """Share of cells without a value; an empty part has none."""
        return 1 - (self.valid - self.unwritten) / self.cells if self.cells else 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation."""
        return math.sqrt(self.squares / self.valid) if self.valid else 0.0

    def joined(self, other: Statistics) -> Statistics:
        """Of both parts together; stable in any order, whatever their sizes."""
        valid = self.valid + other.valid
        distance = other.mean - self.mean
        share = other.valid / valid if valid else 0.0
        lowest = [one for one in (self.minimum, other.minimum) if one is not None]
        highest = [one for one in (self.maximum, other.maximum) if one is not None]
        return Statistics(
            self.cells + other.cells,
            valid,
            self.unwritten + other.unwritten,
            min(lowest, default=None),
            max(highest, default=None),
            self.mean + distance * share if self.valid else other.mean,
            self.squares + other.squares + distance * distance * self.valid * share,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one check."""

    check: str
    subject: str
    """The array, or the function."""
    passed: bool
    value: Any
    limit: Any
    text: str = ""

    def __str__(self) -> str:
        tail = f": {self.text}" if self.text else ""
        return f"{self.check} of {self.subject}: {_text(self.value)}, limit {self.limit}{tail}"

    def to_json(self) -> dict[str, Any]:
        """As small JSON."""
        entry = {
            "check": self.check,
            "subject": self.subject,
            "passed": self.passed,
            "value": self.value if not isinstance(self.value, float) else _finite(self.value),
            "limit": self.limit,
        }
        return {**entry, "text": self.text} if self.text else entry


def judge_range(check: RangeCheck, found: Statistics) -> Verdict:
    """Whether all values are within the limits; true if there are no values."""
    low = check.minimum if check.minimum is not None else -math.inf
    high = check.maximum if check.maximum is not None else math.inf
    inside = (found.minimum is None or found.minimum >= low) and (
        found.maximum is None or found.maximum <= high
    )
    value = [None if one is None else _finite(one) for one in (found.minimum, found.maximum)]
    return Verdict("range", check.path, inside, value, [check.minimum, check.maximum])


def judge_missing(check: MissingCheck, found: Statistics) -> Verdict:
    """Whether few enough values are missing."""
    share = found.share_missing
    return Verdict("missing", check.path, share <= check.most, share, check.most)


def judge_complete(check: CompleteCheck, empty: Sequence[int], length: int) -> Verdict:
    """Whether each step has a value.

    :param empty: positions without any.
    :param length: of the dimension.
    """
    short = check.least is not None and length < check.least
    shown = ", ".join(map(str, empty[:_SHOWN])) + (", ..." if len(empty) > _SHOWN else "")
    texts = [f"no values at {check.dim} {shown}"] * bool(empty)
    texts += [f"{check.dim} has {length} steps of {check.least}"] * short
    value = {"length": length, "empty": len(empty)}
    limit = {"empty": 0} if check.least is None else {"length": check.least, "empty": 0}
    passed = not (short or empty)
    return Verdict("complete", check.path, passed, value, limit, "; ".join(texts))


def judge_monotone(check: MonotoneCheck, falls: int | None, rises: int | None) -> Verdict:
    """Whether the coordinate keeps its direction.

    :param falls: the first position whose value is not above the one before it, if there is one.
    :param rises: the first one whose value is not below it.
    """
    breaks = {"increasing": falls, "decreasing": rises}
    if check.direction == "any":
        first = None if falls is None or rises is None else max(falls, rises)
    else:
        first = breaks[check.direction]
    text = "" if first is None else f"it breaks at position {first}"
    return Verdict("monotone", check.path, first is None, first, check.direction, text)


def judge_drift(check: DriftCheck, found: Statistics, reference: Statistics) -> Verdict:
    """Whether the mean stayed near that of the reference."""
    if not found.valid or not reference.valid:
        there = "here" if reference.valid else f"in {check.tag or check.snapshot_id}"
        text = f"there is no value {there} to compare"
        return Verdict("drift", check.path, False, None, check.most, text)
    distance = abs(found.mean - reference.mean)
    deviation = reference.deviation
    drift = distance / deviation if deviation else (math.inf if distance else 0.0)
    text = f"mean {found.mean:.6g}, in {check.tag or check.snapshot_id} {reference.mean:.6g}"
    return Verdict("drift", check.path, drift <= check.most, drift, check.most, text)


def judge_function(check: FunctionCheck, answer: object) -> Verdict:
    """The result of a user's function."""
    passed, text = understood(check.function, answer)
    return Verdict("function", check.function, passed, passed, True, text)


def judge_blocks(check: BlocksCheck, blocks: int, failed: Sequence[tuple[str, str]]) -> Verdict:
    """Whether a user's function accepted every block.

    :param failed: position and text of those it rejected.
    """
    shown = "; ".join(f"{place}: {text}" if text else place for place, text in failed[:_SHOWN])
    more = f"; {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
    value = {"blocks": blocks, "failed": len(failed)}
    subject = f"{check.path} by {check.function}"
    return Verdict("blocks", subject, not failed, value, {"failed": 0}, shown + more)


def understood(function: str, answer: object) -> tuple[bool, str]:
    """Whether a user's function passes, and its text if it does not."""
    if answer is not None and not isinstance(answer, bool | str):
        kind = type(answer).__name__
        # NumPy and Xarray have truth values of their own, each a single value that bool() accepts.
        if kind not in ("bool_", "bool", "DataArray"):
            raise InvalidInputError(
                f"{function} returned a {kind}: True or None passes, False or a text fails"
            )
        answer = bool(answer)
    return answer is None or answer is True, (answer if isinstance(answer, str) else "")[:500]


def report_of(verdicts: Sequence[Verdict], snapshot_id: str) -> dict[str, Any]:
    """All verdicts as small JSON."""
    return {
        "snapshot_id": snapshot_id,
        "passed": all(one.passed for one in verdicts),
        "checks": [one.to_json() for one in verdicts],
    }


def refusal(verdicts: Sequence[Verdict], report: Mapping[str, Any]) -> CheckFailedError:
    """The error for checks that failed; names each with array, value and limit."""
    failed = [one for one in verdicts if not one.passed]
    lines = "; ".join(map(str, failed[:_SHOWN]))
    return CheckFailedError(
        f"{len(failed)} of {len(verdicts)} checks of snapshot {report['snapshot_id']} failed: "
        f"{lines}",
        report=dict(report),
    )


def check_report(value: Mapping[str, Any] | str, snapshot_id: str) -> dict[str, Any]:
    """A report that came from another task, if it lets the snapshot pass."""
    try:
        report = json.loads(value) if isinstance(value, str) else dict(value)
        about, passed = report["snapshot_id"], report["passed"]
    except (ValueError, KeyError, TypeError):
        raise InvalidInputError("checks must be what IcechunkCheckOperator returned") from None
    if about != snapshot_id:
        raise InvalidInputError(
            f"the checks are about snapshot {about}, and {snapshot_id} is to be published: check "
            "that one, or pass the checked one as snapshot_id"
        )
    if passed is not True:
        raise CheckFailedError(
            f"snapshot {snapshot_id} failed its checks and is not published", report=report
        )
    return dict(report)


def _finite(value: float) -> float | str:
    """A number that JSON can express, or its name."""
    return value if math.isfinite(value) else str(value)


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
