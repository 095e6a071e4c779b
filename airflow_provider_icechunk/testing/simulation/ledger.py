"""What the processes of a simulation intended to commit, and how the branches moved.

The ledger belongs to no process: it is written when things happen, even if a process then dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.repository import Repository

from .disk import Disk
from .model import Edit, State, after

INTENT = "simulated"
"""Metadata of a commit: which intent it carries out."""
SAME = "same"
"""Its value for a commit that changes no values."""


class ViolationError(AssertionError):
    """A promise was broken."""


@dataclass
class Intent:
    """One thing to be committed once, or not at all."""

    name: str
    branch: str
    edits: tuple[Edit, ...]
    acknowledged: str | None = None


@dataclass
class Ledger:
    """Intents and acknowledgements."""

    intents: dict[str, Intent] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    """Acknowledged snapshots of actors that did not declare their content."""

    def intend(self, branch: str, edits: Sequence[Edit]) -> Intent:
        """An intended commit."""
        intent = Intent(f"intent-{len(self.intents)}", branch, tuple(edits))
        self.intents[intent.name] = intent
        return intent

    def acknowledge(self, intent: Intent, snapshot: str) -> None:
        """The commit returned."""
        if intent.acknowledged not in (None, snapshot):
            raise ViolationError(
                f"{intent.name} was committed twice: {intent.acknowledged} and {snapshot}"
            )
        intent.acknowledged = snapshot


@dataclass(frozen=True, slots=True)
class Seen:
    """A snapshot that a branch named at some time."""

    id: str
    parent: str | None
    intent: str | None
    written: int = 0
    """By the clock of its writer, in microseconds."""


class Witness:
    """Records every move of a branch, and the expected content of each snapshot."""

    names = ("main", "side")

    def __init__(self, disk: Disk, ledger: Ledger) -> None:
        self._disk = disk
        self._ledger = ledger
        self.repo = Repository.open(disk)
        self.heads: dict[str, list[str]] = {name: [] for name in self.names}
        self.taken_back: set[str] = set()
        self.seen: dict[str, Seen] = {}
        self.states: dict[str, State | None] = {}

    def look(self) -> None:
        """Record the current branches."""
        core = self.repo.core
        for name in self.names:
            head = core.refs.branch(name)
            if head is None:
                continue
            text = core.format_id(head)
            heads = self.heads[name]
            if heads and heads[-1] == text:
                continue
            if len(heads) > 1 and heads[-2] == text:
                # A writer that found its commit incomplete moved the branch back.
                self.taken_back.add(heads.pop())
                continue
            heads.append(text)
            self._describe(head)

    def state(self, snapshot: str) -> State | None:
        """The expected content of a snapshot; `None` if unknown."""
        return self.states.get(snapshot)

    def note(self, snapshot: str, base: str, intent: Intent) -> None:
        """A snapshot that no branch names yet: once its base has expired, only this records it."""
        before = self.states.get(base)
        self.seen[snapshot] = Seen(snapshot, base, intent.name)
        self.states[snapshot] = None if before is None else after(before, intent.edits)

    def _describe(self, identity: SnapshotId) -> State | None:
        core = self.repo.core
        text = core.format_id(identity)
        if text in self.states:
            return self.states[text]
        header = core.objects.stored_now(identity)
        parent = core.refs.parent(header)
        before: State | None = {} if parent is None else self._describe(parent)
        name = header.metadata.get(INTENT)
        intent = self._ledger.intents.get(str(name))
        if intent is None and name != SAME and parent is not None:
            before = None
        self.seen[text] = Seen(
            text,
            None if parent is None else core.format_id(parent),
            None if intent is None else intent.name,
            header.flushed_at,
        )
        if intent is not None and before is not None:
            before = after(before, intent.edits)
        self.states[text] = before
        return before
