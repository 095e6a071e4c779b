"""The ids of the commits below a commit, from its metadata, so that they can be requested together.

Each snapshot names only its parent, so a process that is some commits behind waits for as many
round trips. A rebased commit knows the ids of those it was rebased over, and keeps them in its
metadata. They are only a hint for reading ahead: the parents define the history. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId, format_id, parse_id
from airflow_provider_icechunk.engine.format.model import Metadata
from airflow_provider_icechunk.exceptions import InvalidInputError

LINE_KEY = "commit_line"
"""Snapshot metadata under which a commit keeps the ids of commits below its parent, newest first"""
LONGEST_LINE = 24
OFFICIAL_KEY = "__icechunk"
"""Snapshot metadata that the official library writes, as does this one: how often the commit
was rebased before it landed, as `rebase_attempts`.
"""
_REBASES = "rebase_attempts"


def with_line(
    metadata: Metadata, line: Iterable[SnapshotId], generation: Generation, rebases: int = 0
) -> dict[str, object]:
    """Metadata of a commit with its own line and count, never with those of another one."""
    kept = {key: value for key, value in metadata.items() if key not in (LINE_KEY, OFFICIAL_KEY)}
    texts = [format_id(generation, one) for one in line][:LONGEST_LINE]
    counted = {OFFICIAL_KEY: {_REBASES: rebases}} if rebases else {}
    return {**kept, **counted, LINE_KEY: texts} if texts else {**kept, **counted}


def read_rebases(metadata: Metadata) -> int:
    """How often a commit was moved; one that has only a line was moved at least once."""
    official = metadata.get(OFFICIAL_KEY)
    value = official.get(_REBASES) if isinstance(official, Mapping) else None
    if type(value) is int and 0 < value < 1 << 31:
        return value
    return 1 if isinstance(metadata.get(LINE_KEY), list | tuple) else 0


def read_line(metadata: Metadata, generation: Generation) -> list[SnapshotId]:
    """The line in stored metadata; an invalid one counts as none."""
    value = metadata.get(LINE_KEY)
    if not isinstance(value, list | tuple) or len(value) > LONGEST_LINE:
        return []
    try:
        return [SnapshotId(parse_id(generation, text)) for text in value if isinstance(text, str)]
    except InvalidInputError:
        return []
