"""A forged snapshot file never makes a commit that says something else than its nodes do.

Whoever commits on a file that somebody else damaged or forged would otherwise publish a version
that nobody can open, or one in which official readers do not find nodes.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_provider_icechunk.engine.format.ids import ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.model import (
    ArrayData,
    Dimension,
    ManifestRef,
    Node,
    Snapshot,
    in_order,
)
from airflow_provider_icechunk.engine.format.node_table import NodeTable, edited
from airflow_provider_icechunk.engine.format.v1 import node_copies, snapshots
from airflow_provider_icechunk.engine.format.v1 import snapshot_layout as layout
from airflow_provider_icechunk.engine.format.v1.snapshot_layout import Dialect
from airflow_provider_icechunk.engine.format.v1.stored_nodes import Source
from airflow_provider_icechunk.engine.format.v2.codec import SNAPSHOT_DIALECT
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

DOCUMENT = b'{"zarr_format":3,"node_type":"array","shape":[8,8]}'
Forge = Callable[[bytearray, Source], None]


def array(number: int, manifest: bytes = b"") -> Node:
    ref = ManifestRef(ManifestId(manifest or bytes([number]) * 12), ((0, 4), (1, 2)))
    names = ("time", None) if number % 2 else None
    data = ArrayData((Dimension(8, 2, 4), Dimension(8, 4, 2)), names, (ref,))
    extra = b"later" if number == 5 else None
    return Node(NodeId(bytes([number]) * 8), f"/é{number:02}", DOCUMENT, data, extra)


def base(dialect: Dialect) -> bytearray:
    nodes = in_order([Node(NodeId(b"rootroot"), "/", b"{}"), *map(array, range(1, 13))])
    parent = None if dialect.newer else SnapshotId(b"p" * 12)
    value = Snapshot(SnapshotId(b"s" * 12), parent, 7, "message", {"k": "v" * 40}, nodes)
    return snapshots.encode(value, dialect=dialect)


@pytest.fixture(params=[snapshots.DIALECT, SNAPSHOT_DIALECT], ids=["1", "2"])
def dialect(request: pytest.FixtureRequest) -> Dialect:
    found: Dialect = request.param
    return found


def commit_on(payload: bytes, dialect: Dialect) -> bool | None:
    """Whether nodes were copied, after comparing with the long way; `None`: the file is refused."""
    try:
        found = snapshots.decode(payload, where="x", dialect=dialect)
        plain = dict(found.nodes)
    except FormatError:
        plain = {}
    if not plain:
        return refused(payload, dialect)
    path = next((path for path, node in plain.items() if node.array), None)
    if path is None or not isinstance(found.nodes, NodeTable):
        return None
    node = replace(plain[path], user_data=DOCUMENT + b" ")
    child = replace(found, id=SnapshotId(b"c" * 12), metadata={}, message="next", flushed_at=8)
    whole = replace(child, nodes=in_order((plain | {path: node}).values()))
    short = replace(child, nodes=edited(found.nodes, {path: node}))
    copied = node_copies.copy_nodes(short, dialect) is not None
    try:
        expected = bytes(snapshots.encode(whole, dialect=dialect))
    except InvalidInputError:
        assert not copied
        return False
    written = bytes(snapshots.encode(short, dialect=dialect))
    read, wanted = (
        snapshots.decode(one, where="y", dialect=dialect) for one in (written, expected)
    )
    assert dict(read.nodes) == dict(wanted.nodes)
    assert read == wanted
    assert isinstance(read.nodes, NodeTable)
    assert read.nodes.is_sorted
    return copied


def refused(payload: bytes, dialect: Dialect) -> None:
    """Nodes that do not decode are not copied either, though nobody looked at them."""
    few = "airflow_provider_icechunk.engine.format.v1.stored_nodes._FEW_NODES"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(few, 0)
        try:
            found = snapshots.decode(payload, where="x", dialect=dialect)
        except FormatError:
            return
    if not found.nodes:
        return
    child = replace(found, id=SnapshotId(b"c" * 12), nodes=edited(found.nodes, {}))
    assert node_copies.copy_nodes(child, dialect) is None


def word(data: bytearray, at: int) -> int:
    found: int = struct.unpack_from("<I", data, at)[0]
    return found


def put(data: bytearray, at: int, value: int) -> None:
    struct.pack_into("<I", data, at, value)


def append(data: bytearray, what: bytes) -> int:
    data += bytes(-len(data) % 8)
    data += what
    return len(data) - len(what)


def swap_links(data: bytearray, source: Source) -> None:
    first, second = source.links + 4, source.links + 8
    one, two = word(data, first), word(data, second)
    put(data, first, two + 4)
    put(data, second, one - 4)


def vtable_behind(data: bytearray, source: Source) -> None:
    at = append(data, layout.NODE.vtable())
    table = int(source.at[3])
    struct.pack_into("<i", data, table, table - at)


def root_vtable_behind(data: bytearray, source: Source) -> None:
    shape = layout.NEWER if source.dialect.newer else layout.LATER
    at = append(data, shape.vtable())
    struct.pack_into("<i", data, source.root, source.root - at)


def document_behind(data: bytearray, source: Source) -> None:
    at = append(data, struct.pack("<I", len(DOCUMENT)) + DOCUMENT)
    field = int(source.at[3]) + layout.NODE.slots[2]
    put(data, field, at - field)


def node_behind(data: bytearray, source: Source) -> None:
    old = int(source.at[3])
    at = append(data, bytes(layout.NODE.size))
    data[at : at + layout.NODE.size] = data[old : old + layout.NODE.size]
    struct.pack_into("<i", data, at, at - layout.vtable_at(layout.NODE))
    for slot in (1, 2):
        value = bytes(
            snapshots.decode(bytes(data), where="x", dialect=source.dialect)
            .nodes[f"/é{3:02}"]
            .path.encode()
            if slot == 1
            else DOCUMENT
        )
        there = append(data, struct.pack("<I", len(value)) + value + b"\0")
        put(data, at + layout.NODE.slots[slot], there - at - layout.NODE.slots[slot])
    kind = append(data, struct.pack("<i", 0))
    struct.pack_into("<i", data, kind, kind - layout.vtable_at(layout.EMPTY))
    data[at + layout.NODE.slots[3]] = layout.GROUP
    put(data, at + layout.NODE.slots[4], kind - at - layout.NODE.slots[4])
    link = source.links + 4 * 3
    put(data, link, at - link)


def links_in_the_root(data: bytearray, source: Source) -> None:
    """One link, made of the time of the snapshot, which the next commit replaces."""
    at = source.root + layout.NEWER.slots[3]
    put(data, source.root + 4, at - source.root - 4)
    put(data, at, 1)
    put(data, at + 4, int(source.at[3]) - at - 4)


def data_of_a_neighbour(data: bytearray, source: Source) -> None:
    field, other = (int(source.at[row]) + layout.NODE.slots[4] for row in (3, 5))
    put(data, field, other + word(data, other) - field)


def empty_name(data: bytearray, source: Source) -> None:
    at = data.index(b"time\0")
    data[at - 4 : at + 4] = bytes(8)


def broken_name(data: bytearray, source: Source) -> None:
    data[data.index(b"time\0")] = 0xFF


def mark_too_low(data: bytearray, source: Source) -> None:
    struct.pack_into("<II", data, layout.MARKS_AT, int(source.at[4]), int(source.at[-1]) + 8)


def mark_of_whole_too_high(data: bytearray, source: Source) -> None:
    put(data, layout.MARKS_AT, 0xFFFFFFFF)


def no_extents(data: bytearray, source: Source) -> None:
    at = data.index(struct.pack("<IIII", 0, 4, 1, 2))
    put(data, at - 4, 0)


FORGERIES = [
    swap_links,
    vtable_behind,
    root_vtable_behind,
    document_behind,
    node_behind,
    links_in_the_root,
    data_of_a_neighbour,
    empty_name,
    broken_name,
    mark_too_low,
    mark_of_whole_too_high,
    no_extents,
]


def test_an_honest_file_is_copied(dialect: Dialect) -> None:
    assert commit_on(bytes(base(dialect)), dialect) is True


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_forged_nodes_are_decoded_and_encoded(forge: Forge, dialect: Dialect) -> None:
    data = base(dialect)
    nodes = snapshots.decode(bytes(data), where="x", dialect=dialect).nodes
    assert isinstance(nodes, NodeTable)
    assert isinstance(nodes.stored.source, Source)
    forge(data, nodes.stored.source)
    copied = commit_on(bytes(data), dialect)
    # Bytes that two nodes share say the same in a copy.
    assert not copied or forge is data_of_a_neighbour


def test_any_damage_is_kept_out_or_carried_on_as_it_is(dialect: Dialect) -> None:
    payload = base(dialect)
    seed = 20
    dice = random.Random(seed)
    seen: set[bool | None] = set()
    for _ in range(150):
        data = bytearray(payload)
        for _ in range(dice.randint(1, 2)):
            at = dice.randrange(layout.MARKS_AT // 4, len(data) // 4) * 4
            value = (word(data, at) + dice.choice((-8, -4, -1, 1, 4, 8, 64))) % (1 << 32)
            put(data, at, dice.choice((value, 0, len(data) - at - 4, dice.randrange(1 << 32))))
        seen.add(commit_on(bytes(data), dialect))
    assert seen == {True, False, None}, f"seed {seed}"
