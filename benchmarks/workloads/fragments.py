"""The results of many workers become one commit.

The references are virtual: the only kind that the official package can be given without writing a
file for each of them, which would take longer than everything else here.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from benchmarks.model import Case, Goal, Workload
from benchmarks.workloads.arrays import locations, make_array, set_virtual, virtual_config

WORKERS = 100
CHUNK = 4096


def _files(case: Case) -> list[Path]:
    return [case.folder / f"worker-{number}" for number in range(WORKERS)]


def _work(case: Case) -> None:
    case.create(virtual_config(case.library)).save_config()
    repository = case.open()
    session = repository.writable_session("main")
    make_array(session.store, case.size, CHUNK)
    session.commit("array")
    session = repository.writable_session("main")
    each = case.size // WORKERS
    texts = locations(case.size)
    for number, file in enumerate(_files(case)):
        first = number * each
        fork = session.fork()
        set_virtual(case, fork.store, texts[first : first + each], first)
        file.write_bytes(_handed_back(case, fork, number))


def _handed_back(case: Case, fork: Any, number: int) -> bytes:
    if case.is_ours:
        return bytes(case.library.encode_fragment(fork.fragment(str(number))))
    return pickle.dumps(fork)


def _received(case: Case) -> tuple[Any, list[bytes]]:
    repository = case.open()
    # The same base each time: what earlier rounds committed is not on this branch.
    first = [info.id for info in repository.ancestry(branch="main")][-2]
    name = "round"
    if name in repository.list_branches():
        repository.delete_branch(name)
    repository.create_branch(name, first)
    session = repository.writable_session(name)
    session.fork()
    return session, [file.read_bytes() for file in _files(case)]


def _merge_and_commit(case: Case, state: tuple[Any, list[bytes]]) -> str:
    session, results = state
    if case.is_ours:
        decode = case.library.decode_fragment
        session.merge_fragments([decode(result, where="a worker") for result in results])
    else:
        session.merge(*[pickle.loads(result) for result in results])
    return str(session.commit("merged"))


def _all_there(case: Case, state: tuple[Any, list[bytes]], result: str) -> None:
    del state
    session = case.open().readonly_session(snapshot_id=result)
    each = case.size // WORKERS
    for place in range(each - 1, case.size, each):
        assert str(session.chunk_type("/data", [place])).lower().endswith("virtual"), place


WORKLOADS = (
    Workload(
        name="merge",
        title=f"merge {WORKERS} fragments, {{size}} references together, and commit",
        sizes=(10_000, 100_000, 1_000_000),
        goals=(Goal(0.5),),
        prepare=_work,
        setup=_received,
        run=_merge_and_commit,
        check=_all_there,
        repeatable=True,
    ),
)
