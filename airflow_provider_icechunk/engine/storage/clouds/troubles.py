"""What an object store's error means, by its code rather than its text or status alone.

Unrelated conditions share statuses (409 is also an existing bucket), and texts differ between
vendors. Only responses without a body, such as those to HEAD, have nothing but a status.

The native client's classes of errors are too coarse to decide on: a conflict with a write under way
is called an existing object, and a lost answer has the class of a refused connection. So the status
and the vendor's code are taken from the text, and an error without a status counts as sent, unless
the client says that no connection was made.
"""

from __future__ import annotations

import re
from enum import Enum

from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    IcechunkError,
    Kind,
    NotFoundError,
    StorageError,
)

_STATUS = re.compile(r"Server returned non-2xx status code: ([1-5][0-9]{2})\b")
_CODE = re.compile(r"<Code>([0-9A-Za-z.]{1,64})</Code>")
_DEBUG = "Debug source:"
_NOT_CONNECTED = re.compile(r"HttpError \{\s*kind: Connect,")
_IN_BATCH = re.compile(
    r"Bulk delete request failed for key .{0,2000} \(code: ([1-5][0-9]{2})\)", re.DOTALL
)
"""Azure deletes even one object in a batch: this is the answer inside the answer."""
_OUTSIDE = ("Wanted range starting at", 'CONTENT_RANGE header: "bytes 0--1/0"')
"""The client's own words for an answer to a range that starts after the end of the object."""
_LEFT_TO_OTHERS = ("Content-Length Header missing", "Received non-partial response")


class NativeError(Exception):
    """A request by the native client failed."""

    def __init__(
        self, status: int = 0, code: str = "", *, sent: bool = True, denied: bool = False
    ) -> None:
        super().__init__(status, code)
        self.status = status
        """0 if there was no complete answer."""
        self.code = code or (str(status) if status else "NoAnswer" if sent else "NoConnection")
        """The vendor's code, or the status; never any other text of a store."""
        self.sent = sent
        """Whether the request may have reached the store."""
        self.denied = denied
        """Whether there are no credentials to send it with."""


def native_error(error: BaseException) -> NativeError:
    """Read an error of the native client."""
    text, _, details = str(error).partition(_DEBUG)
    status = _STATUS.search(text)
    if status is not None:
        code = _CODE.search(text, status.end())
        return NativeError(int(status[1]), "" if code is None else code[1])
    # Only an error without an answer gets here, so no text of a store is searched.
    if any(words in text for words in _OUTSIDE):
        return NativeError(416)
    single = _IN_BATCH.search(text)
    if single is not None:
        return NativeError(int(single[1]))
    return NativeError(sent=_NOT_CONNECTED.search(details) is None)


def is_unreadable(error: BaseException) -> bool:
    """Whether an answer is valid HTTP that the native client does not accept.

    It insists on announced lengths and on ranges; other clients can find the end of such a body.
    """
    return any(text in str(error) for text in _LEFT_TO_OTHERS)


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
"""What statuses mean whatever the code; an unknown 404 does not prove that an object is missing."""


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
