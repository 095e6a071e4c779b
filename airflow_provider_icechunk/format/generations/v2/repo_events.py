"""The entries of the operations log as FlatBuffers: a union of sixteen tables, one per event."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.format.generations.v2 import events as ev
from airflow_provider_icechunk.format.generations.v2.events import Availability, Event, Status
from airflow_provider_icechunk.format.ids import OBJECT_ID_SIZE, SnapshotId
from airflow_provider_icechunk.format.wire.flatbuffers import Table
from airflow_provider_icechunk.format.wire.layout import Shape, Writer

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
"""How many slots the table of each event has; none where it is not listed."""


def read_status(table: Table) -> Status:
    """Who may change the repository."""
    code = table.u8(0)
    if code > Availability.OFFLINE:
        table.buffer.fail(f"its availability is {code}, which is unknown")
    return Status(Availability(code), table.u64(1), table.text_or_none(2))


def write_status(writer: Writer, status: Status) -> None:
    """Append a status table at the present end, which is a multiple of eight."""
    table = writer.table(_STATUS_UNEXPLAINED if status.reason is None else STATUS, align=8)
    writer.number(table + 20, "B", status.availability)
    writer.number(table + 8, "Q", status.set_at)
    if status.reason is not None:
        writer.text(table + 16, status.reason)


def read_event(update: Table, unknown: list[str]) -> Event:
    """What an entry of the log says; fields that are not known are noted."""
    code = update.u8(0)
    if code not in _READERS:
        return ev.Unknown(code)
    table = update.child(1)
    if any(table.slots[_SLOTS.get(code, 0) :]):
        unknown.append(f"a field of an update of type {code}")
    return _READERS[code](table)


def write_event(writer: Writer, link: int, event: Event) -> int:
    """Append the table of an event, let `link` refer to it, and return the code of its type."""
    if isinstance(event, ev.Unknown):
        raise InvalidInputError(f"an update of unknown type {event.code} cannot be written")
    writer.align(4)
    writer.link(link)
    match event:
        case ev.RepoMigrated(from_version, to_version):
            table = writer.table(_VERSIONS)
            writer.put(table + 4, bytes((from_version, to_version)))
        case ev.TagCreated(name) | ev.BranchCreated(name):
            writer.text(writer.table(_NAME) + 4, name)
        case (
            ev.TagDeleted(name, identity)
            | ev.BranchDeleted(name, identity)
            | ev.BranchReset(name, identity)
            | ev.NewCommit(name, identity)
        ):
            table = writer.table(_NAME_AND_ID)
            writer.put(table + 8, identity)
            writer.text(table + 4, name)
        case ev.CommitAmended(branch, previous, identity):
            table = writer.table(_NAME_AND_IDS)
            writer.put(table + 8, previous + identity)
            writer.text(table + 4, branch)
        case ev.NewDetachedSnapshot(identity):
            writer.put(writer.table(_ID) + 4, identity)
        case ev.FeatureFlagChanged(flag, value):
            table = writer.table(_FLAG)
            writer.number(table + 4, "H", flag)
            writer.put(table + 6, bytes((bool(value), value is not None)))
        case ev.RepoStatusChanged(status):
            table = writer.table(_STATUS_LINK)
            writer.align(8)
            writer.link(table + 4)
            write_status(writer, status)
        case _:
            writer.table(_EMPTY)
    return ev.CODES[type(event)]


def _identity(table: Table, slot: int) -> SnapshotId:
    return SnapshotId(table.fixed(slot, OBJECT_ID_SIZE))


def _flag_changed(table: Table) -> Event:
    return ev.FeatureFlagChanged(table.u16(0), bool(table.u8(1)) if table.u8(2) else None)


def _status_changed(table: Table) -> Event:
    return ev.RepoStatusChanged(read_status(table.child(0)))


_READERS: dict[int, Callable[[Table], Event]] = {
    1: lambda _: ev.RepoInitialized(),
    2: lambda table: ev.RepoMigrated(table.u8(0), table.u8(1)),
    3: lambda _: ev.ConfigChanged(),
    4: lambda _: ev.MetadataChanged(),
    5: lambda table: ev.TagCreated(table.text(0)),
    6: lambda table: ev.TagDeleted(table.text(0), _identity(table, 1)),
    7: lambda table: ev.BranchCreated(table.text(0)),
    8: lambda table: ev.BranchDeleted(table.text(0), _identity(table, 1)),
    9: lambda table: ev.BranchReset(table.text(0), _identity(table, 1)),
    10: lambda table: ev.NewCommit(table.text(0), _identity(table, 1)),
    11: lambda table: ev.CommitAmended(table.text(0), _identity(table, 1), _identity(table, 2)),
    12: lambda table: ev.NewDetachedSnapshot(_identity(table, 0)),
    13: lambda _: ev.GCRan(),
    14: lambda _: ev.ExpirationRan(),
    15: _flag_changed,
    16: _status_changed,
}
