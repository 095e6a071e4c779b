"""How far a watcher has got, kept beside the data.

For an Airflow that keeps no state of assets. Readers of the format never look into this folder, and
maintenance leaves it alone. Whoever stores a position needs the right to write.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.engine.storage.base import Anything

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.storage.base import Storage

ROOT = "watchers"
_FIELD = "last_snapshot_id"
_LARGEST = 1 << 10


def position_key(watcher: Mapping[str, Any]) -> str:
    """The key of a watcher's position: watchers with equal settings share one."""
    text = json.dumps(watcher, sort_keys=True, default=str)
    return f"{ROOT}/{hashlib.sha256(text.encode()).hexdigest()[:40]}.json"


def read_position(storage: Storage, key: str) -> str | None:
    """The last snapshot that a watcher has reported; `None` if nothing readable is kept."""
    stored = storage.get(key)
    if stored is None or len(stored.data) > _LARGEST:
        return None
    try:
        value = json.loads(stored.data)
    except (ValueError, RecursionError):
        return None
    found = value.get(_FIELD) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def keep_position(storage: Storage, key: str, snapshot_id: str) -> None:
    """Store the last snapshot that a watcher has reported."""
    storage.put(key, json.dumps({_FIELD: snapshot_id}).encode(), expect=Anything())
    storage.settle()
