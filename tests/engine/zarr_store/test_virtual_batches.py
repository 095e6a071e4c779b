"""Virtual references given together: what no container covers is left out, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import zarr

import airflow_provider_icechunk.api as icechunk

COVERED, ELSEWHERE = "file:///covered/a", "bad://elsewhere/a"


def spec(location: str) -> icechunk.VirtualChunkSpec:
    return icechunk.VirtualChunkSpec(index=[0], location=location, offset=0, length=4)


@pytest.mark.parametrize("locations", [(COVERED, ELSEWHERE), (ELSEWHERE, COVERED)])
def test_a_reference_that_is_left_out_replaces_none_of_the_same_chunk(
    locations: tuple[str, str], tmp_path: Path
) -> None:
    config = icechunk.RepositoryConfig.default()
    container = icechunk.VirtualChunkContainer(
        "file:///covered/", icechunk.local_filesystem_store("/covered")
    )
    config.set_virtual_chunk_container(container)
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(tmp_path), config)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(1,), chunks=(1,), dtype="i4")
    chunks = [spec(one) for one in locations]
    assert session.store.set_virtual_refs("a", chunks, validate_containers=True) == [(0,)]
    assert session.all_virtual_chunk_locations() == [COVERED]
