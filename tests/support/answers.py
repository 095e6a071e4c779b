"""Calls whose results would differ silently, made to either library.

Run by the interpreter of official 2.x, and imported for ours. The answers are plain JSON values.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import zarr

PAST = datetime(2000, 1, 1, tzinfo=UTC)
SECOND = 1_700_000_000


def answers(icechunk: Any, folder: Path) -> dict[str, Any]:
    """All answers, by what was asked; `icechunk` is the library."""
    return {
        "kinds of chunks": _kinds(icechunk, folder / "kinds"),
        "keys below a path": _keys(icechunk, folder / "keys"),
        "what expired": _expired(icechunk, folder / "expired"),
        "a closed repository": _closed(icechunk, folder / "closed"),
        "virtual chunks": _virtual(icechunk, folder / "virtual"),
        "the operations log": _operations(icechunk, folder / "operations"),
        "generations": _generations(icechunk, folder / "generations"),
    }


def _create(icechunk: Any, folder: Path, config: Any = None, **options: Any) -> Any:
    storage = icechunk.local_filesystem_storage(str(folder))
    return icechunk.Repository.create(storage, config, spec_version=2, **options)


def _kinds(icechunk: Any, folder: Path) -> Any:
    repo = _create(icechunk, folder, icechunk.RepositoryConfig(inline_chunk_threshold_bytes=8))
    session = repo.writable_session("main")
    root = zarr.group(session.store)
    for name, shape in (("small", 4), ("large", 64)):
        options: dict[str, Any] = {"chunks": (shape // 2,), "compressors": None}
        root.create_array(name, shape=(shape,), dtype="u1", fill_value=0, **options)[:] = 1

    async def columns(path: str) -> Any:
        return [table[1] async for table in session.store.array_chunk_iterator(path)]

    kinds = icechunk.ChunkType
    found = {}
    for path in ("small", "large"):
        (column,) = asyncio.run(columns(path))
        for name in ("native", "inline", "virtual"):
            found[path, name] = (column == getattr(kinds, name)).tolist()
    found["number"] = [int(kinds.native), kinds.native == 1, kinds.native == 2]
    found["one"] = session.chunk_type("/large", [0]) == kinds.native
    return {str(key): value for key, value in found.items()}


def _keys(icechunk: Any, folder: Path) -> Any:
    session = _create(icechunk, folder).writable_session("main")
    root = zarr.group(session.store)
    for path in ("foo/a", "foo/ab", "foo-bar/b", "foo.x/c", "foobar"):
        root.create_array(path, shape=(12,), chunks=(1,), dtype="i4", fill_value=0)[:] = 1

    async def keys(prefix: str) -> list[str]:
        return sorted([key async for key in session.store.list_prefix(prefix)])

    prefixes = ("", "foo", "foo/", "foo-bar", "foo/a", "foo/a/", "foobar")
    sizes = {path: root[path].nbytes_stored() for path in ("foo/a", "foobar")}
    return {
        "keys": {prefix: asyncio.run(keys(prefix)) for prefix in prefixes},
        "same size": sizes["foo/a"] == sizes["foobar"],
    }


def _commits(repo: Any, count: int) -> list[str]:
    made = []
    for number in range(count):
        session = repo.writable_session("main")
        zarr.open_group(session.store, mode="a").attrs["number"] = number
        made.append(session.commit(f"{number}"))
    return made


def _expired(icechunk: Any, folder: Path) -> Any:
    repo = _create(icechunk, folder)
    first = repo.lookup_branch("main")
    old, *_, new = _commits(repo, 3)
    repo.expire_snapshots(datetime.now(UTC))
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="a").attrs["number"] = "flushed"
    flushed = session.flush("no branch names it")
    asked: dict[str, Callable[[str], object]] = {
        "session": lambda one: repo.readonly_session(snapshot_id=one).snapshot_id,
        "info": lambda one: repo.lookup_snapshot(one).message,
        "history": lambda one: next(iter(repo.ancestry(snapshot_id=one))).message,
        "diff": lambda one: repo.diff(from_snapshot_id=first, to_snapshot_id=one),
        "branch": lambda one: repo.create_branch(f"at-{one}", one),
    }
    ids = {"old": old, "new": new, "flushed": flushed}
    return {f"{n} {w}": _works(ask, one) for n, one in ids.items() for w, ask in asked.items()}


def _closed(icechunk: Any, folder: Path) -> Any:
    repo = _create(icechunk, folder)
    (first,) = _commits(repo, 1)
    storage = icechunk.local_filesystem_storage(str(folder))
    other = icechunk.Repository.open(storage)
    other.lookup_branch("main")
    read_only = icechunk.RepoStatus(
        icechunk.RepoAvailability.read_only, limited_availability_reason="moving house"
    )
    repo.set_status(read_only)
    found = {}
    for name, one in (("own", repo), ("other", other)):
        found |= {
            f"{name} writable": _works(one.writable_session, "main"),
            f"{name} rearrange": _works(one.rearrange_session, "main"),
            f"{name} transaction": _works(_enter, one),
            f"{name} reading": _works(one.readonly_session, "main"),
            f"{name} branch": _works(one.create_branch, "b", first),
            f"{name} collection": _works(one.garbage_collect, PAST),
            f"{name} expiry": _works(one.expire_snapshots, PAST),
        }
    repo.set_status(icechunk.RepoStatus(icechunk.RepoAvailability.online))
    return found | {"again": _works(other.writable_session, "main")}


def _enter(repo: Any) -> None:
    with repo.transaction("main", message="never") as store:
        zarr.open_group(store, mode="a").attrs["number"] = 1


def _virtual(icechunk: Any, folder: Path) -> Any:
    files = folder / "files"
    files.mkdir(parents=True)
    file, prefix = files / "a.bin", f"file://{files}/"
    file.write_bytes(bytes(range(64)))
    config = icechunk.RepositoryConfig.default()
    store = icechunk.local_filesystem_store(str(files))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store, name="files"))
    repo = _create(icechunk, folder / "repo", config, authorize_virtual_chunk_access={prefix: None})
    session = repo.writable_session("main")
    options: dict[str, Any] = {"dtype": "u1", "compressors": None, "fill_value": 0}
    number = zarr.group(session.store).create_array("number", shape=(), **options)
    line = zarr.group(session.store).create_array("line", shape=(4,), chunks=(4,), **options)
    places = [f"{prefix}a.bin"], np.array([7], np.uint64), np.array([1], np.uint64)
    refused = session.store.set_virtual_refs_arr("number", (), *places)
    found: dict[str, Any] = {"number": [refused, int(number[()])]}
    for name, location in (("whole", f"{prefix}a.bin"), ("by name", "vcc://files/a.bin")):
        session.store.set_virtual_ref("line/c/0", location, offset=0, length=4)
        urls = session.all_virtual_chunk_locations()
        found[name] = sorted({url.removeprefix(prefix) for url in urls})
    for late in (-1, 0, 1, 400_000_000, 999_999_999, 1_000_000_000):
        os.utime(file, ns=(SECOND * 10**9 + late, SECOND * 10**9 + late))
        when = datetime.fromtimestamp(SECOND, UTC)
        session.store.set_virtual_ref(
            "line/c/0", f"{prefix}a.bin", offset=0, length=4, checksum=when
        )
        found[f"{late} ns later"] = _works(lambda: line[:])
    return found


def _operations(icechunk: Any, folder: Path) -> Any:
    repo = _create(icechunk, folder)
    _commits(repo, 1)
    repo.garbage_collect(PAST, dry_run=True)
    repo.expire_snapshots(PAST)
    repo.garbage_collect(PAST)
    return [type(update.kind).__name__ for update in repo.ops_log()]


def _generations(icechunk: Any, folder: Path) -> Any:
    found = {}
    for number in (1, 2):
        storage = icechunk.local_filesystem_storage(str(folder / str(number)))
        repo = icechunk.Repository.create(storage, spec_version=number)
        for version in (repo.spec_version, icechunk.Repository.fetch_spec_version(storage)):
            found[number] = [version >= 2, version < 2, version == number, version != number]
    empty = icechunk.local_filesystem_storage(str(folder / "none"))
    return found | {"none": icechunk.Repository.fetch_spec_version(empty)}


def _works(ask: Callable[..., object], *arguments: object) -> bool:
    try:
        ask(*arguments)
    except Exception:  # noqa: BLE001 - the classes differ, that it is refused must not
        return False
    return True


if __name__ == "__main__":
    import icechunk

    print(json.dumps(answers(icechunk, Path(sys.argv[1]))), flush=True)
    os._exit(0)  # Threads of the library do not always survive the end of the interpreter.
