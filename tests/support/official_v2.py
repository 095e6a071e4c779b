"""Run by an interpreter that has official `icechunk` 2: reads, writes and cleans a repository.

Usage: `python official_v2.py <action> <folder>`. The last line of the output is a JSON document.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime, timedelta

import icechunk
import numpy as np
import zarr

METADATA = {
    "big": 2**63 + 5,
    "neg": -(2**63),
    "f": 1e300,
    "deep": {"l": [1, None, True, "é", [], {}]},
}


def opened(folder: str) -> icechunk.Repository:
    return icechunk.Repository.open(icechunk.local_filesystem_storage(folder))


def read(folder: str) -> dict[str, object]:
    """Everything that can be seen through branch `main`, and the operations log."""
    repository = opened(folder)
    session = repository.readonly_session("main")
    root = zarr.open_group(session.store, mode="r")
    history = list(repository.ancestry(branch="main"))
    difference = repository.diff(from_snapshot_id=history[-1].id, to_branch="main")
    return {
        "branches": {name: repository.lookup_branch(name) for name in repository.list_branches()},
        "tags": {name: repository.lookup_tag(name) for name in repository.list_tags()},
        "history": [[info.id, info.parent_id, info.message, info.metadata] for info in history],
        "values": {
            path: node[...].tolist()
            for path, node in root.members(max_depth=None)
            if isinstance(node, zarr.Array) and path != "virtual"
        },
        "members": sorted(path for path, _ in root.members(max_depth=None)),
        "locations": sorted(session.all_virtual_chunk_locations()),
        "operations": [type(update.kind).__name__ for update in repository.ops_log()],
        "new": sorted([*difference.new_groups, *difference.new_arrays]),
        "moved": [list(move) for move in difference.moved_nodes],
        "metadata": repository.get_metadata(),
        "threshold": repository.config.inline_chunk_threshold_bytes,
        "status": str(repository.get_status().availability),
        "flags": {flag.name: flag.setting for flag in repository.feature_flags()},
    }


def create(folder: str) -> dict[str, object]:
    """A repository with a bit of everything that generation 2 has."""
    repository = icechunk.Repository.create(
        icechunk.local_filesystem_storage(folder), spec_version=2
    )
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", data=np.arange(200.0).reshape(10, 20), chunks=(3, 7))
    root.create_array("g/b", data=np.arange(6), chunks=(4,), dimension_names=["x"])
    first = session.commit("first", METADATA)
    repository.create_tag("t", first)
    repository.create_branch("dev", first)
    session = repository.writable_session("dev")
    zarr.open_array(session.store, path="a")[0] = -1
    session.commit("dev")
    session = repository.rearrange_session("main")
    session.move("/g", "/h")
    session.commit("moved")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="h/b")[0] = 9
    session.commit("after the move")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="h/b")[1] = 10
    session.amend("amended")
    repository.set_metadata({"owner": "them"})
    repository.set_feature_flag("delete_tag", False)
    return read(folder)


def proceed(folder: str) -> dict[str, object]:
    """Commit, branch and tag on top."""
    repository = opened(folder)
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a")[1] = 77
    zarr.open_group(session.store, mode="a").create_group("theirs")
    repository.create_branch("their-branch", session.commit("theirs", {"by": "them"}))
    repository.create_tag("their-tag", repository.lookup_branch("main"))
    return read(folder)


def clean(folder: str) -> dict[str, object]:
    """Expire everything but tips, then collect."""
    repository = opened(folder)
    later = datetime.now(UTC) + timedelta(seconds=1)
    expired = repository.expire_snapshots(later, delete_expired_branches=True)
    summary = repository.garbage_collect(later + timedelta(days=1))
    found = read(folder)
    found["expired"] = sorted(expired)
    found["deleted"] = summary.snapshots_deleted
    return found


if __name__ == "__main__":
    action = {"read": read, "create": create, "proceed": proceed, "clean": clean}[sys.argv[1]]
    print(json.dumps(action(sys.argv[2])), flush=True)
    os._exit(0)  # Threads of the library do not always survive the end of the interpreter.
