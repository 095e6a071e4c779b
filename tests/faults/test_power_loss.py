"""A machine that loses its power at any moment keeps what was acknowledged, and goes on."""

from __future__ import annotations

import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.arrays import GROUP, array, put
from support.maintenance import GENERATIONS, UNPACKED, chunk
from support.migrations import Portrait, portrait
from support.power import Disk, Image

from airflow_provider_icechunk.engine.commit.conflicts import ConflictDetector
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.format.detect import REPO_KEY
from airflow_provider_icechunk.engine.format.v2.repo_codec import decode_repo
from airflow_provider_icechunk.engine.migration.run import migrate
from airflow_provider_icechunk.engine.refs.v2 import OVERWRITTEN
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.engine.storage.local import files as local_files
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.exceptions import IcechunkError

ENGINE = Path(__file__).parents[2] / "airflow_provider_icechunk" / "engine"
Steps = Iterator[None]
"""An operation; each time it yields, something was acknowledged."""


def live_a_little(storage: Storage, generation: str) -> None:
    repo = Repository.create(storage, spec_version=generation, packing=UNPACKED)
    session = repo.writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([8], [1]))
    for place in (0, 1):
        put(session, "/a", (place,), chunk(f"first {place}"))
    first = session.commit("first")
    repo.create_branch("side", first)
    repo.create_branch("doomed", first)
    repo.create_tag("v1", first)
    for branch in ("main", "doomed"):
        session = repo.writable_session(branch)
        put(session, "/a", (0,), chunk(branch))
        session.commit(branch)
    repo.delete_branch("doomed")


def commit(storage: Storage, _: str) -> Steps:
    session = Repository.open(storage, packing=UNPACKED).writable_session("main")
    put(session, "/a", (0,), chunk("new"))
    put(session, "/a", (1,), b"inline")
    session.tree.put_document("/b", array([4], [4]))
    put(session, "/b", (0,), chunk("another"))
    session.commit("new")
    yield


def rebase(storage: Storage, _: str) -> Steps:
    repo = Repository.open(storage, packing=UNPACKED)
    late, quick = repo.writable_session("main"), repo.writable_session("main")
    put(late, "/a", (1,), chunk("late"))
    put(quick, "/a", (2,), chunk("quick"))
    quick.commit("quick")
    yield
    late.commit("late", rebase_with=ConflictDetector())
    yield


def create_branch(storage: Storage, _: str) -> Steps:
    repo = Repository.open(storage)
    repo.create_branch("new", repo.lookup_branch("main"))
    yield


def reset_branch(storage: Storage, _: str) -> Steps:
    repo = Repository.open(storage)
    repo.reset_branch("main", repo.lookup_branch("side"))
    yield


def delete_branch(storage: Storage, _: str) -> Steps:
    Repository.open(storage).delete_branch("side")
    yield


def create_tag(storage: Storage, _: str) -> Steps:
    repo = Repository.open(storage)
    repo.create_tag("v2", repo.lookup_branch("main"))
    yield


def delete_tag(storage: Storage, _: str) -> Steps:
    Repository.open(storage).delete_tag("v1")
    yield


def save_config(storage: Storage, _: str) -> Steps:
    Repository.open(storage, RepositoryConfig(inline_chunk_threshold_bytes=7)).save_config()
    yield


def amend(storage: Storage, _: str) -> Steps:
    session = Repository.open(storage, packing=UNPACKED).writable_session("main")
    put(session, "/a", (1,), chunk("amended"))
    session.amend("amended")
    yield


def expire(storage: Storage, _: str) -> Steps:
    Repository.open(storage).expire_snapshots(datetime.now(UTC))
    yield


def collect(storage: Storage, _: str) -> Steps:
    summary = Repository.open(storage).garbage_collect(datetime.now(UTC))
    assert summary.chunks_deleted
    yield


def expire_and_collect(storage: Storage, _: str) -> Steps:
    repo = Repository.open(storage)
    repo.reset_branch("side", repo.lookup_branch("main"))
    repo.delete_tag("v1")
    yield
    repo.expire_snapshots(datetime.now(UTC))
    yield
    assert repo.garbage_collect(datetime.now(UTC)).snapshots_deleted
    yield


def compact(storage: Storage, _: str) -> Steps:
    assert Repository.open(storage).compact("main").snapshot_id
    yield


def rewrite(storage: Storage, _: str) -> Steps:
    Repository.open(storage).rewrite_manifests("rewritten", branch="main")
    yield


def move_up(storage: Storage, generation: str) -> Steps:
    migrate(storage, "2" if generation == "1" else "1")
    yield


def hand_off(storage: Storage, _: str) -> Steps:
    repo = Repository.open(storage, packing=UNPACKED)
    session = repo.writable_session("main")
    session.tree.put_document("/b", array([4], [1]))
    unit = session.work_unit("job")
    fragments = []
    for number in range(2):
        # As in a process of its own, which knows nothing of what others have not settled.
        elsewhere = Repository.open(pickle.loads(pickle.dumps(storage)), packing=UNPACKED)
        worker = elsewhere.fork(unit)
        put(worker, "/b", (number,), chunk(f"worker {number}"))
        fragments.append(worker.fragment(str(number)))
    session.merge_fragments(fragments)
    session.commit("handed off")
    yield


def create(storage: Storage, generation: str) -> Steps:
    Repository.create(storage, spec_version=generation)
    yield


IN_BOTH = (
    create,
    commit,
    rebase,
    hand_off,
    create_branch,
    reset_branch,
    delete_branch,
    create_tag,
    delete_tag,
    save_config,
    expire,
    collect,
    expire_and_collect,
    compact,
    rewrite,
)
CASES = [
    *((operation, generation) for operation in IN_BOTH for generation in ("1", "2")),
    (amend, "2"),
    (move_up, "1"),
    (move_up, "alpha"),
    *((commit, generation) for generation in GENERATIONS if generation not in ("1", "2")),
]
RARE = [(move_up, "alpha1"), (move_up, "draft")]


@dataclass(frozen=True)
class Recorded:
    """An operation that was carried out once, and what was to be seen after each of its steps."""

    disk: Disk
    states: list[Portrait | None]
    generation: str


@pytest.fixture(scope="module")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def of(generation: str) -> Path:
        if generation not in made:
            made[generation] = tmp_path_factory.mktemp(f"lived-in-{generation}")
            live_a_little(LocalStorage(made[generation] / "repo", durable=False), generation)
        return made[generation]

    return of


Record = Callable[[Callable[[Storage, str], Steps], str], Recorded]


@pytest.fixture
def record(
    lived_in: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Record:
    def run(operation: Callable[[Storage, str], Steps], generation: str) -> Recorded:
        base = tmp_path / "base"
        if operation is create:
            base.mkdir()
        else:
            shutil.copytree(lived_in(generation), base)
        storage = LocalStorage(base / "repo")
        disk = Disk(base)
        states = [None if operation is create else portrait(storage)]
        with disk.recording(monkeypatch):
            for _ in operation(storage, generation):
                disk.acknowledge()
                states.append(portrait(LocalStorage(base / "repo")))
        assert len(disk.steps) > len(states)
        return Recorded(disk, states, generation)

    return run


def check(recorded: Recorded, image: Image, place: Path) -> None:
    """What the machine has when it is back: all that was acknowledged, and a way on from there."""
    place.mkdir()
    image.put(place)
    storage = LocalStorage(place / "repo", durable=False)
    before = recorded.states[image.acknowledged]
    after = recorded.states[min(image.acknowledged + 1, len(recorded.states) - 1)]
    if before is None and not Repository.exists(storage):
        Repository.create(storage, spec_version=recorded.generation)
    else:
        seen = portrait(storage)
        assert after is not None
        _compare(seen, before or after, after)
    _check_copies(storage)
    _go_on(storage)
    shutil.rmtree(place)


def _compare(seen: Portrait, before: Portrait, after: Portrait) -> None:
    for found, was, becomes in (
        (seen.branches, before.branches, after.branches),
        (seen.tags, before.tags, after.tags),
    ):
        for name in found.keys() | was.keys() | becomes.keys():
            assert found.get(name) in (was.get(name), becomes.get(name)), name
    assert seen.deleted_tags in (before.deleted_tags, after.deleted_tags)
    assert seen.config in (before.config, after.config)
    known = {**before.snapshots, **after.snapshots}
    for snapshot, facts in seen.snapshots.items():
        assert facts in (before.snapshots.get(snapshot), known[snapshot])


def _check_copies(storage: Storage) -> None:
    """Every earlier `repo` object that the operations log names is there: it may be restored."""
    found = storage.get(REPO_KEY)
    for update in () if found is None else decode_repo(found.data, where=REPO_KEY).updates:
        if update.backup is not None:
            copy = storage.get(OVERWRITTEN + update.backup)
            assert copy is not None, update.backup
            decode_repo(copy.data, where=update.backup)


def _go_on(storage: Storage) -> None:
    repo = Repository.open(storage, packing=UNPACKED)
    session = repo.writable_session("main")
    if session.tree.node("/a") is None:
        session.tree.put_document("/", GROUP)
        session.tree.put_document("/a", array([8], [1]))
    was = repo.lookup_branch("main")
    put(session, "/a", (7,), chunk("after the power loss"))
    session.commit("after the power loss")
    now = Repository.open(storage)
    assert [one.id for one in now.ancestry(branch="main")][1] == was
    tree = now.readonly_session("main").tree
    node = tree.node("/a")
    assert node is not None
    assert len(tree.references(node)) >= 1


def checked(recorded: Recorded, tmp_path: Path, *, thorough: bool = False) -> int:
    """How many images there were; raises at the first that lost something."""
    number = 0
    for number, image in enumerate(recorded.disk.images(thorough=thorough), 1):
        try:
            check(recorded, image, tmp_path / f"image-{number}")
        except (AssertionError, IcechunkError) as error:
            where = f"step {image.step} of {len(recorded.disk.steps)}, losing {image.loss}"
            raise AssertionError(f"{where}: {error}") from error
    return number


def _named(cases: list[tuple[Callable[..., Steps], str]]) -> list[object]:
    return [pytest.param(*case, id=f"{case[0].__name__}-{case[1]}") for case in cases]


@pytest.mark.parametrize(("operation", "generation"), _named(CASES))
def test_what_was_acknowledged_is_there_after_a_power_loss(
    record: Record, tmp_path: Path, operation: Callable[[Storage, str], Steps], generation: str
) -> None:
    assert checked(record(operation, generation), tmp_path) >= 2


@pytest.mark.long
@pytest.mark.parametrize(("operation", "generation"), _named([*CASES, *RARE]))
def test_no_power_loss_after_any_step_takes_anything_away(
    record: Record, tmp_path: Path, operation: Callable[[Storage, str], Steps], generation: str
) -> None:
    images = checked(record(operation, generation), tmp_path, thorough=True)
    print(f"{operation.__name__} in generation {generation}: {images} images")
    assert images >= 2


# What the replay is for: each of these would lose data, and is found out.


def _without_settling(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(LocalStorage, "settle", lambda _: None)


def _without_settling_in(module: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Whether each of those who must settle does so: others after it must not make up for it."""
    real = LocalStorage.settle
    assert (ENGINE / module).exists(), module

    def settle(storage: LocalStorage) -> None:
        caller = sys._getframe(1)
        if caller.f_code.co_filename.endswith("storage/observed.py"):
            caller = caller.f_back or caller
        if not caller.f_code.co_filename.startswith(str(ENGINE / module)):
            real(storage)

    def mutation(patched: pytest.MonkeyPatch) -> None:
        patched.setattr(LocalStorage, "settle", settle)

    mutation.__name__ = f"_without_settling_in_{Path(module).stem}"
    return mutation


def _without_syncing_folders(patched: pytest.MonkeyPatch) -> None:
    real = local_files.sync_path
    patched.setattr(
        local_files, "sync_path", lambda path: None if Path(path).is_dir() else real(path)
    )


def _without_syncing_what_is_swapped(patched: pytest.MonkeyPatch) -> None:
    real = local_files.stage
    patched.setattr(
        local_files,
        "stage",
        lambda folder, data, *, durable, **rest: real(folder, data, durable=False, **rest),
    )


def _without_keeping_what_is_replaced(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(local_files.Unsettled, "replaces", lambda *_: False)


def _with_a_root_taken_for_durable(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(local_files, "_existing_above", lambda root: root)


@pytest.mark.parametrize(
    ("mutation", "operation", "generation"),
    [
        (_without_settling, commit, "1"),
        (_without_settling, commit, "2"),
        (_without_settling_in("commit/writer.py"), commit, "1"),
        (_without_settling_in("commit/writer.py"), commit, "alpha"),
        (_without_settling_in("sessions/fork.py"), hand_off, "1"),
        (_without_settling_in("objects/objects.py"), expire, "1"),
        (_without_settling_in("migration/"), move_up, "alpha"),
        (_without_settling_in("refs/v2.py"), create_tag, "2"),
        (_without_syncing_folders, commit, "1"),
        (_without_syncing_folders, commit, "2"),
        (_without_syncing_what_is_swapped, create_tag, "1"),
        (_without_keeping_what_is_replaced, expire, "1"),
        (_with_a_root_taken_for_durable, create, "1"),
    ],
)
def test_an_engine_that_forgets_to_wait_for_the_disk_is_found_out(
    record: Record,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mutation: Callable[[pytest.MonkeyPatch], None],
    operation: Callable[[Storage, str], Steps],
    generation: str,
) -> None:
    with monkeypatch.context() as patched:
        mutation(patched)
        recorded = record(operation, generation)
    with pytest.raises(AssertionError, match="losing"):
        checked(recorded, tmp_path)
