"""Fifty people browse a large repository at once, alone and inside of Airflow: `make test-long`.

Prints how long each view took: a figure counts only from a quiet machine. What is asserted is that
everybody is answered and that the memory of the server is bounded. `ICECHUNK_LOAD_WHOLE=1` takes
10^5 snapshots and 10^4 arrays, and `ICECHUNK_LOAD_FOLDER` keeps the repository for the next time.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.browsing import api_server, token_of
from support.large_history import FIELD, GROUPS, make_large

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
USERS = 50
SECONDS = float(os.environ.get("ICECHUNK_LOAD_SECONDS", "60"))
PAUSE = 4.0
"""Seconds between two clicks of a person, on average."""
MOST_MEMORY = 1 << 30
"""What the browser may add to the memory of its server."""


def question(rng: random.Random, versions: list[str], cursor: str | None) -> tuple[str, Any]:
    """A view that somebody opens next."""
    at = f"{rng.randrange(64)},{rng.randrange(256)},{rng.randrange(512)}"
    one = rng.choice(["main", *versions])
    drawn = {"path": FIELD, "at": at, "height": 240, "width": 480}
    return rng.choice(
        [
            ("history", {"limit": 50, **({"cursor": cursor} if cursor else {})}),
            ("snapshot", {"version": one}),
            ("tree", {"version": one, "path": f"/g{rng.randrange(GROUPS):02}", "against": "none"}),
            ("array", {"version": one, "path": FIELD}),
            ("chunks", {"version": one, "path": FIELD}),
            ("picture", {"version": one, **drawn}),
            ("compare", {"left": one, "right": "main", **drawn}),
            ("cell", {"version": one, "path": FIELD, "at": at}),
            ("summary", {}),
            ("refs", {}),
        ]
    )


async def browse(address: str, headers: Mapping[str, str]) -> dict[str, list[float]]:
    """How long each answer took, by view."""
    took: dict[str, list[float]] = defaultdict(list)
    # The server closes connections that are idle for five seconds.
    limits = httpx.Limits(keepalive_expiry=2)
    async with httpx.AsyncClient(
        base_url=address, headers=headers, timeout=60, limits=limits
    ) as client:

        async def ask(view: str, query: dict[str, Any]) -> Any:
            began = time.perf_counter()
            answer = await client.get(view, params={"repository": "large", **query})
            took[view].append(time.perf_counter() - began)
            assert answer.status_code == 200, answer.text
            return answer.json()

        versions = [one["id"] for one in (await ask("history", {"limit": 60}))["commits"]]
        until = time.monotonic() + SECONDS

        async def person(number: int) -> None:
            rng, cursor = random.Random(number), None
            while time.monotonic() < until:
                await asyncio.sleep(rng.expovariate(1 / PAUSE))
                view, query = question(rng, versions, cursor)
                found = await ask(view, query)
                cursor = found["cursor"] if view == "history" else cursor

        await asyncio.gather(*(person(number) for number in range(USERS)))
    return took


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the repository."""
    whole = os.environ.get("ICECHUNK_LOAD_WHOLE")
    kept = os.environ.get("ICECHUNK_LOAD_FOLDER")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("root")
    snapshots, arrays = (100_000, 10_000) if whole else (5_000, 2_000)
    if not (folder / "large").exists():
        make_large(folder / "large", snapshots=snapshots, arrays=arrays)
    return folder


@contextmanager
def standalone(folder: Path) -> Iterator[tuple[str, int]]:
    """The address of the browser without Airflow, and its process."""
    command = [sys.executable, "-m", "airflow_provider_icechunk", "browse", str(folder)]
    with subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        yield next(line.strip() for line in server.stderr if "http://" in line), server.pid
        server.terminate()


def peak(pid: int) -> int:
    """The most memory that a process and those that it started ever had, in bytes."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            facts = dict(line.split(":\t", 1) for line in status.read_text().splitlines())
        except FileNotFoundError:
            continue
        if "VmHWM" in facts and str(pid) in (facts["Pid"], facts["PPid"]):
            total += int(facts["VmHWM"].split()[0]) << 10
    return total


def processor(pid: int) -> float:
    """Seconds of processor that a process and those that it started took."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            facts = stat.read_text().rpartition(") ")[2].split()
        except FileNotFoundError:
            continue
        if str(pid) in (stat.parent.name, facts[1]):
            total += int(facts[11]) + int(facts[12])
    return total / os.sysconf("SC_CLK_TCK")


def idle() -> float:
    """Seconds that all processors were idle together."""
    return int(Path("/proc/stat").read_text().split()[4]) / os.sysconf("SC_CLK_TCK")


def check(address: str, pid: int, headers: Mapping[str, str]) -> None:
    """Browse, print what was measured, and look at the memory."""
    before, used, idled, began = peak(pid), processor(pid), idle(), time.monotonic()
    client = time.process_time()
    took = asyncio.run(browse(address, headers))
    after, used, idled = peak(pid), processor(pid) - used, idle() - idled
    whole = (os.cpu_count() or 1) * (time.monotonic() - began)
    others = 1 - (used + time.process_time() - client + idled) / whole
    everything = [one for times in took.values() for one in times]
    for view, times in [*sorted(took.items()), ("all", everything)]:
        times.sort()
        print(f"{view:10} {len(times):6} times, p95 {1000 * times[len(times) * 95 // 100]:6.0f} ms")
    print(f"{1000 * used / len(everything):.0f} ms of processor for an answer")
    print(f"memory {before >> 20} MiB, at most {after >> 20}")
    print(f"others took {max(0.0, others):.0%} of this machine: figures count where that is little")
    assert set(took) == {"history", "snapshot", "tree", "array", "chunks", "picture", "compare",
                         "cell", "summary", "refs"}  # fmt: skip
    assert after - before < MOST_MEMORY


def test_fifty_people_are_answered_in_bounded_memory(large: Path) -> None:
    with standalone(large) as (address, pid):
        check(f"{address}api/places/local/", pid, {})


@pytest.mark.airflow
def test_fifty_people_inside_of_airflow_are_answered_in_bounded_memory(
    large: Path, tmp_path: Path
) -> None:
    with api_server(large, tmp_path) as (address, home, pid):
        login = {"Authorization": f"Bearer {token_of(address, home, 'admin')}"}
        check(f"{address}/icechunk/api/places/icechunk_default/", pid, login)
