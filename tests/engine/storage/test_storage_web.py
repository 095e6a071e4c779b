"""Repositories behind a web server, which can be read and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import zarr

from airflow_provider_icechunk.api import (
    Repository,
    http_storage,
    local_filesystem_storage,
    redirect_storage,
)
from airflow_provider_icechunk.engine.storage.base import Absent, Bounded, From, Last, Until
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    InvalidInputError,
    StorageError,
)

TARGETS = {
    "/to-bucket": "s3://bucket/prefix",
    "/to-next": "/to-bucket",
    "/to-files": "file:///etc",
    "/to-itself": "/to-itself",
}


class Files(SimpleHTTPRequestHandler):
    """Serves files, without ranges, and some redirects."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        target = TARGETS.get(self.path)
        if target is None:
            super().do_GET()
            return
        self.send_response(302)
        self.send_header("Location", target)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Be quiet."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(tmp_path)))
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


PLAIN = {"allow_http": "true"}


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_repository_is_read_and_not_written(url: str, tmp_path: Path, spec_version: int) -> None:
    storage = local_filesystem_storage(tmp_path / "repo")
    session = Repository.create(storage, spec_version=spec_version).writable_session("main")
    zarr.create_array(session.store, name="a", data=np.arange(1000), chunks=(100,))
    session.commit("filled")
    web = http_storage(f"{url}/repo", PLAIN)
    repository = Repository.open(web)
    array = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
    assert array[999] == 999
    assert next(info.message for info in repository.ancestry(branch="main")) == "filled"
    with pytest.raises(AccessDeniedError, match="neither written nor listed"):
        repository.create_tag("t", snapshot_id=repository.lookup_branch("main"))


def test_ranges_are_cut_where_the_server_ignores_them(url: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"0123456789")
    web = http_storage(url, PLAIN)
    for asked, data in (
        (None, b"0123456789"),
        (Bounded(2, 5), b"234"),
        (From(8), b"89"),
        (Last(3), b"789"),
        (Until(8), b"01"),
        (Bounded(20, 30), b""),
    ):
        found = web.get("x", asked)
        assert found is not None
        assert found.data == data
    assert web.get("absent") is None
    head = web.head("x")
    assert head is not None
    assert head.size == 10
    assert web.now().tzinfo is not None
    with pytest.raises(AccessDeniedError):
        web.put("x", b"", expect=Absent())
    assert web.delete(["x"]).keys == ()


def test_plain_http_has_to_be_allowed() -> None:
    with pytest.raises(InvalidInputError, match="not encrypted"):
        http_storage("http://host/path")


def test_a_redirect_leads_to_a_bucket_and_nowhere_else(url: str) -> None:
    assert redirect_storage(f"{url}/to-bucket").location == "s3://bucket/prefix"
    assert redirect_storage(f"{url}/to-next").location == "s3://bucket/prefix"
    for path in ("to-files", "to-itself", "absent"):
        with pytest.raises(StorageError, match="does not lead to a storage"):
            redirect_storage(f"{url}/{path}")
