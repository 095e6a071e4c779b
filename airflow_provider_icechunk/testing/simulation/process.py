"""A process of a simulation: its view of the store, its clock, and its death."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import TypeVar

from airflow_provider_icechunk.engine.storage.base import (
    Anything,
    ByteRange,
    Data,
    Deleted,
    Expectation,
    Fetched,
    Listed,
    Put,
    PutOutcome,
)
from airflow_provider_icechunk.engine.storage.readback import outcome_unknown, resolve_lost_put
from airflow_provider_icechunk.engine.world import World
from airflow_provider_icechunk.exceptions import Kind, StorageError
from airflow_provider_icechunk.testing.storages import Crash

from .disk import Disk
from .faults import CHANGES, READS, WRITES, Fault, FaultSource
from .scheduler import Scheduler

T = TypeVar("T")
_LATENCY = 0.02
_FULL_FOR = 5
_NOT_READ_BACK = 0.3
"""The probability that a write without an answer cannot be read back either."""
_JUMPS = (-3_600.0, -300.0, -30.0, 30.0, 300.0, 3_600.0)


class Machine:
    """The state that the processes of one simulation share besides the disk."""

    def __init__(
        self, scheduler: Scheduler, disk: Disk, source: FaultSource, random: Random, page: int
    ) -> None:
        self.scheduler = scheduler
        self.disk = disk
        self.source = source
        self.random = random
        self.page = page
        """How many keys of a listing are returned at once."""
        self.outages = 0
        """The number of power losses: processes started before the last one are dead."""
        self.trace: list[str] | None = None

    def order(self, count: int) -> list[int]:
        """An order for things that may happen concurrently."""
        places = list(range(count))
        if count == 2:
            return places if self.random.random() < 0.5 else [1, 0]
        self.random.shuffle(places)
        return places


class ProcessStorage:
    """The store as one process sees it: every call is a step, and may go wrong.

    Listings come in pages, and many objects one by one in any order, as from real stores.
    """

    def __init__(self, machine: Machine, name: str) -> None:
        self._machine = machine
        self._disk = machine.disk
        self.name = name
        self._outages = machine.outages
        self._is_dead = False
        self._reads_back = False
        self.skew = 0.0

    @property
    def location(self) -> str:
        """The location of the disk."""
        return self._disk.location

    @property
    def is_dead(self) -> bool:
        """Whether the process died, alone or with its machine."""
        return self._is_dead or self._outages != self._machine.outages

    def world(self) -> World:
        """Clock, entropy and sleep of this process."""
        machine, clock = self._machine, self._machine.disk.clock

        def sleep(seconds: float) -> None:
            machine.scheduler.wait(seconds)
            self._check_alive()

        return World(
            now=lambda: clock.now + timedelta(seconds=self.skew),
            entropy=machine.random.randbytes,
            sleep=sleep,
            monotonic=lambda: clock.now.timestamp(),
            jitter=machine.random.random,
        )

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        """See `Storage.get`."""
        return self._read(f"get {key}", lambda: self._disk.get(key, byte_range))

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        """See `Storage.get_many`; in any order."""
        found = {place: self.get(*requests[place]) for place in self._order(len(requests))}
        return [found[place] for place in range(len(requests))]

    def put(
        self,
        key: str,
        data: Data,
        *,
        expect: Expectation,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> PutOutcome:
        """See `Storage.put`."""
        del metadata, content_type
        content = bytes(data)
        is_durable = not isinstance(expect, Anything)

        def write() -> PutOutcome:
            return self._disk.write(self, key, content, expect, is_durable=is_durable)

        fault = self._step(f"put {key} {type(expect).__name__}", WRITES)
        if self._disk.full_for > 0:
            self._disk.full_for -= 1
            raise StorageError(f"no space left for {key}", kind=Kind.STORAGE_FAILED)
        match fault:
            case Fault.CRASH_AFTER:
                write()
                self._die()
            case Fault.CRASH_IN_FLIGHT:
                self._disk.send_later(write)
                self._die()
            case Fault.DUPLICATE:
                self._disk.send_later(write)
            case Fault.LOST_ANSWER | Fault.LATE:
                return self._unanswered(key, content, expect, write, is_late=fault is Fault.LATE)
            case Fault.DISK_FULL:
                self._disk.full_for = _FULL_FOR
                raise StorageError(f"no space left for {key}", kind=Kind.STORAGE_FAILED)
            case _:
                pass
        outcome = write()
        self._note(f"  {type(outcome).__name__}")
        return outcome

    def put_many(self, puts: Sequence[Put]) -> None:
        """See `Storage.put_many`; in any order."""
        for place in self._order(len(puts)):
            self.put(puts[place].key, puts[place].data, expect=Anything())

    def settle(self) -> None:
        """See `Storage.settle`."""
        if not self._disk.is_folder:
            return
        fault = self._step("settle", CHANGES)
        self._disk.settle_of(self)
        if fault is Fault.CRASH_AFTER:
            self._die()

    def scan(self, prefix: str) -> Iterator[Listed]:
        """See `Storage.scan`; concurrent writes may or may not be seen."""
        last = ""
        while True:
            self._step(f"scan {prefix} after {last!r}", READS)
            page = self._page(prefix, last)
            yield from page
            if len(page) < self._machine.page:
                return
            last = page[-1].key

    def list_folders(self, prefix: str) -> list[str]:
        """See `Storage.list_folders`."""
        return self._read(f"list_folders {prefix}", lambda: self._disk.list_folders(prefix))

    def head(self, key: str) -> Listed | None:
        """See `Storage.head`."""
        return self._read(f"head {key}", lambda: self._disk.head(key))

    def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
        """See `Storage.delete`; one by one, in any order, and some may fail."""
        del immutable
        done: list[str] = []
        failed: dict[str, str] = {}
        for place in self._order(len(keys)):
            key = keys[place]
            try:
                fault = self._step(f"delete {key}", CHANGES)
            except StorageError as error:
                failed[key] = error.message
                continue
            self._disk.delete([key])
            if fault is Fault.CRASH_AFTER:
                self._die()
            if fault is Fault.LOST_ANSWER:
                failed[key] = "no answer"
            else:
                done.append(key)
        return Deleted(tuple(done), failed)

    def now(self) -> datetime:
        """See `Storage.now`."""
        return self._read("now", self._disk.now)

    def check_conditional_writes(self) -> None:
        """The disk honours conditions."""

    def pause(self, seconds: float) -> None:
        """Wait for a while."""
        self._machine.scheduler.wait(seconds)
        self._check_alive()

    def _page(self, prefix: str, last: str) -> list[Listed]:
        listed = (one for one in self._disk.scan(prefix) if one.key > last)
        return [one for one, _ in zip(listed, range(self._machine.page), strict=False)]

    def _read(self, what: str, act: Callable[[], T]) -> T:
        self._step(what, READS)
        return act()

    def _order(self, count: int) -> Sequence[int]:
        return range(count) if count < 2 else self._machine.order(count)

    def _unanswered(
        self,
        key: str,
        content: bytes,
        expect: Expectation,
        write: Callable[[], PutOutcome],
        *,
        is_late: bool,
    ) -> PutOutcome:
        """The answer of a write is lost; its outcome is determined as back ends do it."""
        if is_late:
            self._disk.send_later(write)
        else:
            write()
        if isinstance(expect, Anything):
            return write()
        if self._reads_back:
            raise StorageError(f"no answer to the write of {key}", kind=Kind.STORAGE_UNREACHABLE)
        if self._machine.random.random() < _NOT_READ_BACK:
            raise outcome_unknown(key, self.location, "and cannot be read back")
        self._reads_back = True
        try:
            outcome = resolve_lost_put(self, key, content, expect)
            self._note(f"  {type(outcome).__name__}, read back")
            return outcome
        finally:
            self._reads_back = False

    def _step(self, what: str, kinds: tuple[Fault, ...]) -> Fault | None:
        """Let others run, then decide what happens to the call."""
        machine = self._machine
        self._check_alive()
        machine.scheduler.step()
        machine.disk.clock.pass_by(_LATENCY)
        self._check_alive()
        machine.disk.land_some()
        fault = machine.source.draw(kinds)
        self._note(what if fault is None else f"{what} ! {fault}")
        match fault:
            case Fault.CRASH_BEFORE:
                self._die()
            case Fault.DELAY:
                self.pause(machine.source.delay())
            case Fault.UNAVAILABLE:
                raise StorageError(f"503 for {what}", kind=Kind.STORAGE_THROTTLED)
            case Fault.TRUNCATED:
                raise StorageError(f"{what}: the body ended early", kind=Kind.STORAGE_UNREACHABLE)
            case Fault.CLOCK_JUMP:
                self.skew = machine.random.choice(_JUMPS)
            case Fault.POWER_LOSS:
                machine.disk.lose_power()
                machine.outages += 1
                self._die()
            case _:
                pass
        return fault

    def _check_alive(self) -> None:
        if self.is_dead:
            raise Crash(self.name)

    def _die(self) -> None:
        self._is_dead = True
        raise Crash(self.name)

    def _note(self, text: str) -> None:
        trace = self._machine.trace
        if trace is not None:
            trace.append(f"{self._disk.clock.now:%d %H:%M:%S.%f} {self.name}: {text}")
