"""What really happened to a conditional write whose answer was lost or doubtful.

A write can land while its answer is lost. Sent again it fails its own condition, and a writer that
trusts the second answer reports a conflict with itself, or commits twice. So the object is read
back: whoever wrote it left a mark (an id in the metadata, or the content itself). `judge` is the
whole truth table; it guesses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from airflow_provider_icechunk.exceptions import Kind, OutcomeUnknownError, StorageError
from airflow_provider_icechunk.storage.base import (
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
"""Metadata key of the mark, as in the official library since 2.2: proxies drop headers with `_`."""
_WRITE_IDS = (WRITE_ID, "icechunk_write_id")


def carries(metadata: Mapping[str, str], write_id: str) -> bool:
    """Whether an object's metadata have the mark of a write, in either spelling."""
    return any(metadata.get(name) == write_id for name in _WRITE_IDS)


class Answer(Enum):
    """What came back from a conditional write that was not confirmed."""

    REFUSED = "the store says that the condition does not hold"
    NONE = "no answer that says whether the write landed"


@dataclass(frozen=True, slots=True)
class Own:
    """The object carries the mark of this write."""

    version: Version


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The condition of this write still holds, so it has not landed, or not yet."""


@dataclass(frozen=True, slots=True)
class Other:
    """The object is neither in the expected state nor marked by this write."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Reading back failed."""

    reason: str


Seen = Own | Unchanged | Other | Unreadable


@dataclass(frozen=True, slots=True)
class Again:
    """Nothing landed that one can see; the same write may be sent again."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can tell whether the write landed."""

    reason: str


Verdict = Written | Lost | Again | Unknown


def judge(answer: Answer, seen: Seen, *, doubted: bool) -> Verdict:
    """What to make of an unconfirmed write, after reading back.

    :param doubted: whether an earlier attempt of the same write went without an answer. Then
        somebody else's object proves nothing: they may have written on top of this write.
    """
    match seen:
        case Own(version):
            return Written(version)
        case Unreadable(reason):
            return Unknown(f"and reading back failed ({reason})")
        case Unchanged():
            return Again()
        case Other():
            if answer is Answer.REFUSED and not doubted:
                return Lost()
            return Unknown("and another writer's object is there, perhaps on top of this write")
        case _:
            assert_never(seen)


def outcome_unknown(key: str, location: str, reason: str) -> OutcomeUnknownError:
    """The error for a write of which nobody can tell whether it landed."""
    return OutcomeUnknownError(
        f"the write of {key} in {location} got no clear answer, {reason}. "
        "Read before writing again, and delete nothing"
    )


def is_unanswered(error: StorageError) -> bool:
    """Whether this error leaves open if the write landed."""
    return error.kind in {Kind.STORAGE_UNREACHABLE, Kind.OUTCOME_UNKNOWN}


def resolve_lost_put(
    storage: Storage, key: str, data: Data, expect: Absent | Exactly, *, tries: int = 10
) -> PutOutcome:
    """The outcome of a conditional write whose answer was lost, told by the content of the object.

    For stores without metadata. The same bytes count as this write, which is right for everything a
    repository swaps: documents that name a fresh random id, or are equal in effect when equal.
    Sends the write again, at most `tries` times, where the condition still holds.
    """
    content = bytes(data)
    answer = Answer.NONE
    for _ in range(tries):
        verdict = judge(answer, _look(storage, key, content, expect), doubted=True)
        match verdict:
            case Written() | Lost():
                return verdict
            case Unknown(reason):
                raise outcome_unknown(key, storage.location, reason)
            case Again():
                pass
            case _:
                assert_never(verdict)
        try:
            outcome = storage.put(key, data, expect=expect)
        except StorageError as error:
            if not is_unanswered(error):
                raise
            answer = Answer.NONE
        else:
            if isinstance(outcome, Written):
                return outcome
            answer = Answer.REFUSED
    raise outcome_unknown(key, storage.location, f"{tries} times in a row")


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
