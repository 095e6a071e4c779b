"""The end of the tour: the history, the tree, what others read, and how to go on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import zarr
from numpy.typing import NDArray

from tools.demo.settings import TourError

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Repository


def show(folder: Path) -> None:
    """Print the log graph and the tree, with the commands that print them."""
    from airflow_provider_icechunk.cli.run import main as command

    for words in (["log", str(folder)], ["tree", str(folder), "--chunks"]):
        print(f"\n$ python -m airflow_provider_icechunk {' '.join(words)}", flush=True)
        if command(words) != 0:
            raise TourError(f"The command `{words[0]}` failed on {folder}.")


def compare_with_official(
    repository: Repository, folder: Path, expected: Mapping[int, NDArray[np.float32]]
) -> None:
    """Open the same folder with the official library, if it is installed, and compare.

    :param expected: the input files, by day.
    """
    if find_spec("icechunk") is None:
        print("\nThe official `icechunk` is not installed here: nothing to compare with.")
        return
    os.environ.setdefault("ICECHUNK_LOG", "error")
    import icechunk

    theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))
    field = zarr.open_array(theirs.readonly_session("main").store, path="temperature", mode="r")
    for day, values in expected.items():
        if not np.array_equal(np.asarray(field[day]), values):
            raise TourError(f"The official library reads other values of day {day}.")
    print(f"  {len(expected)} days, each equal to its input file")
    for name in ("temperature", "time", "week_mean"):
        left, right = (
            np.asarray(zarr.open_array(one.readonly_session("main").store, path=name, mode="r")[:])
            for one in (repository, theirs)
        )
        if not np.array_equal(left, right):
            raise TourError(f"The official library reads other values of {name}.")
        print(f"  {name:<14} {right.size:>12,} values, all equal")


def explain(folder: Path, picture: Path) -> None:
    """Print how to open the result, and where to look next."""
    print(
        f"""
Open it with Xarray:

  import airflow_provider_icechunk.api as icechunk
  import xarray as xr

  storage = icechunk.local_filesystem_storage("{folder}")
  session = icechunk.Repository.open(storage).readonly_session("main")
  print(xr.open_zarr(session.store, consolidated=False))

With the official library the first line is `import icechunk`, and nothing else changes.

The picture is {picture}.
`make demo-ui` shows the same Dags in Airflow's web page."""
    )


def check_with_xarray(repository: Repository) -> str:
    """The head of `main` as Xarray shows it, in one line."""
    import xarray

    session = repository.readonly_session("main")
    with xarray.open_zarr(session.store, consolidated=False) as dataset:
        sizes = ", ".join(f"{name}: {size}" for name, size in dataset.sizes.items())
        days = [str(dataset.time.values[place])[:10] for place in (0, -1)]
        return f"{sizes}; from {days[0]} to {days[1]}"
