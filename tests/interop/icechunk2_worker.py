"""Runs in an interpreter with official icechunk 2: reads a repository, commits, and reports."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from typing import Any

import icechunk
import numpy as np
import zarr


def describe(session: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    root = zarr.open_group(session.store, mode="r")
    for path, node in [("", root), *root.members(max_depth=None)]:
        facts: dict[str, Any] = {"attributes": dict(node.attrs)}
        if isinstance(node, zarr.Array):
            values = np.ascontiguousarray(node[...])
            facts |= {
                "shape": list(node.shape),
                "sha256": hashlib.sha256(values.tobytes()).hexdigest(),
                "chunks": asyncio.run(coordinates(session, path)),
            }
        found[f"/{path}"] = facts
    return found


async def coordinates(session: Any, path: str) -> list[list[int]]:
    return sorted([list(index) async for index in session.chunk_coordinates(f"/{path}")])


def read(path: str) -> dict[str, Any]:
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(path))
    return describe(repo.readonly_session("main"))


def commit(path: str) -> dict[str, Any]:
    repo = icechunk.Repository.open(icechunk.local_filesystem_storage(path))
    before = describe(repo.readonly_session("main"))
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("theirs/new", data=np.arange(24.0).reshape(4, 6), chunks=(3, 4))
    root["a"][1:3] = 77
    root["a-b"].resize((9,))
    root["a-b"][8] = 8
    del root["gone"]
    root.attrs["by"] = "official 2"
    snapshot = session.commit("by the other", metadata={"n": [1, None, 2.5], "t": "x"})
    repo.create_tag("theirs", snapshot)
    info = [(i.id, i.parent_id, i.message) for i in repo.ancestry(branch="main")]
    after = describe(repo.readonly_session("main"))
    return {"before": before, "after": after, "history": info, "head": snapshot}


if __name__ == "__main__":
    print(json.dumps({"read": read, "commit": commit}[sys.argv[1]](sys.argv[2])), flush=True)
    os._exit(0)  # Threads of the library do not always survive the end of the interpreter.
