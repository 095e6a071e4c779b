"""Many people in the repository browser at once: `python -m benchmarks.browser`.

Makes a repository with a long history and many arrays, serves it in a process of its own, and lets
users click through it: each requests a view, looks at it for a while, and requests the next one.
Prints how long answers took, by view, and the peak memory of the server.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import zarr

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.model import Snapshot, TransactionLog

STEP = 60_000_000
"""Microseconds between two commits."""
_SERVE = """
import sys
from pathlib import Path
from airflow_provider_icechunk.browser.serve import serve
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
root = Path(sys.argv[1])
serve(lambda path: LocalStorage(root / path), "here", port=0, key="k",
      tell=lambda address: print(address, flush=True))
"""


def make(folder: Path, snapshots: int, arrays: int) -> None:
    """A repository with many arrays in its newest version, and a long history."""
    repository = Repository.create(local_filesystem_storage(folder))
    session = repository.writable_session("main")
    zarr.create_group(session.store)
    session.commit("begin")
    core = repository.core
    last = core.refs.branch("main")
    assert last is not None
    base = core.objects.snapshot(last)
    for number in range(snapshots):
        identity = SnapshotId(os.urandom(12))
        made = Snapshot(
            identity,
            last,
            base.flushed_at + (number + 1) * STEP,
            f"commit {number}",
            {"airflow": {"dag_id": f"dag_{number % 7}", "run_id": f"r{number}", "task_id": "t"}},
            base.nodes,
        )
        core.objects.store_commit(made, TransactionLog(identity))
        last = identity
    core.storage.settle()
    repository.reset_branch("main", core.format_id(last))
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="g0/a0", shape=(200, 300), chunks=(100, 100), dtype="f4")
    stored = session.tree.node("/g0/a0")
    assert stored is not None
    document = stored.user_data
    for number in range(1, arrays):
        session.tree.put_document(f"/g{number % 100}/a{number}", document)
    zarr.open_array(session.store, path="g0/a0", mode="r+")[:] = np.random.default_rng(0).random(
        (200, 300), np.float32
    )
    session.commit("many arrays")


def browse(address: str, seed: int, until: float, pause: float, seen: dict[str, list[float]],
           problems: list[str]) -> None:  # fmt: skip
    """One user, until the time is up."""
    chosen = random.Random(seed)
    cursor: str | None = None
    while time.monotonic() < until:
        view, query = chosen.choice(
            [
                ("summary", {}),
                ("refs", {}),
                ("history", {}),
                ("history", {"cursor": cursor or ""}),
                ("snapshot", {}),
                ("tree", {"path": f"/g{chosen.randrange(100)}", "limit": 100}),
                ("array", {"path": "/g0/a0"}),
                ("picture", {"path": "/g0/a0"}),
                ("chunks", {"path": "/g0/a0"}),
            ]
        )
        asked = urllib.parse.urlencode({"repository": "big", **query})
        begun = time.perf_counter()
        try:
            with urllib.request.urlopen(f"{address}api/places/local/{view}?{asked}") as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            problems.append(f"{view} {error.code} {error.read()[:200]!r}")
            continue
        seen.setdefault(view, []).append(time.perf_counter() - begun)
        if view == "history":
            cursor = found["cursor"]
        time.sleep(chosen.uniform(0, 2 * pause))


def high_water(pid: int) -> int:
    """The most memory that a process has had so far, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> int:
    """Measure; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.browser", description=__doc__)
    parser.add_argument("--snapshots", type=int, default=100_000)
    parser.add_argument("--arrays", type=int, default=10_000)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pause", type=float, default=2.0, help="mean seconds between clicks")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        make(Path(folder, "big"), args.snapshots, args.arrays)
        print(f"made in {time.perf_counter() - begun:.0f} s, load {os.getloadavg()[0]:.1f}")
        server = subprocess.Popen(
            [sys.executable, "-c", _SERVE, folder], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            measure(server, server.stdout.readline().strip(), args)
        finally:
            server.terminate()
            server.wait()
    return 0


def measure(server: subprocess.Popen[str], address: str, args: argparse.Namespace) -> None:
    """Start the users, wait for them, and print the results."""
    for _ in range(100):
        try:
            urllib.request.urlopen(f"{address}api/home").close()
            break
        except OSError:
            time.sleep(0.2)
    until = time.monotonic() + args.seconds
    seen: list[dict[str, list[float]]] = [{} for _ in range(args.users)]
    problems: list[str] = []
    users = [
        threading.Thread(target=browse, args=(address, n, until, args.pause, seen[n], problems))
        for n in range(args.users)
    ]
    for user in users:
        user.start()
    for user in users:
        user.join()
    views = sorted({view for one in seen for view in one})
    every = {view: [t for one in seen for t in one.get(view, [])] for view in views}
    every["all"] = [t for times in list(every.values()) for t in times]
    for view, times in every.items():
        ordered = sorted(times)
        p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
        print(
            f"{view:10} {len(times):6} answers  median {statistics.median(times) * 1000:6.0f} ms  "
            f"p95 {p95 * 1000:6.0f} ms  most {ordered[-1] * 1000:6.0f} ms"
        )
    print(f"{len(problems)} errors {problems[:3]}")
    print(f"server: at most {high_water(server.pid) / 1e6:.0f} MB; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    sys.exit(main())
