"""The visible state of a repository, so that two generations of it can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_icechunk.engine.format.chunk_refs import Virtual
from airflow_provider_icechunk.engine.objects.chunk_reader import Wanted
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.base import Put, Storage
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage


@dataclass(frozen=True)
class Portrait:
    """Everything visible to a reader."""

    branches: Mapping[str, list[str]]
    """Names and histories by id, newest first."""
    tags: Mapping[str, list[str]]
    deleted_tags: list[str]
    snapshots: Mapping[str, tuple[Any, ...]]
    """Message, time, metadata and tree of each snapshot."""
    config: Any

    def renamed(self, ids: Mapping[str, str]) -> Portrait:
        """The same, with the ids that the snapshots have elsewhere."""

        def lines(refs: Mapping[str, list[str]]) -> dict[str, list[str]]:
            return {name: [ids.get(one, one) for one in line] for name, line in refs.items()}

        return Portrait(
            lines(self.branches),
            lines(self.tags),
            self.deleted_tags,
            {ids.get(one, one): facts for one, facts in self.snapshots.items()},
            self.config,
        )


def portrait(storage: Storage) -> Portrait:
    """Look at everything that branches and tags reach."""
    repo = Repository.open(storage)
    snapshots: dict[str, tuple[Any, ...]] = {}

    def line(**version: str) -> list[str]:
        history = list(repo.ancestry(**version))
        for info in history:
            if info.id not in snapshots:
                session = repo.readonly_session(snapshot_id=info.id)
                facts = (info.message, info.written_at, info.metadata, tree(session))
                snapshots[info.id] = facts
        return [info.id for info in history]

    return Portrait(
        {name: line(branch=name) for name in sorted(repo.list_branches())},
        {name: line(tag=name) for name in sorted(repo.list_tags())},
        repo._core.refs.deleted_tags(),
        snapshots,
        repo.config,
    )


def tree(session: Session) -> dict[str, object]:
    """Documents and chunk bytes of a snapshot; virtual chunks as the references they are."""
    seen: dict[str, object] = {}
    for node in session.tree.nodes():
        seen[node.path] = (node.id, node.user_data)
        if node.array is None:
            continue
        refs = session.tree.references(node)
        stored: dict[str, Wanted] = {}
        for row in range(len(refs)):
            payload = refs[row]
            assert payload is not None
            name = f"{node.path}{refs.index[row].tolist()}"
            if isinstance(payload, Virtual):
                seen[name] = payload
            else:
                stored[name] = Wanted(payload, 0, int(refs.length[row]))
        seen |= zip(stored, session.tree.read(list(stored.values())), strict=True)
    return seen


def in_memory(root: Path) -> MemoryStorage:
    """The objects of a folder in memory."""
    storage, local = MemoryStorage(), LocalStorage(root)
    found = local.get_many([(item.key, None) for item in local.scan("")])
    keys = [item.key for item in local.scan("")]
    storage.put_many(
        [Put(key, one.data) for key, one in zip(keys, found, strict=True) if one is not None]
    )
    return storage


def bytes_of(storage: MemoryStorage) -> dict[str, bytes]:
    """All objects."""
    return {key: bytes(found.data) for key, found in storage.objects.items()}
