"""Commits for tests that wait for them."""

import itertools
from typing import Any

import zarr

from airflow_provider_icechunk.api import Repository

NUMBERS = itertools.count(1)


def change(
    repository: Repository, message: str, path: str = "a/x", branch: str = "main", **metadata: Any
) -> str:
    """A commit that touches one array, creating it if it is missing."""
    session = repository.writable_session(branch)
    root = zarr.open_group(session.store, mode="a")
    if path not in root:
        root.create_array(path, shape=(2,), dtype="int32", attributes={"ready": True})
    root[path][:] = next(NUMBERS)
    return session.commit(message, metadata=metadata)
