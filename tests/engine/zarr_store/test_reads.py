"""Requests of one turn are answered together; what takes long comes when it is there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from airflow_provider_icechunk.engine.zarr_store.reads import Batcher, Later


def test_requests_of_one_turn_are_one_call() -> None:
    calls: list[list[int]] = []

    def answer(requests: Sequence[int]) -> list[int]:
        calls.append(list(requests))
        return [-number for number in requests]

    async def ask() -> list[int]:
        batcher = Batcher[int, int](answer)
        return await asyncio.gather(*(batcher.ask(number) for number in range(5)))

    assert asyncio.run(ask()) == [0, -1, -2, -3, -4]
    assert calls == [[0, 1, 2, 3, 4]]


def test_nobody_waits_for_a_slow_answer_that_is_not_theirs() -> None:
    released = threading.Event()

    def slow() -> str:
        assert released.wait(60)
        return "slow"

    async def ask() -> list[str]:
        batcher = Batcher[str, str](lambda names: [Later(slow), *names[1:]])
        waiting = [asyncio.ensure_future(batcher.ask(name)) for name in ("slow", "quick")]
        quick = await waiting[1]
        assert not waiting[0].done()
        released.set()
        return [quick, await waiting[0]]

    assert asyncio.run(ask()) == ["quick", "slow"]


def test_a_slow_answer_that_fails_fails_alone() -> None:
    def fail() -> str:
        raise OSError("gone")

    async def ask() -> list[str | BaseException]:
        batcher = Batcher[str, str](lambda names: [Later(fail), *names[1:]])
        return await asyncio.gather(batcher.ask("a"), batcher.ask("b"), return_exceptions=True)

    failed, fine = asyncio.run(ask())
    assert isinstance(failed, OSError)
    assert fine == "b"


def test_in_a_batch_that_fails_each_is_tried_alone() -> None:
    def answer(names: Sequence[str]) -> list[str]:
        if "bad" in names:
            raise ValueError("bad")
        return list(names)

    async def ask() -> list[str | BaseException]:
        batcher = Batcher[str, str](answer)
        return await asyncio.gather(batcher.ask("bad"), batcher.ask("b"), return_exceptions=True)

    failed, fine = asyncio.run(ask())
    with pytest.raises(ValueError, match="bad"):
        raise failed if isinstance(failed, BaseException) else AssertionError(failed)
    assert fine == "b"
