"""Attributes of nodes in separate files: which go there, and how they are read back.

Three generations have such files in their specifications, but no other software ever wrote them. A
snapshot keeps small attributes inline and refers to a row of a file for long ones. Rows that the
parent of a snapshot refers to are reused, so that a commit writes only what it changed. The caller
provides the functions that store and fetch files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.engine.format.ids import AttributesId, SnapshotId, encode_base32
from airflow_provider_icechunk.engine.format.wire import json as js
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError

Attributes = dict[str, Any]
Rows = tuple[Attributes, ...]

_REMEMBERED_SNAPSHOTS = 64
_REMEMBERED_FILES = 32


@dataclass(frozen=True, slots=True)
class AttributesRef:
    """Where the attributes of a node are."""

    file: AttributesId
    row: int


@dataclass(slots=True)
class AttributeReading:
    """The rows that one snapshot refers to."""

    rows_of: Callable[[AttributesId, str], Rows]
    memory: Purse
    """The budget for all of them: a row may be referred to many times."""
    placed: dict[bytes, AttributesRef] = field(default_factory=dict)
    texts: dict[AttributesRef, bytes] = field(default_factory=dict)

    def resolve(self, ref: AttributesRef, *, where: str) -> Attributes:
        """The attributes in a row."""
        rows = self.rows_of(ref.file, where)
        if ref.row >= len(rows):
            raise FormatError(
                f"{where}: refers to row {ref.row} of attributes file {encode_base32(ref.file)}, "
                f"which has {len(rows)}"
            )
        text = self.texts.get(ref)
        if text is None:
            text = self.texts[ref] = _text(rows[ref.row])
        self.memory.charge(len(text))
        self.placed[text] = ref
        return rows[ref.row]

    @property
    def files(self) -> frozenset[AttributesId]:
        """Files that were referred to."""
        return frozenset(ref.file for ref in self.placed.values())


@dataclass(slots=True)
class Writing:
    """The attributes of one new snapshot."""

    threshold: int | None
    known: dict[bytes, AttributesRef]
    file: AttributesId | None
    placed: dict[bytes, AttributesRef] = field(default_factory=dict)
    rows: list[Attributes] = field(default_factory=list)

    def place(self, attributes: Attributes) -> AttributesRef | None:
        """Where to put attributes; `None` for inline."""
        if self.threshold is None or self.file is None:
            return None
        text = _text(attributes)
        if len(text) <= self.threshold:
            return None
        ref = self.placed.get(text) or self.known.get(text)
        if ref is None:
            ref = AttributesRef(self.file, len(self.rows))
            self.rows.append(attributes)
        self.placed[text] = ref
        return ref

    @property
    def files(self) -> list[AttributesId]:
        """Files that the snapshot refers to, in order."""
        return sorted({ref.file for ref in self.placed.values()})


def _text(attributes: Attributes) -> bytes:
    """The text by which attributes are compared and measured; any JSON value has one."""
    return json.dumps(attributes, sort_keys=True, separators=(",", ":")).encode()


def _nothing(_identity: AttributesId) -> bytes | None:
    return None


def _nowhere(_identity: AttributesId, _data: bytes) -> None:
    raise InvalidInputError("there is no place for attributes files")


class AttributeFiles:
    """The attributes files of one repository.

    :param threshold: attributes whose JSON is longer go to a file; `None` keeps all inline.
    :param fetch: the content of a file, `None` if it is not there.
    :param store: keeps the content of a new file.
    """

    def __init__(
        self,
        *,
        threshold: int | None = None,
        fetch: Callable[[AttributesId], bytes | None] = _nothing,
        store: Callable[[AttributesId, bytes], None] = _nowhere,
        new_id: Callable[[], AttributesId] | None = None,
    ) -> None:
        self._threshold = threshold
        self._fetch = fetch
        self._store = store
        self._new_id = new_id
        self._rows: dict[AttributesId, Rows] = {}
        self._placed: dict[SnapshotId, dict[bytes, AttributesRef]] = {}

    def reading(
        self, decode: Callable[[bytes, AttributesId, str], Rows], memory: Purse
    ) -> AttributeReading:
        """Start reading a snapshot; `decode` turns the content of a file into rows."""

        def rows_of(identity: AttributesId, where: str) -> Rows:
            known = self._rows.get(identity)
            if known is not None:
                return known
            data = self._fetch(identity)
            if data is None:
                raise FormatError(
                    f"{where}: refers to attributes file {encode_base32(identity)}, which "
                    "does not exist"
                )
            rows = decode(data, identity, f"attributes file {encode_base32(identity)}")
            _remember(self._rows, identity, rows, _REMEMBERED_FILES)
            return rows

        return AttributeReading(rows_of, memory)

    def writing(self, snapshot: SnapshotId, parent: SnapshotId | None) -> Writing:
        """Start writing a snapshot, or rewriting it."""
        known: dict[bytes, AttributesRef] = {}
        for one in (parent, snapshot):
            known |= self._placed.get(one, {}) if one is not None else {}
        file = None if self._new_id is None or self._threshold is None else self._new_id()
        return Writing(self._threshold, known, file)

    def finish(
        self,
        snapshot: SnapshotId,
        done: AttributeReading | Writing,
        encode: Callable[[AttributesId, Rows], bytes] | None = None,
    ) -> None:
        """Store the new attributes of a written snapshot, and remember where they are."""
        if isinstance(done, Writing) and done.rows and encode is not None:
            assert done.file is not None
            rows = tuple(done.rows)
            self._store(done.file, encode(done.file, rows))
            _remember(self._rows, done.file, rows, _REMEMBERED_FILES)
        if done.placed:
            _remember(self._placed, snapshot, dict(done.placed), _REMEMBERED_SNAPSHOTS)


def _remember(memory: dict[Any, Any], key: object, value: object, most: int) -> None:
    memory.pop(key, None)
    while len(memory) >= most:
        memory.pop(next(iter(memory)), None)
    memory[key] = value


def checked_rows(rows: Iterable[object], *, where: str) -> Rows:
    """Rows of a JSON file, each of which must be an object."""
    found = tuple(dict(js.as_object(row, "a row", where=where)) for row in rows)
    for row in found:
        js.check_nesting(row, where=where)
    return found
