"""Trees with marks: what a version holds, and how that differs from another one."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.engine.checks.checks import CHECKS_KEY
from airflow_provider_icechunk.engine.core import Core
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.model import Coordinates, ManifestRef, Node, Snapshot
from airflow_provider_icechunk.engine.format.zarr_metadata import ArrayDocument, parse_node
from airflow_provider_icechunk.engine.history.ancestry import commits_between
from airflow_provider_icechunk.engine.history.diff import Diff, combine, diff_between
from airflow_provider_icechunk.engine.history.versions import listed
from airflow_provider_icechunk.engine.objects.derived_logs import derive_log
from airflow_provider_icechunk.engine.pipelines.versions import find_version
from airflow_provider_icechunk.exceptions import IcechunkError, Kind, NotFoundError

from .history import PageOf, commit_facts
from .models import Mark, NodeFacts, RefNames, SnapshotPage, TreePage, cut
from .places import Memory

MOST_NODES = 500
_MOST_ARRAYS = 50
_MOST_LOOKED_AT = 2_000
_MOST_CHECKS = 200
_NEAR = 500
"""The number of commits searched for an ancestor; more distant versions are compared as trees."""
_CHECK_COLUMNS = ("check", "subject", "value", "limit", "text")


@dataclass(frozen=True, slots=True)
class MarkedChanges:
    """What differs between two versions, by path."""

    marks: Mapping[str, Mark] = field(default_factory=dict)
    chunks: Mapping[str, Coordinates] = field(default_factory=dict)
    below: Mapping[str, int] = field(default_factory=dict)
    """Marked nodes below each group."""

    @classmethod
    def of(cls, diff: Diff) -> MarkedChanges:
        """The marks of a difference."""
        marks: dict[str, Mark] = dict.fromkeys(diff.chunk_columns, "changed")
        marks |= dict.fromkeys(diff.updated_groups | diff.updated_arrays, "changed")
        marks |= dict.fromkeys(diff.new_groups | diff.new_arrays, "added")
        marks |= dict.fromkeys(diff.deleted_groups | diff.deleted_arrays, "removed")
        marks |= {target: "moved" for _, target in diff.moved_nodes}
        inside = Counter(path.rpartition("/")[0] or "/" for path in marks if path != "/")
        below: Counter[str] = Counter()
        for path, count in inside.items():
            below[path] += count
            while path != "/":
                path = path.rpartition("/")[0] or "/"
                below[path] += count
        return cls(marks, diff.chunk_columns, below)


class VersionDifferences:
    """Differences between versions, which never change, kept for a while."""

    def __init__(self) -> None:
        self._kept = Memory[MarkedChanges](16, 600.0)

    def between(self, repository: Repository, older: str, newer: str) -> MarkedChanges:
        """What differs from one snapshot to another, whether or not one descends from the other."""
        core = repository.core
        key = (repository.storage.location, older, newer)
        return self._kept.get(key, lambda: MarkedChanges.of(_difference(core, older, newer)))

    def against(self, repository: Repository, snapshot: Snapshot, other: str | None) -> str | None:
        """The version to compare with: a named one, or the parent."""
        if other == "none":
            return None
        if other:
            return find_version(repository, other)
        parent = repository.core.refs.parent(snapshot)
        return None if parent is None else repository.core.format_id(parent)


def _difference(core: Core, older: str, newer: str) -> Diff:
    first, second = listed(core, older), listed(core, newer)
    if _is_near(core, first, second) and commits_between(core.objects, first, second) is not None:
        return diff_between(core.objects, first, second)
    before, after = core.objects.snapshot(first), core.objects.snapshot(second)

    def references(node: Node, refs: Iterable[ManifestRef]) -> list[ChunkRefs]:
        assert node.array is not None
        manifests = core.objects.manifests(ref.id for ref in refs)
        return [one.of(node.id, len(node.array.shape)) for one in manifests]

    return combine([derive_log(before, after, references)], before, after)


def _is_near(core: Core, older: SnapshotId, newer: SnapshotId) -> bool:
    current: SnapshotId | None = newer
    for _ in range(_NEAR):
        if current is None or current == older:
            return current == older
        current = core.refs.parent(core.objects.snapshot_header(current))
    return False


def read_snapshot(
    repository: Repository,
    version: str,
    against: str | None,
    differences: VersionDifferences,
    refs: RefNames,
    page_of: PageOf,
) -> SnapshotPage:
    """One snapshot and what it changed against its parent, or against any other version."""
    core = repository.core
    identity = find_version(repository, version)
    snapshot = core.objects.snapshot_header(listed(core, identity))
    other = differences.against(repository, snapshot, against)
    changes, unknown = MarkedChanges(), None
    if other is not None:
        try:
            changes = differences.between(repository, other, identity)
        except IcechunkError as error:
            if error.kind is not Kind.OBJECT_MISSING:
                raise
            unknown = error.message
    marks = Counter(changes.marks.values())
    largest = sorted(
        (path for path in changes.marks if path in snapshot.nodes),
        key=lambda path: (-len(changes.chunks.get(path, ())), path),
    )
    # Each node is decoded when it is looked at: if there are very many, only some are.
    nodes = (snapshot.nodes[path] for path in largest[:_MOST_LOOKED_AT])
    shown = list(islice((node for node in nodes if node.array is not None), _MOST_ARRAYS))
    return SnapshotPage(
        commit=commit_facts(
            core, snapshot, refs, page_of, metadata=True, known_as=listed(core, identity)
        ),
        against=other,
        added=marks["added"],
        changed=marks["changed"],
        removed=marks["removed"],
        moved=marks["moved"],
        chunks=sum(len(rows) for rows in changes.chunks.values()),
        unknown=unknown,
        arrays=[node_facts(node, changes) for node in shown],
        checks=read_checks(snapshot.metadata),
        manifests=len(snapshot.manifest_files),
        manifest_bytes=sum(one.size_bytes for one in snapshot.manifest_files.values()),
    )


def read_checks(metadata: Mapping[str, Any]) -> list[dict[str, str]]:
    """The results of the checks before a commit; anything of unexpected form is left out."""
    report = metadata.get(CHECKS_KEY)
    checks = report.get("checks") if isinstance(report, Mapping) else None
    if not isinstance(checks, list):
        return []
    return [
        {
            "passed": "passed" if one.get("passed") is True else "failed",
            **{name: cut(str(one.get(name, "")), 300) for name in _CHECK_COLUMNS},
        }
        for one in checks[:_MOST_CHECKS]
        if isinstance(one, Mapping)
    ]


class Trees:
    """The children of every group of a version, kept for a while: versions never change."""

    def __init__(self) -> None:
        self._kept = Memory[dict[str, list[str]]](16, 600.0)

    def children(self, repository: Repository, snapshot: Snapshot) -> dict[str, list[str]]:
        """Paths of children by path of the group."""
        key = (repository.storage.location, bytes(snapshot.id))
        return self._kept.get(key, lambda: _children(snapshot.nodes))


def _children(paths: Iterable[str]) -> dict[str, list[str]]:
    """Implicit groups above existing nodes are shown like others."""
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for path in paths:
        while path != "/" and path not in seen:
            seen.add(path)
            above = path.rpartition("/")[0] or "/"
            found.setdefault(above, []).append(path)
            path = above
    return {group: sorted(below) for group, below in found.items()}


def read_tree(
    repository: Repository,
    version: str,
    against: str | None,
    trees: Trees,
    differences: VersionDifferences,
    *,
    path: str = "/",
    search: str = "",
    only_marked: bool = False,
    offset: int = 0,
    limit: int = MOST_NODES,
) -> TreePage:
    """Some children of a group, with marks; with `search`, nodes anywhere below it."""
    core = repository.core
    identity = find_version(repository, version)
    snapshot = core.objects.snapshot_header(listed(core, identity))
    top = "/" + path.strip("/")
    children = trees.children(repository, snapshot)
    if top != "/" and top not in snapshot.nodes and top not in children:
        raise NotFoundError(
            f"no group or array at {top[:200]!r} in snapshot {identity}", kind=Kind.NODE_NOT_FOUND
        )
    other = differences.against(repository, snapshot, against)
    changes = MarkedChanges() if other is None else differences.between(repository, other, identity)
    gone = sorted(one for one, mark in changes.marks.items() if mark == "removed")
    if search:
        known = [*snapshot.nodes, *(one for one in gone if one not in snapshot.nodes)]
        prefix = "/" if top == "/" else f"{top}/"
        wanted = [
            one for one in known if one.startswith(prefix) and search.lower() in one.lower() != "/"
        ]
    else:
        wanted = list(children.get(top, ()))
        for one in gone:
            if (one.rpartition("/")[0] or "/") == top and one not in snapshot.nodes:
                wanted.insert(bisect_left(wanted, one), one)
    if only_marked:
        wanted = [one for one in wanted if one in changes.marks or changes.below.get(one)]
    shown = wanted[offset : offset + limit]
    return TreePage(
        snapshot_id=identity,
        against=other,
        path=top,
        nodes=[
            node_facts(snapshot.nodes[one], changes, len(children.get(one, ())))
            if one in snapshot.nodes
            else _without_document(one, changes, len(children.get(one, ())))
            for one in shown
        ],
        total=len(wanted),
        marked=len(changes.marks),
    )


def node_facts(node: Node, changes: MarkedChanges, children: int = 0) -> NodeFacts:
    """A node as the tree shows it."""
    try:
        document = parse_node(node.user_data, rectilinear=True)
    except IcechunkError:
        document = None
    facts: dict[str, Any] = {}
    if isinstance(document, ArrayDocument):
        names = document.dimension_names
        facts = {
            "shape": list(document.shape),
            "chunk_shape": list(document.chunk_shape),
            "data_type": data_type(json.loads(node.user_data).get("data_type")),
            "dimension_names": None if names is None else [one and cut(one, 200) for one in names],
        }
    return NodeFacts(
        path=node.path,
        name=node.path.rpartition("/")[2],
        type="group" if node.is_group else "array",
        mark=changes.marks.get(node.path),
        chunks_changed=len(changes.chunks.get(node.path, ())),
        marks_below=changes.below.get(node.path, 0),
        children=children,
        **facts,
    )


def _without_document(path: str, changes: MarkedChanges, children: int) -> NodeFacts:
    """A node that was removed, or an implicit group."""
    return NodeFacts(
        path=path,
        name=path.rpartition("/")[2],
        type="group",
        mark=None if children else "removed",
        marks_below=changes.below.get(path, 0),
        children=children,
    )


def data_type(value: object) -> str:
    """The name of a data type, which is a string or an object with a name."""
    if isinstance(value, Mapping):
        value = value.get("name")
    return cut(value, 100) if isinstance(value, str) else "?"
