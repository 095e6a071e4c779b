"""Repositories to look at, and a client that looks at them without Airflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zarr
from support.browsing import SCRIPT, Ask, TestClient

from airflow_provider_icechunk.api import (
    Repository,
    VirtualChunkSpec,
    local_filesystem_storage,
)
from airflow_provider_icechunk.browser.serve import standalone
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from tools.screenshots.example import make_weather


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example, a hostile repository and one with a virtual chunk."""
    folder = tmp_path_factory.mktemp("repositories")
    make_weather(folder / "weather", days=6)
    hostile = Repository.create(local_filesystem_storage(folder / "hostile"), spec_version=2)
    session = hostile.writable_session("main")
    group = zarr.create_group(session.store, path=SCRIPT, attributes={"x": SCRIPT, "nan": "NaN"})
    group.create_array("a\u202eb", shape=(2,), dtype="i4", dimension_names=[SCRIPT])[:] = 7
    session.commit(f"{SCRIPT}\x1b[31m\u202e", metadata={"airflow": {"dag_id": 1}, SCRIPT: SCRIPT})
    hostile.create_branch("a b.c-d", hostile.lookup_branch("main"))
    (folder / "foreign.bin").write_bytes(b"\x05\x00\x00\x00" * 4)
    virtual = Repository.create(local_filesystem_storage(folder / "virtual"))
    session = virtual.writable_session("main")
    zarr.create_array(
        session.store, name="v", shape=(4,), chunks=(4,), dtype="i4", compressors=None
    )
    session.store.set_virtual_refs(
        "v",
        [VirtualChunkSpec([0], f"file://{folder}/foreign.bin", 0, 16)],
        validate_containers=False,
    )
    session.commit("refer to a foreign file")
    return folder


@pytest.fixture
def client(root: Path) -> TestClient:
    """A client of the standalone application."""
    app = standalone(lambda path: LocalStorage(root / path), "here", key="key")
    return TestClient(app, base_url="http://localhost")


@pytest.fixture
def ask(client: TestClient) -> Ask:
    """Ask for a view; the answer as JSON, after a check of its status."""

    def asked(view: str, repository: str = "weather", *, status: int = 200, **query: Any) -> Any:
        answer = client.get(
            f"/key/api/places/local/{view}", params={"repository": repository, **query}
        )
        assert answer.status_code == status, answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"] or status == 422
        return answer.json()

    return asked
