"""New ids for the newer generation, derived from the old ones. Pure.

Ids of 12 bytes stay. Those of 16 bytes are folded to 12: the last four are XORed into the first.
They were random, so the result is as unique as any id of 12 bytes; ids that were not random could
collide, which is detected and refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import (
    OBJECT_ID_SIZE,
    ManifestId,
    SnapshotId,
    format_id,
)
from airflow_provider_icechunk.exceptions import UnsupportedError

_SALT = b"icechunk manifest, migrated to generation 1"


def fold_rows(ids: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`(n, 12)` ids for `(n, 12)` or `(n, 16)` ones."""
    folded = np.array(ids[:, :OBJECT_ID_SIZE], np.uint8)
    tail = ids[:, OBJECT_ID_SIZE:]
    folded[:, : tail.shape[1]] ^= tail
    return folded


def fold(identity: bytes) -> bytes:
    """The new id for one old one."""
    return fold_rows(np.frombuffer(identity, np.uint8)[None]).tobytes()


def snapshot_ids(identities: Iterable[SnapshotId]) -> dict[SnapshotId, SnapshotId]:
    """Old to new ids of snapshots; raises if two collide."""
    ids = {one: SnapshotId(fold(one)) for one in identities}
    _check_distinct(len(ids), len(set(ids.values())), "snapshots")
    return ids


def check_chunks(old: NDArray[np.uint8], new: NDArray[np.uint8]) -> None:
    """Raise if the new ids of two chunk files collide."""
    _check_distinct(len(old), len(np.unique(new, axis=0)), "chunk files")


def manifest_id(old: ManifestId, choices: Iterable[tuple[bytes, int]] = ()) -> ManifestId:
    """The id of a rewritten manifest.

    `choices` says which table was used for nodes that have several.
    """
    digest = hashlib.sha256(_SALT + len(old).to_bytes(1, "big") + old)
    for node, ndim in sorted(choices):
        digest.update(node + ndim.to_bytes(4, "big"))
    return ManifestId(digest.digest()[:OBJECT_ID_SIZE])


def _check_distinct(old: int, new: int, what: str) -> None:
    if old != new:
        raise UnsupportedError(
            f"the ids of two {what} collide with {OBJECT_ID_SIZE} bytes (the length of "
            f"{format_id(Generation.V1, bytes(OBJECT_ID_SIZE))}): they were not "
            "random; copy the data into a new repository instead"
        )
