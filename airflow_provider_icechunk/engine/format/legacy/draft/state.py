"""The state file: all snapshots and refs of a repository in one JSON document. Pure.

Every change makes a new document with a `generation` one higher; storing it on condition that the
old one is still there is the commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from uuid import UUID

from airflow_provider_icechunk.engine.format.fence import check_unfenced
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.model import Metadata, Snapshot
from airflow_provider_icechunk.engine.format.names import MAIN, check_file_name, check_ref_name
from airflow_provider_icechunk.engine.format.wire import json as js
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, Kind

from .layout import parquet_name

STATE_KEY = "state.json"
MESSAGE = "commit-message"
"""The property of a snapshot that holds its message; the sketch has no other place."""

RefType = Literal["branch", "tag"]

_DELETED = "deleted-tags"
_KNOWN = {"id", "generation", "store_root", "snapshots", "refs", _DELETED}
_MOST = (1 << 53) - 1
_LIMIT = 512 << 20


@dataclass(frozen=True, slots=True)
class StateEntry:
    """The entry of one snapshot in the state file."""

    id: SnapshotId
    parent: SnapshotId | None
    timestamp_ms: int
    structure_file: str
    properties: Mapping[str, Any]

    @property
    def message(self) -> str:
        """The commit message; empty if there is none."""
        message = self.properties.get(MESSAGE, "")
        return message if isinstance(message, str) else ""

    @property
    def metadata(self) -> Metadata:
        """The properties without the message."""
        return {name: value for name, value in self.properties.items() if name != MESSAGE}


@dataclass(frozen=True, slots=True)
class Ref:
    """A branch or a tag."""

    snapshot: SnapshotId
    type: RefType


@dataclass(frozen=True, slots=True)
class StateFile:
    """The whole document."""

    id: str
    generation: int
    snapshots: Mapping[SnapshotId, StateEntry]
    """In the order of the document."""
    refs: Mapping[str, Ref] | None
    """`None` where the document has no `refs`."""
    deleted_tags: frozenset[str] = frozenset()
    store_root: str | None = None
    """Where the data is, if not next to the document."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Members that the sketch does not know; kept."""

    def named(self, kind: RefType) -> dict[str, SnapshotId]:
        """Branches or tags by name, sorted. Without `refs` the newest snapshot is `main`."""
        refs = self.refs
        if refs is None:
            newest = max(
                reversed(list(self.snapshots.values())),
                key=lambda one: one.timestamp_ms,
                default=None,
            )
            refs = {} if newest is None else {MAIN: Ref(newest.id, "branch")}
        return {name: refs[name].snapshot for name in sorted(refs) if refs[name].type == kind}

    def listing(self, *entries: StateEntry) -> StateFile:
        """The state with more snapshots; those already listed stay as they are."""
        added = {one.id: one for one in entries if one.id not in self.snapshots}
        return replace(self, snapshots=dict(self.snapshots) | added)

    def pointing(self, name: str, kind: RefType, snapshot: SnapshotId) -> StateFile:
        """The state with a ref created or moved."""
        return replace(self, refs=self._refs() | {name: Ref(snapshot, kind)})

    def forgetting(self, name: str) -> StateFile:
        """The state without a ref; the name of a tag is remembered."""
        refs = self._refs()
        deleted = self.deleted_tags | ({name} if refs.pop(name).type == "tag" else set())
        return replace(self, refs=refs, deleted_tags=deleted)

    def next(self) -> StateFile:
        """The state to be stored after this one."""
        return replace(self, generation=self.generation + 1)

    def _refs(self) -> dict[str, Ref]:
        if self.refs is not None:
            return dict(self.refs)
        return {name: Ref(snapshot, "branch") for name, snapshot in self.named("branch").items()}


def entry_of(snapshot: Snapshot) -> StateEntry:
    """The entry of a snapshot that is stored under the name of its id."""
    if MESSAGE in snapshot.metadata:
        raise InvalidInputError(
            f"generation `draft` keeps the message of a commit in its metadata under {MESSAGE!r}: "
            "choose another name for yours",
            kind=Kind.INVALID_METADATA,
        )
    return StateEntry(
        id=snapshot.id,
        parent=snapshot.parent_id,
        timestamp_ms=snapshot.flushed_at // 1000,
        structure_file=parquet_name(snapshot.id),
        properties={**snapshot.metadata, MESSAGE: snapshot.message},
    )


def encode_state(state: StateFile) -> bytes:
    """The document."""
    document: dict[str, Any] = {
        **state.extra,
        "id": state.id,
        "generation": state.generation,
        **({} if state.store_root is None else {"store_root": state.store_root}),
        "snapshots": [_write_entry(entry) for entry in state.snapshots.values()],
    }
    if state.refs is not None:
        document["refs"] = {
            name: {"name": name, "snapshot-id": _text(ref.snapshot), "type": ref.type}
            for name, ref in sorted(state.refs.items())
        }
    if state.deleted_tags:
        document[_DELETED] = sorted(state.deleted_tags)
    return js.dump_sealed(document, "the state of the repository")


def decode_state(data: bytes) -> StateFile:
    """The state in a document, everything checked."""
    where = STATE_KEY
    check_unfenced(data, where=where)
    value = js.parse_sealed(data, where=where, limit=_LIMIT)
    fields = js.as_object(
        value, "the state", where=where, required=["id", "generation", "snapshots"]
    )
    js.check_nesting(fields, where=where)
    entries = [
        _read_entry(one, where) for one in js.as_list(fields["snapshots"], "snapshots", where=where)
    ]
    snapshots = {entry.id: entry for entry in entries}
    if len(snapshots) != len(entries):
        raise FormatError(f"{where}: lists a snapshot twice")
    root = fields.get("store_root")
    deleted = js.as_list(fields.get(_DELETED, []), "the deleted tags", where=where)
    return StateFile(
        id=js.as_text(fields["id"], "the id", where=where),
        generation=js.as_number(fields["generation"], "generation", where=where, most=_MOST),
        snapshots=snapshots,
        refs=_read_refs(fields.get("refs"), where),
        deleted_tags=frozenset(js.as_text(one, "a deleted tag", where=where) for one in deleted),
        store_root=None if root is None else js.as_text(root, "store_root", where=where),
        extra={name: fields[name] for name in fields if name not in _KNOWN},
    )


def _write_entry(entry: StateEntry) -> dict[str, Any]:
    return {
        "snapshot-id": _text(entry.id),
        "parent-snapshot-id": None if entry.parent is None else _text(entry.parent),
        "timestamp-ms": entry.timestamp_ms,
        "structure-file": entry.structure_file,
        "properties": dict(entry.properties),
    }


def _read_entry(value: object, where: str) -> StateEntry:
    required = ("snapshot-id", "timestamp-ms", "structure-file")
    fields = js.as_object(value, "a snapshot", where=where, required=required)
    parent = fields.get("parent-snapshot-id")
    properties = fields.get("properties")
    return StateEntry(
        id=_read_id(fields["snapshot-id"], where),
        parent=None if parent is None else _read_id(parent, where),
        timestamp_ms=js.as_number(fields["timestamp-ms"], "a timestamp", where=where, most=_MOST),
        structure_file=_file_name(fields["structure-file"], where),
        properties={}
        if properties is None
        else js.as_object(properties, "properties", where=where),
    )


def _read_refs(value: object, where: str) -> dict[str, Ref] | None:
    """Refs as an object by name, or as a list of objects with names."""
    if value is None:
        return None
    if isinstance(value, list):
        items = [js.as_object(one, "a reference", where=where, required=["name"]) for one in value]
        named = {js.as_text(one["name"], "a name", where=where): one for one in items}
        if len(named) != len(items):
            raise FormatError(f"{where}: has a reference twice")
        value = named
    refs = js.as_object(value, "the references", where=where)
    return {_ref_name(name, where): _read_ref(name, ref, where) for name, ref in refs.items()}


def _read_ref(name: str, value: object, where: str) -> Ref:
    fields = js.as_object(value, "a reference", where=where, required=["snapshot-id", "type"])
    if fields.get("name", name) != name:
        raise FormatError(f"{where}: the reference {name[:80]!r} contains another name")
    kind = fields["type"]
    if kind not in ("branch", "tag"):
        raise FormatError(f"{where}: reference {name[:80]!r} is neither a branch nor a tag")
    return Ref(_read_id(fields["snapshot-id"], where), kind)


def _ref_name(name: str, where: str) -> str:
    try:
        return check_ref_name(name)
    except InvalidInputError as error:
        raise FormatError(f"{where}: {error.message}") from None


def _file_name(value: object, where: str) -> str:
    name = js.as_text(value, "the name of a structure file", where=where)
    try:
        return check_file_name(name, "structure file")
    except InvalidInputError as error:
        raise FormatError(f"{where}: {error.message}") from None


def _text(identity: SnapshotId) -> str:
    return str(UUID(bytes=identity))


def _read_id(value: object, where: str) -> SnapshotId:
    text = js.as_text(value, "the id of a snapshot", where=where)
    try:
        return SnapshotId(UUID(text).bytes)
    except ValueError:
        raise FormatError(f"{where}: the snapshot id {text[:80]!r} is not a UUID") from None
