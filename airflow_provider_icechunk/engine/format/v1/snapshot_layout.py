"""The layout of this package's snapshot files, in generations `1` and `2`.

Every file begins with the vtables of all tables, then two marks, the root and the links to its
nodes. The nodes follow, and after them everything that every commit rewrites. Nodes therefore keep
their offsets when a later file copies them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.format.wire.flatbuffers_write import Shape

IDENTIFIER = b"Ichk"
ARRAY, GROUP = 1, 2
"""Kinds of nodes."""

FIRST = Shape(40, (28, 0, 4, 8, 16, 20, 24))
LATER = Shape(52, (28, 40, 4, 8, 16, 20, 24))
NODE = Shape(28, (16, 4, 8, 24, 12))
EMPTY = Shape(4, ())
"""A group's data, or the name of an unnamed dimension."""
ARRAY_DATA = Shape(16, (4, 0, 12))
NAMED_ARRAY_DATA = Shape(16, (4, 8, 12))
NAME = Shape(8, (4,))
MANIFEST_REF = Shape(20, (8, 4))
METADATA_ITEM = Shape(12, (4, 8))
NEWER = Shape(44, (28, 0, 4, 8, 16, 20, 24, 40))
NEWER_ARRAY_DATA = Shape(20, (4, 0, 12, 16))
NEWER_NAMED_ARRAY_DATA = Shape(20, (4, 8, 12, 16))
SIDE = Shape(20, (8, 16))
MANIFEST_INFO = Shape(28, (16, 8, 4))
FIRST_EXTRA = Shape(44, (28, 0, 4, 8, 16, 20, 24, 0, 40))
LATER_EXTRA = Shape(56, (28, 40, 4, 8, 16, 20, 24, 0, 52))
NEWER_EXTRA = Shape(48, (28, 0, 4, 8, 16, 20, 24, 40, 44))
NODE_EXTRA = Shape(32, (16, 4, 8, 24, 12, 28))
MANIFEST_INFO_EXTRA = Shape(32, (16, 8, 4, 28))
"""The same with a field that official schemas reserve for later releases."""
SHAPES = (
    FIRST_EXTRA,
    LATER_EXTRA,
    NEWER_EXTRA,
    NODE_EXTRA,
    MANIFEST_INFO_EXTRA,
    FIRST,
    LATER,
    NEWER,
    NEWER_ARRAY_DATA,
    NEWER_NAMED_ARRAY_DATA,
    SIDE,
    MANIFEST_INFO,
    NODE,
    EMPTY,
    ARRAY_DATA,
    NAMED_ARRAY_DATA,
    NAME,
    MANIFEST_REF,
    METADATA_ITEM,
)

START = IDENTIFIER + b"".join(shape.vtable() for shape in SHAPES)
"""The start of this package's files, after the position of the root."""
MARKS_AT = 4 + len(START)
MARKS = struct.Struct("<II")
"""Where nodes ended when all of them were written, and where they end now."""
ROOT_AT = -(-(MARKS_AT + MARKS.size) // 8) * 8


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between the snapshot files of generations `1` and `2`."""

    decode_value: Callable[[bytes, str, Purse | None], Any]
    encode_value: Callable[[str, Any], bytes]
    newer: bool
    """Generation `2`: no parent, shapes and manifest files in separate tables."""


def root_shape(snapshot: Snapshot, dialect: Dialect) -> Shape:
    """The layout of the root of a snapshot file."""
    plain, extended = (LATER, LATER_EXTRA)
    if dialect.newer:
        plain, extended = (NEWER, NEWER_EXTRA)
    elif snapshot.parent_id is None:
        plain, extended = (FIRST, FIRST_EXTRA)
    return plain if snapshot.extra is None else extended


def vtable_at(shape: Shape) -> int:
    """The position of a vtable in every file that begins with `START`."""
    before = SHAPES[: SHAPES.index(shape)]
    return 4 + len(IDENTIFIER) + sum(len(one.vtable()) for one in before)
