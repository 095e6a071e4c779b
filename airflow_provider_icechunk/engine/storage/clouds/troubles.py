"""What an object store's error means, by its code rather than its text or status alone.

Unrelated conditions share statuses (409 is also an existing bucket), and texts differ between
vendors. Only responses without a body, as to HEAD, have nothing but a status.
"""

from __future__ import annotations

from enum import Enum

from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    IcechunkError,
    Kind,
    NotFoundError,
    StorageError,
)

from .answers import NativeError


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
    **dict.fromkeys(
        ("NoSuchKey", "404", "NotFound", "BlobNotFound", "ResourceNotFound"), Trouble.MISSING
    ),
    **dict.fromkeys(("NoSuchBucket", "ContainerNotFound"), Trouble.NO_BUCKET),
    **dict.fromkeys(
        (
            "PreconditionFailed",
            "412",
            "ConditionalRequestConflict",
            "409",
            "ConcurrentModification",
            "ConditionNotMet",
            "BlobAlreadyExists",
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
            "AuthenticationFailed",
            "AuthenticationRequired",
            "AuthorizationFailure",
            "AuthorizationPermissionMismatch",
            "InsufficientAccountPermissions",
            "InvalidAuthenticationInfo",
            "NoAuthenticationInformation",
            "PublicAccessNotPermitted",
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
            "ServerBusy",
            "OperationTimedOut",
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
_BY_STATUS = {401: Trouble.DENIED, 403: Trouble.DENIED, 429: Trouble.THROTTLED}
"""What statuses mean whatever the code is; an unknown 404 is no proof that an object is missing."""


def trouble_of(code: str, status: int) -> Trouble:
    """Classify an answer by its code, or by its status if the code is unknown."""
    known = _BY_CODE.get(code)
    if known is not None:
        return known
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return Trouble.FAULTY if status >= 500 else Trouble.OTHER


def trouble_of_native(error: NativeError) -> Trouble:
    """Classify an error of the native client."""
    if error.denied:
        return Trouble.DENIED
    if error.status:
        return trouble_of(error.code, error.status)
    return Trouble.BROKEN if error.sent else Trouble.UNREACHABLE


def explained(trouble: Trouble, code: str, *, doing: str, where: str) -> IcechunkError:
    """The error for a request that failed.

    The text contains only the code: texts of stores and libraries may contain anything.
    """
    text = f"cannot {doing} {where}: {trouble.value} ({code})"
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
