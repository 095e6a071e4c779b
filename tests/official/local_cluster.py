"""Arrays of Dask written by the processes of a real cluster; run by `test_local_cluster.py`.

It runs in an environment with Dask, which the one for development has not: Xarray would make arrays
of Dask of everything that other tests read.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import dask
import dask.array
import distributed
import numpy as np
import xarray as xr
import zarr

import airflow_provider_icechunk.api as icechunk

SHAPE, CHUNKS = (8, 6), (2, 3)


def repository(folder: Path, name: str) -> icechunk.Repository:
    """A new repository."""
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder / name)))


def numbers() -> Any:
    """An array whose blocks only processes of workers can compute."""
    driver = os.getpid()

    def block(block_info: Any = None) -> Any:
        assert os.getpid() != driver, "computed in the driver"
        place = block_info[None]["array-location"]
        rows, columns = (np.arange(start, stop) for start, stop in place)
        return (rows[:, None] * SHAPE[1] + columns).astype("i8")

    return dask.array.map_blocks(
        block, chunks=((2,) * 4, (3,) * 2), dtype="i8", meta=np.zeros((0, 0), "i8")
    )


EXPECTED = np.arange(48).reshape(SHAPE)


def stored(repo: icechunk.Repository, path: str) -> Any:
    """What a reader of the branch sees."""
    store = repo.readonly_session("main").store
    return np.asarray(zarr.open_array(store, path=path, mode="r")[...])


def made(repo: icechunk.Repository) -> icechunk.Session:
    """A session with an empty array, which is committed."""
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", shape=SHAPE, chunks=CHUNKS, dtype="i8", fill_value=-1)
    session.commit("an empty array")
    return repo.writable_session("main")


def check_to_icechunk(folder: Path) -> None:
    """A data set that workers compute, created and then appended to."""
    repo = repository(folder, "xarray")
    for number in range(2):
        session = repo.writable_session("main")
        data = xr.Dataset({"a": (("x", "y"), numbers())})
        more = {"append_dim": "x"} if number else {"mode": "w"}
        icechunk.to_icechunk(data, session, **more)
        session.commit("written by workers")
    assert np.array_equal(stored(repo, "a"), np.concatenate([EXPECTED, EXPECTED]))


def check_store_dask(folder: Path) -> None:
    """Arrays of a fork, merged into its session."""
    repo = repository(folder, "dask")
    session = made(repo)
    fork = session.fork()
    target = zarr.open_array(fork.store, path="a", mode="r+")
    session.merge(icechunk.store_dask(sources=[numbers()], targets=[target]))
    session.commit("written by workers")
    assert np.array_equal(stored(repo, "a"), EXPECTED)


def write_rows(fork: Any, start: int) -> Any:
    """What a user's own task does: write, and return the fork."""
    array = zarr.open_array(fork.store, path="a", mode="r+")
    array[start : start + 2] = EXPECTED[start : start + 2]
    return fork


def check_merge_sessions(folder: Path, client: distributed.Client) -> None:
    """Forks that come back from tasks of one's own."""
    repo = repository(folder, "futures")
    session = made(repo)
    fork = session.fork()
    futures = [client.submit(write_rows, fork, start, pure=False) for start in range(0, 8, 2)]
    session.merge(icechunk.merge_sessions(*client.gather(futures)))
    session.commit("written by workers")
    assert np.array_equal(stored(repo, "a"), EXPECTED)


def check_loss_is_refused(folder: Path, client: distributed.Client) -> None:
    """Workers that would write into a copy that nobody gets back."""
    repo = repository(folder, "loss")
    session = made(repo)
    target = zarr.open_array(session.store, path="a", mode="r+")
    ways = {
        "a session in a task": lambda: client.submit(write_rows, session, 0).result(),
        "an array in a task": lambda: client.submit(np.asarray, target).result(),
        "dask.array.store": lambda: dask.array.store([numbers()], [target], lock=False),
        "store_dask": lambda: icechunk.store_dask(sources=[numbers()], targets=[target]),
        "to_zarr": lambda: xr.Dataset({"b": (("x", "y"), numbers())}).to_zarr(
            session.store, mode="a", consolidated=False, zarr_format=3
        ),
    }
    for name, way in ways.items():
        try:
            way()
        except Exception as error:  # noqa: BLE001 - each way fails with a class of its own
            told, one = [], error
            while one is not None:
                told.append(str(one))
                one = one.__cause__ or one.__context__
            assert "fork" in " ".join(told), (name, told)
        else:
            raise AssertionError(f"{name} lost what workers wrote, in silence")


def main() -> None:
    """All checks on one cluster."""
    folder = Path(sys.argv[1])
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        check_to_icechunk(folder)
        check_store_dask(folder)
        check_merge_sessions(folder, client)
        check_loss_is_refused(folder, client)
    print("all of it")


if __name__ == "__main__":
    main()
