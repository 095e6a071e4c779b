"""Which generation a folder or prefix holds, decided from its entry points. Pure.

The order matters: a repository that was migrated keeps the entry point of the older generation
until its removal is asked for, and the newest one is the truth. Creating it is what migrates. So an
entry point that is there and not understood is an error: going on to an older one would open a
history that ended long ago.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from airflow_provider_icechunk.exceptions import FormatError, UnsupportedError
from airflow_provider_icechunk.format.envelope import HEADER_SIZE, has_header, read_header
from airflow_provider_icechunk.format.generations.base import FileType, Generation
from airflow_provider_icechunk.format.generations.fence import fenced_for
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

_FILES_TO_LOOK_AT = 1000
_SHORT, _LONG = text_length(5), text_length(8)
"""Characters of a sequence number; the longer form was never released."""

Opening = Callable[[str], bytes | None]
"""Gives the first `PROBE_SIZE` bytes of the object under a key; `None` if there is none."""
Names = Callable[[str], Iterable[str]]
"""Gives the file names in a folder in ascending order, as lazily as it can."""


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """By what the repository of a generation is found."""

    generation: Generation
    key: str
    """The object, or the folder of numbered ones."""
    fenced_for: str | None = None
    """The generation it was migrated to, if a fence stands there. Fences among numbered files are
    not looked for: whoever reads the newest one meets them."""


def decide(opening: Opening, names: Names, *, where: str = "") -> Generation | None:
    """The generation whose entry point is there; `None` if there is none.

    Asks in the order of likelihood and stops at the first answer: one question for generation `2`,
    two for `1`, three for `alpha`. Raises `FormatError` for an entry point that is damaged, and for
    one that points to a newer generation which is not there.

    :param where: what comes before keys in messages.
    """
    found = next(entry_points(opening, names, where=where), None)
    if found is None:
        return None
    if found.fenced_for is not None:
        raise FormatError(
            f"{where}{found.key}: the repository was migrated to generation "
            f"`{found.fenced_for}`, whose entry point is gone; it cannot be opened. Restore "
            f"the {_lost(found.fenced_for)}, or migrate it once more: the old references are "
            "still behind the fence that stands here"
        )
    return found.generation


def entry_points(opening: Opening, names: Names, *, where: str = "") -> Iterator[EntryPoint]:
    """Every entry point that is there, newest first, as far as somebody asks."""
    repo = opening(REPO_KEY)
    if repo is not None:
        check_repo_info(repo, where=where + REPO_KEY)
        yield EntryPoint(Generation.V2, REPO_KEY)
    ref = opening(REF_KEY)
    if ref is not None:
        yield EntryPoint(Generation.V1, REF_KEY, fenced_for(ref))
    for generation, folders in (
        (Generation.ALPHA, SEQUENCE_FOLDERS),
        (Generation.ALPHA1, EARLY_FOLDERS),
    ):
        found = next((one for one in folders if _has_numbered_files(one, names)), None)
        if found is not None:
            yield EntryPoint(generation, found)
    state = opening(STATE_KEY)
    if state is not None:
        yield EntryPoint(Generation.DRAFT, STATE_KEY, fenced_for(state))


def check_repo_info(data: bytes, *, where: str) -> None:
    """Raise `FormatError` unless an object called `repo` begins as the one of generation `2`."""
    problem = None
    if not data:
        problem = "it is empty"
    elif not has_header(data):
        problem = f"it begins with {data[:12]!r}, as no file of a repository does"
    elif len(data) < HEADER_SIZE:
        problem = f"it ends after {len(data)} of the {HEADER_SIZE} bytes of its header"
    elif (kind := read_header(data).file_type) != FileType.REPO_INFO:
        problem = (
            f"its header says that it is a file of type {kind!r}, not {FileType.REPO_INFO.value!r}"
        )
    if problem is not None:
        raise FormatError(
            f"{where}: {problem}. This object is the entry point of generation `2`; while it is "
            "damaged the repository is not opened, created or collected, also not through an "
            "older entry point beside it, whose history may be stale. Restore it from a backup, "
            "from an earlier version in the store, or from the newest copy below `overwritten/`, "
            "which is the state before its last change. Move the file away only if no repository "
            "of generation `2` was ever here"
        )


def _lost(target: str) -> str:
    return f"`{REPO_KEY}` object" if target == Generation.V2 else f"object `{REF_KEY}`"


def _has_numbered_files(folder: str, names: Names) -> bool:
    listed = iter(names(folder))
    for name in islice(listed, _FILES_TO_LOOK_AT):
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
    if next(listed, None) is not None:
        raise FormatError(
            f"{folder}: the first {_FILES_TO_LOOK_AT} files in it are no references, and there are "
            "more; whether this is a branch cannot be told. Move the foreign files away"
        )
    return False
