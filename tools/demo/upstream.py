"""The data of the tour as they arrive: a file of temperatures per day, and a correction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SHAPE = (90, 180)
Field = NDArray[np.float32]


def field(day: int) -> Field:
    """Temperatures of a day in January: winter in the north, and weather that moves east."""
    latitude = np.deg2rad(np.arange(-89, 90, 2))[:, None]
    longitude = np.deg2rad(np.arange(0, 360, 2))[None, :]
    zones = 300 - 45 * np.sin(latitude) ** 2 - 18 * np.sin(latitude)
    waves = 8 * np.cos(latitude) * np.sin(3 * longitude - day / 2) * np.sin(2 * latitude)
    return np.asarray(zones + waves, np.float32)


def corrected(day: int) -> Field:
    """The same with a heat wave, which upstream had missed."""
    values = field(day)
    values[58:78, 96:150] += 24 * np.outer(np.hanning(20), np.hanning(54)).astype(np.float32)
    return values


def put(folder: Path, day: int, values: Field) -> None:
    """Let a day's file arrive."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{date(day)}.npy", values)


def date(day: int) -> str:
    """The day in January as text."""
    return f"2026-01-{day:02}"
