"""Run by an interpreter that has an official `icechunk`: prints what it sees in a repository.

Usage: `python official_reader.py <folder>`. The last line of the output is a JSON document. It ends
with a commit of its own, so the folder must be a copy.
"""

from __future__ import annotations

import json
import sys

import icechunk
import zarr


def main(folder: str) -> None:
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(folder))
    session = repository.readonly_session("main")
    root = zarr.open_group(session.store, mode="r")
    history = list(repository.ancestry(branch="main"))
    difference = repository.diff(from_snapshot_id=history[-1].id, to_branch="main")
    seen = {
        "version": icechunk.__version__,
        "history": [[info.id, info.message, info.metadata] for info in history],
        "arrays": {
            path: node[...].tolist()
            for path, node in root.members(max_depth=None)
            if isinstance(node, zarr.Array) and path != "virtual"
        },
        "members": sorted(path for path, _ in root.members(max_depth=None)),
        "attributes": dict(root.attrs),
        "locations": sorted(session.all_virtual_chunk_locations()),
        "tags": sorted(repository.list_tags()),
        "new": sorted([*difference.new_groups, *difference.new_arrays]),
        "chunks": {
            path: sorted(map(list, rows)) for path, rows in difference.updated_chunks.items()
        },
    }
    writable = repository.writable_session("main")
    zarr.open_group(writable.store, mode="r+")["inline"][0] = 99
    seen["commit"] = writable.commit("on top")
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1])
