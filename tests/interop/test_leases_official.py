"""Official releases open, list and collect repositories with leases, and leave them alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icechunk as official
import pytest
import zarr
from support import actors

import airflow_provider_icechunk.api as ours
from airflow_provider_icechunk.engine.leases import CUTOFF, PREFIX
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.world import World
from airflow_provider_icechunk.exceptions import SessionError


@pytest.fixture(scope="module")
def worker() -> Iterator[actors.Worker]:
    process = actors.Worker()
    yield process
    process.close()


class Later:
    """The time of a host whose sessions grow old in no time."""

    hours = 0.0

    def world(self) -> World:
        return World(monotonic=lambda: time.monotonic() + self.hours * 3600)


def begin(folder: Path, generation: str, later: Later) -> ours.Session:
    """A repository with a commit, and a session of an hour ago that has left a lease."""
    storage = ours.local_filesystem_storage(str(folder))
    repo = ours.Repository.create(
        storage, spec_version=generation, packing=ours.Packing(below=0), world=later.world()
    )
    session = repo.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(4000,), chunks=(1000,), dtype="i4", compressors=None
    )
    array[...] = 1
    session.commit("first")
    session = repo.writable_session("main")
    values = zarr.open_array(session.store, path="a", mode="r+")
    values[:1000] = 2
    later.hours = 1
    values[1000:2000] = 2
    return session


def stored(folder: Path) -> set[str]:
    return {listed.key for listed in LocalStorage(folder).scan("")}


@pytest.mark.parametrize(
    ("generation", "release"),
    [
        ("1", "1.1"),
        pytest.param("1", "2", marks=actors.needs_icechunk2),
        pytest.param("2", "2", marks=actors.needs_icechunk2),
    ],
)
def test_official_releases_read_write_and_collect_beside_leases(
    generation: str, release: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder, later = tmp_path / "repo", Later()
    act: actors.Actor = (
        actors.local(official) if release == "1.1" else request.getfixturevalue("worker")
    )
    session = begin(folder, generation, later)
    (lease,) = (key for key in stored(folder) if key.startswith(PREFIX))
    repo = ours.Repository.open(ours.local_filesystem_storage(str(folder)))
    loose = repo.writable_session("main")
    zarr.open_array(loose.store, path="a", mode="r+")[:] = 7
    loose.flush("garbage")
    garbage = stored(folder)
    with pytest.warns(UserWarning, match="in the future"):
        planned = repo.garbage_collect(datetime.now(UTC) + timedelta(days=1), dry_run=True)
    assert planned.bytes_deleted == 0, "the lease is older than what could go"
    seen = act(folder, "view")
    assert list(seen["branches"]) == ["main"]
    act(folder, "collect")
    left = stored(folder)
    assert garbage - left
    assert lease in left
    # Nobody told us: the official collection took what the session had stored.
    assert session.commit("unprotected", rebase_with=ours.ConflictDetector())
    assert lease not in stored(folder)
    assert not ours.Repository.open(ours.local_filesystem_storage(str(folder))).verify().ok


@pytest.mark.parametrize("generation", ["1", pytest.param("2", marks=actors.needs_icechunk2)])
def test_official_releases_go_on_after_a_collection_of_ours(
    generation: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder, later = tmp_path / "repo", Later()
    act: actors.Actor = (
        actors.local(official) if generation == "1" else request.getfixturevalue("worker")
    )
    session = begin(folder, generation, later)
    session.discard_changes()
    repo = ours.Repository.open(ours.local_filesystem_storage(str(folder)))
    with pytest.warns(UserWarning, match="in the future"):
        assert repo.garbage_collect(datetime.now(UTC) + timedelta(days=1)).chunks_deleted
    assert CUTOFF in stored(folder)
    before = act(folder, "view")
    act(folder, "collect")
    assert act(folder, "view") == before
    assert CUTOFF in stored(folder)
    assert repo.verify().ok


def test_a_session_is_refused_its_commit_on_a_real_file_system(tmp_path: Path) -> None:
    folder, later = tmp_path / "repo", Later()
    session = begin(folder, "1", later)
    (lease,) = (key for key in stored(folder) if key.startswith(PREFIX))
    LocalStorage(folder).delete([lease])
    repo = ours.Repository.open(ours.local_filesystem_storage(str(folder)))
    with pytest.warns(UserWarning, match="in the future"):
        assert repo.garbage_collect(datetime.now(UTC) + timedelta(days=1)).chunks_deleted == 2
    with pytest.raises(SessionError, match="nothing was committed"):
        session.commit("too late")
    assert repo.verify().ok
