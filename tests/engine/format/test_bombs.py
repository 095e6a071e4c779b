"""A small file gets little memory and little time, whatever it asks for, with no limit of its own.

They are opened in another process, so that the peak of memory is their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zstandard
from support import bombs
from support.bombs import BOMBS, CROWDED

from airflow_provider_icechunk.engine import budget
from airflow_provider_icechunk.engine.budget import (
    FREE_BYTES,
    RATIO,
    Allowance,
    Purse,
    allowing,
    current,
    for_web_pages,
)
from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, RefKind
from airflow_provider_icechunk.engine.format.ids import ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.legacy.alpha.codec import AlphaCodec
from airflow_provider_icechunk.engine.format.legacy.draft.codec import DraftCodec
from airflow_provider_icechunk.engine.format.model import (
    Manifest,
    Node,
    Snapshot,
    TransactionLog,
    in_order,
)
from airflow_provider_icechunk.engine.format.v1.codec import V1Codec
from airflow_provider_icechunk.engine.format.v2.codec import V2Codec
from airflow_provider_icechunk.engine.format.wire import zstd
from airflow_provider_icechunk.engine.format.zarr_metadata import parse_node
from airflow_provider_icechunk.engine.workers.codec import (
    Fragment,
    decode_fragment,
    encode_fragment,
)
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, Kind

pytestmark = pytest.mark.xdist_group("bombs")  # making them costs more than opening them

MOST_BYTES = 128 << 20
MOST_SECONDS = 1.0
SMALL = 256 << 10
SLACK = 12 << 20
"""What opening a file takes beside the budget."""


Outcome = tuple[set[str], int, float]
"""How it ended, by how many bytes the peak of memory grew, and seconds of a processor."""


def opened(names: Iterable[str], folder: Path, *, copies: int = 1) -> dict[str, Outcome]:
    """What opening bombs in a fresh process leads to."""
    arguments = []
    for number, name in enumerate(names):
        data = {**BOMBS, **CROWDED}[name][0]()
        assert len(data) <= SMALL or name.startswith("config/")
        path = folder / str(number)
        path.write_bytes(data)
        arguments.append(f"{name}={path}")
    tests = Path(__file__).parents[2]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ICECHUNK_MAX")}
    folders = os.pathsep.join(filter(None, [kept.get("PYTHONPATH"), str(tests)]))
    done = subprocess.run(
        [sys.executable, str(tests / "support" / "bombs.py"), str(copies), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**kept, "PYTHONPATH": folders},
    )
    results = map(json.loads, done.stdout.splitlines())
    return {name: (set(kinds), grown, seconds) for name, kinds, grown, seconds in results}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return opened(BOMBS, tmp_path_factory.mktemp("bombs"))


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_takes_memory_or_time(
    name: str, outcomes: dict[str, Outcome]
) -> None:
    kinds, grown, seconds = outcomes[name]
    assert "read" not in kinds
    assert grown < MOST_BYTES
    assert seconds < MOST_SECONDS


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("1/snapshot-window", 64 << 20),
        ("alpha/snapshot-window", 64 << 20),
        ("fragment/window", 16 << 20),
    ],
)
def test_the_window_that_a_frame_is_unpacked_through_is_paid_from_the_budget(
    name: str, budget: int, outcomes: dict[str, Outcome]
) -> None:
    _, grown, _ = outcomes[name]
    assert grown < budget + SLACK


def test_a_small_frame_may_ask_for_a_large_window() -> None:
    """A stream of the highest level does, whatever it holds."""
    compressor = zstandard.ZstdCompressor(level=22).compressobj()
    frame = compressor.compress(b"payload") + compressor.flush()
    assert zstandard.get_frame_parameters(frame).window_size == 128 << 20
    with Purse(len(frame), where="x", allowance=Allowance(1 << 20)) as purse:
        assert zstd.decompress(frame, limit=1 << 20, where="x", purse=purse) == b"payload"
        assert purse.left == (1 << 20) - len(b"payload")


@pytest.fixture(scope="module")
def crowds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return opened(CROWDED, tmp_path_factory.mktemp("crowds"))


@pytest.mark.parametrize("name", CROWDED)
def test_many_small_arrays_in_a_small_file_take_little_time(
    name: str, crowds: dict[str, Outcome]
) -> None:
    _, grown, seconds = crowds[name]
    assert grown < MOST_BYTES
    assert seconds < MOST_SECONDS


@pytest.mark.long
@pytest.mark.parametrize("megabytes", [30, 12, 3])
@pytest.mark.parametrize("name", [one for one in BOMBS if one.startswith(("1/", "2/", "alpha/"))])
def test_what_unpacks_to_less_takes_no_more(
    name: str, megabytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The payload itself fits the budget; what is made of it counts as well."""
    monkeypatch.setattr(bombs, "NEARLY", megabytes << 20)
    _, grown, seconds = opened([name], tmp_path)[name]
    assert grown < MOST_BYTES
    assert seconds < MOST_SECONDS


@pytest.mark.parametrize("name", ["1/manifest-references", "alpha/log", "2/repo-4"])
def test_eight_at_once_take_no_more_than_one(name: str, tmp_path: Path) -> None:
    kinds, grown, _ = opened([name], tmp_path, copies=8)[name]
    assert kinds == {"FormatError"}
    assert grown < MOST_BYTES


def refs(rows: int, kind: RefKind) -> ChunkRefs:
    """References as regular as they get, and so the best compressed ones that are honest."""
    index = np.stack(np.unravel_index(np.arange(rows), (1000, rows // 1000)), 1).astype(np.uint32)
    blank = ChunkRefs.blank(index, kind=kind)
    heap = b"s3://bucket/" + b"a-long-name/" * 20 if kind is RefKind.VIRTUAL else bytes(8)
    return replace(
        blank,
        offset=np.arange(rows, dtype=np.uint64) * (4096 if kind is RefKind.VIRTUAL else 0),
        length=np.full(rows, 4096 if kind is RefKind.VIRTUAL else len(heap), np.uint64),
        span=np.tile(np.array([[0, len(heap)]], np.uint64), (rows, 1)),
        heap=heap,
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", [RefKind.VIRTUAL, RefKind.INLINE])
@pytest.mark.parametrize("codec", [V1Codec(), V2Codec(), AlphaCodec()], ids=["1", "2", "alpha"])
def test_an_honest_file_with_a_million_references_is_read(
    codec: V1Codec | V2Codec | AlphaCodec, kind: RefKind
) -> None:
    node, identity = NodeId(bytes(8)), ManifestId(bytes(12))
    data = codec.encode_manifest(Manifest(identity, {node: (refs(1_000_000, kind),)}), level=3)
    found = codec.decode_manifest(data, identity, where="m")
    assert len(found) == 1_000_000


def test_an_honest_fragment_of_regular_references_is_read() -> None:
    node = NodeId(bytes(8))
    fragment = Fragment(SnapshotId(bytes(12)), "j", "w", {node: refs(400_000, RefKind.VIRTUAL)})
    found = decode_fragment(encode_fragment(fragment), where="f")
    assert len(found) == 400_000


def test_an_honest_log_of_a_commit_with_many_chunks_is_read() -> None:
    index = refs(400_000, RefKind.INLINE).index
    log = TransactionLog(SnapshotId(bytes(12)), updated_chunks={NodeId(bytes(8)): index})
    for codec in (V1Codec(), V2Codec(), AlphaCodec()):
        data = codec.encode_log(log, level=3)
        found = codec.decode_log(data, log.id, where="l")
        assert len(found.updated_chunks[NodeId(bytes(8))]) == len(index)


def test_both_limits_are_settings_of_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    data = V1Codec().encode_manifest(
        Manifest(ManifestId(bytes(12)), {NodeId(bytes(8)): (refs(20_000, RefKind.INLINE),)}),
        level=3,
    )

    def read() -> int:
        return len(V1Codec().decode_manifest(data, ManifestId(bytes(12)), where="m"))

    assert read() == 20_000
    monkeypatch.setenv(FREE_BYTES, "1000")
    assert read() == 20_000  # less than 200 times its size
    monkeypatch.setenv(RATIO, "2")
    with pytest.raises(FormatError, match=FREE_BYTES) as caught:
        read()
    assert caught.value.kind is Kind.LIMIT_EXCEEDED
    monkeypatch.setenv(FREE_BYTES, str(100 << 20))
    assert read() == 20_000
    monkeypatch.setenv(RATIO, "many")
    with pytest.raises(InvalidInputError, match=RATIO):
        read()


def test_a_document_that_was_read_before_is_refused_by_a_smaller_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = b'{"zarr_format": 3, "node_type": "group", "attributes": {"a": [%s]}}' % (
        b"1," * 99 + b"1"
    )
    parse_node(document)
    monkeypatch.setenv(FREE_BYTES, "1000")
    with pytest.raises(InvalidInputError, match=FREE_BYTES):
        parse_node(document)


def test_a_smaller_budget_holds_in_the_threads_that_work_for_a_page() -> None:
    with allowing(for_web_pages()):
        found = run_all(lambda _: current(), range(8), at_once=4)
    assert {one.free_bytes for one in found} == {16 << 20}
    assert current().free_bytes == 64 << 20


def test_files_that_are_decoded_at_once_wait_for_each_other_and_never_for_ever() -> None:
    """Nobody is done before everybody who can be is in the middle of it, and all others wait."""
    held, most, lock = [0], [0], threading.Lock()
    shared, inside, go_on = budget._SHARED, set[int](), threading.Event()

    def decode(size: int) -> None:
        with Purse(1, where="x", allowance=Allowance(64 << 20)) as purse:
            for _ in range(4):
                purse.charge(size // 4)
                with lock:
                    held[0] += size // 4
                    most[0] = max(most[0], held[0])
            with shared._changed:
                inside.add(threading.get_ident())
                shared._changed.notify_all()
            go_on.wait(60)
            with lock:
                held[0] -= size

    sizes = [60 << 20, 30 << 20, 4 << 20, 40 << 20] * 8
    threads = [threading.Thread(target=decode, args=(size,), daemon=True) for size in sizes]
    for thread in threads:
        thread.start()
    with shared._changed:
        assert shared._changed.wait_for(lambda: len(inside | shared._waiting) == len(sizes), 60)
        assert shared._waiting
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert most[0] <= 2 * (64 << 20)


def test_what_is_charged_while_nothing_is_decoded_keeps_nobody_waiting() -> None:
    """Whoever never gives back would stop every other thread of the process for ever."""
    Purse(1, where="x", allowance=Allowance(64 << 20)).charge(50 << 20)
    done = threading.Event()

    def decode() -> None:
        with Purse(1, where="y", allowance=Allowance(64 << 20)) as purse:
            purse.charge(40 << 20)
        done.set()

    threading.Thread(target=decode, daemon=True).start()
    assert done.wait(10)


def test_an_honest_snapshot_with_many_small_groups_is_read() -> None:
    """As many as generation `draft` can number, as alike as they get."""
    document = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()
    nodes = [Node(NodeId(n.to_bytes(8, "big")), f"/g{n}", document) for n in range(1, 60_000)]
    for codec, size in ((DraftCodec(), 16), (V1Codec(), 12), (V2Codec(), 12)):
        snapshot = Snapshot(SnapshotId(bytes(size)), None, 1, "m", {}, in_order(nodes))
        data = codec.encode_snapshot(snapshot, level=3)
        found = codec.decode_snapshot(data, snapshot.id, where="s")
        assert len(found.nodes) == len(nodes)
