"""Work is handed out as JSON, comes back as fragments, and becomes one commit."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arrays import GROUP, array, contents, put
from support.maintenance import GENERATIONS, layout_of
from support.model import node_ids, object_ids, plain_references, reference_items, texts
from support.recording import RecordingStorage
from support.writers import run_apart

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Inline, RefKind
from airflow_provider_icechunk.engine.format.ids import NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.wire.zstd import compress, decompress
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.workers.codec import (
    Fragment,
    decode_fragment,
    encode_fragment,
)
from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit
from airflow_provider_icechunk.exceptions import (
    FormatError,
    FragmentError,
    InvalidInputError,
    Kind,
    SessionError,
)

LARGE = b"more than what is stored inline" * 40


@st.composite
def fragments(draw: st.DrawFn) -> Fragment:
    arrays = {}
    for node_id in sorted(draw(st.sets(node_ids, max_size=3))):
        rank, items = draw(reference_items(erased=True))
        sound = {
            index: payload
            for index, payload in items.items()
            if payload is None or _is_sound(payload)
        }
        arrays[node_id] = ChunkRefs.from_items(rank, sound.items())
    return Fragment(SnapshotId(draw(object_ids)), draw(texts), draw(texts), arrays)


def _is_sound(payload: Any) -> bool:
    """What a worker can write: chunks with bytes, at places that exist."""
    if isinstance(payload, Inline):
        return bool(payload.data)
    located = getattr(payload, "location", "somewhere")
    return bool(located) and payload.length > 0 and payload.offset + payload.length < 1 << 62


def plain(fragment: Fragment) -> dict[str, Any]:
    arrays = {node: plain_references(refs) for node, refs in fragment.arrays.items()}
    return {"of": (fragment.base, fragment.job, fragment.worker), "arrays": arrays}


@settings(max_examples=100)
@given(fragments())
def test_a_fragment_comes_back_from_its_bytes_as_it_was(fragment: Fragment) -> None:
    assert plain(decode_fragment(encode_fragment(fragment), where="here")) == plain(fragment)


def spoil(payload: bytes, edits: list[tuple[int, int]], cut: int | None) -> bytes:
    spoilt = bytearray(payload)
    for place, value in edits:
        spoilt[place % len(spoilt)] = value
    return bytes(spoilt if cut is None else spoilt[: cut % (len(spoilt) + 1)])


def check_spoilt(
    fragment: Fragment, edits: list[tuple[int, int]], cut: int | None, *, inside: bool
) -> None:
    data = encode_fragment(fragment)
    if inside:
        payload = decompress(data, limit=1 << 20, where="here")
        data = compress(spoil(payload, edits, cut), level=1)
    else:
        data = spoil(data, edits, cut)
    with suppress(FormatError):
        decoded = decode_fragment(data, where="here")
        plain(decoded)
        encode_fragment(decoded)


_edits = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4)
_cuts = st.one_of(st.none(), st.none(), st.integers(0, 10_000))


@settings(max_examples=300)
@given(fragments(), _edits, _cuts, st.booleans())
def test_a_spoilt_fragment_is_refused_by_name_or_is_another_sound_one(
    fragment: Fragment, edits: list[tuple[int, int]], cut: int | None, inside: bool
) -> None:
    check_spoilt(fragment, edits, cut, inside=inside)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=20_000)
@given(fragments(), _edits, _cuts, st.booleans())
def test_twenty_thousand_spoilt_fragments_raise_nothing_else(
    fragment: Fragment, edits: list[tuple[int, int]], cut: int | None, inside: bool
) -> None:
    check_spoilt(fragment, edits, cut, inside=inside)


times = st.none() | st.integers(0, (1 << 62) - 1)


@given(st.builds(WorkUnit, texts, texts, texts, object_ids, object_ids, texts, times))
def test_a_work_unit_comes_back_from_json_as_it_was(unit: WorkUnit) -> None:
    assert WorkUnit.from_json(json.dumps(unit.to_json())) == unit
    assert WorkUnit.from_json(json.loads(json.dumps(unit.to_json()))) == unit


@pytest.mark.parametrize(
    "broken",
    [
        "{",
        "[]",
        "null",
        "{}",
        {"version": 1},
        {"extra": 1},
        {"version": 2},
        {"job": 7},
        {"since": "2026"},
        {"since": True},
        {"since": -1},
        {"since": 1 << 62},
    ],
    ids=repr,
)
def test_what_is_no_work_unit_is_refused(broken: Any) -> None:
    whole = WorkUnit("memory://x", "1", "main", SnapshotId(bytes(12)), SnapshotId(bytes(12)), "j")
    if isinstance(broken, dict):
        broken = broken if broken == {"version": 1} else whole.to_json() | broken
    with pytest.raises(InvalidInputError):
        WorkUnit.from_json(broken)


def prepared(storage: Any, generation: str = "1") -> Repository:
    repo = Repository.create(storage, spec_version=generation)
    session = repo.writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([40], [10]))
    session.tree.put_document("/gone", array([10], [10]))
    for index in range(3):
        put(session, "/a", (index,), b"old" + LARGE)
    session.commit("start")
    return repo


@pytest.fixture(params=GENERATIONS)
def repo(request: pytest.FixtureRequest) -> Repository:
    return prepared(MemoryStorage(), request.param)


def chunk(fork: ForkSession, index: int, data: bytes, worker: str) -> Fragment:
    put(fork, "/a", (index,), data)
    return fork.fragment(worker)


@pytest.fixture
def session(repo: Repository) -> Session:
    return repo.writable_session("main")


@pytest.fixture
def fragment(repo: Repository, session: Session) -> Fragment:
    """What worker `w` wrote into the first chunk of `/a`."""
    return chunk(repo.fork(session.work_unit("job")), 0, LARGE, "w")


def test_a_fragment_of_another_base_is_refused(session: Session, fragment: Fragment) -> None:
    with pytest.raises(FragmentError, match=r"worker 'w' is based on snapshot"):
        session.merge_fragments([replace(fragment, base=SnapshotId(bytes(12)))])
    assert not session.has_uncommitted_changes


def test_a_fragment_of_another_job_is_refused(session: Session, fragment: Fragment) -> None:
    with pytest.raises(FragmentError, match="belongs to job 'other', not to 'job'"):
        session.merge_fragments([fragment, replace(fragment, job="other")], on_overlap="last")
    assert not session.has_uncommitted_changes


def test_a_fragment_of_an_unknown_array_is_refused(session: Session, fragment: Fragment) -> None:
    (refs,) = fragment.arrays.values()
    with pytest.raises(FragmentError, match="unknown array"):
        session.merge_fragments([replace(fragment, arrays={NodeId(bytes(8)): refs})])
    assert not session.has_uncommitted_changes


@pytest.mark.parametrize(
    ("ndim", "index", "reason"),
    [(2, (0, 0), "2 coordinates for /a, which has 1"), (1, (4,), "outside of the grid of /a")],
)
def test_a_fragment_that_does_not_fit_its_array_is_refused(
    session: Session, fragment: Fragment, ndim: int, index: tuple[int, ...], reason: str
) -> None:
    (node_id,) = fragment.arrays
    refs = ChunkRefs.from_items(ndim, [(index, Inline(b"x"))])
    with pytest.raises(FragmentError, match=reason):
        session.merge_fragments([replace(fragment, arrays={node_id: refs})])
    assert not session.has_uncommitted_changes


def test_a_chunk_of_two_workers_is_refused_with_both_their_names(
    repo: Repository, session: Session, fragment: Fragment
) -> None:
    fork = repo.fork(session.work_unit("job"))
    put(fork, "/a", (1,), LARGE)
    other = chunk(fork, 0, LARGE, "other")
    with pytest.raises(FragmentError, match=r"chunk \[0\] of /a .*'w' and by worker 'other'") as e:
        session.merge_fragments([fragment, other])
    assert e.value.kind is Kind.FRAGMENT_OVERLAP
    assert not session.has_uncommitted_changes


_written = st.lists(
    st.dictionaries(st.integers(0, 3), st.binary(min_size=1, max_size=3)), max_size=4
)


@settings(max_examples=40)
@given(_written, st.sampled_from(["error", "first", "last"]))
def test_whose_chunk_stays_is_as_with_dictionaries(
    written: list[dict[int, bytes]], on_overlap: Any
) -> None:
    repo = prepared(MemoryStorage())
    session = repo.writable_session("main")
    unit = session.work_unit("job")
    results = []
    for number, chunks in enumerate(written):
        fork = repo.fork(unit)
        for index, data in chunks.items():
            put(fork, "/a", (index,), data)
        results.append(fork.fragment(str(number)))
    expected = {f"/a[{index}]": b"old" + LARGE for index in range(3)}
    ordered = reversed(written) if on_overlap == "first" else written
    for chunks in ordered:
        expected |= {f"/a[{index}]": data for index, data in chunks.items()}
    if on_overlap == "error" and len({*()}.union(*written)) < sum(map(len, written)):
        with pytest.raises(FragmentError, match="written by worker"):
            session.merge_fragments(results)
        return
    session.merge_fragments(results, on_overlap=on_overlap)
    seen = contents(session)
    assert {key: value for key, value in seen.items() if "[" in key} == expected


def test_a_million_references_of_a_hundred_workers_are_merged_in_columns() -> None:
    workers, each = 100, 10_000
    storage = MemoryStorage()
    session = Repository.create(storage).writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([workers * each], [1]))
    unit = session.work_unit("job")
    node_id = session.tree.array("/a").id
    results = []
    for worker in range(workers):
        index = np.arange(worker, workers * each, workers, dtype=np.uint32).reshape(-1, 1)
        refs = ChunkRefs.blank(index)
        refs = replace(
            refs,
            kind=np.full(each, RefKind.NATIVE, np.uint8),
            offset=np.arange(each, dtype=np.uint64),
            length=np.ones(each, np.uint64),
        )
        results.append(Fragment(unit.staged, "job", str(worker), {node_id: refs}))
    tracemalloc.start()
    start = time.perf_counter()
    assert session.merge_fragments(results) == workers * each
    seconds = time.perf_counter() - start
    blocks = sum(line.count for line in tracemalloc.take_snapshot().statistics("filename"))
    tracemalloc.stop()
    print(f"merged {workers} fragments of {each} references: {seconds:.2f} s, {blocks} blocks")
    assert blocks < each


def coordinate(session: Session) -> None:
    """Changes of every kind, made before work is handed out."""
    session.tree.put_document("/new", array([20], [10]))
    session.tree.put_document("/a", array([60], [10]))
    session.tree.delete("/gone")
    put(session, "/a", (0,), b"coordinator" + LARGE)
    session.tree.erase("/a", [(1,)])


def test_a_fork_of_a_changed_session_sees_the_changes_and_nobody_else_does(
    repo: Repository, session: Session
) -> None:
    coordinate(session)
    fork = repo.fork(json.dumps(session.work_unit("job").to_json()))
    assert contents(fork) == contents(session)
    assert "/new" not in contents(repo.readonly_session("main"))
    assert len(list(repo.ancestry(branch="main"))) == 2


def test_a_worker_writes_chunk_files_and_nothing_else(repo: Repository, session: Session) -> None:
    coordinate(session)
    unit = session.work_unit("job")
    recording = RecordingStorage(repo.storage)
    fork = Repository.open(recording).fork(unit)
    put(fork, "/a", (5,), LARGE)
    put(fork, "/new", (0,), LARGE)
    put(fork, "/new", (1,), b"inline")
    fork.fragment("w")
    assert set(recording.folders) == {layout_of(repo.storage).chunks.rstrip("/")}


def test_a_worker_cannot_commit_or_change_nodes(repo: Repository, session: Session) -> None:
    fork = repo.fork(session.work_unit("job"))
    for refused in (lambda: fork.commit("no"), lambda: fork.flush("no")):
        with pytest.raises(SessionError, match=r"(commit|flush) a forked session"):
            refused()
    fork.tree.put_document("/new", GROUP)
    with pytest.raises(SessionError, match="may only write chunks"):
        fork.fragment("w")


def write_apart(folder: Path, unit: str, worker: int, result: Path) -> None:
    """A worker in a process of its own."""
    fork = Repository.open(LocalStorage(folder)).fork(unit)
    put(fork, "/a", (3 + worker,), f"worker {worker}".encode() + LARGE)
    result.write_bytes(encode_fragment(fork.fragment(str(worker))))


def commit_apart(folder: Path, unit: str, results: list[Path]) -> None:
    """The coordinator, started again."""
    session = Repository.open(LocalStorage(folder)).resume(unit)
    found = [decode_fragment(path.read_bytes(), where=path.name) for path in results]
    session.merge_fragments(found)
    session.commit("all of it")


def test_changes_of_a_coordinator_and_its_workers_become_one_commit_in_another_process(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "repo"
    repo = prepared(LocalStorage(folder))
    session = repo.writable_session("main")
    coordinate(session)
    expected = contents(session)
    unit = json.dumps(session.work_unit("job").to_json())
    results = [tmp_path / f"{worker}.fragment" for worker in range(2)]
    run_apart([(write_apart, (folder, unit, worker, path)) for worker, path in enumerate(results)])
    run_apart([(commit_apart, (folder, unit, results))])
    for worker in range(2):
        expected[f"/a[{3 + worker}]"] = f"worker {worker}".encode() + LARGE
    assert contents(repo.readonly_session("main")) == expected
    assert [info.message for info in repo.ancestry(branch="main")][:2] == ["all of it", "start"]
    official_sees_it(folder)


def official_sees_it(folder: Path) -> None:
    official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder)))
    first, second = list(official.ancestry(branch="main"))[:2]
    assert (first.message, first.parent_id) == ("all of it", second.id)
    changed = official.diff(from_snapshot_id=second.id, to_snapshot_id=first.id)
    assert changed.new_arrays == {"/new"}
    assert changed.deleted_arrays == {"/gone"}
    assert changed.updated_arrays == {"/a"}
    touched = Counter(tuple(index) for index in changed.updated_chunks["/a"])
    assert touched == Counter([(0,), (1,), (3,), (4,)])
    root = zarr.open_group(official.readonly_session("main").store, mode="r")
    assert root["a"].shape == (60,)
    writable = official.writable_session("main")
    zarr.open_group(writable.store, mode="r+")["new"].attrs["seen"] = True
    writable.commit("official")
