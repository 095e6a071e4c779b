"""Metadata of objects, from stores."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_provider_icechunk.engine.storage.base import Data, Version


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """An object's properties without its bytes."""

    size: int
    created_at: datetime
    version: Version
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class Body:
    """Bytes that a store sent, and whether they are the requested range or everything."""

    data: Data
    version: Version
    is_range: bool
