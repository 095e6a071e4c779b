"""Small chunks in packed files: the same values, fewer files, and nobody's write is lost."""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icechunk
import numpy as np
import pytest
import zarr
from support import actors
from support.arrays import GROUP, array, contents, put

from airflow_provider_icechunk.api import (
    BasicConflictSolver,
    ConflictDetector,
    Repository,
    RepositoryConfig,
    in_memory_storage,
    local_filesystem_storage,
)
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Inline, Native
from airflow_provider_icechunk.engine.format.ids import ChunkId, NodeId
from airflow_provider_icechunk.engine.maintenance.compact import (
    ArrayRefs,
    CompactionResult,
    CompactionRules,
    commit_compaction,
    move_group,
    packed_refs,
    plan_compaction,
    plan_groups,
    unchanged,
)
from airflow_provider_icechunk.engine.objects.chunk_writer import Packing
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.exceptions import InvalidInputError

RULES = CompactionRules(small=1000, target=4000, enough=2000)


def chunk(number: int, size: int = 600) -> bytes:
    return bytes([number % 251]) * size


def fill(storage: Storage, generation: str = "1") -> Repository:
    """Twenty small chunks and a large one, each in a file of its own, and some inline ones."""
    repository = Repository.create(storage, spec_version=generation, packing=Packing(below=0))
    session = repository.writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([4, 6], [1, 1]))
    session.tree.put_document("/b", array([8], [1]))
    for number in range(20):
        put(session, "/a", divmod(number, 6), chunk(number))
    put(session, "/a", (3, 5), chunk(77, 5000))
    for number in range(4):
        put(session, "/b", (number,), b"inline %d" % number)
    session.commit("first")
    return repository


def chunk_files(storage: Storage) -> int:
    layout = Repository.open(storage).core.refs.layout
    return len(list(storage.scan(layout.chunks)))


def seen(repository: Repository) -> dict[str, object]:
    return contents(repository.readonly_session("main"))


@pytest.mark.parametrize("generation", ["1", "2", "alpha", "alpha1", "draft"])
def test_values_stay_and_files_become_few_after_collection(generation: str) -> None:
    storage = in_memory_storage()
    repository = fill(storage, generation)
    before = seen(Repository.open(storage))
    assert chunk_files(storage) == 21
    result = repository.compact("main", rules=RULES)
    assert (result.chunks, result.bytes, result.files, result.skipped) == (20, 12000, 3, 0)
    again = Repository.open(storage)
    assert seen(again) == before
    assert next(iter(again.ancestry(branch="main"))).id == result.snapshot_id
    now = datetime.now(UTC) + timedelta(days=1)
    again.expire_snapshots(now, keep_last=1)
    again.garbage_collect(now)
    assert chunk_files(storage) == 4
    assert seen(Repository.open(storage)) == before
    assert Repository.open(storage).verify().ok


def test_a_second_compaction_finds_nothing_to_do() -> None:
    repository = fill(in_memory_storage())
    repository.compact("main", rules=RULES)
    again = repository.compact("main", rules=RULES)
    assert again == CompactionResult(None, 0, 0, 0)
    assert len(list(repository.ancestry(branch="main"))) == 3


def test_a_dry_run_changes_nothing() -> None:
    storage = in_memory_storage()
    repository = fill(storage)
    result = repository.compact("main", rules=RULES, dry_run=True)
    assert (result.snapshot_id, result.chunks, result.files) == (None, 20, 3)
    assert chunk_files(storage) == 21


def test_inline_chunks_move_only_if_asked_for() -> None:
    repository = fill(in_memory_storage())
    before = seen(repository)
    rules = CompactionRules(small=1000, target=4000, enough=2000, inline_from=8)
    result = repository.compact("main", rules=rules)
    assert (result.chunks, result.files) == (24, 4)
    assert seen(repository) == before


def write(session: Session, *places: tuple[int, int]) -> None:
    for place in places:
        put(session, "/a", place, chunk(200))


def test_chunks_that_were_written_meanwhile_are_left_out_and_the_rest_is_committed() -> None:
    repository = fill(in_memory_storage())
    core = repository.core
    held = core.leasehold()
    packed = [move_group(core, group, held) for group in plan_compaction(core, "main", RULES)]
    other = repository.writable_session("main")
    write(other, (0, 0), (1, 3))
    other.tree.erase("/a", [(2, 2)])
    other.commit("meanwhile")
    expected = seen(repository)
    result = commit_compaction(core, "main", packed, held, message="compact")
    assert (result.chunks, result.skipped) == (17, 3)
    assert seen(repository) == expected


def test_an_array_that_was_deleted_or_created_again_meanwhile_is_left_out() -> None:
    repository = fill(in_memory_storage())
    core = repository.core
    held = core.leasehold()
    packed = [move_group(core, group, held) for group in plan_compaction(core, "main", RULES)]
    other = repository.writable_session("main")
    other.tree.delete("/a")
    other.tree.put_document("/a", array([4, 6], [1, 1]))
    write(other, (0, 0))
    identity = other.commit("created again")
    result = commit_compaction(core, "main", packed, held, message="compact")
    assert (result.snapshot_id, result.chunks, result.skipped) == (None, 0, 20)
    assert repository.lookup_branch("main") == identity


@pytest.mark.parametrize("solver", [ConflictDetector(), BasicConflictSolver()])
def test_a_writer_that_is_overtaken_rebases_without_a_conflict(solver: ConflictDetector) -> None:
    repository = fill(in_memory_storage())
    slow = repository.writable_session("main")
    write(slow, (0, 0), (1, 1))
    repository.compact("main", rules=RULES)
    slow.commit("late", rebase_with=solver)
    session = repository.readonly_session("main")
    found = contents(session)
    assert found["/a[0, 0]"] == found["/a[1, 1]"] == chunk(200)
    assert found["/a[0, 1]"] == chunk(1)


def test_a_compaction_that_is_overtaken_while_it_commits_tries_again() -> None:
    storage = in_memory_storage()
    repository = fill(storage)
    core = repository.core
    held = core.leasehold()
    packed = [move_group(core, group, held) for group in plan_compaction(core, "main", RULES)]
    real, calls = core.refs.commit, []

    def overtaken(*given):  # type: ignore[no-untyped-def]
        if not calls:
            calls.append(1)
            other = Repository.open(storage).writable_session("main")
            write(other, (0, 5))
            other.commit("in between")
        return real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(core.refs), "commit", lambda self, *given: overtaken(*given))
        result = commit_compaction(core, "main", packed, held, message="compact")
    assert (result.chunks, result.skipped) == (19, 1)
    assert seen(Repository.open(storage))["/a[0, 5]"] == chunk(200)


def make_refs(*payloads: object) -> ChunkRefs:
    items = [((number,), payload) for number, payload in enumerate(payloads)]
    return ChunkRefs.from_items(1, items)  # type: ignore[arg-type]


def ident(number: int) -> ChunkId:
    return ChunkId(bytes([number]) * 12)


def plan(refs: ChunkRefs) -> list[list[int]]:
    groups = plan_groups([ArrayRefs(NodeId(bytes(8)), "/a", refs)], RULES)
    return [group.refs.index[:, 0].tolist() for group in groups]


def test_plans_take_small_chunks_of_poor_files_in_the_order_of_the_array() -> None:
    single = [Native(ident(n), 0, 900) for n in range(1, 8)]
    assert plan(make_refs(*single)) == [[0, 1, 2, 3, 4], [5, 6]]
    assert plan(make_refs(single[0], Native(ident(9), 0, 1000), single[1])) == [[0, 2]]
    assert plan(make_refs(single[0])) == []
    full = [Native(ident(9), 500 * n, 500) for n in range(4)]
    assert plan(make_refs(*full, single[0])) == []
    poor = full[:3]
    assert plan(make_refs(*poor)) == []
    assert plan(make_refs(*poor, single[0])) == [[0, 1, 2, 3]]
    assert plan(make_refs(Inline(b"x" * 900), Inline(b"y" * 900))) == []


def test_moved_references_follow_each_other_in_the_new_file() -> None:
    refs = make_refs(Native(ident(1), 7, 10), Inline(b"four"), Native(ident(2), 0, 5))
    found = packed_refs(refs, ident(3))
    assert [found[row] for row in range(3)] == [
        Native(ident(3), 0, 10),
        Native(ident(3), 10, 4),
        Native(ident(3), 14, 5),
    ]


def test_only_equal_references_count_as_unchanged() -> None:
    planned = make_refs(
        Native(ident(1), 0, 5), Native(ident(2), 0, 5), Inline(b"ab"), Inline(b"cd")
    )
    current = make_refs(
        Native(ident(1), 0, 5), Native(ident(2), 1, 5), Inline(b"ab"), Inline(b"ce")
    )
    assert unchanged(current, planned).tolist() == [True, False, True, False]
    assert unchanged(ChunkRefs.empty(1), planned).tolist() == [False] * 4
    assert unchanged(make_refs(Native(ident(1), 0, 5)), planned).tolist() == [True] + [False] * 3


def test_rules_that_make_no_sense_are_refused() -> None:
    for wrong in ({"small": 0}, {"target": 5}, {"enough": 1 << 40}):
        with pytest.raises(InvalidInputError):
            CompactionRules(**wrong)


def write_zarr(path: Path, generation: str) -> np.ndarray:  # type: ignore[type-arg]
    config = RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 0
    storage = local_filesystem_storage(str(path))
    repository = Repository.create(
        storage, config, spec_version=generation, packing=Packing(below=0)
    )
    values = np.random.default_rng(3).normal(size=(40, 30))
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    created = root.create_array("a", shape=values.shape, chunks=(5, 10), dtype="float64")
    created[:] = values
    session.commit("values")
    result = repository.compact("main")
    assert (result.chunks, result.files) == (24, 1)
    return values


def test_the_official_library_reads_packed_chunks(tmp_path: Path) -> None:
    values = write_zarr(tmp_path / "r", "1")
    official = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "r")))
    found = zarr.open_array(official.readonly_session("main").store, path="a", mode="r")
    assert np.array_equal(np.asarray(found[:]), values)


READ = """
import sys, icechunk, zarr, numpy as np
repository = icechunk.Repository.open(icechunk.local_filesystem_storage(sys.argv[1]))
found = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")
np.save(sys.argv[2], found[:])
"""


@actors.needs_icechunk2
@pytest.mark.parametrize("generation", ["1", "2"])
def test_official_icechunk_2_reads_packed_chunks(tmp_path: Path, generation: str) -> None:
    assert actors.PYTHON is not None
    values = write_zarr(tmp_path / "r", generation)
    out = tmp_path / "found.npy"
    subprocess.run([actors.PYTHON, "-c", READ, str(tmp_path / "r"), str(out)], check=True, env={})
    assert np.array_equal(np.load(out), values)
