"""How much memory a stored file may take while it is decoded, and all of them together.

A small file can unpack to gigabytes. What counts is what is kept in memory, not only the unpacked
bytes: a file is refused as soon as that is both more than `free_bytes` and more than `ratio` times
its stored size. Honest files with one long location in every reference reach 100 times.

Files that are decoded at the same time share one more budget of `free_bytes`. Whoever would exceed
it waits for the others; one file alone may always go on, so that nobody waits for ever.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Final, Self

from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, Kind

FREE_BYTES: Final = "ICECHUNK_MAX_UNPACKED_BYTES"
RATIO: Final = "ICECHUNK_MAX_UNPACK_RATIO"
"""Environment variables with the two limits: an operator sets them, never a repository."""

_STEP = 256 << 10
"""Smaller amounts are not shared with other threads: asking costs more than they weigh."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one file may take."""

    free_bytes: int = 64 << 20
    """This much at any rate."""
    ratio: int = 200
    """More than that, as long as it is at most so many times the size of the file."""
    most_bytes: int | None = None
    """Never more than this."""

    def of(self, packed: int) -> int:
        """Bytes for a file of `packed` bytes."""
        allowed = max(self.free_bytes, self.ratio * packed)
        return allowed if self.most_bytes is None else min(allowed, self.most_bytes)


DEFAULT: Final = Allowance()
_SMALLER = 16 << 20
_PAGE_FACTOR = 16
"""How much more than the smaller budget an honest large file may take for a page."""

_chosen: ContextVar[Allowance | None] = ContextVar("_chosen", default=None)


def current() -> Allowance:
    """The allowance in force here: a chosen one, or what the environment says."""
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    free, ratio = os.environ.get(FREE_BYTES), os.environ.get(RATIO)
    if not free and not ratio:
        return DEFAULT
    return Allowance(
        _number(FREE_BYTES, free, DEFAULT.free_bytes), _number(RATIO, ratio, DEFAULT.ratio)
    )


def _number(name: str, text: str | None, default: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise InvalidInputError(
            f"the environment variable {name} is {text[:40]!r}; it must be a whole number",
            kind=Kind.INVALID_CONFIG,
        )
    return int(text)


def for_fragments() -> Allowance:
    """For what a worker hands back: a coordinator takes thousands of them."""
    chosen = current()
    return replace(chosen, free_bytes=min(chosen.free_bytes, _SMALLER))


def for_web_pages() -> Allowance:
    """For a page that somebody looks at, in a process that serves many."""
    chosen = for_fragments()
    return replace(chosen, most_bytes=_SMALLER * _PAGE_FACTOR)


@contextmanager
def allowing(allowance: Allowance) -> Iterator[None]:
    """Decode with another allowance, in this thread and in what it hands to the pool."""
    token = _chosen.set(allowance)
    try:
        yield
    finally:
        _chosen.reset(token)


class Purse:
    """What is left for one file. Entered while the file is decoded, as often as that takes.

    What is charged outside of that counts for the file alone: nobody would give it back.
    """

    __slots__ = (
        "_allowed",
        "_entered",
        "_entering",
        "_held",
        "_owner",
        "_share",
        "_spent",
        "_unshared",
        "_where",
    )

    def __init__(self, packed: int, *, where: str, allowance: Allowance | None = None) -> None:
        chosen = allowance or current()
        self._allowed = chosen.of(packed)
        self._share = chosen.free_bytes
        self._where = where
        self._spent = 0
        self._held = 0
        self._entered = 0
        self._entering = threading.Lock()
        self._owner = 0
        self._unshared = 0

    @property
    def left(self) -> int:
        """Bytes that may still be taken."""
        return max(self._allowed - self._spent, 0)

    def charge(self, size: int) -> None:
        """Take memory that stays until the file is decoded, before it is allocated."""
        self._spent += size
        if self._spent > self._allowed:
            raise self.refusal()
        self._unshared += size
        if self._entered and self._unshared >= _STEP:
            _SHARED.hold(self._owner, self._unshared, self._share)
            self._held += self._unshared
            self._unshared = 0

    def check(self, size: int) -> None:
        """Refuse memory that is needed for a moment only, if there is no room for it."""
        if size > self.left:
            raise self.refusal()

    def refusal(self) -> FormatError:
        """What is said of a file that takes too much."""
        return FormatError(
            f"{self._where}: it takes more than {self._allowed} bytes of memory, far more than its "
            "size: it is damaged or hostile. If it is trusted, set a higher limit in the "
            f"environment: {FREE_BYTES} in bytes, or {RATIO} in multiples of the stored size",
            kind=Kind.LIMIT_EXCEEDED,
        )

    def __enter__(self) -> Self:
        with self._entering:
            if not self._entered:
                self._owner, self._unshared = threading.get_ident(), 0
            self._entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._entering:
            self._entered -= 1
            if not self._entered and self._held:
                _SHARED.give_back(self._owner, self._held)
                self._held = 0


class _Shared:
    """What all threads of this process hold together while they decode."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: dict[int, int] = {}
        """By thread: one that decodes a file within a file must not wait for itself."""
        self._waiting: set[int] = set()
        self._alone: int | None = None
        """The thread that may exceed the budget."""

    def hold(self, me: int, size: int, capacity: int) -> None:
        with self._changed:
            try:
                while not self._may_hold(me, size, capacity):
                    if me not in self._waiting:
                        self._waiting.add(me)
                        self._changed.notify_all()
                    self._changed.wait()
            finally:
                self._waiting.discard(me)
            self._held[me] = self._held.get(me, 0) + size

    def give_back(self, me: int, size: int) -> None:
        with self._changed:
            left = self._held.get(me, 0) - size
            if left > 0:
                self._held[me] = left
            else:
                self._held.pop(me, None)
                if self._alone == me:
                    self._alone = None
            self._changed.notify_all()

    def _may_hold(self, me: int, size: int, capacity: int) -> bool:
        if sum(self._held.values()) + size <= capacity or self._alone == me:
            return True
        others = self._held.keys() - {me}
        if self._alone is None and others <= self._waiting:
            self._alone = me
            return True
        return False


_SHARED = _Shared()


def _forget() -> None:
    """A forked child has none of the threads that hold something."""
    global _SHARED
    _SHARED = _Shared()


os.register_at_fork(after_in_child=_forget)
