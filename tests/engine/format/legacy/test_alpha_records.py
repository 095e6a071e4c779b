"""Versions, flags and counts in records of `alpha` are checked: unknown ones are refused."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from support.alpha import CODEC, MANIFEST, SNAPSHOT, WHERE

from airflow_provider_icechunk.engine.format.ids import encode_base32
from airflow_provider_icechunk.exceptions import FormatError

TIME = "2024-10-13T18:53:45.425022391Z"
OWN = (encode_base32(SNAPSHOT), TIME, "a message")
PARENT = (encode_base32(MANIFEST), TIME, "before")
FILE = (encode_base32(MANIFEST), 0, 100)
SNAPSHOT_RECORD = (0, {}, (FILE,), (), 3, 1, (PARENT,), OWN, TIME, {}, {})
REFERENCES = {("0000000000000", (7,)): {"Inline": b"x"}}
LOG = (0, (), (), (), (), (), (), {})


def changed(record: tuple[Any, ...], at: int, value: Any) -> bytes:
    return msgpack.packb((*record[:at], value, *record[at + 1 :]))


def read_snapshot(data: bytes) -> None:
    CODEC.decode_snapshot(data, SNAPSHOT, where=WHERE)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, 2),
        (0, -1),
        (0, None),
        (0, "0"),
        (0, True),
        (1, {"encrypted": True}),
        (1, []),
        (1, None),
        (2, ((encode_base32(MANIFEST), 7, 100),)),
        (2, ((encode_base32(MANIFEST), 7),)),
        (2, ((encode_base32(MANIFEST), 7, 100, 5),)),
        (4, 0),
        (4, 1 << 32),
        (4, None),
        (5, 0),
        (5, 2),
        (5, 1 << 16),
        (6, (PARENT, (encode_base32(MANIFEST), "yesterday", "x"))),
        (6, (("nonsense", TIME, "x"),)),
        (6, ((encode_base32(MANIFEST), TIME, 5),)),
        (8, "yesterday"),
        (8, None),
    ],
)
def test_a_snapshot_whose_record_says_something_unknown_is_refused(at: int, value: Any) -> None:
    read_snapshot(msgpack.packb(SNAPSHOT_RECORD))
    with pytest.raises(FormatError, match=WHERE):
        read_snapshot(changed(SNAPSHOT_RECORD, at, value))


@pytest.mark.parametrize(("at", "value"), [(2, 0), (3, 0), (3, 2), (6, None)])
def test_the_second_shape_is_checked_alike(at: int, value: Any) -> None:
    record = SNAPSHOT_RECORD[2:]
    read_snapshot(msgpack.packb(record))
    with pytest.raises(FormatError, match=WHERE):
        read_snapshot(changed(record, at, value))


@pytest.mark.parametrize("middle", [(), (encode_base32(MANIFEST),)])
@pytest.mark.parametrize(
    ("at", "value"), [(0, 2), (0, None), (1, {"encrypted": True}), (1, []), (1, None)]
)
def test_a_manifest_whose_record_says_something_unknown_is_refused(
    middle: tuple[str, ...], at: int, value: Any
) -> None:
    references: Any = {"0000000000000": {(7,): {"Inline": b"x"}}} if middle else REFERENCES
    for version in (0, 1):
        record = (version, {}, *middle, references)
        CODEC.decode_manifest(msgpack.packb(record), MANIFEST, where=WHERE)
    with pytest.raises(FormatError, match=WHERE):
        CODEC.decode_manifest(changed(record, at, value), MANIFEST, where=WHERE)


@pytest.mark.parametrize("version", [2, None, "0", -1])
def test_a_log_of_another_version_is_refused(version: Any) -> None:
    CODEC.decode_log(msgpack.packb(LOG), SNAPSHOT, where=WHERE)
    with pytest.raises(FormatError, match=WHERE):
        CODEC.decode_log(changed(LOG, 0, version), SNAPSHOT, where=WHERE)
