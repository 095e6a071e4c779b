"""How long sides may be and how far chunk indices go in each generation, as `formats` says it."""

from __future__ import annotations

import json

import pytest
from support import arrays

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.format.chunk_refs import Inline
from airflow_provider_icechunk.exceptions import InvalidInputError

LATER = ["alpha1", "alpha", "1", "2"]


def line(side: int, chunk: int) -> bytes:
    grid = {"name": "regular", "configuration": {"chunk_shape": [chunk]}}
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [side],
        "data_type": "int8",
        "chunk_grid": grid,
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
    }
    return json.dumps(document).encode()


def session_of(generation: str) -> tuple[icechunk.Session, icechunk.Repository]:
    repo = icechunk.Repository.create(icechunk.in_memory_storage(), spec_version=generation)
    session = repo.writable_session("main")
    session.tree.put_document("/", arrays.GROUP)
    return session, repo


@pytest.mark.parametrize(
    ("generation", "side", "chunk", "index"),
    [("draft", 65_535, 1, 65_534)]
    + [(name, (1 << 32) - 1, 1, (1 << 32) - 2) for name in LATER]
    + [(name, (1 << 63) - 1, 1 << 40, (1 << 23) - 1) for name in LATER],
)
def test_the_last_chunk_of_the_longest_side_is_kept(generation, side, chunk, index):
    session, repo = session_of(generation)
    session.tree.put_document("/a", line(side, chunk))
    session.tree.put_chunk("/a", (index,), b"x")
    session.commit("the last one")
    found = icechunk.Repository.open(repo.storage).readonly_session("main")
    assert found.tree.chunk("/a", (index,)) == Inline(b"x")
    assert found.tree.chunk("/a", (index - 1,)) is None


@pytest.mark.parametrize(
    ("generation", "side", "chunk"),
    [("draft", 65_536, 2)]
    + [(name, 1 << 32, 1) for name in LATER]
    + [(name, 1 << 63, 1 << 40) for name in LATER],
)
def test_a_side_that_has_no_place_is_refused_before_anything_is_stored(generation, side, chunk):
    session, _ = session_of(generation)
    with pytest.raises(InvalidInputError):
        session.tree.put_document("/a", line(side, chunk))
