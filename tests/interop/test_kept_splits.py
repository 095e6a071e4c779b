"""Official writers keep the manifests of a new repository split."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from support import actors

import airflow_provider_icechunk.api as icechunk

PREFIX = "s3://archive/"
ONE_CHUNK = """
import sys, zarr, icechunk
repo = icechunk.Repository.open(icechunk.local_filesystem_storage(sys.argv[1]))
session = repo.writable_session("main")
zarr.open_array(session.store, path="a")[int(sys.argv[2])] = 7
session.commit("official")
"""


def with_references(path: Path, spec_version: str, steps: int) -> icechunk.Repository:
    config = icechunk.RepositoryConfig()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(PREFIX, icechunk.s3_store(region="us-east-1"))
    )
    repo = icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(path)), config, spec_version=spec_version
    )
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(steps, 20), chunks=(1, 1), dtype="u1", compressors=None
    )
    numbers = np.arange(steps * 20, dtype=np.uint64)
    session.store.set_virtual_refs_arr(
        "a", (steps, 20), [f"{PREFIX}file"] * (steps * 20), numbers, numbers + 1
    )
    session.commit("references")
    return repo


def manifests(repo: icechunk.Repository) -> set[str]:
    return {file.id for file in repo.list_manifest_files(repo.lookup_branch("main"))}


@pytest.mark.parametrize(
    ("release", "spec_version"),
    [
        ("1", "1"),
        pytest.param("2", "1", marks=actors.needs_icechunk2),
        pytest.param("2", "2", marks=actors.needs_icechunk2),
    ],
)
def test_an_official_commit_rewrites_the_part_it_touches(
    release: str, spec_version: str, tmp_path: Path
) -> None:
    repo = with_references(tmp_path, spec_version, 9000)
    before = manifests(repo)
    assert len(before) == 9  # 1024 steps of 20 chunks each
    python = (actors.PYTHON if release == "2" else None) or sys.executable
    command = [python, "-c", ONE_CHUNK, str(tmp_path), "5000"]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    after = manifests(repo)
    # Four parts of ours lie within the 4096 steps of the stored rule.
    assert len(before & after) == 5
    assert len(after - before) == 1
    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a")[4096] = 3
    session.commit("ours again")
    array = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert array[5000].tolist() == [7] * 20
    assert array[4096].tolist() == [3] * 20
    assert len(manifests(repo)) == 9
    assert repo.verify().ok
