"""Ours and the official library, doing the same to copies of the same repository."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from support import fixtures
from support.maintenance import keys

from airflow_provider_icechunk import api
from airflow_provider_icechunk.engine.leases import CUTOFF
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage

icechunk = pytest.importorskip("icechunk", reason="compares with the official library")
zarr = pytest.importorskip("zarr")

FUTURE = timedelta(days=1)


def theirs(path: Path) -> icechunk.Repository:
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(path)))


def ours(path: Path) -> api.Repository:
    return api.Repository.open(LocalStorage(path))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by the official library: branches, tags, resets, inline and native chunks."""
    path = tmp_path_factory.mktemp("original") / "repo"
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)))

    def commit(branch: str, value: int) -> str:
        session = repo.writable_session(branch)
        group = zarr.open_group(session.store, mode="a")
        if "large" not in group:
            group.create_array("large", shape=(40, 100), chunks=(10, 100), dtype="i8")
            group.create_array("small", shape=(4,), chunks=(2,), dtype="i4")
        noise = np.random.default_rng(value)
        group["large"][value % 40] = noise.integers(0, 1 << 62, 100)
        group["small"][value % 4] = value
        return session.commit(f"{branch} {value}")

    snapshots = [commit("main", value) for value in range(6)]
    repo.create_tag("v1", snapshots[1])
    repo.create_branch("side", snapshots[3])
    repo.create_branch("doomed", snapshots[2])
    commit("doomed", 20)
    commit("doomed", 21)
    commit("side", 30)
    commit("main", 11)
    commit("main", 12)
    repo.delete_branch("doomed")
    return path


def values(repo: object) -> dict[str, list[np.ndarray]]:
    """What every branch and tag holds, read through either library."""
    sessions = {f"branch {name}": {"branch": name} for name in repo.list_branches()}  # type: ignore[attr-defined]
    sessions |= {f"tag {name}": {"tag": name} for name in repo.list_tags()}  # type: ignore[attr-defined]
    seen = {}
    for name, which in sessions.items():
        group = zarr.open_group(repo.readonly_session(**which).store, mode="r")  # type: ignore[attr-defined]
        seen[name] = [group["large"][:], group["small"][:]]
    return seen


def same(one: dict[str, list[np.ndarray]], two: dict[str, list[np.ndarray]]) -> bool:
    return one.keys() == two.keys() and all(
        np.array_equal(a, b) for name in one for a, b in zip(one[name], two[name], strict=True)
    )


def histories(repo: object) -> dict[str, list[str]]:
    branches = {n: [i.id for i in repo.ancestry(branch=n)] for n in repo.list_branches()}  # type: ignore[attr-defined]
    return branches | {n: [i.id for i in repo.ancestry(tag=n)] for n in repo.list_tags()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("keep", [0, 1, 3, 6, 99])
@pytest.mark.parametrize("delete", [False, True])
def test_expire_and_collect_do_what_the_official_ones_do(
    original: Path, tmp_path: Path, keep: int, delete: bool
) -> None:
    a, b = tmp_path / "ours", tmp_path / "theirs"
    shutil.copytree(original, a)
    shutil.copytree(original, b)
    times = [info.written_at for info in theirs(original).ancestry(branch="main")]
    limit = times[keep] if keep < len(times) else datetime(2000, 1, 1, tzinfo=UTC)
    options = {"delete_expired_branches": delete, "delete_expired_tags": delete}
    planned = ours(a).expire_snapshots(limit, **options, dry_run=True)
    mine, official = (
        ours(a).expire_snapshots(limit, **options),
        theirs(b).expire_snapshots(limit, **options),
    )
    assert mine == planned == official
    assert histories(ours(a)) == histories(theirs(b)) == histories(theirs(a)) == histories(ours(b))
    cutoff = datetime.now(UTC) + FUTURE
    dry = ours(a).garbage_collect(cutoff, dry_run=True)
    done, expected = ours(a).garbage_collect(cutoff), theirs(b).garbage_collect(cutoff)
    for name in (
        "chunks_deleted",
        "manifests_deleted",
        "snapshots_deleted",
        "attributes_deleted",
        "transaction_logs_deleted",
    ):
        assert getattr(done, name) == getattr(dry, name) == getattr(expected, name), name
    # Snapshots that ours rewrote are not compressed to the same length.
    assert keys(LocalStorage(a)) - {CUTOFF} == keys(LocalStorage(b))
    assert same(values(ours(a)), values(theirs(b)))
    assert same(values(theirs(a)), values(ours(b)))
    for path in (a, b):
        assert ours(path).verify().errors == []
        assert not ours(path).garbage_collect(cutoff).bytes_deleted
        assert not theirs(path).garbage_collect(cutoff).bytes_deleted


def test_the_official_library_goes_on_where_ours_left_off(original: Path, tmp_path: Path) -> None:
    path = tmp_path / "repo"
    shutil.copytree(original, path)
    times = [info.written_at for info in ours(path).ancestry(branch="main")]
    cutoff = datetime.now(UTC) + FUTURE
    steps: list[Callable[[Path], object]] = [ours, theirs, ours, theirs]
    expected = values(theirs(path))
    for step, limit in zip(steps, times[4::-1], strict=False):
        repo = step(path)
        repo.expire_snapshots(limit)  # type: ignore[attr-defined]
        repo.garbage_collect(cutoff)  # type: ignore[attr-defined]
        assert same(values(theirs(path)), expected)
        assert same(values(ours(path)), expected)
        assert ours(path).verify().errors == []
    session = theirs(path).writable_session("main")
    zarr.open_group(session.store, mode="a")["small"][0] = 77
    session.commit("theirs")
    session = ours(path).writable_session("main")
    zarr.open_group(session.store, mode="a")["small"][1] = 78
    session.commit("ours")
    assert values(theirs(path))["branch main"][1][:2].tolist() == [77, 78]
    assert ours(path).verify().errors == []


def test_sizes_are_those_of_the_official_library(original: Path) -> None:
    mine, official = ours(original).chunk_storage_stats(), theirs(original).chunk_storage_stats()
    for name in ("native_bytes", "virtual_bytes", "inlined_bytes"):
        assert getattr(mine, name) == getattr(official, name), name
    assert mine.total_bytes() == official.total_bytes() > 0
    assert mine.non_virtual_bytes() == official.non_virtual_bytes()
    with pytest.warns(DeprecationWarning, match="chunk_storage_stats"):
        assert ours(original).total_chunks_storage() == official.native_bytes


def test_rewritten_manifests_split_and_read_as_the_official_ones(
    original: Path, tmp_path: Path
) -> None:
    a, b = tmp_path / "ours", tmp_path / "theirs"
    shutil.copytree(original, a)
    shutil.copytree(original, b)

    def config(package: object) -> object:
        splitting = package.ManifestSplittingConfig.from_dict(  # type: ignore[attr-defined]
            {
                package.ManifestSplitCondition.AnyArray(): {  # type: ignore[attr-defined]
                    package.ManifestSplitDimCondition.Any(): 2  # type: ignore[attr-defined]
                }
            }
        )
        return package.RepositoryConfig(  # type: ignore[attr-defined]
            manifest=package.ManifestConfig(splitting=splitting)  # type: ignore[attr-defined]
        )

    mine = api.Repository.open(LocalStorage(a), config(api))  # type: ignore[arg-type]
    official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(b)), config(icechunk))
    expected = values(theirs(original))
    mine.rewrite_manifests("split", branch="main", metadata={"why": "test"})
    official.rewrite_manifests("split", branch="main", metadata={"why": "test"})
    first, second = next(theirs(a).ancestry(branch="main")), next(theirs(b).ancestry(branch="main"))
    assert first.metadata == second.metadata
    counts = [sorted(file.num_chunk_refs for file in info.manifests) for info in (first, second)]
    assert counts[0] == counts[1]
    assert len(counts[0]) > 1
    assert same(values(theirs(a)), expected)
    assert same(values(ours(b)), expected)
    assert ours(a).verify().errors == ours(b).verify().errors == []


@fixtures.needs_fixtures
@pytest.mark.parametrize("name", fixtures.names("g2-") + fixtures.names("g3-"))
def test_stored_repositories_of_all_ages_verify_and_survive_maintenance(
    name: str, tmp_path: Path
) -> None:
    path, facts = fixtures.unpack(name, tmp_path)
    repo = api.Repository.open(LocalStorage(path))
    assert repo.verify().errors == []
    heads = {branch: repo.lookup_branch(branch) for branch in repo.list_branches()}
    assert heads == facts["branches"]
    repo.measure()
    cutoff = datetime.now(UTC) + FUTURE
    repo.garbage_collect(cutoff)
    assert repo.verify().errors == []
    repo.expire_snapshots(cutoff)
    repo.garbage_collect(cutoff)
    report = api.Repository.open(LocalStorage(path)).verify()
    assert report.errors == []
    assert {branch: repo.lookup_branch(branch) for branch in repo.list_branches()} == heads
    for branch in heads:
        assert len(list(repo.ancestry(branch=branch))) <= 2
