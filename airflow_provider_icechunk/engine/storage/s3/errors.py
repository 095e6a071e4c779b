"""The meaning of an S3 response, from its code rather than its text or status alone.

Unrelated conditions share statuses (409 is also an existing bucket), and texts differ between
vendors. Only responses without a body, as to HEAD, have nothing but a status.
"""

from __future__ import annotations

from enum import Enum

from botocore import exceptions as boto
from urllib3.exceptions import HTTPError

from airflow_provider_icechunk.engine.storage.clouds.answers import NativeError
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    IcechunkError,
    Kind,
    NotFoundError,
    StorageError,
)

FAILURES = (NativeError, boto.ClientError, boto.BotoCoreError, HTTPError, OSError)
"""Everything the clients raise when a request fails."""


class UseClient(Exception):  # noqa: N818 - no error, a detour
    """The native client did not carry out a request; boto3's has to make it."""


class Trouble(Enum):
    """Errors by what can be done about them."""

    MISSING = "the object does not exist"
    NO_BUCKET = "the bucket does not exist"
    REFUSED = "the condition of a write does not hold, or another write is in progress"
    BAD_RANGE = "the range is outside the object"
    DENIED = "the credentials are invalid or insufficient"
    THROTTLED = "too many requests; this one was not carried out"
    FAULTY = "the store failed; the request may have been carried out"
    UNREACHABLE = "no connection; the request was not sent"
    BROKEN = "the connection broke; the request may have been carried out"
    NO_UPLOAD = "the multipart upload does not exist, perhaps because it is completed"
    OTHER = "the error is permanent"


PASSING = frozenset({Trouble.THROTTLED, Trouble.FAULTY, Trouble.UNREACHABLE, Trouble.BROKEN})
"""Transient errors."""
UNANSWERED = frozenset({Trouble.FAULTY, Trouble.BROKEN})
"""Errors after which a write may have landed."""

_BY_CODE: dict[str, Trouble] = {
    **dict.fromkeys(("NoSuchKey", "404", "NotFound"), Trouble.MISSING),
    **dict.fromkeys(("NoSuchBucket",), Trouble.NO_BUCKET),
    **dict.fromkeys(
        (
            "PreconditionFailed",
            "412",
            "ConditionalRequestConflict",
            "409",
            "ConcurrentModification",
        ),
        Trouble.REFUSED,
    ),
    **dict.fromkeys(("InvalidRange", "416"), Trouble.BAD_RANGE),
    **dict.fromkeys(
        (
            "AccessDenied",
            "403",
            "401",
            "Forbidden",
            "Unauthorized",
            "AllAccessDisabled",
            "AccountProblem",
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "AuthorizationHeaderMalformed",
            "ExpiredToken",
            "InvalidToken",
            "TokenRefreshRequired",
            "RequestTimeTooSkewed",
        ),
        Trouble.DENIED,
    ),
    **dict.fromkeys(
        (
            "SlowDown",
            "SlowDownRead",
            "SlowDownWrite",
            "Throttling",
            "ThrottlingException",
            "RequestThrottled",
            "RequestLimitExceeded",
            "TooManyRequests",
            "BandwidthLimitExceeded",
            "OperationAborted",
            "429",
        ),
        Trouble.THROTTLED,
    ),
    **dict.fromkeys(
        (
            "InternalError",
            "InternalServerError",
            "ServiceUnavailable",
            "RequestTimeout",
            "RequestTimeoutException",
            "500",
            "502",
            "503",
            "504",
            "408",
        ),
        Trouble.FAULTY,
    ),
    "NoSuchUpload": Trouble.NO_UPLOAD,
    # Status 501, but a retry will not help.
    **dict.fromkeys(("NotImplemented", "501"), Trouble.OTHER),
}

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
        return _answered(code_of(error), _status_of(error))
    if isinstance(error, NativeError):
        if error.status:
            return _answered(error.code, error.status)
        return Trouble.BROKEN if error.sent else Trouble.UNREACHABLE
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
    """Convert an exception of a client.

    The text contains only the code: texts of stores and libraries may contain anything.
    """
    trouble = classify(error)
    text = f"cannot {doing} {where}: {trouble.value} ({code_of(error)})"
    match trouble:
        case Trouble.NO_BUCKET:
            return NotFoundError(f"{text}. Create the bucket, or correct its name or the region")
        case Trouble.DENIED:
            return AccessDeniedError(f"{text}. Check the credentials, their rights and the clock")
        case Trouble.THROTTLED:
            return StorageError(f"{text}. Make fewer requests at once", kind=Kind.STORAGE_THROTTLED)
        case Trouble.UNREACHABLE | Trouble.BROKEN:
            return StorageError(
                f"{text}. Check the endpoint and the network", kind=Kind.STORAGE_UNREACHABLE
            )
        case Trouble.MISSING | Trouble.NO_UPLOAD:
            return StorageError(text, kind=Kind.OBJECT_MISSING)
        case _:
            return StorageError(text)


def _answered(code: str, status: int) -> Trouble:
    known = _BY_CODE.get(code)
    if known is not None:
        return known
    return Trouble.FAULTY if status >= 500 else Trouble.OTHER


def _status_of(error: boto.ClientError) -> int:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return int(status)
