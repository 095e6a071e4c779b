"""Looking into files says what the official library says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
import zarr
from support import actors
from support.maintenance import GENERATIONS, RealClock, lived_in

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.world import from_micros, utc_text
from airflow_provider_icechunk.exceptions import InvalidInputError, NotFoundError, UnsupportedError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository of generation 2 with a bit of everything."""
    storage = icechunk.local_filesystem_storage(tmp_path)
    repo = icechunk.Repository.create(storage, spec_version=2)
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("a", data=np.arange(1200.0).reshape(6, 200), chunks=(2, 200))
    root.create_array("g/b", data=np.arange(3), dimension_names=["x"])
    first = session.commit("one", {"k": [1, None]})
    repo.create_tag("t", first)
    repo.create_tag("u", first)
    repo.delete_tag("u")
    repo.create_branch("side", first)
    session = repo.rearrange_session("main")
    session.move("/g", "/h")
    session.commit("moved")
    repo.set_metadata({"owner": "us"})
    repo.set_feature_flag("delete_tag", False)
    repo.set_status(icechunk.RepoStatus(icechunk.RepoAvailability.online))
    return tmp_path


@actors.needs_icechunk2
@pytest.mark.parametrize("branch", ["main", "side"])
def test_the_official_library_says_the_same(folder: Path, branch: str) -> None:
    worker = actors.Worker()
    try:
        theirs = worker(folder, "inspect", branch=branch)
    finally:
        worker.close()
    ours = actors.local(icechunk)(folder, "inspect", branch=branch)
    # The parent is in `inspect_snapshot` of 1.1, and no more in 2.
    del ours["snapshot"]["parent_id"]
    assert ours == theirs


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_can_be_looked_into(generation: str) -> None:
    storage, ids = lived_in(generation)
    repo = icechunk.Repository.open(storage)
    assert icechunk.Repository.fetch_spec_version(storage) == repo.spec_version == generation
    facts = json.loads(repo.inspect_snapshot(ids["second"]))
    assert facts["id"] == ids["second"]
    array = next(node for node in facts["nodes"] if node["path"] == "/a")
    assert array["shape"] == [{"array_length": 16, "num_chunks": 16}]
    log = repo.inspect_transaction_log(ids["second"])
    assert log["updated_chunks"] == [{"node_id": array["id"], "chunks": [[0]]}]
    assert log["new_arrays"] == []
    files = repo.list_manifest_files(ids["second"])
    assert {file.id for file in files} >= {ref["id"] for ref in array["manifest_refs"]}
    manifests = [repo.inspect_manifest(file.id) for file in files]
    assert sum(one["total_native"] for one in manifests) == 4
    assert sum(one["total_inline"] for one in manifests) == 1
    assert (facts["header"] is None) == (generation in ("alpha1", "draft"))
    if generation != "2":
        with pytest.raises(UnsupportedError, match="generation `2`"):
            repo.inspect_repo_info()


def test_logs_of_expired_snapshots_are_told_with_the_commit_above_them() -> None:
    storage, ids = lived_in("2")
    repo = icechunk.Repository.open(storage)
    limit = repo.lookup_snapshot(ids["fourth"]).written_at
    repo.expire_snapshots(limit)
    facts = repo.inspect_transaction_log(ids["fourth"])
    merged = facts["synthetic_composite"]["merged_pruned_ancestor_tx_logs"]
    assert merged == [ids["first"], ids["second"], ids["third"]]
    assert len(facts["new_arrays"]) == 2
    storage.delete([f"transactions/{ids['second']}"])
    facts = icechunk.Repository.open(storage).inspect_transaction_log(ids["fourth"])
    assert facts["synthetic_composite"]["missing_tx_logs"] == [ids["second"]]


def test_what_is_not_there_is_said_to_be_missing() -> None:
    repo = icechunk.Repository.open(lived_in("1")[0])
    with pytest.raises(NotFoundError):
        repo.inspect_manifest("0" * 20)
    with pytest.raises(NotFoundError):
        repo.inspect_transaction_log("0" * 20)
    with pytest.raises(InvalidInputError, match="invalid manifest id"):
        repo.inspect_manifest("nonsense")
    assert icechunk.Repository.fetch_spec_version(icechunk.in_memory_storage()) is None


def test_the_history_is_drawn_for_terminals_and_notebooks() -> None:
    storage, _ = lived_in("2")
    repo = icechunk.Repository.open(storage)
    plain = str(repo.ancestry_graph(plain=True))
    assert "\x1b" not in plain
    lines = [line for line in plain.splitlines() if "*" in line]
    assert [line.split()[-1] for line in lines][-2:] == ["first", "initialized"]
    assert any("(main) fourth" in line for line in lines)
    assert any("(side) side 1" in line for line in lines)
    assert any("(v1) second" in line for line in lines)
    coloured = repo.ancestry_graph(branch="main")
    assert "\x1b[" in str(coloured)
    assert "side" not in str(coloured)
    svg = coloured._repr_svg_()
    assert svg.startswith("<svg")
    assert svg.count("<text") == 5
    assert len(str(repo.ancestry_graph(tag="v1", plain=True)).splitlines()) == 3


def test_sessions_say_what_they_are_and_nodes_who_they_are() -> None:
    storage, _ = lived_in("2", RealClock())
    repo = icechunk.Repository.open(storage)
    session = repo.writable_session("main")
    mode = icechunk.SessionMode
    assert session.mode is mode.writable
    assert repo.readonly_session("main").mode is mode.readonly
    mover = repo.rearrange_session("main")
    assert mover.mode is mode.rearrange
    identity = session.get_node_id("/a")
    with pytest.raises(icechunk.IcechunkError, match="rearrange_session"):
        session.move("/a", "/c")
    with pytest.raises(NotFoundError):
        session.get_node_id("/nothing")
    asyncio.run(mover.move_async("/a", "/c"))
    asyncio.run(mover.commit_async("moved"))
    assert mover.mode is mode.readonly
    assert repo.readonly_session("main").get_node_id("/c") == identity

    async def operations() -> list[object]:
        return [entry.kind async for entry in repo.ops_log_async()]

    assert asyncio.run(operations()) == [entry.kind for entry in repo.ops_log()]
    assert asyncio.run(repo.inspect_repo_info_async())["branches"].keys() == {"main", "side"}


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_614_000, "1970-01-01T00:00:01.614Z"),
        (1_614_100, "1970-01-01T00:00:01.614100Z"),
    ],
)
def test_times_have_as_many_digits_as_the_official_library_gives_them(
    micros: int, text: str
) -> None:
    assert utc_text(from_micros(micros)) == text
