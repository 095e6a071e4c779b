"""Finding out by trying whether a store honours conditions on writes."""

from __future__ import annotations

from uuid import uuid4

from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    Kind,
    StorageError,
    UnsafeStorageError,
)
from airflow_provider_icechunk.storage.base import Absent, Exactly, Lost, Storage, Written

PROBE_PREFIX = ".icechunk-probe-"
"""Keys that are tried on start with it; whoever finds one left behind may ignore it."""
_PASSING = {Kind.STORAGE_UNREACHABLE, Kind.STORAGE_THROTTLED, Kind.OUTCOME_UNKNOWN}


def probe_conditional_writes(storage: Storage) -> None:
    """Raise `UnsafeStorageError` unless the second of two conflicting writes loses.

    Uses a key of its own, and removes it.
    """
    key = f"{PROBE_PREFIX}{uuid4().hex}"
    try:
        _try_both_conditions(storage, key)
    except (UnsafeStorageError, AccessDeniedError):
        raise
    except StorageError as error:
        if error.kind in _PASSING:
            raise
        raise _unsafe(storage, f"refuses conditional writes ({error.message})") from error
    finally:
        storage.delete([key])


def _try_both_conditions(storage: Storage, key: str) -> None:
    first = storage.put(key, b"first", expect=Absent())
    if not isinstance(first, Written):
        raise _unsafe(storage, "says of a fresh key that it exists")
    if storage.put(key, b"second", expect=Absent()) != Lost():
        raise _unsafe(storage, "overwrites an object that was to be created only if absent")
    if storage.put(key, b"third", expect=Exactly(first.version)) == Lost():
        raise _unsafe(storage, "says of an unchanged object that it has changed")
    if storage.put(key, b"fourth", expect=Exactly(first.version)) != Lost():
        raise _unsafe(storage, "overwrites an object that has changed in the meantime")


def _unsafe(storage: Storage, why: str) -> UnsafeStorageError:
    return UnsafeStorageError(
        f"{storage.location} {why}: concurrent commits would be lost there. Use a store with "
        "conditional writes (If-Match and If-None-Match), or open the repository for reading only"
    )
