"""Random sequences of operations: ours against the official library, and both on one repository."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from support.machines import SharedMachine, TwinMachine

MACHINES = {"two repositories": TwinMachine, "one repository": SharedMachine}


def run(machine: str, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        MACHINES[machine], settings=settings(max_examples=examples, stateful_step_count=steps)
    )


@pytest.mark.parametrize("machine", MACHINES)
def test_both_libraries_agree(machine: str) -> None:
    run(machine, 25, 20)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("machine", MACHINES)
def test_both_libraries_agree_for_long(machine: str) -> None:
    run(machine, 150, 40)
