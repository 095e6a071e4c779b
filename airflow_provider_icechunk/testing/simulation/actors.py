"""Actors of a whole pipeline: writers, readers, workers, watchers and maintenance."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_icechunk.engine.commit.conflicts import (
    BasicConflictSolver,
    ConflictDetector,
    ConflictSolver,
    VersionSelection,
)
from airflow_provider_icechunk.engine.commit.merge import MergeSolver
from airflow_provider_icechunk.engine.pipelines.observe import CommitFilter, poll_branch
from airflow_provider_icechunk.engine.workers.jobs import JobFolder
from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    ConflictError,
    IcechunkError,
    Kind,
    NotFoundError,
    RebaseFailedError,
    StorageError,
)

from .ledger import INTENT, SAME, Intent
from .model import CHUNK, Add, CellValues, Edit, Erase, Label, difference, perform, seen
from .simulation import Process

_DAY = 86_400.0


def plain_writer(here: Process) -> None:
    """Commits without a solver; the loser of a race starts over with new work."""
    repo = here.open()
    intent = here.ledger.intend("main", [_whole_chunk(here)])
    session = repo.writable_session("main")
    perform(session, intent.edits)
    try:
        here.commit(session, intent)
    except ConflictError:
        return


def counter(here: Process) -> None:
    """Adds one to a cell: of two that read the same value, one must start over."""
    repo = here.open()
    for _ in range(3):
        intent = here.ledger.intend("main", [Add("/b", here.random.randrange(3))])
        session = repo.writable_session("main")
        perform(session, intent.edits)
        try:
            here.commit(session, intent, rebase_with=ConflictDetector())
        except (ConflictError, RebaseFailedError):
            continue
        return


def retried_writer(here: Process) -> None:
    """A task that commits with a token; each attempt, and a zombie, has the same base."""
    if "work" not in here.notes:
        intent = here.ledger.intend("main", _edits(here))
        session = here.open().writable_session("main")
        work = session.work_unit(intent.name)
        here.notes.update(intent=intent, work=work.to_json(), solver=_solver(here))
    if here.attempt == 1 and here.random.random() < 0.4:
        here.spawn(f"{here.name}-zombie", _finish, dict(here.notes))
    _finish(here)


def _finish(here: Process) -> None:
    intent: Intent = here.notes["intent"]
    session = here.open().resume(here.notes["work"])
    perform(session, intent.edits)
    try:
        here.commit(session, intent, rebase_with=here.notes["solver"], token=intent.name)
    except (ConflictError, RebaseFailedError):
        return


def slow_writer(here: Process) -> None:
    """Writes, pauses for hours, writes again, and commits."""
    repo = here.open()
    edits = [_whole_chunk(here) for _ in range(here.random.choice((2, 3)))]
    intent = here.ledger.intend("main", edits)
    session = repo.writable_session("main")
    longest = 0.0
    for edit in intent.edits:
        perform(session, [edit])
        session.tree.writer.flush()
        pause = here.random.choice((60.0, 1_800.0, 40_000.0, 70_000.0, 80_000.0, 110_000.0))
        longest = max(longest, pause)
        here.wait(seconds=pause)
    try:
        here.commit(session, intent, rebase_with=_theirs_or_ours(here))
    except (ConflictError, RebaseFailedError):
        return
    except IcechunkError as error:
        faults = here.options.faults
        is_steady = not (faults.delay or faults.clock_jump or faults.unavailable)
        if (
            error.kind is Kind.CHUNKS_COLLECTED
            and is_steady
            and longest < _DAY
            and here.options.age > _DAY
        ):
            here.fail(f"work was refused that kept its lease alive: {error}")
        raise


def forking_writer(here: Process) -> None:
    """A session that merges and commits what its forks wrote."""
    session = here.open().writable_session("main")
    edits = [CellValues("/a", place * CHUNK, (place + 1) * CHUNK, _value(here)) for place in (1, 2)]
    intent = here.ledger.intend("main", [_whole_chunk(here, 0), *edits])
    perform(session, intent.edits[:1])
    forks = [session.fork() for _ in edits]
    for fork, edit in zip(forks, edits, strict=True):
        perform(fork, [edit])
    session.merge(*forks)
    try:
        here.commit(session, intent, rebase_with=_theirs_or_ours(here))
    except (ConflictError, RebaseFailedError):
        return


def driver(here: Process) -> None:
    """A driver that hands out work, waits for the fragments of all tasks, and commits them."""
    if "work" not in here.notes:
        edits = [
            CellValues("/a", place * CHUNK, (place + 1) * CHUNK, _value(here))
            for place in here.random.sample(range(4), 2)
        ]
        intent = here.ledger.intend("main", edits)
        session = here.open().writable_session("main")
        work = session.work_unit(intent.name)
        here.notes.update(intent=intent, work=work.to_json())
    intent = here.notes["intent"]
    if "tasks" not in here.notes:
        here.notes["tasks"] = True
        for number in range(len(intent.edits)):
            notes = {**here.notes, "number": number}
            for copy in range(1 + (here.random.random() < 0.3)):
                here.spawn(f"{here.name}-task{number}.{copy}", _task, dict(notes))
    folder = JobFolder(here.storage, intent.name)
    names = [f"task{number}" for number in range(len(intent.edits))]
    for _ in range(20):
        if set(names) <= set(folder.writers()):
            break
        here.wait(seconds=600)
    else:
        return
    session = here.open().resume(here.notes["work"])
    session.merge_fragments(folder.fragments(names))
    try:
        here.commit(session, intent, rebase_with=ConflictDetector(), token=intent.name)
    except (ConflictError, RebaseFailedError):
        return


def _task(here: Process) -> None:
    intent: Intent = here.notes["intent"]
    number: int = here.notes["number"]
    work = WorkUnit.from_json(here.notes["work"])
    fork = here.open().fork(work)
    perform(fork, [intent.edits[number]])
    name = f"task{number}"
    JobFolder(here.storage, intent.name).put_fragment(name, fork.fragment(name))


def flusher(here: Process) -> None:
    """Flushes a snapshot that no ref names, and names it later."""
    repo = here.open()
    if "loose" not in here.notes:
        intent = here.ledger.intend("loose", [_whole_chunk(here)])
        session = repo.writable_session("main")
        perform(session, intent.edits)
        base = session.snapshot_id
        here.notes["loose"] = session.flush(intent.name, {INTENT: intent.name})
        here.witness.note(here.notes["loose"], base, intent)
        here.wait(seconds=here.random.choice((60.0, 10_000.0, 100_000.0)))
    try:
        repo.create_branch("side", here.notes["loose"])
    except (AlreadyExistsError, NotFoundError):
        return


def brancher(here: Process) -> None:
    """Creates, resets and deletes branches and tags at snapshots that may be collected."""
    repo = here.open()
    history = [info.id for info in repo.ancestry(branch="main")]
    try:
        repo.create_tag(f"{here.name}-{here.attempt}", here.random.choice(history))
        here.wait(hours=here.random.choice((0.1, 3, 30)))
        repo.create_branch("side", here.random.choice(history))
        repo.reset_branch("side", here.random.choice(history))
        if here.random.random() < 0.5:
            repo.delete_branch("side")
    except (AlreadyExistsError, NotFoundError, ConflictError):
        return


def reader(here: Process) -> None:
    """Reads a version slowly, and compares it with the expected one."""
    acknowledged = [
        intent.acknowledged
        for intent in here.ledger.intents.values()
        if intent.branch == "main" and intent.acknowledged is not None
    ]
    session = here.open().readonly_session("main")
    heads = here.witness.heads["main"]
    if session.snapshot_id in here.witness.taken_back:
        return
    if session.snapshot_id not in heads:
        here.fail(f"a reader got {session.snapshot_id}, which main never was")
    place = heads.index(session.snapshot_id)
    for snapshot in acknowledged:
        if snapshot in heads and heads.index(snapshot) > place:
            here.fail(f"{snapshot} was acknowledged before a reader began that does not see it")
    here.wait(seconds=here.random.choice((0.0, 60.0, 100_000.0)))
    expected = here.witness.state(session.snapshot_id)
    try:
        found = seen(session)
    except StorageError as error:
        if error.kind is Kind.OBJECT_MISSING:
            return
        raise
    problem = None if expected is None else difference(expected, found)
    if problem is not None:
        here.fail(f"a reader of {session.snapshot_id}: {problem}")


def watcher(here: Process) -> None:
    """Follows `main` commit by commit, and remembers its position."""
    told: list[str] = here.notes.setdefault("told", [])
    for _ in range(4):
        repo = here.open()
        since = here.notes.get("since")
        if since is None:
            here.notes["since"] = repo.lookup_branch("main")
            continue
        new = poll_branch(repo, "simulated", "main", since=since, conditions=CommitFilter())
        heads = here.witness.heads["main"]
        if here.witness.taken_back & {since, *(event["snapshot_id"] for event in new.events)}:
            return
        places = [heads.index(event["snapshot_id"]) for event in new.events]
        begin = heads.index(since) + 1
        if (
            places
            and not new.events[0]["reset"]
            and places != list(range(begin, begin + len(places)))
        ):
            here.fail(f"a watcher at commit {begin - 1} was told of {places}")
        told.extend(event["snapshot_id"] for event in new.events)
        here.notes["since"] = new.watermark
        here.wait(seconds=here.random.choice((60.0, 4_000.0, 40_000.0)))
    if len(told) != len(set(told)):
        here.fail(f"a watcher was told twice: {told}")


def expirer(here: Process) -> None:
    """Removes old snapshots from the history."""
    here.wait(seconds=here.random.choice((0.0, 100.0, 20_000.0, 90_000.0)))
    keep = here.random.choice((None, None, 1, 2))
    limit = here.now - here.age
    here.open().expire_snapshots(limit, keep_last=keep)


def collector(here: Process) -> None:
    """Deletes unreferenced objects."""
    for _ in range(here.random.choice((1, 1, 2))):
        here.wait(seconds=here.random.choice((0.0, 100.0, 20_000.0, 90_000.0, 120_000.0)))
        limit = here.now - here.age
        here.open().garbage_collect(limit)


def compactor(here: Process) -> None:
    """Packs small chunks, or rewrites manifests."""
    repo = here.open()
    try:
        if here.random.random() < 0.5:
            repo.compact("main", metadata={INTENT: SAME})
        else:
            repo.rewrite_manifests("rewritten", branch="main", metadata={INTENT: SAME})
    except (ConflictError, RebaseFailedError):
        return


def _edits(here: Process) -> Sequence[Edit]:
    """A change that a solver must merge with those of others."""
    kind = here.random.randrange(5)
    if kind == 0:
        return [_whole_chunk(here)]
    if kind == 1:
        start = 4 * CHUNK + here.random.randrange(4) * 100
        return [CellValues("/a", start, start + 100, _value(here))]
    if kind == 2:
        start = here.random.randrange(24) * 100
        return [CellValues("/a", start, start + 100, _value(here)), Label("/a", here.name, 1)]
    if kind == 3:
        return [CellValues(f"/{here.name}", 0, CHUNK, _value(here))]
    return [Erase("/b")] if here.random.random() < 0.2 else [Label("/b", here.name, _value(here))]


def _solver(here: Process) -> ConflictSolver:
    solvers: list[ConflictSolver] = [ConflictDetector(), MergeSolver(), MergeSolver()]
    return here.random.choice(solvers)


def _theirs_or_ours(here: Process) -> ConflictSolver:
    ours = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseOurs)
    solvers: list[ConflictSolver] = [ConflictDetector(), ours]
    return here.random.choice(solvers)


def _whole_chunk(here: Process, place: int | None = None) -> CellValues:
    number = here.random.randrange(4) if place is None else place
    return CellValues("/a", number * CHUNK, (number + 1) * CHUNK, _value(here))


def _value(here: Process) -> int:
    return 10 + here.random.randrange(240)


WRITERS = (
    plain_writer,
    counter,
    retried_writer,
    retried_writer,
    slow_writer,
    forking_writer,
    driver,
)
OTHERS = (flusher, brancher, reader, watcher, compactor)
KEEPERS = (expirer, collector)
