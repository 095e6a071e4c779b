"""Conditions on nodes and dimensions: which manifests to preload, which arrays to split and how.

A condition is a small expression over a node's path and name. Patterns may match anywhere in the
text. They come from stored configurations, and the standard library can need exponential time for a
malicious one, so they are run by RE2, from the extra `patterns`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

from airflow_provider_icechunk.engine.display import Made, as_code, official_name
from airflow_provider_icechunk.engine.format.names import base_name
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, UnsupportedError

from .settings import U32, Settings

COORDINATE_NAMES = (
    r"^(t|time|date|year|month|week|day|hour|min)[0-9]*$"
    r"|^(x|y|z|i|j|ni|nj|lat|lon|latitude|longitude|nlat|nlon|rlat|rlon)[0-9]*$"
    r"|^(level|lev|depth|height|altitude|pressure|isobaric|sigma)[a-z_]*[0-9]*$"
)
"""Usual names of coordinates; the only pattern that works without RE2."""


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one part holds."""

    parts: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every part holds."""

    parts: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class PathMatches:
    """The pattern is found in the absolute path of the node."""

    regex: str


@dataclass(frozen=True, slots=True)
class NameMatches:
    """The pattern is found in the last segment of the path."""

    regex: str


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range of numbers."""

    value: int
    included: bool


@dataclass(frozen=True, slots=True)
class NumRefs:
    """The number of references is between the bounds; `None` means no bound."""

    lower: Bound | None
    upper: Bound | None


@dataclass(frozen=True, slots=True)
class Always:
    """Always holds."""


@dataclass(frozen=True, slots=True)
class Never:
    """Never holds."""


Rule = AnyOf | AllOf | PathMatches | NameMatches | NumRefs | Always | Never


def rule_holds(rule: Rule, path: str, num_refs: int = 0) -> bool:
    """Whether `rule` holds for the node at `path` whose manifest has `num_refs` references."""
    match rule:
        case AnyOf(parts):
            return any(rule_holds(part, path, num_refs) for part in parts)
        case AllOf(parts):
            return all(rule_holds(part, path, num_refs) for part in parts)
        case PathMatches(regex):
            return pattern_found(regex, path)
        case NameMatches(regex):
            return path != "/" and pattern_found(regex, base_name(path))
        case NumRefs(lower, upper):
            above = lower is None or num_refs >= lower.value + (not lower.included)
            below = upper is None or num_refs <= upper.value - (not upper.included)
            return above and below
        case Always():
            return True
        case Never():
            return False


def pattern_found(pattern: str, text: str) -> bool:
    """Whether `pattern` is found in `text`.

    A pattern that RE2 does not support matches nothing, like an invalid one in the official
    library; a warning names it.
    """
    if pattern == COORDINATE_NAMES:
        return re.search(pattern, text) is not None
    compiled = _compiled(pattern)
    return compiled is not None and compiled.search(_utf8(text)) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> Any:
    try:
        import re2
    except ImportError:
        raise UnsupportedError(
            f"the configuration has a condition with the pattern {pattern[:100]!r}, and patterns "
            'need RE2: pip install "airflow-provider-icechunk[patterns]"'
        ) from None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(_utf8(pattern), options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")[:100]
        warnings.warn(
            f"the pattern {pattern[:100]!r} in the configuration matches nothing: {reason}",
            stacklevel=4,
        )
        return None


def _utf8(text: str) -> bytes:
    # JSON can contain lone surrogates, which plain UTF-8 cannot.
    return text.encode(errors="surrogatepass")


@dataclass(frozen=True, slots=True, repr=False)
class _Condition:
    rule: Rule

    def __repr__(self) -> str:
        return _code(type(self), self.rule)

    @classmethod
    def or_conditions(cls, conditions: Iterable[Self]) -> Self:
        """Holds if one of `conditions` does."""
        return cls(AnyOf(tuple(condition.rule for condition in conditions)))

    @classmethod
    def and_conditions(cls, conditions: Iterable[Self]) -> Self:
        """Holds if all of `conditions` do."""
        return cls(AllOf(tuple(condition.rule for condition in conditions)))

    @classmethod
    def path_matches(cls, regex: str) -> Self:
        """Holds if `regex` is found in the absolute path."""
        return cls(PathMatches(regex))

    @classmethod
    def name_matches(cls, regex: str) -> Self:
        """Holds if `regex` is found in the name, the last segment of the path."""
        return cls(NameMatches(regex))

    def __or__(self, other: Self) -> Self:
        return type(self)(AnyOf((self.rule, other.rule)))

    def __and__(self, other: Self) -> Self:
        return type(self)(AllOf((self.rule, other.rule)))


@dataclass(frozen=True, slots=True, repr=False)
class ManifestPreloadCondition(_Condition):
    """Which manifests to load when a session opens."""

    @classmethod
    def num_refs(cls, from_refs: int | None, to_refs: int | None) -> Self:
        """Holds for manifests with at least `from_refs` and fewer than `to_refs` references."""
        return cls(
            NumRefs(
                None if from_refs is None else Bound(from_refs, included=True),
                None if to_refs is None else Bound(to_refs, included=False),
            )
        )

    @classmethod
    def true(cls) -> Self:
        """Always holds."""
        return cls(Always())

    @classmethod
    def false(cls) -> Self:
        """Never holds."""
        return cls(Never())

    def matches(self, path: str, num_refs: int) -> bool:
        """Whether to preload the manifest of the array at `path`."""
        return rule_holds(self.rule, path, num_refs)


@dataclass(frozen=True, slots=True, repr=False)
class ManifestSplitCondition(_Condition):
    """Which arrays a splitting rule applies to."""

    @classmethod
    def AnyArray(cls) -> Self:  # noqa: N802 - the official name
        """Holds for every array."""
        return cls(Always())

    def matches(self, path: str) -> bool:
        """Whether the rule applies to the array at `path`."""
        return rule_holds(self.rule, path)


def _code(cls: type, rule: Rule) -> str:
    """The calls that make a condition."""
    name = official_name(cls)
    match rule:
        case AnyOf(parts):
            return f"{name}.or_conditions([{', '.join(_code(cls, part) for part in parts)}])"
        case AllOf(parts):
            return f"{name}.and_conditions([{', '.join(_code(cls, part) for part in parts)}])"
        case PathMatches(regex):
            return f"{name}.path_matches({as_code(regex)})"
        case NameMatches(regex):
            return f"{name}.name_matches({as_code(regex)})"
        case NumRefs(lower, upper):
            first = None if lower is None else lower.value + (not lower.included)
            end = None if upper is None else upper.value + upper.included
            return f"{name}.num_refs({first}, {end})"
        case Always():
            return f"{name}.AnyArray()" if hasattr(cls, "AnyArray") else f"{name}.true()"
        case Never():
            return f"{name}.false()"


class ManifestSplitDimCondition:
    """Which dimensions of an array a split size applies to."""

    @dataclass(frozen=True, slots=True, repr=False)
    class Axis(Made):
        """The dimension with this number."""

        axis: int

    @dataclass(frozen=True, slots=True, repr=False)
    class DimensionName(Made):
        """Dimensions whose name matches the pattern."""

        regex: str

    @dataclass(frozen=True, slots=True, repr=False)
    class Any(Made):
        """Every dimension."""


AnyDimCondition = (
    ManifestSplitDimCondition.Axis
    | ManifestSplitDimCondition.DimensionName
    | ManifestSplitDimCondition.Any
)
DimSplitSize = int
ManifestSplitValues = dict[AnyDimCondition, DimSplitSize]
SplitSizes = tuple[
    tuple[ManifestSplitCondition, tuple[tuple[AnyDimCondition, DimSplitSize], ...]], ...
]
SplitSizesDict = Mapping[ManifestSplitCondition, Mapping[AnyDimCondition, DimSplitSize]]


def dimension_matches(condition: AnyDimCondition, axis: int, name: str | None) -> bool:
    """Whether `condition` holds for dimension `axis` with this name."""
    match condition:
        case ManifestSplitDimCondition.Axis(wanted):
            return wanted == axis
        case ManifestSplitDimCondition.DimensionName(regex):
            return name is not None and pattern_found(regex, name)
        case _:
            return True


def _tidy_sizes(value: Any) -> SplitSizes:
    try:
        sizes = tuple(
            (condition, tuple((dimension, size) for dimension, size in dimensions))
            for condition, dimensions in value
        )
    except (TypeError, ValueError):
        sizes = ((None, ()),)
    for condition, dimensions in sizes:
        if not isinstance(condition, ManifestSplitCondition):
            raise _bad_sizes("each rule is a pair of a ManifestSplitCondition and dimensions")
        for dimension, size in dimensions:
            if not isinstance(dimension, AnyDimCondition):
                raise _bad_sizes("each dimension is a ManifestSplitDimCondition and a size")
            if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= U32:
                raise _bad_sizes(f"a split size must be from 1 to {U32} chunks, not {size!r}")
    return sizes


def _bad_sizes(problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"ManifestSplittingConfig.split_sizes: {problem}", kind=Kind.INVALID_CONFIG
    )


@dataclass(slots=True, repr=False)
class ManifestSplittingConfig(Settings):
    """How the references of an array are split into manifests.

    Rules are tried in order; each dimension takes the first size that applies. A dimension without
    one is not split.
    """

    split_sizes: SplitSizes | None = field(default=None)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "split_sizes" and value is not None:
            value = _tidy_sizes(value)
        object.__setattr__(self, name, value)

    @staticmethod
    def from_dict(split_sizes: SplitSizesDict) -> ManifestSplittingConfig:
        """The rules from nested dictionaries, in order."""
        return ManifestSplittingConfig(
            tuple(
                (condition, tuple(dimensions.items()))
                for condition, dimensions in split_sizes.items()
            )
        )

    def to_dict(self) -> dict[ManifestSplitCondition, dict[AnyDimCondition, DimSplitSize]]:
        """The rules as nested dictionaries."""
        return {condition: dict(dimensions) for condition, dimensions in self.split_sizes or ()}


STANDARD_SPLIT = 4096
"""Chunks along the first dimension that share a manifest in a new repository."""


def standard_splitting() -> ManifestSplittingConfig:
    """The rules that a new repository gets unless its creator chooses others.

    They are stored, because an official writer without rules joins all manifests of an array. One
    rule serves all arrays: many would make official commits slow. Within it this package cuts large
    arrays further, by their grids.
    """
    first = ManifestSplitDimCondition.Axis(0)
    return ManifestSplittingConfig.from_dict(
        {ManifestSplitCondition.AnyArray(): {first: STANDARD_SPLIT}}
    )
