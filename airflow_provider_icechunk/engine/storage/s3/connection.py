"""One process's access to a bucket, by the native client and by boto3's.

Importing boto3 and creating its first client take half a second of processor time, longer than
opening a repository. So it is not used until needed: for credentials that it must find, and for
requests that the native client does not make.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.secrets import (
    AnonymousCredentials,
    EnvironmentCredentials,
    StaticCredentials,
)

from .objects import Keys, NativeObjects, ask_root, find_root, is_direct
from .settings import S3Settings

if TYPE_CHECKING:
    from botocore.session import Session
    from mypy_boto3_s3.client import S3Client

_ANY_REGION = "us-east-1"
"""The region that stores without regions expect."""
_FILES = {"AWS_CONFIG_FILE": "~/.aws/config", "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials"}
"""Where botocore looks for settings, unless these variables say otherwise."""


class Connection:
    """Both clients of a bucket, boto3's made on first use."""

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._lock = threading.RLock()
        self._made: Session | None = None
        self._client: S3Client | None = None
        root = find_root(settings)
        self.objects = self._objects(root) if root else self._objects_of_client()

    @property
    def client(self) -> S3Client:
        """Boto3's client."""
        from .client import client_of

        with self._lock:
            if self._client is None:
                self._client = client_of(self._settings, self._session)
            return self._client

    @property
    def _session(self) -> Session:
        from .client import make_session

        with self._lock:
            if self._made is None:
                self._made = make_session(self._settings)
            return self._made

    def _objects_of_client(self) -> NativeObjects | None:
        client = self.client
        root = ask_root(self._settings, client)
        return self._objects(root, client.meta.region_name) if root else None

    def _objects(self, root: str, region: str | None = None) -> NativeObjects | None:
        # Spark executors may lack the native client, which this package cannot bring along.
        settings = self._settings
        # The native client does not sign callers' headers, and AWS refuses some unsigned ones.
        by_client = settings.verifies_reads or settings.read_headers or settings.write_headers
        if find_spec("obstore") is None or by_client or not is_direct(root):
            return None
        region = region or settings.region or _ANY_REGION
        bundle = self._bundle() if root.startswith("https:") else None
        keys = given_keys(settings)
        if keys is None and not isinstance(settings.credentials, AnonymousCredentials):
            found = self._session.get_credentials()
            return NativeObjects(settings, found, root=root, region=region, bundle=bundle)
        return NativeObjects(settings, keys, root=root, region=region, bundle=bundle)

    def _bundle(self) -> str | None:
        """The certificates to trust, as botocore would choose them."""
        from certifi import where

        chosen = os.environ.get("AWS_CA_BUNDLE")
        if not chosen and self._made is None and not _has_files(os.environ):
            return where()
        return self._session.get_config_variable("ca_bundle") or where()


def given_keys(settings: S3Settings) -> Keys | None:
    """Keys that were passed explicitly."""
    given = settings.credentials
    if not isinstance(given, StaticCredentials):
        return None
    token = given.session_token
    return (
        given.access_key_id,
        given.secret_access_key.reveal(),
        None if token is None else token.reveal(),
    )


def _has_files(environment: Mapping[str, str]) -> bool:
    """Whether there are files that may contain botocore settings."""
    places = (environment.get(name, default) for name, default in _FILES.items())
    return any(Path(place).expanduser().exists() for place in places)


def connect(settings: S3Settings) -> Connection:
    """Access to a bucket, shared within this process by all who ask for the same.

    Another repository in a bucket, or the same one with another configuration, needs no new
    client and no new network connections. Called by one thread at a time.
    """
    # Leaves out what does not concern the clients; credentials that are looked up may change.
    same = replace(settings, prefix="", retry=Backoff(), use_metadata=True)
    if isinstance(settings.credentials, EnvironmentCredentials):
        return Connection(same)
    asked = (os.getpid(), _surroundings(os.environ), same)
    for known, connection in list(_shared):
        found = connection()
        if found is None:
            _shared.remove((known, connection))
        elif known == asked:
            return found
    made = Connection(same)
    _shared.append((asked, weakref.ref(made)))
    return made


_Asked = tuple[int, dict[str, str], S3Settings]
_shared: list[tuple[_Asked, weakref.ref[Connection]]] = []


def _surroundings(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that affect a client when it is created."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith("AWS_") or name.lower().endswith("_proxy")
    }
