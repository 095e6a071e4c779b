"""What an answer of an S3-like store means, told by its code and not by its text or status alone.

Statuses are shared by unrelated conditions (409 is also an existing bucket), texts differ between
vendors. Only answers without a body, as to HEAD, have nothing but a status.
"""

from __future__ import annotations

from enum import Enum

from botocore import exceptions as boto
from urllib3.exceptions import HTTPError

from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    IcechunkError,
    Kind,
    NotFoundError,
    StorageError,
)

FAILURES = (boto.ClientError, boto.BotoCoreError, HTTPError, OSError)
"""Everything that the library raises when a request fails."""


class UseClient(Exception):  # noqa: N818 - no error, a detour
    """A request on the short way was not carried out; the client has to make it."""


class Trouble(Enum):
    """What went wrong, by what can be done about it."""

    MISSING = "there is no such object"
    NO_BUCKET = "there is no such bucket"
    REFUSED = "the condition of a write does not hold, or another write is under way"
    BAD_RANGE = "the range lies outside of the object"
    DENIED = "the credentials are not accepted or do not suffice"
    THROTTLED = "too many requests; this one was not carried out"
    FAULTY = "the store failed; the request may have been carried out"
    UNREACHABLE = "no connection; the request was not sent"
    BROKEN = "the connection broke; the request may have been carried out"
    NO_UPLOAD = "there is no such upload in parts, perhaps since it is completed"
    OTHER = "something that no retry will change"


PASSING = frozenset({Trouble.THROTTLED, Trouble.FAULTY, Trouble.UNREACHABLE, Trouble.BROKEN})
"""What may be over at the next try."""
UNANSWERED = frozenset({Trouble.FAULTY, Trouble.BROKEN})
"""What leaves open whether a write landed."""

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
    # Status 501, but trying again will not teach the store.
    **dict.fromkeys(("NotImplemented", "501"), Trouble.OTHER),
}

_CREDENTIAL_ERRORS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.NoAuthTokenError,
)
_UNSENT = (
    boto.EndpointConnectionError,
    boto.ConnectTimeoutError,
    boto.ProxyConnectionError,
)
_TORN = (
    boto.HTTPClientError,
    boto.IncompleteReadError,
    boto.FlexibleChecksumError,
    boto.ChecksumError,
    HTTPError,
    OSError,
)


def classify(error: BaseException) -> Trouble:
    """What kind of trouble an exception of the library is."""
    if isinstance(error, boto.ClientError):
        known = _BY_CODE.get(code_of(error))
        if known is not None:
            return known
        return Trouble.FAULTY if _status_of(error) >= 500 else Trouble.OTHER
    if isinstance(error, _CREDENTIAL_ERRORS):
        return Trouble.DENIED
    if isinstance(error, _UNSENT):
        return Trouble.UNREACHABLE
    if isinstance(error, _TORN):
        return Trouble.BROKEN
    return Trouble.OTHER


def code_of(error: BaseException) -> str:
    """The vendor's code, or the name of the exception where no answer came."""
    if isinstance(error, boto.ClientError):
        return str(error.response.get("Error", {}).get("Code", ""))
    return type(error).__name__


def translate(error: BaseException, *, doing: str, where: str) -> IcechunkError:
    """The error of this package for an exception of the library.

    The text names the code only: the texts of stores and libraries are not ours to vouch for.
    """
    trouble = classify(error)
    text = f"cannot {doing} {where}: {trouble.value} ({code_of(error)})"
    match trouble:
        case Trouble.NO_BUCKET:
            return NotFoundError(f"{text}. Create the bucket, or correct its name or the region")
        case Trouble.DENIED:
            return AccessDeniedError(f"{text}. Check the credentials, their rights and the clock")
        case Trouble.THROTTLED:
            return StorageError(f"{text}. Ask for less at once", kind=Kind.STORAGE_THROTTLED)
        case Trouble.UNREACHABLE | Trouble.BROKEN:
            return StorageError(
                f"{text}. Check the endpoint and the network", kind=Kind.STORAGE_UNREACHABLE
            )
        case Trouble.MISSING | Trouble.NO_UPLOAD:
            return StorageError(text, kind=Kind.OBJECT_MISSING)
        case _:
            return StorageError(text)


def _status_of(error: boto.ClientError) -> int:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return int(status)
