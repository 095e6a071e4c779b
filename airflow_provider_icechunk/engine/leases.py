"""Leases: what long work leaves in the store, so that nothing it has stored is collected before it
commits.

Objects of work that has not committed look like garbage. While the work is younger than `QUIET`
its age protects them, and nothing is written. Older work leaves a small object, its lease, and puts
it again with later writes; no thread does. The name says all there is to know: since when objects
of the work may have been stored. A collector and a committer meet in two objects:

- The collector writes down its cut-off, then lists the leases and spares what is not older than the
  oldest live one, then deletes.
- The committer puts its lease, then reads that cut-off, then moves the branch. It refuses if
  something of its own may be older than the cut-off.

If the collector did not see the lease, the cut-off was there before the lease, and the committer
sees it. A committer that stalls between the two for so long that its lease lapses reads the cut-off
once more after it moved the branch, and does not acknowledge a commit that may be incomplete.

All times are the store's. A lease is live for `LIFE` after it was put. The names of one owner
change every quarter of that: a lapsed one, which the collector deletes, is never put again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from airflow_provider_icechunk.exceptions import (
    FormatError,
    Kind,
    MaintenanceError,
    SessionError,
    StorageError,
)
from airflow_provider_icechunk.repository.ledgers.base import Behind, Trust
from airflow_provider_icechunk.repository.world import World, from_micros, to_micros
from airflow_provider_icechunk.storage.base import Anything, Listed, Storage, Written

PREFIX = "leases/"
CUTOFF = "leases/cutoff"
"""The record of the newest cut-off of all collections so far."""
QUIET = timedelta(minutes=15)
"""Work younger than this leaves no lease and asks for none."""
LIFE = timedelta(hours=24)
"""How long a lease counts after it was put."""
CLOCKS_DIFFER = timedelta(minutes=1)
"""How far the time of an object may be from what its writer believes."""

_MICRO = timedelta(microseconds=1)
_LIFE = LIFE // _MICRO
_SLOT = _LIFE // 4
_NAME = re.compile(r"([0-9]{20})-([0-9]{8})-([0-9a-f]{32})")
_LARGEST_RECORD = 4096
_SLOTS_BACK = 120
_TRIES = 20

_REFUSED = "nothing was committed: write it again in a new session"
_LANDED = (
    "the commit landed before this could be seen: run `verify`, and reset the branch to the parent "
    "of the new snapshot if anything is missing"
)

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class Lease:
    """The name of a lease."""

    since: int
    """Store time in microseconds; nothing of the work was stored before it."""
    slot: int
    """Number of the quarter of a `LIFE` in which it is put."""
    owner: str

    @property
    def key(self) -> str:
        """Where it is stored."""
        return f"{PREFIX}{self.since:020d}-{self.slot:08d}-{self.owner}"

    @classmethod
    def parse(cls, key: str) -> Lease | None:
        """The lease of a key; `None` if it is not the key of one."""
        match = _NAME.fullmatch(key.removeprefix(PREFIX))
        return None if match is None else cls(int(match[1]), int(match[2]), match[3])


@dataclass(frozen=True, slots=True)
class Leases:
    """What a collector finds."""

    live: tuple[Lease, ...] = ()
    lapsed: tuple[Listed, ...] = ()
    """Those that are not live, and that nobody will put again."""

    def limit(self, before: int) -> int:
        """The earlier of a cut-off and the oldest live lease."""
        return min([before, *(lease.since for lease in self.live)])


def read_leases(storage: Storage, now: int) -> Leases:
    """All leases, judged at a store time in microseconds.

    An object that is not understood stops the collection: it may be a lease of a newer release.
    """
    live: list[Lease] = []
    lapsed: list[Listed] = []
    for listed in storage.scan(PREFIX):
        if listed.key == CUTOFF:
            continue
        lease = Lease.parse(listed.key)
        if lease is None:
            raise MaintenanceError(
                f"{listed.key} in {storage.location} is not a lease that this release knows: a "
                "newer one may protect running work with it. Nothing was deleted; update this "
                "package, or delete the object if nobody writes"
            )
        if listed.micros + _LIFE > now:
            live.append(lease)
        elif now >= (lease.slot + 1) * _SLOT + _LIFE // 2:
            lapsed.append(listed)
    return Leases(tuple(live), tuple(lapsed))


def read_cutoff(storage: Storage) -> int:
    """Before which store time objects may have been collected; 0 if there was no collection."""
    found = storage.get(CUTOFF)
    return 0 if found is None else _decode(found.data)


def write_cutoff(storage: Storage, trust: Trust, before: int) -> None:
    """Write down that objects stored before a time may be gone. It never goes back."""
    for _ in range(_TRIES):
        found = storage.get(CUTOFF)
        if found is not None and _decode(found.data) >= before:
            return
        expect = trust.create() if found is None else trust.update(found.version)
        if isinstance(storage.put(CUTOFF, _encode(before), expect=expect), Written):
            return
    raise MaintenanceError(
        f"other collections changed {CUTOFF} in {storage.location} {_TRIES} times in a row; "
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
            f"{CUTOFF}: this is not the record of a collection's cut-off, so nobody can know what "
            "was collected. Restore it, or delete it if no session or job that runs is older than "
            "the last collection's cut-off"
        )
    return before


class Clock(Protocol):
    """Knows the store's time."""

    def store_now(self) -> datetime:
        """The store's time. Asks it when it has to."""
        ...

    def estimate(self) -> datetime:
        """The same as far as it is known, without asking."""
        ...


@dataclass(frozen=True, slots=True)
class Moment:
    """A time on this host, by both of its clocks."""

    monotonic: float
    wall: float

    @classmethod
    def of(cls, world: World) -> Moment:
        """The present."""
        return cls(world.monotonic(), world.now().timestamp())

    def age(self, now: Moment) -> timedelta:
        """How long ago it was. The longer of two: clocks are set, and stand still in sleep."""
        return timedelta(seconds=max(now.monotonic - self.monotonic, now.wall - self.wall, 0.0))


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Whose lease it is: that of a session alone, or of all who do one work."""

    owner: str
    since: int | None = None
    """For work that was handed out: the store time of that."""

    @classmethod
    def of_work(cls, *parts: str, since: int | None) -> Tenancy:
        """The same for everybody who has the same work unit."""
        text = json.dumps([*parts, since])
        return cls(hashlib.sha256(text.encode()).hexdigest()[:32], since)


class Leasehold:
    """How old the uncommitted objects of one session are, and its lease.

    Sessions tell it before they store anything. All methods may be called from many threads.
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
        self._lock = threading.Lock()

    @property
    def is_old(self) -> bool:
        """Whether the work is old enough to need a lease."""
        return self._age(self._now()) >= QUIET

    def writing(self) -> None:
        """To be called before objects are stored. Puts the lease when it is time."""
        now = self._now()
        with self._lock:
            self._first = self._first or now
            put = self._put
        if self._age(now) >= QUIET and (put is None or put.age(now) >= QUIET):
            self._renew()

    def count(self, since: int) -> None:
        """Objects were taken over that were stored at this store time or later."""
        with self._lock:
            self._floor = since if self._floor is None else min(since, self._floor)

    def absorb(self, other: Leasehold) -> None:
        """Objects were taken over from another session of this process."""
        with self._lock:
            self._handed |= other._handed
            theirs = other._first
            if theirs is not None and (
                self._first is None or theirs.monotonic < self._first.monotonic
            ):
                self._first, self._first_at = theirs, None
        if other._floor is not None:
            self.count(other._floor)

    def borrows(self, key: str) -> None:
        """References were taken over to objects that are kept by the snapshot file at `key`."""
        with self._lock:
            self._borrowed.add(key)

    def oldest(self) -> int | None:
        """The store time before which nothing of the work was stored; `None` if nothing was."""
        with self._lock:
            first, stored, floor = self._first, self._first_at, self._floor
        if first is not None and stored is None:
            age = first.age(self._now())
            stored = to_micros(self._clock.store_now() - age - CLOCKS_DIFFER)
            with self._lock:
                # Said once, because it is part of the name of the lease.
                if self._first is first:
                    stored = self._first_at = self._first_at or stored
        return min((time for time in (stored, floor) if time is not None), default=None)

    def hand_out(self) -> int:
        """The store time since when what is handed out now may have been stored."""
        known = [to_micros(self._clock.store_now() - CLOCKS_DIFFER), self.oldest()]
        if self._tenancy is not None:
            known.append(self._tenancy.since)
        return min(time for time in known if time is not None)

    def join(self, tenancy: Tenancy) -> None:
        """Share the lease of all who do one work."""
        with self._lock:
            self._tenancy = tenancy

    def serves(self, tenancy: Tenancy) -> None:
        """Others leave a lease for work that this session will commit."""
        with self._lock:
            self._handed.add(tenancy)

    def swap(self, move: Callable[[], T]) -> T:
        """Move a branch, if everything that it will reach is there for certain.

        Raises `SessionError` of the kind `chunks_collected` otherwise.
        """
        self._confirm()
        self._check_borrowed(landed=False)
        outcome = move()
        if isinstance(outcome, Behind):
            return outcome
        if not self._is_safe():
            self._check(landed=True)
        self._check_borrowed(landed=True)
        return outcome

    def release(self) -> None:
        """Delete the lease. If that fails, it lapses."""
        with self._lock:
            keys = {lease.key for lease in self._left}
            handed, self._left, self._put = self._handed, set(), None
        now = to_micros(self._clock.estimate())
        for tenancy in handed:
            if tenancy.since is not None and now - tenancy.since >= QUIET // _MICRO:
                keys |= {lease.key for lease in _all_slots(tenancy.owner, tenancy.since, now)}
        self._delete(keys)

    def forget(self) -> None:
        """What was stored so far will not be committed. A lease that others share stays."""
        with self._lock:
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
            log.warning("a lease could not be deleted and will lapse: %s", failed)

    def _confirm(self) -> None:
        """Put the lease, then look whether anything may have been collected before that."""
        for _ in range(_TRIES):
            now = self._now()
            if self._age(now) < QUIET:
                return
            oldest = self.oldest()
            with self._lock:
                put, leased, checked = self._put, self._leased, self._checked
            if oldest is None:
                return
            if put is None or put.age(now) >= QUIET or leased is None or leased > oldest:
                self._renew()
            elif checked is not None and checked.age(now) < QUIET:
                return
            self._check(landed=False)
            with self._lock:
                self._checked = now
            if self._is_safe():
                return
        raise SessionError(
            f"this process is too slow to hold a lease in {self._storage.location}: each try took "
            f"longer than {LIFE / 2}"
        )

    def _is_safe(self) -> bool:
        """Whether no collection can have missed the work since it was confirmed."""
        now = self._now()
        with self._lock:
            put = self._put
        return self._age(now) < QUIET or (put is not None and put.age(now) < LIFE / 2)

    def _check(self, *, landed: bool) -> None:
        oldest, before = self.oldest(), read_cutoff(self._storage)
        if oldest is None or oldest >= before:
            return
        raise SessionError(
            f"objects of this work were stored since {from_micros(oldest).isoformat()}, and a "
            f"garbage collection of {self._storage.location} has deleted what was stored before "
            f"{from_micros(before).isoformat()} and not in use, while no lease of this work was "
            f"live ({LIFE} without a write); {_LANDED if landed else _REFUSED}",
            kind=Kind.CHUNKS_COLLECTED,
        )

    def _check_borrowed(self, *, landed: bool) -> None:
        """A collection deletes a snapshot before what it needs, and looks again in between."""
        with self._lock:
            borrowed = sorted(self._borrowed)
        gone = next((key for key in borrowed if self._storage.head(key) is None), None)
        if gone is not None:
            raise SessionError(
                f"the changes of this session were made by a commit whose snapshot {gone} in "
                f"{self._storage.location} was collected, so their chunks are, too; "
                f"{_LANDED if landed else _REFUSED}",
                kind=Kind.CHUNKS_COLLECTED,
            )

    def _renew(self) -> None:
        mark = self._now()
        now = to_micros(self._clock.store_now())
        oldest = self.oldest()
        with self._lock:
            if self._tenancy is None:
                self._tenancy = Tenancy(self._world.entropy(16).hex())
            known = [time for time in (oldest, self._tenancy.since) if time is not None]
            lease = Lease(max(0, min(known, default=now)), now // _SLOT, self._tenancy.owner)
        text = f"in use since {from_micros(lease.since).isoformat()}\n"
        self._storage.put(lease.key, text.encode(), expect=Anything())
        with self._lock:
            self._left.add(lease)
            self._put, self._leased = mark, lease.since

    def _age(self, now: Moment) -> timedelta:
        with self._lock:
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
