"""Arrow schemas of `draft`, and Parquet files read within bounds. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_icechunk.engine.budget import Purse
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, Kind

from .pages import survey

_MAGIC = b"PAR1"
_DIGEST = "apic.digest"
_ARROW = b"ARROW:schema"
_MOST_ROWS = 1 << 32
_BATCH = 1 << 16
_ELEMENT_MEMORY = 100
"""Bytes of an item of a list, which becomes a Python object."""
_ENTRY_MEMORY = 24
"""Bytes of a value of a dictionary, in addition to the page that it is in."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Memory that reading takes in addition to the texts themselves."""

    row: int
    value: int


_BROKEN = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, OverflowError)


def _described(name: str, kind: Any, description: str, *, nullable: bool = True) -> Any:
    return pa.field(name, kind, nullable=nullable, metadata={"description": description})


def _required(name: str, kind: Any) -> Any:
    return pa.field(name, kind, nullable=False)


_CHUNK_GRID = pa.struct(
    [
        _required("name", pa.string()),
        _required("configuration", pa.struct([_required("chunk_shape", pa.list_(pa.uint16()))])),
    ]
)
_CHUNK_KEY_ENCODING = pa.struct(
    [
        _required("name", pa.string()),
        _required("configuration", pa.struct([_required("separator", pa.string())])),
    ]
)
_CODEC = pa.struct([_required("name", pa.string()), pa.field("configuration", pa.binary())])
_ARRAY_METADATA = pa.struct(
    [
        _required("shape", pa.list_(pa.uint16())),
        _required("data_type", pa.string()),
        pa.field("fill_value", pa.binary()),
        pa.field("dimension_names", pa.list_(pa.string())),
        pa.field("chunk_grid", _CHUNK_GRID),
        pa.field("chunk_key_encoding", _CHUNK_KEY_ENCODING),
        pa.field("codecs", pa.list_(_CODEC)),
    ]
)
_ATTRIBUTES_REFERENCE = pa.struct(
    [
        _required("attrs_file", pa.string()),
        _required("row", pa.uint16()),
        pa.field("flags", pa.uint16()),
    ]
)
_INVENTORY = pa.struct(
    [
        _required("inventory_file", pa.string()),
        _required("row", pa.uint16()),
        _required("extent", pa.list_(pa.list_(pa.uint16(), 2))),
        pa.field("flags", pa.uint16()),
    ]
)
STRUCTURE = pa.schema(
    [
        _described("id", pa.uint16(), "unique identifier for the node", nullable=False),
        _described("type", pa.string(), "array or group", nullable=False),
        _described("path", pa.string(), "path to the node within the store", nullable=False),
        _described("array_metadata", _ARRAY_METADATA, "All the Zarr array metadata"),
        _described(
            "inline_attrs", pa.binary(), "user-defined attributes, stored inline with this entry"
        ),
        _described(
            "attrs_reference",
            _ATTRIBUTES_REFERENCE,
            "user-defined attributes, stored in a separate attributes file",
        ),
        pa.field("inventories", pa.list_(_INVENTORY)),
    ]
)
ATTRIBUTES = pa.schema([_required("attrs", pa.binary())])
"""This project's choice: the sketch has the folder and references to rows, but no schema."""
INVENTORY = pa.schema(
    [
        _required("id", pa.uint32()),
        _required("array_id", pa.uint32()),
        _required("coord", pa.binary()),
        pa.field("inline_data", pa.binary()),
        pa.field("chunk_file", pa.string()),
        pa.field("offset", pa.uint64()),
        _required("length", pa.uint32()),
    ]
)


def write_table(table: Any, notes: Mapping[str, str], *, level: int) -> bytes:
    """A Parquet file; `notes` become entries of its footer, with a digest of its content.

    Checksums of pages do not cover the footer, which decides what the pages mean.
    """
    try:
        table.validate(full=True)
        plain = _rendered(table, notes, level)
        read = _columns(pq.ParquetFile(pa.BufferReader(plain)), table.schema.names)
        return _rendered(table, {**notes, _DIGEST: _digest(read, notes)}, level)
    except _BROKEN as error:
        raise InvalidInputError(
            f"this cannot be stored as Parquet: {str(error)[:200]}", kind=Kind.INVALID_METADATA
        ) from None


def _rendered(table: Any, notes: Mapping[str, str], level: int) -> bytes:
    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata(dict(notes))
    pq.write_table(
        table, sink, compression="zstd", compression_level=level, write_page_checksum=True
    )
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _columns(file: Any, names: list[str]) -> Any:
    return pa.Table.from_batches(
        list(file.iter_batches(_BATCH, columns=names)), schema=_chosen(file.schema_arrow, names)
    )


def _digest(table: Any, notes: Mapping[str, str]) -> str:
    """A digest of values, types and notes, independent of how the rows are divided."""
    found = blake2b(repr(sorted(notes.items())).encode(), digest_size=16)
    sink = pa.BufferOutputStream()
    whole = table.replace_schema_metadata(None).combine_chunks()
    with pa.ipc.new_stream(sink, whole.schema) as stream:
        stream.write_table(whole)
    found.update(sink.getvalue())
    return found.hexdigest()


def read_table(
    data: bytes, schema: Any, *, where: str, limit: int, cost: Cost, memory: Purse
) -> tuple[Any, dict[str, str]]:
    """The columns of `schema` in a Parquet file, of any type, and the notes of its footer.

    `memory` is charged the `cost` of rows and values before anything is unpacked. Long values that
    many rows share are measured while they are still shared.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        raise FormatError(f"{where}: not a Parquet file (the first {len(_MAGIC)} bytes are wrong)")
    try:
        file = _opened(data)
        _check_claims(file.metadata, limit, where)
        present = file.schema_arrow
        names = [field.name for field in schema if field.name in present.names]
        missing = [f.name for f in schema if f.name not in names and not f.nullable]
        if missing:
            raise FormatError(f"{where}: has no column {missing[0]!r}")
        _pay(data, file, names, cost, memory, where)
        batches, total = [], 0
        for batch in file.iter_batches(_batch_size(file.metadata, data, limit), columns=names):
            total += batch.nbytes
            if total > limit:
                raise _too_large(where, limit)
            batch.validate(full=True)
            batches.append(batch)
        table = pa.Table.from_batches(batches, schema=_chosen(present, names))
        stored = file.metadata.metadata or {}
        notes = {key.decode(): value.decode() for key, value in stored.items() if key != _ARROW}
        digest = notes.pop(_DIGEST, None)
        if digest is not None and digest != _digest(table, notes):
            raise FormatError(f"{where}: it does not say what its digest was made of")
        return table, notes
    except _BROKEN as error:
        raise broken(where, error) from None


def _opened(data: bytes, dictionaries: list[str] | None = None) -> Any:
    """A file whose footer cannot announce more than it can contain."""
    return pq.ParquetFile(
        pa.BufferReader(data),
        read_dictionary=dictionaries,
        page_checksum_verification=True,
        thrift_string_size_limit=max(len(data), 1),
        thrift_container_size_limit=max(len(data), 1),
    )


def _pay(data: bytes, file: Any, names: list[str], cost: Cost, memory: Purse, where: str) -> None:
    """Charge for rows, values and texts; only page headers and dictionaries are read."""
    leaves = [file.schema.column(number) for number in range(len(file.schema))]
    columns = [
        (leaf, pages)
        for leaf, pages in zip(leaves, survey(data, where=where), strict=False)
        if _is_below(leaf.path, names)
    ]
    rows = file.metadata.num_rows
    memory.charge(cost.row * rows)
    for leaf, pages in columns:
        memory.charge(cost.value * min(pages.values, rows) + pages.unpacked)
        memory.charge(_ELEMENT_MEMORY * max(pages.values - rows, 0) + _ENTRY_MEMORY * pages.entries)
        if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY":
            memory.charge(leaf.length * pages.values)
    texts = [(leaf.path, one) for leaf, one in columns if leaf.physical_type == "BYTE_ARRAY"]
    worst = sum(one.values * (one.unpacked if one.shares else one.largest) for _, one in texts)
    if worst <= memory.left:
        return
    if any(one.shares and one.values * one.unpacked > memory.left for _, one in texts):
        raise memory.refusal()
    shared = _opened(data, [path for path, _ in texts])
    if not all(_keeps_sharing(shared.schema_arrow.field(name).type) for name in names):
        raise memory.refusal()
    for batch in shared.iter_batches(_BATCH, columns=names):
        memory.charge(sum(_shared_bytes(column) for column in batch.columns))


def _keeps_sharing(kind: Any) -> bool:
    """Whether texts of a type are dictionaries. The type may be any that the file asks for."""
    if pa.types.is_nested(kind):
        return all(_keeps_sharing(kind.field(number).type) for number in range(kind.num_fields))
    return any(
        is_so(kind)
        for is_so in (
            pa.types.is_dictionary,
            pa.types.is_primitive,
            pa.types.is_fixed_size_binary,
            pa.types.is_null,
        )
    )


def _is_below(path: str, names: list[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in names)


def _shared_bytes(column: Any) -> int:
    """Bytes of texts that are stored once if every row gets its own copy."""
    if pa.types.is_dictionary(column.type):
        sizes = pc.binary_length(column.dictionary)
        return int(pc.sum(sizes.take(column.indices)).as_py() or 0)
    if pa.types.is_struct(column.type):
        return sum(_shared_bytes(part) for part in column.flatten())
    if hasattr(column, "values"):
        return _shared_bytes(column.flatten())
    return 0


def broken(where: str, error: Exception) -> FormatError:
    """A `FormatError` with pyarrow's description of the problem."""
    return FormatError(f"{where}: not a readable Parquet file ({str(error)[:200]})")


def _chosen(schema: Any, names: list[str]) -> Any:
    return pa.schema([schema.field(name) for name in names])


def _check_claims(metadata: Any, limit: int, where: str) -> None:
    claimed = sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
    if metadata.num_rows > min(_MOST_ROWS, limit) or claimed > limit:
        raise _too_large(where, limit)


def _batch_size(metadata: Any, data: bytes, limit: int) -> int:
    """So few rows that a batch stays within the limit even if each is as large as the largest."""
    claimed = sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
    return int(max(1, min(_BATCH, 4 * limit // max(claimed, len(data), 1))))


def _too_large(where: str, limit: int) -> FormatError:
    return FormatError(
        f"{where}: unpacks to more than the limit of {limit} bytes", kind=Kind.LIMIT_EXCEEDED
    )
