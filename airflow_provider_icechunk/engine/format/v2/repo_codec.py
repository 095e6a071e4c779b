"""The `repo` object of generation `2` and its operations log: values to bytes and back.

Parents and refs are indices into the list of snapshots, which is ordered by id; adding a
snapshot shifts them, so they are computed on every write. A parent of -1 is written explicitly: the
default is 0, which would make the first snapshot its own parent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.codec import DEFAULT_LIMITS, FileType
from airflow_provider_icechunk.engine.format.ids import OBJECT_ID_SIZE, SnapshotId, encode_base32
from airflow_provider_icechunk.engine.format.names import MAIN
from airflow_provider_icechunk.engine.format.v1.codec import DEFAULT_LEVEL
from airflow_provider_icechunk.engine.format.wire.flatbuffers_read import Buffer, Table
from airflow_provider_icechunk.engine.format.wire.flatbuffers_write import PayloadWriter, Shape
from airflow_provider_icechunk.exceptions import InvalidInputError, UnsupportedError

from . import repo
from .codec import seal
from .repo import (
    SPEC_VERSION,
    Availability,
    Event,
    Items,
    OperationsEntry,
    RepoInfo,
    SnapshotRecord,
    Status,
    Unknown,
    by_name,
)

STATUS = Shape(24, (20, 8, 16))
_STATUS_UNEXPLAINED = Shape(24, (20, 8))
_EMPTY = Shape(4, ())
_VERSIONS = Shape(8, (4, 5))
_NAME = Shape(8, (4,))
_NAME_AND_ID = Shape(20, (4, 8))
_NAME_AND_IDS = Shape(32, (4, 8, 20))
_ID = Shape(16, (4,))
_FLAG = Shape(8, (4, 6, 7))
_STATUS_LINK = Shape(8, (4,))
EVENT_SHAPES = (
    _STATUS_UNEXPLAINED,
    _EMPTY,
    _VERSIONS,
    _NAME,
    _NAME_AND_ID,
    _NAME_AND_IDS,
    _ID,
    _FLAG,
    _STATUS_LINK,
)

_SLOTS = {2: 2, 5: 1, 6: 2, 7: 1, 8: 2, 9: 2, 10: 2, 11: 3, 12: 1, 15: 3, 16: 1}
"""Number of slots in the table of each event; 0 if not listed."""


def read_status(table: Table) -> Status:
    """Who may change the repository."""
    code = table.u8(0)
    if code > Availability.OFFLINE:
        table.buffer.fail(f"its availability is {code}, which is unknown")
    return Status(Availability(code), table.u64(1), table.text_or_none(2))


def write_status(writer: PayloadWriter, status: Status) -> None:
    """Append a status table at the current end, which is a multiple of eight."""
    table = writer.table(_STATUS_UNEXPLAINED if status.reason is None else STATUS, align=8)
    writer.number(table + 20, "B", status.availability)
    writer.number(table + 8, "Q", status.set_at)
    if status.reason is not None:
        writer.text(table + 16, status.reason)


def read_event(update: Table, unknown: list[str]) -> Event:
    """The event of a log entry; unknown fields are recorded."""
    code = update.u8(0)
    if code not in _READERS:
        return repo.Unknown(code)
    table = update.child(1)
    if any(table.slots[_SLOTS.get(code, 0) :]):
        unknown.append(f"a field of an update of type {code}")
    return _READERS[code](table)


def write_event(writer: PayloadWriter, link: int, event: Event) -> int:
    """Append the table of an event, point `link` to it, and return the code of its type."""
    if isinstance(event, repo.Unknown):
        raise InvalidInputError(f"an update of unknown type {event.code} cannot be written")
    writer.align(4)
    writer.link(link)
    match event:
        case repo.RepoMigrated(from_version, to_version):
            table = writer.table(_VERSIONS)
            writer.put(table + 4, bytes((from_version, to_version)))
        case repo.TagCreated(name) | repo.BranchCreated(name):
            writer.text(writer.table(_NAME) + 4, name)
        case (
            repo.TagDeleted(name, identity)
            | repo.BranchDeleted(name, identity)
            | repo.BranchReset(name, identity)
            | repo.NewCommit(name, identity)
        ):
            table = writer.table(_NAME_AND_ID)
            writer.put(table + 8, identity)
            writer.text(table + 4, name)
        case repo.CommitAmended(branch, previous, identity):
            table = writer.table(_NAME_AND_IDS)
            writer.put(table + 8, previous + identity)
            writer.text(table + 4, branch)
        case repo.NewDetachedSnapshot(identity):
            writer.put(writer.table(_ID) + 4, identity)
        case repo.FeatureFlagChanged(flag, value):
            table = writer.table(_FLAG)
            writer.number(table + 4, "H", flag)
            writer.put(table + 6, bytes((bool(value), value is not None)))
        case repo.RepoStatusChanged(status):
            table = writer.table(_STATUS_LINK)
            writer.align(8)
            writer.link(table + 4)
            write_status(writer, status)
        case _:
            writer.table(_EMPTY)
    return repo.CODES[type(event)]


def _identity(table: Table, slot: int) -> SnapshotId:
    return SnapshotId(table.fixed(slot, OBJECT_ID_SIZE))


def _flag_changed(table: Table) -> Event:
    return repo.FeatureFlagChanged(table.u16(0), bool(table.u8(1)) if table.u8(2) else None)


def _status_changed(table: Table) -> Event:
    return repo.RepoStatusChanged(read_status(table.child(0)))


_READERS: dict[int, Callable[[Table], Event]] = {
    1: lambda _: repo.RepoInitialized(),
    2: lambda table: repo.RepoMigrated(table.u8(0), table.u8(1)),
    3: lambda _: repo.ConfigChanged(),
    4: lambda _: repo.MetadataChanged(),
    5: lambda table: repo.TagCreated(table.text(0)),
    6: lambda table: repo.TagDeleted(table.text(0), _identity(table, 1)),
    7: lambda table: repo.BranchCreated(table.text(0)),
    8: lambda table: repo.BranchDeleted(table.text(0), _identity(table, 1)),
    9: lambda table: repo.BranchReset(table.text(0), _identity(table, 1)),
    10: lambda table: repo.NewCommit(table.text(0), _identity(table, 1)),
    11: lambda table: repo.CommitAmended(table.text(0), _identity(table, 1), _identity(table, 2)),
    12: lambda table: repo.NewDetachedSnapshot(_identity(table, 0)),
    13: lambda _: repo.GCRan(),
    14: lambda _: repo.ExpirationRan(),
    15: _flag_changed,
    16: _status_changed,
}

IDENTIFIER = b"Ichk"

_GENEROSITY = 16
"""Official writers share the names of metadata items between all snapshots."""
_NO_PARENT = (1 << 32) - 1

_REPO_SLOTS = (56, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48)
_OPTIONAL = (8, 9, 10, 11, 12)
_REF = Shape(12, (4, 8))
_SNAPSHOT = Shape(40, (28, 4, 8, 16, 20, 24))
_SNAPSHOT_UNPRUNED = Shape(40, (28, 4, 8, 16, 20))
_ITEM = Shape(12, (4, 8))
_UPDATE = Shape(28, (24, 4, 8, 16))
_UPDATE_UNBACKED = Shape(28, (24, 4, 8))


def decode_repo(data: bytes, *, where: str) -> RepoInfo:
    """The state in a `repo` object or a backup of one."""
    with Purse(len(data), where=where) as purse:
        opened = envelope.unpack(
            data,
            where=where,
            expected=FileType.REPO_INFO,
            limit=DEFAULT_LIMITS.other_bytes,
            purse=purse,
        )
        buffer = Buffer(opened.payload, where=where, generosity=_GENEROSITY, memory=purse)
        return _repo(buffer)


def _repo(buffer: Buffer) -> RepoInfo:
    where, root = buffer.where, buffer.root(IDENTIFIER)
    if root.u8(0) != SPEC_VERSION:
        raise UnsupportedError(
            f"{where}: a repository of version {root.u8(0)} of the format; this package supports "
            f"{SPEC_VERSION}"
        )
    unknown: list[str] = []
    _note_unknown(root, len(_REPO_SLOTS), "the repository", unknown)
    snapshots = _snapshots(root, unknown)
    ids = list(snapshots)
    updates = tuple(_update(table, unknown) for table in root.tables(7))
    branches = _refs(root, 2, ids, unknown)
    if not updates or MAIN not in branches:
        buffer.fail(f"it has no operations log or no branch {MAIN!r}")
    return RepoInfo(
        branches=branches,
        snapshots=snapshots,
        updates=updates,
        status=read_status(root.child(5)),
        tags=_refs(root, 1, ids, unknown),
        deleted_tags=frozenset(root.texts(3)),
        metadata=_items(root, 6),
        before_updates=root.text_or_none(8),
        config=root.blob(9) if root.has(9) else None,
        enabled_flags=_flags(root, 10),
        disabled_flags=_flags(root, 11),
        extra=root.blob(12) if root.has(12) else None,
        unknown=tuple(dict.fromkeys(unknown)),
    )


def encode_repo(info: RepoInfo) -> bytes:
    """The whole object. A state with unknown parts is refused."""
    if info.unknown:
        raise UnsupportedError(
            "this repository was written by a newer version of the format; it can be read but not "
            f"changed without losing {', '.join(info.unknown[:5])}"
        )
    optional = (
        info.before_updates,
        info.config,
        info.enabled_flags,
        info.disabled_flags,
        info.extra,
    )
    absent = {slot for slot, value in zip(_OPTIONAL, optional, strict=True) if value is None}
    slots = tuple(0 if slot in absent else at for slot, at in enumerate(_REPO_SLOTS))
    shape = Shape(60, slots)
    writer = PayloadWriter(
        IDENTIFIER,
        (
            *dict.fromkeys(EVENT_SHAPES),
            STATUS,
            _REF,
            _SNAPSHOT,
            _SNAPSHOT_UNPRUNED,
            _ITEM,
            _UPDATE,
            _UPDATE_UNBACKED,
            shape,
        ),
    )
    root = writer.root(shape)
    writer.number(root + 56, "B", SPEC_VERSION)
    position = {identity: n for n, identity in enumerate(sorted(info.snapshots))}
    _write_refs(writer, root + 4, info.tags, position)
    _write_refs(writer, root + 8, info.branches, position)
    _write_texts(writer, root + 12, sorted(info.deleted_tags, key=str.encode))
    _write_snapshots(writer, root + 16, info, position)
    writer.align(8)
    writer.link(root + 20)
    write_status(writer, info.status)
    _write_items(writer, root + 24, info.metadata)
    _write_updates(writer, root + 28, info.updates)
    if info.before_updates is not None:
        writer.text(root + 32, info.before_updates)
    if info.config is not None:
        writer.blob(root + 36, info.config, align=8)
    for at, flags in ((40, info.enabled_flags), (44, info.disabled_flags)):
        if flags is not None:
            data = struct.pack(f"<{len(flags)}H", *sorted(flags))
            writer.blob(root + at, data, count=len(flags), align=2)
    if info.extra is not None:
        writer.blob(root + 48, info.extra)
    return seal(FileType.REPO_INFO, writer.finish(), DEFAULT_LEVEL)


def _note_unknown(table: Table, known: int, what: str, unknown: list[str]) -> None:
    if any(table.slots[known:]):
        unknown.append(f"a field of {what}")


def _snapshots(root: Table, unknown: list[str]) -> dict[SnapshotId, SnapshotRecord]:
    tables = root.tables(4)
    ids = [SnapshotId(table.fixed(0, OBJECT_ID_SIZE)) for table in tables]
    if any(first >= second for first, second in pairwise(ids)):
        root.buffer.fail("its snapshots are not in the order of their ids")
    return {
        identity: _snapshot(table, identity, ids, unknown)
        for identity, table in zip(ids, tables, strict=True)
    }


def _snapshot(
    table: Table, identity: SnapshotId, ids: list[SnapshotId], unknown: list[str]
) -> SnapshotRecord:
    _note_unknown(table, len(_SNAPSHOT.slots), "a snapshot", unknown)
    offset = table.u32(1)
    if offset != _NO_PARENT and (offset >= len(ids) or ids[offset] == identity):
        table.buffer.fail(f"snapshot {encode_base32(identity)} has an impossible parent")
    pruned = table.fixed_items(5, OBJECT_ID_SIZE) if table.has(5) else ()
    return SnapshotRecord(
        identity,
        None if offset == _NO_PARENT else ids[offset],
        table.u64(2),
        table.text(3),
        _items(table, 4),
        tuple(map(SnapshotId, pruned)),
    )


def _items(table: Table, slot: int) -> Items:
    if not table.has(slot):
        return ()
    items = tuple((item.text(0), item.blob(1)) for item in table.tables(slot))
    if len({name for name, _ in items}) != len(items):
        table.buffer.fail("a metadata name occurs twice")
    return items


def _refs(
    root: Table, slot: int, ids: list[SnapshotId], unknown: list[str]
) -> dict[str, SnapshotId]:
    refs = []
    for table in root.tables(slot):
        _note_unknown(table, len(_REF.slots), "a reference", unknown)
        index = table.u32(1)
        if index >= len(ids):
            root.buffer.fail("a branch or tag points at an unlisted snapshot")
        refs.append((table.text(0), ids[index]))
    found = by_name(refs)
    if len(found) != len(refs):
        root.buffer.fail("two branches or two tags have the same name")
    return found


def _flags(root: Table, slot: int) -> tuple[int, ...] | None:
    if not root.has(slot):
        return None
    return root.numbers(slot, "H")


def _update(table: Table, unknown: list[str]) -> OperationsEntry:
    _note_unknown(table, len(_UPDATE.slots), "an update", unknown)
    event = read_event(table, unknown)
    if isinstance(event, Unknown):
        unknown.append(f"an update of type {event.code}")
    return OperationsEntry(event, table.u64(2), table.text_or_none(3))


def _write_refs(
    writer: PayloadWriter, at: int, refs: Mapping[str, SnapshotId], position: dict[SnapshotId, int]
) -> None:
    ordered = by_name(refs.items())
    for link, (name, target) in zip(
        writer.references(at, len(ordered)), ordered.items(), strict=True
    ):
        writer.align(4)
        writer.link(link)
        table = writer.table(_REF)
        writer.number(table + 8, "I", position[target])
        writer.text(table + 4, name)


def _write_texts(writer: PayloadWriter, at: int, texts: Sequence[str]) -> None:
    for link, text in zip(writer.references(at, len(texts)), texts, strict=True):
        writer.text(link, text)


def _write_snapshots(
    writer: PayloadWriter, at: int, info: RepoInfo, position: dict[SnapshotId, int]
) -> None:
    for link, identity in zip(writer.references(at, len(position)), position, strict=True):
        record = info.snapshots[identity]
        writer.align(8)
        writer.link(link)
        table = writer.table(_SNAPSHOT if record.pruned_logs else _SNAPSHOT_UNPRUNED, align=8)
        writer.put(table + 28, record.id)
        parent = _NO_PARENT if record.parent_id is None else position[record.parent_id]
        writer.number(table + 4, "I", parent)
        writer.number(table + 8, "Q", record.flushed_at)
        writer.text(table + 16, record.message)
        _write_items(writer, table + 20, record.metadata)
        if record.pruned_logs:
            data = b"".join(record.pruned_logs)
            writer.blob(table + 24, data, count=len(record.pruned_logs))


def _write_items(writer: PayloadWriter, at: int, items: Items) -> None:
    for link, (name, value) in zip(writer.references(at, len(items)), items, strict=True):
        writer.align(4)
        writer.link(link)
        table = writer.table(_ITEM)
        writer.text(table + 4, name)
        writer.blob(table + 8, value)


def _write_updates(writer: PayloadWriter, at: int, updates: Sequence[OperationsEntry]) -> None:
    for link, update in zip(writer.references(at, len(updates)), updates, strict=True):
        writer.align(8)
        writer.link(link)
        table = writer.table(_UPDATE_UNBACKED if update.backup is None else _UPDATE, align=8)
        writer.number(table + 8, "Q", update.updated_at)
        if update.backup is not None:
            writer.text(table + 16, update.backup)
        writer.number(table + 24, "B", write_event(writer, table + 4, update.event))
