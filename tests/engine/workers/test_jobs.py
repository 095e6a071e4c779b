"""The folder where writers of a session leave their results."""

import numpy as np
import pytest

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs
from airflow_provider_icechunk.engine.format.ids import NodeId, SnapshotId
from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.workers.codec import Fragment
from airflow_provider_icechunk.engine.workers.jobs import JobFolder, job_key
from airflow_provider_icechunk.exceptions import FormatError, FragmentError, InvalidInputError

BASE = SnapshotId(b"s" * 12)
NODE = NodeId(b"n" * 8)


def fragment(job: str, *places: int) -> Fragment:
    index = np.array(places, dtype=np.uint32).reshape(-1, 1)
    return Fragment(base=BASE, job=job, worker="w", arrays={NODE: ChunkRefs.blank(index)})


def test_fragments_come_back_by_writer() -> None:
    folder = JobFolder(MemoryStorage(), "job")
    folder.put_fragment("b", fragment("job", 1))
    folder.put_fragment("a", fragment("job", 2, 3))
    assert folder.writers() == ["a", "b"]
    assert [len(found) for found in folder.fragments()] == [2, 1]
    assert [len(found) for found in folder.fragments(["b"])] == [1]


def test_a_writer_that_comes_again_replaces_its_fragment() -> None:
    folder = JobFolder(MemoryStorage(), "job")
    folder.put_fragment("a", fragment("job", 1))
    folder.put_fragment("a", fragment("job", 2, 3))
    assert [len(found) for found in folder.fragments()] == [2]


def test_jobs_do_not_see_each_other() -> None:
    storage = MemoryStorage()
    JobFolder(storage, "one").put_fragment("a", fragment("one", 1))
    assert JobFolder(storage, "two").fragments() == []
    with pytest.raises(FragmentError, match="'one'"):
        JobFolder(storage, "two").put_fragment("a", fragment("one", 1))


@pytest.mark.parametrize("job", ["../../etc", "a/b c\x00", "x" * 5000, "", "täglich"])
def test_any_job_name_makes_a_safe_key(job: str) -> None:
    assert job_key(job).removeprefix("jobs/").isalnum()
    folder = JobFolder(MemoryStorage(), job)
    assert folder.put_result("a", {"n": 1}).startswith(folder.prefix)


@pytest.mark.parametrize("writer", ["", "..", "a/b", "a.b", "-a", "a" * 101, "a\n"])
def test_names_of_writers_are_plain(writer: str) -> None:
    with pytest.raises(InvalidInputError):
        JobFolder(MemoryStorage(), "job").put_fragment(writer, fragment("job", 1))


def test_a_missing_writer_is_named() -> None:
    folder = JobFolder(MemoryStorage(), "job")
    folder.put_fragment("a", fragment("job", 1))
    with pytest.raises(FragmentError, match=r"b left no fragment.*writers with fragments: a"):
        folder.fragments(["a", "b"])


def test_results_come_back_and_damaged_ones_are_refused() -> None:
    storage = MemoryStorage()
    folder = JobFolder(storage, "job")
    assert folder.result("a") is None
    key = folder.put_result("a", {"chunks": 3})
    assert folder.result("a") == {"chunks": 3, "release": __version__}
    for data in (b"[1]", b"{", b"\xff", b"[" * 100_000):
        storage.put(key, data, expect=Anything())
        with pytest.raises(FormatError, match="report"):
            folder.result("a")


def test_a_damaged_fragment_is_named() -> None:
    storage = MemoryStorage()
    folder = JobFolder(storage, "job")
    key = folder.put_fragment("a", fragment("job", 1))
    storage.put(key, b"nonsense", expect=Anything())
    with pytest.raises(FormatError, match=key):
        folder.fragments()


def test_strange_files_in_the_folder_are_no_fragments() -> None:
    storage = MemoryStorage()
    folder = JobFolder(storage, "job")
    storage.put(f"{folder.prefix}a b.fragment", b"x", expect=Anything())
    storage.put(f"{folder.prefix}notes.txt", b"x", expect=Anything())
    assert folder.writers() == []
