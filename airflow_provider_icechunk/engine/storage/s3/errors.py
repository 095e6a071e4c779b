"""What the errors of the S3 clients mean: boto3's and the native one's."""

from __future__ import annotations

from botocore import exceptions as boto
from urllib3.exceptions import HTTPError

from airflow_provider_icechunk.engine.storage.clouds.answers import NativeError
from airflow_provider_icechunk.engine.storage.clouds.troubles import (
    Trouble,
    explained,
    trouble_of,
    trouble_of_native,
)
from airflow_provider_icechunk.exceptions import IcechunkError

FAILURES = (NativeError, boto.ClientError, boto.BotoCoreError, HTTPError, OSError)
"""Everything the clients raise when a request fails."""


class UseClient(Exception):  # noqa: N818 - no error, a detour
    """The native client did not carry out a request; boto3's has to make it."""


_CREDENTIAL_ERRORS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.NoAuthTokenError,
)
_UNSENT = (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)
_TORN = (
    boto.HTTPClientError,
    boto.IncompleteReadError,
    boto.FlexibleChecksumError,
    boto.ChecksumError,
    HTTPError,
    OSError,
)


def classify(error: BaseException) -> Trouble:
    """Classify an exception of a client."""
    if isinstance(error, boto.ClientError):
        return trouble_of(code_of(error), _status_of(error))
    if isinstance(error, NativeError):
        return trouble_of_native(error)
    if isinstance(error, _CREDENTIAL_ERRORS):
        return Trouble.DENIED
    if isinstance(error, _UNSENT):
        return Trouble.UNREACHABLE
    if isinstance(error, _TORN):
        return Trouble.BROKEN
    return Trouble.OTHER


def code_of(error: BaseException) -> str:
    """The vendor's code, or the name of the exception if there was no response."""
    if isinstance(error, NativeError):
        return error.code
    if isinstance(error, boto.ClientError):
        return str(error.response.get("Error", {}).get("Code", ""))
    return type(error).__name__


def translate(error: BaseException, *, doing: str, where: str) -> IcechunkError:
    """Convert an exception of a client."""
    return explained(classify(error), code_of(error), doing=doing, where=where)


def _status_of(error: boto.ClientError) -> int:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return int(status)
