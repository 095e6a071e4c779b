"""The values that the Spark benchmark writes: created once, so that only writing is measured."""

from __future__ import annotations

from functools import cache
from typing import Any

CHUNK = 1 << 20
"""Values of 4 bytes."""
_REPEATS_AFTER = 4 * CHUNK


@cache
def _pattern() -> Any:
    import numpy as np

    noise = np.random.default_rng(7).integers(0, 64, _REPEATS_AFTER)
    return (np.arange(_REPEATS_AFTER) // 7 + noise).astype("float32")


def values(start: int, stop: int) -> Any:
    """Numbers with some noise in the last bits, as measurements have; they repeat after a while."""
    import numpy as np

    first = start % _REPEATS_AFTER
    if first + stop - start <= _REPEATS_AFTER:
        return _pattern()[first : first + stop - start]
    return np.take(_pattern(), np.arange(start, stop), mode="wrap")
