"""Functions as users write them, importable by driver and executors."""

from __future__ import annotations

from typing import Any

import numpy as np


def index(region: Any, add: int = 0) -> Any:
    """The number of each cell in a row-major array of ten columns."""
    rows, columns = (np.arange(part.start, part.stop) for part in region.slices)
    return rows[:, None] * 10 + columns + add


def day_of_year(region: Any) -> Any:
    """What the label of each row says, for all columns."""
    days = region.labels["time"].astype("datetime64[D]")
    return (days - days.astype("datetime64[Y]")).astype("int64")[:, None] + 1


def wind(region: Any) -> dict[str, Any]:
    return {"u": index(region), "v": -index(region), "mean": index(region).mean(axis=1)}


def wrong_shape(region: Any) -> Any:
    return np.zeros((3, 3))


def wrong_type(region: Any) -> Any:
    return np.full(region.shape, 1.5)


def text(region: Any) -> Any:
    return "nothing"


def no_v(region: Any) -> dict[str, Any]:
    return {"u": index(region), "w": index(region)}


def fails(region: Any) -> Any:
    if region.slices[0].start >= 4:
        raise FileNotFoundError("no file\nfor this day")
    return index(region)
