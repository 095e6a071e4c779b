"""What a byte range means for an object of a known size."""

from __future__ import annotations

from typing import assert_never

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.storage.base import Bounded, ByteRange, From, Last, Until


def resolve(byte_range: ByteRange | None, size: int) -> tuple[int, int]:
    """Start and stop inside an object of `size` bytes; cut where the range reaches over the end."""
    match byte_range:
        case None:
            return 0, size
        case Bounded(start, stop):
            _check(start, stop - start)
            return min(start, size), min(stop, size)
        case From(start):
            _check(start)
            return min(start, size), size
        case Last(count):
            _check(count)
            return max(0, size - count), size
        case Until(count):
            _check(count)
            return 0, max(0, size - count)
        case _:
            assert_never(byte_range)


def _check(*numbers: int) -> None:
    if any(number < 0 for number in numbers):
        raise InvalidInputError("a byte range cannot be negative or end before it starts")
