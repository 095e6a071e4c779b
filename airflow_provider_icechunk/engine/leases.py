"""Leases: objects in the store that protect the uncommitted work of long jobs from collection.

Uncommitted objects look like garbage. While the work is younger than `QUIET`, its age protects them
and no lease is written. Older work stores a small object, its lease, and renews it along with later
writes, without a background thread. The name of the lease holds the earliest time at which objects
of the work may have been stored. A collector and a committer synchronize through two objects:

- The collector stores its cut-off, then lists the leases and keeps everything that is not older
  than the oldest live one, then deletes.
- The committer stores its lease, then reads the cut-off, then moves the branch. It refuses if
  one of its objects may be older than the cut-off.

If the collector did not see the lease, the cut-off was stored before the lease, so the committer
sees it. A committer that stalls until its lease has lapsed reads the cut-off again after moving the
branch, and does not acknowledge a commit that may be incomplete.

All times are the store's. A lease is live for `LIFE` after it was written. An owner changes its
name every quarter of that: a lapsed lease, which the collector deletes, is never written again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from airflow_provider_icechunk.engine.refs.base import Behind, Trust
from airflow_provider_icechunk.engine.storage.base import (
    Anything,
    Fetched,
    Listed,
    Storage,
    Written,
)
from airflow_provider_icechunk.exceptions import (
    FormatError,
    Kind,
    MaintenanceError,
    SessionError,
    StorageError,
)

from .concurrency import PerProcess
from .retry import at_once
from .world import World, from_micros, to_micros

PREFIX = "leases/"
CUTOFF = "leases/cutoff"
"""The latest cut-off of all collections so far."""
DELETING = "leases/deleting-"
"""Objects with this prefix hold snapshots that a collection is deleting."""
QUIET = timedelta(minutes=15)
"""Work younger than this neither writes nor needs a lease."""
LIFE = timedelta(hours=24)
"""How long a lease is live after it was written."""
CLOCKS_DIFFER = timedelta(minutes=1)
"""Maximum difference between an object's time and its writer's estimate of it."""

_MICRO = timedelta(microseconds=1)
_LIFE = LIFE // _MICRO
_SLOT = _LIFE // 4
_NAME = re.compile(r"([0-9]{20})-([0-9]{8})-([0-9a-f]{32})")
_LARGEST_RECORD = 4096
_SLOTS_BACK = 120
_AGAIN = at_once(20)

_REFUSED = "nothing was committed: write the data again in a new session"
_LANDED = (
    "the commit landed before this was detected: run `verify`, and reset the branch to the parent "
    "of the new snapshot if anything is missing"
)

_TAKEN_BACK = (
    "the branch was moved before this was detected and is back where it was, so that nothing is "
    "committed: write the data again in a new session"
)

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class Lease:
    """The name of a lease."""

    since: int
    """Store time in microseconds; the work stored nothing before it."""
    slot: int
    """Number of the quarter `LIFE` in which it is written."""
    owner: str

    @property
    def key(self) -> str:
        """Its storage key."""
        return f"{PREFIX}{self.since:020d}-{self.slot:08d}-{self.owner}"

    @classmethod
    def parse(cls, key: str) -> Lease | None:
        """The lease with this key; `None` if it is not the key of a lease."""
        match = _NAME.fullmatch(key.removeprefix(PREFIX))
        return None if match is None else cls(int(match[1]), int(match[2]), match[3])


@dataclass(frozen=True, slots=True)
class Leases:
    """The leases that a collector finds."""

    live: tuple[Lease, ...] = ()
    lapsed: tuple[Listed, ...] = ()
    """Those that are not live and will not be written again."""

    def limit(self, before: int) -> int:
        """The earlier of a cut-off and the oldest live lease."""
        return min([before, *(lease.since for lease in self.live)])


def read_leases(storage: Storage, now: int, found: Iterable[Listed] | None = None) -> Leases:
    """All leases as of a store time in microseconds.

    An unknown object stops the collection: it may be a lease written by a newer release.

    :param found: what is stored below `PREFIX`, if it was just listed.
    """
    live: list[Lease] = []
    lapsed: list[Listed] = []
    for listed in storage.scan(PREFIX) if found is None else found:
        if listed.key == CUTOFF or listed.key.startswith(DELETING):
            continue
        lease = Lease.parse(listed.key)
        if lease is None:
            raise MaintenanceError(
                f"{listed.key} in {storage.location} is not a lease that this release understands: "
                "a newer release may protect running work with it. Nothing was deleted; update "
                "this package, or delete the object if nothing is writing"
            )
        if listed.micros + _LIFE > now:
            live.append(lease)
        elif now >= (lease.slot + 1) * _SLOT + _LIFE // 2:
            lapsed.append(listed)
    return Leases(tuple(live), tuple(lapsed))


def read_cutoff(storage: Storage) -> int:
    """Store time before which objects may have been collected; 0 if there was no collection."""
    found = storage.get(CUTOFF)
    return 0 if found is None else _decode(found.data)


def write_cutoff(
    storage: Storage, trust: Trust, before: int, known: tuple[Fetched | None] | None = None
) -> None:
    """Record that objects stored before a time may be collected; that time never moves back.

    :param known: the record as it was read. A condition notices if it has changed since.
    """
    for _ in _AGAIN.attempts():
        usable = known is not None and trust is Trust.CONDITIONS
        found = known[0] if known is not None and usable else storage.get(CUTOFF)
        known = None
        if found is not None and _decode(found.data) >= before:
            return
        expect = trust.create() if found is None else trust.update(found.version)
        if isinstance(storage.put(CUTOFF, _encode(before), expect=expect), Written):
            return
    raise MaintenanceError(
        f"other collections changed {CUTOFF} in {storage.location} {_AGAIN.tries} times in a row; "
        "nothing was deleted. Try again",
        kind=Kind.ATTEMPTS_EXHAUSTED,
    )


def _encode(before: int) -> bytes:
    value = {"version": 1, "before": before, "time": from_micros(before).isoformat()}
    return json.dumps(value).encode()


def _decode(data: bytes) -> int:
    try:
        value = json.loads(data) if len(data) <= _LARGEST_RECORD else None
    except (ValueError, RecursionError):
        value = None
    before = value.get("before") if isinstance(value, dict) else None
    if not isinstance(before, int) or isinstance(before, bool):
        raise FormatError(
            f"{CUTOFF}: not a valid record of a collection's cut-off, so it is unknown what "
            "was collected. Restore it, or delete it if no running session or job is older than "
            "the last collection's cut-off"
        )
    return before


class Clock(Protocol):
    """The store's time."""

    def store_now(self) -> datetime:
        """The store's time; asks the store if necessary."""
        ...

    def estimate(self) -> datetime:
        """The store's time as far as it is known, without asking."""
        ...


@dataclass(frozen=True, slots=True)
class Moment:
    """A time on this host, by both its clocks."""

    monotonic: float
    wall: float

    @classmethod
    def of(cls, world: World) -> Moment:
        """Now."""
        return cls(world.monotonic(), world.now().timestamp())

    def age(self, now: Moment) -> timedelta:
        """The longer age by either clock: wall clocks are set, monotonic ones may stop in sleep."""
        return timedelta(seconds=max(now.monotonic - self.monotonic, now.wall - self.wall, 0.0))


@dataclass(frozen=True, slots=True)
class Tenancy:
    """The owner of a lease: one session, or all workers of one job."""

    owner: str
    since: int | None = None
    """For work that was distributed: the store time at which that happened."""

    @classmethod
    def of_work(cls, *parts: str, since: int | None) -> Tenancy:
        """The same owner for everyone with the same work unit."""
        text = json.dumps([*parts, since])
        return cls(hashlib.sha256(text.encode()).hexdigest()[:32], since)


class Leasehold:
    """The age of one session's uncommitted objects, and its lease.

    Sessions call `writing` before they store anything. All methods are thread-safe.
    """

    def __init__(
        self, storage: Storage, clock: Clock, world: World, tenancy: Tenancy | None = None
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._world = world
        self._tenancy = tenancy
        self._handed: set[Tenancy] = set()
        self._first: Moment | None = None
        self._first_at: int | None = None
        self._floor: int | None = None
        self._put: Moment | None = None
        self._leased: int | None = None
        self._checked: Moment | None = None
        self._borrowed: set[str] = set()
        self._left: set[Lease] = set()
        self._lock = PerProcess(threading.Lock)

    @property
    def is_old(self) -> bool:
        """Whether the work is old enough to need a lease."""
        return self._age(self._now()) >= QUIET

    def writing(self) -> None:
        """Renew the lease if it is due. Call before storing objects."""
        now = self._now()
        with self._lock.get():
            self._first = self._first or now
            put = self._put
        if self._age(now) >= QUIET and (put is None or put.age(now) >= QUIET):
            self._renew()

    def count(self, since: int) -> None:
        """Take over objects that were stored at this store time or later."""
        with self._lock.get():
            self._floor = since if self._floor is None else min(since, self._floor)

    def absorb(self, other: Leasehold) -> None:
        """Take over the objects of another session in this process."""
        with self._lock.get():
            self._handed |= other._handed
            theirs = other._first
            if theirs is not None and (
                self._first is None or theirs.monotonic < self._first.monotonic
            ):
                self._first, self._first_at = theirs, None
        if other._floor is not None:
            self.count(other._floor)

    def borrows(self, key: str) -> None:
        """Take over references to objects that the snapshot file at `key` keeps alive."""
        with self._lock.get():
            self._borrowed.add(key)

    def stages(self, key: str) -> None:
        """Record that all changes so far are in the snapshot file at `key`, on which others may
        build.

        From now on that file keeps borrowed objects alive, because a collection lists young
        snapshots after deleting others. Raises `SessionError` if the lender is already deleted.
        """
        self._check_borrowed(lambda: _REFUSED)
        with self._lock.get():
            self._borrowed = {key} if self._borrowed else set()

    def oldest(self) -> int | None:
        """Store time before which the work stored nothing; `None` if it stored nothing at all."""
        with self._lock.get():
            first, stored, floor = self._first, self._first_at, self._floor
        if first is not None and stored is None:
            age = first.age(self._now())
            stored = to_micros(self._clock.store_now() - age - CLOCKS_DIFFER)
            with self._lock.get():
                # Fixed once known, because it is part of the lease's name.
                if self._first is first:
                    stored = self._first_at = self._first_at or stored
        return min((time for time in (stored, floor) if time is not None), default=None)

    def hand_out(self) -> int:
        """Store time since which objects of work handed out now may have been stored."""
        known = [to_micros(self._clock.store_now() - CLOCKS_DIFFER), self.oldest()]
        if self._tenancy is not None:
            known.append(self._tenancy.since)
        return min(time for time in known if time is not None)

    def join(self, tenancy: Tenancy) -> None:
        """Share the lease of all workers of one job."""
        with self._lock.get():
            self._tenancy = tenancy

    def serves(self, tenancy: Tenancy) -> None:
        """Record that others write a lease for work that this session will commit."""
        with self._lock.get():
            self._handed.add(tenancy)

    def swap(self, move: Callable[[], T], take_back: Callable[[], bool] = lambda: False) -> T:
        """Move a branch, if everything it will reach is certain to exist.

        Raises `SessionError` with kind `chunks_collected` otherwise.

        :param take_back: moves the branch back, if possible, when a stalled process notices too
            late; returns whether it did.
        """
        self._confirm()
        self._check_borrowed(lambda: _REFUSED)
        outcome = move()
        if isinstance(outcome, Behind):
            return outcome

        def undo() -> str:
            return _TAKEN_BACK if take_back() else _LANDED

        if not self._is_safe():
            self._check(undo)
        self._check_borrowed(undo)
        return outcome

    def release(self) -> None:
        """Delete the lease. If that fails, it lapses."""
        with self._lock.get():
            keys = {lease.key for lease in self._left}
            handed, self._left, self._put = self._handed, set(), None
        now = to_micros(self._clock.estimate())
        for tenancy in handed:
            if tenancy.since is not None and now - tenancy.since >= QUIET // _MICRO:
                keys |= {lease.key for lease in _all_slots(tenancy.owner, tenancy.since, now)}
        self._delete(keys)

    def forget(self) -> None:
        """Discard what was stored so far. A lease that others share stays."""
        with self._lock.get():
            self._first = self._first_at = self._floor = None
            self._borrowed = set()
            if self._tenancy is None or self._tenancy.since is not None:
                return
            keys = {lease.key for lease in self._left}
            self._left, self._put = set(), None
        self._delete(keys)

    def _delete(self, keys: set[str]) -> None:
        if not keys:
            return
        try:
            failed = self._storage.delete(sorted(keys), immutable=True).failed
        except StorageError as error:
            failed = dict.fromkeys(keys, error.message)
        if failed:
            log.warning("could not delete a lease; it will lapse: %s", failed)

    def _confirm(self) -> None:
        """Write the lease, then check whether anything may have been collected before."""
        for _ in _AGAIN.attempts():
            now = self._now()
            if self._age(now) < QUIET:
                return
            oldest = self.oldest()
            with self._lock.get():
                put, leased, checked = self._put, self._leased, self._checked
            if oldest is None:
                return
            if put is None or put.age(now) >= QUIET or leased is None or leased > oldest:
                self._renew()
            elif checked is not None and checked.age(now) < QUIET:
                return
            self._check(lambda: _REFUSED)
            with self._lock.get():
                self._checked = now
            if self._is_safe():
                return
        raise SessionError(
            f"this process is too slow to keep a lease in {self._storage.location}: each attempt "
            f"took longer than {LIFE / 2}"
        )

    def _is_safe(self) -> bool:
        """Whether no collection can have missed the work since `_confirm`."""
        now = self._now()
        with self._lock.get():
            put = self._put
        return self._age(now) < QUIET or (put is not None and put.age(now) < LIFE / 2)

    def _check(self, consequence: Callable[[], str]) -> None:
        oldest, before = self.oldest(), read_cutoff(self._storage)
        if oldest is None or oldest >= before:
            return
        raise SessionError(
            f"this work has stored objects since {from_micros(oldest).isoformat()}, and a garbage "
            f"collection of {self._storage.location} has deleted unused objects stored before "
            f"{from_micros(before).isoformat()} while no lease of this work was live ({LIFE} "
            f"without a write); {consequence()}",
            kind=Kind.CHUNKS_COLLECTED,
        )

    def _check_borrowed(self, consequence: Callable[[], str]) -> None:
        """Raise if a lender is gone: a collection deletes snapshots before what they refer to."""
        with self._lock.get():
            borrowed = sorted(self._borrowed)
        gone = next((key for key in borrowed if self._storage.head(key) is None), None)
        if gone is not None:
            raise SessionError(
                f"the changes of this session were taken from the snapshot {gone} in "
                f"{self._storage.location}, which has been collected along with their chunks; "
                f"{consequence()}",
                kind=Kind.CHUNKS_COLLECTED,
            )

    def _renew(self) -> None:
        mark = self._now()
        now = to_micros(self._clock.store_now())
        oldest = self.oldest()
        with self._lock.get():
            if self._tenancy is None:
                self._tenancy = Tenancy(self._world.entropy(16).hex())
            known = [time for time in (oldest, self._tenancy.since) if time is not None]
            lease = Lease(max(0, min(known, default=now)), now // _SLOT, self._tenancy.owner)
        text = f"in use since {from_micros(lease.since).isoformat()}\n"
        self._storage.put(lease.key, text.encode(), expect=Anything())
        with self._lock.get():
            self._left.add(lease)
            self._put, self._leased = mark, lease.since

    def _age(self, now: Moment) -> timedelta:
        with self._lock.get():
            first, floor = self._first, self._floor
            tenancy = self._tenancy
        known = [floor, None if tenancy is None else tenancy.since]
        present = to_micros(self._clock.estimate())
        ages = [(present - time) * _MICRO for time in known if time is not None]
        if first is not None:
            ages.append(first.age(now))
        return max(ages, default=timedelta())

    def _now(self) -> Moment:
        return Moment.of(self._world)


def _all_slots(owner: str, since: int, now: int) -> list[Lease]:
    last = now // _SLOT
    first = max(since // _SLOT, last - _SLOTS_BACK)
    return [Lease(since, slot, owner) for slot in range(first, last + 1)]
