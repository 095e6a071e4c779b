"""A real SeaweedFS server for tests: started on free loopback ports, gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from airflow_provider_icechunk.engine.storage.secrets import StaticCredentials, static_credentials
from tools.seaweedfs import Account, seaweedfs

ACCESS_KEY = "tester"
SECRET_KEY = "tester-secret"
SHARED_BUCKET = "shared"
"""Buckets are slow to fill for the first time: take a fresh prefix of this one where possible."""
ACCOUNT = Account(ACCESS_KEY, SECRET_KEY, SHARED_BUCKET)
_numbers = count()


@dataclass(frozen=True)
class SeaweedFS:
    """Where the server is, and how to talk to it."""

    endpoint_url: str

    @property
    def credentials(self) -> StaticCredentials:
        return static_credentials(ACCESS_KEY, SECRET_KEY)

    def client(self):
        return ACCOUNT.client(self.endpoint_url)

    def fresh_prefix(self) -> str:
        """An unused prefix of `SHARED_BUCKET`."""
        return f"prefix-{next(_numbers)}"

    def make_bucket(self) -> str:
        """A fresh bucket."""
        name = f"bucket-{next(_numbers)}"
        self.client().create_bucket(Bucket=name)
        return name


@contextmanager
def running(folder: Path) -> Iterator[SeaweedFS]:
    """A server that keeps its data in `folder`."""
    with seaweedfs(folder, ACCOUNT) as endpoint:
        yield SeaweedFS(endpoint)
