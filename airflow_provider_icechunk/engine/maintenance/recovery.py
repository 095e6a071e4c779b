"""Snapshot files that a collection is deleting, stored until they are certainly not needed.

A collector deletes snapshots, reads the refs again, and restores those that have come into use. If
it died in between, nothing would say what to restore. So the files of each batch are first stored
in one object, which is deleted after the second read. A later collection that finds such an object
uses its files in place of missing ones, and restores those that are in use.

The object is stored beside the leases, where a release that does not know it refuses to collect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.wire import messagepack as mp
from airflow_provider_icechunk.engine.leases import DELETING, LIFE
from airflow_provider_icechunk.engine.storage.base import Anything, Listed, Storage
from airflow_provider_icechunk.engine.world import World
from airflow_provider_icechunk.exceptions import FormatError

_KEY = re.compile(re.escape(DELETING) + "[0-9a-f]{32}")
_VERSION = 1
_LIFE = LIFE.days * 86_400_000_000

Files = Mapping[SnapshotId, bytes]


@dataclass(frozen=True, slots=True)
class UnfinishedDeletions:
    """The snapshots that unfinished collections were deleting."""

    files: Files
    ended: tuple[str, ...]
    """Keys whose collectors cannot be running any more."""


def store_files(storage: Storage, files: Files, world: World) -> str:
    """Store snapshot files that are about to be deleted; returns the key."""
    key = DELETING + world.entropy(16).hex()
    value = {"version": _VERSION, "snapshots": [[one, data] for one, data in files.items()]}
    storage.put(key, mp.pack(value), expect=Anything())
    storage.settle()
    return key


def read_files(
    storage: Storage, generation: Generation, found: Iterable[Listed], now: int
) -> UnfinishedDeletions:
    """What is stored under these keys.

    :param found: objects below the prefix of leases; others are ignored.
    :param now: store time in microseconds.
    """
    files: dict[SnapshotId, bytes] = {}
    ended = []
    for listed in found:
        if not _KEY.fullmatch(listed.key):
            continue
        stored = storage.get(listed.key)
        if stored is None:
            continue  # Its collector has finished.
        files |= _decode(stored.data, generation, f"{listed.key} in {storage.location}")
        if listed.micros + _LIFE <= now:
            ended.append(listed.key)
    return UnfinishedDeletions(files, tuple(ended))


def _decode(data: bytes, generation: Generation, where: str) -> dict[SnapshotId, bytes]:
    with Purse(len(data), where=where) as purse:
        members = mp.as_members(mp.unpack(data, where=where, memory=purse), "record", where=where)
        if members.get("version") != _VERSION:
            raise FormatError(
                f"{where}: written by a newer release, which was deleting snapshots. Nothing was "
                "deleted; update this package"
            )
        files = {}
        for entry in mp.as_array(members.get("snapshots"), "snapshots", where=where):
            pair = mp.as_array(entry, "snapshot", where=where, sizes=(2,))
            identity = mp.as_bytes(pair[0], "id", where=where)
            if len(identity) != generation.id_size:
                raise FormatError(f"{where}: an id of {len(identity)} bytes")
            files[SnapshotId(identity)] = mp.as_bytes(pair[1], "file", where=where)
        return files
