"""The actions of one actor in its turn on a repository, with whichever library it has.

The official library of version 2 cannot live in one interpreter with version 1: run as a script by
its interpreter, this module reads one request per line and answers with one line of JSON each.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import zarr

LATER = timedelta(days=1)


def perform(library: Any, folder: str, action: str, arguments: dict[str, Any]) -> Any:
    """One turn: open the repository as a new process would and do something."""
    repo = library.Repository.open(library.local_filesystem_storage(folder))
    return ACTIONS[action](library, repo, **arguments)


def view(library: Any, repo: Any) -> dict[str, Any]:
    """Everything that can be seen through branches and tags."""
    del library
    branches = {name: repo.lookup_branch(name) for name in sorted(repo.list_branches())}
    tags = {name: repo.lookup_tag(name) for name in sorted(repo.list_tags())}
    heads = {*branches.values(), *tags.values()}
    return {
        "branches": branches,
        "tags": tags,
        "history": {
            head: [
                [info.id, info.parent_id, info.message, info.written_at.isoformat(), info.metadata]
                for info in repo.ancestry(snapshot_id=head)
            ]
            for head in sorted(heads)
        },
        "trees": {
            head: tree(repo.readonly_session(snapshot_id=head).store) for head in sorted(heads)
        },
    }


def tree(store: Any) -> dict[str, Any]:
    """Attributes of all nodes and values of all arrays."""
    try:
        root = zarr.open_group(store, mode="r")
    except FileNotFoundError:
        return {}
    members = [("", root), *root.members(max_depth=None)]
    return {
        f"/{path}": [
            dict(node.attrs),
            node[...].tolist() if isinstance(node, zarr.Array) else None,
        ]
        for path, node in sorted(members, key=lambda member: member[0])
    }


def change(
    library: Any,
    repo: Any,
    *,
    branch: str,
    edits: list[list[Any]],
    message: str,
    how: str,
    metadata: dict[str, Any] | None = None,
) -> str:
    """Edit the head of a branch and commit or amend; the new snapshot."""
    del library
    session = repo.writable_session(branch)
    for name, *rest in edits:
        EDITS[name](session, *rest)
    return getattr(session, how)(message, metadata=metadata or {})


def rearrange(
    library: Any, repo: Any, *, branch: str, moves: list[list[str]], message: str, how: str
) -> str:
    """Move nodes and commit or amend."""
    del library
    session = repo.rearrange_session(branch)
    for source, target in moves:
        session.move(source, target)
    return getattr(session, how)(message)


def race(
    library: Any, repo: Any, *, branch: str, ours: list[list[Any]], theirs: list[list[Any]]
) -> list[str]:
    """Two sessions on one head: the second one rebases over the first."""
    sessions = [repo.writable_session(branch) for _ in range(2)]
    for session, edits in zip(sessions, (theirs, ours), strict=True):
        for name, *rest in edits:
            EDITS[name](session, *rest)
    return [
        sessions[0].commit("quick"),
        sessions[1].commit("late", rebase_with=library.BasicConflictSolver()),
    ]


def race_moves(
    library: Any, repo: Any, *, branch: str, moves: list[list[str]], theirs: list[list[Any]]
) -> list[str]:
    """One session edits while another moves nodes: the moves are rebased over the edits."""
    moving, other = repo.rearrange_session(branch), repo.writable_session(branch)
    for source, target in moves:
        moving.move(source, target)
    for name, *rest in theirs:
        EDITS[name](other, *rest)
    return [
        other.commit("quick"),
        moving.commit("moved late", rebase_with=library.ConflictDetector()),
    ]


_BEGUN: dict[str, Any] = {}
"""The session that `begin` left for `end`."""


def begin(library: Any, repo: Any, *, branch: str, edits: list[list[Any]]) -> None:
    """Edit the head of a branch in a session that a later turn commits."""
    del library
    session = _BEGUN["session"] = repo.writable_session(branch)
    for name, *rest in edits:
        EDITS[name](session, *rest)


def end(library: Any, repo: Any, *, message: str) -> str:
    """Commit what was begun, rebased over everything committed meanwhile."""
    del repo
    session = _BEGUN.pop("session")
    return session.commit(message, rebase_with=library.BasicConflictSolver())


def expire(library: Any, repo: Any, *, number: int) -> list[str]:
    """Expire everything older than the `number`-th snapshot of `main`."""
    del library
    history = list(repo.ancestry(branch="main"))
    limit = history[min(number, len(history) - 1)].written_at
    return sorted(repo.expire_snapshots(limit))


def collect(library: Any, repo: Any) -> list[int]:
    """Collect all garbage, however young."""
    del library
    summary = repo.garbage_collect(datetime.now(UTC) + LATER)
    return [
        summary.snapshots_deleted,
        summary.transaction_logs_deleted,
        summary.manifests_deleted,
        summary.chunks_deleted,
    ]


def name_version(library: Any, repo: Any, *, name: str, kind: str, branch: str) -> None:
    """Create a branch or a tag at the head of a branch."""
    del library
    getattr(repo, f"create_{kind}")(name, repo.lookup_branch(branch))


def forget(library: Any, repo: Any, *, name: str, kind: str) -> None:
    """Delete a branch or a tag."""
    del library
    getattr(repo, f"delete_{kind}")(name)


def reset(library: Any, repo: Any, *, name: str, number: int) -> None:
    """Move a branch back in its history."""
    del library
    history = [info.id for info in repo.ancestry(branch=name)]
    repo.reset_branch(name, history[min(number, len(history) - 1)])


def inspect(library: Any, repo: Any, *, branch: str) -> dict[str, Any]:
    """Everything that the inspecting functions return for the newest commit of a branch."""
    del library
    head = repo.lookup_branch(branch)
    snapshot = repo.inspect_snapshot(head)
    files = repo.list_manifest_files(head)
    return {
        "snapshot": json.loads(snapshot) if isinstance(snapshot, str) else snapshot,
        "log": repo.inspect_transaction_log(head),
        "repo": repo.inspect_repo_info(),
        "files": [[file.id, file.size_bytes, file.num_chunk_refs] for file in files],
        "manifests": [repo.inspect_manifest(file.id) for file in files],
    }


def locations(library: Any, repo: Any) -> list[str]:
    """Where the virtual chunks of `main` are."""
    del library
    return sorted(set(repo.readonly_session("main").all_virtual_chunk_locations()))


def settings(library: Any, repo: Any) -> dict[str, Any]:
    """Those settings of the repository that only generation 2 uses."""
    del library
    config = repo.config
    retries = config.repo_update_retries.default
    compression = config.manifest.virtual_chunk_location_compression
    return {
        "updates": config.num_updates_per_repo_info_file,
        "retries": [retries.max_tries, retries.initial_backoff_ms, retries.max_backoff_ms],
        "from": compression.min_num_chunks,
        "samples": compression.dictionary_max_training_samples,
        "size": compression.dictionary_max_size_bytes,
        "level": compression.compression_level,
    }


def make_group(session: Any, path: str, attributes: dict[str, Any]) -> None:
    zarr.create_group(session.store, path=path, attributes=attributes)


def make_array(session: Any, path: str, size: int) -> None:
    zarr.create_array(
        session.store,
        name=path,
        shape=(size, 200),
        chunks=(1, 200),
        dtype="i4",
        fill_value=-1,
        compressors=None,
    )


def write_rows(session: Any, path: str, start: int, stop: int, value: int) -> None:
    zarr.open_array(session.store, path=path, mode="r+")[start:stop] = value


def resize(session: Any, path: str, size: int) -> None:
    zarr.open_array(session.store, path=path, mode="r+").resize((size, 200))


def put_attributes(session: Any, path: str, attributes: dict[str, Any]) -> None:
    zarr.open(session.store, path=path, mode="r+").attrs.put(attributes)


def delete_node(session: Any, path: str) -> None:
    asyncio.run(session.store.delete_dir(path))


def shift(session: Any, path: str, offset: list[int]) -> None:
    session.shift_array(f"/{path}", offset)


def reverse(session: Any, path: str, size: int, *, both: bool) -> None:
    def mirrored(index: Any) -> list[int] | None:
        first, second = index
        return None if first == 0 else [size - 1 - first, second]

    session.reindex_array(f"/{path}", mirrored, mirrored if both else None)


EDITS = {
    "group": make_group,
    "array": make_array,
    "write": write_rows,
    "resize": resize,
    "attributes": put_attributes,
    "delete": delete_node,
    "shift": shift,
    "reverse": lambda session, path, size: reverse(session, path, size, both=False),
    "mirror": lambda session, path, size: reverse(session, path, size, both=True),
}
ACTIONS = {
    "view": view,
    "change": change,
    "rearrange": rearrange,
    "race": race,
    "race moves": race_moves,
    "begin": begin,
    "end": end,
    "expire": expire,
    "collect": collect,
    "name": name_version,
    "forget": forget,
    "reset": reset,
    "inspect": inspect,
    "locations": locations,
    "settings": settings,
}


def main() -> None:
    """Serve requests until the input ends."""
    import icechunk

    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"done": perform(icechunk, **request)}
        except Exception as error:  # noqa: BLE001 - any failure is an answer
            answer = {"failed": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
