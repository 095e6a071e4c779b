"""What executors call in the backfill: the values of a day, from what is upstream by then."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np


def expected(days: Any, value: int) -> Any:
    """The field of some days: other numbers in each cell, so that nothing can be mixed up."""
    return days[:, None, None] * 1000 + value * 100 + np.arange(12).reshape(3, 4)


def field(region: Any, signs: str) -> Any:
    """Both variables of the days of a region; the executor of one day stands still once."""
    days = (
        (region.labels["time"] - np.datetime64("2026-01-01")).astype("timedelta64[D]").astype(int)
    )
    stand_still(Path(signs), "during", int(days[0]))
    values = expected(days, json.loads(Path(signs, "value").read_text()))
    return {"t2m": values.astype("float32"), "mean": values.mean(axis=(1, 2))}


def stand_still(signs: Path, moment: str, day: int) -> None:
    """Say once which process this is and wait to be killed, if the test wants that of this day."""
    wanted, sign = signs / f"kill-{moment}-{day}", signs / f"standing-{moment}"
    if wanted.exists():
        wanted.unlink()
        sign.with_suffix(".tmp").write_text(f"{os.getpid()} {os.getppid()}")
        sign.with_suffix(".tmp").rename(sign)
        time.sleep(1800)
