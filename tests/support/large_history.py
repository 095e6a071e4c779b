"""A repository with a very long history and a very large tree."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import zarr

from airflow_provider_icechunk.api import Repository, Session, local_filesystem_storage
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.model import TransactionLog

GROUPS = 100
FIELD = "/field"


def make_large(folder: Path, *, snapshots: int, arrays: int, newest: int = 60) -> Repository:
    """Create it in an empty folder.

    Old commits touch one small array; their files are written without the care of a real commit.
    The newest ones have the whole tree and are real: on three branches, one chunk each.
    """
    repository = Repository.create(local_filesystem_storage(folder))
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="series", shape=(1000,), chunks=(10,), dtype="i4")[:] = 1
    session.commit("begin")
    _plant(repository, folder, snapshots - newest - 3)
    session = repository.writable_session("main")
    _declare(session, arrays)
    field = zarr.create_array(
        session.store, name=FIELD, shape=(64, 256, 512), chunks=(1, 64, 64), dtype="f4",
        dimension_names=["time", "y", "x"], attributes={"units": "K"},
    )  # fmt: skip
    field[:8] = np.random.default_rng(1).normal(280, 10, (8, 256, 512)).astype("f4")
    session.commit("declare everything")
    for name in ("one", "two"):
        repository.create_branch(name, repository.lookup_branch("main"))
    for number in range(newest):
        branch = ("main", "one", "two")[number % 3]
        session = repository.writable_session(branch)
        zarr.open_array(session.store, path=FIELD, mode="r+")[8 + number % 56, :64, :64] = number
        session.commit(f"hour {number} on {branch}")
    return repository


def _plant(repository: Repository, folder: Path, count: int) -> None:
    core = repository.core
    codec, layout = core.refs.codec, core.refs.layout
    base = core.refs.branch("main")
    assert base is not None
    newest = core.objects.snapshot(base)
    node = newest.nodes["/series"].id
    for number in range(count):
        made = replace(
            newest,
            id=SnapshotId(number.to_bytes(12, "big")[::-1]),
            parent_id=newest.id,
            message=f"step {number}",
            flushed_at=newest.flushed_at + 1,
        )
        log = TransactionLog(made.id, updated_chunks={node: np.asarray([[number % 100]], "u4")})
        (folder / layout.snapshot(made.id)).write_bytes(codec.encode_snapshot(made, level=1))
        (folder / layout.transaction(made.id)).write_bytes(codec.encode_log(log, level=1))
        newest = made
    repository.reset_branch("main", core.format_id(newest.id))


def _declare(session: Session, arrays: int) -> None:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [100, 100],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [50, 50]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {"units": "m s-1", "long_name": "one of very many"},
        "dimension_names": ["y", "x"],
    }
    data = json.dumps(document).encode()
    for number in range(arrays):
        session.tree.put_document(f"/g{number % GROUPS:02}/a{number:05}", data)
