"""The guarantees of every storage, as tests for pytest.

The tests of a back end subclass `StorageSuite` and override the fixture `storage`:

.. code-block:: python

    class TestMyStorage(StorageSuite):
        @pytest.fixture
        def storage(self) -> MyStorage:
            return MyStorage()

Call `pytest.register_assert_rewrite("airflow_provider_icechunk.testing.conformance")` in a
`conftest.py` to see the values in failing assertions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, timedelta

import pytest

from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Anything,
    Bounded,
    ByteRange,
    Data,
    Exactly,
    From,
    Last,
    Lost,
    Put,
    Storage,
    Until,
    Version,
    Written,
    read_into,
)
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

KEY = "refs/branch.main/ref.json"
TEXT = b"0123456789"
HOSTILE_KEYS = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../x",
    "a/../../x",
    "a/../x",
    "a/..",
    "./a",
    "a/./b",
    "a//b",
    "a/",
    "\x00",
    "a\x00b",
    "a\nb",
    "a\\..\\b",
    "..\\x",
    "\ud800",
    "a" * 256,
    "é" * 200,
    "/".join(["abc"] * 400),
    "refs/.tmp#123",
    ".icechunk#1/a",
]


class StorageSuite:
    """The promises of `Storage`, each a test on a fresh and empty storage."""

    races = 16
    """Threads in a race."""
    increments = 4
    """Increments of each racing thread."""
    lists_in_key_order = True
    """Whether a complete scan is also in the order of whole keys."""
    many = 60
    """Objects of the paging test; more than one page."""

    @pytest.fixture
    def storage(self) -> Storage:
        """A new, empty storage; every back end overrides this."""
        raise NotImplementedError

    def test_is_a_storage_with_a_location(self, storage: Storage) -> None:
        assert isinstance(storage, Storage)
        assert "://" in storage.location

    def test_a_missing_object_is_none(self, storage: Storage) -> None:
        assert storage.get("nothing/here") is None
        assert storage.get("nothing/here", Bounded(0, 1)) is None
        assert storage.get("nothing/here", Until(1)) is None
        assert storage.head("nothing/here") is None

    def test_what_was_put_is_got_with_the_same_version(self, storage: Storage) -> None:
        outcome = storage.put(KEY, TEXT, expect=Anything())
        assert isinstance(outcome, Written)
        found = storage.get(KEY)
        assert found is not None
        assert (found.data, found.version) == (TEXT, outcome.version)

    @pytest.mark.parametrize("data", [b"", b"x", bytearray(b"yy"), memoryview(b"zzz")])
    def test_any_kind_of_bytes_can_be_put(self, storage: Storage, data: Data) -> None:
        storage.put("chunks/a", data, expect=Anything())
        found = storage.get("chunks/a")
        assert found is not None
        assert found.data == bytes(data)

    @pytest.mark.parametrize(
        ("byte_range", "expected"),
        [
            (Bounded(0, 10), TEXT),
            (Bounded(2, 5), b"234"),
            (Bounded(9, 10), b"9"),
            (Bounded(3, 3), b""),
            (Bounded(8, 99), b"89"),
            (Bounded(10, 12), b""),
            (Bounded(50, 60), b""),
            (From(0), TEXT),
            (From(7), b"789"),
            (From(10), b""),
            (From(99), b""),
            (Last(0), b""),
            (Last(3), b"789"),
            (Last(10), TEXT),
            (Last(99), TEXT),
            (Until(0), TEXT),
            (Until(4), b"012345"),
            (Until(10), b""),
            (Until(99), b""),
        ],
    )
    def test_a_range_gives_what_is_there(
        self, storage: Storage, byte_range: ByteRange, expected: bytes
    ) -> None:
        outcome = storage.put("chunks/a", TEXT, expect=Anything())
        found = storage.get("chunks/a", byte_range)
        assert found is not None
        assert found.data == expected
        assert outcome == Written(found.version)

    @pytest.mark.parametrize("byte_range", [Bounded(0, 5), From(0), Last(3), Until(2)])
    def test_any_range_of_an_empty_object_is_empty(
        self, storage: Storage, byte_range: ByteRange
    ) -> None:
        storage.put("chunks/empty", b"", expect=Anything())
        found = storage.get("chunks/empty", byte_range)
        assert found is not None
        assert found.data == b""

    @pytest.mark.parametrize("byte_range", [Bounded(-1, 3), Bounded(3, 2), From(-1), Last(-1)])
    def test_a_range_that_makes_no_sense_is_refused(
        self, storage: Storage, byte_range: ByteRange
    ) -> None:
        storage.put("chunks/a", TEXT, expect=Anything())
        with pytest.raises(InvalidInputError):
            storage.get("chunks/a", byte_range)

    @pytest.mark.parametrize(("start", "size"), [(0, 200_000), (0, 100), (7, 199_993), (5, 100)])
    def test_bytes_are_put_where_they_stay(self, storage: Storage, start: int, size: int) -> None:
        whole = bytes(range(250)) * 800
        storage.put("chunks/a", whole, expect=Anything())
        memory = bytearray(b"-" * (size + 2))
        assert read_into(storage, "chunks/a", start, memoryview(memory)[1:-1]) == size
        assert memory == b"-" + whole[start : start + size] + b"-"

    def test_bytes_beyond_the_end_are_left_alone(self, storage: Storage) -> None:
        storage.put("chunks/a", TEXT, expect=Anything())
        for start, expected in [(0, TEXT), (7, TEXT[7:]), (10, b""), (99, b"")]:
            memory = bytearray(b"-" * 12)
            assert read_into(storage, "chunks/a", start, memoryview(memory)) == len(expected)
            assert memory == expected.ljust(12, b"-")
        assert read_into(storage, "chunks/a", 3, memoryview(bytearray())) == 0

    def test_nothing_is_put_in_place_of_a_missing_object(self, storage: Storage) -> None:
        memory = bytearray(b"-" * 9)
        assert read_into(storage, "chunks/none", 0, memoryview(memory)) is None
        assert memory == b"-" * 9
        with pytest.raises(InvalidInputError):
            read_into(storage, "../x", 0, memoryview(memory))

    def test_many_gets_come_in_the_order_of_the_requests(self, storage: Storage) -> None:
        storage.put_many([Put(f"chunks/{n:03}", str(n).encode() * 3) for n in range(40)])
        storage.settle()
        requests = [(f"chunks/{n:03}", Bounded(0, n % 5)) for n in reversed(range(45))]
        got = storage.get_many(requests)
        expected = [
            None if n >= 40 else (str(n).encode() * 3)[: n % 5] for n in reversed(range(45))
        ]
        assert [None if one is None else one.data for one in got] == expected
        assert storage.get_many([]) == []

    def test_absent_writes_once(self, storage: Storage) -> None:
        assert isinstance(storage.put(KEY, b"first", expect=Absent()), Written)
        assert storage.put(KEY, b"second", expect=Absent()) == Lost()
        assert _read(storage, KEY) == b"first"

    def test_absent_writes_again_after_a_delete(self, storage: Storage) -> None:
        storage.put(KEY, b"first", expect=Absent())
        storage.delete([KEY])
        assert isinstance(storage.put(KEY, b"second", expect=Absent()), Written)
        assert _read(storage, KEY) == b"second"

    def test_absent_loses_against_an_unconditional_write(self, storage: Storage) -> None:
        storage.put(KEY, b"first", expect=Anything())
        assert storage.put(KEY, b"second", expect=Absent()) == Lost()

    def test_exactly_writes_on_the_version_it_names_alone(self, storage: Storage) -> None:
        first = storage.put(KEY, b"1", expect=Absent())
        assert isinstance(first, Written)
        second = storage.put(KEY, b"2", expect=Exactly(first.version))
        assert isinstance(second, Written)
        assert second.version != first.version
        assert storage.put(KEY, b"3", expect=Exactly(first.version)) == Lost()
        assert _read(storage, KEY) == b"2"
        third = storage.put(KEY, b"3", expect=Exactly(second.version))
        assert isinstance(third, Written)
        assert _read(storage, KEY) == b"3"

    def test_exactly_works_with_the_version_of_a_get(self, storage: Storage) -> None:
        storage.put(KEY, b"1", expect=Anything())
        found = storage.get(KEY)
        assert found is not None
        assert isinstance(storage.put(KEY, b"2", expect=Exactly(found.version)), Written)

    def test_exactly_loses_on_a_missing_object_and_on_an_overwritten_one(
        self, storage: Storage
    ) -> None:
        first = storage.put(KEY, b"1", expect=Absent())
        assert isinstance(first, Written)
        storage.put(KEY, b"2", expect=Anything())
        assert storage.put(KEY, b"3", expect=Exactly(first.version)) == Lost()
        storage.delete([KEY])
        assert storage.put(KEY, b"3", expect=Exactly(first.version)) == Lost()
        assert storage.get(KEY) is None

    def test_exactly_loses_on_a_version_that_never_was(self, storage: Storage) -> None:
        storage.put(KEY, b"1", expect=Anything())
        made_up = Version('"0123456789abcdef0123456789abcdef"')
        assert storage.put(KEY, b"2", expect=Exactly(made_up)) == Lost()
        assert _read(storage, KEY) == b"1"

    def test_of_racing_creators_exactly_one_wins(self, storage: Storage) -> None:
        for number in range(3):
            key = f"refs/tag.t{number}/ref.json"

            def create(worker: int, key: str = key) -> object:
                return storage.put(key, str(worker).encode(), expect=Absent())

            outcomes = _race(create, self.races)
            winners = [n for n, one in enumerate(outcomes) if isinstance(one, Written)]
            assert len(winners) == 1
            assert outcomes.count(Lost()) == self.races - 1
            assert _read(storage, key) == str(winners[0]).encode()

    def test_racing_swaps_lose_no_update(self, storage: Storage) -> None:
        storage.put(KEY, b"0", expect=Absent())

        def add(_: int) -> None:
            for _round in range(self.increments):
                add_one(storage, KEY)

        _race(add, self.races)
        assert _read(storage, KEY) == str(self.races * self.increments).encode()

    def test_a_scan_gives_every_object_with_its_size(self, storage: Storage) -> None:
        keys = {f"chunks/{n:05}": n % 7 for n in range(self.many)}
        storage.put_many([Put(key, b"x" * size) for key, size in keys.items()])
        storage.put("chunksother", b"", expect=Anything())
        storage.settle()
        listed = list(storage.scan("chunks/"))
        assert [one.key for one in listed] == sorted(keys)
        assert {one.key: one.size for one in listed} == keys

    def test_a_scan_is_in_the_order_of_whole_keys(self, storage: Storage) -> None:
        keys = ["a-b/x", "a.c", "a/x", "a/y/z", "a0", "ab", "b", "A/x", "a/x-1", "a/x.y"]
        storage.put_many([Put(key, b"") for key in keys])
        found = [one.key for one in storage.scan("")]
        assert sorted(found) == sorted(keys)
        if self.lists_in_key_order:
            assert found == sorted(keys)

    def test_a_prefix_may_end_inside_a_name(self, storage: Storage) -> None:
        storage.put_many([Put(key, b"") for key in ("refs/branch.a/r", "refs/tag.a/r", "x")])
        assert [one.key for one in storage.scan("refs/br")] == ["refs/branch.a/r"]
        assert [one.key for one in storage.scan("refs/branch.a/")] == ["refs/branch.a/r"]
        assert list(storage.scan("nothing/")) == []
        assert list(storage.scan("refs/branch.a/r/")) == []

    def test_folders_are_those_with_objects(self, storage: Storage) -> None:
        storage.put_many(
            [Put(key, b"") for key in ("refs/branch.a/r", "refs/branch.b/x/y", "refs/f", "c/x")]
        )
        assert storage.list_folders("refs/") == ["branch.a", "branch.b"]
        assert storage.list_folders("") == ["c", "refs"]
        assert storage.list_folders("nothing/") == []
        storage.delete(["refs/branch.a/r"])
        assert storage.list_folders("refs/") == ["branch.b"]

    def test_head_gives_size_and_a_time_by_the_clock_of_the_store(self, storage: Storage) -> None:
        before = storage.now()
        storage.put(KEY, TEXT, expect=Anything())
        listed = storage.head(KEY)
        after = storage.now()
        assert listed is not None
        assert (listed.key, listed.size) == (KEY, len(TEXT))
        assert listed.created_at.tzinfo == UTC
        tick = timedelta(seconds=2)
        assert before - tick <= listed.created_at <= after + tick
        assert [one.created_at.tzinfo for one in storage.scan(KEY)] == [UTC]

    @pytest.mark.parametrize("immutable", [False, True])
    def test_deleting_reports_all_keys_and_takes_missing_ones_for_deleted(
        self, storage: Storage, immutable: bool
    ) -> None:
        storage.put_many([Put(f"chunks/{n}", b"") for n in range(5)])
        deleted = storage.delete(["chunks/1", "chunks/3", "chunks/none"], immutable=immutable)
        assert sorted(deleted.keys) == ["chunks/1", "chunks/3", "chunks/none"]
        assert deleted.failed == {}
        assert [one.key for one in storage.scan("")] == ["chunks/0", "chunks/2", "chunks/4"]
        assert storage.delete([], immutable=immutable).keys == ()

    @pytest.mark.parametrize("key", HOSTILE_KEYS, ids=repr)
    def test_a_hostile_key_is_refused_by_every_verb(self, storage: Storage, key: str) -> None:
        verbs: list[Callable[[], object]] = [
            lambda: storage.get(key),
            lambda: storage.get_many([(key, None)]),
            lambda: storage.put(key, b"", expect=Anything()),
            lambda: storage.put(key, b"", expect=Absent()),
            lambda: storage.put(key, b"", expect=Exactly(Version("x"))),
            lambda: storage.put_many([Put(key, b"")]),
            lambda: storage.head(key),
            lambda: storage.delete([key]),
        ]
        for verb in verbs:
            with pytest.raises(InvalidInputError) as caught:
                verb()
            assert caught.value.kind is Kind.INVALID_KEY

    @pytest.mark.parametrize("prefix", ["/", "../", "a/../", "/etc/", "a//", "\x00"])
    def test_a_hostile_prefix_is_refused(self, storage: Storage, prefix: str) -> None:
        with pytest.raises(InvalidInputError):
            list(storage.scan(prefix))
        with pytest.raises(InvalidInputError):
            storage.list_folders(prefix)

    def test_conditional_writes_pass_the_probe_and_it_leaves_nothing(
        self, storage: Storage
    ) -> None:
        storage.check_conditional_writes()
        assert list(storage.scan("")) == []

    def test_metadata_and_content_type_are_accepted(self, storage: Storage) -> None:
        written = storage.put(
            KEY,
            b"{}",
            expect=Absent(),
            metadata={"icspecver": "1"},
            content_type="application/json",
        )
        assert isinstance(written, Written)
        storage.put_many([Put("chunks/a", b"", {"icfiletype": "manifest"}, "text/plain")])
        storage.settle()
        assert _read(storage, KEY) == b"{}"


def add_one(storage: Storage, key: str) -> None:
    """Add one to the number under `key`, even if many others do the same."""
    while True:
        found = storage.get(key)
        assert found is not None
        number = str(int(found.data) + 1).encode()
        if isinstance(storage.put(key, number, expect=Exactly(found.version)), Written):
            return


def _read(storage: Storage, key: str) -> bytes | None:
    found = storage.get(key)
    return None if found is None else found.data


def _race(act: Callable[[int], object], number: int) -> list[object]:
    start = threading.Barrier(number)

    def run(worker: int) -> object:
        start.wait()
        return act(worker)

    with ThreadPoolExecutor(number) as executor:
        return list(executor.map(run, range(number)))
