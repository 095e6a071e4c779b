"""Hand out work and merge the results: the part of a session that coordinates workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_icechunk.engine.commit.commit import Committer
from airflow_provider_icechunk.engine.commit.records import take_over
from airflow_provider_icechunk.engine.commit.replay import changes_of_staged
from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.ids import SnapshotId, decode_object_id, encode_base32
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.history.ancestry import required_log
from airflow_provider_icechunk.engine.leases import Leasehold
from airflow_provider_icechunk.engine.tree.changes import ChangeSet, ids_of
from airflow_provider_icechunk.engine.tree.tree import WorkingTree
from airflow_provider_icechunk.exceptions import (
    FragmentError,
    InvalidInputError,
    NotFoundError,
    SessionError,
)

from .codec import Fragment
from .merge import Handed, OnOverlap, boxes_of, merge_changes, merge_fragments, unfilled
from .work_unit import WorkUnit, counted_since

_STAGED_ON = "staged_on"
"""Metadata of a staged snapshot: the earlier one whose changes it started with."""
_MOST_STEPS = 100
"""A worker may stage changes this many times, one on top of the other."""


@dataclass(frozen=True, slots=True)
class ForkResult:
    """What a fork brings back."""

    staged: SnapshotId
    """The snapshot that it was given."""
    changes: ChangeSet
    held: Leasehold


class Coordinator:
    """The part of a session that hands out work and takes the results back."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self.tree = committer.draft.tree
        self.work: WorkUnit | None = None
        """The work that was handed out, or that this session itself was given."""
        self._handed: dict[SnapshotId, Handed] = {}

    @property
    def _core(self) -> Core:
        return self.tree.core

    def begin(self, work: WorkUnit, staged: Snapshot) -> None:
        """Act as a worker: `staged` is where its own workers, and its siblings, begin."""
        self.work = work
        self.tree.held.join(work.tenancy)
        self._handed[staged.id] = Handed(staged.id, staged, ChangeSet())

    def stage(self) -> Snapshot:
        """Store the current tree as a snapshot that nothing names, as a base for workers.

        Without changes it is the base itself. Collection leaves it alone while it is young.
        """
        with self.tree.lock:
            if self.tree.changes.is_empty():
                return self.tree.base
            earlier = {} if self.work is None else {_STAGED_ON: encode_base32(self.work.staged)}
            staged = self._committer.store("staged", earlier)
            self.tree.held.stages(self._core.refs.layout.snapshot(staged.id))
            return staged

    def work_unit(self, branch: str, job: str) -> WorkUnit:
        """What workers need to write chunks for this session. JSON-able, without credentials."""
        with self.tree.lock:
            self.work = self.hand_out(branch, job)
            return self.work

    def fork(self, branch: str) -> WorkUnit:
        """What a fork of this session needs; it brings its changes back as they are."""
        work = self.hand_out(branch, "fork")
        self.work = self.work or work
        return work

    def merge_fragments(
        self, fragments: Sequence[Fragment], *, on_overlap: OnOverlap = "error"
    ) -> int:
        """Merge what workers wrote; all of it or, on an error, nothing.

        Returns the number of references. Fragments of another base or job are refused, as are
        chunks that two workers wrote, unless `on_overlap` says who wins. A worker that needed
        arrays that were not handed out has staged them on top; these are merged as well, from one
        worker only.
        """
        with self.tree.lock:
            self.tree.check_writable()
            work, staged = self._handed_out()
            again = self._staged_on_top(fragments, work)
            if again is not None:
                return self._merge_on(again, fragments, on_overlap)
            merged = merge_fragments(
                fragments,
                staged=staged,
                job=work.job,
                on_overlap=on_overlap,
                generation=self._core.generation,
            )
            nodes = {node.id: node for node in self.tree.nodes()}
            missing = merged.keys() - nodes.keys()
            if missing:
                gone = next(node.path for node in staged.nodes.values() if node.id in missing)
                raise FragmentError(f"{gone} was deleted after the work was handed out")
            for node_id, refs in merged.items():
                boxes = boxes_of(fragments, node_id)
                self.tree.put_references(nodes[node_id].path, refs, boxes)
            for fragment in fragments:
                self.tree.changes.add_labels(fragment.labels)
            for fragment in fragments:
                if fragment.has_files:
                    since = counted_since(work, self.tree.base)
                    self.tree.held.count(since if fragment.since is None else fragment.since)
            return sum(len(refs) for refs in merged.values())

    def _staged_on_top(self, fragments: Sequence[Fragment], work: WorkUnit) -> WorkUnit | None:
        """The work of the one worker that staged other arrays on top of its input.

        It is accepted only if it is based on our own staged snapshot.
        """
        bases = {one.base for one in fragments if one.job == work.job} - {work.staged}
        found = [base for base in bases if self._begins_with(base, work.staged)]
        if len(found) > 1:
            raise FragmentError(
                "two workers changed arrays, each on its own: make these changes before handing "
                "out work, or let one worker make all of them; nothing was merged"
            )
        return replace(work, staged=found[0]) if found else None

    def _begins_with(self, base: SnapshotId, ours: SnapshotId) -> bool:
        """Whether a worker staged a snapshot on top of ours, in one step or several."""
        for _ in range(_MOST_STEPS):
            try:
                earlier = self._core.objects.snapshot(base).metadata.get(_STAGED_ON)
            except NotFoundError:
                return False
            if not isinstance(earlier, str):
                return False
            if earlier == encode_base32(ours):
                return True
            try:
                base = SnapshotId(decode_object_id(earlier))
            except InvalidInputError:
                return False
        return False

    def _merge_on(
        self, again: WorkUnit, fragments: Sequence[Fragment], on_overlap: OnOverlap
    ) -> int:
        before = self.tree.base, self.tree.changes, self.work
        assert self.work is not None
        handed = self._handed.get(self.work.staged)
        if handed is None or not handed.changes.is_same_as(self.tree.changes):
            raise FragmentError(
                "a worker changed arrays, and so did this session after it had handed out the "
                "work: they cannot be merged; nothing was merged"
            )
        moved = [
            replace(one, base=again.staged) if one.base == self.work.staged else one
            for one in fragments
        ]
        try:
            self.resume(again)
            return self.merge_fragments(moved, on_overlap=on_overlap)
        except BaseException:
            self.tree.base, self.tree.changes, self.work = before
            raise

    def merge_forks(self, forks: Sequence[ForkResult]) -> list[str]:
        """Merge what forks changed; all of it or, on an error, nothing.

        Returns arrays with unfilled cells, if none of the forks contains a chunk.
        """
        with self.tree.lock:
            before = self.tree.changes
            try:
                for fork in forks:
                    self._merge_changes(fork.staged, fork.changes)
            except BaseException:
                self.tree.changes = before
                raise
            for fork in forks:
                self.tree.held.absorb(fork.held)
            written = any(True for fork in forks for _ in fork.changes.edited())
            return [] if written or not forks else unfilled(self.tree.changes, self.tree.base)

    def _merge_changes(self, staged: SnapshotId, theirs: ChangeSet) -> None:
        self.tree.check_writable()
        handed = self._handed.get(staged)
        if handed is None:
            raise FragmentError("only forks of this session can be merged into it")
        taken = ids_of(self.tree.nodes()) | ids_of(self.tree.base.nodes.values())
        theirs = self.tree.node_ids.renumber(theirs, taken)
        self.tree.changes = merge_changes(
            self.tree.changes, theirs, base=self.tree.base, handed=handed
        )

    def hand_out(self, branch: str, job: str) -> WorkUnit:
        """A work unit for the tree as it is now."""
        handed = self._stage_again()
        work = WorkUnit(
            repository=self._core.storage.location,
            generation=self._core.generation.value,
            branch=branch,
            base=self.tree.base.id,
            staged=handed.staged.id,
            job=job,
            since=self.tree.held.hand_out(),
        )
        self.tree.held.serves(work.tenancy)
        return work

    def _stage_again(self) -> Handed:
        """The current tree, staged; reuses the last staged snapshot if nothing has changed."""
        for handed in reversed(self._handed.values()):
            if handed.base == self.tree.base.id and handed.changes.is_same_as(self.tree.changes):
                return handed
        handed = Handed(self.tree.base.id, self.stage(), self.tree.changes.copy())
        self._handed[handed.staged.id] = handed
        return handed

    def _handed_out(self) -> tuple[WorkUnit, Snapshot]:
        if self.work is None:
            raise SessionError("this session handed out no work; call `work_unit` or `fork` first")
        return self.work, self._core.objects.snapshot(self.work.staged)

    def resume(self, work: WorkUnit) -> None:
        """Become the session that handed out `work`, with the changes it had made so far."""
        objects = self._core.objects
        with self.tree.lock:
            base, staged = objects.snapshot(work.base), objects.snapshot(work.staged)
            changes = ChangeSet()
            if staged.id != base.id:
                log = required_log(objects, staged)
                view = WorkingTree(self._core, staged, read_only=True)
                changes = changes_of_staged(
                    base, staged, log, view.references, self._core.generation
                )
                take_over(changes, [(staged, [log])])
                self.tree.held.count(counted_since(work, base))
            self.tree.held.join(work.tenancy)
            self.tree.held.serves(work.tenancy)
            self.tree.base, self.tree.changes = base, changes
            self.work = work
            self._handed[staged.id] = Handed(base.id, staged, changes.copy())

    def discard(self) -> None:
        """Forget work that was handed out with discarded changes."""
        self._handed = {n: h for n, h in self._handed.items() if h.changes.is_empty()}


def read_work(core: Core, work: WorkUnit | Mapping[str, Any] | str) -> WorkUnit:
    """A work unit from whatever form it travelled in; refuses one for another generation."""
    unit = work if isinstance(work, WorkUnit) else WorkUnit.from_json(work)
    if unit.generation != core.generation.value:
        raise InvalidInputError(
            f"the work unit is for a repository of generation `{unit.generation}`, "
            f"{core.storage.location} is of generation `{core.generation.value}`"
        )
    return unit
