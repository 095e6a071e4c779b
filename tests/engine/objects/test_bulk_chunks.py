"""Many chunks of an array at once: found as one by one, and written all or none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arrays import GROUP, array, contents

from airflow_provider_icechunk.engine.format.chunk_refs import Index
from airflow_provider_icechunk.engine.objects.chunk_reader import Wanted
from airflow_provider_icechunk.engine.objects.chunk_writer import Packing
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import (
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    StorageError,
)

SIDE = 3
PLACES = [(row, column) for row in range(SIDE) for column in range(SIDE)]
_places = st.lists(st.sampled_from(PLACES), max_size=9)


def session_with(written: list[Index], packing: Packing | None = None) -> Session:
    """A session whose base has some chunks."""
    repository = Repository.create(MemoryStorage(), packing=packing)
    session = repository.writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([SIDE, SIDE], [1, 1]))
    session.tree.put_chunks("/a", [(place, b"base%d%d" % place) for place in written])
    session.commit("base")
    return repository.writable_session("main")


def bytes_at(session: Session, place: Index) -> bytes | None:
    payload = session.tree.chunk("/a", place)
    return None if payload is None else session.tree.read([Wanted(payload, 0, 6)])[0]


@settings(max_examples=40)
@given(_places, _places, _places, st.lists(st.sampled_from([*PLACES, (9, 0), (0, 3), (0,)])))
def test_chunks_are_found_as_one_by_one(
    base: list[Index], edited: list[Index], erased: list[Index], asked: list[Index]
) -> None:
    session = session_with(base)
    tree = session.tree
    tree.put_chunks("/a", [(place, b"edit%d%d" % place) for place in edited])
    tree.erase("/a", erased)
    assert tree.chunks("/a", asked) == [tree.chunk("/a", place) for place in asked]
    for place in PLACES:
        written = b"edit%d%d" if place in edited else b"base%d%d" if place in base else None
        expected = None if written is None or place in erased else written % place
        assert bytes_at(session, place) == expected


def test_where_no_array_is_no_chunks_are() -> None:
    tree = session_with(PLACES).tree
    assert tree.chunks("/nowhere", PLACES) == [None] * 9
    assert tree.chunks("/", [(0, 0)]) == [None]
    assert tree.chunks("/a", []) == []


def test_of_a_place_that_is_given_twice_the_last_bytes_stay() -> None:
    session = session_with([])
    session.tree.put_chunks("/a", [((0, 0), b"first."), ((1, 1), b"other."), ((0, 0), b"second")])
    assert bytes_at(session, (0, 0)) == b"second"
    assert bytes_at(session, (1, 1)) == b"other."


def test_a_file_for_each_chunk_or_one_for_all_makes_no_difference() -> None:
    items = [(place, b"%d%d" % place * 600) for place in PLACES]
    found = []
    for packing in (Packing(below=0), Packing(), Packing(target=2000, pending=3000)):
        session = session_with([], packing)
        session.tree.put_chunks("/a", items)
        before = contents(session)
        session.commit("all")
        assert contents(session) == before
        found.append(before)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 2 + 9


def refused_halfway(session: Session, how: str) -> Iterator[tuple[Index, bytes]]:
    """A good chunk, and then something that must not be."""
    yield (0, 0), b"new..."
    match how:
        case "broken":
            raise StorageError("broken")
        case "outside":
            yield (SIDE, 0), b"new..."
        case "empty":
            yield (0, 1), b""
        case "shrunk":
            session.tree.put_document("/a", array([SIDE, 1], [1, 1]))
        case "gone":
            session.tree.delete("/a")
        case "committed":
            session.commit("meanwhile", allow_empty=True)
    yield (2, 2), b"new..."


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("broken", StorageError),
        ("outside", InvalidInputError),
        ("empty", InvalidInputError),
        ("shrunk", InvalidInputError),
        ("gone", NotFoundError),
        ("committed", ReadOnlyError),
    ],
)
@pytest.mark.parametrize("packing", [Packing(), Packing(below=0)])
def test_if_one_is_refused_none_is_written(
    how: str, error: type[Exception], packing: Packing
) -> None:
    session = session_with([(0, 0)], packing)
    with pytest.raises(error):
        session.tree.put_chunks("/a", refused_halfway(session, how))
    assert not session.tree.changes.chunks
    assert bytes_at(session, (0, 0)) == (None if how == "gone" else b"base00")


@pytest.mark.parametrize("path", ["/", "/nowhere"])
def test_where_no_array_is_nothing_is_asked_for(path: str) -> None:
    def never() -> Iterator[tuple[Index, bytes]]:
        raise AssertionError("asked for chunks that cannot be written")
        yield

    session = session_with([])
    with pytest.raises(NotFoundError, match="array"):
        session.tree.put_chunks(path, never())
    session.commit("finished", allow_empty=True)
    with pytest.raises(ReadOnlyError):
        session.tree.put_chunks("/a", never())


def test_no_chunks_change_nothing() -> None:
    session = session_with([])
    session.tree.put_chunks("/a", [])
    assert not session.has_uncommitted_changes
