"""Ours and the official library of both versions take turns on one repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import icechunk as official
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from support import actors
from support.turn_machine import machine

import airflow_provider_icechunk.api as ours

pytestmark = actors.needs_icechunk2


@pytest.fixture(scope="module")
def worker() -> Iterator[actors.Worker]:
    process = actors.Worker()
    yield process
    process.close()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("generation", ["1", "2"])
@pytest.mark.parametrize(
    ("examples", "steps"), [(5, 12), pytest.param(120, 30, marks=pytest.mark.long)]
)
def test_all_libraries_see_what_each_of_them_did(
    generation: str, examples: int, steps: int, worker: actors.Worker, tmp_path: Path
) -> None:
    taking_part: dict[str, actors.Actor] = {"ours": actors.local(ours), "official 2": worker}
    if generation == "1":
        taking_part["official 1.1"] = actors.local(official)
    run_state_machine_as_test(
        machine(generation, taking_part, tmp_path),
        settings=settings(max_examples=examples, stateful_step_count=steps),
    )
