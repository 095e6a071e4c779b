"""Memory limits for decoding stored files, one at a time and all together.

A small file can unpack to gigabytes. The limit applies to all memory in use, not only the unpacked
bytes: a file is refused once it takes both more than `free_bytes` and more than `ratio` times
its stored size. Valid files with one long location in every reference can take 100 times theirs.

Files that are decoded at the same time also share a budget of `free_bytes`. A thread that would
exceed it waits for the others; one file may always proceed, so there is no deadlock.
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
"""Environment variables for the two limits: set by an operator, never by a repository."""

_STEP = 256 << 10
"""Smaller amounts are not counted in the shared budget: locking would cost more than they do."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much memory one file may take."""

    free_bytes: int = 64 << 20
    """Always allowed."""
    ratio: int = 200
    """More is allowed up to this multiple of the file's size."""
    most_bytes: int | None = None
    """Upper limit."""

    def of(self, packed: int) -> int:
        """Bytes allowed for a file of `packed` bytes."""
        allowed = max(self.free_bytes, self.ratio * packed)
        return allowed if self.most_bytes is None else min(allowed, self.most_bytes)


DEFAULT: Final = Allowance()
_SMALLER = 16 << 20
_PAGE_FACTOR = 16
"""A large file may take this many times the smaller budget for a web page."""

_chosen: ContextVar[Allowance | None] = ContextVar("_chosen", default=None)


def current() -> Allowance:
    """The allowance in effect: the one set by `allowing`, or that of the environment."""
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
    """For fragments that workers return: a coordinator receives thousands of them."""
    chosen = current()
    return replace(chosen, free_bytes=min(chosen.free_bytes, _SMALLER))


def for_web_pages() -> Allowance:
    """For a web page, in a process that serves many."""
    chosen = for_fragments()
    return replace(chosen, most_bytes=_SMALLER * _PAGE_FACTOR)


@contextmanager
def allowing(allowance: Allowance) -> Iterator[None]:
    """Decode with another allowance, in this thread and in what it submits to the pool."""
    token = _chosen.set(allowance)
    try:
        yield
    finally:
        _chosen.reset(token)


class Purse:
    """The remaining allowance of one file. Entered, possibly repeatedly, while it is decoded.

    Outside of that, charges do not count in the shared budget: nothing would return them.
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
        """Bytes still allowed."""
        return max(self._allowed - self._spent, 0)

    def charge(self, size: int) -> None:
        """Charge memory that is kept until the file is decoded; call before allocating it."""
        self._spent += size
        if self._spent > self._allowed:
            raise self.refusal()
        self._unshared += size
        if self._entered and self._unshared >= _STEP:
            _SHARED.hold(self._owner, self._unshared, self._share)
            self._held += self._unshared
            self._unshared = 0

    @contextmanager
    def lending(self, size: int) -> Iterator[None]:
        """Charge memory that is freed after the block; enter before allocating it."""
        self.charge(size)
        try:
            yield
        finally:
            self._spent -= size
            self._unshared -= size

    def check(self, size: int) -> None:
        """Raise if temporary memory of this size exceeds what is left."""
        if size > self.left:
            raise self.refusal()

    def refusal(self) -> FormatError:
        """The error for a file that takes too much memory."""
        return FormatError(
            f"{self._where}: decoding takes more than {self._allowed} bytes of memory, far more "
            "than the file's size: it is damaged or malicious. If you trust it, raise the limit "
            f"in the environment: {FREE_BYTES} (bytes) or {RATIO} (multiple of the stored size)",
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
    """Memory that the threads of this process hold while they decode."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: dict[int, int] = {}
        """By thread: one that decodes nested files must not wait for itself."""
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
    """The threads that hold memory do not exist in a forked child."""
    global _SHARED
    _SHARED = _Shared()


os.register_at_fork(after_in_child=_forget)
