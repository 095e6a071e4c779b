"""What a byte range means for an object of a known size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import assert_never

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.storage.base import Bounded, ByteRange, From, Last, Until

_TOLD = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/(?:\*|[0-9]{1,19})")


class Unfinished(ConnectionError):  # noqa: N818 - as the other connection errors are called
    """A body ended early, or cannot be told from one that did."""


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


def told_length(headers: Mapping[str, str]) -> int | None:
    """How many bytes a server says it sends of a larger object, if it says so."""
    told = _TOLD.fullmatch(headers.get("content-range", ""))
    return None if told is None else int(told[2]) - int(told[1]) + 1


def check_finished(headers: Mapping[str, str], received: int) -> None:
    """Raise `Unfinished` unless a body is known to be whole; names are in lower case.

    A body without a length ends where the connection does, wherever that breaks.
    """
    told = told_length(headers)
    if told is None and not {"content-length", "transfer-encoding"} & headers.keys():
        raise Unfinished("the length of a body was not told")
    if told is not None and told != received:
        raise Unfinished(f"{received} bytes came where {told} were announced")
