"""Branches, tags and tombstones of a repository as one value, and how two such values differ.

A migration stores the state of the references it was made from, in a record beside the new
repository: later commits to the old one can be found and transferred, or at least are never deleted
by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import (
    OBJECT_ID_SIZE,
    SnapshotId,
    format_id,
    parse_id,
)
from airflow_provider_icechunk.engine.format.v1.codec import decode_ref, tag_key
from airflow_provider_icechunk.engine.format.wire import json as js
from airflow_provider_icechunk.engine.refs.base import Refs
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

from .identities import fold

RECORDS = "migrations/"
_LIMIT = 512 << 20


@dataclass(frozen=True, slots=True)
class References:
    """All references at one moment."""

    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    buried: Mapping[str, SnapshotId | None]
    """Deleted tags and their snapshots, where still known."""

    def tips(self) -> list[SnapshotId]:
        """The distinct snapshots of branches and tags."""
        return list(dict.fromkeys([*self.branches.values(), *self.tags.values()]))

    def under(self, ids: Mapping[SnapshotId, SnapshotId]) -> References:
        """The same references with other ids."""
        return References(
            {name: ids[at] for name, at in self.branches.items()},
            {name: ids[at] for name, at in self.tags.items()},
            {name: None if at is None else ids.get(at, at) for name, at in self.buried.items()},
        )


def read_references(refs: Refs, storage: Storage) -> References:
    """The current references; not an atomic read, so compare two readings."""
    return References(
        _in_order(refs.branches()),
        _in_order(refs.tags()),
        {name: _buried(refs, storage, name) for name in sorted(refs.deleted_tags())},
    )


def _in_order(refs: Mapping[str, SnapshotId]) -> dict[str, SnapshotId]:
    return dict(sorted(refs.items(), key=lambda ref: ref[0].encode()))


def _buried(refs: Refs, storage: Storage, name: str) -> SnapshotId | None:
    """The snapshot of a deleted tag: where tags are files, the file stays beside the tombstone."""
    if refs.generation.id_size != OBJECT_ID_SIZE:
        return None
    found = storage.get(tag_key(name))
    try:
        return None if found is None else decode_ref(found.data, where=tag_key(name))
    except FormatError:
        return None


@dataclass(frozen=True, slots=True)
class Record:
    """The state of the old references from which a repository was migrated."""

    source: Generation
    target: Generation
    references: References


def record_key(source: Generation) -> str:
    """The key of the record of a migration from `source`."""
    return f"{RECORDS}from-{source}.json"


def encode_record(record: Record) -> bytes:
    """Encode the record as JSON."""

    def texts(refs: Mapping[str, SnapshotId]) -> dict[str, str]:
        return {name: format_id(record.source, at) for name, at in refs.items()}

    refs = record.references
    document = {
        "from": record.source.value,
        "to": record.target.value,
        "branches": texts(refs.branches),
        "tags": texts(refs.tags),
        "deleted_tags": {
            name: None if at is None else format_id(record.source, at)
            for name, at in refs.buried.items()
        },
    }
    return js.dump(document, "the record of a migration")


def decode_record(data: bytes, *, where: str) -> Record:
    """Decode and validate a record."""
    value = js.parse(data, where=where, limit=_LIMIT)
    fields = js.as_object(
        value, "a record", where=where, required=["from", "to", "branches", "tags", "deleted_tags"]
    )
    try:
        source, target = (Generation(str(fields[name])) for name in ("from", "to"))
        branches, tags = (_ids(fields[name], source, where) for name in ("branches", "tags"))
        deleted = js.as_object(fields["deleted_tags"], "deleted tags", where=where)
        known = {name: at for name, at in deleted.items() if at is not None}
        buried: dict[str, SnapshotId | None] = dict.fromkeys(deleted)
        buried |= _ids(known, source, where)
    except (InvalidInputError, ValueError) as error:
        raise FormatError(f"{where}: not a valid record of a migration ({error})") from None
    return Record(source, target, References(branches, tags, buried))


def _ids(value: object, source: Generation, where: str) -> dict[str, SnapshotId]:
    refs = js.as_object(value, "references", where=where)
    return {
        name: SnapshotId(parse_id(source, js.as_text(at, "an id", where=where)))
        for name, at in refs.items()
    }


@dataclass(frozen=True, slots=True)
class Differences:
    """Changes of the references between two readings."""

    moved: Mapping[str, tuple[SnapshotId, SnapshotId]]
    """Branches with their old and new snapshot."""
    created: Mapping[str, SnapshotId]
    deleted: Mapping[str, SnapshotId]
    tagged: Mapping[str, SnapshotId]
    untagged: frozenset[str]


def differences(before: References, after: References) -> Differences:
    """The changes from one state to another."""
    common = before.branches.keys() & after.branches.keys()
    return Differences(
        moved={
            name: (before.branches[name], after.branches[name])
            for name in sorted(common)
            if before.branches[name] != after.branches[name]
        },
        created={name: at for name, at in after.branches.items() if name not in common},
        deleted={name: at for name, at in before.branches.items() if name not in common},
        tagged={name: at for name, at in after.tags.items() if name not in before.tags},
        untagged=frozenset(after.buried.keys() - before.buried.keys()),
    )


def news(found: References, before: References, tags: Mapping[str, SnapshotId]) -> References:
    """What was found, without tag changes that the new repository, with its `tags`, already has.

    `alpha` and `1` share tag files: a change in one is visible in the other.
    """
    settled = {name for name in found.buried if name not in before.buried and name not in tags}
    kept = {
        name: at
        for name, at in found.tags.items()
        if name in before.tags or tags.get(name) != fold(at)
    }
    kept |= {name: before.tags[name] for name in settled if name in before.tags}
    buried = {name: at for name, at in found.buried.items() if name not in settled}
    return References(found.branches, _in_order(kept), buried)
