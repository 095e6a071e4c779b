from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Anything,
    Exactly,
    Lost,
    PutOutcome,
    Version,
    Written,
)
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.storage.readback import (
    Again,
    Other,
    Own,
    Seen,
    Uncertain,
    Unchanged,
    Unreadable,
    WriteAnswer,
    decide,
    resolve_lost_put,
)
from airflow_provider_icechunk.exceptions import Kind, OutcomeUnknownError, StorageError
from airflow_provider_icechunk.testing.storages import FlakyStorage

V = Version("7")


@pytest.mark.parametrize(
    ("answer", "seen", "doubted", "decision"),
    [
        (WriteAnswer.REFUSED, Own(V), False, Written(V)),
        (WriteAnswer.REFUSED, Own(V), True, Written(V)),
        (WriteAnswer.NONE, Own(V), False, Written(V)),
        (WriteAnswer.NONE, Own(V), True, Written(V)),
        (WriteAnswer.REFUSED, Unchanged(), False, Again()),
        (WriteAnswer.REFUSED, Unchanged(), True, Again()),
        (WriteAnswer.NONE, Unchanged(), False, Again()),
        (WriteAnswer.NONE, Unchanged(), True, Again()),
        (WriteAnswer.REFUSED, Other(), False, Lost()),
        (WriteAnswer.REFUSED, Other(), True, Uncertain),
        (WriteAnswer.NONE, Other(), False, Uncertain),
        (WriteAnswer.NONE, Other(), True, Uncertain),
        (WriteAnswer.REFUSED, Unreadable("x"), False, Uncertain),
        (WriteAnswer.REFUSED, Unreadable("x"), True, Uncertain),
        (WriteAnswer.NONE, Unreadable("x"), False, Uncertain),
        (WriteAnswer.NONE, Unreadable("x"), True, Uncertain),
    ],
)
def test_the_truth_table(answer: WriteAnswer, seen: Seen, doubted: bool, decision: object) -> None:
    decided = decide(answer, seen, doubted=doubted)
    if decision is Uncertain:
        assert isinstance(decided, Uncertain)
    else:
        assert decided == decision


def test_ten_thousand_writes_with_lost_answers_have_no_conflict_and_no_double() -> None:
    memory = MemoryStorage()
    storage = FlakyStorage(memory, 0.2, seed=1)
    outcome: PutOutcome = storage.put("ref", b"0", expect=Absent())
    for number in range(1, 10_000):
        assert isinstance(outcome, Written)
        outcome = storage.put("ref", str(number).encode(), expect=Exactly(outcome.version))
    assert storage.lost_answers > 1_000
    # The counter of versions in memory is the number of writes that took effect.
    assert outcome == Written(Version("10000"))


def test_racing_writers_with_lost_answers_never_count_twice() -> None:
    memory = MemoryStorage()
    memory.put("ref", b"0:start", expect=Absent())
    storage = FlakyStorage(memory, 0.2, seed=2)
    start = threading.Barrier(4)

    def work(worker: int) -> tuple[int, int]:
        start.wait()
        written = unknown = 0
        for step in range(100):
            found = memory.get("ref")
            assert found is not None
            count = int(found.data.split(b":")[0]) + 1
            data = f"{count}:{worker}-{step}".encode()
            try:
                outcome = storage.put("ref", data, expect=Exactly(found.version))
            except OutcomeUnknownError:
                unknown += 1
            else:
                written += isinstance(outcome, Written)
        return written, unknown

    with ThreadPoolExecutor(4) as executor:
        results = list(executor.map(work, range(4)))
    found = memory.get("ref")
    assert found is not None
    landed = int(found.data.split(b":")[0])
    written = sum(one[0] for one in results)
    unknown = sum(one[1] for one in results)
    assert written <= landed <= written + unknown


def test_a_write_that_never_landed_is_sent_again() -> None:
    memory = MemoryStorage()
    assert resolve_lost_put(memory, "ref", b"new", Absent()) == Written(Version("1"))
    outcome = resolve_lost_put(memory, "ref", b"newer", Exactly(Version("1")))
    assert outcome == Written(Version("2"))


def test_another_writers_object_leaves_the_outcome_unknown() -> None:
    memory = MemoryStorage()
    memory.put("ref", b"other", expect=Anything())
    for expect in (Absent(), Exactly(Version("99"))):
        with pytest.raises(OutcomeUnknownError, match="another writer"):
            resolve_lost_put(memory, "ref", b"mine", expect)


def test_a_failed_reading_back_leaves_the_outcome_unknown() -> None:
    class Unreachable(MemoryStorage):
        def get(self, *_: object) -> None:
            raise StorageError("gone", kind=Kind.STORAGE_UNREACHABLE)

    with pytest.raises(OutcomeUnknownError, match="reading back failed"):
        resolve_lost_put(Unreachable(), "ref", b"mine", Absent())


def test_without_resolving_the_loss_escapes_and_the_write_has_landed() -> None:
    memory = MemoryStorage()
    with pytest.raises(StorageError) as caught:
        FlakyStorage(memory, 1.0, resolve=False).put("ref", b"x", expect=Absent())
    assert caught.value.kind is Kind.STORAGE_UNREACHABLE
    assert memory.get("ref") is not None
