"""Official icechunk 2 on a repository of ours in format `1`, and ours on top of its commits.

It cannot live in one interpreter with icechunk 1.1; `ICECHUNK2_PYTHON` names one that has it.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import zarr
from icechunk2_worker import describe
from support import actors

import airflow_provider_icechunk.api as icechunk

WORKER = Path(__file__).with_name("icechunk2_worker.py")

pytestmark = actors.needs_icechunk2


def run_other(what: str, path: Path) -> dict:
    assert actors.PYTHON is not None
    command = [actors.PYTHON, str(WORKER), what, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_version_2_reads_ours_and_we_read_its_commits(tmp_path):
    path = tmp_path / "repo"
    splitting = icechunk.ManifestSplittingConfig.from_dict(
        {icechunk.ManifestSplitCondition.AnyArray(): {icechunk.ManifestSplitDimCondition.Any(): 2}}
    )
    config = icechunk.RepositoryConfig(manifest=icechunk.ManifestConfig(splitting=splitting))
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(path), config)
    repo.save_config()
    session = repo.writable_session("main")
    root = zarr.group(session.store, attributes={"ours": [1, "ü"]})
    root.create_array("a", data=np.arange(900, dtype="i4").reshape(3, 300), chunks=(1, 300))
    root.create_array("a-b", data=np.arange(7.0), chunks=(2,), dimension_names=["x"])
    root.create_array("g/a", data=np.array(5), attributes={"unit": "K"})
    root.create_group("gone/below")
    session.commit("by us", {"k": {"nested": [1]}})

    told = run_other("commit", path)
    ours = repo.readonly_session(snapshot_id=told["history"][1][0])
    assert told["before"] == describe(ours)
    assert repo.lookup_branch("main") == repo.lookup_tag("theirs") == told["head"]
    assert [[i.id, i.parent_id, i.message] for i in repo.ancestry(branch="main")] == told["history"]
    assert describe(repo.readonly_session("main")) == told["after"]
    assert repo.lookup_snapshot(told["head"]).metadata["n"] == [1, None, 2.5]
    diff = repo.diff(from_snapshot_id=told["history"][1][0], to_branch="main")
    assert diff.new_arrays == {"/theirs/new"}
    assert diff.deleted_groups == {"/gone", "/gone/below"}
    assert diff.updated_chunks["/a-b"] == [[4]]

    session = repo.writable_session("main")
    zarr.open_array(session.store, path="a-b")[0] = -1
    zarr.open_group(session.store).create_group("gone")
    session.commit("by us again")
    assert run_other("read", path) == describe(repo.readonly_session("main"))
