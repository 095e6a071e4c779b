"""Fifty people browse a large repository at once: `make test-ui`.

Prints how long each view took: a figure counts only from a quiet machine. What is asserted is that
everybody is answered and that the memory of the server is bounded.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.large_history import FIELD, GROUPS, make_large
from support.standalone import until

from tools.seaweedfs import free_ports

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
USERS = 50
SECONDS = float(os.environ.get("ICECHUNK_LOAD_SECONDS", "60"))
PAUSE = 4.0
"""Seconds between two clicks of a person, on average."""
MOST_MEMORY = 1 << 30


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


async def browse(address: str) -> dict[str, list[float]]:
    """How long each answer took, by view."""
    took: dict[str, list[float]] = defaultdict(list)
    # The server closes connections that are idle for five seconds.
    limits = httpx.Limits(keepalive_expiry=2)
    async with httpx.AsyncClient(base_url=address, timeout=60, limits=limits) as client:

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


def test_fifty_people_are_answered_in_bounded_memory(tmp_path: Path) -> None:
    whole = os.environ.get("ICECHUNK_LOAD_WHOLE")
    snapshots, arrays = (100_000, 10_000) if whole else (5_000, 2_000)
    make_large(tmp_path / "large", snapshots=snapshots, arrays=arrays)
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "airflow_provider_icechunk", "browse", str(tmp_path)]
    with subprocess.Popen(
        [*command, "--port", str(port)], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            line = until(server.stdout.readline, "the address")
            address = next(word for word in line.split() if word.startswith("http"))
            took = asyncio.run(browse(f"{address}api/places/local/"))
            status = Path(f"/proc/{server.pid}/status").read_text()
        finally:
            server.terminate()
    for view, times in sorted(took.items()):
        times.sort()
        print(f"{view:10} {len(times):6} times, p95 {1000 * times[len(times) * 95 // 100]:6.0f} ms")
    peak = next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)
    print(f"peak memory {peak >> 10} MiB, load {os.getloadavg()[0]:.1f}")
    assert set(took) == {"history", "snapshot", "tree", "array", "chunks", "picture", "compare",
                         "cell", "summary", "refs"}  # fmt: skip
    assert peak << 10 < MOST_MEMORY
