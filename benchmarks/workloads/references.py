"""Many references in one array: setting them, changing one, reading one."""

from __future__ import annotations

from typing import Any

from benchmarks.model import OFFICIAL_1, OFFICIAL_2, Case, Goal, Workload, nothing
from benchmarks.workloads.arrays import (
    locations,
    make_array,
    noise,
    open_array,
    set_virtual,
    virtual_config,
)

CHUNK = 4096


def _session_with_array(case: Case) -> tuple[Any, list[str]]:
    case.create(virtual_config(case.library))
    repository = case.open(virtual_config(case.library))
    session = repository.writable_session("main")
    make_array(session.store, case.size, CHUNK)
    session.commit("array")
    return repository.writable_session("main"), locations(case.size)


def _set_and_commit(case: Case, state: tuple[Any, list[str]]) -> str:
    session, texts = state
    set_virtual(case, session.store, texts)
    return str(session.commit("references"))


def _all_there(case: Case, state: tuple[Any, list[str]], result: str) -> None:
    del state
    session = case.open().readonly_session(snapshot_id=result)
    kinds = {str(session.chunk_type("/data", [place])) for place in (0, case.size - 1)}
    assert len(kinds) == 1, kinds
    assert kinds.pop().lower().endswith("virtual")


def _full_repository(case: Case) -> None:
    session, texts = _session_with_array(case)
    set_virtual(case, session.store, texts)
    session.commit("references")
    session = case.open().writable_session("main")
    open_array(session.store, mode="r+")[_middle(case)] = noise(CHUNK)
    session.commit("one chunk that can be read")


def _middle(case: Case) -> slice:
    start = case.size // 2 * CHUNK
    return slice(start, start + CHUNK)


def _session_with_one_change(case: Case) -> Any:
    session = case.open(virtual_config(case.library)).writable_session("main")
    open_array(session.store, mode="r+")[_middle(case)] = noise(CHUNK)
    return session


def _commit(case: Case, session: Any) -> str:
    del case
    return str(session.commit("one chunk"))


def _read_one(case: Case, state: None) -> Any:
    del state
    return open_array(case.open().readonly_session("main").store)[_middle(case)]


def _is_noise(case: Case, state: None, result: Any) -> None:
    del case, state
    assert (result == noise(CHUNK)).all()


WORKLOADS = (
    Workload(
        name="virtual-set",
        title="set and commit {size} virtual references",
        sizes=(10_000, 100_000, 1_000_000),
        goals=(
            Goal(0.2, against=(OFFICIAL_1,)),
            Goal(0.6, against=(OFFICIAL_2,)),
            Goal(0.5, measure="peak_bytes"),
        ),
        setup=_session_with_array,
        run=_set_and_commit,
        check=_all_there,
    ),
    Workload(
        name="commit-on-top",
        title="commit one chunk on top of {size} references",
        sizes=(10_000, 100_000, 1_000_000),
        goals=(Goal(0.5),),
        prepare=_full_repository,
        setup=_session_with_one_change,
        run=_commit,
        repeatable=True,
    ),
    Workload(
        name="cold-read",
        title="open cold and read one chunk of {size}",
        sizes=(10_000, 100_000, 1_000_000),
        goals=(Goal(1.0),),
        prepare=_full_repository,
        setup=nothing,
        run=_read_one,
        check=_is_noise,
        repeatable=True,
    ),
)
