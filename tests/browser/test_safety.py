"""Nothing writes, nothing is unbounded, and stored or typed text is never more than text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from fastapi.dependencies.utils import get_flat_dependant
from support.browsing import NASTY, SCRIPT, Ask, TestClient

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.browser import app as application
from airflow_provider_icechunk.browser import pictures
from airflow_provider_icechunk.browser.bounds import BoundedStorage, RequestLimits, bounded
from airflow_provider_icechunk.browser.contents import Trees, VersionDifferences, read_tree
from airflow_provider_icechunk.browser.places import Memory, check_path
from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import (
    IcechunkError,
    InvalidInputError,
    Kind,
    ReadOnlyError,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
VIEWS = sorted(
    route.path.removeprefix("/api/places/{connection_id}/")  # type: ignore[attr-defined]
    for route in application.readers.routes
)


def parameters(view: str) -> list[str]:
    """The names that a view takes from the address."""
    (route,) = (one for one in application.readers.routes if one.path.endswith(f"/{view}"))  # type: ignore[attr-defined]
    return [one.name for one in get_flat_dependant(route.dependant).query_params]  # type: ignore[attr-defined]


@pytest.mark.parametrize("view", VIEWS)
def test_no_view_takes_typed_text_for_anything_but_text(
    client: TestClient, root: Path, view: str
) -> None:
    before = sorted(root.rglob("*"))
    usual = {"repository": "weather", "path": "/surface/time", "left": "v1"}
    address = f"/key/api/places/local/{view.replace('{what}', 'expire')}"
    assert "repository" in parameters(view) or view == "repositories"
    for name in parameters(view):
        for value in NASTY:
            answer = client.get(address, params={**usual, name: value})
            assert answer.status_code in (200, 400, 404, 413, 422), (name, value, answer.text)
            assert answer.headers["content-type"] == "application/json"
            assert "set-cookie" not in answer.headers
            assert "root:x:0" not in answer.text
            assert "Traceback" not in answer.text
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("value", NASTY)
def test_no_place_and_no_file_but_the_known_ones(client: TestClient, value: str) -> None:
    from urllib.parse import quote

    place = quote(value, safe="")
    answer = client.get(f"/key/api/places/{place}/refs", params={"repository": "weather"})
    assert answer.status_code in (404, 400)
    assert client.get(f"/key/static/{place}").status_code == 404
    assert client.get("/key/static/..%2fapp.py").status_code == 404


def test_stored_text_stays_what_it_is(ask: Ask) -> None:
    page = ask("history", "hostile")
    assert page["commits"][0]["message"] == f"{SCRIPT}\x1b[31m\u202e"
    assert page["commits"][0]["maker"] is None
    (group,) = ask("tree", "hostile")["nodes"]
    assert (group["name"], group["children"]) == ("script>", 0) or SCRIPT.startswith(group["name"])
    found = ask("tree", "hostile", search="a\u202eb")["nodes"][0]
    assert ask("array", "hostile", path=found["path"])["axes"][0]["name"] == SCRIPT
    assert ask("history", "hostile", version="branch:a b.c-d")["commits"]


@pytest.mark.parametrize("method", ["post", "put", "delete", "patch"])
@pytest.mark.parametrize("view", VIEWS)
def test_every_route_only_reads(client: TestClient, method: str, view: str) -> None:
    answer = getattr(client, method)(f"/key/api/places/local/{view}?repository=weather")
    assert answer.status_code == 405


def test_the_storage_below_refuses_to_write_and_to_delete() -> None:
    storage = BoundedStorage(MemoryStorage())
    attempts: list[Callable[[], Any]] = [
        lambda: storage.put("a", b"", expect=Anything()),
        lambda: storage.put_many([]),
        lambda: storage.delete(["a"]),
        lambda: storage.remove_unfinished(["a"]),
    ]
    for attempt in attempts:
        with pytest.raises(ReadOnlyError):
            attempt()


@pytest.mark.parametrize(
    "limits",
    [RequestLimits(requests=1), RequestLimits(bytes=10), RequestLimits(seconds=-1)],
    ids=str,
)
def test_a_request_ends_at_each_of_its_limits(root: Path, limits: RequestLimits) -> None:
    repository = Repository.open(
        BoundedStorage(local_filesystem_storage(root / "weather"))  # type: ignore[arg-type]
    )
    with bounded(limits), pytest.raises(IcechunkError) as caught:
        repository.verify()
    assert caught.value.kind is Kind.LIMIT_EXCEEDED
    assert repository.verify().ok


def test_limits_hold_in_the_threads_of_zarr_too(root: Path) -> None:
    repository = Repository.open(
        BoundedStorage(local_filesystem_storage(root / "weather"))  # type: ignore[arg-type]
    )
    with bounded(RequestLimits(bytes=20_000)), pytest.raises(IcechunkError) as caught:
        pictures.draw(repository, "main", "/surface/temperature", pictures.PicturePart())
    assert caught.value.kind is Kind.LIMIT_EXCEEDED


@pytest.mark.parametrize(
    ("length", "chunk", "most", "chunks"),
    [(10, 3, 100, 100), (10_000, 10, 64, 1000), (10**12, 1, 640, 32), (7, 7, 3, 1), (5, 9, 9, 1)],
)
def test_samples_are_inside_rising_and_out_of_few_chunks(
    length: int, chunk: int, most: int, chunks: int
) -> None:
    found = pictures.sample(0, length, chunk, most, chunks)
    assert 0 < len(found.indices) <= most
    assert (np.diff(found.indices) > 0).all()
    assert found.indices[0] >= 0
    assert found.indices[-1] < length
    assert len(np.unique(found.indices // chunk)) <= min(chunks, found.all_chunks)


def test_a_huge_array_is_drawn_out_of_a_bounded_number_of_chunks(tmp_path: Path) -> None:
    repository = Repository.create(local_filesystem_storage(tmp_path))
    session = repository.writable_session("main")
    array = zarr.create_array(
        session.store, name="a", shape=(1 << 20, 1 << 20), chunks=(512, 512), dtype="f8"
    )
    array[:512, :512] = 1.0
    session.commit("huge")
    found = pictures.draw(repository, "main", "/a", pictures.PicturePart())
    assert found.sampled
    assert found.chunks_total == 2048 * 2048
    assert found.chunks_read * 512 * 512 * 8 <= 64 << 20
    one = zarr.create_array
    session = repository.writable_session("main")
    one(session.store, name="b", shape=(1 << 14, 1 << 14), chunks=(1 << 14, 1 << 14), dtype="f8")
    session.commit("one chunk too large for a page")
    with pytest.raises(IcechunkError) as caught:
        pictures.draw(repository, "main", "/b", pictures.PicturePart())
    assert caught.value.kind is Kind.LIMIT_EXCEEDED


def test_a_tree_of_20_000_nodes_is_answered_out_of_few_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_icechunk.browser import contents
    from airflow_provider_icechunk.browser.places import read_standing
    from airflow_provider_icechunk.engine.format.v1 import stored_nodes

    repository = Repository.create(local_filesystem_storage(tmp_path))
    session = repository.writable_session("main")
    document = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()
    for number in range(20_000):
        session.tree.put_document(f"/g{number % 20}/n{number}" if number >= 20 else f"/g{number}",
                                  document)  # fmt: skip
    session.commit("many")
    parsed = 0
    parse = contents.parse_node

    def counted(*given: Any, **named: Any) -> Any:
        nonlocal parsed
        parsed += 1
        return parse(*given, **named)

    monkeypatch.setattr(contents, "parse_node", counted)
    trees, differences = Trees(), VersionDifferences()
    page = read_tree(repository, "main", "none", trees, differences, path="/g3", limit=200)
    assert (len(page.nodes), page.total) == (200, 999)
    assert parsed == 200
    # Against the empty version before it all are new, and still only what is shown is decoded.
    read, decoded = stored_nodes.read_node, 0

    def decoding(*given: Any, **named: Any) -> Any:
        nonlocal decoded
        decoded += 1
        return read(*given, **named)

    monkeypatch.setattr(stored_nodes, "read_node", decoding)
    fresh = Repository.open(local_filesystem_storage(tmp_path))
    page = read_tree(fresh, "main", None, Trees(), differences, path="/g3", limit=200)
    assert (page.nodes[0].mark, page.marked) == ("added", 20_000)
    refs = read_standing(fresh).names
    found = contents.read_snapshot(fresh, "main", None, differences, refs, lambda _: None)
    assert found.added == 20_000
    assert 0 < decoded < 3_000


@pytest.mark.parametrize("path", ["", "..", "a/../b", "/a", "a//b", "s3://x", "a\\b", "a\n"])
def test_a_path_stays_below_the_root(path: str) -> None:
    with pytest.raises(InvalidInputError):
        check_path(path)
    assert check_path("a/b/") == "a/b"
    assert check_path(".") == ""


def test_a_memory_forgets_the_oldest_and_what_is_too_old() -> None:
    now = [0.0]
    memory = Memory[int](2, 10, clock=lambda: now[0])
    made = iter(range(100))
    assert [memory.get(key, lambda: next(made)) for key in "aab"] == [0, 0, 1]
    memory.get("c", lambda: next(made))
    assert memory.get("a", lambda: next(made)) == 3
    now[0] = 11
    assert memory.get("c", lambda: next(made)) == 4


def test_the_standalone_page_needs_its_key_and_the_name_of_this_machine(
    client: TestClient,
) -> None:
    assert client.get("/key/").status_code == 200
    for path in ("/", "/api/home", "/other/", "/docs", "/key/docs", "/key/openapi.json"):
        assert client.get(path).status_code == 404
    strange = client.get("/key/", headers={"host": "evil.example"})
    assert strange.status_code == 400
