"""Labels of a region: the values of its coordinates, times decoded by the CF conventions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.arrays.regions import dimension_names

_UNITS = {
    "week": ("s", 604_800), "day": ("s", 86_400), "hour": ("s", 3_600), "hr": ("s", 3_600),
    "h": ("s", 3_600), "minute": ("s", 60), "min": ("s", 60), "second": ("s", 1), "sec": ("s", 1),
    "s": ("s", 1), "millisecond": ("ms", 1), "ms": ("ms", 1), "microsecond": ("us", 1),
    "us": ("us", 1), "nanosecond": ("ns", 1), "ns": ("ns", 1),
}  # fmt: skip
_SINCE = re.compile(
    r"(?P<unit>[A-Za-z]+) since (?P<date>\d{4}-\d{1,2}-\d{1,2})"
    r"(?:[T ](?P<time>\d{1,2}:\d{2}(?::\d{2})?)(?:\.0+)?)?\s*(?:Z|UTC|\+00:?00)?",
    re.ASCII,
)
_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")


def labels_of(
    root: zarr.Group, array: zarr.Array[Any], parts: Mapping[str, slice]
) -> dict[str, NDArray[Any]]:
    """The labels of parts of an array's dimensions, for those that have a coordinate."""
    above = array.path.rpartition("/")[0]
    found = {}
    for name, part in parts.items():
        node = root.get(f"{above}/{name}" if above else name)
        if not isinstance(node, zarr.Array) or dimension_names(node) != (name,):
            continue
        if node.shape[0] >= part.stop:
            found[name] = decode_times(np.asarray(node[part]), dict(node.attrs))
    return found


def decode_times(values: NDArray[Any], attributes: Mapping[str, Any]) -> NDArray[Any]:
    """Numbers with units like `days since 2026-01-01` as `datetime64`; anything else as it is."""
    since = _SINCE.fullmatch(str(attributes.get("units", "")).strip())
    calendar = str(attributes.get("calendar", "standard")).lower()
    if since is None or values.dtype.kind not in "iuf" or calendar not in _CALENDARS:
        return values
    unit = _UNITS.get(since["unit"].lower()) or _UNITS.get(since["unit"].lower().removesuffix("s"))
    if unit is None:
        return values
    resolution, factor = unit
    date = "-".join(part.zfill(2) for part in since["date"].split("-"))
    time = (since["time"] or "00:00").zfill(5)
    origin = np.array(f"{date}T{time}", f"datetime64[{resolution}]")
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            return values
        resolution, factor = ("us", factor * 1_000_000) if resolution == "s" else unit
        origin = origin.astype(f"datetime64[{resolution}]")
        steps = np.rint(values.astype(np.float64) * factor).astype(np.int64)
    else:
        steps = values.astype(np.int64) * factor
    return np.asarray(origin + steps.astype(f"timedelta64[{resolution}]"))
