"""Handing out work and taking it back: what makes a session the coordinator of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_icechunk.exceptions import (
    FragmentError,
    NotFoundError,
    SessionError,
)
from airflow_provider_icechunk.format.fragments import Fragment
from airflow_provider_icechunk.format.ids import SnapshotId, encode_base32
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.repository.changes import ChangeSet
from airflow_provider_icechunk.repository.commit import Flusher
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.handoff import (
    OnOverlap,
    WorkUnit,
    changes_of_staged,
    counted_since,
    merge_fragments,
)
from airflow_provider_icechunk.repository.history import (
    required_log,
)
from airflow_provider_icechunk.repository.merging import Handed, merge_changes
from airflow_provider_icechunk.repository.node_ids import ids_of
from airflow_provider_icechunk.repository.working_tree import WorkingTree

_STAGED_ON = "staged_on"
"""Metadata of a staged snapshot: the earlier one with whose changes it began."""


class Coordination:
    """Mixed into a session."""

    tree: WorkingTree
    _engine: Engine
    _branch: str | None
    _flusher: Flusher
    _work: WorkUnit | None
    _handed: dict[SnapshotId, Handed]

    def stage(self) -> Snapshot:
        """The tree as it is now as a stored snapshot that nothing names, for workers to stand on.

        Without changes it is the base itself. Collection leaves it alone while it is young.
        """
        with self.tree.lock:
            if self.tree.changes.is_empty():
                return self.tree.base
            earlier = {} if self._work is None else {_STAGED_ON: encode_base32(self._work.staged)}
            return self._store_snapshot("staged", earlier)

    def work_unit(self, job: str) -> WorkUnit:
        """What workers need to write chunks for this session. JSON-able, without credentials."""
        with self.tree.lock:
            self.tree.check_writable()
            self._work = self._hand_out(job)
            return self._work

    def merge_fragments(
        self, fragments: Sequence[Fragment], *, on_overlap: OnOverlap = "error"
    ) -> int:
        """Take over what workers wrote; all of it or, on an error, nothing.

        Returns the number of references. Refused are fragments of another base or job, and chunks
        that two workers wrote, unless `on_overlap` says who wins. A worker that needed other arrays
        than were handed out has staged them on top; that is taken over as well, from one worker.
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
                show=self._engine.show,
            )
            nodes = {node.id: node for node in self.tree.nodes()}
            missing = merged.keys() - nodes.keys()
            if missing:
                gone = next(node.path for node in staged.nodes.values() if node.id in missing)
                raise FragmentError(f"{gone} was deleted after the work was handed out")
            for node_id, refs in merged.items():
                self.tree.put_references(nodes[node_id].path, refs)
            for fragment in fragments:
                if fragment.has_files:
                    since = counted_since(work, self.tree.base)
                    self.tree.held.count(since if fragment.since is None else fragment.since)
            return sum(len(refs) for refs in merged.values())

    def _staged_on_top(self, fragments: Sequence[Fragment], work: WorkUnit) -> WorkUnit | None:
        """The work as the one worker left it that staged other arrays on top of what it was given.

        Only what names our own staged snapshot as its beginning is believed.
        """
        bases = {one.base for one in fragments if one.job == work.job} - {work.staged}
        ours = encode_base32(work.staged)
        found = []
        for base in bases:
            try:
                snapshot = self._engine.assets.snapshot(base)
            except NotFoundError:
                return None
            if snapshot.metadata.get(_STAGED_ON) == ours:
                found.append(snapshot.id)
        if len(found) > 1:
            raise FragmentError(
                "two workers changed arrays, each on its own: make these changes before handing "
                "out work, or let one worker make all of them; nothing was merged"
            )
        return replace(work, staged=found[0]) if found else None

    def _merge_on(
        self, again: WorkUnit, fragments: Sequence[Fragment], on_overlap: OnOverlap
    ) -> int:
        before = self.tree.base, self.tree.changes, self._work
        assert self._work is not None
        handed = self._handed.get(self._work.staged)
        if handed is None or not handed.changes.is_same_as(self.tree.changes):
            raise FragmentError(
                "a worker changed arrays, and so did this session after it had handed out the "
                "work: they cannot be joined; nothing was merged"
            )
        moved = [
            replace(one, base=again.staged) if one.base == self._work.staged else one
            for one in fragments
        ]
        try:
            self.resume(again)
            return self.merge_fragments(moved, on_overlap=on_overlap)
        except BaseException:
            self.tree.base, self.tree.changes, self._work = before
            raise

    def merge_changes(self, staged: SnapshotId, theirs: ChangeSet) -> None:
        """Take over what a fork on the snapshot `staged` changed; all of it or nothing."""
        with self.tree.lock:
            self.tree.check_writable()
            handed = self._handed.get(staged)
            if handed is None:
                raise FragmentError("only forks of this session can be merged into it")
            taken = ids_of(self.tree.nodes()) | ids_of(self.tree.base.nodes.values())
            theirs = self.tree.node_ids.renumber(theirs, taken)
            self.tree.changes = merge_changes(
                self.tree.changes, theirs, base=self.tree.base, handed=handed
            )

    def _hand_out(self, job: str) -> WorkUnit:
        handed = self._stage_anew()
        assert self._branch is not None
        work = WorkUnit(
            repository=self._engine.storage.location,
            generation=self._engine.generation.value,
            branch=self._branch,
            base=self.tree.base.id,
            staged=handed.staged.id,
            job=job,
            since=self.tree.held.hand_out(),
        )
        self.tree.held.serves(work.tenancy)
        return work

    def _stage_anew(self) -> Handed:
        """The tree as it is now, staged; what was staged last serves if nothing changed since."""
        for handed in reversed(self._handed.values()):
            if handed.base == self.tree.base.id and handed.changes.is_same_as(self.tree.changes):
                return handed
        handed = Handed(self.tree.base.id, self.stage(), self.tree.changes.copy())
        self._handed[handed.staged.id] = handed
        return handed

    def _handed_out(self) -> tuple[WorkUnit, Snapshot]:
        if self._work is None:
            raise SessionError("this session handed out no work; call `work_unit` or `fork` first")
        return self._work, self._engine.assets.snapshot(self._work.staged)

    def resume(self, work: WorkUnit) -> None:
        """Become the session that handed out `work`, with the changes it had made by then."""
        assets = self._engine.assets
        with self.tree.lock:
            base, staged = assets.snapshot(work.base), assets.snapshot(work.staged)
            changes = ChangeSet()
            if staged.id != base.id:
                log = required_log(assets, staged)
                view = WorkingTree(self._engine, staged, read_only=True)
                changes = changes_of_staged(base, staged, log, view.references)
                self.tree.held.count(counted_since(work, base))
            self.tree.held.join(work.tenancy)
            self.tree.held.serves(work.tenancy)
            self.tree.base, self.tree.changes = base, changes
            self._work = work
            self._handed[staged.id] = Handed(base.id, staged, changes.copy())

    def _store_snapshot(self, message: str, metadata: dict[str, Any]) -> Snapshot:
        self.tree.writer.flush()
        return self._flusher.flush(
            self.tree.base, self.tree.changes, message=message, metadata=metadata
        )
