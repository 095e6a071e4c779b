"""A complete Airflow with a real scheduler and triggerer, controlled through its REST API."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tools.seaweedfs import free_ports

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 1500.0
"""Seconds to wait for anything: the machine may be busy with other tests."""
PARTS = ("metadatabase", "scheduler", "triggerer", "dag_processor")
DONE = {"success", "failed"}
_QUESTIONS = 10
"""How often a busy server is asked for the same thing."""
MARK = "TEST_AIRFLOW_OF"
"""A variable that shows whose a process is, whatever process group it joins."""


def until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Ask again and again, and return the first answer that is true."""
    limit = time.monotonic() + patience
    while True:
        if answer := condition():
            return answer
        assert time.monotonic() < limit, f"waited in vain for {what}"
        time.sleep(0.5)


def settings(home: Path, dags: Path, **connections: Mapping[str, object]) -> dict[str, str]:
    """The environment of an Airflow of its own: SQLite, free ports, quick to notice things."""
    api, worker_logs, trigger_logs = free_ports(3)
    address = f"http://127.0.0.1:{api}"
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW", "AWS", "SPARK_HOME"))
    }
    given = {
        f"AIRFLOW_CONN_{name.upper()}": json.dumps(fields) for name, fields in connections.items()
    }
    return {
        **kept,
        **given,
        MARK: str(home),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__BASE_URL": address,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(api),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": f"only-for-this-test-{'0123456789abcdef' * 4}",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{address}/execution/",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "3",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        # Files are read once, and again when a Dag is allowed to run: on a busy machine, reading
        # takes longer than anything else.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "600",
        "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "900",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "900",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "900",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_logs),
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_logs),
        # A killed worker is noticed after a minute instead of five.
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        # A busy machine is no reason for a task to give up.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        "NO_COLOR": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@contextmanager
def running(
    environment: Mapping[str, str], *commands: list[str], parts: Sequence[str] = PARTS
) -> Iterator[Airflow]:
    """Start the commands, wait until Airflow is healthy, and leave no process behind.

    :param parts: which ones have to be there.
    """
    home = Path(environment[MARK])
    airflow = Airflow(environment["AIRFLOW__API__BASE_URL"], home)
    with ExitStack() as stack:
        stack.callback(airflow.wait_for_processes)
        stack.callback(end_processes, home)
        for command in commands or [["airflow", "standalone"]]:
            airflow.start_process(command, environment)
        until(lambda: airflow.is_healthy(parts), f"a healthy Airflow; see {home}")
        yield airflow


def processes(home: Path) -> dict[int, str]:
    """Everything that descends from what was started for `home`: Spark's parts as well.

    Recognized by a variable or, since a process that sets its title overwrites its variables, by
    its working directory.
    """
    mark = f"{MARK}={home}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = (folder / "cwd").readlink() == home
            if is_ours or mark in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return {pid: command for pid, command in found.items() if command and pid != os.getpid()}


def end_processes(home: Path) -> None:
    """End them, first politely: children that were put into groups of their own are found too."""
    for sign, patience in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 15.0)):
        for pid in processes(home):
            _send(pid, sign)
        limit = time.monotonic() + patience
        while processes(home) and time.monotonic() < limit:
            time.sleep(0.2)


def _send(pid: int, sign: signal.Signals) -> None:
    try:
        os.kill(pid, sign)
    except ProcessLookupError:
        return


class AnswerError(OSError):
    """The server returned an error."""

    def __init__(self, code: int, told: str) -> None:
        super().__init__(told)
        self.code = code


@dataclass
class Airflow:
    """One running Airflow."""

    address: str
    home: Path
    _token: str | None = None
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_process(self, command: list[str], environment: Mapping[str, str]) -> None:
        """Start a part of it, which runs until all of it ends."""
        with (self.home / f"process-{len(self._processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)

    def wait_for_processes(self) -> None:
        """Wait for the end of all parts."""
        for process in self._processes:
            process.wait()

    def is_healthy(self, parts: Sequence[str] = PARTS) -> bool:
        """Whether each of these parts reports that it is alive."""
        try:
            health = self._ask("GET", "/api/v2/monitor/health", token=None)
        except OSError:
            return False
        return all(health[part]["status"] == "healthy" for part in parts)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """One request to the public interface."""
        if self._token is None:
            self._token = self._ask("GET", "/auth/token", token=None)["access_token"]
        return self._ask(method, f"/api/v2/{path}", body, token=self._token)

    def _ask(self, method: str, path: str, body: object = None, *, token: str | None) -> Any:
        """One request; reads are repeated if the server is too busy to answer."""
        left = _QUESTIONS if method == "GET" and token else 1
        while True:
            left -= 1
            try:
                return self._ask_once(method, path, body, token=token)
            except OSError as error:
                if not left or getattr(error, "code", 500) < 500:
                    raise
            time.sleep(1)

    def _ask_once(self, method: str, path: str, body: object, *, token: str | None) -> Any:
        request = urllib.request.Request(
            self.address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {token}"} if token else {}),
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                told = error.read().decode(errors="replace")
            raise AnswerError(error.code, f"{method} {path}: {error.code} {told[:1000]}") from None
        return json.loads(text) if text else None

    def knows(self, dag: str) -> bool:
        """Whether the Dag processor has read a Dag."""
        errors = self.ask("GET", "importErrors")["import_errors"]
        assert not errors, errors
        try:
            self.ask("GET", f"dags/{dag}")
        except OSError as error:
            if getattr(error, "code", None) != 404:
                raise
            return False
        return True

    def pause(self, dag: str, *, paused: bool) -> None:
        """Pause a Dag, or let it run once it is known."""
        until(lambda: self.knows(dag), f"Airflow to read {dag}")
        known = self.ask("PATCH", f"dags/{dag}", {"is_paused": paused})
        if not paused:
            # A watcher begins when the file is read the next time.
            self.ask("PUT", f"parseDagFile/{known['file_token']}")

    def start(self, dag: str, conf: Mapping[str, object] | None = None) -> str:
        """Start a run of a Dag; returns its id."""
        until(lambda: self.knows(dag), f"Airflow to read {dag}")
        self.ask("PATCH", f"dags/{dag}", {"is_paused": False})
        body = {"logical_date": None, "conf": dict(conf or {})}
        return str(self.ask("POST", f"dags/{dag}/dagRuns", body)["dag_run_id"])

    def start_day(self, dag: str, day: str) -> str:
        """Start a run for a single logical date, whatever the Dag has to catch up with."""
        until(lambda: self.knows(dag), f"Airflow to read {dag}")
        body = {"logical_date": f"{day}T00:00:00Z", "conf": {}}
        run = str(self.ask("POST", f"dags/{dag}/dagRuns", body)["dag_run_id"])
        self.ask("PATCH", f"dags/{dag}", {"is_paused": False})
        return run

    def runs(self, dag: str) -> dict[str, str]:
        """The state of each run of a Dag, oldest first."""
        found = self.ask("GET", f"dags/{dag}/dagRuns?limit=100&order_by=run_after")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in found}

    def finish(self, dag: str, run: str) -> str:
        """Wait for the end of a run; returns its state."""
        found = until(lambda: self.runs(dag).get(run) in DONE, f"the end of {dag} {run}")
        assert found
        return self.runs(dag)[run]

    def succeed(self, dag: str, conf: Mapping[str, object] | None = None) -> str:
        """Run a Dag once, which must succeed; returns the run's id."""
        run = self.start(dag, conf)
        assert self.finish(dag, run) == "success", self.explain(dag, run)
        return run

    def task(self, dag: str, run: str, task: str) -> dict[str, Any]:
        """What is known of a task instance."""
        return dict(self.ask("GET", f"dags/{dag}/dagRuns/{_part(run)}/taskInstances/{task}"))

    def result(self, dag: str, run: str, task: str) -> Any:
        """What a task returned."""
        path = f"dags/{dag}/dagRuns/{_part(run)}/taskInstances/{task}/xcomEntries/return_value"
        return self.ask("GET", f"{path}?deserialize=false&stringify=false")["value"]

    def clear(self, dag: str, run: str, *tasks: str) -> None:
        """Clear tasks of a run, so that they run again."""
        body = {
            "dry_run": False, "dag_run_id": run, "task_ids": list(tasks), "only_failed": False,
            "reset_dag_runs": True,
        }  # fmt: skip
        self.ask("POST", f"dags/{dag}/clearTaskInstances", body)

    def mark_failed(self, dag: str, run: str, task: str) -> None:
        """Mark a task as failed, as a person does to stop it."""
        path = f"dags/{dag}/dagRuns/{_part(run)}/taskInstances/{task}"
        self.ask("PATCH", path, {"new_state": "failed"})

    def is_given_back(self, dag: str, run: str, task: str) -> bool:
        """Whether the scheduler has heard that a worker has ended with a task.

        Airflow fails a waiting task that is resumed before that (apache/airflow#67287). Only the
        scheduler's log shows it.
        """
        told = f"TaskInstance Finished: dag_id={dag}, task_id={task}, run_id={run},"
        return any(told in log.read_text(errors="replace") for log in self.home.glob("*.log"))

    def answer(self, dag: str, run: str, task: str, option: str) -> None:
        """Wait until a task asks a person, and answer."""
        path = f"dags/{dag}/dagRuns/{_part(run)}/taskInstances/{task}"

        def asked() -> bool:
            state = self.ask("GET", path)["state"]
            assert state not in {"failed", "skipped", "upstream_failed"}, self.explain(dag, run)
            return state in {"awaiting_input", "deferred"}

        until(asked, f"{task} to ask")
        until(lambda: self.is_given_back(dag, run, task), f"the scheduler to hear of {task}")
        body = {"chosen_options": [option], "params_input": {}}
        self.ask("PATCH", f"{path}/-1/hitlDetails", body)

    def explain(self, dag: str, run: str) -> str:
        """The states of a run's tasks and the ends of their logs, for a test that failed."""
        path = f"dags/{dag}/dagRuns/{_part(run)}/taskInstances"
        states = [
            f"{one['task_id']}[{one['map_index']}] try {one['try_number']}: {one['state']}"
            for one in self.ask("GET", path)["task_instances"]
        ]
        folder = self.home / "logs" / f"dag_id={dag}" / f"run_id={run}"
        ends = [
            f"--- {file.relative_to(folder)}\n{file.read_text(errors='replace')[-3000:]}"
            for file in sorted(folder.rglob("*.log"))
        ]
        return "\n".join([*states, *ends])


def _part(text: str) -> str:
    return quote(text, safe="")
