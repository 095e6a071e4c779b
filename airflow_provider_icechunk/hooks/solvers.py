"""What to do about a chunk that both sides of a rebase wrote, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from airflow_provider_icechunk.exceptions import InvalidInputError

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import ConflictSolver

OnChunkConflict = Literal["fail", "ours", "theirs"]
"""Whose chunk stays when another commit wrote the same one: nobody's, ours or theirs."""


def solver_for(on_chunk_conflict: str) -> ConflictSolver:
    """The solver that decides so, and leaves every other conflict to people."""
    from airflow_provider_icechunk.api import (
        BasicConflictSolver,
        ConflictDetector,
        VersionSelection,
    )

    match on_chunk_conflict:
        case "fail":
            return ConflictDetector()
        case "ours":
            return BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs)
        case "theirs":
            return BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs)
    raise InvalidInputError(
        f"on_chunk_conflict is 'fail', 'ours' or 'theirs', not {on_chunk_conflict!r}"
    )
