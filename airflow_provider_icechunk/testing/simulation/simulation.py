"""One schedule: a seed, a repository, processes that use it, faults, and the checks at the end."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from random import Random
from typing import Any

from airflow_provider_icechunk.engine.concurrency import one_by_one
from airflow_provider_icechunk.engine.core import MAX_CLOCK_SKEW_SECONDS
from airflow_provider_icechunk.engine.objects.chunk_writer import Packing
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.memory import StoredObject
from airflow_provider_icechunk.engine.world import World, to_micros
from airflow_provider_icechunk.exceptions import FormatError, IcechunkError, Kind, StorageError
from airflow_provider_icechunk.testing.storages import Crash

from .checks import check_repository
from .disk import Disk
from .faults import Faults, FaultSource
from .ledger import INTENT, Intent, Ledger, ViolationError, Witness
from .model import CHUNK, GROUP, CellValues, perform
from .process import Machine, ProcessStorage
from .scheduler import EndlessError, Policy, Scheduler, VirtualClock

_UNPACKED = Packing(below=0)
_AGES = (1_200.0, 7_200.0, 90_000.0, 180_000.0)
_GENERATIONS = ("1", "1", "1", "2", "2", "alpha")


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Everything that one schedule draws from its seed, besides the order of its steps."""

    seed: int
    generation: str
    is_folder: bool
    policy: Policy
    faults: Faults
    page: int
    """How many keys of a listing are returned at once."""
    age: float
    """Seconds that expiry and collection leave alone."""
    packs: bool = False
    """Whether small chunks share files."""

    @classmethod
    def drawn(cls, seed: int, **fixed: Any) -> SimulationOptions:
        """The options of a seed; those that are given are kept."""
        random = Random(f"options {seed}")  # noqa: S311 - repeatable, hides nothing
        is_folder = bool(fixed.get("is_folder", random.random() < 0.25))
        drawn: dict[str, Any] = {
            "generation": random.choice(_GENERATIONS),
            "is_folder": is_folder,
            "policy": Policy.drawn(random),
            "faults": Faults.drawn(random, is_folder=is_folder),
            "page": random.choice((1, 3, 1000)),
            "age": random.choice(_AGES),
            "packs": random.random() < 0.3,
        }
        return cls(seed, **{**drawn, **fixed})

    def as_dict(self) -> dict[str, Any]:
        """The options in plain values, for messages."""
        policy = {"name": self.policy.name}
        if self.policy.name == "sticky":
            policy["switch"] = str(self.policy.switch)
        if self.policy.changes:
            policy["changes"] = str(sorted(self.policy.changes))
        return {
            "seed": self.seed,
            "generation": self.generation,
            "store": "folder" if self.is_folder else "bucket",
            "policy": policy,
            "faults": self.faults.as_dict(),
            "page": self.page,
            "age": self.age,
            "packs": self.packs,
        }


Act = Callable[["Process"], None]
"""The work of a process. Called again, as a new process, after it died or the store failed."""


class Process:
    """One attempt of an actor, from the actor's point of view."""

    def __init__(
        self, simulation: Simulation, name: str, attempt: int, notes: dict[str, Any]
    ) -> None:
        self._simulation = simulation
        self.name = name
        self.attempt = attempt
        """1 for the first process, and one more for each process that replaces one that died."""
        self.notes = notes
        """What survives the process, as the metadata of a scheduler does."""
        self.storage = ProcessStorage(simulation.machine, f"{name}#{attempt}")
        self.random = simulation.random
        self.ledger = simulation.ledger
        self.options = simulation.options

    @property
    def world(self) -> World:
        """Clock, entropy and sleep."""
        return self.storage.world()

    @property
    def now(self) -> datetime:
        """The true time."""
        return self._simulation.clock.now

    @property
    def age(self) -> timedelta:
        """The minimum age for expiry and collection in this schedule."""
        return timedelta(seconds=self.options.age)

    @property
    def witness(self) -> Witness:
        """The true events; for checks, not for decisions."""
        return self._simulation.witness

    def open(self) -> Repository:
        """The repository, as a new process opens it."""
        packing = Packing() if self.options.packs else _UNPACKED
        return Repository.open(self.storage, packing=packing, world=self.world)

    def wait(self, **amount: float) -> None:
        """Let time pass: `wait(hours=2)`."""
        self.storage.pause(timedelta(**amount).total_seconds())

    def commit(self, session: Session, intent: Intent, **options: Any) -> str:
        """Commit, and note what was acknowledged."""
        snapshot = session.commit(intent.name, {INTENT: intent.name}, **options)
        self.ledger.acknowledge(intent, snapshot)
        return snapshot

    def acknowledge(self, snapshot: str) -> None:
        """Record that a commit to `main` was acknowledged: it must stay there."""
        self.ledger.told.append(snapshot)

    def spawn(self, name: str, act: Act, notes: dict[str, Any] | None = None) -> None:
        """Start another process."""
        self._simulation.start(name, act, notes)

    def fail(self, what: str) -> None:
        """A promise was broken."""
        raise ViolationError(what)


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """How a schedule ended."""

    options: SimulationOptions
    steps: int
    commits: int
    faults: Mapping[str, int]
    errors: Mapping[str, int]
    """Named errors that processes ended with, by kind."""
    digest: str
    """Equal for equal schedules."""


class SimulationError(AssertionError):
    """A schedule broke a promise; the message contains everything needed to repeat it."""

    def __init__(self, options: SimulationOptions, cause: BaseException, trace: list[str]) -> None:
        self.options = options
        self.trace = trace
        super().__init__(
            f"{type(cause).__name__}: {cause}\nwith {options.as_dict()}; repeat it with `python -m "
            f"airflow_provider_icechunk.testing.simulation --seed {options.seed} --trace`"
        )


@dataclass
class Simulation:
    """A repository in memory, processes that share it, and one seed for everything that happens.

    :param options: see `SimulationOptions.drawn`.
    :param trace: whether to keep every call, for display.
    :param attempts: the maximum number of times that a process is started.
    """

    options: SimulationOptions
    trace: bool = False
    attempts: int = 5
    ledger: Ledger = field(default_factory=Ledger)
    errors: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = self.options
        self.random = Random(options.seed)  # noqa: S311 - repeatable, hides nothing
        self.clock = VirtualClock(_image(options.generation)[1])
        self.disk = Disk(self.clock, self.random, is_folder=options.is_folder)
        self.disk.load(_image(options.generation)[0])
        self.scheduler = Scheduler(self.random, options.policy, self.clock)
        self.source = FaultSource(options.faults, self.random)
        self.machine = Machine(self.scheduler, self.disk, self.source, self.random, options.page)
        if self.trace:
            self.machine.trace = []
        self.ledger.intents |= _image(options.generation)[2]
        with one_by_one(range):
            self.witness = Witness(self.disk, self.ledger)
            self.witness.look()
        self.disk.on_move = self.witness.look

    def start(self, name: str, act: Act, notes: dict[str, Any] | None = None) -> None:
        """Add an actor: `act` runs as a process, and again if it dies."""
        kept = {} if notes is None else notes
        self.scheduler.spawn(name, lambda: self._live(name, act, kept))

    def run(self, check: Callable[[Repository], None] = lambda _: None) -> SimulationOutcome:
        """Run to the end and check everything; raises `SimulationError`.

        :param check: an additional check of the repository; raises if it fails.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.scheduler.run()
                self.disk.land_all()
                with one_by_one(range):
                    check(Repository.open(self.disk))
                    self._check()
        except Exception as error:
            raise SimulationError(self.options, error, self.machine.trace or []) from error
        return SimulationOutcome(
            self.options,
            self.scheduler.steps,
            len(self.witness.heads["main"]) - 1,
            dict(self.source.happened),
            dict(self.errors),
            self._digest(),
        )

    def _live(self, name: str, act: Act, notes: dict[str, Any]) -> None:
        for attempt in range(1, self.attempts + 1):
            process = Process(self, name, attempt, notes)
            was_calm = self._is_calm
            try:
                with one_by_one(self.machine.order):
                    act(process)
            except Crash:
                self._count("crash")
            except FormatError:
                raise
            except IcechunkError as error:
                self._count(error.kind.value)
                if was_calm and isinstance(error, StorageError):
                    raise ViolationError(f"{name} failed without a fault: {error}") from error
                if not _may_help(error):
                    return
            else:
                return
            self.scheduler.wait(self.random.choice((1.0, 60.0, 600.0)))

    @property
    def _is_calm(self) -> bool:
        """Whether there are no more faults."""
        return self.source.calls > self.options.faults.calls and self.disk.full_for == 0

    def _count(self, what: str) -> None:
        self.errors[what] = self.errors.get(what, 0) + 1

    def _check(self) -> None:
        self._commit_once_more()
        # The clocks of writers may be off by as much as the engine allows.
        young = self.clock.now - timedelta(seconds=self.options.age - MAX_CLOCK_SKEW_SECONDS)
        check_repository(Repository.open(self.disk), self.ledger, self.witness, to_micros(young))

    def _commit_once_more(self) -> None:
        """The next commit works, whatever happened before."""
        self.clock.pass_by(60)
        world = World(
            now=self.clock, entropy=self.random.randbytes, monotonic=self.clock.now.timestamp
        )
        repo = Repository.open(self.disk, packing=_UNPACKED, world=world)
        edits = (CellValues("/a", 0, 1, 255),)
        intent = self.ledger.intend("main", edits)
        session = repo.writable_session("main")
        perform(session, edits)
        snapshot = session.commit(intent.name, {INTENT: intent.name})
        self.ledger.acknowledge(intent, snapshot)
        self.witness.look()

    def _digest(self) -> str:
        found = hashlib.sha256(str((self.scheduler.steps, self.clock.now)).encode())
        for key, stored in sorted(self.disk.objects.items()):
            found.update(key.encode() + stored.data)
        return found.hexdigest()[:16]


def _may_help(error: IcechunkError) -> bool:
    """Whether a retry by a scheduler can get further."""
    return isinstance(error, StorageError) or error.kind is Kind.ATTEMPTS_EXHAUSTED


@cache
def _image(generation: str) -> tuple[dict[str, StoredObject], datetime, dict[str, Intent]]:
    """A repository with a history of several days, and garbage; the same for every schedule."""
    random = Random(generation)  # noqa: S311 - repeatable
    clock = VirtualClock()
    disk = Disk(clock, random)
    ledger = Ledger()
    world = World(now=clock, entropy=random.randbytes, monotonic=lambda: clock.now.timestamp())
    repo = Repository.create(disk, spec_version=generation, packing=_UNPACKED, world=world)

    def write(branch: str, *edits: CellValues, root: bool = False) -> str:
        clock.pass_by(86_400)
        intent = ledger.intend(branch, edits)
        session = repo.writable_session(branch)
        if root:
            session.tree.put_document("/", GROUP)
        perform(session, edits)
        return session.commit(intent.name, {INTENT: intent.name})

    with one_by_one(range):
        first = write(
            "main", CellValues("/a", 0, 4 * CHUNK, 1), CellValues("/b", 0, CHUNK, 1), root=True
        )
        repo.create_branch("gone", first)
        write("gone", CellValues("/a", 0, CHUNK, 9))
        repo.delete_branch("gone")
        tagged = write("main", CellValues("/a", 0, CHUNK, 2))
        repo.create_tag("v1", tagged)
        write("main", CellValues("/b", 0, CHUNK, 3))
    clock.pass_by(86_400)
    return dict(disk.objects), clock.now, dict(ledger.intents)


__all__ = [
    "Act",
    "EndlessError",
    "Process",
    "Simulation",
    "SimulationError",
    "SimulationOptions",
    "SimulationOutcome",
]
