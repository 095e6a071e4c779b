"""Which labels of a growing dimension are present, and which are missing.

A label counts as written in an array if a commit recorded that it wrote it, or if a chunk of it
exists. A chunk of several labels counts only where there are no records: for arrays for which no
commit recorded anything, and for chunks that existed when the oldest unexpired commit was made.
Then one of its labels makes all of them look written, see `Coverage.shared`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.commit.records import WrittenRecord, read_record
from airflow_provider_icechunk.engine.format.zarr_metadata import ArrayDocument, array_document
from airflow_provider_icechunk.engine.history.ancestry import ancestors, is_first_since_parent
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind, NotFoundError

from .dataset import IcechunkDataset
from .growing import Growing, Label
from .stored import as_stored, first_step, read_drops

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.format.model import Node, Snapshot
    from airflow_provider_icechunk.engine.objects.objects import Objects
    from airflow_provider_icechunk.engine.repository import Repository
    from airflow_provider_icechunk.engine.sessions.session import Session

Ranges = tuple[tuple[Label, Label], ...]
_LONGEST_WALK = 10_000
_CF_TIME = re.compile(r"(days|hours|minutes|seconds|milliseconds|microseconds) since (.+)")


@dataclass(frozen=True, slots=True)
class ArrayCoverage:
    """Which labels one array has."""

    present: Ranges
    """First and last label of each range of present labels."""
    missing: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which labels of a dimension are present, in all requested arrays."""

    snapshot_id: str
    dim: str
    wanted: int
    """The number of requested labels."""
    present: Ranges
    """First and last label of each range of labels that all arrays have."""
    missing: tuple[Label, ...]
    """Labels that some array lacks."""
    arrays: Mapping[str, ArrayCoverage]
    shared: tuple[str, ...] = ()
    """Arrays whose chunks hold several labels and that lack records, because commits made none or
    have expired: there one label of a chunk makes all of them look written."""

    @property
    def is_complete(self) -> bool:
        """Whether every requested label is present."""
        return not self.missing

    def as_dict(self) -> dict[str, Any]:
        """The value as plain JSON."""
        return {
            "snapshot_id": self.snapshot_id,
            "dim": self.dim,
            "wanted": self.wanted,
            "present": [list(one) for one in self.present],
            "missing": list(self.missing),
            "arrays": {
                path: {
                    "present": [list(one) for one in found.present],
                    "missing": list(found.missing),
                }
                for path, found in self.arrays.items()
            },
            "shared": list(self.shared),
        }


@dataclass(frozen=True, slots=True)
class _Axis:
    """The requested labels: their positions (-1: none) and their names."""

    name: str
    places: NDArray[np.int64]
    labels: Sequence[Label]


def coverage(
    source: Repository | Session,
    dataset: IcechunkDataset | str,
    dim: str | None = None,
    *,
    at: Mapping[str, Any] | str | None = None,
    variables: Sequence[str] | None = None,
    branch: str | None = None,
) -> Coverage:
    """Which labels of a growing dimension are there, and which are missing.

    :param source: a session, or a repository, where the newest version of the branch is read.
    :param dataset: the declaration, or the path of one array, whose labels are then those of the
        coordinate that is stored beside it, or positions.
    :param dim: the dimension; by default the only growing one, or the first of the array.
    :param at: the labels in question, as in `IcechunkDataset.place`; by default all from
        the first to the end of the axis.
    :param variables: names of those to look at; by default all that have the dimension.
    :param branch: by default that of the dataset, or `main`.
    """
    if isinstance(dataset, str):
        session = _session(source, branch or "main")
        if at is not None or variables is not None:
            raise InvalidInputError("`at` and `variables` need a dataset, not the path of an array")
        paths = [f"/{dataset.strip('/')}"]
        axis = _axis_of_array(session, paths[0], dim)
    else:
        session = _session(source, branch or dataset.branch)
        dataset = as_stored(session, dataset)
        name = only_growing(dataset, dim)
        paths = _paths(dataset, name, variables)
        axis = _axis_of_dataset(session, dataset, name, paths, at)
    found, shared = _found(session, paths, axis)
    everywhere = np.logical_and.reduce(list(found.values()))
    return Coverage(
        session.snapshot_id,
        axis.name,
        len(axis.places),
        _ranges(everywhere, axis),
        _missing(everywhere, axis),
        {
            path: ArrayCoverage(_ranges(one, axis), _missing(one, axis))
            for path, one in found.items()
        },
        tuple(shared),
    )


def _found(
    session: Session, paths: Sequence[str], axis: _Axis
) -> tuple[dict[str, NDArray[np.bool_]], list[str]]:
    """For each array which labels are present, and the arrays for which this is uncertain."""
    found: dict[str, NDArray[np.bool_]] = {}
    unsure: dict[str, NDArray[np.bool_]] = {}
    numbers: dict[str, int] = {}
    for path in paths:
        node = session.tree.node(path)
        found[path] = np.zeros(len(axis.places), np.bool_)
        if node is None or node.is_group:
            continue
        document = array_document(node)
        numbers[path] = number = _dimension_number(path, document, axis.name)
        chunks = _present(session, node, number, axis.places)
        if document.chunk_shape[number] > 1:
            unsure[path] = chunks
        else:
            found[path] = chunks
    known = _add_records(session, found, numbers, set(unsure), axis)
    for path in unsure.keys() - known.recorded:
        found[path] = unsure[path]
    shared = [path for path in unsure if path not in known.recorded or path in known.guessed]
    for path, number in numbers.items():
        node = session.tree.node(path)
        assert node is not None
        found[path] &= axis.places < array_document(node).shape[number]
    return found, shared


@dataclass(frozen=True, slots=True)
class _Known:
    """What the history records about arrays."""

    recorded: set[str] = field(default_factory=set)
    """Arrays for which commits recorded what they wrote."""
    guessed: set[str] = field(default_factory=set)
    """Arrays with expired records, whose chunks from that time had to count."""


def _add_records(
    session: Session,
    found: dict[str, NDArray[np.bool_]],
    numbers: Mapping[str, int],
    unsure: set[str],
    axis: _Axis,
) -> _Known:
    """Mark what commits recorded as written.

    The history is read only for what the chunks leave open, and no further than needed.
    """
    known = _Known()
    open_paths = {path for path in numbers if path in unsure or not found[path].all()}
    if not open_paths:
        return known
    objects = session.tree.core.objects
    # Before labels were dropped from the front, the same position was this much further on.
    moved = dict.fromkeys(numbers, 0)
    coordinates = {path: f"{path.rpartition('/')[0]}/{axis.name}" for path in numbers}
    first = {path: first_step(session.tree.node(one)) for path, one in coordinates.items()}
    line = ancestors(objects, session.tree.base.id, ahead=True)
    for commit in islice(line, _LONGEST_WALK):
        record = read_record(commit.metadata) or WrittenRecord()
        is_cut = bool(open_paths & unsure) and _follows_expired(objects, commit)
        for path in open_paths:
            number = numbers[path]
            if first[path]:
                # The commits that dropped labels may have expired while this one has not.
                moved[path] = first[path] - first_step(commit.nodes.get(coordinates[path]))
            for box in record.arrays.get(path, ()):
                known.recorded.add(path)
                if len(box) > number:
                    start, stop = (place - moved[path] for place in box[number])
                    found[path] |= (axis.places >= max(start, 0)) & (axis.places < stop)
            node = commit.nodes.get(path)
            if is_cut and path in unsure and node is not None and not node.is_group:
                then = np.where(axis.places < 0, -1, axis.places + moved[path])
                found[path] |= _present(session, node, number, then)
                known.guessed.add(path)
        for path, (number, count) in read_drops(commit.metadata).items():
            if numbers.get(path) == number:
                moved[path] += count
        open_paths = {path for path in open_paths if not found[path].all()}
        if not open_paths:
            break
    return known


def _follows_expired(objects: Objects, commit: Snapshot) -> bool:
    """Whether commits expired between a commit and its parent, as far as that is known."""
    if objects.refs.pruned_logs(commit.id):
        return True
    parent = objects.refs.parent(commit)
    if parent is None or objects.refs.parent(objects.snapshot_header(parent)) is not None:
        return False
    return not is_first_since_parent(objects, commit)


def _session(source: Repository | Session, branch: str) -> Session:
    if hasattr(source, "readonly_session"):
        found: Session = source.readonly_session(branch)
        return found
    return source


def only_growing(dataset: IcechunkDataset, dim: str | None) -> str:
    """The requested growing dimension: the named one, or the only one."""
    growing = dataset.growing
    if dim is None and len(growing) == 1:
        return next(iter(growing))
    if dim not in growing:
        raise InvalidInputError(
            f"set `dim` to a growing dimension of {dataset.repository!r}: "
            f"{', '.join(growing) or 'it has none'}"
        )
    return dim


def _paths(dataset: IcechunkDataset, dim: str, variables: Sequence[str] | None) -> list[str]:
    having = [name for name, one in dataset.variables.items() if dim in one.dims]
    unknown = [name for name in variables or () if name not in having]
    if unknown or not having:
        raise InvalidInputError(
            f"{unknown[0] if unknown else 'nothing'!r} is not a variable along {dim!r}; these are: "
            f"{', '.join(having) or 'none'}"
        )
    return [f"/{dataset.path(name)}" for name in (variables or having)]


def _axis_of_dataset(
    session: Session,
    dataset: IcechunkDataset,
    name: str,
    paths: Sequence[str],
    at: Mapping[str, Any] | str | None,
) -> _Axis:
    dim = dataset.growing[name]
    if dim.is_regular:
        start, stop = 0, _longest(session, paths, name)
        if at is not None:
            start, stop = dataset.place(at).regions[name]
        return _Axis(name, np.arange(start, stop), dim.texts(start, stop))
    stored = _stored(session, f"/{dataset.path(name)}", dim)
    if at is None:
        return _Axis(name, np.arange(len(stored)), stored)
    places = {label: place for place, label in reversed(list(enumerate(stored)))}
    wanted = dataset.place(at).labels[name]
    return _Axis(name, np.array([places.get(one, -1) for one in wanted], np.int64), wanted)


def _axis_of_array(session: Session, path: str, dim: str | None) -> _Axis:
    document = array_document(session.tree.array(path))
    if not document.shape:
        raise InvalidInputError(f"{path} has no dimensions")
    name = _names(document)[0] if dim is None else dim
    length = document.shape[_dimension_number(path, document, name)]
    beside = f"{path.rpartition('/')[0]}/{name}"
    labels = _stored(session, beside, None)
    if len(labels) != length:
        labels = list(range(length))
    return _Axis(name, np.arange(length), labels)


def _stored(session: Session, path: str, dim: Growing | None) -> list[Label]:
    """The labels in a stored coordinate, decoded if they are times; none if it does not exist."""
    import zarr

    from .declare import stored_labels

    node = session.tree.node(path)
    if node is None or node.is_group or len(array_document(node).shape) != 1:
        return []
    array = zarr.open_array(session.store, path=path, mode="r")
    if dim is not None:
        return stored_labels(array, dim)
    values: list[Label] = np.asarray(array[:]).tolist()
    units = _CF_TIME.fullmatch(str(array.attrs.get("units", "")))
    if units is None or not all(isinstance(value, int | float) for value in values):
        return values
    try:
        since = datetime.fromisoformat(units[2].strip()).replace(tzinfo=UTC)
        step = timedelta(**{units[1]: 1})
        times = [since + float(value) * step for value in values]
    except (ValueError, OverflowError):
        return values
    midnights = all(time.time() == datetime.min.time() for time in times)
    return [
        time.date().isoformat() if midnights else time.replace(tzinfo=None).isoformat()
        for time in times
    ]


def _longest(session: Session, paths: Sequence[str], dim: str) -> int:
    longest = 0
    for path in paths:
        node = session.tree.node(path)
        if node is not None and not node.is_group:
            document = array_document(node)
            longest = max(longest, document.shape[_dimension_number(path, document, dim)])
    return longest


def _dimension_number(path: str, document: ArrayDocument, dim: str) -> int:
    names = _names(document)
    if dim not in names:
        raise NotFoundError(
            f"{path} has no dimension {dim!r}: its dimensions are {', '.join(names) or 'none'}",
            kind=Kind.NODE_NOT_FOUND,
        )
    return names.index(dim)


def _names(document: ArrayDocument) -> list[str]:
    """The dimensions by name, or by number if they have none."""
    names = document.dimension_names or (None,) * len(document.shape)
    return [str(number) if name is None else name for number, name in enumerate(names)]


def _present(
    session: Session, node: Node, number: int, places: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether the chunk of a position exists."""
    document = array_document(node)
    if document.chunk_counts is not None:
        raise InvalidInputError(f"{node.path} has chunks of different lengths: not supported here")
    chunk = max(document.chunk_shape[number], 1)
    rows = np.unique(session.tree.references(node).index[:, number]).astype(np.int64)
    inside = (places >= 0) & (places < document.shape[number])
    return inside & np.isin(places // chunk, rows)


def _ranges(present: NDArray[np.bool_], axis: _Axis) -> Ranges:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], present, [False])).astype(np.int8)))
    return tuple(
        (axis.labels[first], axis.labels[end - 1])
        for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    )


def _missing(present: NDArray[np.bool_], axis: _Axis) -> tuple[Label, ...]:
    return tuple(axis.labels[place] for place in np.flatnonzero(~present).tolist())
