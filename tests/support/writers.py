"""Processes that commit to one repository at once. Everything here can be sent to a new process."""

from __future__ import annotations

import json
import multiprocessing
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import mean, quantiles

from support.arrays import GROUP, array, contents
from support.recording import RecordingStorage

from airflow_provider_icechunk.engine.commit.conflicts import ConflictDetector
from airflow_provider_icechunk.engine.history.ancestry import TOKEN_KEY
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit
from airflow_provider_icechunk.exceptions import AlreadyExistsError

PAYLOAD = 600
"""Bytes of a chunk: more than what is stored inline."""
# New processes come from one that has imported what all of them need, and has no threads.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "airflow_provider_icechunk.engine.repository",
        "airflow_provider_icechunk.engine.storage.local.storage",
        "airflow_provider_icechunk.engine.storage.s3.storage",
        "airflow_provider_icechunk.engine.arrays.cells",
    ]
)


@dataclass(frozen=True)
class Folder:
    """A repository on the local file system."""

    path: Path

    def storage(self) -> Storage:
        return LocalStorage(self.path)


@dataclass(frozen=True)
class Prefix:
    """A repository on an S3 server of the tests."""

    endpoint_url: str
    bucket: str
    prefix: str
    key: str
    secret: str

    def storage(self) -> Storage:
        from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings
        from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage
        from airflow_provider_icechunk.engine.storage.secrets import static_credentials

        return S3Storage(
            S3Settings(
                self.bucket,
                self.prefix,
                region="us-east-1",
                endpoint_url=self.endpoint_url,
                credentials=static_credentials(self.key, self.secret),
                force_path_style=True,
                allow_http=True,
            )
        )


@dataclass(frozen=True)
class Cloud:
    """A prefix of a bucket of Google Cloud Storage or Azure, on servers of tests only."""

    url: str
    endpoint_url: str
    secret: str
    account: str | None = None

    def storage(self) -> Storage:
        from airflow_provider_icechunk.engine.storage.location import StorageLocation
        from airflow_provider_icechunk.engine.storage.secrets import AccountKey, Secret, Token

        where = StorageLocation(
            self.url, endpoint_url=self.endpoint_url, account=self.account, allow_http=True
        )
        kind = AccountKey if self.account else Token
        return where.storage(kind(Secret(self.secret)))


Place = Folder | Prefix | Cloud


@dataclass(frozen=True)
class Job:
    """Several writers, each with several chunks to commit one by one."""

    place: Place
    notes: Path
    """A folder beside the repository: what writers report, and what they must not forget."""
    writers: int
    commits: int

    def prepare(self) -> None:
        """Create the repository, with one row of chunks for each writer."""
        self.notes.mkdir()
        session = Repository.create(self.place.storage()).writable_session("main")
        session.tree.put_document("/", GROUP)
        shape = (self.writers, self.commits * PAYLOAD)
        session.tree.put_document("/a", array(shape, (1, PAYLOAD)))
        session.commit("start")


@dataclass(frozen=True)
class Done:
    """What one commit cost its writer."""

    tries: int
    bytes: int
    objects: int


def payload(writer: int, number: int) -> bytes:
    """What a chunk contains: it shows which writer wrote it."""
    return f"{writer}:{number};".encode().ljust(PAYLOAD, b".")


def work(job: Job, writer: int, gate: Connection) -> None:
    """Commit what this writer has not noted as done. May be killed and started again."""
    passed(gate)
    for number in range(job.commits):
        done = job.notes / f"{writer}-{number}.done"
        if not done.exists():
            write_whole(done, json.dumps(asdict(_commit(job, writer, number))))


def _commit(job: Job, writer: int, number: int) -> Done:
    storage = RecordingStorage(job.place.storage())
    session = Repository.open(storage).writable_session("main")
    note = job.notes / f"{writer}-{number}.work"
    if note.exists():
        session.resume(WorkUnit.from_json(note.read_text()))
    else:
        write_whole(note, json.dumps(session.work_unit("writers").to_json()))
    session.tree.put_chunk("/a", (writer, number), payload(writer, number))
    token = f"{writer}/{number}"
    session.commit(token, rebase_with=ConflictDetector(), token=token)
    return Done(storage.folders["snapshots"], storage.bytes, len(storage.puts))


def run_all(job: Job, *, kill: random.Random | None = None, kills: int = 0) -> list[Done]:
    """Run all writers to their end; with `kill`, some are killed now and then, without warning."""
    gate, lever = CONTEXT.Pipe(duplex=False)
    running = {writer: started(work, (job, writer, gate)) for writer in range(job.writers)}
    lever.close()
    try:
        while running:
            for writer, process in list(running.items()):
                process.join(0.01)
                if process.exitcode is None:
                    continue
                del running[writer]
                if process.exitcode == 0:
                    continue
                assert process.exitcode == -9, f"writer {writer} failed"
                running[writer] = started(work, (job, writer, gate))
            if kill is not None and kills and running and kill.random() < 0.2:
                running[kill.choice(sorted(running))].kill()
                kills -= 1
    finally:
        for process in running.values():
            process.kill()
            process.join()
        gate.close()
    notes = sorted(job.notes.glob("*.done"))
    return [Done(**json.loads(note.read_text())) for note in notes]


def check(job: Job) -> None:
    """Every commit is in the history once, and every chunk is what its writer wrote."""
    repo = Repository.open(job.place.storage())
    every = {f"{writer}/{n}" for writer in range(job.writers) for n in range(job.commits)}
    history = list(repo.ancestry(branch="main"))
    assert Counter(info.metadata.get(TOKEN_KEY) for info in history[:-2]) == Counter(every)
    times = [info.written_at for info in history]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times)
    seen = contents(repo.readonly_session("main"))
    for writer in range(job.writers):
        for number in range(job.commits):
            assert seen.pop(f"/a[{writer}, {number}]") == payload(writer, number)
    assert set(seen) == {"/", "/a"}


def report(title: str, done: Sequence[Done]) -> None:
    """Print what the commits cost."""
    tries = [one.tries for one in done]
    sizes = [one.bytes for one in done]
    print(
        f"{title}: {len(done)} commits, tries {mean(tries):.2f} on average, "
        f"{quantiles(tries, n=20)[-1]:.0f} at p95, {max(tries)} at most; "
        f"{mean(sizes):.0f} bytes and {mean(one.objects for one in done):.1f} objects each"
    )


def race(act: Callable[..., None], place: Place, notes: Path, writers: int) -> Counter[str]:
    """Let many processes try the same at once; returns how many had each outcome."""
    notes.mkdir()
    gate, lever = CONTEXT.Pipe(duplex=False)
    running = [started(_tried, (act, place, notes, writer, gate)) for writer in range(writers)]
    lever.close()
    for process in running:
        process.join()
        assert process.exitcode == 0
    gate.close()
    return Counter(note.read_text() for note in notes.glob("*.outcome"))


def create(place: Place) -> None:
    Repository.create(place.storage())


def create_tag(place: Place) -> None:
    repo = Repository.open(place.storage())
    repo.create_tag("v1", repo.lookup_branch("main"))


def create_branch(place: Place) -> None:
    repo = Repository.open(place.storage())
    repo.create_branch("side", repo.lookup_branch("main"))


def _tried(
    act: Callable[[Place], None], place: Place, notes: Path, writer: int, gate: Connection
) -> None:
    passed(gate)
    try:
        act(place)
    except AlreadyExistsError:
        outcome = "exists"
    else:
        outcome = "created"
    write_whole(notes / f"{writer}.outcome", outcome)


def started(target: Callable[..., None], args: tuple[object, ...]) -> BaseProcess:
    process = CONTEXT.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def passed(gate: Connection) -> None:
    """Wait for the other end to be closed, which all see at once, even if some were killed."""
    gate.poll(None)


def write_whole(path: Path, text: str) -> None:
    """All or nothing, so that a killed writer leaves no partial note."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(path)


def run_apart(calls: Sequence[tuple[Callable[..., None], tuple[object, ...]]]) -> None:
    """Run functions at once, each in a process of its own, until all of them are done."""
    running = [started(target, args) for target, args in calls]
    for process in running:
        process.join()
        assert process.exitcode == 0
