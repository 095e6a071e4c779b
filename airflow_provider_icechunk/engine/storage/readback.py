"""Resolve conditional writes whose response was lost; test whether a store honours conditions.

A write can land while its response is lost. Sent again, it fails its own condition, and a writer
that trusts the second response reports a conflict with itself, or commits twice. So the object is
read back: its writer left a mark (an id in the metadata, or the content itself). `decide` is the
complete truth table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import assert_never
from uuid import uuid4

from airflow_provider_icechunk.engine.retry import at_once
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    Kind,
    OutcomeUnknownError,
    StorageError,
    UnsafeStorageError,
)

from .base import (
    Absent,
    Anything,
    Data,
    Exactly,
    Expectation,
    Lost,
    PutOutcome,
    Storage,
    Version,
    Written,
)

WRITE_ID = "icechunkwriteid"
"""Metadata key of the mark, as in official releases since 2.2: proxies drop headers with `_`."""
_WRITE_IDS = (WRITE_ID, "icechunk_write_id")
_AGAIN = at_once(10)


def carries(metadata: Mapping[str, str], write_id: str) -> bool:
    """Whether an object's metadata has the mark of a write, under either key."""
    return any(metadata.get(name) == write_id for name in _WRITE_IDS)


class WriteAnswer(Enum):
    """The response to a conditional write that was not confirmed."""

    REFUSED = "the store reported that the condition does not hold"
    NONE = "no response that shows whether the write landed"


@dataclass(frozen=True, slots=True)
class Own:
    """The object has the mark of this write."""

    version: Version


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The condition of this write still holds, so it has not landed yet."""


@dataclass(frozen=True, slots=True)
class Other:
    """The object is neither in the expected state nor has the mark of this write."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Reading back failed."""

    reason: str


Seen = Own | Unchanged | Other | Unreadable


@dataclass(frozen=True, slots=True)
class Again:
    """Nothing has visibly landed; the same write may be sent again."""


@dataclass(frozen=True, slots=True)
class Uncertain:
    """It is unknown whether the write landed."""

    reason: str


Decision = Written | Lost | Again | Uncertain


def decide(answer: WriteAnswer, seen: Seen, *, doubted: bool) -> Decision:
    """Decide the outcome of an unconfirmed write after reading back.

    :param doubted: whether an earlier attempt of the same write got no response. Then another
        writer's object proves nothing: it may have replaced this write.
    """
    match seen:
        case Own(version):
            return Written(version)
        case Unreadable(reason):
            return Uncertain(f"and reading back failed ({reason})")
        case Unchanged():
            return Again()
        case Other():
            if answer is WriteAnswer.REFUSED and not doubted:
                return Lost()
            return Uncertain(
                "and the object is now another writer's, which may have replaced this write"
            )
        case _:
            assert_never(seen)


def outcome_unknown(key: str, location: str, reason: str) -> OutcomeUnknownError:
    """The error for a write with an unknown outcome."""
    return OutcomeUnknownError(
        f"the write of {key} in {location} got no clear response, {reason}. "
        "Read before writing again, and delete nothing"
    )


def is_unanswered(error: StorageError) -> bool:
    """Whether the write may have landed despite this error."""
    return error.kind in {Kind.STORAGE_UNREACHABLE, Kind.OUTCOME_UNKNOWN}


def resolve_lost_put(
    storage: Storage, key: str, data: Data, expect: Absent | Exactly
) -> PutOutcome:
    """The outcome of a conditional write whose response was lost, from the object's content.

    For stores without metadata. Equal bytes count as this write, which is right for everything a
    repository swaps: documents with a fresh random id, or with the same effect when equal. Sends
    the write again a few times while the condition still holds.
    """
    content = bytes(data)
    answer = WriteAnswer.NONE
    for _ in _AGAIN.attempts():
        decision = decide(answer, _look(storage, key, content, expect), doubted=True)
        match decision:
            case Written() | Lost():
                return decision
            case Uncertain(reason):
                raise outcome_unknown(key, storage.location, reason)
            case Again():
                pass
            case _:
                assert_never(decision)
        try:
            outcome = storage.put(key, data, expect=expect)
        except StorageError as error:
            if not is_unanswered(error):
                raise
            answer = WriteAnswer.NONE
        else:
            if isinstance(outcome, Written):
                return outcome
            answer = WriteAnswer.REFUSED
    raise outcome_unknown(key, storage.location, f"{_AGAIN.tries} times in a row")


def _look(storage: Storage, key: str, content: bytes, expect: Expectation) -> Seen:
    try:
        found = storage.get(key)
    except StorageError as error:
        return Unreadable(error.message)
    if found is not None and found.data == content:
        return Own(found.version)
    match expect:
        case Absent():
            return Unchanged() if found is None else Other()
        case Exactly(version):
            return Unchanged() if found is not None and found.version == version else Other()
        case Anything():
            return Unchanged()
        case _:
            assert_never(expect)


PROBE_PREFIX = ".icechunk-probe-"
"""Prefix of the keys used for the test; leftovers can be ignored."""
_PASSING = {Kind.STORAGE_UNREACHABLE, Kind.STORAGE_THROTTLED, Kind.OUTCOME_UNKNOWN}


def probe_conditional_writes(storage: Storage) -> None:
    """Raise `UnsafeStorageError` unless the second of two conflicting writes loses.

    Uses a temporary key.
    """
    key = f"{PROBE_PREFIX}{uuid4().hex}"
    try:
        _try_both_conditions(storage, key)
    except (UnsafeStorageError, AccessDeniedError):
        raise
    except StorageError as error:
        if error.kind in _PASSING:
            raise
        raise _unsafe(storage, f"refuses conditional writes ({error.message})") from error
    finally:
        storage.delete([key])


def _try_both_conditions(storage: Storage, key: str) -> None:
    first = storage.put(key, b"first", expect=Absent())
    if not isinstance(first, Written):
        raise _unsafe(storage, "reports that a fresh key exists")
    if storage.put(key, b"second", expect=Absent()) != Lost():
        raise _unsafe(storage, "overwrites an object that should be created only if absent")
    if storage.put(key, b"third", expect=Exactly(first.version)) == Lost():
        raise _unsafe(storage, "reports an unchanged object as changed")
    if storage.put(key, b"fourth", expect=Exactly(first.version)) != Lost():
        raise _unsafe(storage, "overwrites an object that has changed meanwhile")


def _unsafe(storage: Storage, why: str) -> UnsafeStorageError:
    return UnsafeStorageError(
        f"{storage.location} {why}: concurrent commits would be lost there. Use a store with "
        "conditional writes (If-Match and If-None-Match), or open the repository read-only"
    )
