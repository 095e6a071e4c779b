"""The services of `docker-compose.yaml`, started on this machine with their commands and settings.

Names of hosts become loopback and ports become free ones, since all of them share one network here.
Each part of Airflow keeps a home of its own, as in its container. The tables are in PostgreSQL if
its programs and drivers are installed, and in SQLite otherwise.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml
from support.standalone import MARK, ROOT, Airflow, end_processes, processes, until

from airflow_provider_icechunk.api import Repository, s3_storage
from tools.seaweedfs import free_ports

pytestmark = [
    pytest.mark.long,
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("default"),
]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())[
    "services"
]
NUMBERS = ("7077", "8080", "8081", "8082", "8333")
"""The ports that the file names."""
STAYING = [
    "airflow-apiserver", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer",
]  # fmt: skip


@dataclass
class Native:
    """The file, translated to this machine."""

    home: Path
    ports: dict[str, str]
    database: str
    services: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def text(self, given: str) -> str:
        """A word of the file with defaults filled in, and hosts and ports of this machine."""
        text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", given).replace("$$", "$")
        text = re.sub(r"postgresql\+psycopg2://\S+", self.database, text)
        text = re.sub(r"\b(seaweedfs|spark-master|airflow-apiserver|localhost|0\.0\.0\.0)\b",
                      "127.0.0.1", text)  # fmt: skip
        return re.sub(
            rf"(?<!\d)({'|'.join(NUMBERS)})(?!\d)", lambda found: self.ports[found[1]], text
        )

    def command(self, name: str) -> list[str]:
        words = [self.text(word) for word in SERVICES[name]["command"]]
        return [word.replace("-dir=/data", f"-dir={self.home / 's3'}") for word in words]

    def environment(self, name: str) -> dict[str, str]:
        own = self.home / name
        own.mkdir(exist_ok=True)
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("AIRFLOW", "AWS", "SPARK"))
        }
        given = {
            key: self.text(value) for key, value in SERVICES[name].get("environment", {}).items()
        }
        if "SPARK_WORKER_DIR" in given:
            given["SPARK_WORKER_DIR"] = str(own)
        return {**kept, **given, **self._instead_of_the_image(own)}

    def _instead_of_the_image(self, own: Path) -> dict[str, str]:
        """What the image, the volumes and the network of their own do for containers."""
        programs = [str(Path(sys.executable).parent), str(Path(pyspark.__file__).parent / "bin")]
        trigger_logs, worker_logs = free_ports(2)
        return {
            MARK: str(self.home),
            "AIRFLOW_HOME": str(own),
            "ICECHUNK_ARCHIVE": str(self.home / "archive"),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": self.ports["8080"],
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "600",
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "900",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.home / "logs"),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_logs),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(worker_logs),
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            "HOSTNAME": os.uname().nodename,
            "NO_COLOR": "1",
            "PATH": os.pathsep.join([*programs, os.environ.get("PATH", "")]),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    def start(self, name: str, *more: str) -> None:
        """Start a service; it ends with `end_processes`."""
        with (self.home / f"{name}.log").open("wb") as log:
            service = subprocess.Popen(
                [*self.command(name), *more],
                env=self.environment(name),
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.services.append(service)

    def wait_for_services(self) -> None:
        """Wait for the end of all that was started."""
        for service in self.services:
            service.wait()

    def is_healthy(self, name: str) -> bool:
        """What the health check of the file says."""
        kind, *check = SERVICES[name]["healthcheck"]["test"]
        command = ["sh", "-c", self.text(check[0])] if kind == "CMD-SHELL" else check
        words = [self.text(word) for word in command]
        answer = subprocess.run(
            words, env=self.environment(name), capture_output=True, timeout=120, check=False
        )
        return answer.returncode == 0


@contextmanager
def postgres() -> Iterator[str]:
    """The address of a database of its own; SQLite where PostgreSQL is not installed."""
    missing = [name for name in ("initdb", "postgres") if shutil.which(name) is None]
    missing += [name for name in ("psycopg2", "asyncpg") if find_spec(name) is None]
    folder = Path(tempfile.mkdtemp(prefix="compose-database-"))
    try:
        if missing:
            print(f"SQLite instead of PostgreSQL: there is no {', '.join(missing)}")
            yield f"sqlite:///{folder}/airflow.db"
            return
        # PostgreSQL refuses to run as root.
        user = "postgres" if os.geteuid() == 0 else None
        if user:
            shutil.chown(folder, user)
        (port,) = free_ports(1)
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        make = ["initdb", "-D", str(folder / "data"), "-U", "airflow", "-A", "trust", "-E", "UTF8"]
        subprocess.run(make, user=user, env=environment, check=True, capture_output=True, cwd="/")
        serve = ["postgres", "-D", str(folder / "data"), "-p", str(port), "-k", str(folder)]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [*serve, "-h", "127.0.0.1"], user=user, env=environment, stdout=log, stderr=log,
                cwd="/",
            )  # fmt: skip
        try:
            yield f"postgresql+psycopg2://airflow:airflow@127.0.0.1:{port}/airflow"
        finally:
            server.terminate()
            server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_database(address: str) -> None:
    """The database that the image of PostgreSQL makes by itself."""
    if address.startswith("sqlite"):
        return
    import psycopg2

    def connects() -> bool:
        try:
            where = address.replace("+psycopg2", "").rpartition("/")[0] + "/postgres"
            connection = psycopg2.connect(where)
        except psycopg2.OperationalError:
            return False
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE airflow")
        connection.close()
        return True

    until(connects, "PostgreSQL")


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Native]:
    home = tmp_path_factory.mktemp("compose")
    (home / "s3").mkdir()
    free = [str(port) for port in free_ports(len(NUMBERS))]
    with postgres() as database, ExitStack() as stack:
        made = Native(home, dict(zip(NUMBERS, free, strict=True)), database)
        stack.callback(made.wait_for_services)
        stack.callback(end_processes, home)
        make_database(database)
        start_all(made)
        yield made
    assert not processes(home)


def start_all(native: Native) -> None:
    """In the order in which compose starts them: each waits for those it depends on."""
    inner = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port",
             "filer.port.grpc", "s3.port.grpc")  # fmt: skip
    free = free_ports(len(inner))
    flags = [f"-{name}={port}" for name, port in zip(inner, free, strict=True)]
    more = {"seaweedfs": [*flags, "-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false"]}
    started: set[str] = {"postgres"}
    while waiting := [name for name in SERVICES if name not in started]:
        ready = [name for name in waiting if set(SERVICES[name].get("depends_on", {})) <= started]
        assert ready, waiting
        for name in ready:
            if name == "airflow-init":
                run_once(native, name)
            else:
                native.start(name, *more.get(name, []))
        for name in ready:
            if name != "airflow-init":
                until(lambda name=name: native.is_healthy(name), f"{name}; see {native.home}")
            started.add(name)


def run_once(native: Native, name: str) -> None:
    answer = subprocess.run(
        native.command(name),
        env=native.environment(name),
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


def keys(native: Native) -> Mapping[str, str]:
    return native.environment("airflow-scheduler")


def test_the_quickstart_runs_on_the_cluster_and_lands_in_the_bucket(native: Native) -> None:
    connection = json.loads(keys(native)["AIRFLOW_CONN_ICECHUNK_DEFAULT"])
    airflow = Airflow(f"http://127.0.0.1:{native.ports['8080']}", native.home)
    assert airflow.is_healthy()
    airflow.succeed("icechunk_quickstart")
    repository = Repository.open(
        s3_storage(
            bucket=connection["host"], prefix="weather", allow_http=True, force_path_style=True,
            endpoint_url=connection["extra"]["endpoint_url"], region="us-east-1",
            access_key_id=connection["login"], secret_access_key=connection["password"],
        )
    )  # fmt: skip
    assert len(list(repository.ancestry(branch="main"))) == 2
    log = (native.home / "spark-master.log").read_text()
    assert "Registered app icechunk weather" in log


def test_the_trigger_of_a_watcher_crosses_the_containers(native: Native) -> None:
    """The triggerer reads what the API server stored: they share the Fernet key."""
    airflow = Airflow(f"http://127.0.0.1:{native.ports['8080']}", native.home)
    homes = [native.home / name / "airflow.cfg" for name in STAYING]
    assert all(home.exists() for home in homes)
    dag = "icechunk_event_driven"
    airflow.pause(dag, paused=False)
    script = """
        from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
        import zarr
        session = IcechunkHook().open("weather").writable_session("main")
        zarr.open_group(session.store, mode="a").attrs["touched"] = {}
        session.commit("from outside")
    """
    body = "\n".join(line.strip() for line in script.strip().splitlines())
    number = 0

    def one_more() -> bool:
        nonlocal number
        number += 1
        subprocess.run(
            [sys.executable, "-c", body.replace("{}", str(number))], env=keys(native), check=True
        )
        return "success" in airflow.runs(dag).values()

    until(one_more, "a run for a commit")
    airflow.pause(dag, paused=True)


def test_every_word_of_the_file_was_understood(native: Native) -> None:
    for name, service in SERVICES.items():
        if name == "postgres":
            continue
        text = shlex.join(native.command(name)) + json.dumps(
            {key: native.text(value) for key, value in service.get("environment", {}).items()}
        )
        assert not re.search(r"\$\{|seaweedfs:|spark-master:|@postgres", text), name
