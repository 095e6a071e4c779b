"""Whole workloads from one seed: processes, storage, clock and faults, deterministic and checked.

`simulate(seed)` runs one schedule of the built-in workload. Your own pipelines run in a
`Simulation`: start functions as processes, run it, and everything that was acknowledged is checked.
"""

from .faults import Fault, Faults
from .ledger import Intent, Ledger, ViolationError, Witness
from .scheduler import EndlessError, Policy
from .simulation import Process, Simulation, SimulationError, SimulationOptions, SimulationOutcome
from .workload import prepared, simulate

__all__ = [
    "EndlessError",
    "Fault",
    "Faults",
    "Intent",
    "Ledger",
    "Policy",
    "Process",
    "Simulation",
    "SimulationError",
    "SimulationOptions",
    "SimulationOutcome",
    "ViolationError",
    "Witness",
    "prepared",
    "simulate",
]
