"""Records of what commits wrote: boxes of cells for each array, and labels of growing dimensions.

It is kept in the metadata of a snapshot, where official libraries keep it as it is and read nothing
from it. An array is mentioned only if all of its chunk edits said where they wrote, so what is not
mentioned may have been written anywhere. Pure.

Metadata is stored bytes: what does not have exactly this shape counts as no record at all, and a
record that does not cover the chunks of its commit counts as none for that array.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_icechunk.engine.format.ids import NodeId
from airflow_provider_icechunk.engine.format.model import (
    Coordinates,
    Metadata,
    Node,
    Snapshot,
    TransactionLog,
)
from airflow_provider_icechunk.engine.format.node_table import nodes_with
from airflow_provider_icechunk.engine.format.zarr_metadata import MAX_RANK, array_document
from airflow_provider_icechunk.engine.tree.boxes import (
    MOST_BOXES,
    Box,
    Boxes,
    around,
    cover,
    joined,
)
from airflow_provider_icechunk.engine.tree.changes import ChangeSet
from airflow_provider_icechunk.exceptions import InvalidInputError

WRITTEN_KEY = "airflow_provider_icechunk.written"
"""Snapshot metadata: what the commit wrote."""
VERSION = 1
MOST_BYTES = 64 << 10
"""Of the record as JSON; above that, boxes are widened, and what still does not fit is left out."""
_LEAST_BYTES = len("[0, 1]")
"""Of one side of a box as JSON."""
_MOST_ARRAYS = 4096
_MOST_LABELS = 16_384
_LABEL_LENGTH = 256


@dataclass(frozen=True, slots=True)
class WrittenRecord:
    """What one commit wrote."""

    arrays: Mapping[str, Boxes] = field(default_factory=dict)
    """By path."""
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By name of the dimension."""
    appends: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Dimensions, by the path of their coordinate, to which the commit appended: from where, and up
    to where.
    """


def as_box(given: Sequence[Any]) -> Box:
    """A box from slices or pairs, as callers write it."""
    box = []
    for span in given:
        start, stop = (span.start, span.stop) if isinstance(span, slice) else tuple(span)
        step = span.step if isinstance(span, slice) else None
        if step not in (None, 1) or start is None or stop is None or not 0 <= start <= stop:
            raise InvalidInputError(
                f"{given!r} is not a box: give (first, end) for each dimension, end not included"
            )
        box.append((int(start), int(stop)))
    return tuple(box)


def record_of(changes: ChangeSet, base: Snapshot) -> WrittenRecord | None:
    """What the changes on `base` are known to have written; `None` if nothing is."""
    known = {
        node_id: edits.boxes
        for node_id, edits in changes.chunks.items()
        if edits.boxes and len(edits)
    }
    if not known and not changes.labels and not changes.appends:
        return None
    nodes = [*nodes_with(base.nodes, known), *changes.created.values()]
    arrays = {node.path: known[node.id] for node in nodes if node.id in known}
    return WrittenRecord(arrays, changes.labels, changes.appends)


def with_record(metadata: Metadata, record: WrittenRecord | None) -> dict[str, Any]:
    """Metadata of a commit with its own record, never with that of another one."""
    kept = {key: value for key, value in metadata.items() if key != WRITTEN_KEY}
    return kept if record is None else {**kept, WRITTEN_KEY: to_json(record)}


def to_json(record: WrittenRecord) -> dict[str, Any]:
    """A record as JSON of bounded size: widened first, then shortened."""
    spans = sum(len(box) for boxes in record.arrays.values() for box in boxes)
    # Most oversized records can be recognised without encoding them.
    if spans * _LEAST_BYTES <= MOST_BYTES:
        value = _plain(record)
        if _size(value) <= MOST_BYTES:
            return value
    widened = {path: (around(boxes),) for path, boxes in record.arrays.items()}
    value = _plain(WrittenRecord(widened, record.labels, record.appends))
    if _size(value) > MOST_BYTES:
        value = _plain(WrittenRecord(widened, {}, record.appends))
    arrays = value["arrays"]
    left = _size(value)
    for path in sorted(arrays, reverse=True):
        if left <= MOST_BYTES:
            break
        left -= _size({path: arrays.pop(path)})
    return value


def _plain(record: WrittenRecord) -> dict[str, Any]:
    arrays = {
        path: [[list(span) for span in box] for box in boxes]
        for path, boxes in sorted(record.arrays.items())
    }
    labels = {name: list(texts) for name, texts in record.labels.items() if texts}
    appends = {axis: list(span) for axis, span in record.appends.items()}
    more = {"labels": labels, "appends": appends}
    return {
        "version": VERSION,
        "arrays": arrays,
        **{k: found for k, found in more.items() if found},
    }


def _size(value: object) -> int:
    return len(json.dumps(value))


def read_record(metadata: Metadata) -> WrittenRecord | None:
    """The record in the metadata of a commit; `None` without a trustworthy one."""
    value = metadata.get(WRITTEN_KEY)
    if not isinstance(value, Mapping) or value.get("version") != VERSION:
        return None
    arrays, labels, appends = (value.get(key, {}) for key in ("arrays", "labels", "appends"))
    if not all(isinstance(one, Mapping) for one in (arrays, labels, appends)):
        return None
    if len(arrays) > _MOST_ARRAYS or len(labels) > MAX_RANK or len(appends) > _MOST_ARRAYS:
        return None
    boxes = {path: _boxes(items) for path, items in arrays.items()}
    texts = {name: _texts(items) for name, items in labels.items()}
    spans = {axis: _box([span]) for axis, span in appends.items()}
    return WrittenRecord(
        {path: found for path, found in boxes.items() if found is not None},
        {name: found for name, found in texts.items() if found is not None},
        {axis: found[0] for axis, found in spans.items() if found is not None},
    )


def _boxes(value: object) -> Boxes | None:
    if not isinstance(value, list | tuple) or len(value) > MOST_BOXES:
        return None
    found = [_box(item) for item in value]
    boxes = tuple(box for box in found if box is not None)
    alike = len({len(box) for box in boxes}) <= 1
    return boxes if len(boxes) == len(found) and alike else None


def _box(value: object) -> Box | None:
    if not isinstance(value, list | tuple) or len(value) > MAX_RANK:
        return None
    spans = []
    for span in value:
        if not isinstance(span, list | tuple) or len(span) != 2:
            return None
        start, stop = span
        if type(start) is not int or type(stop) is not int or not 0 <= start < stop < 1 << 63:
            return None
        spans.append((start, stop))
    return tuple(spans)


def _texts(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list | tuple) or len(value) > _MOST_LABELS:
        return None
    if not all(isinstance(text, str) and len(text) <= _LABEL_LENGTH for text in value):
        return None
    return tuple(value)


def believed(record: WrittenRecord | None, node: Node, written: Coordinates) -> Boxes | None:
    """The record of an array, if it covers the chunks that the commit wrote."""
    boxes = None if record is None else record.arrays.get(node.path)
    if boxes is None or node.array is None:
        return None
    return boxes if cover(boxes, array_document(node), written) else None


def take_over(
    changes: ChangeSet, commits: Iterable[tuple[Snapshot, Sequence[TransactionLog]]]
) -> None:
    """Give changes made from stored commits the records of what these had written.

    An array that one commit does not mention has no record.
    """
    known: dict[NodeId, Boxes | None] = {}
    for commit, logs in commits:
        record = read_record(commit.metadata)
        if record is not None:
            changes.add_labels(record.labels)
            changes.add_appends(record.appends)
        touched = {node_id for log in logs for node_id in log.updated_chunks}
        nodes = {node.id: node for node in commit.nodes.values() if node.id in touched}
        for log in logs:
            for node_id, written in log.updated_chunks.items():
                node = nodes.get(node_id)
                boxes = believed(record, node, written) if node and len(logs) == 1 else None
                before = known.get(node_id, ())
                known[node_id] = None if before is None or boxes is None else joined(before, boxes)
    for node_id, edits in changes.chunks.items():
        edits.boxes = known.get(node_id)
