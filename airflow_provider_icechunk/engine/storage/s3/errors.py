"""What the errors of the S3 clients mean: boto3's and the native one's."""

from __future__ import annotations

import sys
from typing import Any

from airflow_provider_icechunk.engine.storage.clouds.troubles import (
    NativeError,
    Trouble,
    explained,
    trouble_of,
    trouble_of_native,
)
from airflow_provider_icechunk.exceptions import IcechunkError


def failures() -> tuple[type[BaseException], ...]:
    """Everything the clients raise when a request fails."""
    return (NativeError, OSError, *_http("HTTPError"), *_boto("ClientError", "BotoCoreError"))


def _boto(*names: str) -> tuple[type[Any], ...]:
    return _of("botocore.exceptions", names)


def _http(*names: str) -> tuple[type[Any], ...]:
    return _of("urllib3.exceptions", names)


def _of(module: str, names: tuple[str, ...]) -> tuple[type[Any], ...]:
    """Exceptions of a library; none before it is imported, since until then it raises nothing.

    A missing object is an error too, and importing the libraries takes longer than opening a
    repository.
    """
    loaded = sys.modules.get(module)
    return () if loaded is None else tuple(getattr(loaded, name) for name in names)


class UseClient(Exception):  # noqa: N818 - no error, a detour
    """The native client did not carry out a request; boto3's has to make it."""


_DENIED = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "TokenRetrievalError",
    "NoAuthTokenError",
)
_UNSENT = ("EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError")
_TORN = ("HTTPClientError", "IncompleteReadError", "FlexibleChecksumError", "ChecksumError")


def classify(error: BaseException) -> Trouble:
    """Classify an exception of a client."""
    if isinstance(error, NativeError):
        return trouble_of_native(error)
    if isinstance(error, _boto("ClientError")):
        return trouble_of(code_of(error), _status_of(error))
    if isinstance(error, _boto(*_DENIED)):
        return Trouble.DENIED
    if isinstance(error, _boto(*_UNSENT)):
        return Trouble.UNREACHABLE
    if isinstance(error, (OSError, *_http("HTTPError"), *_boto(*_TORN))):
        return Trouble.BROKEN
    return Trouble.OTHER


def code_of(error: BaseException) -> str:
    """The vendor's code, or the name of the exception if there was no response."""
    if isinstance(error, NativeError):
        return error.code
    if isinstance(error, _boto("ClientError")):
        return str(error.response.get("Error", {}).get("Code", ""))
    return type(error).__name__


def translate(error: BaseException, *, doing: str, where: str) -> IcechunkError:
    """Convert an exception of a client."""
    return explained(classify(error), code_of(error), doing=doing, where=where)


def _status_of(error: Any) -> int:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return int(status)
