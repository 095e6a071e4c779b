"""Conditions on nodes and dimensions: which manifests are preloaded, which arrays are split, how.

A condition is a small expression over a node's path and name. Patterns are searched for anywhere in
the text, like the official library does; a pattern that cannot be understood matches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind
from airflow_provider_icechunk.format.config_settings import U32, Settings
from airflow_provider_icechunk.format.names import base_name
from airflow_provider_icechunk.format.patterns import pattern_found


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
    """The manifest has a number of references between the bounds; `None` is no bound."""

    lower: Bound | None
    upper: Bound | None


@dataclass(frozen=True, slots=True)
class Always:
    """Holds for everything."""


@dataclass(frozen=True, slots=True)
class Never:
    """Holds for nothing."""


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


@dataclass(frozen=True, slots=True)
class _Condition:
    rule: Rule

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


@dataclass(frozen=True, slots=True)
class ManifestPreloadCondition(_Condition):
    """Which manifests are worth loading when a session opens."""

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
        """Holds always."""
        return cls(Always())

    @classmethod
    def false(cls) -> Self:
        """Holds never."""
        return cls(Never())

    def matches(self, path: str, num_refs: int) -> bool:
        """Whether the manifest of the array at `path` is worth preloading."""
        return rule_holds(self.rule, path, num_refs)


@dataclass(frozen=True, slots=True)
class ManifestSplitCondition(_Condition):
    """Which arrays a splitting rule is for."""

    @classmethod
    def AnyArray(cls) -> Self:  # noqa: N802 - the official name
        """Holds for every array."""
        return cls(Always())

    def matches(self, path: str) -> bool:
        """Whether the rule is for the array at `path`."""
        return rule_holds(self.rule, path)


class ManifestSplitDimCondition:
    """Which dimensions of an array a split size is for."""

    @dataclass(frozen=True, slots=True)
    class Axis:
        """The dimension with this number."""

        axis: int

    @dataclass(frozen=True, slots=True)
    class DimensionName:
        """Dimensions with a name in which the pattern is found."""

        regex: str

    @dataclass(frozen=True, slots=True)
    class Any:
        """Every dimension."""


AnyDimCondition = (
    ManifestSplitDimCondition.Axis
    | ManifestSplitDimCondition.DimensionName
    | ManifestSplitDimCondition.Any
)
DimSplitSize = int
SplitSizes = tuple[
    tuple[ManifestSplitCondition, tuple[tuple[AnyDimCondition, DimSplitSize], ...]], ...
]
SplitSizesDict = Mapping[ManifestSplitCondition, Mapping[AnyDimCondition, DimSplitSize]]


def dimension_matches(condition: AnyDimCondition, axis: int, name: str | None) -> bool:
    """Whether `condition` holds for dimension number `axis` called `name`."""
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
                raise _bad_sizes(f"a split size is from 1 to {U32} chunks, not {size!r}")
    return sizes


def _bad_sizes(problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"ManifestSplittingConfig.split_sizes: {problem}", kind=Kind.INVALID_CONFIG
    )


@dataclass(slots=True)
class ManifestSplittingConfig(Settings):
    """How the references of an array are spread over manifests.

    Rules are tried in order; each dimension takes the first size that fits it. A dimension without
    a fitting size is not split.
    """

    split_sizes: SplitSizes | None = field(default=None)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "split_sizes" and value is not None:
            value = _tidy_sizes(value)
        object.__setattr__(self, name, value)

    @staticmethod
    def from_dict(split_sizes: SplitSizesDict) -> ManifestSplittingConfig:
        """The same rules written as nested dictionaries, in their order."""
        return ManifestSplittingConfig(
            tuple(
                (condition, tuple(dimensions.items()))
                for condition, dimensions in split_sizes.items()
            )
        )

    def to_dict(self) -> dict[ManifestSplitCondition, dict[AnyDimCondition, DimSplitSize]]:
        """The rules as nested dictionaries."""
        return {condition: dict(dimensions) for condition, dimensions in self.split_sizes or ()}
