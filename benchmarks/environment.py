"""The interpreter of the official package's second major version, which needs Python 3.12."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

VARIABLE = "ICECHUNK2_PYTHON"


def second_python() -> Path | str:
    """The interpreter that the environment names, or a text explaining why there is none.

    `make bench` names one that it finds or makes, with the same Zarr as this one.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return f"{VARIABLE} names no interpreter; `make bench` makes one where Python 3.12 is found"
    probe = [named, "-c", "import icechunk, zarr"]
    try:
        code = subprocess.run(probe, check=False, capture_output=True).returncode
    except OSError as error:
        return f"{VARIABLE} names {named}, which does not run: {error}"
    return Path(named) if code == 0 else f"{VARIABLE} names {named}, which has no icechunk and zarr"
