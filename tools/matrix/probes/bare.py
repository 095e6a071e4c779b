"""The engine, Zarr and the command line, in an environment without Airflow and without Spark."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile


def main() -> int:
    """Write, commit and read a repository, and look at it with the command line."""
    import numpy as np
    import zarr

    from airflow_provider_icechunk import api

    for name in ("airflow", "pyspark"):
        assert importlib.util.find_spec(name) is None, f"{name} is installed here"
    with tempfile.TemporaryDirectory() as folder:
        repository = api.Repository.create(api.local_filesystem_storage(folder))
        session = repository.writable_session("main")
        zarr.create_array(session.store, name="field", data=np.arange(12.0), chunks=(5,))
        session.commit("twelve numbers")
        again = api.Repository.open(api.local_filesystem_storage(folder))
        array = zarr.open_array(again.readonly_session("main").store, path="field", mode="r")
        assert np.array_equal(np.asarray(array[:]), np.arange(12.0))
        told = subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, "-m", "airflow_provider_icechunk", "log", folder],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        assert "twelve numbers" in told, told
    try:
        importlib.import_module("airflow_provider_icechunk.operators.commit")
    except ModuleNotFoundError as error:
        told = str(error)
    assert "airflow-provider-icechunk[airflow]" in told, told
    print("wrote, committed, read and listed a repository")
    return 0


if __name__ == "__main__":
    sys.exit(main())
