"""Conditional writes: sent once, and settled by reading back where the answer proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from airflow_provider_icechunk.engine import counters
from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Exactly,
    Lost,
    PutOutcome,
    Version,
    Written,
)
from airflow_provider_icechunk.engine.storage.readback import (
    Again,
    Other,
    Own,
    Seen,
    Uncertain,
    Unchanged,
    Unreadable,
    WriteAnswer,
    carries,
    decide,
    outcome_unknown,
)
from airflow_provider_icechunk.exceptions import IcechunkError

from .requests import Requests
from .troubles import UNANSWERED, Trouble


def settle_put(
    requests: Requests,
    key: str,
    expect: Absent | Exactly,
    *,
    write_id: str,
    send: Callable[[], Version],
) -> PutOutcome:
    """Write conditionally, and determine the outcome.

    :param write_id: the mark in the object's metadata, the same for all attempts, so whichever
        lands is recognized.
    :param send: makes one request, without retries.
    """
    doubted = False
    refused = False
    failure: BaseException | None = None
    for _ in requests.retry.attempts():
        try:
            return Written(send())
        except requests.failures as error:
            failure = error
        trouble = requests.classify(failure)
        answered = _answered(trouble, expect)
        if answered is None:
            if trouble not in {Trouble.THROTTLED, Trouble.UNREACHABLE}:
                raise requests.error(failure, "write", key) from failure
            refused = False
            counters.add("retries")
            continue
        decision = decide(answered, _look(requests, key, expect, write_id), doubted=doubted)
        match decision:
            case Written() | Lost():
                return decision
            case Uncertain(reason):
                raise outcome_unknown(key, requests.location, reason) from failure
            case Again():
                counters.add("retries")
                doubted = doubted or answered is WriteAnswer.NONE
                refused = answered is WriteAnswer.REFUSED
            case _:
                assert_never(decision)
    if doubted:
        raise outcome_unknown(key, requests.location, "and there are no tries left") from failure
    if refused or failure is None:
        return Lost()
    raise requests.error(failure, "write", key) from failure


def _answered(trouble: Trouble, expect: Absent | Exactly) -> WriteAnswer | None:
    """What a failed attempt shows about the write; `None` if it certainly did not land."""
    if trouble is Trouble.REFUSED:
        return WriteAnswer.REFUSED
    if trouble is Trouble.MISSING and isinstance(expect, Exactly):
        return WriteAnswer.REFUSED
    if trouble in UNANSWERED:
        return WriteAnswer.NONE
    return None


def _look(requests: Requests, key: str, expect: Absent | Exactly, write_id: str) -> Seen:
    try:
        found = requests.head(key)
    except IcechunkError as error:
        return Unreadable(error.message)
    if found is None:
        return Unchanged() if isinstance(expect, Absent) else Other()
    if carries(found.metadata, write_id):
        return Own(found.version)
    if isinstance(expect, Exactly) and _same(found.version, expect.version):
        return Unchanged()
    return Other()


def _same(one: Version, other: Version) -> bool:
    return one.strip('"') == other.strip('"')
