"""Interpret the native client's errors: a status and a code, no connection, or nothing certain.

Its classes of errors are too coarse to decide on: a conflict with a write under way is called an
existing object, and a lost answer has the class of a refused connection. So the status and the
vendor's code are taken from the text, and an error without a status counts as sent, unless the
client says that no connection was made.
"""

from __future__ import annotations

import re

_STATUS = re.compile(r"Server returned non-2xx status code: ([1-5][0-9]{2})\b")
_CODE = re.compile(r"<Code>([0-9A-Za-z.]{1,64})</Code>")
_DEBUG = "Debug source:"
_NOT_CONNECTED = re.compile(r"HttpError \{\s*kind: Connect,")
_IN_BATCH = re.compile(
    r"Bulk delete request failed for key .{0,2000} \(code: ([1-5][0-9]{2})\)", re.DOTALL
)
"""Azure deletes by a batch even if it is one object: the answer in the answer."""
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
    """Whether an answer is valid HTTP that the native client does not take.

    It insists on announced lengths and on ranges; other clients can tell such a body's end.
    """
    return any(text in str(error) for text in _LEFT_TO_OTHERS)
