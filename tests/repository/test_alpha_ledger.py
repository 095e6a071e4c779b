"""Branches as numbered files: races have one winner, and no crash moves a branch back."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import msgpack
import pytest

from airflow_provider_icechunk.exceptions import (
    ConflictError,
    FormatError,
    InvalidInputError,
    StorageError,
)
from airflow_provider_icechunk.format.config import RepositoryConfig
from airflow_provider_icechunk.format.generations.alpha.layout import (
    LAST_SEQUENCE,
    branch_prefix,
    parse_sequence_file,
    sequence_file,
    tag_key,
    tombstone_key,
)
from airflow_provider_icechunk.format.generations.base import Codec, Generation, Layout
from airflow_provider_icechunk.format.ids import SnapshotId, encode_base32
from airflow_provider_icechunk.format.snapshot import FIRST_MESSAGE, Snapshot
from airflow_provider_icechunk.repository.ledgers.alpha import AlphaLedger
from airflow_provider_icechunk.repository.ledgers.base import Behind, Creation, Ledger, Moved
from airflow_provider_icechunk.storage.base import (
    Absent,
    Anything,
    Deleted,
    PutOutcome,
    Storage,
    Version,
)
from airflow_provider_icechunk.storage.local import LocalStorage
from airflow_provider_icechunk.storage.memory import MemoryStorage
from airflow_provider_icechunk.testing.storages import WrappedStorage, every_crash

FIRST = SnapshotId(b"first-snap-0")


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path, durable=False)


@pytest.fixture
def ledger(storage: Storage) -> AlphaLedger:
    ledger = AlphaLedger(storage)
    assert ledger.initialize(snapshot(FIRST, None))
    return ledger


def identity(number: int) -> SnapshotId:
    return SnapshotId(number.to_bytes(12, "big"))


def snapshot(own: SnapshotId, parent: SnapshotId | None) -> Snapshot:
    return Snapshot(own, parent, 0, FIRST_MESSAGE, {}, {})


def committed(ledger: AlphaLedger, name: str, count: int, start: int = 1) -> SnapshotId:
    head = ledger.branch(name)
    assert head is not None
    for number in range(start, start + count):
        child = snapshot(identity(number), head)
        assert ledger.commit(name, head, child) == Moved()
        head = child.id
    return head


def test_it_is_a_ledger(ledger: AlphaLedger) -> None:
    as_protocol: Ledger = ledger
    codec: Codec = ledger.codec
    layout: Layout = ledger.layout
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
def test_names_cannot_leave_their_folder(ledger: AlphaLedger, name: str) -> None:
    for act in (ledger.branch, ledger.tag, ledger.delete_branch, ledger.delete_tag):
        with pytest.raises(InvalidInputError):
            act(name)


# branches


def test_a_repository_is_created_once(ledger: AlphaLedger) -> None:
    assert not AlphaLedger(ledger.storage).initialize(snapshot(identity(7), None))
    assert ledger.branches() == {"main": FIRST}


def test_reference_files_are_compact_json_under_their_specified_names(ledger: AlphaLedger) -> None:
    found = ledger.storage.get("refs/branch.main/ZZZZZZZZ.json")
    assert found is not None
    assert found.data == b'{"snapshot":"%s"}' % encode_base32(FIRST).encode()


def test_the_newest_of_many_commits_is_the_head(ledger: AlphaLedger) -> None:
    head = committed(ledger, "main", 150)
    assert AlphaLedger(ledger.storage).branch("main") == head
    files = [item.key for item in ledger.storage.scan(branch_prefix("main"))]
    assert len(files) == 151
    assert files[0].endswith(sequence_file(150))


def test_foreign_files_in_a_branch_folder_are_ignored(ledger: AlphaLedger) -> None:
    ledger.storage.put("refs/branch.main/0.txt", b"", expect=Anything())
    ledger.storage.put("refs/branch.main/00.json", b"", expect=Anything())
    assert ledger.branch("main") == FIRST


def test_of_two_commits_on_the_same_base_one_wins(ledger: AlphaLedger) -> None:
    other = AlphaLedger(ledger.storage)
    assert ledger.commit("main", FIRST, snapshot(identity(1), FIRST)) == Moved()
    assert other.commit("main", FIRST, snapshot(identity(2), FIRST)) == Behind(identity(1))
    assert other.branch("main") == identity(1)


def test_of_many_racing_commits_exactly_one_wins(ledger: AlphaLedger) -> None:
    writers = 8
    barrier = threading.Barrier(writers)
    outcomes: dict[int, Moved | Behind] = {}

    def race(number: int) -> None:
        mine = AlphaLedger(ledger.storage)
        barrier.wait()
        outcomes[number] = mine.commit("main", FIRST, snapshot(identity(number), FIRST))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(1, writers + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [number for number, outcome in outcomes.items() if outcome == Moved()]
    assert ledger.branch("main") == identity(winner)
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


def test_a_commit_between_reading_and_writing_is_seen(ledger: AlphaLedger) -> None:
    def overtake() -> None:
        committed(ledger, "main", 1, start=50)

    slow = AlphaLedger(InterruptedStorage(ledger.storage, overtake))
    assert slow.commit("main", FIRST, snapshot(identity(1), FIRST)) == Behind(identity(50))


def test_a_reset_to_the_same_snapshot_in_between_does_not_disturb(ledger: AlphaLedger) -> None:
    def rewrite() -> None:
        assert ledger.reset_branch("main", FIRST, FIRST) == Moved()

    slow = AlphaLedger(InterruptedStorage(ledger.storage, rewrite))
    assert slow.commit("main", FIRST, snapshot(identity(1), FIRST)) == Moved()
    assert ledger.branch("main") == identity(1)
    assert len(list(ledger.storage.scan(branch_prefix("main")))) == 3


def test_a_commit_whose_answer_was_lost_is_recognised(ledger: AlphaLedger) -> None:
    mine = snapshot(identity(1), FIRST)
    assert ledger.commit("main", FIRST, mine) == Moved()
    assert ledger.commit("main", FIRST, mine) == Moved()
    assert len(list(ledger.storage.scan(branch_prefix("main")))) == 2


def test_a_missing_branch_is_behind_nothing(ledger: AlphaLedger) -> None:
    assert ledger.commit("gone", FIRST, snapshot(identity(1), FIRST)) == Behind(None)
    assert ledger.branch("gone") is None
    assert not ledger.delete_branch("gone")


def test_a_reset_goes_anywhere_but_only_from_where_the_caller_believes(ledger: AlphaLedger) -> None:
    head = committed(ledger, "main", 3)
    assert ledger.reset_branch("main", identity(1), identity(2)) == Behind(head)
    assert ledger.reset_branch("main", identity(1), head) == Moved()
    assert ledger.branch("main") == identity(1)


def test_branches_are_created_once_and_listed_by_name(ledger: AlphaLedger) -> None:
    assert ledger.create_branch("dev", identity(5)) is Creation.CREATED
    assert ledger.create_branch("dev", identity(6)) is Creation.EXISTS
    assert ledger.create_branch("a.b", FIRST) is Creation.CREATED
    assert list(ledger.branches().items()) == [
        ("a.b", FIRST),
        ("dev", identity(5)),
        ("main", FIRST),
    ]


def test_a_deleted_branch_is_gone_and_may_be_made_again(ledger: AlphaLedger) -> None:
    ledger.create_branch("dev", FIRST)
    committed(ledger, "dev", 5)
    assert ledger.delete_branch("dev")
    assert ledger.branches() == {"main": FIRST}
    assert not list(ledger.storage.scan(branch_prefix("dev")))
    assert ledger.create_branch("dev", identity(9)) is Creation.CREATED
    assert ledger.branch("dev") == identity(9)


class OneByOne(WrappedStorage):
    """Deletes the keys of a batch one by one and newest first, the worst order for a branch."""

    def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
        for key in sorted(keys):
            self.inner.delete([key])
        return Deleted(tuple(keys))


def test_no_crash_while_deleting_brings_back_an_older_state() -> None:
    def prepare(storage: Storage) -> None:
        ledger = AlphaLedger(storage)
        ledger.initialize(snapshot(FIRST, None))
        ledger.create_branch("dev", FIRST)
        committed(ledger, "dev", 6)

    points = list(
        every_crash(
            lambda storage: AlphaLedger(OneByOne(storage)).delete_branch("dev"),
            prepare=prepare,
        )
    )
    assert len(points) > 14
    for point in points:
        left = AlphaLedger(point.storage)
        assert left.branch("dev") in (identity(6), None), point.name
        left.delete_branch("dev")
        assert left.branches() == {"main": FIRST}


def test_no_crash_while_committing_leaves_anything_but_the_old_or_new_head() -> None:
    points = every_crash(
        lambda storage: AlphaLedger(storage).commit("main", FIRST, snapshot(identity(1), FIRST)),
        prepare=lambda storage: AlphaLedger(storage).initialize(snapshot(FIRST, None)),
    )
    heads = {AlphaLedger(point.storage).branch("main") for point in points}
    assert heads == {FIRST, identity(1)}


def test_a_commit_during_the_deletion_is_deleted_as_well(ledger: AlphaLedger) -> None:
    ledger.create_branch("dev", FIRST)
    rival = AlphaLedger(ledger.storage)

    class Late(WrappedStorage):
        done = False

        def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
            if not self.done:
                self.done = True
                assert rival.commit("dev", FIRST, snapshot(identity(1), FIRST)) == Moved()
            return self.inner.delete(keys)

    assert AlphaLedger(Late(ledger.storage)).delete_branch("dev")
    assert ledger.branch("dev") is None


def test_a_deletion_that_fails_says_so_and_keeps_the_newest_file(ledger: AlphaLedger) -> None:
    ledger.create_branch("dev", FIRST)
    committed(ledger, "dev", 2)

    class Refusing(WrappedStorage):
        def delete(self, keys: Sequence[str], *, immutable: bool = False) -> Deleted:
            return Deleted((), dict.fromkeys(keys, "denied"))

    with pytest.raises(StorageError, match="denied"):
        AlphaLedger(Refusing(ledger.storage)).delete_branch("dev")
    assert ledger.branch("dev") == identity(2)


def test_a_branch_that_never_stops_moving_is_given_up(ledger: AlphaLedger) -> None:
    class AlwaysLost(WrappedStorage):
        def put(self, key: str, data: bytes, **options: object) -> PutOutcome:  # type: ignore[override]
            self.inner.put(key, data, expect=Absent())
            return self.inner.put(key, data, expect=Absent())

    unlucky = AlphaLedger(AlwaysLost(ledger.storage))
    with pytest.raises(ConflictError):
        unlucky.reset_branch("main", FIRST, FIRST)


def test_a_damaged_reference_is_named(ledger: AlphaLedger) -> None:
    ledger.storage.put("refs/branch.main/ZZZZZZZY.json", b"{}", expect=Anything())
    with pytest.raises(FormatError, match=r"refs/branch\.main/ZZZZZZZY\.json"):
        ledger.branch("main")


# tags


def test_a_tag_is_created_once_and_its_name_dies_with_it(ledger: AlphaLedger) -> None:
    assert ledger.create_tag("it works!", identity(1)) is Creation.CREATED
    assert ledger.create_tag("it works!", identity(2)) is Creation.EXISTS
    assert ledger.tags() == {"it works!": identity(1)}
    assert ledger.delete_tag("it works!")
    assert not ledger.delete_tag("it works!")
    assert ledger.tag("it works!") is None
    assert ledger.tags() == {}
    assert ledger.deleted_tags() == ["it works!"]
    assert ledger.create_tag("it works!", identity(1)) is Creation.WAS_DELETED
    assert ledger.storage.head(tag_key("it works!")) is not None
    assert ledger.storage.head(tombstone_key("it works!")) is not None


def test_a_tag_may_be_called_as_a_branch(ledger: AlphaLedger) -> None:
    assert ledger.create_tag("main", identity(1)) is Creation.CREATED
    assert (ledger.tag("main"), ledger.branch("main")) == (identity(1), FIRST)
    assert not ledger.delete_tag("missing")


# the spelling of October 2024


def test_a_repository_with_colons_keeps_its_spelling(storage: Storage) -> None:
    for key in ("refs/branch:main/ZZZZZZZZ.json", "refs/tag:v1/ref.json"):
        document = b'{"snapshot":"%s"}' % encode_base32(FIRST).encode()
        storage.put(key, document, expect=Anything())
    ledger = AlphaLedger(storage)
    assert not ledger.initialize(snapshot(identity(7), None))
    assert (ledger.branches(), ledger.tags()) == ({"main": FIRST}, {"v1": FIRST})
    assert ledger.commit("main", FIRST, snapshot(identity(1), FIRST)) == Moved()
    assert ledger.create_branch("dev", FIRST) is Creation.CREATED
    assert ledger.create_tag("v2", FIRST) is Creation.CREATED
    assert ledger.delete_tag("v1")
    assert sorted(storage.list_folders("refs/")) == [
        "branch:dev",
        "branch:main",
        "tag:v1",
        "tag:v2",
    ]
    assert AlphaLedger(storage).branch("main") == identity(1)


@pytest.mark.parametrize("other", ["main", "dev"])
def test_branches_in_both_spellings_are_two_repositories_and_neither_is_chosen(
    storage: Storage, other: str
) -> None:
    document = b'{"snapshot":"%s"}' % encode_base32(FIRST).encode()
    for key in ("refs/branch:main/ZZZZZZZZ.json", "refs/branch.dev/ref.json"):
        storage.put(key, document, expect=Anything())
    # What a migration to generation 1 has prepared is no second repository.
    assert AlphaLedger(storage).branches() == {"main": FIRST}
    storage.put(f"refs/branch.{other}/ZZZZZZZZ.json", document, expect=Anything())
    with pytest.raises(FormatError, match="two repositories"):
        AlphaLedger(storage).branches()


# configuration and history


def test_the_configuration_is_swapped_not_overwritten(ledger: AlphaLedger) -> None:
    assert ledger.config() is None
    config = RepositoryConfig(inline_chunk_threshold_bytes=7)
    first = ledger.save_config(config, None)
    assert first is not None
    assert ledger.save_config(config, None) is None
    stored = ledger.config()
    assert stored is not None
    assert (stored.version, stored.config.inline_chunk_threshold_bytes) == (first, 7)
    assert ledger.save_config(RepositoryConfig(), Version("stale")) is None
    assert ledger.save_config(RepositoryConfig(), first) is not None


def test_a_first_snapshot_under_a_wrong_name_is_found_by_its_id(ledger: AlphaLedger) -> None:
    own = (encode_base32(identity(3)), "2024-10-13T18:53:45Z", "Repository initialized")
    old = msgpack.packb((0, {}, (), (), 0, 0, (), own, own[1], {}, {}))
    files = {identity(4): old, identity(5): b"damaged"}
    for name, data in files.items():
        ledger.storage.put(ledger.layout.snapshot(name), data, expect=Anything())
    plain = ledger.codec.encode_snapshot(snapshot(FIRST, None), level=1)
    ledger.storage.put(ledger.layout.snapshot(FIRST), plain, expect=Anything())
    assert ledger.relocate(identity(3)) == identity(4)
    assert ledger.relocate(identity(99)) is None
    assert ledger.parent(snapshot(identity(1), FIRST)) == FIRST
