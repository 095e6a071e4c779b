"""Somebody else, far from Airflow, who commits while a task is at work.

The official library, where it is installed: it knows nothing of this provider, and its commit is
found, judged and moved over all the same.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec

import numpy as np
import zarr

MESSAGE = "a cold spell, by somebody else"


def commit(folder: str) -> str:
    """Cool the south down, and write into a chunk that the tour's own task writes too."""
    name = "icechunk" if find_spec("icechunk") else "airflow_provider_icechunk.api"
    library = importlib.import_module(name)
    repository = library.Repository.open(library.local_filesystem_storage(folder))
    session = repository.writable_session("main")
    field = zarr.open_array(session.store, path="temperature", mode="r+")
    south = (slice(170, 190), slice(8, 32), slice(12, 60))
    field[south] = np.asarray(field[south]) - 24 * np.outer(np.hanning(24), np.hanning(48))
    field[170:190, 60:62, 100:102] = 0
    snapshot: str = session.commit(MESSAGE)
    return snapshot


if __name__ == "__main__":
    print(commit(sys.argv[1]))
