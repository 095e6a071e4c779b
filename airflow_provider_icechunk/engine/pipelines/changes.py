"""Change the metadata in a repository: declare more of a dataset, and set attributes.

Both can report beforehand what they would change: the documents of nodes, key by key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.engine.commit.documents import encoded, is_same
from airflow_provider_icechunk.engine.datasets.dataset import IcechunkDataset, Placement
from airflow_provider_icechunk.engine.datasets.declare import ensure
from airflow_provider_icechunk.engine.datasets.growing import checked_attrs
from airflow_provider_icechunk.engine.format.chunk_refs import Inline, Payload
from airflow_provider_icechunk.engine.format.names import check_node_path
from airflow_provider_icechunk.engine.objects.chunk_writer import ChunkWriter
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, NotFoundError

from .transaction import CommitOptions, Outcome, write_session

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.commit.conflicts import ConflictSolver
    from airflow_provider_icechunk.engine.repository import Repository
    from airflow_provider_icechunk.engine.sessions.session import Session
    from airflow_provider_icechunk.engine.storage.base import Data

Attributes = Mapping[str, Mapping[str, Any]]
"""By path of a group or an array; the root is `/`."""
Removed = Mapping[str, Iterable[str]]
Change = Callable[["Session"], None]


def declare(
    repository: Repository,
    dataset: IcechunkDataset,
    *,
    branch: str | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    rebase_with: ConflictSolver | None = None,
    dry_run: bool = False,
) -> tuple[dict[str, Any], str | None]:
    """Make a repository hold at least what a dataset declares, without adding labels.

    New variables along a growing dimension are as long as the others, and hold the fill value.
    Returns what changed and the snapshot's id, which is `None` if nothing did or for a dry run.
    """
    branch = branch or dataset.branch
    session = repository.writable_session(branch)
    return _commit(
        session, declaring(dataset), message or "declare", metadata, rebase_with, dry_run=dry_run
    )


def set_attributes(
    repository: Repository,
    attributes: Attributes | None = None,
    *,
    remove: Removed | None = None,
    branch: str = "main",
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    rebase_with: ConflictSolver | None = None,
    dry_run: bool = False,
) -> tuple[dict[str, Any], str | None]:
    """Set attributes of groups and arrays, and remove some; others stay.

    Returns what changed and the snapshot's id, which is `None` if nothing did or for a dry run.
    """
    session = repository.writable_session(branch)
    change = describing(attributes, remove)
    return _commit(
        session, change, message or "change attributes", metadata, rebase_with, dry_run=dry_run
    )


def change_once(
    repository: Repository,
    change: Change,
    options: CommitOptions,
    *,
    branch: str,
    dry_run: bool = False,
) -> Outcome:
    """A change by a task, once, however often it runs; the result says what changed."""
    if dry_run:
        session = repository.writable_session(branch)
        _without_storing(session, change)
        head = {"snapshot_id": None, "parent_id": session.snapshot_id, "branch": branch}
        return Outcome({**head, "committed": False, "result": what_changed(session)}, is_new=False)

    def write(session: Session) -> dict[str, Any]:
        change(session)
        return what_changed(session)

    return write_session(repository, branch, write, options)


def declaring(dataset: IcechunkDataset) -> Change:
    """The function that makes a session hold at least a dataset."""
    fixed = {name: dim for name, dim in dataset.dims.items() if isinstance(dim, int)}
    growing = dataset.growing
    placement = Placement(
        {name: (0, 0) for name, dim in growing.items() if dim.is_regular},
        {name: [] for name in growing},
        {**fixed, **dict.fromkeys(growing, 0)},
    )

    def change(session: Session) -> None:
        ensure(session, dataset, placement)

    return change


def describing(attributes: Attributes | None, remove: Removed | None) -> Change:
    """The function that changes attributes; refuses an empty or contradictory request."""
    wanted = {_path(path): checked_attrs(path, found) for path, found in (attributes or {}).items()}
    gone = {_path(path): _names(path, names) for path, names in (remove or {}).items()}
    if not any(wanted.values()) and not any(gone.values()):
        raise InvalidInputError("there are no attributes to set or to remove")
    for path, names in gone.items():
        both = sorted(set(names) & set(wanted.get(path, {})))
        if both:
            raise InvalidInputError(f"the attribute {both[0]!r} of {path} is both set and removed")

    def change(session: Session) -> None:
        for path in sorted({*wanted, *gone}):
            node = session.tree.node(path)
            if node is None:
                raise NotFoundError(
                    f"there is no group or array at {path}", kind=Kind.NODE_NOT_FOUND
                )
            document = json.loads(node.user_data)
            before = document.get("attributes") or {}
            kept = {key: value for key, value in before.items() if key not in gone.get(path, ())}
            after = {**kept, **wanted.get(path, {})}
            if not is_same(before, after):
                document["attributes"] = after
                session.tree.put_document(path, encoded(document))

    return change


def what_changed(session: Session) -> dict[str, Any]:
    """What a session changed in documents, as small JSON: new nodes, lengths and attributes."""
    before = {path: node.user_data for path, node in session.tree.base.nodes.items()}
    after = {node.path: node.user_data for node in session.tree.nodes()}
    changed = {}
    for path in sorted(after.keys() & before.keys()):
        if after[path] != before[path]:
            found = _differences(json.loads(before[path]), json.loads(after[path]))
            if found:
                changed[path] = found
    return {
        "created": sorted(after.keys() - before.keys()),
        "deleted": sorted(before.keys() - after.keys()),
        "changed": changed,
    }


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Keys whose values differ, with the old and new value; attributes one by one."""
    old, new = (one.get("attributes") or {} for one in (before, after))
    plain = {key: [before.get(key), after.get(key)] for key in sorted({*before, *after})}
    found = {
        key: values for key, values in plain.items() if key != "attributes" and not is_same(*values)
    }
    attributes = {
        key: [old.get(key), new.get(key)]
        for key in sorted({*old, *new})
        if (key in old) is not (key in new) or not is_same(old[key], new[key])
    }
    return {**found, **({"attributes": attributes} if attributes else {})}


def _commit(
    session: Session,
    change: Change,
    message: str,
    metadata: Mapping[str, Any] | None,
    solver: ConflictSolver | None,
    *,
    dry_run: bool,
) -> tuple[dict[str, Any], str | None]:
    if dry_run:
        _without_storing(session, change)
        return what_changed(session), None
    change(session)
    report = what_changed(session)
    if not session.has_uncommitted_changes:
        return report, None
    return report, session.commit(message, metadata=metadata, rebase_with=solver)


class _InMemory(ChunkWriter):
    """Keeps chunks with their references: nothing reaches the storage."""

    def __init__(self) -> None:
        pass

    def write(self, data: Data) -> Payload:
        """Accept a chunk."""
        return Inline(bytes(data))

    def stores_at_once(self, size: int) -> bool:
        """Never."""
        del size
        return False


def _without_storing(session: Session, change: Change) -> None:
    session.tree.writer = _InMemory()
    change(session)


def _path(path: str) -> str:
    return check_node_path("/" + path.strip("/"))


def _names(path: str, names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise InvalidInputError(f"remove[{path!r}] must be a list of names, such as [{names!r}]")
    return tuple(names)
