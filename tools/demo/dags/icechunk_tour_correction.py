"""A task loses a race: while it writes, somebody else commits to the same branch and array.

The commit that is made when the function returns finds the branch moved, loads what the other side
changed, and is made again on top of it. Both wrote one and the same chunk; `on_chunk_conflict` says
whose stays. Part of the tour, not an example to copy: the task starts the other writer itself.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_provider_icechunk.hooks.icechunk import IcechunkHook

with DAG(
    dag_id="icechunk_tour_correction",
    schedule=None,
    catchup=False,
    params={"repository": Param("weather", type="string", minLength=1)},
    doc_md=__doc__,
) as dag:

    @task.icechunk(
        repository="{{ params.repository }}",
        message="a heat wave",
        on_chunk_conflict="ours",
    )
    def correct(store: Any, repository: str) -> str:
        """Warm the north up; by then the branch is somewhere else."""
        import numpy as np
        import zarr

        field = zarr.open_array(store, path="temperature", mode="r+")
        north = (slice(170, 190), slice(58, 78), slice(96, 150))
        shape = np.outer(np.hanning(20), np.hanning(54))
        field[north] = np.asarray(field[north]) + 24 * shape
        folder = IcechunkHook().settings.folder(repository)
        other = [sys.executable, "-m", "tools.demo.other_writer", folder]
        answer = subprocess.run(other, capture_output=True, text=True, check=True)  # noqa: S603
        return answer.stdout.strip()

    correct("{{ params.repository }}")  # type: ignore[call-arg,misc]
