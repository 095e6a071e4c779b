"""Branches as numbered files: races have one winner, and no crash moves a branch back."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import msgpack
import pytest

from airflow_provider_icechunk.engine.format.codec import Codec, Layout
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId, encode_base32
from airflow_provider_icechunk.engine.format.legacy.alpha.codec import (
    LAST_SEQUENCE,
    branch_prefix,
    parse_sequence_file,
    sequence_file,
    tag_key,
    tombstone_key,
)
from airflow_provider_icechunk.engine.format.model import FIRST_MESSAGE, Snapshot
from airflow_provider_icechunk.engine.refs.base import Behind, Creation, Moved, Refs
from airflow_provider_icechunk.engine.refs.legacy.alpha import AlphaRefs
from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Anything,
    Deleted,
    PutOutcome,
    Storage,
    Version,
)
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    FormatError,
    InvalidInputError,
    StorageError,
)
from airflow_provider_icechunk.testing.storages import WrappedStorage, every_crash

FIRST = SnapshotId(b"first-snap-0")


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path, durable=False)


@pytest.fixture
def refs(storage: Storage) -> AlphaRefs:
    refs = AlphaRefs(storage)
    assert refs.initialize(snapshot(FIRST, None))
    return refs


def identity(number: int) -> SnapshotId:
    return SnapshotId(number.to_bytes(12, "big"))


def snapshot(own: SnapshotId, parent: SnapshotId | None) -> Snapshot:
    return Snapshot(own, parent, 0, FIRST_MESSAGE, {}, {})


def committed(refs: AlphaRefs, name: str, count: int, start: int = 1) -> SnapshotId:
    head = refs.branch(name)
    assert head is not None
    for number in range(start, start + count):
        child = snapshot(identity(number), head)
        assert refs.commit(name, head, child) == Moved()
        head = child.id
    return head


def test_they_are_refs(refs: AlphaRefs) -> None:
    as_protocol: Refs = refs
    codec: Codec = refs.codec
    layout: Layout = refs.layout
    assert as_protocol.generation is codec.generation is Generation.ALPHA
    assert layout.snapshot(FIRST) == f"snapshots/{encode_base32(FIRST)}"


# names and sequence numbers


@pytest.mark.parametrize(
    ("number", "name"),
    [(0, "ZZZZZZZZ.json"), (100, "ZZZZZZWV.json"), (LAST_SEQUENCE, "00000000.json")],
)
def test_sequence_names_are_those_of_the_specification(number: int, name: str) -> None:
    assert sequence_file(number) == name
    assert parse_sequence_file(name) == number


def test_later_numbers_sort_first() -> None:
    names = [sequence_file(number) for number in range(3000)]
    assert sorted(names, reverse=True) == names


@pytest.mark.parametrize("name", ["ref.json", "ZZZZZZZZ", "ZZZZZZZU.json", "ZZZZZZZZZ.json", ""])
def test_other_files_have_no_number(name: str) -> None:
    assert parse_sequence_file(name) is None


@pytest.mark.parametrize("number", [-1, LAST_SEQUENCE + 1])
def test_numbers_end(number: int) -> None:
    with pytest.raises(InvalidInputError):
        sequence_file(number)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../etc"])
def test_names_cannot_leave_their_folder(refs: AlphaRefs, name: str) -> None:
    for act in (refs.branch, refs.tag, refs.delete_branch, refs.delete_tag):
        with pytest.raises(InvalidInputError):
            act(name)


# branches


def test_a_repository_is_created_once(refs: AlphaRefs) -> None:
    assert not AlphaRefs(refs.storage).initialize(snapshot(identity(7), None))
    assert refs.branches() == {"main": FIRST}


def test_reference_files_are_compact_json_under_their_specified_names(refs: AlphaRefs) -> None:
    found = refs.storage.get("refs/branch.main/ZZZZZZZZ.json")
    assert found is not None
    assert found.data == b'{"snapshot":"%s"}' % encode_base32(FIRST).encode()


def test_the_newest_of_many_commits_is_the_head(refs: AlphaRefs) -> None:
    head = committed(refs, "main", 150)
    assert AlphaRefs(refs.storage).branch("main") == head
    files = [item.key for item in refs.storage.scan(branch_prefix("main"))]
    assert len(files) == 151
    assert files[0].endswith(sequence_file(150))


def test_foreign_files_in_a_branch_folder_are_ignored(refs: AlphaRefs) -> None:
    refs.storage.put("refs/branch.main/0.txt", b"", expect=Anything())
    refs.storage.put("refs/branch.main/00.json", b"", expect=Anything())
    assert refs.branch("main") == FIRST


def test_of_two_commits_on_the_same_base_one_wins(refs: AlphaRefs) -> None:
    other = AlphaRefs(refs.storage)
    assert refs.commit("main", FIRST, snapshot(identity(1), FIRST)) == Moved()
    assert other.commit("main", FIRST, snapshot(identity(2), FIRST)) == Behind(identity(1))
    assert other.branch("main") == identity(1)


def test_of_many_racing_commits_exactly_one_wins(refs: AlphaRefs) -> None:
    writers = 8
    barrier = threading.Barrier(writers)
    outcomes: dict[int, Moved | Behind] = {}

    def race(number: int) -> None:
        mine = AlphaRefs(refs.storage)
        barrier.wait()
        outcomes[number] = mine.commit("main", FIRST, snapshot(identity(number), FIRST))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(1, writers + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [number for number, outcome in outcomes.items() if outcome == Moved()]
    assert refs.branch("main") == identity(winner)
    losers = [outcome for number, outcome in outcomes.items() if number != winner]
    assert losers == [Behind(identity(winner))] * (writers - 1)


class InterruptedStorage(WrappedStorage):
    """Lets somebody else act right before the first creation of a file."""

    def __init__(self, inner: Storage, act: object) -> None:
        super().__init__(inner)
        self.act = act

    def put(self, key: str, data: object, **options: object) -> PutOutcome:  # type: ignore[override]
        act, self.act = self.act, None
        if callable(act):
            act()
        return self.inner.put(key, data, **options)  # type: ignore[arg-type]


def test_a_commit_between_reading_and_writing_is_seen(refs: AlphaRefs) -> None:
    def overtake() -> None:
        committed(refs, "main", 1, start=50)

    slow = AlphaRefs(InterruptedStorage(refs.storage, overtake))
    assert slow.commit("main", FIRST, snapshot(identity(1), FIRST)) == Behind(identity(50))


def test_a_reset_to_the_same_snapshot_in_between_does_not_disturb(refs: AlphaRefs) -> None:
    def rewrite() -> None:
        assert refs.reset_branch("main", FIRST, FIRST) == Moved()

    slow = AlphaRefs(InterruptedStorage(refs.storage, rewrite))
    assert slow.commit("main", FIRST, snapshot(identity(1), FIRST)) == Moved()
    assert refs.branch("main") == identity(1)
    assert len(list(refs.storage.scan(branch_prefix("main")))) == 3


def test_a_commit_whose_answer_was_lost_is_recognised(refs: AlphaRefs) -> None:
    mine = snapshot(identity(1), FIRST)
    assert refs.commit("main", FIRST, mine) == Moved()
    assert refs.commit("main", FIRST, mine) == Moved()
    assert len(list(refs.storage.scan(branch_prefix("main")))) == 2


def test_a_missing_branch_is_behind_nothing(refs: AlphaRefs) -> None:
    assert refs.commit("gone", FIRST, snapshot(identity(1), FIRST)) == Behind(None)
    assert refs.branch("gone") is None
    assert not refs.delete_branch("gone")


def test_a_reset_goes_anywhere_but_only_from_where_the_caller_believes(refs: AlphaRefs) -> None:
    head = committed(refs, "main", 3)
    assert refs.reset_branch("main", identity(1), identity(2)) == Behind(head)
    assert refs.reset_branch("main", identity(1), head) == Moved()
    assert refs.branch("main") == identity(1)


def test_branches_are_created_once_and_listed_by_name(refs: AlphaRefs) -> None:
    assert refs.create_branch("dev", identity(5)) is Creation.CREATED
    assert refs.create_branch("dev", identity(6)) is Creation.EXISTS
    assert refs.create_branch("a.b", FIRST) is Creation.CREATED
    assert list(refs.branches().items()) == [
        ("a.b", FIRST),
        ("dev", identity(5)),
        ("main", FIRST),
    ]


def test_a_deleted_branch_is_gone_and_may_be_made_again(refs: AlphaRefs) -> None:
    refs.create_branch("dev", FIRST)
    committed(refs, "dev", 5)
    assert refs.delete_branch("dev")
    assert refs.branches() == {"main": FIRST}
    assert not list(refs.storage.scan(branch_prefix("dev")))
    assert refs.create_branch("dev", identity(9)) is Creation.CREATED
    assert refs.branch("dev") == identity(9)


class OneByOne(WrappedStorage):
    """Deletes the keys of a batch one by one and newest first, the worst order for a branch."""

    def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
        for key in sorted(keys):
            self.inner.delete([key])
        return Deleted(tuple(keys))


def test_no_crash_while_deleting_brings_back_an_older_state() -> None:
    def prepare(storage: Storage) -> None:
        refs = AlphaRefs(storage)
        refs.initialize(snapshot(FIRST, None))
        refs.create_branch("dev", FIRST)
        committed(refs, "dev", 6)

    points = list(
        every_crash(
            lambda storage: AlphaRefs(OneByOne(storage)).delete_branch("dev"),
            prepare=prepare,
        )
    )
    assert len(points) > 14
    for point in points:
        left = AlphaRefs(point.storage)
        assert left.branch("dev") in (identity(6), None), point.name
        left.delete_branch("dev")
        assert left.branches() == {"main": FIRST}


def test_no_crash_while_committing_leaves_anything_but_the_old_or_new_head() -> None:
    points = every_crash(
        lambda storage: AlphaRefs(storage).commit("main", FIRST, snapshot(identity(1), FIRST)),
        prepare=lambda storage: AlphaRefs(storage).initialize(snapshot(FIRST, None)),
    )
    heads = {AlphaRefs(point.storage).branch("main") for point in points}
    assert heads == {FIRST, identity(1)}


def test_a_commit_during_the_deletion_is_deleted_as_well(refs: AlphaRefs) -> None:
    refs.create_branch("dev", FIRST)
    rival = AlphaRefs(refs.storage)

    class Late(WrappedStorage):
        done = False

        def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
            if not self.done:
                self.done = True
                assert rival.commit("dev", FIRST, snapshot(identity(1), FIRST)) == Moved()
            return self.inner.delete(keys)

    assert AlphaRefs(Late(refs.storage)).delete_branch("dev")
    assert refs.branch("dev") is None


def test_a_deletion_that_fails_says_so_and_keeps_the_newest_file(refs: AlphaRefs) -> None:
    refs.create_branch("dev", FIRST)
    committed(refs, "dev", 2)

    class Refusing(WrappedStorage):
        def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
            return Deleted((), dict.fromkeys(keys, "denied"))

    with pytest.raises(StorageError, match="denied"):
        AlphaRefs(Refusing(refs.storage)).delete_branch("dev")
    assert refs.branch("dev") == identity(2)


def test_a_branch_that_never_stops_moving_is_given_up(refs: AlphaRefs) -> None:
    class AlwaysLost(WrappedStorage):
        def put(self, key: str, data: bytes, **options: object) -> PutOutcome:  # type: ignore[override]
            self.inner.put(key, data, expect=Absent())
            return self.inner.put(key, data, expect=Absent())

    unlucky = AlphaRefs(AlwaysLost(refs.storage))
    with pytest.raises(ConflictError):
        unlucky.reset_branch("main", FIRST, FIRST)


def test_a_damaged_reference_is_named(refs: AlphaRefs) -> None:
    refs.storage.put("refs/branch.main/ZZZZZZZY.json", b"{}", expect=Anything())
    with pytest.raises(FormatError, match=r"refs/branch\.main/ZZZZZZZY\.json"):
        refs.branch("main")


# tags


def test_a_tag_is_created_once_and_its_name_dies_with_it(refs: AlphaRefs) -> None:
    assert refs.create_tag("it works!", identity(1)) is Creation.CREATED
    assert refs.create_tag("it works!", identity(2)) is Creation.EXISTS
    assert refs.tags() == {"it works!": identity(1)}
    assert refs.delete_tag("it works!")
    assert not refs.delete_tag("it works!")
    assert refs.tag("it works!") is None
    assert refs.tags() == {}
    assert refs.deleted_tags() == ["it works!"]
    assert refs.create_tag("it works!", identity(1)) is Creation.WAS_DELETED
    assert refs.storage.head(tag_key("it works!")) is not None
    assert refs.storage.head(tombstone_key("it works!")) is not None


def test_a_tag_may_be_called_as_a_branch(refs: AlphaRefs) -> None:
    assert refs.create_tag("main", identity(1)) is Creation.CREATED
    assert (refs.tag("main"), refs.branch("main")) == (identity(1), FIRST)
    assert not refs.delete_tag("missing")


# the spelling of October 2024


def test_a_repository_with_colons_keeps_its_spelling(storage: Storage) -> None:
    for key in ("refs/branch:main/ZZZZZZZZ.json", "refs/tag:v1/ref.json"):
        document = b'{"snapshot":"%s"}' % encode_base32(FIRST).encode()
        storage.put(key, document, expect=Anything())
    refs = AlphaRefs(storage)
    assert not refs.initialize(snapshot(identity(7), None))
    assert (refs.branches(), refs.tags()) == ({"main": FIRST}, {"v1": FIRST})
    assert refs.commit("main", FIRST, snapshot(identity(1), FIRST)) == Moved()
    assert refs.create_branch("dev", FIRST) is Creation.CREATED
    assert refs.create_tag("v2", FIRST) is Creation.CREATED
    assert refs.delete_tag("v1")
    assert sorted(storage.list_folders("refs/")) == [
        "branch:dev",
        "branch:main",
        "tag:v1",
        "tag:v2",
    ]
    assert AlphaRefs(storage).branch("main") == identity(1)


@pytest.mark.parametrize("other", ["main", "dev"])
def test_branches_in_both_spellings_are_two_repositories_and_neither_is_chosen(
    storage: Storage, other: str
) -> None:
    document = b'{"snapshot":"%s"}' % encode_base32(FIRST).encode()
    for key in ("refs/branch:main/ZZZZZZZZ.json", "refs/branch.dev/ref.json"):
        storage.put(key, document, expect=Anything())
    # What a migration to generation 1 has prepared is no second repository.
    assert AlphaRefs(storage).branches() == {"main": FIRST}
    storage.put(f"refs/branch.{other}/ZZZZZZZZ.json", document, expect=Anything())
    with pytest.raises(FormatError, match="two repositories"):
        AlphaRefs(storage).branches()


# configuration and history


def test_the_configuration_is_swapped_not_overwritten(refs: AlphaRefs) -> None:
    assert refs.config() is None
    config = RepositoryConfig(inline_chunk_threshold_bytes=7)
    first = refs.save_config(config, None)
    assert first is not None
    assert refs.save_config(config, None) is None
    stored = refs.config()
    assert stored is not None
    assert (stored.version, stored.config.inline_chunk_threshold_bytes) == (first, 7)
    assert refs.save_config(RepositoryConfig(), Version("stale")) is None
    assert refs.save_config(RepositoryConfig(), first) is not None


def test_a_first_snapshot_under_a_wrong_name_is_found_by_its_id(refs: AlphaRefs) -> None:
    own = (encode_base32(identity(3)), "2024-10-13T18:53:45Z", "Repository initialized")
    old = msgpack.packb((0, {}, (), (), 0, 0, (), own, own[1], {}, {}))
    files = {identity(4): old, identity(5): b"damaged"}
    for name, data in files.items():
        refs.storage.put(refs.layout.snapshot(name), data, expect=Anything())
    plain = refs.codec.encode_snapshot(snapshot(FIRST, None), level=1)
    refs.storage.put(refs.layout.snapshot(FIRST), plain, expect=Anything())
    assert refs.relocate(identity(3)) == identity(4)
    assert refs.relocate(identity(99)) is None
    assert refs.parent(snapshot(identity(1), FIRST)) == FIRST
