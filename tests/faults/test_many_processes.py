"""Many processes commit to one branch at once: every commit lands, and lands once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import icechunk
import pytest
import zarr
from support.writers import (
    Cloud,
    Folder,
    Job,
    Place,
    Prefix,
    check,
    create,
    create_branch,
    create_tag,
    race,
    report,
    run_all,
)

if TYPE_CHECKING:
    from support.azurite import Azurite
    from support.seaweedfs import SeaweedFS

RACES = [create, create_tag, create_branch]


def prefix_of(server: SeaweedFS) -> Prefix:
    from support.seaweedfs import ACCESS_KEY, SECRET_KEY, SHARED_BUCKET

    return Prefix(server.endpoint_url, SHARED_BUCKET, server.fresh_prefix(), ACCESS_KEY, SECRET_KEY)


def commit_from_many(
    place: Place, notes: Path, *, writers: int, commits: int, kills: int = 0, seed: int = 0
) -> None:
    job = Job(place, notes, writers, commits)
    job.prepare()
    done = run_all(job, kill=random.Random(seed), kills=kills)
    report(f"{writers} processes, {kills} of them killed", done)
    assert len(done) == writers * commits
    check(job)


def official_goes_on(folder: Path, commits: int) -> None:
    """The official library reads all of it, compares it, and commits and rebases on top."""
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))
    history = list(repo.ancestry(branch="main"))
    assert len(history) == commits + 2
    changed = repo.diff(from_snapshot_id=history[-2].id, to_branch="main").updated_chunks["/a"]
    assert len(changed) == commits
    assert (zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:] > 0).all()
    late, quick = repo.writable_session("main"), repo.writable_session("main")
    for row, session in enumerate((late, quick)):
        zarr.open_array(session.store, path="a", mode="r+")[row, 0] = 1
    quick.commit("quick")
    late.commit("late", rebase_with=icechunk.ConflictDetector())
    assert [info.message for info in repo.ancestry(branch="main")][:2] == ["late", "quick"]


def test_commits_of_many_processes_to_one_folder_all_land_once(tmp_path: Path) -> None:
    place = Folder(tmp_path / "repo")
    commit_from_many(place, tmp_path / "notes", writers=8, commits=12)
    official_goes_on(tmp_path / "repo", 8 * 12)


def test_writers_killed_and_started_again_commit_each_chunk_once(tmp_path: Path) -> None:
    place = Folder(tmp_path / "repo")
    commit_from_many(place, tmp_path / "notes", writers=4, commits=8, kills=6, seed=1)
    official_goes_on(tmp_path / "repo", 4 * 8)


@pytest.mark.seaweedfs
def test_commits_of_many_processes_to_one_bucket_all_land_once(
    seaweedfs: SeaweedFS, tmp_path: Path
) -> None:
    commit_from_many(prefix_of(seaweedfs), tmp_path / "notes", writers=4, commits=4)


@pytest.mark.parametrize("act", RACES, ids=lambda act: act.__name__)
def test_of_many_processes_that_create_the_same_thing_in_a_folder_one_succeeds(
    act: Callable[[Place], None], tmp_path: Path
) -> None:
    _race(act, Folder(tmp_path / "repo"), tmp_path / "notes", writers=8)


@pytest.mark.seaweedfs
def test_of_many_processes_that_create_a_repository_in_a_bucket_one_succeeds(
    seaweedfs: SeaweedFS, tmp_path: Path
) -> None:
    _race(create, prefix_of(seaweedfs), tmp_path / "notes", writers=6)


def _race(act: Callable[[Place], None], place: Place, notes: Path, *, writers: int) -> None:
    if act is not create:
        create(place)
    assert race(act, place, notes, writers) == Counter(created=1, exists=writers - 1)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [0, 40])
@pytest.mark.parametrize("round_", range(3))
def test_four_hundred_commits_of_sixteen_processes_all_land_once(
    kills: int, round_: int, tmp_path: Path
) -> None:
    place = Folder(tmp_path / "repo")
    commit_from_many(place, tmp_path / "n", writers=16, commits=25, kills=kills, seed=round_)
    official_goes_on(tmp_path / "repo", 400)


@pytest.mark.long
@pytest.mark.seaweedfs
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [0, 10])
def test_two_hundred_commits_of_eight_processes_to_one_bucket_all_land_once(
    seaweedfs: SeaweedFS, kills: int, tmp_path: Path
) -> None:
    commit_from_many(
        prefix_of(seaweedfs), tmp_path / "n", writers=8, commits=25, kills=kills, seed=kills
    )


@pytest.fixture(params=["gcs", "azure"])
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    if request.param == "azure":
        from support.azurite import CONTAINER, KEY

        from tools.azurite import ACCOUNT

        server: Azurite = request.getfixturevalue("azurite")
        url = f"az://{CONTAINER}/{server.fresh_prefix()}"
        yield Cloud(url, server.endpoint_url, KEY, ACCOUNT)
        return
    from support import gcs_server

    with gcs_server.running() as state:
        yield Cloud(f"gs://{gcs_server.BUCKET}/repo", state.url, gcs_server.WRITER)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [0, 10])
def test_two_hundred_commits_of_eight_processes_to_one_cloud_all_land_once(
    cloud: Cloud, kills: int, tmp_path: Path
) -> None:
    commit_from_many(cloud, tmp_path / "n", writers=8, commits=25, kills=kills, seed=kills)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("act", RACES, ids=lambda act: act.__name__)
def test_of_sixteen_processes_one_creates_in_a_cloud(
    cloud: Cloud, act: Callable[[Place], None], tmp_path: Path
) -> None:
    _race(act, cloud, tmp_path / "notes", writers=16)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("act", RACES, ids=lambda act: act.__name__)
def test_of_sixteen_processes_one_creates_in_a_folder(
    act: Callable[[Place], None], tmp_path: Path
) -> None:
    _race(act, Folder(tmp_path / "repo"), tmp_path / "notes", writers=16)


@pytest.mark.long
@pytest.mark.seaweedfs
@pytest.mark.timeout(900)
@pytest.mark.parametrize("act", RACES, ids=lambda act: act.__name__)
def test_of_sixteen_processes_one_creates_in_a_bucket(
    seaweedfs: SeaweedFS, act: Callable[[Place], None], tmp_path: Path
) -> None:
    _race(act, prefix_of(seaweedfs), tmp_path / "notes", writers=16)
