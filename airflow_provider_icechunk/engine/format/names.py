"""The only validation of names: node paths, branch and tag names, chunk keys.

Reading is as lenient as official writers were; writing is strict: a branch or tag name becomes part
of a storage key only after `check_new_ref_name`, a node path only after `check_node_path`.
"""

from __future__ import annotations

import re

from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

ROOT = "/"
METADATA_FILE = "zarr.json"
CHUNK_PREFIX = "c"
MAIN = "main"

_REF_MARKS = "._-!'()+,=@"
"""Characters that every storage keeps unchanged in keys and that no shell pattern contains."""
_REF_CHARACTER = rf"[A-Za-z0-9{re.escape(_REF_MARKS)}]"
_NEW_REF_NAME = re.compile(rf"{_REF_CHARACTER}(?:(?:{_REF_CHARACTER}| )*{_REF_CHARACTER})?")
_MAX_NAME = 240
_MAX_FILE_NAME = 900
"""What remains of a 1,024-byte storage key after the folder."""
_MAX_SEGMENT = 255
_NO_FILE_NAME = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_UNFINISHED = re.compile(r"#[0-9]+$")
_MAX_LISTED_NAME = 255
"""Other software creates longer names than this package, up to the limit of file names."""
_MAX_INDEX = (1 << 32) - 1


def check_new_ref_name(name: str, what: str = "branch") -> str:
    """`name`, if it is allowed for a new ref: ASCII letters, digits, inner spaces, `._-!'()+,=@`.

    Official libraries allow others too, but list some of those under other names.
    """
    problem = None
    if not name:
        problem = "it is empty"
    elif name in (".", ".."):
        problem = "`.` and `..` are not names"
    elif len(name) > _MAX_NAME:
        problem = f"it has {len(name)} characters, more than {_MAX_NAME}"
    elif not _NEW_REF_NAME.fullmatch(name):
        problem = f"use ASCII letters, digits, inner spaces and any of {_REF_MARKS}"
    if problem:
        raise InvalidInputError(
            f"{name[:80]!r} cannot be the name of a {what}: {problem}", kind=Kind.INVALID_NAME
        )
    return name


def check_ref_name(name: str, what: str = "branch") -> str:
    """`name`, if it can be looked up: one path segment that stays in its folder."""
    longest = _MAX_LISTED_NAME
    if not name or name in (".", "..") or "/" in name or "\0" in name or len(name) > longest:
        raise InvalidInputError(
            f"{name[:80]!r} cannot be the name of a {what}: it must be one segment of at most "
            f"{longest} characters, not empty, without `/` and not `.` or `..`",
            kind=Kind.INVALID_NAME,
        )
    return name


def check_file_name(name: str, what: str = "file") -> str:
    """`name`, if it is a valid file name in a document: a storage key below its folder."""
    segments = name.split("/")
    problem = None
    if len(name.encode(errors="replace")) > _MAX_FILE_NAME:
        problem = f"it is longer than {_MAX_FILE_NAME} bytes"
    elif _NO_FILE_NAME.search(name):
        problem = "it contains a control character, a backslash or a lone surrogate"
    elif any(segment in ("", ".", "..") for segment in segments):
        problem = "it has an empty, `.` or `..` segment"
    elif any(len(segment.encode()) > _MAX_SEGMENT for segment in segments):
        problem = f"a segment is longer than {_MAX_SEGMENT} bytes"
    elif any(_UNFINISHED.search(segment) for segment in segments):
        problem = "a segment ends in `#` and digits, as the names of unfinished files do"
    if problem:
        raise InvalidInputError(
            f"{name[:80]!r} cannot be the name of a {what}: {problem}", kind=Kind.INVALID_NAME
        )
    return name


def check_node_path(path: str) -> str:
    """`path`, if it is an absolute node path: `/`, or one without empty, `.` or `..` segments."""
    if path == ROOT:
        return path
    segments = path.split("/")
    problem = None
    if segments[0] != "" or len(segments) == 1:
        problem = "it must start with `/`"
    elif any(not segment for segment in segments[1:]):
        problem = "it has an empty segment"
    elif any(segment in (".", "..") for segment in segments[1:]):
        problem = "`.` and `..` are not segments"
    elif "\0" in path:
        problem = "it has a NUL character"
    else:
        try:
            path.encode()
        except UnicodeEncodeError:
            problem = "it is not valid Unicode"
    if problem:
        raise InvalidInputError(
            f"{path[:200]!r} is not a node path: {problem}", kind=Kind.INVALID_NAME
        )
    return path


def is_below(path: str, ancestor: str) -> bool:
    """Whether `path` is a strict descendant of `ancestor`."""
    if ancestor == ROOT:
        return path != ROOT
    return path.startswith(ancestor + "/")


def parent_path(path: str) -> str | None:
    """The path of the enclosing group; `None` for the root."""
    if path == ROOT:
        return None
    head = path.rsplit("/", 1)[0]
    return head or ROOT


def base_name(path: str) -> str:
    """The last segment; empty for the root."""
    return path.rsplit("/", 1)[1]


def parse_index(parts: list[str]) -> tuple[int, ...] | None:
    """Chunk coordinates from the segments of a chunk key; `None` if they are invalid."""
    numbers = []
    for part in parts:
        if not part.isascii() or not part.isdigit() or (len(part) > 1 and part[0] == "0"):
            return None
        number = int(part) if len(part) <= 10 else _MAX_INDEX + 1
        if number > _MAX_INDEX:
            return None
        numbers.append(number)
    return tuple(numbers)
