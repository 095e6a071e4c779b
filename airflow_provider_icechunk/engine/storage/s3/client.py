"""Creates the boto3 client, with the credentials it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, assert_never

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.credentials import (
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
)
from botocore.session import Session

from airflow_provider_icechunk.engine.storage.secrets import (
    AnonymousCredentials,
    EnvironmentCredentials,
    RefreshableCredentials,
    S3Credentials,
    Secret,
    StaticCredentials,
    hide_signatures,
)

from .settings import Checksums, S3Settings

if TYPE_CHECKING:
    from botocore.awsrequest import AWSRequest
    from mypy_boto3_s3.client import S3Client

_UNLIMITED = timedelta(hours=1)
_MOMENT = timedelta(seconds=5)
_READS = ("GET", "HEAD")
_ANY_REGION = "us-east-1"
"""The region that stores without regions expect."""


def make_client(settings: S3Settings) -> S3Client:
    """A client with a session of its own."""
    return client_of(settings, make_session(settings))


def make_session(settings: S3Settings) -> Session:
    """A session with these credentials. Nothing is shared with the process's default session."""
    hide_signatures()
    session = Session()
    session.register_component("data_loader", _descriptions())
    _give(session, settings.credentials)
    return session


@cache
def _descriptions() -> object:
    """Botocore's descriptions of services, parsed once: nearly the whole cost of another client."""
    return Session().get_component("data_loader")


def client_of(settings: S3Settings, session: Session) -> S3Client:
    """The client of a session."""
    client: S3Client = boto3.session.Session(botocore_session=session).client(
        "s3",
        region_name=settings.region or (_ANY_REGION if settings.endpoint_url else None),
        endpoint_url=settings.endpoint_url,
        config=_config(settings),
    )
    headers = dict(settings.headers)
    if settings.requester_pays:
        headers["x-amz-request-payer"] = "requester"
    reads, writes = {**headers, **settings.read_headers}, {**headers, **settings.write_headers}
    if reads or writes:
        client.meta.events.register("before-sign.s3", partial(_add, reads, writes))
    return client


def _add(
    reads: Mapping[str, str], writes: Mapping[str, str], request: AWSRequest, **_: object
) -> None:
    for name, value in (reads if request.method in _READS else writes).items():
        request.headers[name] = value


def _config(settings: S3Settings) -> Config:
    checksums: Checksums = "when_supported" if settings.sends_checksums else "when_required"
    signing = (
        {"signature_version": UNSIGNED}
        if isinstance(settings.credentials, AnonymousCredentials)
        else {}
    )
    return Config(
        # A retry below this package could turn its own success into a lost race.
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=settings.concurrency,
        connect_timeout=settings.connect_timeout,
        read_timeout=settings.read_timeout,
        tcp_keepalive=True,
        user_agent_extra=settings.user_agent,
        request_checksum_calculation=checksums,
        response_checksum_validation=checksums,
        s3={"addressing_style": "path" if settings.force_path_style else "auto"},
        **signing,
    )


def _give(session: Session, credentials: S3Credentials) -> None:
    match credentials:
        case EnvironmentCredentials() | AnonymousCredentials():
            return
        case StaticCredentials():
            session.set_credentials(
                credentials.access_key_id,
                credentials.secret_access_key.reveal(),
                _revealed(credentials.session_token),
            )
        case RefreshableCredentials(fetch):
            resolver = CredentialResolver([_Refreshable(fetch)])
            session.register_component("credential_provider", resolver)
        case _:
            assert_never(credentials)


class _Refreshable(CredentialProvider):
    METHOD = "icechunk-refreshable"

    def __init__(self, fetch: Callable[[], StaticCredentials]) -> None:
        super().__init__()
        self._fetch = fetch

    def load(self) -> DeferredRefreshableCredentials:
        return DeferredRefreshableCredentials(lambda: _metadata(self._fetch()), self.METHOD)


def _metadata(fetched: StaticCredentials) -> dict[str, str | None]:
    now = datetime.now(UTC)
    # Credentials that claim to have expired are still used for the request they were fetched for.
    expires = max(fetched.expires_after or now + _UNLIMITED, now + _MOMENT)
    return {
        "access_key": fetched.access_key_id,
        "secret_key": fetched.secret_access_key.reveal(),
        "token": _revealed(fetched.session_token),
        "expiry_time": expires.isoformat(),
    }


def _revealed(secret: Secret | None) -> str | None:
    return None if secret is None else secret.reveal()
