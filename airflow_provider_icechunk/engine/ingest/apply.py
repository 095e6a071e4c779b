"""Files as virtual references: read headers, make the arrays fit, put the references.

Nothing here needs Spark: `refer_to_files` does in one process what `ingest_virtual` does in many.
"""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
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

from .choice import Choice, Differing, Missing, choose, without_details
from .comparing import PlannedArray
from .contents import Content, FileVariable, Json, Ranges
from .files import opened
from .plan import (
    FileHeader,
    KnownArray,
    VirtualPlan,
    make_plan,
    names_of,
    recounted,
)

MOST_LOADED = 64 << 20
"""Bytes of one variable of one file that may be copied: copying is not meant for more."""
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
    missing: Missing = "error",
    differing: Differing = "error",
) -> int:
    """Refer to the chunks of many files, in this process; returns the number of references.

    Arrays are created or grow. Nothing is committed. The repository has to declare a virtual chunk
    container that covers the files, and be opened with the right to read it. `plan_files` takes the
    same arguments and shows what would happen.

    :param files: absolute paths or URLs, in the order of the data.
    :param variables: names in the files, or names and the paths of arrays; by default all.
    :param along: the dimension along which the files follow each other, by name or number.
    :param load: variables whose values are copied; by default coordinates named like their
        dimension, and the bounds of times.
    :param into: a group for the arrays.
    :param start: where the first file begins; by default at the end of the arrays.
    :param checksum: what shows later that a file has changed: its entity tag or its time; by
        default the time for local files, the tag for others.
    :param missing: whether to refuse files that lack a variable others have, or leave its cells
        empty.
    :param differing: whether to refuse files that store a variable in another way, or copy their
        values.
    """
    chosen = choose(
        variables, along=along, load=load, into=into, checksum=checksum, missing=missing,
        differing=differing,
    )  # fmt: skip
    headers = _headers(session, files, chosen)
    plan = make_plan(headers, chosen, known_arrays(session, headers, chosen), start=start).checked()
    apply_plan(session, plan, headers)
    return put_references(session, plan, range(len(files)))[0]


def plan_files(
    session: Session,
    files: Sequence[str],
    variables: Sequence[str] | Mapping[str, str] | None = None,
    *,
    along: str | int = "time",
    load: Sequence[str] | None = None,
    into: str = "",
    start: int | None = None,
    checksum: ChecksumKind = "auto",
    missing: Missing = "error",
    differing: Differing = "error",
) -> VirtualPlan:
    """What `refer_to_files` would do with the same arguments, and why it cannot; writes nothing."""
    chosen = choose(
        variables, along=along, load=load, into=into, checksum=checksum, missing=missing,
        differing=differing,
    )  # fmt: skip
    headers = _headers(session, files, chosen)
    return make_plan(headers, chosen, known_arrays(session, headers, chosen), start=start)


def _headers(session: Session, files: Sequence[str], choice: Choice) -> list[FileHeader]:
    return [
        read_header(session.virtual, file, choice, first=number == 0)
        for number, file in enumerate(files)
    ]


def read_header(reader: VirtualReader, file: str, choice: Choice, *, first: bool) -> FileHeader:
    """The first pass over one file."""
    reader.validate_location(location_of(file))
    source = reader.describe(location_of(file))
    with opened(reader, source) as content:
        found = {
            name: variable for name, variable in content.variables().items() if choice.takes(name)
        }
        loaded = choice.loaded(found)
        values = {
            name: _loaded(content, variable, source, name)
            for name, variable in found.items()
            if name in loaded and variable.fill
        }
        groups = content.groups() if first else {}
    if not first and choice.missing == "error":
        # The first file gives everything; headers of others are smaller, and mostly alike.
        found = {name: without_details(variable) for name, variable in found.items()}
    return FileHeader(source, found, groups, values)


def encode_header(header: FileHeader) -> tuple[str, str, bytes]:
    """What is new in each file as JSON, what files share as JSON, and the copied values."""
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


def known_arrays(
    session: Session | ForkSession, headers: Sequence[FileHeader], choice: Choice
) -> dict[str, KnownArray]:
    """What the repository has at the paths of a plan, and beside them."""
    try:
        root = zarr.open_group(session.store, mode="r")
    except FileNotFoundError:
        return {}
    paths = [choice.array(name).strip("/") for name in names_of(headers, choice)]
    found: dict[str, zarr.Array[Any]] = {}
    for path in paths:
        there = _existing(root, path)
        if there is not None:
            found[path] = there
    for group in {path.rpartition("/")[0] for path in paths}:
        node = root.get(group) if group else root
        if choice.missing == "fill" and isinstance(node, zarr.Group):
            found |= {"/".join(filter(None, (group, name))): one for name, one in node.arrays()}
    return {path: _known(node) for path, node in found.items()}


def _known(node: zarr.Array[Any]) -> KnownArray:
    attributes = dict(node.attrs)
    fill = node.fill_value
    names = getattr(node.metadata, "dimension_names", None)
    return KnownArray(
        tuple(node.shape),
        tuple(node.chunks),
        attributes,
        node.dtype.str,
        None if names is None else tuple(names),
        "_FillValue" in attributes or "missing_value" in attributes or bool(fill != fill),
    )


def apply_plan(session: Session, plan: VirtualPlan, headers: Sequence[FileHeader]) -> None:
    """Create the arrays of a plan or extend them, and write the values that are copied."""
    root = zarr.open_group(session.store, mode="a")
    for array in plan.arrays:
        node = _existing(root, array.path)
        end = 0 if array.axis is None else plan.series[array.series].end
        if node is None:
            node = _create(root, array, end)
        else:
            _check_same(node, array)
            _grow(node, array.axis, end)
        if array.loaded:
            _write_values(node, array, headers, plan)
    for path, shape in plan.grown.items():
        grown = root[path]
        assert isinstance(grown, zarr.Array)
        grown.resize(shape)
    if all(array.created for array in plan.arrays):
        _describe_groups(root, headers[0].groups, plan)


def put_references(
    session: Session | ForkSession, plan: VirtualPlan, files: Iterable[int]
) -> tuple[int, int]:
    """The second pass: put the references of some files of a plan, and copy what does not fit.

    Returns the number of references and of copied bytes.
    """
    parts: dict[str, list[ChunkRefs]] = {}
    total = size = 0
    for number in files:
        source = plan.sources[number]
        with opened(session.virtual, source) as content:
            for array in plan.arrays:
                if array.loaded or not _belongs(array, number):
                    continue
                if number in array.copied:
                    size += _copy(session, content, array, *plan.series[array.series].place(number))
                    continue
                begin = 0
                if array.axis is not None:
                    begin = plan.series[array.series].place(number)[0]
                refs = _references(content, array, source, plan.checksum, begin)
                parts.setdefault(array.path, []).append(refs)
    for path, found in parts.items():
        refs = ChunkRefs.of(concatenate(found))
        session.tree.put_references(f"/{path.strip('/')}", refs)
        total += len(refs)
    return total, size


def _belongs(array: PlannedArray, number: int) -> bool:
    """Whether a file has chunks of the array; if it does not grow, only its first file does."""
    if number in array.absent:
        return False
    return array.axis is not None or (number == array.origin and array.created)


def _copy(
    session: Session | ForkSession, content: Content, array: PlannedArray, begin: int, end: int
) -> int:
    """Write the values of a file, a few chunks at a time; returns how many bytes."""
    node = zarr.open_group(session.store, mode="r+")[array.path.strip("/")]
    assert isinstance(node, zarr.Array)
    axis = array.axis
    assert axis is not None
    if axis:
        blocks = [(0, end - begin)]
    else:
        row = math.prod(node.shape[1:]) * node.dtype.itemsize
        step = array.chunk * max(1, MOST_LOADED // max(1, row * array.chunk))
        blocks = [(n, min(n + step, end - begin)) for n in range(0, end - begin, step)]
    size = 0
    for start, stop in blocks:
        values = content.values(array.name) if axis else content.values(array.name, start, stop)
        place: list[slice] = [slice(None)] * node.ndim
        place[axis] = slice(begin + start, begin + stop)
        node[tuple(place)] = values
        size += values.nbytes
    return size


def _references(
    content: Content, array: PlannedArray, source: ForeignFile, checksum: ChecksumKind, begin: int
) -> ChunkRefs:
    found = content.ranges(array.name)
    rank = len(array.variable.shape)
    if array.axis == 0 and len(found.index) == 1:
        found = _cut(found, array)
    shift = np.zeros(rank, np.uint32)
    if array.axis is not None:
        shift[array.axis] = begin // array.chunk
    if found.inline is not None:
        return ChunkRefs.from_items(rank, [(tuple(shift.tolist()), Inline(found.inline))])
    rows = len(found.index)
    if not rows:
        return ChunkRefs.empty(rank)
    return columns(
        found.index + shift,
        [source.location] * rows,
        found.offset,
        found.length,
        source.checksum(checksum),
    )


def _cut(found: Ranges, array: PlannedArray) -> Ranges:
    """One contiguous piece as chunks of the array."""
    variable = array.variable
    if not variable.contiguous:
        return found
    size = math.prod(variable.chunks) * np.dtype(variable.dtype).itemsize
    count = int(found.length[0]) // size
    index = np.zeros((count, found.index.shape[1]), np.uint32)
    index[:, 0] = np.arange(count)
    offset = found.offset[0] + np.arange(count, dtype=np.uint64) * np.uint64(size)
    return Ranges(index, offset, np.full(count, size, np.uint64))


def _loaded(
    content: Content, variable: FileVariable, source: ForeignFile, name: str
) -> NDArray[Any]:
    if math.prod(variable.shape) * np.dtype(variable.dtype).itemsize > MOST_LOADED:
        raise InvalidInputError(
            f"{source.location}: {name!r} has more than {MOST_LOADED >> 20} MiB, too much to copy "
            "beside references; name the variables to copy with `load`"
        )
    return content.values(name)


def _existing(root: zarr.Group, path: str) -> zarr.Array[Any] | None:
    node = root.get(path.strip("/"))
    if isinstance(node, zarr.Group):
        raise AlreadyExistsError(
            f"{path} is a group already; choose another path with `variables` or `into`",
            kind=Kind.NODE_EXISTS,
        )
    return node


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
    if axis is None:
        names = ["data_type", "shape"]
    elif array.loaded and array.units is not None:
        names = ["shape"]
    for name in names:
        if _comparable(wanted[name]) != _comparable(found[name]):
            raise AlreadyExistsError(
                f"the array {array.path!r} exists with another `{name}`: it has {found[name]}, "
                f"the files {wanted[name]}",
                kind=Kind.NODE_EXISTS,
            )
    for name in ("units", "calendar", "scale_factor", "add_offset"):
        if name == "calendar" and array.units is not None:
            continue
        if node.attrs.get(name) != array.variable.attributes.get(name):
            raise AlreadyExistsError(
                f"the array {array.path!r} exists with the attribute {name} = "
                f"{node.attrs.get(name)!r}, in the files it is "
                f"{array.variable.attributes.get(name)!r}: the numbers would mean other things",
                kind=Kind.NODE_EXISTS,
            )


def _comparable(value: Any) -> str:
    """A part of an array's metadata as text; how hard a codec tries does not matter to readers."""
    text = json.dumps(value, default=str)

    def effortless(found: dict[str, Any]) -> dict[str, Any]:
        return {key: one for key, one in found.items() if key != "level"}

    return json.dumps(json.loads(text, object_hook=effortless))


def _grow(node: zarr.Array[Any], axis: int | None, end: int) -> None:
    if axis is not None and node.shape[axis] < end:
        node.resize(tuple(end if n == axis else size for n, size in enumerate(node.shape)))


def _write_values(
    node: zarr.Array[Any], array: PlannedArray, headers: Sequence[FileHeader], plan: VirtualPlan
) -> None:
    present = [one for number, one in enumerate(headers) if number not in array.absent]
    values = [recounted(header, array) for header in present]
    whole = [one for one in values if one is not None]
    assert len(whole) == len(values), "the plan was checked"
    if array.axis is None:
        if array.created:
            node[...] = whole[0]
        elif np.asarray(node[...]).tobytes() != whole[0].astype(node.dtype).tobytes():
            raise InvalidInputError(
                f"{present[0].source.location}: the values of {array.name!r} are others than those "
                f"of the array {array.path!r}"
            )
        return
    place = [slice(None)] * node.ndim
    series = plan.series[array.series]
    place[array.axis] = slice(series.first, series.end)
    node[tuple(place)] = np.concatenate(whole, axis=array.axis)


def _describe_groups(
    root: zarr.Group, groups: Mapping[str, Mapping[str, Json]], plan: VirtualPlan
) -> None:
    """Give new groups the attributes of the file's groups that they stand for."""
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
    """Files of each task: neighbours, about equally many each."""
    parts = max(1, min(count, parts))
    for part in range(parts):
        yield range(count * part // parts, count * (part + 1) // parts)
