"""Typical work on a bucket that answers after 20 ms.

Every contender writes generation `1`. What matters here is the number of requests, and how many of
them wait for one another. Arrays are read from files that the official package wrote, a chunk each,
and from packed ones that this package wrote.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from benchmarks.model import (
    ACCESS_KEY,
    BUCKET,
    OBSTORE,
    OFFICIAL,
    OFFICIAL_1,
    OURS,
    SECRET_KEY,
    Case,
    Goal,
    Place,
    Workload,
    nothing,
)
from benchmarks.workloads.arrays import make_array, noise, open_array

KIB = 1024
MIB = 1024 * KIB
CHUNK = 40_000
"""Larger than what is kept in manifests, small enough to be packed."""
FAR = 1.1
"""The most that ours may take here, against an official release; above 1 because of noise."""
_GOALS = (Goal(FAR),)
_GATHER = Goal(1.2, against=(OBSTORE,))
_AT_ONCE = 64
"""Requests that the bare client has in flight: as many as ours."""
_MARK = "mark"


def _create(case: Case, state: Any) -> list[Any]:
    del state
    return [_numbered(case, number).create_1() for number in range(case.size)]


def _numbered(case: Case, number: int) -> Case:
    prefix = f"{case.prefix}/{number}"
    return Case(case.contender, case.size, case.folder, case.endpoint, prefix)


def _warm(case: Case) -> Any:
    """A client that has talked to the server before."""
    return _numbered(case, -1).create_1()


def _all_exist(case: Case, state: Any, result: list[Any]) -> None:
    del state
    assert len(result) == case.size
    for number in range(case.size):
        assert _numbered(case, number).open().lookup_branch("main")


def _fill(chunk: int, case: Case) -> None:
    session = case.create_1().writable_session("main")
    make_array(session.store, case.size, chunk)[:] = noise(case.size * chunk)
    session.commit("data")


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of chunks, for a client that knows nothing of arrays."""

    store: Any
    keys: list[str]

    @classmethod
    def of(cls, case: Case) -> _Files:
        import obstore
        from obstore.store import S3Store

        store: Any = S3Store(
            BUCKET,
            prefix=case.prefix,
            endpoint=case.endpoint,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            region="us-east-1",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )
        pages = obstore.list(store, "chunks", chunk_size=1000)
        return cls(store, [one["path"] for page in pages for one in page])

    async def gather(self) -> list[Any]:
        """The bytes of all of them, as many at once as ours has in flight."""
        import obstore

        room = asyncio.Semaphore(_AT_ONCE)

        async def fetch(key: str) -> Any:
            async with room:
                return await (await obstore.get_async(self.store, key)).bytes_async()

        return await asyncio.gather(*map(fetch, self.keys))


def _source(case: Case) -> Any:
    """What is read: an array, or the files that have its bytes."""
    return _Files.of(case) if case.contender == OBSTORE else _array(case)


def _array(case: Case) -> Any:
    return open_array(case.open().readonly_session("main").store)


def _read_all(case: Case, source: Any) -> Any:
    del case
    return asyncio.run(source.gather()) if isinstance(source, _Files) else source[:]


def _read_some(chunk: int, case: Case, array: Any) -> Any:
    """The first cells of every eighth chunk."""
    del case
    return array[:: 8 * chunk]


def _is_noise(step: int, case: Case, source: Any, result: Any) -> None:
    if isinstance(source, _Files):
        size = sum(map(len, result)) // case.size
        whole = memoryview(noise(size * case.size))
        chunks = (whole[start : start + size] for start in range(0, len(whole), size))
        assert sorted(map(bytes, result)) == sorted(map(bytes, chunks))
    else:
        assert (noise(source.shape[0])[::step] == result).all()


def _open_and_read_one(chunk: int, case: Case, state: Any) -> Any:
    del state
    return _array(case)[:chunk]


def _is_start(chunk: int, case: Case, state: Any, result: Any) -> None:
    del state
    assert (noise(case.size * chunk)[:chunk] == result).all()


def _session_with_array(chunk: int, case: Case) -> tuple[Any, Any, Any]:
    repository = case.create_1()
    session = repository.writable_session("main")
    make_array(session.store, case.size, chunk)
    session.commit("array")
    session = repository.writable_session("main")
    array = open_array(session.store, mode="r+")
    return session, array, noise(case.size * chunk)


def _write(case: Case, state: tuple[Any, Any, Any]) -> None:
    del case
    session, array, data = state
    array[:] = data
    session.commit("data")


def _written(case: Case, state: tuple[Any, Any, Any], result: None) -> None:
    del result
    assert (_array(case)[:] == state[2]).all()


def _commit_each(case: Case, repository: Any, first: int = 0, branch: str = "main") -> None:
    data = noise(CHUNK)
    for number in range(first, case.size):
        session = repository.writable_session(branch)
        start = number * CHUNK
        open_array(session.store, mode="r+")[start : start + CHUNK] = data
        session.commit(f"chunk {number}")


def _repository_with_array(case: Case, more: int = 1) -> Any:
    repository = case.create_1()
    session = repository.writable_session("main")
    make_array(session.store, case.size + more, CHUNK)
    session.commit("array")
    return repository


def _commits_are_there(case: Case, repository: Any, result: None) -> None:
    del repository, result
    assert len(list(case.open().ancestry(branch="main"))) == case.size + 2


def _history(case: Case) -> None:
    """A first snapshot, one with the array, and as many more as make `size` in total."""
    repository = _repository_with_array(case)
    _commit_each(case, repository, first=2)


def _opened(case: Case) -> Any:
    return case.open()


def _walk(case: Case, repository: Any) -> list[Any]:
    del case
    return list(repository.ancestry(branch="main"))


def _is_whole(case: Case, repository: Any, result: list[Any]) -> None:
    del repository
    assert len(result) == case.size


def _others_committed(case: Case) -> None:
    repository = _repository_with_array(case)
    repository.create_tag("base", repository.lookup_branch("main"))
    repository.create_branch("others", repository.lookup_branch("main"))
    _commit_each(case, repository, branch="others")


def _left_behind(case: Case) -> Any:
    repository = case.open()
    repository.reset_branch("main", repository.lookup_tag("base"))
    session = repository.writable_session("main")
    start = case.size * CHUNK
    open_array(session.store, mode="r+")[start : start + CHUNK] = noise(CHUNK)
    repository.reset_branch("main", repository.lookup_branch("others"))
    return session


def _rebase(case: Case, session: Any) -> str:
    return str(session.commit("late", rebase_with=case.library.ConflictDetector()))


def _session_with_arrays(case: Case) -> Any:
    session = case.create_1().writable_session("main")
    data = noise(CHUNK)
    for number in range(case.size):
        make_array(session.store, 1, CHUNK, f"array-{number:04}")[:] = data
    return session


def _commit(case: Case, session: Any) -> str:
    del case
    return str(session.commit("all"))


def _old_commits(case: Case) -> None:
    """Commits that are to expire, a time that separates them, and one more commit."""
    repository = _repository_with_array(case, more=2)
    _commit_each(case, repository)
    time.sleep(0.01)
    (case.folder / _MARK).write_text(datetime.now(UTC).isoformat())
    time.sleep(0.01)
    session = repository.writable_session("main")
    open_array(session.store, mode="r+")[-CHUNK:] = noise(CHUNK)
    session.commit("new")


def _expire(case: Case, repository: Any) -> Any:
    return repository.expire_snapshots(_mark(case))


def _mark(case: Case) -> datetime:
    return datetime.fromisoformat((case.folder / _MARK).read_text())


def _are_expired(case: Case, repository: Any, result: Any) -> None:
    del repository
    # Those with the chunks, and the one with the array.
    assert len(result) == case.size + 1, result
    assert len(list(case.open().ancestry(branch="main"))) == 2


def _expired(case: Case) -> None:
    _old_commits(case)
    case.open().expire_snapshots(_mark(case))


def _collect(case: Case, repository: Any) -> Any:
    del case
    return repository.garbage_collect(datetime.now(UTC))


def _are_collected(case: Case, repository: Any, result: Any) -> None:
    del repository
    assert result.snapshots_deleted == case.size + 1, result
    assert (_array(case)[-CHUNK:] == noise(CHUNK)).all()


def _reading(
    name: str,
    title: str,
    chunk: int,
    writer: str,
    sizes: tuple[int, int, int],
    place: Place = "far",
) -> Workload:
    who = "official files" if writer == OFFICIAL_1 else "packed files"
    most, where = (FAR, "20 ms away") if place == "far" else (1.0, "loopback")
    make: Callable[..., Workload] = partial(
        Workload,
        sizes=sizes,
        goals=(Goal(most),),
        at_any_size=most,
        place=place,
        prepare=partial(_fill, chunk),
        prepared_by=writer,
        repeatable=True,
    )
    if name.startswith("far-one"):
        return make(
            name=name,
            title=f"20 ms away: open cold, read one of {{size}} {title}, {who}",
            setup=nothing,
            run=partial(_open_and_read_one, chunk),
            check=partial(_is_start, chunk),
        )
    if name.startswith("far-some"):
        return make(
            name=name,
            title=f"20 ms away: read every 8th of {{size}} {title}, {who}",
            setup=_array,
            run=partial(_read_some, chunk),
            check=partial(_is_noise, 8 * chunk),
        )
    bare = writer == OFFICIAL_1
    return replace(
        make(
            name=name,
            title=f"{where}: read {{size}} {title}, {who}",
            setup=_source,
            run=_read_all,
            check=partial(_is_noise, 1),
        ),
        goals=(Goal(most), _GATHER) if bare else (Goal(most),),
        contenders=(OURS, *OFFICIAL, OBSTORE) if bare else (OURS, *OFFICIAL),
    )


def _writing(name: str, title: str, chunk: int, sizes: tuple[int, int, int]) -> Workload:
    return Workload(
        name=name,
        title=f"20 ms away: write {{size}} {title} and commit",
        sizes=sizes,
        goals=_GOALS,
        at_any_size=FAR,
        place="far",
        setup=partial(_session_with_array, chunk),
        run=_write,
        check=_written,
    )


WORKLOADS = (
    Workload(
        name="far-create",
        title="20 ms away: create {size} repositories",
        sizes=(1, 2, 4),
        quick=0,
        goals=_GOALS,
        at_any_size=FAR,
        place="far",
        setup=_warm,
        run=_create,
        check=_all_exist,
    ),
    _reading("far-one", "chunks of 64 KiB", 64 * KIB, OFFICIAL_1, (8, 64, 512)),
    _reading("far-read", "chunks of 64 KiB", 64 * KIB, OFFICIAL_1, (64, 512, 2048)),
    _reading("far-read-packed", "chunks of 64 KiB", 64 * KIB, OURS, (64, 512, 2048)),
    _reading("far-some", "chunks of 64 KiB", 64 * KIB, OFFICIAL_1, (64, 512, 2048)),
    _reading("far-some-packed", "chunks of 64 KiB", 64 * KIB, OURS, (64, 512, 2048)),
    _reading("far-read-large", "chunks of 1 MiB", MIB, OFFICIAL_1, (16, 64, 128)),
    _reading("s3-files-read", "chunks of 64 KiB", 64 * KIB, OFFICIAL_1, (64, 512, 2048), "s3"),
    _writing("far-first", "chunks of 40 kB", CHUNK, (1, 10, 30)),
    _writing("far-write", "chunks of 64 KiB", 64 * KIB, (64, 512, 2048)),
    _writing("far-write-large", "chunks of 1 MiB", MIB, (16, 64, 128)),
    Workload(
        name="far-commits",
        title="20 ms away: {size} commits of one chunk, one after the other",
        sizes=(3, 10, 30),
        goals=_GOALS,
        at_any_size=FAR,
        place="far",
        setup=_repository_with_array,
        run=_commit_each,
        check=_commits_are_there,
    ),
    Workload(
        name="far-rebase",
        title="20 ms away: commit after a rebase over {size} commits",
        sizes=(3, 10, 30),
        goals=_GOALS,
        at_any_size=FAR,
        place="far",
        prepare=_others_committed,
        setup=_left_behind,
        run=_rebase,
        repeatable=True,
    ),
    Workload(
        name="far-arrays",
        title="20 ms away: commit {size} new arrays of one chunk each",
        sizes=(5, 20, 60),
        goals=_GOALS,
        at_any_size=FAR,
        place="far",
        setup=_session_with_arrays,
        run=_commit,
    ),
    Workload(
        name="far-ancestry",
        title="20 ms away: ancestry of {size} snapshots",
        sizes=(4, 13, 40),
        goals=_GOALS,
        at_any_size=FAR,
        place="far",
        prepare=_history,
        setup=_opened,
        run=_walk,
        check=_is_whole,
        repeatable=True,
    ),
    Workload(
        name="far-expire",
        title="20 ms away: expire {size} snapshots",
        sizes=(4, 12, 36),
        quick=0,
        goals=_GOALS,
        at_any_size=FAR,
        place="far",
        prepare=_old_commits,
        setup=_opened,
        run=_expire,
        check=_are_expired,
    ),
    Workload(
        name="far-collect",
        title="20 ms away: collect what {size} expired snapshots leave",
        sizes=(4, 12, 36),
        quick=0,
        goals=_GOALS,
        at_any_size=FAR,
        place="far",
        deletes=True,
        prepare=_expired,
        setup=_opened,
        run=_collect,
        check=_are_collected,
    ),
)
