"""Which keys there can be: one rule for every backend, checked before anything is touched."""

from __future__ import annotations

import re

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

LONGEST_KEY = 1024
"""In bytes of UTF-8: the limit of S3."""
LONGEST_SEGMENT = 255
"""In bytes of UTF-8: the limit of every common file system."""

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_STAGED = re.compile(r"#[0-9]+$")
_BUCKET = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,254}")
_PLAIN = r"[0-9A-Za-z_][0-9A-Za-z_.\-]{0,62}"
_PLAIN_KEY = re.compile(rf"(?:{_PLAIN}/){{0,8}}{_PLAIN}")
"""What nearly all keys look like: nothing of what the rules forbid can be in them."""


def check_key(key: str) -> str:
    """The key itself, if it names an object below the root and nothing else.

    Raises `InvalidInputError` otherwise. The rule is the same for every backend, so that a key that
    works in memory cannot escape from a directory. Names that end in `#` and digits are refused
    too: local backends (the official one as well) stage unfinished files under such names.
    """
    if _PLAIN_KEY.fullmatch(key) is not None:
        return key
    problem = _problem(key)
    if problem is not None:
        raise InvalidInputError(
            f"{key!r} cannot be a storage key: {problem}", kind=Kind.INVALID_KEY
        )
    return key


def check_bucket_name(name: str) -> str:
    """The name itself, if some store could have a bucket of it.

    Wider than the rule of AWS for new buckets, because old ones and other stores have more names.
    """
    if _BUCKET.fullmatch(name) is None:
        raise InvalidInputError(
            f"{name[:255]!r} is not the name of a bucket: letters, digits, '.', '-' and '_', a "
            "letter or a digit first, at most 255",
            kind=Kind.INVALID_CONFIG,
        )
    return name


def check_prefix(prefix: str) -> str:
    """The prefix itself, if some allowed key could start with it; the empty one is allowed."""
    whole = prefix.removesuffix("/")
    if whole or prefix:
        problem = _problem(whole)
        if problem is not None:
            raise InvalidInputError(
                f"{prefix!r} cannot be a prefix of storage keys: {problem}", kind=Kind.INVALID_KEY
            )
    return prefix


def is_staged(name: str) -> bool:
    """Whether a file of this name is an unfinished write, which no listing shows."""
    return "#" in name and _STAGED.search(name) is not None


def is_key(key: str) -> bool:
    """Whether an object of this name can be read, written and deleted; listings show others too."""
    return _PLAIN_KEY.fullmatch(key) is not None or _problem(key) is None


def _problem(key: str) -> str | None:
    if _FORBIDDEN.search(key) is not None:
        return "it holds a control character, a backslash or a lone surrogate"
    if len(key.encode()) > LONGEST_KEY:
        return f"it is longer than {LONGEST_KEY} bytes"
    for segment in key.split("/"):
        problem = _segment_problem(segment)
        if problem is not None:
            return problem
    return None


def _segment_problem(segment: str) -> str | None:
    if segment in {"", ".", ".."}:
        return "it has an empty, '.' or '..' segment"
    if (
        len(segment) * 4 > LONGEST_SEGMENT
        and len(segment.encode(errors="replace")) > LONGEST_SEGMENT
    ):
        return f"a segment is longer than {LONGEST_SEGMENT} bytes"
    if is_staged(segment):
        return "a segment ends in '#' and digits, which is how unfinished files are named"
    return None
