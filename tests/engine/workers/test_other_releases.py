"""What another release left is read as long as it is understood, and both are named if not."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import zarr

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.engine.format.wire import messagepack as mp
from airflow_provider_icechunk.engine.format.wire.zstd import compress, decompress
from airflow_provider_icechunk.engine.pipelines.description import parse_session
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.workers.codec import decode_fragment, encode_fragment
from airflow_provider_icechunk.engine.workers.jobs import JobFolder
from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit
from airflow_provider_icechunk.exceptions import ForkError, FormatError, InvalidInputError

BOTH = f"'0.0.9'.* {__version__}"


@pytest.fixture
def session(tmp_path: Path) -> icechunk.Session:
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repository"))
    session = icechunk.Repository.create(storage).writable_session("main")
    zarr.create_array(session.store, name="a", shape=(4,), chunks=(2,), dtype="i4")
    return session


def items_of(data: bytes) -> list[Any]:
    value = mp.unpack(decompress(data, limit=1 << 20, where="here"), where="here")
    assert isinstance(value, tuple)
    return list(value)


def test_a_work_unit_says_who_wrote_it_and_earlier_ones_are_read(session: Any) -> None:
    told = session.work_unit("job").to_json()
    assert told["release"] == __version__
    earlier = {name: value for name, value in told.items() if name != "release"}
    assert WorkUnit.from_json(earlier) == WorkUnit.from_json(told)
    assert WorkUnit.from_json({**told, "release": "0.0.9"}) == WorkUnit.from_json(told)


@pytest.mark.parametrize("change", [{"version": 2}, {"later": "x"}])
def test_a_work_unit_that_is_not_understood_names_both_releases(
    session: Any, change: dict[str, Any]
) -> None:
    told = {**session.work_unit("job").to_json(), "release": "0.0.9", **change}
    with pytest.raises(InvalidInputError, match=BOTH):
        WorkUnit.from_json(told)


def test_a_fork_of_another_release_is_refused_on_an_executor(session: Any) -> None:
    fork = session.fork()
    assert pickle.loads(pickle.dumps(fork)).work == fork.work
    make, (origin, work, changes) = fork.__reduce__()
    with pytest.raises(ForkError, match=BOTH):
        make(origin, {**work, "release": "0.0.9"}, changes)


def test_fragments_of_earlier_releases_are_read_and_later_ones_name_both(session: Any) -> None:
    fork = session.fork()
    zarr.open_array(fork.store, path="a")[:2] = 7
    data = encode_fragment(fork.fragment("w"))
    items = items_of(data)
    assert items[-1] == __version__
    for size in (6, 7, 9):
        found = decode_fragment(compress(mp.pack(items[:size]), level=1), where="earlier")
        assert len(found) == 1
    for later in ([items[0], 2, *items[2:-1], "0.0.9"], [*items[:-1], [], "0.0.9"]):
        with pytest.raises(FormatError, match=BOTH):
            decode_fragment(compress(mp.pack(later), level=1), where="later")


def test_a_report_of_a_writer_says_who_wrote_it() -> None:
    folder = JobFolder(MemoryStorage(), "job")
    folder.put_result("w", {"chunks": 1})
    assert folder.result("w") == {"chunks": 1, "release": __version__}


def test_a_job_with_the_session_of_another_release_names_both() -> None:
    from airflow_provider_icechunk.spark.specification import parse_job

    job = '{"session": {"release": "0.0.9", "later": 1}, "writes": []}'
    with pytest.raises(InvalidInputError, match=BOTH):
        parse_job(job)
    with pytest.raises(InvalidInputError, match=BOTH):
        parse_session({"release": "0.0.9", "later": 1})
