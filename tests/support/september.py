"""A repository as software of September 2024 wrote it, built by hand from what is known of it."""

from __future__ import annotations

import json
from typing import Any

import msgpack
from support.early import MANIFEST, PARENT, SNAPSHOT

from airflow_provider_icechunk.engine.format.ids import ChunkId, SnapshotId, encode_base32
from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage

CHUNK = ChunkId(bytes(range(48, 64)))
ROOT = SnapshotId(bytes(range(64, 80)))
TIME = "2024-09-19T10:00:00.5Z"
ZARR: list[Any] = [
    [4, 2],
    "float64",
    [2, 2],
    "Slash",
    {"Float64": float("nan")},
    [["bytes", {"endian": "little"}], ["crc32c", None]],
    None,
    ["y", None],
]


def entry(identity: SnapshotId, time: str, message: str) -> list[Any]:
    return [encode_base32(identity), time, message]


def snapshot(
    own: SnapshotId = SNAPSHOT, history: list[Any] | None = None, zarr: list[Any] = ZARR
) -> bytes:
    ref = [encode_base32(MANIFEST), [], []]
    nodes = {
        "/": [1, "/", {"Inline": {"title": "old"}}, "Group"],
        "/a": [2, "/a", None, {"Array": [zarr, [ref]]}],
    }
    history = [entry(PARENT, "2024-09-19T09:00:00Z", "first")] if history is None else history
    record = [len(history), len(history), history, entry(own, TIME, "m"), TIME, {"p": 1}, nodes]
    data: bytes = msgpack.packb(record)
    return data


def manifest(location: Any = "s3://bucket/key") -> bytes:
    rows = [
        ([2, [0, 0]], {"Inline": b"\x00" * 32}),
        ([2, [1, 0]], {"Ref": [encode_base32(CHUNK), 3, 32]}),
        ([2, [1, 1]], {"Virtual": [location, 5, 6]}),
    ]
    # Keys are arrays, which msgpack does not pack from a dictionary.
    packed = [msgpack.packb(key) + msgpack.packb(value) for key, value in rows]
    return b"\x91" + bytes([0x80 | len(rows)]) + b"".join(packed)


def repository() -> MemoryStorage:
    """Two commits; the first snapshot is stored under a name other than its id."""
    storage = MemoryStorage()
    misnamed = SnapshotId(bytes(range(80, 96)))
    history = [entry(ROOT, "2024-09-19T08:00:00Z", "Repository initialized")]
    for key, data in {
        f"s/{encode_base32(SNAPSHOT)}.msgpack": snapshot(history=history),
        f"s/{encode_base32(misnamed)}.msgpack": snapshot(ROOT, history=[]),
        f"m/{encode_base32(MANIFEST)}.msgpack": manifest(),
        f"c/{encode_base32(CHUNK)}": b"abc" + bytes(range(32)),
        "r/branch:main/ZZZZZZZZZZZZY.json": _ref(misnamed),
        "r/branch:main/ZZZZZZZZZZZZW.json": _ref(SNAPSHOT),
        "r/branch:main/notes.txt": b"",
        "r/tag:v1/ref.json": _ref(SNAPSHOT),
    }.items():
        storage.put(key, data, expect=Anything())
    return storage


def _ref(identity: SnapshotId) -> bytes:
    return json.dumps({"snapshot": encode_base32(identity)}).encode()
