"""The functions of the example `icechunk_own_function`: they run on Spark's executors.

They depend on neither Spark nor a repository: they take a region and return an array.
"""

from __future__ import annotations

from typing import Any

import numpy as np


# [START field]
def field(region: Any, base: float = 288.0) -> Any:
    """Temperatures of the days and places of a region, from their labels."""
    days = region.labels["time"].astype("datetime64[D]")
    day_of_year = (days - days.astype("datetime64[Y]")).astype(int)
    season = np.cos(2 * np.pi * (day_of_year - 196) / 365.25)
    latitude = np.deg2rad(region.labels["latitude"])
    values = base - 40 * np.sin(latitude) ** 2 + 18 * season[:, None] * np.sin(latitude)
    return np.broadcast_to(values[:, :, None], region.shape).astype(region.dtype)


# [END field]
