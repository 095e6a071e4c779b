"""Azurite, Microsoft's emulator of Azure Blob Storage, on a free loopback port, only while it is
used.

It is installed from npm into a folder of this project that git ignores, when it is first needed.
`python -m tools.azurite` prints its program or, on the error stream, why there is none.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from tools.seaweedfs import free_ports

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".azurite"
VERSION = "3"
ACCOUNT = "devstoreaccount1"
PATIENCE = 120.0


def binary() -> str | None:
    """The server's program; installed if npm is available."""
    program = FOLDER / "node_modules" / ".bin" / "azurite-blob"
    if program.exists():
        return str(program)
    found = shutil.which("azurite-blob")
    if found is not None:
        return found
    npm = shutil.which("npm")
    if npm is None:
        _say("no npm found: install Node.js, or Azurite itself, to try Azure Blob Storage")
        return None
    FOLDER.mkdir(exist_ok=True)
    command = [
        npm,
        "install",
        "--no-audit",
        "--no-fund",
        "--prefix",
        str(FOLDER),
        f"azurite@{VERSION}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode or not program.exists():
        _say(f"npm could not install Azurite: {done.stderr.strip()[-300:]}")
        return None
    return str(program)


@contextmanager
def azurite(folder: Path, program: str) -> Iterator[str]:
    """The endpoint of a server that keeps its data in `folder`, with the account in its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    command = [
        *(program, "--silent", "--disableTelemetry", "--skipApiVersionCheck"),
        *("--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)),
    ]
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)  # noqa: S603
        try:
            endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
            _wait(endpoint, process, log)
            yield endpoint
        finally:
            process.terminate()
            process.wait()


def _wait(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        if process.poll() is not None:
            raise RuntimeError(f"Azurite ended at once: {log.read_text()[-500:]}")
        try:
            urlopen(endpoint, timeout=5).close()  # noqa: S310 - our own loopback server
        except HTTPError:
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"Azurite did not answer in {PATIENCE:.0f} s: {log.read_text()[-500:]}")


def _say(text: str) -> None:
    print(f"[azurite] {text}", file=sys.stderr)


if __name__ == "__main__":
    print(binary() or "")
