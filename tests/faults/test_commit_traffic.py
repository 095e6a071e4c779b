"""What a commit writes and deletes, counted at the storage."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from support.arrays import GROUP, array, contents, put
from support.recording import RecordingStorage

from airflow_provider_icechunk import engine
from airflow_provider_icechunk.engine.commit.conflicts import BasicConflictSolver, ConflictDetector
from airflow_provider_icechunk.engine.format.config.model import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
)
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.base import Lost
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage

CHUNKS = 64


def in_splits_of(size: int) -> RepositoryConfig:
    rule = {ManifestSplitDimCondition.Any(): size}
    splitting = ManifestSplittingConfig.from_dict({ManifestSplitCondition.AnyArray(): rule})
    return RepositoryConfig(manifest=ManifestConfig(splitting=splitting))


@pytest.fixture
def storage() -> MemoryStorage:
    """Two arrays, full of chunks, in manifests of 16 chunks."""
    storage = MemoryStorage()
    session = Repository.create(storage, in_splits_of(16)).writable_session("main")
    session.tree.put_document("/", GROUP)
    for path in ("/a", "/b"):
        session.tree.put_document(path, array([CHUNKS], [1]))
        for index in range(CHUNKS):
            put(session, path, (index,), b"first")
    session.commit("start")
    return storage


def open_session(storage: MemoryStorage | RecordingStorage) -> Session:
    return Repository.open(storage, in_splits_of(16)).writable_session("main")


class Overtaken(RecordingStorage):
    """Somebody else commits right before the first move of the branch."""

    def __init__(self, inner: MemoryStorage, path: str, index: int) -> None:
        super().__init__(inner)
        self._somebody = open_session(inner)
        put(self._somebody, path, (index,), b"theirs")
        self.before_loss: list[tuple[str, int]] = []

    def put(self, key, data, **options):
        overtaken = key.startswith("refs/branch.main") and not self._somebody.read_only
        if overtaken:
            self._somebody.commit("theirs")
        outcome = super().put(key, data, **options)
        if overtaken:
            self.before_loss, self.puts = self.puts, []
        return outcome


def overtaken_commit(storage: MemoryStorage, path: str, index: int) -> Overtaken:
    """Commit chunk 0 of `/a` and be overtaken once."""
    overtaken = Overtaken(storage, path, index)
    session = open_session(overtaken)
    put(session, "/a", (0,), b"ours")
    session.commit("ours", rebase_with=ConflictDetector())
    seen = contents(Repository.open(storage).readonly_session("main"))
    assert seen["/a[0]"] == b"ours"
    assert seen[f"{path}[{index}]"] == b"theirs"
    first, second = sum(size for _, size in overtaken.before_loss), overtaken.bytes
    print(f"overtaken at {path}[{index}]: {first} bytes, then {second} more for the second try")
    return overtaken


def test_a_try_after_losing_to_another_array_writes_log_snapshot_and_reference_only(
    storage: MemoryStorage,
) -> None:
    again = overtaken_commit(storage, "/b", 0)
    assert again.folders == Counter(transactions=1, snapshots=1, refs=1)


def test_a_try_after_losing_to_another_split_of_the_array_rewrites_only_its_own(
    storage: MemoryStorage,
) -> None:
    again = overtaken_commit(storage, "/a", 40)
    assert again.folders == Counter(manifests=1, transactions=1, snapshots=1, refs=1)


def test_a_try_after_losing_to_the_same_split_rewrites_that_split_once(
    storage: MemoryStorage,
) -> None:
    again = overtaken_commit(storage, "/a", 1)
    assert again.folders == Counter(manifests=1, transactions=1, snapshots=1, refs=1)
    assert _manifest_sizes(storage, "/a") == [16, 16, 16, 16]


def test_a_commit_rewrites_only_the_splits_it_touches(storage: MemoryStorage) -> None:
    recording = RecordingStorage(storage)
    session = open_session(recording)
    put(session, "/a", (0,), b"one")
    put(session, "/a", (17,), b"two")
    session.commit("two of four")
    assert recording.folders == Counter(manifests=2, transactions=1, snapshots=1, refs=1)
    assert _manifest_sizes(storage, "/a") == [16, 16, 16, 16]


def _manifest_sizes(storage: MemoryStorage, path: str) -> list[int]:
    session = Repository.open(storage).readonly_session("main")
    node = session.tree.array(path)
    assert node.array is not None
    return [len(session.tree.core.objects.manifest(ref.id)) for ref in node.array.manifests]


def test_edits_made_after_handing_out_work_are_not_taken_for_those_before(
    storage: MemoryStorage,
) -> None:
    """A manifest is used again only for the very same edits, however they came about."""
    session = open_session(storage)
    put(session, "/a", (0,), b"before")
    session.work_unit("job")
    flat = session.tree.array("/a").user_data
    session.tree.put_document("/a", array([CHUNKS, 1], [1, 1]))
    session.tree.put_document("/a", flat)
    put(session, "/a", (0,), b"after")
    session.commit("after")
    assert contents(Repository.open(storage).readonly_session("main"))["/a[0]"] == b"after"


def test_no_commit_deletes_anything_whatever_happens_to_it(storage: MemoryStorage) -> None:
    """The storage of this test refuses to delete."""
    recording = RecordingStorage(storage)
    known = set(storage.objects)
    for number in range(3):
        late = open_session(recording)
        put(late, "/a", (number,), b"late")
        late.tree.delete("/b") if number == 1 else None
        quick = open_session(recording)
        put(quick, "/a", (number,), b"quick")
        quick.commit("quick")
        late.stage()
        late.commit("late", rebase_with=BasicConflictSolver())
    forgotten = open_session(recording)
    put(forgotten, "/a", (9,), b"forgotten" * 100)
    forgotten.discard_changes()
    assert known <= set(storage.objects)


ROOMS = ("commit", "objects", "sessions", "tree", "workers")
COMMIT_PATH = sorted(
    path for room in ROOMS for path in (Path(engine.__file__).parent / room).glob("*.py")
)


@pytest.mark.parametrize("path", COMMIT_PATH, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_module_of_the_commit_path_calls_a_storages_delete(path: Path) -> None:
    calls = [
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    assert not [call for call in calls if call.endswith("storage.delete")]


class Hesitant(RecordingStorage):
    """Somebody else commits while our commit pauses, and again when it has read where they are."""

    def __init__(self, inner: MemoryStorage, others: int) -> None:
        super().__init__(inner)
        self._others = iter(range(1, 1 + others))
        self.lost = 0

    def commit_theirs(self) -> None:
        number = next(self._others, None)
        if number is not None:
            session = open_session(self.inner)
            put(session, "/b", (number,), b"theirs")
            session.commit(f"theirs {number}")

    def put(self, key, data, **options):
        if key.startswith("refs/branch.main") and not self.lost:
            self.commit_theirs()
        outcome = super().put(key, data, **options)
        self.lost += key.startswith("refs/") and isinstance(outcome, Lost)
        return outcome

    def get(self, key, byte_range=None):
        found = super().get(key, byte_range)
        if key.startswith("refs/branch.main") and self.lost:
            self.commit_theirs()
        return found


@pytest.mark.parametrize("others", [1, 2, 3])
def test_what_would_lose_its_race_anyway_is_not_stored(storage: MemoryStorage, others: int) -> None:
    """Whoever lost reads the branch after the pause, and again before anything is stored."""
    hesitant = Hesitant(storage, others)
    session = open_session(hesitant)
    put(session, "/a", (0,), b"ours")
    session.commit("ours", rebase_with=ConflictDetector())
    assert hesitant.lost == 1
    assert hesitant.folders["snapshots"] == 2
    messages = [info.message for info in Repository.open(storage).ancestry(branch="main")]
    assert messages[:2] == ["ours", f"theirs {others}"]
