"""What a caller adds to its requests: labels, headers, time limits, keys that travel."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.core import follow
from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.engine.storage.tuning import Tuning, tuned

KEYS = {"access_key_id": "id", "secret_access_key": "hunter2"}


class Recorder(BaseHTTPRequestHandler):
    """A store with one object that remembers who asked."""

    seen: ClassVar[list[tuple[str, dict[str, str]]]]
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        """The same for all."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.seen.append((self.command, headers))
        data = b"" if self.command == "PUT" else b"data"
        self.send_response(200)
        for name, value in {
            "ETag": '"e"',
            "Content-Length": str(len(data)),
            "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_HEAD = answer

    def log_message(self, *_: object) -> None:
        """Be quiet."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    Recorder.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def at(endpoint: str, **more: Any) -> Any:
    return icechunk.s3_storage(
        bucket="bucket",
        prefix="p",
        region="us-east-1",
        endpoint_url=endpoint,
        allow_http=True,
        force_path_style=True,
        **{**KEYS, **more},
    )


@pytest.mark.parametrize("more", [{}, {"headers": {"x-team": "a"}}], ids=["native", "boto3"])
def test_requests_of_both_clients_carry_the_labels(endpoint: str, more: dict[str, Any]) -> None:
    labels = icechunk.Attribution("weather/0.9", "nightly", "u_1")
    storage = tuned(at(endpoint, **more), Tuning(user_agent=labels.user_agent))
    storage.get("k")
    storage.put("k", b"data", expect=Anything())
    expected = f"weather/0.9 {icechunk.user_agent()} (workload=nightly; principal=u_1)"
    assert {method for method, _ in Recorder.seen} >= {"GET", "PUT"}
    assert [headers["user-agent"].endswith(expected) for _, headers in Recorder.seen] == [
        True for _ in Recorder.seen
    ]


def test_a_repository_keeps_its_labels_in_a_pickle(tmp_path: Path) -> None:
    labels = icechunk.Attribution(workload="nightly")
    repository = icechunk.Repository.create(
        icechunk.local_filesystem_storage(tmp_path), attribution=labels
    )
    assert pickle.loads(pickle.dumps(repository)).attribution == labels
    assert repository.reopen().attribution == labels
    assert icechunk.Repository.open(repository.storage).attribution == icechunk.Attribution()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"workload": "a;b"}, "forbidden character"),
        ({"workload": "a\r\nX-Evil: 1"}, "forbidden character"),
        ({"principal": "x" * 129}, "longer than"),
        ({"client": "a b"}, "token characters"),
        ({"workload": ""}, "empty"),
    ],
)
def test_a_label_that_could_forge_a_header_is_refused(given: dict[str, str], reason: str) -> None:
    with pytest.raises(icechunk.InvalidInputError, match=reason):
        icechunk.Attribution(**given)


def test_headers_go_to_reads_or_writes_are_signed_and_travel(endpoint: str) -> None:
    given = at(
        endpoint,
        headers={"x-amz-both": "b"},
        read_headers={"x-amz-reading": "r"},
        write_headers={"x-amz-writing": "w"},
        allow_pickling_credentials=True,
    )
    storage = pickle.loads(pickle.dumps(given))
    storage.get("k")
    storage.put("k", b"data", expect=Anything())
    for method, headers in Recorder.seen:
        own, other = ("r", None) if method in ("GET", "HEAD") else (None, "w")
        assert headers["x-amz-both"] == "b"
        assert (headers.get("x-amz-reading"), headers.get("x-amz-writing")) == (own, other)
        assert "x-amz-both" in headers["authorization"].split("SignedHeaders=")[1]


@pytest.mark.parametrize("headers", [{"bad name": "secret-value"}, {"x-a": "secret-value\r\nb: c"}])
def test_an_invalid_header_is_refused_without_telling_its_value(headers: dict[str, str]) -> None:
    with pytest.raises(icechunk.InvalidInputError, match="invalid HTTP header") as refused:
        at("http://127.0.0.1:1", write_headers=headers)
    assert "secret-value" not in str(refused.value)


def test_time_limits_of_a_configuration_reach_the_client() -> None:
    limits = icechunk.StorageTimeoutSettings(connect_timeout_ms=1500, read_timeout_ms=2500)
    config = icechunk.RepositoryConfig(storage=icechunk.StorageSettings(timeouts=limits))
    settings = follow(at("http://127.0.0.1:1"), config).settings  # type: ignore[attr-defined]
    assert (settings.connect_timeout, settings.read_timeout) == (1.5, 2.5)


def test_keys_travel_only_if_that_was_allowed() -> None:
    with pytest.raises(TypeError, match="allow_pickling_credentials=True"):
        pickle.dumps(at("http://127.0.0.1:1"))
    allowed = at("http://127.0.0.1:1", allow_pickling_credentials=True)
    assert "hunter2" not in repr(allowed) + repr(allowed.settings)
    there = pickle.loads(pickle.dumps(allowed))
    assert there.settings == allowed.settings
    # Also on the way back.
    assert pickle.loads(pickle.dumps(there)).settings == allowed.settings


CALLS: list[str] = []


def fetch() -> icechunk.S3StaticCredentials:
    CALLS.append("")
    return icechunk.S3StaticCredentials("id", "hunter2")


def expired() -> icechunk.S3StaticCredentials:
    CALLS.append("")
    return icechunk.S3StaticCredentials("id", "hunter2", expires_after=datetime.now(UTC))


@pytest.mark.parametrize("scattered", [True, False])
def test_scattered_keys_spare_other_processes_the_call(endpoint: str, scattered: bool) -> None:
    CALLS.clear()
    chosen = {"access_key_id": None, "secret_access_key": None, "get_credentials": fetch}
    storage = at(endpoint, **chosen, scatter_initial_credentials=scattered)
    storage.get("k")
    pickled = pickle.dumps(storage)
    assert (b"hunter2" in pickled) is scattered
    pickle.loads(pickled).get("k")
    assert len(CALLS) == (1 if scattered else 2)


def test_keys_that_say_they_have_expired_are_used_once_and_asked_for_again(endpoint: str) -> None:
    CALLS.clear()
    chosen = {"access_key_id": None, "secret_access_key": None, "get_credentials": expired}
    storage = at(endpoint, **chosen)
    storage.get("k")
    first = len(CALLS)
    storage.get("k")
    assert 0 < first < len(CALLS)


def test_what_is_no_key_is_told(endpoint: str) -> None:
    chosen = {"access_key_id": None, "secret_access_key": None, "get_credentials": lambda: 42}
    with pytest.raises(icechunk.IcechunkError, match="returned a int, not S3StaticCredentials"):
        at(endpoint, **chosen).get("k")
