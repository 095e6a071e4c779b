"""The schedule of a seed: which actors, in which repository, with which faults."""

from __future__ import annotations

from typing import Any

from .actors import KEEPERS, OTHERS, WRITERS
from .simulation import Options, Outcome, Simulation


def simulate(seed: int, *, trace: bool = False, **fixed: Any) -> Outcome:
    """Run the schedule of a seed and check it; raises `SimulationError`.

    :param fixed: options that are not drawn, such as `generation="2"`.
    """
    simulation = prepared(seed, trace=trace, **fixed)
    return simulation.run()


def prepared(seed: int, *, trace: bool = False, **fixed: Any) -> Simulation:
    """The simulation of a seed, with its actors, before it runs."""
    simulation = Simulation(Options.drawn(seed, **fixed), trace=trace)
    random = simulation.random
    # Writers of one kind meet each other more often than those of any kind.
    usual = random.choice(WRITERS)
    for number in range(random.choice((1, 2, 2, 3, 3))):
        act = usual if random.random() < 0.6 else random.choice(WRITERS)
        simulation.start(f"w{number}", act)
    if random.random() < 0.5:
        act = random.choice(OTHERS)
        simulation.start("x", act)
    for act in KEEPERS:
        if random.random() < 0.45:
            simulation.start(act.__name__, act)
    return simulation
