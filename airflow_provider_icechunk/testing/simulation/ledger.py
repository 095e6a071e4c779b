"""What the processes of a simulation meant to commit, and what became of the branches.

The ledger belongs to nobody: it is written at the moment things happen, whoever dies then.
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

    def intend(self, branch: str, edits: Sequence[Edit]) -> Intent:
        """Something that is going to be committed."""
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


class Witness:
    """Sees every move of a branch at the moment it happens, and what each snapshot must hold."""

    names = ("main", "side")

    def __init__(self, disk: Disk, ledger: Ledger) -> None:
        self._disk = disk
        self._ledger = ledger
        self.repo = Repository.open(disk)
        self.heads: dict[str, list[str]] = {name: [] for name in self.names}
        self.seen: dict[str, Seen] = {}
        self.states: dict[str, State] = {}

    def look(self) -> None:
        """Note where the branches are now."""
        core = self.repo.core
        for name in self.names:
            head = core.refs.branch(name)
            if head is None:
                continue
            text = core.format_id(head)
            heads = self.heads[name]
            if heads and heads[-1] == text:
                continue
            heads.append(text)
            self._describe(head)

    def state(self, snapshot: str) -> State | None:
        """What a snapshot must hold; `None` if no branch ever named it."""
        return self.states.get(snapshot)

    def _describe(self, identity: SnapshotId) -> State:
        core = self.repo.core
        text = core.format_id(identity)
        known = self.states.get(text)
        if known is not None:
            return known
        header = core.objects.stored_now(identity)
        parent = core.refs.parent(header)
        before = {} if parent is None else self._describe(parent)
        name = header.metadata.get(INTENT)
        intent = self._ledger.intents.get(str(name))
        self.seen[text] = Seen(
            text,
            None if parent is None else core.format_id(parent),
            None if intent is None else intent.name,
        )
        self.states[text] = before if intent is None else after(before, intent.edits)
        return self.states[text]
