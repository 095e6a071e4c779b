"""Files as virtual references: read headers, adjust the arrays, write the references.

Nothing here needs Spark: `refer_to_files` does in one process what `ingest_virtual` does in many.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BytesCodec

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Inline, concatenate
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.virtual.reader import VirtualReader
from airflow_provider_icechunk.engine.virtual.sources import ChecksumKind, ForeignFile, location_of
from airflow_provider_icechunk.engine.zarr_store.virtual_refs import columns
from airflow_provider_icechunk.exceptions import AlreadyExistsError, InvalidInputError, Kind

from .hdf5 import FileVariable, Json, group_attributes, opened, ranges_of, variables_of
from .plan import (
    Choice,
    FileHeader,
    PlannedArray,
    VirtualPlan,
    check_aligned,
    choose,
    make_plan,
    without_details,
)

MOST_LOADED = 64 << 20
"""The most bytes of one variable of one file to copy: larger ones should be referenced."""
_CELLS = 1 << 14
"""Cells of a chunk of copied values, along a dimension that grows."""


def refer_to_files(
    session: Session,
    files: Sequence[str],
    variables: Sequence[str] | Mapping[str, str] | None = None,
    *,
    along: str | int = "time",
    load: Sequence[str] | None = None,
    into: str = "",
    start: int | None = None,
    checksum: ChecksumKind = "auto",
) -> int:
    """Refer to the chunks of many files, in this process; returns the number of references.

    Arrays are created or grow. Nothing is committed. The repository must declare a virtual chunk
    container that covers the files, and be opened with access to it.

    :param files: absolute paths or URLs, in the order of the data.
    :param variables: names in the files, or names and the paths of arrays; by default all.
    :param along: the dimension along which the files follow each other, by name or number.
    :param load: variables whose values are copied; by default coordinates named like their
        dimension.
    :param into: a group for the arrays.
    :param start: where the first file begins; by default at the end of the arrays.
    :param checksum: what shows later that a file has changed: its entity tag or its time; by
        default the time for local files, the tag for others.
    """
    chosen = choose(variables, along=along, load=load, into=into, checksum=checksum)
    headers = [
        read_header(session.virtual, file, chosen, first=number == 0)
        for number, file in enumerate(files)
    ]
    plan = make_plan(headers, chosen)
    applied = apply_plan(session, plan, headers, start=start)
    return put_references(session, plan, applied, range(len(files)))


@dataclass(frozen=True, slots=True)
class AppliedPlan:
    """The result of applying a plan to a session."""

    first: int
    """Where the first file begins along the dimension."""
    created: frozenset[str]
    """Paths of arrays that were not there before."""


def read_header(reader: VirtualReader, file: str, choice: Choice, *, first: bool) -> FileHeader:
    """The first pass over one file."""
    reader.validate_location(location_of(file))
    source = reader.describe(location_of(file))
    with opened(reader, source) as content:
        found = {
            name: variable for name, variable in variables_of(content).items() if choice.takes(name)
        }
        values = {
            name: _loaded(content[name], source, name)
            for name, variable in found.items()
            if choice.loads(name, variable) and variable.fill
        }
        groups = group_attributes(content) if first else {}
    if not first:
        found = {name: without_details(variable) for name, variable in found.items()}
    return FileHeader(source, found, groups, values)


def encode_header(header: FileHeader) -> tuple[str, str, bytes]:
    """The part specific to each file as JSON, the shared part as JSON, and the copied values."""
    values = io.BytesIO()
    np.savez(values, *header.values.values(), allow_pickle=False)
    own = {
        "loaded": list(header.values),
        "source": asdict(header.source),
        "groups": header.groups,
        "shapes": {name: one.shape for name, one in header.variables.items()},
    }
    shared = {name: {**one.to_json(), "shape": ()} for name, one in header.variables.items()}
    return json.dumps(own), json.dumps(shared, sort_keys=True), values.getvalue()


def decode_header(own: str, shared: Mapping[str, Mapping[str, Json]], values: bytes) -> FileHeader:
    """The inverse of `encode_header`; `shared` is parsed, because many headers have it."""
    reported = json.loads(own)
    with np.load(io.BytesIO(values), allow_pickle=False) as stored:
        loaded = {name: stored[f"arr_{n}"] for n, name in enumerate(reported["loaded"])}
    variables = {
        name: FileVariable.from_json({**one, "shape": reported["shapes"][name]})
        for name, one in shared.items()
    }
    return FileHeader(ForeignFile(**reported["source"]), variables, reported["groups"], loaded)


def apply_plan(
    session: Session, plan: VirtualPlan, headers: Sequence[FileHeader], *, start: int | None = None
) -> AppliedPlan:
    """Create the arrays of a plan or let them grow, and write the values that are copied."""
    root = zarr.open_group(session.store, mode="a")
    known = {one.path: _existing(root, one.path) for one in plan.arrays}
    first = _first(plan, known) if start is None else start
    if first < 0:
        raise InvalidInputError(f"files cannot start at {first}")
    end = first + plan.length
    for array in plan.arrays:
        node = known[array.path]
        check_aligned(array, first, plan.sources[0].location)
        if node is None:
            node = _create(root, array, end)
        else:
            _check_same(node, array)
            _grow(node, array.axis, end)
        if array.loaded:
            _write_values(node, array, headers, plan, first, created=known[array.path] is None)
    if all(node is None for node in known.values()):
        _describe_groups(root, headers[0].groups, plan)
    return AppliedPlan(first, frozenset(path for path, node in known.items() if node is None))


def put_references(
    session: Session | ForkSession, plan: VirtualPlan, applied: AppliedPlan, files: Iterable[int]
) -> int:
    """The second pass: put the references of some files of a plan; returns how many."""
    parts: dict[str, list[ChunkRefs]] = {}
    for number in files:
        source = plan.sources[number]
        with opened(session.virtual, source) as content:
            for array in plan.arrays:
                if array.loaded or not _belongs(array, number, applied):
                    continue
                border = applied.first + plan.borders[number]
                refs = _references(content[array.name], array, source, plan.checksum, border)
                parts.setdefault(array.path, []).append(refs)
    total = 0
    for path, found in parts.items():
        refs = ChunkRefs.of(concatenate(found))
        session.tree.put_references(f"/{path.strip('/')}", refs)
        total += len(refs)
    return total


def _belongs(array: PlannedArray, number: int, applied: AppliedPlan) -> bool:
    """Whether a file has chunks of the array: one that does not grow comes from the first file."""
    return array.axis is not None or (number == 0 and array.path in applied.created)


def _references(
    dataset: Any, array: PlannedArray, source: ForeignFile, checksum: ChecksumKind, border: int
) -> ChunkRefs:
    found = ranges_of(dataset, f"{source.location}: {array.name!r}")
    shift = np.zeros(dataset.ndim, np.uint32)
    if array.axis is not None:
        shift[array.axis] = border // array.chunk
    if found.inline is not None:
        return ChunkRefs.from_items(dataset.ndim, [(tuple(shift.tolist()), Inline(found.inline))])
    rows = len(found.index)
    if not rows:
        return ChunkRefs.empty(dataset.ndim)
    return columns(
        found.index + shift,
        [source.location] * rows,
        found.offset,
        found.length,
        source.checksum(checksum),
    )


def _loaded(dataset: Any, source: ForeignFile, name: str) -> NDArray[Any]:
    if dataset.size * dataset.dtype.itemsize > MOST_LOADED:
        raise InvalidInputError(
            f"{source.location}: {name!r} has more than {MOST_LOADED >> 20} MiB, too much to "
            "copy; use `load` to name the variables to copy"
        )
    return np.asarray(dataset[()])


def _existing(root: zarr.Group, path: str) -> zarr.Array[Any] | None:
    node = root.get(path.strip("/"))
    if isinstance(node, zarr.Group):
        raise AlreadyExistsError(
            f"{path} is already a group; choose another path with `variables` or `into`",
            kind=Kind.NODE_EXISTS,
        )
    return node


def _first(plan: VirtualPlan, known: Mapping[str, zarr.Array[Any] | None]) -> int:
    """The end of the arrays along the dimension, which must be the same for all."""
    ends = {}
    for one in plan.arrays:
        node = known[one.path]
        if one.axis is not None:
            ends[one.path] = 0 if node is None else node.shape[one.axis]
    if len(set(ends.values())) > 1:
        raise InvalidInputError(
            f"the arrays end at different places along the dimension: {ends}; set `start` to "
            "where the files belong"
        )
    return int(next(iter(ends.values())))


def _create(root: zarr.Group, array: PlannedArray, end: int) -> zarr.Array[Any]:
    variable = array.variable
    dtype = np.dtype(variable.dtype)
    shape, chunks = list(variable.shape), list(variable.chunks)
    if array.loaded:
        chunks = [max(1, length) for length in shape]
    if array.axis is not None:
        shape[array.axis] = end
        if array.loaded:
            chunks[array.axis] = _CELLS
    named = any(variable.dimensions)
    with warnings.catch_warnings():
        # Zarr warns about codecs outside its specification; there are no others for HDF5.
        warnings.simplefilter("ignore")
        return root.create_array(
            array.path.strip("/"),
            shape=tuple(shape),
            chunks=tuple(chunks),
            dtype=dtype,
            filters=None,
            serializer=BytesCodec(endian="big" if dtype.byteorder == ">" else "little")
            if dtype.itemsize > 1
            else BytesCodec(endian=None),
            compressors="auto" if array.loaded else (list(variable.codecs) or None),
            fill_value=_fill(variable),
            dimension_names=variable.dimensions if named else None,
            attributes={**variable.attributes},
        )


def _fill(variable: FileVariable) -> Any:
    dtype = np.dtype(variable.dtype)
    return np.frombuffer(bytes.fromhex(variable.fill), dtype)[0].astype(dtype.newbyteorder("="))


def _check_same(node: zarr.Array[Any], array: PlannedArray) -> None:
    """Refuse an array of the repository whose chunks are stored in another way."""
    scratch = zarr.open_group(zarr.storage.MemoryStore(), mode="w")
    axis = array.axis
    wanted = _create(scratch, array, 0 if axis is None else node.shape[axis]).metadata.to_dict()
    found = node.metadata.to_dict()
    names = ["data_type", "shape", "fill_value"]
    if not array.loaded:
        names += ["chunk_grid", "codecs"]
    if array.axis is None:
        names = ["data_type", "shape"]
    for name in names:
        if json.dumps(wanted[name], default=str) != json.dumps(found[name], default=str):
            raise AlreadyExistsError(
                f"the array {array.path!r} exists with another `{name}`: it has {found[name]}, "
                f"the files {wanted[name]}",
                kind=Kind.NODE_EXISTS,
            )
    for name in ("units", "calendar", "scale_factor", "add_offset"):
        if node.attrs.get(name) != array.variable.attributes.get(name):
            raise AlreadyExistsError(
                f"the array {array.path!r} exists with the attribute {name} = "
                f"{node.attrs.get(name)!r}, in the files it is "
                f"{array.variable.attributes.get(name)!r}: the values would have different "
                "meanings",
                kind=Kind.NODE_EXISTS,
            )


def _grow(node: zarr.Array[Any], axis: int | None, end: int) -> None:
    if axis is not None and node.shape[axis] < end:
        node.resize(tuple(end if n == axis else size for n, size in enumerate(node.shape)))


def _write_values(
    node: zarr.Array[Any],
    array: PlannedArray,
    headers: Sequence[FileHeader],
    plan: VirtualPlan,
    first: int,
    *,
    created: bool,
) -> None:
    values = [header.values[array.name] for header in headers]
    if array.axis is None:
        if created:
            node[...] = values[0]
        elif np.asarray(node[...]).tobytes() != values[0].tobytes():
            raise InvalidInputError(
                f"{headers[0].source.location}: the values of {array.name!r} differ from those of "
                f"the array {array.path!r}"
            )
        return
    place = [slice(None)] * node.ndim
    place[array.axis] = slice(first, first + plan.length)
    node[tuple(place)] = np.concatenate(values, axis=array.axis)


def _describe_groups(
    root: zarr.Group, groups: Mapping[str, Mapping[str, Json]], plan: VirtualPlan
) -> None:
    """Give new groups the attributes of the corresponding groups of the file."""
    for array in plan.arrays:
        source, _, leaf = array.name.rpartition("/")
        target, _, own = array.path.strip("/").rpartition("/")
        attributes = dict(groups.get(source, {}))
        if leaf != own or not attributes:
            continue
        node = root if not target else root.get(target)
        if isinstance(node, zarr.Group) and not dict(node.attrs):
            node.attrs.update(attributes)


def task_files(count: int, parts: int) -> Iterator[range]:
    """Files of each task: neighbours, about as many each."""
    parts = max(1, min(count, parts))
    for part in range(parts):
        yield range(count * part // parts, count * (part + 1) // parts)
