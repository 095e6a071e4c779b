"""The schedule of a seed: which actors, in which repository, with which faults."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from .actors import (
    KEEPERS,
    OTHERS,
    WRITERS,
    brancher,
    collector,
    driver,
    expirer,
    flusher,
    reader,
    retried_writer,
    slow_writer,
)
from .simulation import Act, Simulation, SimulationOptions, SimulationOutcome


def simulate(seed: int, *, trace: bool = False, **fixed: Any) -> SimulationOutcome:
    """Run the schedule of a seed and check it; raises `SimulationError`.

    :param fixed: options that are not drawn, such as `generation="2"`.
    """
    simulation = prepared(seed, trace=trace, **fixed)
    return simulation.run()


def prepared(seed: int, *, trace: bool = False, **fixed: Any) -> Simulation:
    """The simulation of a seed, with its actors, before it runs."""
    simulation = Simulation(SimulationOptions.drawn(seed, **fixed), trace=trace)
    random = simulation.random
    place = random.random()
    cast = _naming if place < 0.3 else _long_work if place < 0.5 else _contention
    for number, act in enumerate(cast(random)):
        simulation.start(f"{act.__name__}{number}", act)
    return simulation


def _contention(random: Random) -> Iterator[Act]:
    """Writers that compete, and others that look on or clean up."""
    # Writers of the same kind meet more often than writers of different kinds.
    usual = random.choice(WRITERS)
    for _ in range(random.choice((1, 2, 2, 3, 3))):
        yield usual if random.random() < 0.6 else random.choice(WRITERS)
    if random.random() < 0.5:
        yield random.choice(OTHERS)
    yield from (act for act in KEEPERS if random.random() < 0.35)


def _naming(random: Random) -> Iterator[Act]:
    """Names are given to snapshots that are about to be deleted."""
    if random.random() < 0.5:
        yield random.choice(WRITERS)
    yield from random.sample((brancher, brancher, flusher, reader), 2)
    yield from KEEPERS


def _long_work(random: Random) -> Iterator[Act]:
    """Work that takes days, alongside collections."""
    yield from random.sample((slow_writer, slow_writer, driver, retried_writer), 2)
    yield collector
    if random.random() < 0.3:
        yield expirer
