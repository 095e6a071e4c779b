"""The measured process: one case, once. Started by `benchmarks.runner`.

The answer goes to a file, because libraries write to the standard streams as they please.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchmarks.model import Case, SkippedError, Workload
from benchmarks.proxy import taken
from benchmarks.sampling import Sampler
from benchmarks.workloads import named

_STATUS = Path("/proc/self/status")
_PACKAGES = ("icechunk", "zarr", "numpy", "boto3")


def main(order: dict[str, Any]) -> None:
    """Carry out one request of the runner."""
    case = Case(
        contender=order["contender"],
        size=order["size"],
        folder=Path(order["folder"]),
        endpoint=order["endpoint"],
        prefix=order["prefix"],
    )
    workload = named(order["workload"])
    answer: dict[str, Any]
    try:
        if order["phase"] == "prepare":
            workload.prepare(case)
            answer = {}
        else:
            answer = measure(workload, case, order.get("profile"), order.get("counters"))
    except SkippedError as reason:
        answer = {"skipped": str(reason)}
    answer["versions"] = _versions()
    Path(order["answer"]).write_text(json.dumps(answer))


def measure(
    workload: Workload, case: Case, profile: str | None = None, counters: int | None = None
) -> dict[str, Any]:
    """Set up, run under the clock, and check the result."""
    case.import_everything(boto3=workload.deletes)
    state = workload.setup(case)
    gc.collect()
    if counters is not None:
        taken(counters)
    reset_peak()
    with Sampler(Path(profile)) if profile else nullcontext():
        cpu, begin = process_time(), perf_counter()
        result = workload.run(case, state)
        seconds, cpu_seconds = perf_counter() - begin, process_time() - cpu
    peak = peak_bytes()
    counted = {} if counters is None else taken(counters)
    workload.check(case, state, result)
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_bytes": peak, **counted}


def reset_peak() -> None:
    """Forget how much memory the setup took; where that is impossible, it stays counted."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_bytes() -> int:
    """The most memory this process, or the largest of its children, has had."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * _unit()
    return max(children, _own_peak())


def _own_peak() -> int:
    # `ru_maxrss` includes the process that started this one; the kernel's own mark covers only
    # this program.
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _unit()


def _unit() -> int:
    return 1 if sys.platform == "darwin" else 1024


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
