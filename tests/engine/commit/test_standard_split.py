"""New repositories split the manifests of large arrays; what a commit costs follows its change."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.recording import RecordingStorage

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.commit.manifest_layout import (
    SplitGrid,
    array_grid,
    finer_grid,
    shown_grid,
)
from airflow_provider_icechunk.engine.format.config.conditions import (
    STANDARD_SPLIT,
    standard_splitting,
)
from airflow_provider_icechunk.engine.format.ids import ManifestId
from airflow_provider_icechunk.engine.format.model import ManifestRef
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage

PREFIX = "s3://archive/"
MOST = 1 << 15


def with_container(**more: object) -> icechunk.RepositoryConfig:
    config = icechunk.RepositoryConfig(**more)
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(PREFIX, icechunk.s3_store(region="us-east-1"))
    )
    return config


def fill(repo: icechunk.Repository, steps: int, first: int = 0) -> str:
    session = repo.writable_session("main")
    if not first:
        zarr.create_array(
            session.store, name="a", shape=(12_000,), chunks=(1,), dtype="u1", compressors=None
        )
    numbers = np.arange(steps, dtype=np.uint64)
    session.store.set_virtual_refs_arr(
        "a", (steps,), [f"{PREFIX}file"] * steps, numbers, numbers + 1, arr_offset=(first,)
    )
    return session.commit("references")


def extents(repo: icechunk.Repository) -> list[tuple[tuple[int, int], ...]]:
    snapshot = repo._core.objects.snapshot(repo._core.refs.branch("main"))
    return [ref.extents for ref in snapshot.nodes["/a"].array.manifests]


def change(repo: icechunk.Repository, place: int) -> str:
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[place] = 7
    return session.commit("one chunk")


@pytest.mark.parametrize("spec_version", ["1", "2"])
def test_a_new_repository_stores_the_standard_rules(spec_version: str) -> None:
    storage = MemoryStorage()
    repo = icechunk.Repository.create(storage, spec_version=spec_version)
    stored = icechunk.Repository.fetch_config(storage)
    assert stored.manifest.splitting == standard_splitting() == repo.config.manifest.splitting


@pytest.mark.parametrize("rules", [{}, {icechunk.ManifestSplitCondition.AnyArray(): {}}])
def test_rules_of_the_creator_replace_the_standard_ones(rules: dict[object, object]) -> None:
    chosen = icechunk.ManifestSplittingConfig.from_dict(rules)
    config = icechunk.RepositoryConfig(manifest=icechunk.ManifestConfig(splitting=chosen))
    storage = MemoryStorage()
    icechunk.Repository.create(storage, config)
    assert icechunk.Repository.fetch_config(storage).manifest.splitting == chosen


@pytest.mark.parametrize("spec_version", ["1", "2"])
def test_a_commit_of_one_chunk_loads_and_writes_one_manifest(spec_version: str) -> None:
    storage = RecordingStorage(MemoryStorage())
    repo = icechunk.Repository.create(storage, with_container(), spec_version=spec_version)
    first = fill(repo, 9000)
    assert extents(repo) == [((0, 4096),), ((4096, 8192),), ((8192, 9000),)]
    kept = {file.id for file in repo.list_manifest_files(first)}
    again = icechunk.Repository.open(storage)
    storage.puts.clear()
    second = change(again, 5000)
    assert storage.folders["manifests"] == 1
    assert len({file.id for file in repo.list_manifest_files(second)} & kept) == 2
    objects = again._core.objects
    files = objects.snapshot(again._core.refs.branch("main")).manifest_files
    assert sum(objects._manifests.peek(identity) is not None for identity in files) == 1
    assert repo.verify().ok


def test_growth_touches_the_last_manifest_alone() -> None:
    repo = icechunk.Repository.create(MemoryStorage(), with_container())
    fill(repo, 8500)
    ids = {file.id for file in repo.list_manifest_files(repo.lookup_branch("main"))}
    fill(repo, 100, first=8500)
    assert len({f.id for f in repo.list_manifest_files(repo.lookup_branch("main"))} & ids) == 2
    assert extents(repo)[-1] == ((8192, 8600),)


def test_a_writer_without_rules_keeps_the_boundaries_it_finds() -> None:
    storage = MemoryStorage()
    rules = icechunk.ManifestSplittingConfig.from_dict(
        {
            icechunk.ManifestSplitCondition.AnyArray(): {
                icechunk.ManifestSplitDimCondition.Axis(0): 3000
            }
        }
    )
    none = icechunk.ManifestConfig(splitting=icechunk.ManifestSplittingConfig.from_dict({}))
    repo = icechunk.Repository.create(storage, with_container(manifest=none))
    ruled = icechunk.Repository.open(
        storage, with_container(manifest=icechunk.ManifestConfig(splitting=rules))
    )
    fill(ruled, 9000)
    ids = {file.id for file in repo.list_manifest_files(repo.lookup_branch("main"))}
    change(icechunk.Repository.open(storage), 4000)
    assert extents(repo) == [((0, 3000),), ((6000, 9000),), ((3000, 6000),)]
    assert len({f.id for f in repo.list_manifest_files(repo.lookup_branch("main"))} & ids) == 2


def test_rewriting_brings_the_standard_rules_to_a_repository_without_any() -> None:
    storage = MemoryStorage()
    none = icechunk.ManifestConfig(splitting=icechunk.ManifestSplittingConfig.from_dict({}))
    repo = icechunk.Repository.create(storage, with_container(manifest=none))
    fill(repo, 9000)
    assert len(extents(repo)) == 1
    storage.delete(["config.yaml"])
    old = icechunk.Repository.open(storage)
    old.rewrite_manifests("split", branch="main")
    assert extents(old) == [((0, 4096),), ((4096, 8192),), ((8192, 9000),)]
    opened = icechunk.Repository.open(storage)
    assert opened.config.manifest.splitting == standard_splitting()
    change(opened, 9)
    assert len(extents(opened)) == 3
    assert opened.verify().ok


@pytest.mark.parametrize(
    ("grid", "sizes"),
    [
        ((10**8,), (4096,)),
        ((10**5, 1000), (32, 1024)),
        ((700_000, 37, 1, 1), (512, 64, 1, 1)),
        ((64, 1000, 1000), (1, 32, 1024)),
        ((3, 40_000), (1, 32_768)),
        ((5,), (4096,)),
        ((0, 7), (4096, 8)),
        ((), ()),
    ],
)
def test_large_arrays_are_cut_along_their_first_dimensions(
    grid: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    assert array_grid(standard_splitting(), "/a", None, grid, ()).sizes == sizes


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=4), st.integers(1, 10**6))
def test_boxes_are_small_and_growth_of_the_first_dimension_keeps_them(
    counts: list[int], longer: int
) -> None:
    sizes = array_grid(standard_splitting(), "/a", None, counts, ()).sizes
    rows = np.prod([min(size, count) for size, count in zip(sizes, counts, strict=True)])
    assert rows <= MOST
    assert sizes[0] <= STANDARD_SPLIT
    assert array_grid(standard_splitting(), "/a", None, [longer, *counts[1:]], ()).sizes == sizes
    wider = [counts[0], *(count * 2 for count in counts[1:])]
    for old, new in zip(
        sizes, finer_grid(SplitGrid(tuple(wider), (4096, *wider[1:]))).sizes, strict=True
    ):
        assert max(old, new) % min(old, new) == 0


def ref(number: int, *box: tuple[int, int]) -> ManifestRef:
    return ManifestRef(ManifestId(bytes([number]) * 12), box)


@pytest.mark.parametrize(
    ("boxes", "sizes"),
    [
        ([((0, 10),), ((10, 20),), ((20, 23),)], (10,)),
        ([((0, 4), (0, 9)), ((4, 8), (0, 9))], (4, 100)),
        ([((0, 4),), ((3, 8),)], None),
        ([((0, 4),), ((0, 4),)], None),
        ([((0, 100),)], None),
        ([((0, 7),), ((9, 20),)], None),
    ],
)
def test_a_regular_cut_is_recognised(
    boxes: list[tuple[tuple[int, int], ...]], sizes: tuple[int, ...] | None
) -> None:
    stored = [ref(number, *box) for number, box in enumerate(boxes)]
    found = shown_grid(stored, [100] * len(boxes[0]))
    assert (None if found is None else found.sizes) == sizes
