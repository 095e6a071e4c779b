"""Locations for repositories, of every kind, accessible to this package and the official one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import airflow_provider_icechunk.api as ours
from airflow_provider_icechunk.engine.storage.base import Storage


@dataclass(frozen=True)
class Place:
    """Where one repository can be; each call connects again, as another process would."""

    ours: Callable[[], Storage]
    official: Callable[[], Any] | None = None
    """`None` where the official library cannot look: our memory."""


def in_memory() -> Place:
    storage = ours.in_memory_storage()
    return Place(lambda: storage)


def in_folder(path: Path) -> Place:
    import icechunk as official

    return Place(
        lambda: ours.local_filesystem_storage(path),
        lambda: official.local_filesystem_storage(str(path)),
    )


def in_bucket(endpoint: str, bucket: str, prefix: str, keys: dict[str, str]) -> Place:
    import icechunk as official

    options: dict[str, Any] = {
        "bucket": bucket,
        "prefix": prefix,
        "region": "us-east-1",
        "endpoint_url": endpoint,
        "allow_http": True,
        "force_path_style": True,
        **keys,
    }
    return Place(lambda: ours.s3_storage(**options), lambda: official.s3_storage(**options))
