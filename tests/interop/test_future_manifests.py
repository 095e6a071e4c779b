"""Manifests of later releases: what those add to them is read past and stored again, byte for byte.

Official schemas reserve a field of plain bytes in references, arrays and manifest_read for that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import flatbuffers
import numpy as np
import pytest
import zarr
from support import actors, audit

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.commit.writer import extended
from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.chunk_refs import (
    ChunkRefs,
    ETag,
    Index,
    Inline,
    LastModified,
    Native,
    Payload,
    Virtual,
)
from airflow_provider_icechunk.engine.format.codec import FileType
from airflow_provider_icechunk.engine.format.config.model import LocationCompression
from airflow_provider_icechunk.engine.format.ids import (
    ChunkId,
    ManifestId,
    NodeId,
    SnapshotId,
    decode_base32,
)
from airflow_provider_icechunk.engine.format.model import Manifest, Snapshot
from airflow_provider_icechunk.engine.format.v1 import manifest_read
from airflow_provider_icechunk.engine.format.v1.codec import V1Codec, V1Layout
from airflow_provider_icechunk.engine.format.v2.codec import V2Codec
from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.workers.codec import Fragment, encode_fragment
from airflow_provider_icechunk.exceptions import UnsupportedError

CODECS = {"1": V1Codec(), "2": V2Codec()}
LAYOUT = V1Layout()
OF_MANIFEST = b"of the manifest"
READER = """
import icechunk, json, os, sys, zarr
repo = icechunk.Repository.open(icechunk.local_filesystem_storage(sys.argv[1]))
root = zarr.open_group(repo.readonly_session("main").store, mode="r")
print(json.dumps({name: array[...].tolist() for name, array in root.arrays()}), flush=True)
os._exit(0)  # releases of 2.x have crashed while the interpreter went down, with all work done
"""


def of_reference(node: NodeId, index: Index) -> bytes:
    """What is added to a reference; every third one has nothing."""
    return b"" if sum(index) % 3 == 2 else b"reference %d of %s" % (sum(index), node.hex().encode())


def of_array(node: NodeId) -> bytes:
    return b"array " + node


class Future:
    """Writes manifest_read with the plain `flatbuffers` package, as a later release would."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(0)

    def payload(self, manifest: Manifest) -> bytes:
        builder = self.builder
        arrays = [self.array(node, parts) for node, parts in sorted(manifest.arrays.items())]
        vector = self.vector(arrays)
        extra = builder.CreateByteVector(OF_MANIFEST)
        builder.StartObject(5)
        self.struct(0, manifest.id)
        builder.PrependUOffsetTRelativeSlot(1, vector, 0)
        builder.PrependUint8Slot(3, 0, 1)
        builder.PrependUOffsetTRelativeSlot(4, extra, 0)
        builder.Finish(builder.EndObject(), file_identifier=b"Ichk")
        return bytes(builder.Output())

    def array(self, node: NodeId, parts: tuple[ChunkRefs, ...]) -> int:
        rows = [
            self.reference(tuple(index), refs[row], of_reference(node, tuple(index)))
            for refs in parts
            for row, index in enumerate(refs.index.tolist())
        ]
        vector = self.vector(rows)
        extra = self.builder.CreateByteVector(of_array(node))
        self.builder.StartObject(3)
        self.struct(0, node)
        self.builder.PrependUOffsetTRelativeSlot(1, vector, 0)
        self.builder.PrependUOffsetTRelativeSlot(2, extra, 0)
        return int(self.builder.EndObject())

    def reference(self, index: Index, payload: Payload | None, extra: bytes) -> int:
        builder = self.builder
        builder.StartVector(4, len(index), 4)
        for number in reversed(index):
            builder.PrependUint32(number)
        slots = {0: builder.EndVector()}
        if extra:
            slots[9] = builder.CreateByteVector(extra)
        match payload:
            case Inline(data):
                slots[1] = builder.CreateByteVector(data)
            case Virtual(location, _, _, checksum):
                slots[5] = builder.CreateString(location)
                if isinstance(checksum, ETag):
                    slots[6] = builder.CreateString(checksum.value)
        builder.StartObject(10)
        if isinstance(payload, Native | Virtual):
            builder.PrependUint64Slot(2, payload.offset, 0)
            builder.PrependUint64Slot(3, payload.length, 0)
        if isinstance(payload, Native):
            self.struct(4, payload.chunk_id)
        if isinstance(payload, Virtual) and isinstance(payload.checksum, LastModified):
            builder.PrependUint32Slot(7, payload.checksum.seconds, 0)
        for slot, at in slots.items():
            builder.PrependUOffsetTRelativeSlot(slot, at, 0)
        return int(builder.EndObject())

    def struct(self, slot: int, value: bytes) -> None:
        self.builder.Prep(1, len(value))
        for byte in reversed(value):
            self.builder.PrependUint8(byte)
        self.builder.PrependStructSlot(slot, self.builder.Offset(), 0)

    def vector(self, tables: list[int]) -> int:
        self.builder.StartVector(4, len(tables), 4)
        for table in reversed(tables):
            self.builder.PrependUOffsetTRelative(table)
        return int(self.builder.EndVector())


def reference(number: int) -> Payload:
    """A reference of one of five sorts."""
    location = f"s3://bucket/a/rather/long/key/of/a/file/{number:05}.nc"
    payloads: list[Payload] = [
        Native(ChunkId(b"c" * 12), 5, 7),
        Inline(b"bytes"),
        Virtual(location, 1, 2, None),
        Virtual(location, 1, 2, ETag("tag")),
        Virtual(location, 1, 2, LastModified(77)),
    ]
    return payloads[number % 5]


def everything() -> Manifest:
    """References of every kind and checksum, in arrays of two ranks."""
    rows = [((number,), reference(number)) for number in range(400)]
    flat = [((number // 4, number % 4), reference(number)) for number in range(20)]
    return Manifest(
        ManifestId(b"m" * 12),
        {
            NodeId(b"a" * 8): (ChunkRefs.from_items(1, rows),),
            NodeId(b"b" * 8): (ChunkRefs.from_items(2, flat),),
            NodeId(b"c" * 8): (ChunkRefs.from_items(2, flat[:1]),),
        },
    )


Seen = tuple[bytes | None, dict[bytes, tuple[bytes | None, dict[Index, bytes]]]]


def extra_of(table: audit.Table, slot: int) -> bytes | None:
    return table.bytes_of(slot) if table.has(slot) else None


def added(payload: bytes) -> Seen:
    """What is added in a manifest: to itself, to its arrays and to their references."""
    root = audit.Table.root(payload)
    arrays = {
        table.struct(0, 8): (
            extra_of(table, 2),
            {ref.numbers(0): extra_of(ref, 9) or b"" for ref in table.tables(1)},
        )
        for table in root.tables(1)
    }
    return extra_of(root, 4), arrays


def values(manifest: Manifest) -> dict[tuple[NodeId, Index], Payload | None]:
    return {
        (node, tuple(index)): refs[row]
        for node, parts in manifest.arrays.items()
        for refs in parts
        for row, index in enumerate(refs.index.tolist())
    }


@pytest.mark.parametrize(
    ("codec", "compressed"),
    [
        (V1Codec(), False),
        (V2Codec(), False),
        (V2Codec(compression=LocationCompression(min_num_chunks=1)), True),
    ],
    ids=["1", "2", "2-compressed"],
)
def test_what_later_releases_added_is_written_again(
    codec: V1Codec | V2Codec, compressed: bool
) -> None:
    plain = everything()
    future = Future().payload(plain)
    found = manifest_read.decode(future, where="x")
    assert values(found) == values(plain)
    assert found.unknown is None
    data = codec.encode_manifest(found, level=1)
    again = envelope.unpack(data, where="x", expected=FileType.MANIFEST, limit=1 << 20).payload
    assert added(again) == added(future)
    assert audit.Table.root(again).has(2) == compressed
    assert values(codec.decode_manifest(data, plain.id, where="x")) == values(plain)


def test_rows_that_are_taken_joined_or_laid_over_keep_what_was_added() -> None:
    found = manifest_read.decode(Future().payload(everything()), where="x").of(NodeId(b"a" * 8), 1)
    edits = ChunkRefs.from_items(1, [((1,), Inline(b"new")), ((3,), None), ((99,), Inline(b""))])
    merged = found.overlay(edits).without_erased().take(slice(0, 10)).compact()
    assert merged.extra is not None
    kept = {
        tuple(index): bytes(merged.heap[int(start) : int(stop)])
        for index, (start, stop) in zip(merged.index.tolist(), merged.extra, strict=True)
    }
    wanted = {(n,): of_reference(NodeId(b"a" * 8), (n,)) for n in (0, 1, 2, 4, 5, 6, 7, 8, 9, 10)}
    assert kept == {**wanted, (1,): b""}
    assert edits.overlay(found).extra is not None
    assert edits.extra is None


def test_fields_of_two_manifests_that_differ_are_never_mixed() -> None:
    node = NodeId(b"a" * 8)
    plain = Manifest(ManifestId(b"n" * 12), {node: everything().arrays[node]})
    one, same = (replace(plain, extra=b"1", extras={node: b"x"}) for _ in range(2))
    assert extended(plain, {node: [one, plain, same]}).extra == b"1"
    assert extended(plain, {node: [one, plain, same]}).extras == {node: b"x"}
    assert extended(plain, {node: [plain]}) is plain
    for other in (replace(plain, extra=b"2"), replace(plain, extras={node: b"y"})):
        with pytest.raises(UnsupportedError, match="different fields"):
            extended(plain, {node: [one, other]})


def test_references_with_added_fields_are_not_handed_over_without_them() -> None:
    found = manifest_read.decode(Future().payload(everything()), where="x").of(NodeId(b"a" * 8), 1)
    fragment = Fragment(SnapshotId(bytes(12)), "job", "worker", {NodeId(b"a" * 8): found})
    with pytest.raises(UnsupportedError, match="newer version"):
        encode_fragment(fragment)


def open_head(folder: Path, generation: str) -> Snapshot:
    storage = icechunk.local_filesystem_storage(str(folder))
    text = icechunk.Repository.open(storage).lookup_branch("main")
    identity = SnapshotId(decode_base32(text, 12))
    data = (folder / LAYOUT.snapshot(identity)).read_bytes()
    return CODECS[generation].decode_snapshot(data, identity, where="s")


def payloads(folder: Path, snapshot: Snapshot) -> dict[str, bytes]:
    """The manifest of each array, unpacked."""
    found = {}
    for path, node in snapshot.nodes.items():
        if node.array is not None:
            (ref,) = node.array.manifests
            data = (folder / LAYOUT.manifest(ref.id)).read_bytes()
            found[path] = envelope.unpack(
                data, where=path, expected=FileType.MANIFEST, limit=1 << 20
            ).payload
    return found


def make_future(folder: Path, generation: str) -> None:
    """Replace every manifest of the newest snapshot by one that a later release wrote."""
    storage, codec = LocalStorage(folder), CODECS[generation]
    snapshot = open_head(folder, generation)
    sizes = {}
    for identity in snapshot.manifest_files:
        key = LAYOUT.manifest(identity)
        manifest = codec.decode_manifest((folder / key).read_bytes(), identity, where=key)
        data = envelope.pack(
            FileType.MANIFEST,
            Future().payload(manifest),
            spec_version=int(generation),
            level=3,
            writer="ic-9.9",
        )
        storage.put(key, data, expect=Anything())
        sizes[identity] = len(data)
    files = {
        identity: replace(file, size_bytes=sizes[identity])
        for identity, file in snapshot.manifest_files.items()
    }
    data = codec.encode_snapshot(replace(snapshot, manifest_files=files))
    storage.put(LAYOUT.snapshot(snapshot.id), data, expect=Anything())


def official(python: str, folder: Path) -> Mapping[str, list[float]]:
    done = subprocess.run(
        [python, "-c", READER, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen: Mapping[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.parametrize(
    ("generation", "release"),
    [
        ("1", "1.1"),
        pytest.param("1", "2", marks=actors.needs_icechunk2),
        pytest.param("2", "2", marks=actors.needs_icechunk2),
    ],
)
def test_a_commit_that_rewrites_a_future_manifest_loses_nothing(
    generation: str, release: str, tmp_path: Path
) -> None:
    folder = tmp_path / "repo"
    storage = icechunk.local_filesystem_storage(str(folder))
    repo = icechunk.Repository.create(storage, spec_version=generation)
    session = repo.writable_session("main")
    root = zarr.create_group(session.store)
    for name, size in (("native", 8000), ("inline", 16)):
        array = root.create_array(
            name, shape=(size,), chunks=(size // 8,), dtype="f8", compressors=None
        )
        array[:] = np.arange(size)
    session.commit("written")
    make_future(folder, generation)
    before = payloads(folder, open_head(folder, generation))
    repo = icechunk.Repository.open(storage)
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="r+")
    for name, size in (("native", 8000), ("inline", 16)):
        assert root[name][:].tolist() == list(range(size))
        root[name][0] = 5
    session.commit("rewritten")
    after = payloads(folder, open_head(folder, generation))
    for path, payload in before.items():
        extra, arrays = added(payload)
        ((node, (of_it, references)),) = arrays.items()
        assert extra == OF_MANIFEST
        assert references[(0,)]
        expected = {**references, (0,): b""}
        assert added(after[path]) == (extra, {node: (of_it, expected)})
        assert after[path] != payload
    python = sys.executable if release == "1.1" else actors.PYTHON
    assert python is not None
    seen = official(python, folder)
    assert seen["native"] == [5, *range(1, 8000)]
    assert seen["inline"] == [5, *range(1, 16)]
