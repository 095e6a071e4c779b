"""What a task did reaches Airflow's metrics: counted by the engine, told when the task ends."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import zarr
from airflow.plugins_manager import AirflowPlugin

from airflow_provider_icechunk import compat
from airflow_provider_icechunk.api import Repository, in_memory_storage
from airflow_provider_icechunk.plugins import metrics
from airflow_provider_icechunk.plugins.icechunk_plugin import IcechunkPlugin

TASK = SimpleNamespace(dag_id="weather", task_id="commit")
TAGS = {"dag_id": "weather", "task_id": "commit"}


class Recorder:
    """A backend of Airflow's metrics."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[Any, dict[str, str]]] = {}

    def incr(self, stat: str, count: int = 1, *, tags: dict[str, str], **_: Any) -> None:
        self.seen[stat] = (count, tags)

    def timing(self, stat: str, dt: timedelta, *, tags: dict[str, str]) -> None:
        self.seen[stat] = (dt, tags)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
    from airflow.sdk.observability import stats

    made = Recorder()
    stats.initialize(factory=lambda: made, export_legacy_names=False)
    yield made
    stats.initialize(factory=NoStatsLogger, export_legacy_names=False)


def commit() -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    zarr.create_group(session.store)
    session.commit("a group")


def test_a_task_tells_what_it_did_when_it_ends_and_only_that(recorder: Recorder) -> None:
    commit()
    metrics.on_task_instance_running("queued", TASK)
    commit()
    commit()
    metrics.on_task_instance_success("running", TASK)
    assert recorder.seen["icechunk.commits"] == (2, TAGS)
    took, tags = recorder.seen["icechunk.commit_branch"]
    assert (type(took), tags) == (timedelta, TAGS)
    recorder.seen.clear()
    metrics.on_task_instance_success("running", TASK)
    assert not recorder.seen
    commit()
    metrics.on_task_instance_failed("running", TASK, ValueError())
    assert recorder.seen["icechunk.commits"] == (1, TAGS)


def test_an_airflow_without_known_metrics_is_no_reason_to_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compat, "stats", lambda: None)
    commit()
    metrics.on_task_instance_success("running", TASK)


def test_the_plugin_listens_and_loads_no_engine() -> None:
    assert issubclass(IcechunkPlugin, AirflowPlugin)
    assert IcechunkPlugin.listeners == [metrics]
    code = (
        "import sys; from airflow_provider_icechunk.plugins import icechunk_plugin as p, metrics;"
        "metrics.on_task_instance_success('running', None);"
        "print([n for n in sys.modules if n.startswith('airflow_provider_icechunk.engine.')])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert told.splitlines()[-1] == "[]"


@contextmanager
def collecting() -> Iterator[tuple[str, list[bytes]]]:
    """The address of an OpenTelemetry collector, and the bodies that it was sent."""
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", bodies
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.long
@pytest.mark.airflow
@pytest.mark.timeout(1800)
def test_a_real_run_sends_counters_to_an_opentelemetry_collector(
    airflow_home: Path, folder: Path
) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    with collecting() as (address, bodies):
        endpoint = urlsplit(address)
        given = {
            "AIRFLOW__METRICS__OTEL_ON": "True",
            "AIRFLOW__METRICS__OTEL_HOST": endpoint.hostname,
            "AIRFLOW__METRICS__OTEL_PORT": str(endpoint.port),
            "AIRFLOW__METRICS__OTEL_INTERVAL_MILLISECONDS": "200",
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{address}/v1/metrics",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
        }
        subprocess.run(
            ["airflow", "dags", "test", "icechunk_append_daily", "2026-01-02"],
            env={**os.environ, **given}, check=True, capture_output=True,
        )  # fmt: skip
    found = {}
    for body in bodies:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for scope in resource.scope_metrics:
                found |= {metric.name: metric for metric in scope.metrics}
    names = {name.removeprefix("airflow.") for name in found}
    assert {"icechunk.commits", "icechunk.commit", "icechunk.commit_branch"} <= names
    (point,) = found["airflow.icechunk.commits"].sum.data_points
    tags = {one.key: one.value.string_value for one in point.attributes}
    assert tags == {"dag_id": "icechunk_append_daily", "task_id": "append_day"}
