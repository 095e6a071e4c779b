"""Distinct values, without the function of NumPy for it.

`np.unique` imports masked arrays when it is first called. In a process that makes one commit that
takes longer than the commit.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)


def distinct(values: NDArray[Number]) -> NDArray[Number]:
    """The values in order, each once. Runs of equal values cost next to nothing."""
    ordered = np.sort(values[_begins(values)])
    return ordered[_begins(ordered)]


def first_rows(keys: NDArray[np.generic]) -> NDArray[np.intp]:
    """The first row of each distinct key, in the order of the keys."""
    order = np.argsort(keys, kind="stable")
    return order[_begins(keys[order])]


def _begins(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Where a value differs from the one before it."""
    begins = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=begins[1:])
    return begins
