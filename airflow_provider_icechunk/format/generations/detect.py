"""Which generation a folder or prefix holds, decided from its entry points. Pure.

The order matters: a repository that was migrated keeps the entry point of the older generation
until its removal is asked for, and the newest one is the truth. Creating it is what migrates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from airflow_provider_icechunk.exceptions import UnsupportedError
from airflow_provider_icechunk.format.envelope import HEADER_SIZE, MAGIC
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.ids import text_length

REPO_KEY = "repo"
REF_KEY = "refs/branch.main/ref.json"
STATE_KEY = "state.json"
SEQUENCE_FOLDERS = ("refs/branch.main/", "refs/branch:main/")
LONG_FOLDER = "r/branch:main/"
"""Where software of September 2024 had branch files with longer names; `alpha1` reads them."""
EARLY_FOLDERS = (LONG_FOLDER, "r/main/")

PROBE_SIZE = HEADER_SIZE
"""How many bytes of an object are looked at."""

_REPO_INFO = 6
_FILES_TO_LOOK_AT = 1000
_SHORT, _LONG = text_length(5), text_length(8)
"""Characters of a sequence number; the longer form was never released."""

Opening = Callable[[str], bytes | None]
"""Gives the first `PROBE_SIZE` bytes of the object under a key; `None` if there is none."""
Names = Callable[[str], Iterable[str]]
"""Gives the file names in a folder in ascending order, as lazily as it can."""


def decide(opening: Opening, names: Names) -> Generation | None:
    """The generation whose entry point is there; `None` if there is none.

    Asks in the order of likelihood and stops at the first answer: one question for generation `2`,
    two for `1`, three for `alpha`.
    """
    return next(entry_points(opening, names), None)


def entry_points(opening: Opening, names: Names) -> Iterator[Generation]:
    """Every generation whose entry point is there, newest first, as far as somebody asks."""
    if is_repo_info(opening(REPO_KEY)):
        yield Generation.V2
    if opening(REF_KEY) is not None:
        yield Generation.V1
    if any(_has_numbered_files(folder, names) for folder in SEQUENCE_FOLDERS):
        yield Generation.ALPHA
    if any(_has_numbered_files(folder, names) for folder in EARLY_FOLDERS):
        yield Generation.ALPHA1
    if opening(STATE_KEY) is not None:
        yield Generation.DRAFT


def is_repo_info(data: bytes | None) -> bool:
    """Whether an object called `repo` is the entry point of generation `2`, not just a file."""
    return (
        data is not None
        and len(data) >= HEADER_SIZE
        and data[: len(MAGIC)] == MAGIC
        and data[37] == _REPO_INFO
    )


def _has_numbered_files(folder: str, names: Names) -> bool:
    for name in islice(names(folder), _FILES_TO_LOOK_AT):
        stem, dot, extension = name.partition(".")
        if not (dot and extension == "json" and stem.isascii() and stem.isalnum()):
            continue
        if len(stem) == _SHORT:
            return True
        if len(stem) == _LONG and folder == LONG_FOLDER:
            return True
        if len(stem) == _LONG:
            raise UnsupportedError(
                f"{folder}{name}: branch files with {_LONG} characters were written by development "
                "versions of late September 2024 only, which this package does not read"
            )
    return False
