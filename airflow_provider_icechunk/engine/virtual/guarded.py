"""Connections to hosts that only a repository names: the address is checked, not the name.

The name is resolved once, every address is checked, and the connection goes to one of exactly
these, so a second lookup cannot point elsewhere. Redirects open new connections and are checked
too. TLS still verifies the name. Proxies from the environment are not used: a proxy would resolve
the name again, unchecked.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

from airflow_provider_icechunk.exceptions import VirtualAccessDeniedError

from .addresses import is_private_address

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest
    from mypy_boto3_s3.client import S3Client


Candidate = tuple[int, int, int, Any]
"""Family, type, protocol and address of a socket."""


def resolve_public(host: str, port: int) -> list[Candidate]:
    """The addresses of `host`; `VirtualAccessDeniedError` if any of them is private."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    private = sorted({str(place[0]) for *_, place in found if is_private_address(str(place[0]))})
    if private:
        raise VirtualAccessDeniedError(
            f"the host {host!r}, which the repository names, has the private address {private[0]}: "
            "requests could reach services of this network. If the host is correct, add it with "
            "scheme and port to the environment variable ICECHUNK_TRUSTED_ENDPOINTS, or open the "
            "repository with a config that has its container"
        )
    return [(family, kind, protocol, place) for family, kind, protocol, _, place in found]


def _connect(connection: HTTPConnection) -> socket.socket:
    """A socket to one of the checked addresses, as urllib3 would have opened it."""
    port = connection.port or connection.default_port
    try:
        candidates = resolve_public(connection.host.strip("[]"), port)
    except (socket.gaierror, UnicodeError) as error:
        problem = error if isinstance(error, socket.gaierror) else socket.gaierror(str(error))
        raise NameResolutionError(connection.host, connection, problem) from error
    last: OSError = OSError("the name has no address")
    for candidate in candidates:
        try:
            return _open(connection, candidate)
        except OSError as error:
            last = error
    if isinstance(last, TimeoutError):
        raise ConnectTimeoutError(connection, f"connecting to {connection.host} timed out")
    raise NewConnectionError(connection, f"cannot connect: {last}")


def _open(connection: HTTPConnection, candidate: Candidate) -> socket.socket:
    family, kind, protocol, place = candidate
    opened = socket.socket(family, kind, protocol)
    try:
        for option in connection.socket_options or ():
            opened.setsockopt(*option)
        if isinstance(connection.timeout, int | float):
            opened.settimeout(connection.timeout)
        opened.connect(place)
    except BaseException:
        opened.close()
        raise
    sys.audit("http.client.connect", connection, connection.host, connection.port)
    return opened


class _GuardedConnection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _connect(self)


class _GuardedTlsConnection(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _connect(self)


class _GuardedPool(HTTPConnectionPool):
    ConnectionCls = _GuardedConnection


class _GuardedTlsPool(HTTPSConnectionPool):
    ConnectionCls = _GuardedTlsConnection


def guard(pool: urllib3.PoolManager) -> urllib3.PoolManager:
    """Make an unused pool check the addresses it connects to."""
    pool.pool_classes_by_scheme = {"http": _GuardedPool, "https": _GuardedTlsPool}
    return pool


def guard_client(client: S3Client, *, connect: float, read: float, connections: int) -> S3Client:
    """Make a client check the addresses it connects to."""
    from botocore.exceptions import HTTPClientError
    from botocore.httpsession import URLLib3Session

    environment = os.environ.get
    made: Any = URLLib3Session
    session = made(
        verify=environment("AWS_CA_BUNDLE") or environment("REQUESTS_CA_BUNDLE") or True,
        timeout=(connect, read),
        max_pool_connections=connections,
    )
    guard(session._manager)

    def send(request: AWSPreparedRequest, **_: object) -> Any:
        try:
            return session.send(request)
        except HTTPClientError as error:
            refused = error.__context__
            if isinstance(refused, VirtualAccessDeniedError):
                raise refused from None
            raise

    # A handler of this event that responds replaces the client's own session.
    events: Any = client.meta.events
    events.register("before-send.s3", send)
    return client
