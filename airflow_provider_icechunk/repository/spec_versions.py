"""Generations of the format as numbers, which programs compare."""

from __future__ import annotations

from enum import IntEnum

from airflow_provider_icechunk.format.generations.base import Generation


class SpecVersion(IntEnum):
    """The numbered generations of the format, which official releases open.

    Also equal to the number as text, which is what `Repository.spec_version` was in earlier
    releases.
    """

    v1 = 1
    v2 = 2

    @staticmethod
    def current() -> SpecVersion:
        """What new repositories are written in by default."""
        return SpecVersion.v1

    def __eq__(self, other: object) -> bool:
        return self.value == other or (isinstance(other, str) and str(self.value) == other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = IntEnum.__hash__


def version_of(generation: Generation) -> SpecVersion | str:
    """The number of a generation, or the name of one that has none."""
    try:
        return SpecVersion(int(generation.value))
    except ValueError:
        return generation.value
