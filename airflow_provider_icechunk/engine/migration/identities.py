"""Which ids things get in the newer generation. Pure, and always the same for the same thing.

Ids of 12 bytes stay. Those of 16 bytes are folded to 12: the last four are laid over the first.
They were random, so what remains of them is as unique as any id of 12 bytes; ids that were not
random could meet, which is noticed and refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import UnsupportedError
from airflow_provider_icechunk.format.ids import (
    OBJECT_ID_SIZE,
    ManifestId,
    SnapshotId,
    encode_base32,
)

_SALT = b"icechunk manifest, migrated to generation 1"


def fold_rows(ids: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`(n, 12)` ids for `(n, 12)` or `(n, 16)` ones."""
    folded = np.array(ids[:, :OBJECT_ID_SIZE], np.uint8)
    tail = ids[:, OBJECT_ID_SIZE:]
    folded[:, : tail.shape[1]] ^= tail
    return folded


def fold(identity: bytes) -> bytes:
    """The id of one thing."""
    return fold_rows(np.frombuffer(identity, np.uint8)[None]).tobytes()


def snapshot_ids(identities: Iterable[SnapshotId]) -> dict[SnapshotId, SnapshotId]:
    """Old to new ids of snapshots; refuses two that would become one."""
    ids = {one: SnapshotId(fold(one)) for one in identities}
    _check_distinct(len(ids), len(set(ids.values())), "snapshots")
    return ids


def check_chunks(old: NDArray[np.uint8], new: NDArray[np.uint8]) -> None:
    """Refuse two chunk files that would become one."""
    _check_distinct(len(old), len(np.unique(new, axis=0)), "chunk files")


def manifest_id(old: ManifestId, choices: Iterable[tuple[bytes, int]] = ()) -> ManifestId:
    """The id of a manifest that has to be written anew.

    `choices` says which of several tables of a node was taken, where there are several.
    """
    digest = hashlib.sha256(_SALT + len(old).to_bytes(1, "big") + old)
    for node, ndim in sorted(choices):
        digest.update(node + ndim.to_bytes(4, "big"))
    return ManifestId(digest.digest()[:OBJECT_ID_SIZE])


def _check_distinct(old: int, new: int, what: str) -> None:
    if old != new:
        raise UnsupportedError(
            f"the ids of two {what} would become one with {OBJECT_ID_SIZE} bytes (the length of "
            f"{encode_base32(bytes(OBJECT_ID_SIZE))}): they were not made at random; copy the data "
            "into a new repository instead"
        )
