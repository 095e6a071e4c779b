"""Many writers at once, one day each, in one array on a real object store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import icechunk
import numpy as np
import pytest
import zarr
from support.days import DAY_BYTES, Days, check_days, run_days
from support.writers import Done, Folder, Prefix

from airflow_provider_icechunk.engine.repository import Repository

if TYPE_CHECKING:
    from support.seaweedfs import SeaweedFS

WRITERS = 32
MOST_TRIES = 6.0
"""For each commit, on average; on a quiet machine about 3. It was 8.5 when a try after a pause
began where the branch had been before it."""
MOST_SHARED = 11.0
"""Times the data where eight days share a chunk; 5.4 if nobody ever lost a race. It was 13.5."""


def in_bucket(server: SeaweedFS) -> Prefix:
    from support.seaweedfs import ACCESS_KEY, SECRET_KEY, SHARED_BUCKET

    return Prefix(server.endpoint_url, SHARED_BUCKET, server.fresh_prefix(), ACCESS_KEY, SECRET_KEY)


def amplification(job: Days) -> float:
    """Bytes of all chunk files for each byte of the array."""
    storage = Repository.open(job.place.storage()).storage
    return sum(one.size for one in storage.scan("chunks/")) / (job.days * DAY_BYTES)


def cost(job: Days, done: Sequence[Done]) -> tuple[float, float]:
    """Tries for each commit and times the data, which are printed as well."""
    tries, stored = mean(one.tries for one in done), amplification(job)
    print(
        f"\n{job.days} writers, {job.step} days a chunk: {tries:.1f} tries for each commit, "
        f"{stored:.2f} times the data stored"
    )
    return tries, stored


def read_officially(place: Prefix) -> np.ndarray:
    storage = icechunk.s3_storage(
        bucket=place.bucket,
        prefix=place.prefix,
        region="us-east-1",
        endpoint_url=place.endpoint_url,
        allow_http=True,
        force_path_style=True,
        access_key_id=place.key,
        secret_access_key=place.secret,
    )
    session = icechunk.Repository.open(storage).readonly_session("main")
    return np.asarray(zarr.open_array(session.store, path="t2m", mode="r")[...])


def test_days_of_writers_that_were_killed_are_there_once(tmp_path: Path) -> None:
    job = Days(Folder(tmp_path / "repo"), tmp_path / "notes", days=4, step=3)
    job.prepare()
    run_days(job, kills=3)
    check_days(job)


@pytest.mark.long
@pytest.mark.seaweedfs
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("step", [1, 8])
def test_thirty_two_writers_of_one_array_all_land_once(
    seaweedfs: SeaweedFS, step: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Days(in_bucket(seaweedfs), tmp_path / "notes", WRITERS, step)
    job.prepare()
    done = run_days(job)
    assert len(done) == WRITERS
    check_days(job)
    with capsys.disabled():
        tries, stored = cost(job, done)
    assert tries <= MOST_TRIES
    # Where nobody shares a chunk, each is stored once, however often a commit was tried.
    assert stored <= (2 if step == 1 else MOST_SHARED)


@pytest.mark.long
@pytest.mark.seaweedfs
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("step", [1, 8])
def test_thirty_two_writers_of_which_some_are_killed_write_every_day_once(
    seaweedfs: SeaweedFS, step: int, tmp_path: Path
) -> None:
    place = in_bucket(seaweedfs)
    job = Days(place, tmp_path / "notes", WRITERS, step)
    job.prepare()
    run_days(job, kills=24, seed=step)
    check_days(job)
    np.testing.assert_array_equal(read_officially(place), job.expected())
