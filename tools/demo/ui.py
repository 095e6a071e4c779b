"""Airflow's web interface with the example DAGs and their connections in place, until Ctrl-C.

Unlike the tour, it has a scheduler, a triggerer and a DAG processor: `airflow standalone`. Its
database and its log are in `.demo/ui`, the repositories in `.demo/data`, as in the tour.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping

from tools.demo.settings import (
    CONNECTIONS,
    DATA,
    DEMO,
    EXAMPLES,
    TourError,
    check_tools,
    environment,
    make_home,
)
from tools.screenshots.example import make_weather

HOME = DEMO / "ui"
LOG = HOME / "standalone.log"
PASSWORDS = HOME / "simple_auth_manager_passwords.json.generated"
EXAMPLE = "example_weather"
"""A repository to browse before any DAG has run."""
LONGEST = 600
"""Seconds within which the web interface must respond."""


def settings(given: Mapping[str, str], port: int) -> dict[str, str]:
    """The environment of the server: every URL with the port, and no connections.

    Connections from the environment would not be listed in the web interface; they are in the
    database.
    """
    address = f"http://localhost:{port}"
    env = environment(given, HOME) | {
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": address,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
        "ICECHUNK_ARCHIVE": str(DEMO / "archive"),
    }
    return {name: value for name, value in env.items() if not name.startswith("AIRFLOW_CONN_")}


def check_port(port: int) -> None:
    """Refuse a port that is taken: Airflow would report that it is ready anyway."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise TourError(
                f"Port {port} is taken. Choose another one: make demo-ui ARGS='--port {port + 1}'"
            )


def prepare(env: Mapping[str, str]) -> None:
    """Dags, tables and connections."""
    make_home(HOME, sorted(EXAMPLES.glob("*.py")))
    DATA.mkdir(parents=True, exist_ok=True)
    if not (DATA / EXAMPLE).exists():
        make_weather(DATA / EXAMPLE)
    wanted = HOME / "connections.json"
    wanted.write_text(json.dumps(CONNECTIONS, indent=2))
    airflow(["db", "migrate"], env)
    airflow(["connections", "import", str(wanted), "--overwrite"], env)


def airflow(words: list[str], env: Mapping[str, str]) -> None:
    """Run an Airflow command to its end; its output matters if it fails."""
    print(f"  airflow {' '.join(words[:2])}", flush=True)
    answer = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "airflow", *words],
        env=dict(env),
        cwd=HOME,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if answer.returncode:
        tail = "\n".join(answer.stdout.splitlines()[-20:])
        raise TourError(f"{tail}\n`airflow {' '.join(words)}` failed with {answer.returncode}.")


def wait_until_it_answers(server: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the health page responds; a server that ends before that is an error."""
    address = f"http://127.0.0.1:{port}/api/v2/monitor/health"
    until = time.monotonic() + LONGEST
    while time.monotonic() < until:
        if server.poll() is not None:
            raise TourError(f"Airflow ended with {server.returncode}; see {LOG}")
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise TourError(f"Airflow did not answer at {address} within {LONGEST} s; see {LOG}")


def stop(server: subprocess.Popen[bytes]) -> None:
    """End the server and everything it started."""
    for sign, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, None)):
        try:
            os.killpg(server.pid, sign)
            server.wait(patience)
            # The parent ends first; the second round ends what it leaves behind.
            time.sleep(1 if sign == signal.SIGTERM else 0)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def serve(port: int) -> None:
    """Start everything, print the address, and wait for Ctrl-C."""
    env = settings(os.environ, port)
    check_tools(env)
    check_port(port)
    print("Preparing Airflow:", flush=True)
    prepare(env)
    print("  airflow standalone (this takes some seconds)", flush=True)
    with LOG.open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "airflow", "standalone"],
            env=env,
            cwd=HOME,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_it_answers(server, port)
        tell(port)
        server.wait()
        raise TourError(f"Airflow ended with {server.returncode}; see {LOG}")
    finally:
        stop(server)


def tell(port: int) -> None:
    """The address, and the user to log in as."""
    print(
        f"""
Repository browser   http://localhost:{port}/plugin/icechunk#/icechunk_default/{EXAMPLE}/history
Airflow answers at   http://localhost:{port}
User                 admin
Password             in {PASSWORDS}
Connections          {", ".join(CONNECTIONS)} (Admin, Connections)
Dags                 {len(list(EXAMPLES.glob("*.py")))}, paused; begin with icechunk_quickstart
Repositories         {DATA}
Log                  {LOG}

Ctrl-C ends everything.""",
        flush=True,
    )


def main() -> int:
    """Serve until stopped; returns the exit code."""
    parser = argparse.ArgumentParser(prog="make demo-ui", description=__doc__)
    parser.add_argument("--port", type=int, default=8080)
    port: int = parser.parse_args().port
    signal.signal(signal.SIGTERM, lambda *_: _interrupt())
    try:
        serve(port)
    except TourError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nEnded.")
    return 0


def _interrupt() -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
