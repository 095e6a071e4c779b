"""Encode and decode times of generation `1` manifests and logs, in seconds.

Run from the repository root: `python -m benchmarks.codec [references]`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

import numpy as np

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, RefKind
from airflow_provider_icechunk.engine.format.ids import ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.model import Manifest, TransactionLog
from airflow_provider_icechunk.engine.format.v1 import logs
from airflow_provider_icechunk.engine.format.v1 import manifest_read as manifests
from airflow_provider_icechunk.engine.format.v1 import manifest_write as manifest_records
from airflow_provider_icechunk.engine.format.v1.codec import V1Codec

T = TypeVar("T")
_MANIFEST = ManifestId(bytes(12))
_SNAPSHOT = SnapshotId(bytes(12))
_NODE = NodeId(bytes(range(8)))


def grid(rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint32]]:
    side = np.arange(rows, dtype=np.uint32)
    return np.stack([side // 1000, side // 50 % 20, side % 50], axis=1)


def native(rows: int) -> ChunkRefs:
    random = np.random.default_rng(0)
    blank = ChunkRefs.blank(grid(rows), kind=RefKind.NATIVE)
    return ChunkRefs(
        index=blank.index,
        kind=blank.kind,
        chunk_id=random.integers(0, 256, (rows, 12), np.uint8),
        offset=blank.offset,
        length=random.integers(1, 1 << 22, rows, np.uint64),
        span=blank.span,
        etag=blank.etag,
        modified=blank.modified,
    )


def virtual(rows: int, locations: int) -> ChunkRefs:
    blank = ChunkRefs.blank(grid(rows), kind=RefKind.VIRTUAL)
    size = len("s3://bucket/some/where/file-0000000.nc")
    heap = b"".join(b"s3://bucket/some/where/file-%07d.nc" % n for n in range(locations))
    start = np.arange(rows, dtype=np.uint64) % np.uint64(locations) * np.uint64(size)
    return ChunkRefs(
        index=blank.index,
        kind=blank.kind,
        chunk_id=blank.chunk_id,
        offset=np.arange(rows, dtype=np.uint64) * np.uint64(4096),
        length=np.full(rows, 4096, np.uint64),
        span=np.stack([start, start + np.uint64(size)], axis=1),
        etag=blank.etag,
        modified=np.full(rows, 1_700_000_000, np.uint32),
        heap=heap,
    )


def inline(rows: int) -> ChunkRefs:
    random = np.random.default_rng(1)
    blank = ChunkRefs.blank(grid(rows), kind=RefKind.INLINE)
    sizes = random.integers(1, 200, rows, np.uint64)
    stop = np.cumsum(sizes, dtype=np.uint64)
    return ChunkRefs(
        index=blank.index,
        kind=blank.kind,
        chunk_id=blank.chunk_id,
        offset=blank.offset,
        length=sizes,
        span=np.stack([stop - sizes, stop], axis=1),
        etag=blank.etag,
        modified=blank.modified,
        heap=random.bytes(int(stop[-1])),
    )


def timed(work: Callable[[], T]) -> tuple[float, T]:
    best, result = float("inf"), work()
    for _ in range(3):
        begin = perf_counter()
        result = work()
        best = min(best, perf_counter() - begin)
    return best, result


def main(rows: int) -> None:
    codec = V1Codec()
    print(f"{rows} references      encode   decode   file encode   file decode       bytes")
    cases = {
        "native": native(rows),
        "virtual, 1000 files": virtual(rows, 1000),
        "virtual, all differ": virtual(rows, rows),
        "inline": inline(rows),
    }
    for name, refs in cases.items():
        manifest = Manifest(_MANIFEST, {_NODE: (refs,)})
        encoding, payload = timed(lambda m=manifest: bytes(manifest_records.encode(m)))
        decoding, _ = timed(lambda p=payload: manifests.decode(p, where="benchmark"))
        sealing, data = timed(lambda m=manifest: codec.encode_manifest(m, level=3))
        opening, _ = timed(lambda d=data: codec.decode_manifest(d, _MANIFEST, where="benchmark"))
        print(
            f"{name:20}{encoding:9.3f}{decoding:9.3f}{sealing:14.3f}{opening:14.3f}{len(data):12}"
        )
    log = TransactionLog(_SNAPSHOT, updated_chunks={_NODE: grid(rows)})
    encoding, payload = timed(lambda: bytes(logs.encode(log)))
    decoding, _ = timed(lambda: logs.decode(payload, where="benchmark"))
    print(f"{'log':20}{encoding:9.3f}{decoding:9.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
