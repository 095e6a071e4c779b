"""Two writers who meet: what a `MergeSolver` makes of it, and what it leaves to people."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import zarr
from support.arrays import GROUP
from support.maintenance import GENERATIONS
from support.merging import (
    BASE,
    WIDTH,
    Delete,
    Ensure,
    Transaction,
    Write,
    based,
    merged,
    modelled,
    run,
    seen,
)
from support.recording import RecordingStorage

import airflow_provider_icechunk.api as api
from airflow_provider_icechunk.engine.arrays.cells import ZarrCells, _OneChunk
from airflow_provider_icechunk.engine.commit.merge import MergeSolver
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    InvalidInputError,
    RebaseFailedError,
    StorageError,
)


def part(path: str, first: int, last: int, value: float, *, is_recorded: bool = True) -> Write:
    return Write(path, ((first, last), (0, WIDTH)), value, is_recorded)


def opened(session: Session, path: str = "a") -> zarr.Array[Any]:
    return zarr.open_array(session.store, path=path, mode="r+")


def record(
    session: Session, box: tuple[tuple[int, int], ...], value: object, path: str = "a"
) -> None:
    with session.recording({path: box}):
        opened(session, path)[tuple(slice(*span) for span in box)] = value


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param([Ensure("a", 9)], [Ensure("a", 14)], id="both grew"),
        pytest.param([Ensure("a", 14)], [part("a", 0, 2, 7)], id="growth beside a write"),
        pytest.param([part("a", 8, 9, 1)], [part("a", 12, 13, 2)], id="two appends"),
        pytest.param([part("a", 6, 7, 1)], [part("a", 7, 8, 2)], id="two appends into one chunk"),
        pytest.param([part("a", 0, 1, 1)], [part("a", 6, 7, 2)], id="old and new part"),
        pytest.param([part("new", 0, 1, 1)], [part("new", 1, 2, 2)], id="two first runs"),
        pytest.param(
            [part("a", 0, 2, 1)], [part("a", 1, 3, 1)], id="the same values where both are"
        ),
        pytest.param([part("new", 0, 4, 1, is_recorded=False)], None, id="the same unrecorded"),
    ],
)
def test_writers_who_mean_different_things_both_land(
    first: Transaction, second: Transaction | None
) -> None:
    second = first if second is None else second
    result = merged(first, second)
    assert result is not None
    assert result == modelled(first, second) == modelled(second, first)
    assert merged(second, first) == result


def test_thirty_two_days_land_in_any_order_in_shared_chunks() -> None:
    days: list[Transaction] = [[part("new", day, day + 1, day + 1)] for day in range(32)]
    order = [days[(7 * number) % 32] for number in range(32)]
    assert merged(*order) == modelled(*days)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([part("a", 0, 2, 1)], [part("a", 1, 3, 2)]),
        ([part("a", 0, 1, 1, is_recorded=False)], [part("a", 1, 2, 2)]),
        ([part("a", 0, 1, 1)], [part("a", 1, 2, 2, is_recorded=False)]),
    ],
)
def test_cells_that_both_wrote_differently_or_may_have_written_are_a_conflict(
    first: Transaction, second: Transaction
) -> None:
    assert merged(first, second) is None
    assert merged(second, first) is None


def test_chunks_without_a_record_merge_only_if_every_bit_is_equal() -> None:
    same: Transaction = [part("a", 0, 4, 3, is_recorded=False)]
    zero: Transaction = [part("a", 0, 4, 0.0, is_recorded=False)]
    minus: Transaction = [part("a", 0, 4, -0.0, is_recorded=False)]
    more: Transaction = [part("a", 0, 4, 3, is_recorded=False), part("a", 8, 9, 1)]
    assert merged(same, more) == merged(more, same) == modelled(same, more) == modelled(more, same)
    assert merged(zero, minus) is None
    assert merged(minus, zero) is None


@pytest.mark.parametrize("granted", [True, False])
def test_cells_are_laid_over_a_chunk_of_a_foreign_file_where_it_may_be_read(
    tmp_path: Any, granted: bool
) -> None:
    (tmp_path / "far.bin").write_bytes(np.arange(8.0).astype("<f8").tobytes())
    prefix, storage = f"file://{tmp_path}/", MemoryStorage()
    config = api.RepositoryConfig()
    far = api.VirtualChunkContainer(prefix, api.local_filesystem_store(str(tmp_path)))
    config.set_virtual_chunk_container(far)
    repo = Repository.create(storage, config)
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(8,), chunks=(8,), dtype="<f8", compressors=None
    )
    session.commit("array")
    other = repo.writable_session("main")
    with other.recording({"a": [(0, 6)]}):
        other.store.set_virtual_ref("a/c/0", f"{prefix}far.bin", offset=0, length=64)
    grants: Any = {prefix: None} if granted else None
    late = Repository.open(storage, config, grants).writable_session("main")
    record(late, ((6, 8),), 70)
    other.commit("a file of others")
    if not granted:
        with pytest.raises(
            RebaseFailedError,
            match=r"/a: reading .*far\.bin' is not authorized.*"
            "authorize_virtual_chunk_access=",
        ):
            late.commit("late", rebase_with=MergeSolver())
        return
    late.commit("late", rebase_with=MergeSolver())
    reader = Repository.open(storage).readonly_session("main")
    assert reader.chunk_type("/a", [0]).name != "VIRTUAL"
    found = zarr.open_array(reader.store, path="a", mode="r")[:]
    assert found.tolist() == [0, 1, 2, 3, 4, 5, 70, 70]


def test_without_a_solver_api_sessions_conflict_as_before() -> None:
    repo = based(MemoryStorage())
    one, two = repo.writable_session("main"), repo.writable_session("main")
    run(one, [part("a", 0, 1, 1)]).commit("one")
    with pytest.raises(ConflictError):
        run(two, [part("a", 8, 9, 1)]).commit("two")


def test_changed_values_are_merged_only_by_those_who_ask_for_it() -> None:
    first = [part("a", 0, 1, 1, is_recorded=False)]
    second = [part("a", 1, 2, 2, is_recorded=False)]
    assert merged(first, second) is None
    assert merged(first, second, solver=MergeSolver(cells="changed")) == modelled(first, second)


def test_values_that_both_changed_are_a_conflict_for_those_as_well() -> None:
    first = [part("a", 0, 2, 1, is_recorded=False)]
    second = [part("a", 1, 3, 2, is_recorded=False)]
    assert merged(first, second, solver=MergeSolver(cells="changed")) is None


def test_a_rule_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="'recorded' or 'changed'"):
        MergeSolver(cells="all")  # type: ignore[arg-type]


def test_a_failed_merge_leaves_the_session_where_it_was() -> None:
    repo = based(MemoryStorage())
    late = run(repo.writable_session("main"), [part("a", 0, 2, 1), part("a", 8, 9, 3)])
    before = late.snapshot_id
    run(repo.writable_session("main"), [part("a", 9, 10, 2)]).commit("fine")
    run(repo.writable_session("main"), [part("a", 1, 3, 2)]).commit("not")
    with pytest.raises(RebaseFailedError):
        late.rebase(MergeSolver())
    assert late.snapshot_id == before
    np.testing.assert_array_equal(opened(late)[:2], np.ones((2, WIDTH), "f4"))


def test_a_conflict_names_who_what_where_and_what_can_be_done() -> None:
    repo = based(MemoryStorage())
    late = repo.writable_session("main")
    with late.recording({"a": ((0, 2), (0, WIDTH))}, labels={"time": ["2026-01-01", "2026-01-02"]}):
        opened(late)[0:2] = 1
    other = run(repo.writable_session("main"), [part("a", 1, 3, 2)])
    task = {"dag_id": "weather", "run_id": "manual__1", "task_id": "write"}
    other.commit("other", metadata={"airflow": task})
    with pytest.raises(RebaseFailedError) as failed:
        late.commit("late", rebase_with=MergeSolver())
    text = str(failed.value)
    assert "task 'write', DAG 'weather', run 'manual__1'" in text
    assert "/a: both sides wrote cells [1:2, 0:2] with different values" in text
    assert "Labels of this session: time 2026-01-01, 2026-01-02" in text
    assert 'on_conflict="ours"' in text
    assert '"theirs"' in text


def test_an_attribute_that_both_changed_is_named_with_both_values() -> None:
    repo = based(MemoryStorage())
    one, two = repo.writable_session("main"), repo.writable_session("main")
    opened(one).attrs["units"] = "K"
    opened(two).attrs["units"] = "degC"
    opened(two).attrs["beside"] = 1
    one.commit("one")
    with pytest.raises(RebaseFailedError, match='attribute \'units\' is "degC" here and "K" there'):
        two.commit("two", rebase_with=MergeSolver())


def test_attributes_of_groups_are_merged_by_key() -> None:
    repo = Repository.create(MemoryStorage())
    session = repo.writable_session("main")
    zarr.create_group(session.store, attributes={"both": 0})
    session.commit("group")
    one, two = repo.writable_session("main"), repo.writable_session("main")
    zarr.open_group(one.store, mode="r+").attrs["one"] = 1
    zarr.open_group(two.store, mode="r+").attrs["two"] = 2
    one.commit("one")
    two.commit("two", rebase_with=MergeSolver())
    found = zarr.open_group(repo.readonly_session("main").store, mode="r").attrs
    assert dict(found) == {"both": 0, "one": 1, "two": 2}


def test_shrinking_beside_a_write_is_a_conflict_in_both_directions() -> None:
    for cuts_first in (True, False):
        repo = based(MemoryStorage())
        cut, write = repo.writable_session("main"), repo.writable_session("main")
        opened(cut).resize((2, WIDTH))
        run(write, [part("a", 0, 1, 3)])
        first, second = (cut, write) if cuts_first else (write, cut)
        first.commit("first")
        with pytest.raises(RebaseFailedError, match="cut"):
            second.commit("second", rebase_with=MergeSolver())


def test_other_codecs_on_the_two_sides_are_a_conflict_that_names_them() -> None:
    repo = Repository.create(MemoryStorage())
    one, two = repo.writable_session("main"), repo.writable_session("main")
    zarr.create_array(one.store, name="t", shape=(4,), chunks=(2,), dtype="f4")
    zarr.create_array(two.store, name="t", shape=(4,), chunks=(2,), dtype="f8")
    one.commit("one")
    with pytest.raises(RebaseFailedError, match='`data_type` is "float64" here and "float32"'):
        two.commit("two", rebase_with=MergeSolver())


CASES = [
    ("f4", {"compressors": None}, [1.5, -0.0, np.nan]),
    ("f8", {"compressors": zarr.codecs.ZstdCodec()}, [1.5, -0.0, np.nan]),
    ("i2", {"compressors": zarr.codecs.BloscCodec()}, [1, 2, 3]),
    (">i4", {"compressors": [zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()]}, [1, 2, 3]),
    ("c8", {"shards": (8, 4)}, [1 + 2j, 3, 4j]),
    ("str", {}, ["a", "bcd", "ö"]),
    ("f4", {"filters": zarr.codecs.TransposeCodec(order=(1, 0))}, [1.5, 2.5, 3.5]),
]


@pytest.mark.parametrize(("dtype", "options", "values"), CASES)
def test_bits_of_both_sides_survive_whatever_lossless_codec_the_array_has(
    dtype: str, options: dict[str, Any], values: list[Any]
) -> None:
    repo = Repository.create(MemoryStorage())
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(8, 4), chunks=(4, 4), dtype=dtype, **options)
    session.commit("array")
    late = [repo.writable_session("main") for _ in values]
    for row, (session, value) in enumerate(zip(late, values, strict=True)):
        record(session, ((row, row + 1), (0, 4)), value)
    for session in late:
        session.commit("row", rebase_with=MergeSolver())
    found = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[...]
    expected = np.array(found, copy=True)
    for row, value in enumerate(values):
        expected[row] = value
    if found.dtype.kind in "OT":
        assert found.tolist() == expected.tolist()
    else:
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("shards", [None, (8,)])
def test_minus_zero_is_kept_where_the_fill_value_is_zero(shards: tuple[int] | None) -> None:
    session = Repository.create(MemoryStorage()).writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(8,), chunks=(4,), shards=shards, dtype="f4", fill_value=0
    )
    one_chunk = _OneChunk(session.tree.array("/a").user_data)
    cells = np.full(8 if shards else 4, -0.0, "f4")
    assert one_chunk.decode(one_chunk.encode(cells)).tobytes() == cells.tobytes()
    cells[:] = 0
    assert one_chunk.decode(one_chunk.encode(cells)).tobytes() == cells.tobytes()


@pytest.mark.filterwarnings("ignore:Numcodecs codecs")
def test_a_codec_that_may_lose_bits_is_not_merged() -> None:
    repo = Repository.create(MemoryStorage())
    session = repo.writable_session("main")
    lossy = zarr.codecs.numcodecs.BitRound(keepbits=3)
    zarr.create_array(session.store, name="a", shape=(4,), chunks=(4,), dtype="f4", filters=[lossy])
    session.commit("array")
    one, two = repo.writable_session("main"), repo.writable_session("main")
    record(one, ((0, 1),), 1)
    record(two, ((1, 2),), 2)
    one.commit("one")
    with pytest.raises(RebaseFailedError, match=r"'numcodecs\.bitround' are not merged"):
        two.commit("two", rebase_with=MergeSolver())


def test_each_chunk_in_dispute_is_stored_once_however_many_commits_were_passed() -> None:
    storage = MemoryStorage()
    repo = Repository.create(storage)
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(64, 64), chunks=(64, 64), dtype="f8", compressors=None
    )
    session.commit("array")
    late = repo.writable_session("main")
    record(late, ((63, 64), (0, 64)), 9)
    for row in range(5):
        session = repo.writable_session("main")
        record(session, ((row, row + 1), (0, 64)), row + 1)
        session.commit("row")

    def chunks() -> int:
        return sum(1 for _ in storage.scan("chunks/"))

    late.tree.writer.flush()
    before = chunks()
    late.commit("late", rebase_with=MergeSolver())
    assert chunks() == before + 1
    found = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:, 0]
    assert found[[0, 1, 2, 3, 4, 63]].tolist() == [1, 2, 3, 4, 5, 9]


class OvertakenWhileMerging(RecordingStorage):
    """Others write into the shared chunk whenever its bytes are read to be merged, a few times."""

    def __init__(self, inner: MemoryStorage, rows: range) -> None:
        super().__init__(inner)
        self._rows = iter(rows)

    def get(self, key: str, byte_range: Any = None) -> Any:
        row = next(self._rows, None) if key.startswith("chunks/") else None
        if row is not None:
            session = Repository.open(self.inner).writable_session("main")
            record(session, ((row, row + 1), (0, 64)), row)
            session.commit("row")
        return super().get(key, byte_range)


def test_a_chunk_that_was_merged_for_a_head_of_the_past_is_not_stored() -> None:
    storage = MemoryStorage()
    session = Repository.create(storage).writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(64, 64), chunks=(64, 64), dtype="f8", compressors=None
    )
    session.commit("array")
    watched = OvertakenWhileMerging(storage, range(2, 5))
    late = Repository.open(watched).writable_session("main")
    record(late, ((63, 64), (0, 64)), 9)
    late.tree.writer.flush()
    other = Repository.open(storage).writable_session("main")
    record(other, ((1, 2), (0, 64)), 1)
    other.commit("row")
    watched.puts.clear()
    late.commit("late", rebase_with=MergeSolver())
    assert (watched.folders["chunks"], watched.folders["snapshots"]) == (1, 1)
    reader = Repository.open(storage).readonly_session("main")
    found = zarr.open_array(reader.store, path="a", mode="r")[:, 0]
    assert found[[1, 2, 3, 4, 63]].tolist() == [1, 2, 3, 4, 9]


def test_the_official_library_reads_what_was_merged(tmp_path: Any) -> None:
    icechunk = pytest.importorskip("icechunk")
    repo = based(LocalStorage(str(tmp_path)))
    days: list[Transaction] = [[part("a", day, day + 1, day + 1)] for day in (7, 6, 12)]
    late = [run(repo.writable_session("main"), day) for day in days]
    for session in late:
        session.commit("day", rebase_with=MergeSolver())
    official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))
    array = zarr.open_array(official.readonly_session("main").store, path="a", mode="r")
    shape, attributes, values = modelled(*days)["a"]
    assert array.shape == shape
    assert dict(array.attrs) == attributes
    assert np.asarray(array[...]).tobytes() == values


def test_a_commit_of_the_official_library_beside_ours_merges_with_growth(tmp_path: Any) -> None:
    icechunk = pytest.importorskip("icechunk")
    repo = based(LocalStorage(str(tmp_path)))
    late = run(repo.writable_session("main"), [part("a", 12, 13, 3)])
    official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path)))
    session = official.writable_session("main")
    zarr.open_array(session.store, path="a", mode="r+")[0:4] = 8
    session.commit("official")
    late.commit("late", rebase_with=MergeSolver())
    found = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert found.shape == (13, WIDTH)
    assert found[0, 0] == 8
    assert found[12, 0] == 3


def test_the_solver_is_public() -> None:
    assert api.MergeSolver is MergeSolver


@pytest.mark.parametrize("is_first", [True, False])
def test_a_run_again_keeps_the_cells_of_others_in_a_chunk_it_shares(is_first: bool) -> None:
    repo = based(MemoryStorage())
    again, earlier, other = (repo.writable_session("main") for _ in range(3))
    run(again, [part("a", 0, 1, 5)])
    run(earlier, [part("a", 0, 1, 1), part("a", 3, 4, 3)])
    run(other, [part("a", 1, 2, 2)])
    mine: dict[str, Any] = {"metadata": {"work": "mine"}}
    for session in (earlier, other) if is_first else (other, earlier):
        details = mine if session is earlier else {}
        session.commit("done", rebase_with=MergeSolver(), **details)
    again.commit("again", rebase_with=MergeSolver(), replaces=lambda one: one.get("work") == "mine")
    found = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:4, 0]
    assert found.tolist() == [5, 2, 5, 3]


def test_a_run_again_stores_no_chunk_twice_that_it_wrote_whole() -> None:
    storage = RecordingStorage(MemoryStorage())
    repo = Repository.create(storage)
    session = repo.writable_session("main")
    zarr.create_array(
        session.store, name="a", shape=(100, 64), chunks=(64, 64), dtype="f8", compressors=None
    )
    session.commit("array")
    again, earlier = (repo.writable_session("main") for _ in range(2))
    for number, one in enumerate((again, earlier), 1):
        record(one, ((0, 100), (0, 64)), np.arange(6400.0).reshape(100, 64) + number)
    earlier.commit("done", metadata={"work": "mine"})
    again.tree.writer.flush()
    storage.puts.clear()
    again.commit("again", rebase_with=MergeSolver(), replaces=lambda one: one.get("work") == "mine")
    assert storage.folders["chunks"] == 0
    found = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")
    assert found[99, 63] == 6400


def test_a_lost_race_merges_again_on_the_next_head() -> None:
    repo = based(MemoryStorage())
    late = run(repo.writable_session("main"), [part("a", 0, 1, 1)])
    for row in (1, 2, 3):
        other = run(repo.writable_session("main"), [part("a", row, row + 1, row + 1)])
        other.commit("other", rebase_with=MergeSolver())
        late.rebase(MergeSolver())
    late.commit("late")
    found = zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:4, 0]
    assert found.tolist() == [1, 2, 3, 4]


def test_a_chunk_that_cannot_be_read_is_an_error_of_the_storage_and_no_conflict() -> None:
    storage = MemoryStorage()
    repo = Repository.create(storage)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(512,), chunks=(512,), dtype="f8")
    session.commit("array")
    one, two = repo.writable_session("main"), repo.writable_session("main")
    record(one, ((0, 256),), np.random.default_rng(1).random(256))
    record(two, ((256, 512),), np.random.default_rng(2).random(256))
    one.commit("one")
    storage.delete([listed.key for listed in storage.scan("chunks/")])
    with pytest.raises(StorageError):
        two.commit("two", rebase_with=MergeSolver())


def test_an_array_of_a_type_that_nobody_knows_here_is_not_merged() -> None:
    document = json.loads(
        based(MemoryStorage()).readonly_session("main").tree.array("/a").user_data
    )
    document["data_type"] = {"name": "a.type.of.the.future", "configuration": {}}
    refusal = ZarrCells().refusal(json.dumps(document).encode())
    assert refusal is not None
    assert "cannot be decoded here" in refusal


def test_moves_are_rebased_as_with_every_other_solver() -> None:
    repo = based(MemoryStorage())
    session = repo.writable_session("main")
    session.tree.put_document("/", GROUP)
    session.commit("root")
    moving = repo.rearrange_session("main")
    moving.move("/a", "/b")
    run(repo.writable_session("main"), [part("new", 0, 1, 1)]).commit("beside")
    run(repo.writable_session("main"), [Delete("a")]).commit("deleted")
    with pytest.raises(RebaseFailedError):
        moving.rebase(MergeSolver())
    assert [node.path for node in moving.tree.nodes() if node.array is not None] == ["/b", "/new"]


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_keeps_records_and_merges_by_them(generation: str) -> None:
    repo = Repository.create(MemoryStorage(), spec_version=generation)
    session = repo.writable_session("main")
    session.tree.put_document("/", GROUP)
    session.commit("root")
    run(repo.writable_session("main"), BASE).commit("base")
    days: list[Transaction] = [[part("a", 6, 7, 1)], [part("a", 7, 8, 2)], [part("a", 12, 13, 3)]]
    late = [run(repo.writable_session("main"), day) for day in days]
    for session in late:
        session.commit("day", rebase_with=MergeSolver())
    assert seen(repo.readonly_session("main")) == modelled(*days)
