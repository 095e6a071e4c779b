"""Undo a commit of this process that may be incomplete, before anyone builds on it.

A process that stalls between its last check of the collections and the write that moves its branch
may move it to a snapshot that has been collected. It notices afterwards, and moves it back.
"""

from __future__ import annotations

from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.refs.base import Behind, Register
from airflow_provider_icechunk.exceptions import IcechunkError, NotFoundError


def take_back(core: Core, branch: str, base: SnapshotId, snapshot: SnapshotId) -> bool:
    """Move a branch from `snapshot` back to `base`; returns whether it is there now.

    It stays where it is if others have committed on top, or if `base` has been collected.
    """
    refs = core.refs
    try:
        if isinstance(refs.reset_branch(branch, base, snapshot), Behind):
            return False
        try:
            core.objects.stored_now(base)
        except NotFoundError:
            refs.reset_branch(branch, snapshot, base)
            return False
        unlist(core, snapshot)
    except IcechunkError:
        return False
    return True


def unlist(core: Core, snapshot: SnapshotId) -> None:
    """Unlist a snapshot whose files may be gone: listed, it would stop every collection."""
    refs = core.refs
    if isinstance(refs, Register) and snapshot in refs.register().snapshots:
        refs.unlist(frozenset({snapshot}))
