"""Random sequences of operations: ours against the official library, and both on one repository."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from support.machines import SharedMachine, TwinMachine
from support.places import Place, in_folder

KINDS = [
    "memory",
    "local",
    pytest.param("moto", marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    pytest.param(
        "seaweedfs", marks=[pytest.mark.long, pytest.mark.seaweedfs, pytest.mark.timeout(1800)]
    ),
]
"""On a server every step of a machine is many requests: those runs are long."""
MACHINES = {"two repositories": TwinMachine, "one repository": SharedMachine}


def run(machine: str, places: Callable[[], Place], examples: int, steps: int) -> None:
    placed = type("Placed", (MACHINES[machine],), {"places": staticmethod(places)})
    run_state_machine_as_test(
        placed, settings=settings(max_examples=examples, stateful_step_count=steps)
    )


@pytest.mark.parametrize("places", KINDS, indirect=True)
@pytest.mark.parametrize("machine", MACHINES)
def test_both_libraries_agree(
    machine: str, places: Callable[[], Place], request: pytest.FixtureRequest
) -> None:
    kind = request.node.callspec.params["places"]
    if machine == "one repository" and kind == "memory":
        assert places().official is None, "the official library cannot look into our memory"
        return
    run(machine, places, 12 if kind in ("memory", "local") else 6, 20)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("machine", MACHINES)
def test_both_libraries_agree_for_long(machine: str, tmp_path: Path) -> None:
    numbers = count()
    run(machine, lambda: in_folder(tmp_path / str(next(numbers))), 150, 40)
