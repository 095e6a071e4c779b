"""The generation of a repository, determined from its entry points. Pure.

The order matters: a migrated repository keeps the entry point of the older generation until its
removal is requested, and the newest one counts. So an unreadable entry point is an error: falling
back to an older one would open an outdated history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from airflow_provider_icechunk.exceptions import FormatError, UnsupportedError

from .codec import FileType
from .envelope import HEADER_SIZE, has_header, read_header
from .fence import fenced_for
from .generation import Generation
from .ids import text_length

REPO_KEY = "repo"
REF_KEY = "refs/branch.main/ref.json"
STATE_KEY = "state.json"
SEQUENCE_FOLDERS = ("refs/branch.main/", "refs/branch:main/")
LONG_FOLDER = "r/branch:main/"
"""Software of September 2024 had branch files with longer names here; `alpha1` reads them."""
EARLY_FOLDERS = (LONG_FOLDER, "r/main/")

FIRST_KEYS = (REPO_KEY, REF_KEY)
"""Entry points of the generations that most repositories have."""
FOLDERS = (*SEQUENCE_FOLDERS, *EARLY_FOLDERS)

PROBE_SIZE = HEADER_SIZE
"""How many bytes of an object are inspected."""

FILES_TO_LOOK_AT = 1000
_SHORT, _LONG = text_length(5), text_length(8)
"""Characters of a sequence number; the longer form was never released."""

Opening = Callable[[str], bytes | None]
"""Returns the first `PROBE_SIZE` bytes of an object; `None` if it does not exist."""
Names = Callable[[str], Iterable[str]]
"""Returns the file names in a folder in ascending order, lazily if possible."""


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """The object by which the repository of a generation is found."""

    generation: Generation
    key: str
    """The object, or the folder of numbered files."""
    fenced_for: str | None = None
    """The generation it was migrated to, if it is fenced. Fences among numbered files are not
    searched for: reading the newest file finds them.
    """


def decide(opening: Opening, names: Names, *, where: str = "") -> Generation | None:
    """The generation of the newest entry point; `None` if there is none.

    Raises `FormatError` for an entry point that is damaged, or fenced for a newer generation that
    does not exist.

    :param where: prefix of keys in messages.
    """
    found = next(entry_points(opening, names, where=where), None)
    if found is None:
        return None
    if found.fenced_for is not None:
        raise FormatError(
            f"{where}{found.key}: the repository was migrated to generation "
            f"`{found.fenced_for}`, whose entry point is missing; it cannot be opened. Restore "
            f"the {_lost(found.fenced_for)}, or migrate it again: this fence still contains the "
            "old references"
        )
    return found.generation


def entry_points(opening: Opening, names: Names, *, where: str = "") -> Iterator[EntryPoint]:
    """All entry points, newest first, found lazily."""
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
        found = next((one for one in folders if _has_numbered_files(one, names, where)), None)
        if found is not None:
            yield EntryPoint(generation, found)
    state = opening(STATE_KEY)
    if state is not None:
        yield EntryPoint(Generation.DRAFT, STATE_KEY, fenced_for(state))


def check_repo_info(data: bytes, *, where: str) -> None:
    """Raise `FormatError` unless the object `repo` begins like one of generation `2`."""
    problem = None
    if not data:
        problem = "it is empty"
    elif not has_header(data):
        problem = f"it begins with {data[:12]!r}, which is not the start of a repository file"
    elif len(data) < HEADER_SIZE:
        problem = f"it ends after {len(data)} of the {HEADER_SIZE} bytes of its header"
    elif (kind := read_header(data).file_type) != FileType.REPO_INFO:
        problem = f"its header has file type {kind!r}, not {FileType.REPO_INFO.value!r}"
    if problem is not None:
        raise FormatError(
            f"{where}: {problem}. This object is the entry point of generation `2`; while it is "
            "damaged the repository cannot be opened, created or collected, not even through an "
            "older entry point beside it, whose history may be outdated. Restore it from a backup, "
            "from an earlier version in the store, or from the newest copy below `overwritten/`, "
            "which is the state before its last change. Move the file away only if no repository "
            "of generation `2` ever existed here"
        )


def _lost(target: str) -> str:
    return f"`{REPO_KEY}` object" if target == Generation.V2 else f"object `{REF_KEY}`"


def _has_numbered_files(folder: str, names: Names, where: str) -> bool:
    """Whether a folder is a branch; a folder with only unknown files is damage, never "absent".

    A `ref.json` in it is the branch of a later generation, which may have other files next to it.
    """
    listed, strange, later = iter(names(folder)), "", False
    for name in islice(listed, FILES_TO_LOOK_AT):
        later |= folder + name == REF_KEY
        strange = strange or name
        stem, dot, extension = name.partition(".")
        if not (dot and extension == "json" and stem.isascii() and stem.isalnum()):
            continue
        if len(stem) == _SHORT:
            return True
        if len(stem) == _LONG and folder == LONG_FOLDER:
            return True
        if len(stem) == _LONG:
            raise UnsupportedError(
                f"{where}{folder}{name}: branch files with {_LONG} characters were written only by "
                "development versions of late September 2024, which are not supported"
            )
    if next(listed, None) is not None:
        raise FormatError(
            f"{where}{folder}: the first {FILES_TO_LOOK_AT} files in it are not references, and "
            "there are more; it is unclear whether this is a branch. Move these files away"
        )
    if strange and not later:
        raise FormatError(
            f"{where}{folder}{strange}: not the name of a branch file, and the folder has no "
            "other; it is unclear whether this is a repository. Restore its files, or remove this "
            "one if it is not a reference"
        )
    return False
