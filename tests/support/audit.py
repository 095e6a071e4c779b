"""An independent audit of the bytes of a repository in generation `1`.

Reads FlatBuffers with the plain `flatbuffers` package, not with the project's codec, and checks
every file against the rules whose violation makes official readers lose data silently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import flatbuffers.encode
import flatbuffers.number_types as types
import flatbuffers.table
import zstandard

from airflow_provider_icechunk.engine.format.ids import encode_base32
from airflow_provider_icechunk.engine.storage.base import Storage

MAGIC = bytes.fromhex("494345f09fa78a4348554e4b")
SNAPSHOT, MANIFEST, LOG = 1, 2, 4
ROOT_ID = "1CECHNKREP0F1RSTCMT0"


class Table:
    """A FlatBuffers table, read slot by slot."""

    def __init__(self, buffer: bytes, position: int) -> None:
        self.raw = flatbuffers.table.Table(buffer, position)

    @classmethod
    def root(cls, payload: bytes) -> Table:
        return cls(payload, flatbuffers.encode.Get(types.UOffsetTFlags.packer_type, payload, 0))

    def has(self, slot: int) -> bool:
        return self.raw.Offset(4 + 2 * slot) != 0

    def _at(self, slot: int) -> int:
        offset = self.raw.Offset(4 + 2 * slot)
        assert offset, f"required slot {slot} is missing"
        return self.raw.Pos + offset

    def struct(self, slot: int, size: int) -> bytes:
        start = self._at(slot)
        return bytes(self.raw.Bytes[start : start + size])

    def number(self, slot: int, flags=types.Uint64Flags) -> int:
        return self.raw.Get(flags, self._at(slot)) if self.has(slot) else 0

    def text(self, slot: int) -> str:
        return self.raw.String(self._at(slot)).decode()

    def _vector(self, slot: int) -> tuple[int, int]:
        offset = self.raw.Offset(4 + 2 * slot)
        assert offset, f"required vector in slot {slot} is missing"
        return self.raw.Vector(offset), self.raw.VectorLen(offset)

    def structs(self, slot: int, size: int) -> list[bytes]:
        start, count = self._vector(slot)
        return [bytes(self.raw.Bytes[start + n * size :][:size]) for n in range(count)]

    def numbers(self, slot: int) -> tuple[int, ...]:
        return tuple(int.from_bytes(item, "little") for item in self.structs(slot, 4))

    def tables(self, slot: int) -> list[Table]:
        start, count = self._vector(slot)
        return [
            Table(self.raw.Bytes, self.raw.Indirect(start + 4 * number)) for number in range(count)
        ]

    def bytes_of(self, slot: int) -> bytes:
        start, count = self._vector(slot)
        return bytes(self.raw.Bytes[start : start + count])

    def union(self, slot: int) -> Table:
        return Table(self.raw.Bytes, self.raw.Indirect(self._at(slot)))


@dataclass(frozen=True)
class File:
    """A metadata file that passed the checks of its envelope."""

    table: Table
    size: int


class Auditor:
    """Checks everything that the branches and tags of a repository reach."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.chunk_sizes: dict[str, int] = {}

    def bytes(self, key: str) -> bytes:
        found = self.storage.get(key)
        assert found is not None, f"{key} is missing"
        return found.data

    def file(self, key: str, kind: int) -> File:
        data = self.bytes(key)
        assert data[:12] == MAGIC, key
        assert data[36] == 1, f"{key}: spec version {data[36]}"
        assert data[37] == kind, f"{key}: file type {data[37]}"
        assert data[38] == 1, f"{key}: compression {data[38]}"
        stream = zstandard.ZstdDecompressor().decompressobj()
        payload = stream.decompress(data[39:])
        assert stream.eof, key
        assert not stream.unused_data, key
        assert payload[4:8] == b"Ichk", key
        return File(Table.root(payload), len(data))

    def heads(self) -> Iterator[str]:
        for item in self.storage.scan("refs/"):
            if item.key.endswith("/ref.json"):
                yield json.loads(self.bytes(item.key))["snapshot"]

    def everything(self) -> int:
        """Audit all reachable snapshots; returns how many there are."""
        seen: set[str] = set()
        for head in self.heads():
            identity: str | None = head
            child_time: int | None = None
            while identity is not None:
                time, parent = self.snapshot(identity)
                assert child_time is None or time < child_time, "flushed_at does not increase"
                seen.add(identity)
                identity, child_time = parent, time
        return len(seen)

    def snapshot(self, identity: str) -> tuple[int, str | None]:
        table = self.file(f"snapshots/{identity}", SNAPSHOT).table
        assert encode_base32(table.struct(0, 12)) == identity
        parent = encode_base32(table.struct(1, 12)) if table.has(1) else None
        files = {
            encode_base32(raw[:12]): (
                int.from_bytes(raw[16:24], "little"),
                int.from_bytes(raw[24:28], "little"),
            )
            for raw in table.structs(6, 32)
        }
        ids = [raw[:12] for raw in table.structs(6, 32)]
        assert ids == sorted(set(ids)), "manifest files are not sorted"
        items = [item.text(0).encode() for item in table.tables(5)]
        assert items == sorted(set(items)), "metadata is not sorted"
        nodes = table.tables(2)
        paths = [node.text(1).encode() for node in nodes]
        assert paths == sorted(set(paths)), "nodes are not in the order of raw bytes"
        used = {name for node in nodes for name in self.node(node, files)}
        assert used == files.keys(), "manifest files are not exactly those in use"
        self.log(identity, parent, {node.struct(0, 8) for node in nodes})
        return table.number(3), parent

    def node(self, node: Table, files: Mapping[str, tuple[int, int]]) -> list[str]:
        document = json.loads(node.bytes_of(2))
        kind = node.number(3, types.Uint8Flags)
        assert document["node_type"] == {1: "array", 2: "group"}[kind]
        if kind == 2:
            return []
        data = node.union(4)
        grid = document["chunk_grid"]["configuration"]["chunk_shape"]
        stored = [
            (int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little"))
            for raw in data.structs(0, 16)
        ]
        real = list(zip(document["shape"], grid, strict=True))
        assert stored == real, f"stored shape {stored}, the document says {real}"
        counts = [-(-length // chunk) for length, chunk in stored]
        boxes, names = [], []
        for ref in data.tables(2):
            name = encode_base32(ref.struct(0, 12))
            assert name in files, f"manifest {name} is not listed"
            box = [
                (int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:], "little"))
                for raw in ref.structs(1, 8)
            ]
            rows = self.manifest(name, node.struct(0, 8), *files[name])
            assert rows, "an empty manifest"
            assert box == [(min(c), max(c) + 1) for c in zip(*rows, strict=True)], (box, rows)
            assert all(high <= count for (_, high), count in zip(box, counts, strict=True))
            boxes.append(box)
            names.append(name)
        for number, one in enumerate(boxes):
            for other in boxes[:number]:
                apart = any(a[1] <= b[0] or b[1] <= a[0] for a, b in zip(one, other, strict=True))
                assert apart, f"boxes overlap: {one} {other}"
        return names

    def manifest(self, name: str, owner: bytes, size: int, count: int) -> list[tuple[int, ...]]:
        file = self.file(f"manifests/{name}", MANIFEST)
        assert file.size == size, f"size_bytes {size}, the file has {file.size}"
        assert encode_base32(file.table.struct(0, 12)) == name
        arrays = file.table.tables(1)
        owners = [array.struct(0, 8) for array in arrays]
        assert owners == sorted(set(owners))
        assert sum(len(array.tables(1)) for array in arrays) == count
        rows: list[tuple[int, ...]] = []
        for array in arrays:
            refs = array.tables(1)
            found = [ref.numbers(0) for ref in refs]
            assert found == sorted(set(found)), "references are not sorted"
            for ref in refs:
                self.reference(ref)
            if array.struct(0, 8) == owner:
                rows = found
        return rows

    def reference(self, ref: Table) -> None:
        kinds = [ref.has(4), ref.has(5), ref.has(1)]
        assert kinds.count(True) == 1, "a reference is of exactly one kind"
        if ref.has(4):
            key = f"chunks/{encode_base32(ref.struct(4, 12))}"
            if key not in self.chunk_sizes:
                found = self.storage.head(key)
                assert found is not None, f"{key} is missing"
                self.chunk_sizes[key] = found.size
            assert ref.number(3) > 0
            assert ref.number(2) + ref.number(3) <= self.chunk_sizes[key]

    def log(self, identity: str, parent: str | None, nodes: set[bytes]) -> None:
        if parent is None:
            return
        table = self.file(f"transactions/{identity}", LOG).table
        assert encode_base32(table.struct(0, 12)) == identity
        lists = [table.structs(slot, 8) for slot in range(1, 7)]
        for ids in lists:
            assert ids == sorted(set(ids)), "a log is not sorted"
        assert set(lists[0]) | set(lists[1]) | set(lists[4]) | set(lists[5]) <= nodes
        assert not nodes & (set(lists[2]) | set(lists[3]))
        written = table.tables(7)
        owners = [entry.struct(0, 8) for entry in written]
        assert owners == sorted(set(owners))
        for entry in written:
            rows = [chunk.numbers(0) for chunk in entry.tables(1)]
            assert rows == sorted(set(rows)), "chunks of a log are not sorted"


def audit(storage: Storage) -> int:
    """Check every reachable file against the rules; returns the number of snapshots."""
    return Auditor(storage).everything()
