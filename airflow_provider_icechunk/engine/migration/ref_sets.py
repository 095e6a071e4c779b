"""Branches, tags and tombstones of a repository as one value, and how two of them differ.

A migration remembers from which state of the references it was made, in a record beside the new
repository: what was committed to the old one afterwards can be found, brought over, or at least
never be deleted by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.generations.identities import parse_id, show_id
from airflow_provider_icechunk.format.generations.v1.layout import decode_ref, tag_key
from airflow_provider_icechunk.format.ids import OBJECT_ID_SIZE, SnapshotId
from airflow_provider_icechunk.format.wire import json_text as js
from airflow_provider_icechunk.repository.ledgers.base import Ledger
from airflow_provider_icechunk.repository.migration.identities import fold
from airflow_provider_icechunk.storage.base import Storage

RECORDS = "migrations/"
_LIMIT = 512 << 20


@dataclass(frozen=True, slots=True)
class References:
    """Where everything was at one moment."""

    branches: Mapping[str, SnapshotId]
    tags: Mapping[str, SnapshotId]
    buried: Mapping[str, SnapshotId | None]
    """Deleted tags and what they named, where that is still known."""

    def tips(self) -> list[SnapshotId]:
        """The snapshots that branches and tags name, each once."""
        return list(dict.fromkeys([*self.branches.values(), *self.tags.values()]))

    def under(self, ids: Mapping[SnapshotId, SnapshotId]) -> References:
        """The same references with the ids that snapshots have elsewhere."""
        return References(
            {name: ids[at] for name, at in self.branches.items()},
            {name: ids[at] for name, at in self.tags.items()},
            {name: None if at is None else ids.get(at, at) for name, at in self.buried.items()},
        )


def read_references(ledger: Ledger, storage: Storage) -> References:
    """The references as they are now; not one moment for all, so compare two readings."""
    return References(
        _in_order(ledger.branches()),
        _in_order(ledger.tags()),
        {name: _buried(ledger, storage, name) for name in sorted(ledger.deleted_tags())},
    )


def _in_order(refs: Mapping[str, SnapshotId]) -> dict[str, SnapshotId]:
    return dict(sorted(refs.items(), key=lambda ref: ref[0].encode()))


def _buried(ledger: Ledger, storage: Storage, name: str) -> SnapshotId | None:
    """What a deleted tag named: its file stays below the tombstone, where tags are files."""
    if ledger.generation.id_size != OBJECT_ID_SIZE:
        return None
    found = storage.get(tag_key(name))
    try:
        return None if found is None else decode_ref(found.data, where=tag_key(name))
    except FormatError:
        return None


# --- the record ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """From which state of the old references a repository was migrated."""

    source: Generation
    target: Generation
    references: References


def record_key(source: Generation) -> str:
    """Where the record of a migration from `source` is."""
    return f"{RECORDS}from-{source}.json"


def encode_record(record: Record) -> bytes:
    """The document."""

    def texts(refs: Mapping[str, SnapshotId]) -> dict[str, str]:
        return {name: show_id(record.source, at) for name, at in refs.items()}

    refs = record.references
    document = {
        "from": record.source.value,
        "to": record.target.value,
        "branches": texts(refs.branches),
        "tags": texts(refs.tags),
        "deleted_tags": {
            name: None if at is None else show_id(record.source, at)
            for name, at in refs.buried.items()
        },
    }
    return js.dump(document, "the record of a migration")


def decode_record(data: bytes, *, where: str) -> Record:
    """The record in a document, everything checked."""
    value = js.parse(data, where=where, limit=_LIMIT)
    fields = js.as_object(
        value,
        "a record",
        where=where,
        required=["from", "to", "branches", "tags", "deleted_tags"],
    )
    try:
        source, target = (Generation(str(fields[name])) for name in ("from", "to"))
        branches, tags = (_ids(fields[name], source, where) for name in ("branches", "tags"))
        deleted = js.as_object(fields["deleted_tags"], "deleted tags", where=where)
        known = {name: at for name, at in deleted.items() if at is not None}
        buried: dict[str, SnapshotId | None] = dict.fromkeys(deleted)
        buried |= _ids(known, source, where)
    except (InvalidInputError, ValueError) as error:
        raise FormatError(f"{where}: not the record of a migration ({error})") from None
    return Record(source, target, References(branches, tags, buried))


def _ids(value: object, source: Generation, where: str) -> dict[str, SnapshotId]:
    refs = js.as_object(value, "references", where=where)
    return {
        name: SnapshotId(parse_id(source, js.as_text(at, "an id", where=where)))
        for name, at in refs.items()
    }


# --- what changed -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Differences:
    """What happened to the references between two readings."""

    moved: Mapping[str, tuple[SnapshotId, SnapshotId]]
    """Branches, from where to where."""
    created: Mapping[str, SnapshotId]
    deleted: Mapping[str, SnapshotId]
    tagged: Mapping[str, SnapshotId]
    untagged: frozenset[str]


def differences(before: References, after: References) -> Differences:
    """How one state became another."""
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
    """What was found, without changes to tags that the new repository, with its `tags`, has too.

    `alpha` and `1` share the files of tags: what is done to one is seen in the other.
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
