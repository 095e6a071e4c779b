"""Run by an interpreter that has official `icechunk` 2: migrates, or reads and continues.

Usage: `python official_migration.py migrate|continue <folder>...`. `continue` prints one line of
JSON at its end: what each repository showed before a commit on top of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

import icechunk
import numpy as np
import zarr


def opened(folder: str) -> icechunk.Repository:
    return icechunk.Repository.open(icechunk.local_filesystem_storage(folder))


def migrate(folder: str) -> None:
    icechunk.upgrade_icechunk_repository(
        opened(folder), dry_run=False, delete_unused_v1_files=False
    )


def proceed(folder: str) -> dict[str, object]:
    """Everything that is seen; then a commit, an amendment, a tag and a clean-up."""
    repository = opened(folder)
    session = repository.readonly_session("main")
    root = zarr.open_group(session.store, mode="r")
    history = list(repository.ancestry(branch="main"))
    seen = {
        "branches": {name: repository.lookup_branch(name) for name in repository.list_branches()},
        "tags": {name: repository.lookup_tag(name) for name in repository.list_tags()},
        "history": [[info.id, info.message, info.metadata] for info in history],
        "arrays": {
            f"/{path}": digest(node)
            for path, node in root.members(max_depth=None)
            if isinstance(node, zarr.Array) and not is_virtual(session, path)
        },
        "operations": [type(update.kind).__name__ for update in repository.ops_log()],
        "spec": int(repository.spec_version),
    }
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a").create_array("theirs", data=np.arange(4.0))
    session.commit("theirs")
    session = repository.writable_session("main")
    zarr.open_group(session.store, mode="a").attrs["amended"] = True
    head = session.amend("amended")
    repository.create_tag("their tag", head)
    return {**seen, "head": head}


def is_virtual(session: object, path: str) -> bool:
    import asyncio

    async def any_virtual() -> bool:
        async for index in session.chunk_coordinates(f"/{path}"):
            kind = str(session.chunk_type(f"/{path}", list(index)))
            if kind.lower().endswith("virtual"):
                return True
        return False

    return asyncio.run(any_virtual())


def digest(node: zarr.Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(node[...]).tobytes()).hexdigest()


if __name__ == "__main__":
    if sys.argv[1] == "migrate":
        for one in sys.argv[2:]:
            migrate(one)
    else:
        print(json.dumps([proceed(one) for one in sys.argv[2:]]), flush=True)
    os._exit(0)  # Threads of the library do not always survive the end of the interpreter.
