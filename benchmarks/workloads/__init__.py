"""All workloads, in the order in which they are run and reported."""

from benchmarks.model import Workload
from benchmarks.workloads import (
    chunks,
    collection,
    commits,
    concurrent,
    days,
    far,
    fragments,
    references,
)

ALL: tuple[Workload, ...] = (
    *references.WORKLOADS,
    *fragments.WORKLOADS,
    *chunks.WORKLOADS,
    *commits.WORKLOADS,
    *collection.WORKLOADS,
    *concurrent.WORKLOADS,
    *days.WORKLOADS,
    *far.WORKLOADS,
)


def named(name: str) -> Workload:
    """The workload of that name."""
    return next(workload for workload in ALL if workload.name == name)
