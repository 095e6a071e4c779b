"""Revert one commit with a new commit that restores what it changed, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.engine.datasets.stored import (
    DROPPED_KEY,
    drops_to_json,
    reverted_drops,
)
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document
from airflow_provider_icechunk.engine.history.versions import parse_snapshot_id
from airflow_provider_icechunk.engine.tree.tree import WorkingTree
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    InvalidInputError,
    Kind,
    NotFoundError,
    SessionError,
)

from .transaction import CommitOptions, Outcome, write_session

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.commit.conflicts import ConflictSolver
    from airflow_provider_icechunk.engine.format.model import Coordinates, Node
    from airflow_provider_icechunk.engine.history.ancestry import SnapshotInfo
    from airflow_provider_icechunk.engine.history.diff import Diff
    from airflow_provider_icechunk.engine.repository import Repository
    from airflow_provider_icechunk.engine.sessions.session import Session

REVERTS_KEY = "reverts"
"""Snapshot metadata of a commit that reverts another one: the id of that one."""

_SHOWN = 5


def revert(
    repository: Repository,
    snapshot_id: str,
    *,
    branch: str = "main",
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    rebase_with: ConflictSolver | None = None,
) -> str:
    """Commit the reversal of a commit to its branch; returns the id of the new snapshot.

    Whatever the commit created is deleted, whatever it deleted is restored, and documents and
    chunks that it changed become those of its parent; only metadata is stored. If later commits
    changed the same things, it is a `ConflictError` that names them. Other later changes stay.
    """
    session = repository.writable_session(branch)
    taken_back = undo(repository, session, snapshot_id)
    return session.commit(
        message or f"revert {taken_back.id}: {taken_back.message}",
        metadata={**(metadata or {}), REVERTS_KEY: taken_back.id, **_marks(taken_back.metadata)},
        rebase_with=rebase_with,
    )


def revert_once(
    repository: Repository, snapshot_id: str, options: CommitOptions, *, branch: str
) -> Outcome:
    """`revert` for a task: once, however often the task runs."""
    identity = repository.read_snapshot_id(snapshot_id)
    for info in repository.ancestry(branch=branch):
        if info.metadata.get(REVERTS_KEY) == identity and not options.attempt.made(info.metadata):
            raise ConflictError(f"snapshot {identity} was already reverted by {info.id}")
        if info.id == identity:
            break
    marks = _marks(repository.lookup_snapshot(identity).metadata)
    details = {**options.metadata, REVERTS_KEY: identity, **marks}
    given = CommitOptions(options.attempt, options.message, details, options.solver)

    def write(session: Session) -> dict[str, Any]:
        return {"reverts": undo(repository, session, identity).id}

    return write_session(repository, branch, write, given)


def undo(repository: Repository, session: Session, snapshot_id: str) -> SnapshotInfo:
    """Undo one commit of a session's branch in the session."""
    core = repository.core
    identity = repository.read_snapshot_id(snapshot_id)
    info = _commit(repository, session.snapshot_id, identity)
    if info.parent_id is None:
        raise InvalidInputError(
            f"{identity} is the first snapshot, or those before it have expired: there is nothing "
            "to revert to"
        )
    done = repository.diff(from_snapshot_id=info.parent_id, to_snapshot_id=identity)
    if done.moved_nodes:
        raise SessionError(
            f"snapshot {identity} moved nodes, which cannot be reverted: move them back with "
            "`rearrange_session`"
        )
    head = session.snapshot_id
    before = core.objects.snapshot(parse_snapshot_id(core, info.parent_id))
    then = WorkingTree(core, before, read_only=True)
    tree = session.tree
    if head != identity:
        later = repository.diff(from_snapshot_id=identity, to_snapshot_id=head)
        shaped = {path for path in done.updated_arrays if _shape(tree, path) != _shape(then, path)}
        clashes = _clashes(done, later, shaped)
        if clashes:
            more = "" if len(clashes) <= _SHOWN else f" and {len(clashes) - _SHOWN} more"
            raise ConflictError(
                f"snapshot {identity} cannot be reverted alone, because later commits changed the "
                f"same things: {'; '.join(clashes[:_SHOWN])}{more}. Revert those first, newest "
                "first, or reset the branch"
            )
    # Chunks of the parent are used again: a collection must see that they are needed.
    tree.held.borrows(core.refs.layout.snapshot(before.id))
    _bring_back(tree, then, done)
    after = WorkingTree(
        core, core.objects.snapshot(parse_snapshot_id(core, identity)), read_only=True
    )
    for path in sorted(done.updated_arrays):
        _restore_cut(tree, then, after, path)
    return info


def _marks(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata saying that positions shift back, if the commit had shifted them."""
    drops = reverted_drops(metadata)
    return {DROPPED_KEY: drops_to_json(drops)} if drops else {}


def _bring_back(tree: WorkingTree, then: WorkingTree, done: Diff) -> None:
    """Restore the nodes that a commit touched, by its log."""
    for path in _deepest_first(done.new_arrays | done.new_groups):
        # A group in which others have since created something stays.
        if len(tree.nodes(path)) == 1:
            tree.delete(path)
    gone = done.deleted_groups | done.deleted_arrays
    for path in sorted(gone | done.updated_groups | done.updated_arrays):
        node = then.node(path)
        if node is not None and (path in gone or tree.node(path) is not None):
            tree.put_document(path, node.user_data)
    for path in sorted(done.deleted_arrays):
        tree.put_references(path, then.references(then.array(path)))
    for path, touched in done.chunk_columns.items():
        if path not in done.new_arrays | done.deleted_arrays and then.node(path) is not None:
            _restore(tree, then.array(path), then.references(then.array(path)), touched)


def _restore_cut(tree: WorkingTree, then: WorkingTree, after: WorkingTree, path: str) -> None:
    """Bring back the chunks that a smaller shape cut off: no log lists them."""
    was, became = then.node(path), after.node(path)
    if was is None or became is None or was.array is None or became.array is None:
        return
    counts = array_document(became).num_chunks
    if len(counts) != len(array_document(was).num_chunks):
        return
    refs = then.references(was)
    inside = refs.inside(tuple((0, count) for count in counts))
    if not inside.all():
        tree.put_references(path, refs.take(~inside))


def _commit(repository: Repository, head: str, identity: str) -> SnapshotInfo:
    for info in repository.ancestry(snapshot_id=head):
        if info.id == identity:
            return info
    raise NotFoundError(
        f"snapshot {identity} is not in the history of the branch, so there is nothing to revert",
        kind=Kind.SNAPSHOT_NOT_FOUND,
    )


def _restore(tree: WorkingTree, node: Node, refs: ChunkRefs, touched: Coordinates) -> None:
    """Restore the touched chunks; those that did not exist are erased."""
    were = ChunkRefs.blank(touched).overlay(refs.without(refs.without(touched).index))
    with tree.lock:
        here = tree.array(node.path)
        inside = were.inside(tuple((0, count) for count in array_document(here).num_chunks))
        tree.changes.edits(here).set_many(were if inside.all() else were.take(inside))


def _clashes(done: Diff, later: Diff, shaped: Iterable[str]) -> list[str]:
    """A description of what both changed. Pure."""
    created = done.new_groups | done.new_arrays
    documents = done.updated_groups | done.updated_arrays
    deleted = done.deleted_groups | done.deleted_arrays
    changed = later.updated_groups | later.updated_arrays
    made = later.new_groups | later.new_arrays
    gone = later.deleted_groups | later.deleted_arrays
    moved = {path for move in later.moved_nodes for path in move}
    touched = changed | made | gone | moved | set(later.chunk_columns)
    found = [f"{path} was changed" for path in sorted(touched) if path in created]
    found += [f"the definition of {path}" for path in sorted(documents & (changed | gone | moved))]
    found += [f"{path} was created again" for path in sorted(deleted & made)]
    found += [
        f"chunks of {path}, whose shape would change"
        for path in sorted(set(shaped) & set(later.chunk_columns))
    ]
    for path, rows in done.chunk_columns.items():
        if path in gone | moved:
            found.append(f"{path} was deleted or moved")
        elif path in later.chunk_columns and path not in created:
            both = set(map(tuple, rows.tolist())) & set(
                map(tuple, later.chunk_columns[path].tolist())
            )
            if both:
                found.append(f"{len(both)} chunks of {path}, for example {list(min(both))}")
    return list(dict.fromkeys(found))


def _shape(tree: WorkingTree, path: str) -> tuple[int, ...] | None:
    node = tree.node(path)
    return None if node is None or node.array is None else tuple(array_document(node).shape)


def _deepest_first(paths: set[str]) -> list[str]:
    return sorted(paths, key=lambda path: path.count("/"), reverse=True)
