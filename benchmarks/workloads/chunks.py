"""Chunk bytes through Zarr: small and large, to a bucket and to a disk, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.model import (
    OFFICIAL_1,
    OFFICIAL_2,
    OURS,
    OURS_UNSYNCED,
    ZARR,
    Case,
    Goal,
    Workload,
)
from benchmarks.workloads.arrays import make_array, noise, open_array

KIB = 1024
MIB = 1024 * KIB
_LOCAL = (OURS, OURS_UNSYNCED, OFFICIAL_1, OFFICIAL_2)


def _with_array(chunk: int) -> Callable[[Case], tuple[Any, Any, Any]]:
    def setup(case: Case) -> tuple[Any, Any, Any]:
        if case.contender == ZARR:
            return None, make_array(_plain_store(case), case.size, chunk), noise(case.size * chunk)
        session = case.create().writable_session("main")
        array = make_array(session.store, case.size, chunk)
        return session, array, noise(case.size * chunk)

    return setup


def _plain_store(case: Case) -> Any:
    from zarr.storage import LocalStore

    return LocalStore(case.repository)


def _write(case: Case, state: tuple[Any, Any, Any]) -> None:
    del case
    session, array, data = state
    array[:] = data
    if session is not None:
        session.commit("data")


def _written(case: Case, state: tuple[Any, Any, Any], result: None) -> None:
    del result
    _same(case, state[2], _read(case, _storage(case)))


def _filled(chunk: int) -> Callable[[Case], None]:
    setup = _with_array(chunk)

    def prepare(case: Case) -> None:
        _write(case, setup(case))

    return prepare


def _storage(case: Case) -> Any:
    return None if case.contender == ZARR else case.storage()


def _read(case: Case, storage: Any) -> Any:
    if case.contender == ZARR:
        return open_array(_plain_store(case))[:]
    return open_array(case.library.Repository.open(storage).readonly_session("main").store)[:]


def _is_noise(case: Case, state: Any, result: Any) -> None:
    del state
    _same(case, noise(len(result)), result)


def _same(case: Case, expected: Any, found: Any) -> None:
    assert len(expected) == len(found) > case.size
    assert (expected == found).all()


WORKLOADS = (
    Workload(
        name="s3-small-write",
        title="write {size} chunks of 16 KiB to S3",
        sizes=(64, 512, 4096),
        goals=(Goal(0.25),),
        place="s3",
        setup=_with_array(16 * KIB),
        run=_write,
        check=_written,
    ),
    Workload(
        name="s3-small-read",
        title="read {size} chunks of 16 KiB from S3",
        sizes=(64, 512, 4096),
        goals=(Goal(0.15), Goal(1.0, measure="peak_bytes")),
        place="s3",
        prepare=_filled(16 * KIB),
        setup=_storage,
        run=_read,
        check=_is_noise,
        repeatable=True,
    ),
    Workload(
        name="s3-large-write",
        title="write {size} chunks of 1 MiB to S3",
        sizes=(16, 64, 256),
        goals=(Goal(1.0),),
        place="s3",
        setup=_with_array(MIB),
        run=_write,
        check=_written,
    ),
    Workload(
        name="s3-large-read",
        title="read {size} chunks of 1 MiB from S3",
        sizes=(16, 64, 256),
        goals=(Goal(0.8),),
        place="s3",
        prepare=_filled(MIB),
        setup=_storage,
        run=_read,
        check=_is_noise,
        repeatable=True,
    ),
    Workload(
        name="local-small-write",
        title="write {size} chunks of 4 KiB to a disk",
        sizes=(100, 300, 1000),
        goals=(Goal(0.3),),
        setup=_with_array(4 * KIB),
        run=_write,
        check=_written,
        contenders=_LOCAL,
    ),
    Workload(
        name="local-large-write",
        title="write {size} chunks of 4 MiB to a disk",
        sizes=(16, 64, 256),
        quick=0,
        goals=(Goal(1.0), Goal(1.1, against=(ZARR,))),
        setup=_with_array(4 * MIB),
        run=_write,
        check=_written,
        contenders=(*_LOCAL, ZARR),
    ),
    Workload(
        name="local-large-read",
        title="read {size} chunks of 4 MiB from a disk",
        sizes=(16, 64, 256),
        quick=0,
        goals=(Goal(1.0), Goal(1.1, against=(ZARR,))),
        prepare=_filled(4 * MIB),
        setup=_storage,
        run=_read,
        check=_is_noise,
        repeatable=True,
        contenders=(OURS, OFFICIAL_1, OFFICIAL_2, ZARR),
    ),
)
