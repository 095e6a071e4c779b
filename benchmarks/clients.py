"""Ways to access a bucket, compared: our storage, the plain boto3 client, and obstore.

Run from the repository root: `python -m benchmarks.clients [rounds]`. It starts a server, lets the
contenders take turns, and prints medians with their ratio to our storage.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np

from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.engine.storage.s3.client import make_client
from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings
from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage
from airflow_provider_icechunk.engine.storage.secrets import static_credentials
from benchmarks.model import ACCESS_KEY, BUCKET, SECRET_KEY
from benchmarks.report import aligned
from tools.seaweedfs import Account, seaweedfs

AT_ONCE = 10
"""The number of concurrent requests that Zarr makes by default."""
CASES = {"4 KiB": (4 << 10, 400), "1 MiB": (1 << 20, 96)}
HEADER = ("what", "contender", "median", "processor", "ours / it: time", "processor")

Client = tuple[Callable[[str, bytes], object], Callable[[str], object]]
"""How to put and how to get one object."""


def contenders(endpoint: str) -> dict[str, Client]:
    """Every way available on this machine."""
    storage = S3Storage(
        S3Settings(
            BUCKET,
            "clients",
            region="us-east-1",
            endpoint_url=endpoint,
            credentials=static_credentials(ACCESS_KEY, SECRET_KEY),
            force_path_style=True,
            allow_http=True,
        )
    )
    client = make_client(storage.settings)
    found: dict[str, Client] = {
        "ours": (
            lambda key, data: storage.put(key, data, expect=Anything()),
            lambda key: storage.get(key),
        ),
        "boto3": (
            lambda key, data: client.put_object(Bucket=BUCKET, Key=key, Body=data),
            lambda key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read(),
        ),
    }
    found["obstore"] = _obstore(endpoint)
    return found


def _obstore(endpoint: str) -> Client:
    import obstore
    from obstore.store import S3Store

    store: Any = S3Store(
        BUCKET,
        endpoint=endpoint,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    return (
        lambda key, data: obstore.put(store, key, data, use_multipart=False),
        lambda key: obstore.get(store, key).bytes().to_bytes(),
    )


def _putting(put: Callable[[str, bytes], object], data: bytes) -> Callable[[str], object]:
    return lambda key: put(key, data)


def timed(work: Callable[[str], object], keys: Sequence[str]) -> tuple[float, float]:
    """Wall and processor seconds of all requests, some at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(work, keys[:AT_ONCE]))
        begin, cpu = perf_counter(), process_time()
        list(pool.map(work, keys))
        return perf_counter() - begin, process_time() - cpu


def measure(endpoint: str, rounds: int) -> list[tuple[str, ...]]:
    """Rows of the table."""
    rows: list[tuple[str, ...]] = []
    ways = contenders(endpoint)
    for title, (size, count) in CASES.items():
        data = np.random.default_rng(0).bytes(size)
        for verb in ("put", "get"):
            seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
            for _ in range(rounds):
                for name, (put, get) in ways.items():
                    keys = [f"{name}-{title}-{number}" for number in range(count)]
                    work = _putting(put, data) if verb == "put" else get
                    seconds[name].append(timed(work, keys))
            rows += _rows(f"{verb} {count} x {title}", seconds)
    return rows


def _rows(what: str, seconds: dict[str, list[tuple[float, float]]]) -> list[tuple[str, ...]]:
    medians = {
        name: tuple(median(column) for column in zip(*found, strict=True))
        for name, found in seconds.items()
    }
    ours = medians["ours"]
    return [
        (
            what,
            name,
            f"{wall:.2f} s",
            f"{cpu:.2f} s",
            "" if name == "ours" else f"{ours[0] / wall:.2f}",
            "" if name == "ours" else f"{ours[1] / cpu:.2f}",
        )
        for name, (wall, cpu) in medians.items()
    ]


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with (
        tempfile.TemporaryDirectory(prefix="icechunk-clients-") as folder,
        seaweedfs(
            Path(folder) / "seaweedfs",
            Account(ACCESS_KEY, SECRET_KEY, BUCKET),
            volume_megabytes=256,
        ) as endpoint,
    ):
        print(aligned(HEADER, measure(endpoint, rounds)))


if __name__ == "__main__":
    main()
