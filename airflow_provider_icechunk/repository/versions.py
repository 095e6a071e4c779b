"""The versions of a repository by name: branches, tags, snapshots, what lies between them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import datetime

from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    Kind,
    NotFoundError,
)
from airflow_provider_icechunk.format.generations.identities import parse_id
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.format.names import MAIN, check_new_ref_name
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.repository.async_twins import in_thread
from airflow_provider_icechunk.repository.engine import Engine
from airflow_provider_icechunk.repository.graph import AncestryGraph
from airflow_provider_icechunk.repository.history import (
    Diff,
    SnapshotInfo,
    ancestors,
    describe,
    diff_between,
)
from airflow_provider_icechunk.repository.ledgers.base import Behind, Creation
from airflow_provider_icechunk.repository.ledgers.v2 import V2Ledger
from airflow_provider_icechunk.repository.world import to_micros


class Versions:
    """Mixed into a repository."""

    _engine: Engine

    def create_branch(self, branch: str, snapshot_id: str) -> None:
        """Create a branch at a snapshot."""
        check_new_ref_name(branch)
        target = self._existing(snapshot_id)
        if self._engine.ledger.create_branch(branch, target) is not Creation.CREATED:
            raise AlreadyExistsError(
                f"branch {branch!r} exists already; reset it to move it", kind=Kind.BRANCH_EXISTS
            )

    def list_branches(self) -> set[str]:
        """Names of all branches."""
        return set(self._engine.ledger.branches())

    def lookup_branch(self, branch: str) -> str:
        """The snapshot at the head of a branch."""
        return self._engine.show(self._branch_head(branch))

    def reset_branch(
        self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None
    ) -> None:
        """Move a branch to any snapshot; with `from_snapshot_id` only if it is there."""
        target = self._existing(snapshot_id)
        expected = self._branch_head(branch)
        if from_snapshot_id is not None:
            expected = self._parse(from_snapshot_id)
        outcome = self._engine.ledger.reset_branch(branch, target, expected)
        if isinstance(outcome, Behind):
            show = self._engine.show
            actual = None if outcome.actual is None else show(outcome.actual)
            raise ConflictError(
                f"branch {branch!r} is at {actual}, not at {show(expected)}; it was not reset",
                expected_parent=show(expected),
                actual_parent=actual,
            )

    def delete_branch(self, branch: str) -> None:
        """Delete a branch; its snapshots stay until they are collected."""
        if branch == MAIN:
            raise InvalidInputError("main branch cannot be deleted", kind=Kind.INVALID_NAME)
        if not self._engine.ledger.delete_branch(branch):
            raise self._no_branch(branch)

    def create_tag(self, tag: str, snapshot_id: str) -> None:
        """Name a snapshot for ever."""
        check_new_ref_name(tag, "tag")
        match self._engine.ledger.create_tag(tag, self._existing(snapshot_id)):
            case Creation.EXISTS:
                raise AlreadyExistsError(
                    f"tag already exists, tags are immutable: {tag!r}", kind=Kind.TAG_EXISTS
                )
            case Creation.WAS_DELETED:
                raise AlreadyExistsError(
                    f"tag {tag!r} existed and was deleted; its name cannot be used again",
                    kind=Kind.TAG_WAS_DELETED,
                )
            case Creation.CREATED:
                return

    def list_tags(self) -> set[str]:
        """Names of all tags that were not deleted."""
        return set(self._engine.ledger.tags())

    def lookup_tag(self, tag: str) -> str:
        """The snapshot a tag names."""
        return self._engine.show(self._tagged(tag))

    def delete_tag(self, tag: str) -> None:
        """Delete a tag; its name is never free again."""
        if not self._engine.ledger.delete_tag(tag):
            raise self._no_tag(tag)

    def check_snapshot_id(self, snapshot_id: str) -> None:
        """Refuse a text that cannot be a snapshot's id; whether there is one is not asked."""
        self._parse(snapshot_id)

    def read_snapshot_id(self, text: str) -> str:
        """The id that somebody typed, as this repository writes it; refuses what cannot be one.

        Two ids are the same if their texts are equal in this spelling. Whether there is such a
        snapshot is not asked.
        """
        return self._engine.show(self._parse(text))

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        """What is known of one snapshot."""
        known_as = self._listed(snapshot_id)
        return self._describe(self._engine.assets.snapshot(known_as), known_as)

    def ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Iterator[SnapshotInfo]:
        """A version and its ancestors, newest first."""
        return self._history(self._resolve(branch, tag, snapshot_id))

    def diff(
        self,
        *,
        from_branch: str | None = None,
        from_tag: str | None = None,
        from_snapshot_id: str | None = None,
        to_branch: str | None = None,
        to_tag: str | None = None,
        to_snapshot_id: str | None = None,
    ) -> Diff:
        """What changed from an ancestor to a later version."""
        older = self._resolve(from_branch, from_tag, from_snapshot_id)
        newer = self._resolve(to_branch, to_tag, to_snapshot_id)
        return diff_between(self._engine.assets, older, newer)

    def ancestry_graph(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        plain: bool = False,
    ) -> AncestryGraph:
        """The history as a picture: of one version, or of all branches if none is given.

        `print` shows it in colours, notebooks as a drawing; `plain` leaves out the colours.
        """
        branches, tags = self._engine.ledger.branches(), self._engine.ledger.tags()
        if branch is None and tag is None and snapshot_id is None:
            starts = list(branches.values())
        else:
            starts = [self._resolve(branch, tag, snapshot_id)]
        found: dict[str, SnapshotInfo] = {}
        for start in starts:
            for info in self._history(start):
                if info.id in found:
                    break
                found[info.id] = info
        show = self._engine.show
        return AncestryGraph.of(
            found.values(),
            branches={name: show(tip) for name, tip in branches.items()},
            tags={name: show(tip) for name, tip in tags.items()},
            plain=plain,
        )

    async def async_ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> AsyncIterator[SnapshotInfo]:
        """`ancestry` that loads each snapshot in a thread."""
        history = self.ancestry(branch=branch, tag=tag, snapshot_id=snapshot_id)
        while (info := await in_thread(next, history, None)) is not None:
            yield info

    def _history(self, start: SnapshotId) -> Iterator[SnapshotInfo]:
        known_as: SnapshotId | None = start
        for snapshot in ancestors(self._engine.assets, start):
            yield self._describe(snapshot, known_as)
            known_as = self._engine.ledger.parent(snapshot)

    def _describe(self, snapshot: Snapshot, known_as: SnapshotId | None) -> SnapshotInfo:
        """A history entry under the id that a reference or a child uses for the snapshot.

        Early writers stored first snapshots under another file name than the id they gave them.
        """
        parent = self._engine.ledger.parent(snapshot)
        return describe(snapshot, parent, known_as or snapshot.id, self._engine.show)

    def _resolve(self, branch: str | None, tag: str | None, snapshot_id: str | None) -> SnapshotId:
        if sum(name is not None for name in (branch, tag, snapshot_id)) != 1:
            raise InvalidInputError("Must provide one of branch, tag, or snapshot_id")
        if branch is not None:
            return self._branch_head(branch)
        if tag is not None:
            return self._tagged(tag)
        assert snapshot_id is not None
        return self._listed(snapshot_id)

    def _newest_until(self, branch: str, start: SnapshotId, as_of: datetime) -> SnapshotId:
        limit = to_micros(as_of)
        for snapshot in ancestors(self._engine.assets, start):
            if snapshot.flushed_at <= limit:
                return snapshot.id
        raise NotFoundError(
            f"branch {branch!r} has no snapshot as old as {as_of.isoformat()}",
            kind=Kind.SNAPSHOT_NOT_FOUND,
        )

    def _existing(self, snapshot_id: str) -> SnapshotId:
        """A snapshot that is stored right now."""
        return self._engine.assets.stored_now(self._parse(snapshot_id)).id

    def _parse(self, snapshot_id: str) -> SnapshotId:
        try:
            return SnapshotId(parse_id(self._engine.generation, snapshot_id))
        except InvalidInputError as error:
            raise InvalidInputError(f"invalid snapshot id: {error}") from None

    def _listed(self, snapshot_id: str) -> SnapshotId:
        """A snapshot that may be read: generation `2` lists them, and what expired is not listed.

        Elsewhere an expired snapshot can be read by its id until it is collected.
        """
        identity = self._parse(snapshot_id)
        if isinstance(self._engine.ledger, V2Ledger):
            self._engine.ledger.check_listed(identity)
        return identity

    def _head_to_change(self, branch: str) -> SnapshotId:
        """The head of a branch for a session that is going to change it; refused if none may."""
        head = self._branch_head(branch)
        self._engine.ledger.check_writable()
        return head

    def _branch_head(self, branch: str) -> SnapshotId:
        head = self._engine.ledger.branch(branch)
        if head is None:
            raise self._no_branch(branch)
        return head

    def _tagged(self, tag: str) -> SnapshotId:
        found = self._engine.ledger.tag(tag)
        if found is None:
            raise self._no_tag(tag)
        return found

    def _no_branch(self, branch: str) -> NotFoundError:
        known = ", ".join(sorted(self._engine.ledger.branches())[:20])
        return NotFoundError(
            f"there is no branch {branch!r} in {self._engine.storage.location}; it has: {known}",
            kind=Kind.BRANCH_NOT_FOUND,
        )

    def _no_tag(self, tag: str) -> NotFoundError:
        known = ", ".join(sorted(self._engine.ledger.tags())[:20]) or "no tags"
        return NotFoundError(
            f"there is no tag {tag!r} in {self._engine.storage.location}; it has: {known}",
            kind=Kind.TAG_NOT_FOUND,
        )
