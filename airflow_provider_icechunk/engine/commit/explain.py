"""Explain conflicts: who made the other change, what and where it is, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.tree.changes import ChangeSet

from .conflicts import Conflict, ConflictSolver
from .merge import MergeSolver
from .records import read_record

MADE_BY_KEY = "airflow"
"""Snapshot metadata of tasks: which one committed."""
_SHOWN = 5
_LENGTH = 200


def explain(
    commit: Snapshot,
    conflicts: Sequence[Conflict],
    ours: ChangeSet,
    solver: ConflictSolver | None,
) -> str:
    """The text to add to the list of conflicts; empty if nothing more is known."""
    parts = [*_maker(commit)]
    parts += [f"{one.path}: {one.detail}" for one in conflicts[:_SHOWN] if one.detail]
    parts += _labels(commit, ours)
    if isinstance(solver, MergeSolver):
        parts.append(
            "Nothing was committed. Run the task again to write on top of the other change, or "
            'choose for such conflicts: on_conflict="ours" keeps the chunks of this task, '
            '"theirs" those of the other, "fail" merges nothing'
        )
    return "".join(f". {part}" for part in parts)


def _maker(commit: Snapshot) -> list[str]:
    task = commit.metadata.get(MADE_BY_KEY)
    if not isinstance(task, Mapping):
        return []
    named = {
        word: _short(task[key])
        for word, key in (("task", "task_id"), ("DAG", "dag_id"), ("run", "run_id"))
        if isinstance(task.get(key), str)
    }
    if not named:
        return []
    return [
        "The other change was committed by " + ", ".join(f"{k} {v!r}" for k, v in named.items())
    ]


def _labels(commit: Snapshot, ours: ChangeSet) -> list[str]:
    record = read_record(commit.metadata)
    theirs = {} if record is None else record.labels
    return [
        f"Labels of {who}: " + "; ".join(_listed(name, found) for name, found in labels.items())
        for who, labels in (("this session", ours.labels), ("the other commit", theirs))
        if labels
    ]


def _listed(name: str, texts: Sequence[str]) -> str:
    more = f", ... ({len(texts)})" if len(texts) > _SHOWN else ""
    return f"{_short(name)} {', '.join(map(_short, texts[:_SHOWN]))}{more}"


def _short(text: str) -> str:
    """Metadata is untrusted: bounded, and on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _LENGTH else f"{line[: _LENGTH - 3]}..."
