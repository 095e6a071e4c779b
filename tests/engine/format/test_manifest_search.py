"""Looking up single references gives what decoding the manifest gives, or refuses the file."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from support.arrays import array, put
from support.model import manifests as any_manifest

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Inline, Native
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import ChunkId, ManifestId, NodeId
from airflow_provider_icechunk.engine.format.model import Manifest
from airflow_provider_icechunk.engine.format.v1 import manifest_read, manifest_write
from airflow_provider_icechunk.engine.format.v1.manifest_read import ManifestSearch
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import FormatError

NODE = NodeId(b"nodenode")
MANIFEST = ManifestId(b"m" * 12)


def encoded(places: list[tuple[int, ...]], ndim: int = 1) -> bytes:
    """Inline references that say where they are."""
    refs = ChunkRefs.from_items(ndim, [(one, Inline(repr(one).encode())) for one in places])
    return bytes(manifest_write.encode(Manifest(MANIFEST, {NODE: (refs,)})))


def renumbered(payload: bytes, old: int, new: int) -> bytes:
    """The first row whose only coordinate is `old`, with another one."""
    rows = np.frombuffer(payload, "<u4").copy()
    (place,) = (
        row for row in np.flatnonzero(rows[1:] == old) + 1 if rows[row - 1] == 1 and row > 20
    )
    rows[place] = new
    return rows.tobytes()


@given(manifest=any_manifest())
def test_finds_what_decoding_finds(manifest):
    search = ManifestSearch(bytes(manifest_write.encode(manifest)), where="x")
    assert search.id == manifest.id
    assert len(search) == len(manifest)
    for node_id, parts in manifest.arrays.items():
        for refs in parts:
            for row, place in enumerate(map(tuple, refs.index.tolist())):
                assert search.find(node_id, place) == refs[row]
                beside = (*place[:-1], place[-1] + 1) if place else (0,)
                assert search.find(node_id, beside) == refs.find(beside)
        assert search.find(NodeId(b"\0nobody\0"), (0,)) is None


def test_other_rank_is_absent():
    search = ManifestSearch(encoded([(0,), (1,)]), where="x")
    assert search.find(NODE, (0, 0)) is None
    assert search.find(NODE, ()) is None


def test_disorder_on_the_way_is_refused():
    payload = renumbered(encoded([(n,) for n in range(1000, 1064)]), 1048, 7)
    search = ManifestSearch(payload, where="manifests/x")
    with pytest.raises(FormatError, match="manifests/x: chunk references are not in order"):
        search.find(NODE, (1050,))
    with pytest.raises(FormatError):
        search.decode()


def test_an_array_that_is_there_twice_is_refused():
    one = ChunkRefs.from_items(1, [((0,), Inline(b"1"))])
    other = NodeId(b"nodenodf")
    payload = bytes(manifest_write.encode(Manifest(MANIFEST, {NODE: (one,), other: (one,)})))
    with pytest.raises(FormatError, match="an array is in it twice"):
        ManifestSearch(payload.replace(other, NODE), where="x")


def test_decodes_once_for_all():
    search = ManifestSearch(encoded([(0,)]), where="x")
    assert search.decode() is search.decode()


@pytest.mark.parametrize("generation", [Generation.V1, Generation.V2])
def test_a_session_decodes_only_what_it_asks_often(generation, monkeypatch):
    chunks = 2000
    storage = MemoryStorage()
    repo = Repository.create(storage, spec_version=generation.value)
    session = repo.writable_session("main")
    session.tree.put_document("/a", array([chunks], [1]))
    refs = ChunkRefs.from_items(
        1, [((n,), Native(ChunkId(b"c" * 12), n, 1)) for n in range(chunks)]
    )
    session.tree.put_references("/a", refs)
    session.commit("references")

    decoded = []
    plain = manifest_read.decode
    monkeypatch.setattr(
        manifest_read, "decode", lambda *args, **more: decoded.append(1) or plain(*args, **more)
    )
    tree = Repository.open(storage).readonly_session("main").tree
    assert tree.chunk("/a", (7,)) == refs[7]
    assert tree.chunk("/a", (chunks,)) is None
    assert decoded == []
    for n in range(20):
        assert tree.chunk("/a", (n,)) == refs[n]
    assert decoded == [1]
    assert len(tree.references(tree.array("/a"))) == chunks
    assert decoded == [1]


def test_damage_that_a_search_passes_is_told_with_the_file():
    repo = Repository.create(storage := MemoryStorage())
    session = repo.writable_session("main")
    session.tree.put_document("/a", array([4], [1]))
    put(session, "/a", (0,), b"x")
    session.commit("one")
    (key,) = (item.key for item in storage.scan("manifests/"))
    storage.delete([key])
    reader = Repository.open(storage).readonly_session("main")
    with pytest.raises(Exception, match=key):
        reader.tree.chunk("/a", (0,))
