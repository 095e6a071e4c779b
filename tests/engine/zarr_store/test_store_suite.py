"""Zarr's own suite for stores, run against ours.

A repository holds `zarr.json` documents and chunks of arrays that exist, and nothing else, while
the suite also uses keys like `foo/0/0`, documents that are no JSON and chunks of no bytes. So
the arrays that the suite's keys presuppose are made first, and those tests whose keys or bytes
cannot exist here are overridden with ones that can; each says why.
"""

from __future__ import annotations

import inspect
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.core.sync import _collect_aiterator, sync
from zarr.testing.store import StoreTests

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.objects.chunk_reader import Wanted
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.engine.zarr_store.keys import ChunkKey, DocumentKey, parse
from airflow_provider_icechunk.engine.zarr_store.store import IcechunkStore
from airflow_provider_icechunk.exceptions import InvalidInputError

until_3_3 = pytest.mark.skipif(
    not hasattr(Store, "_get_bytes"), reason="stores have no such methods from Zarr 3.3 on"
)
GROUP = b'{"zarr_format":3,"node_type":"group","attributes":{}}'


def array_document(*shape: int) -> bytes:
    """The `zarr.json` of an array of bytes with chunks of one element."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * len(shape)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            "attributes": {},
        }
    ).encode()


def make_room(store: IcechunkStore, key: str) -> None:
    """Create the array that a chunk key presupposes."""
    parsed = parse(key)
    tree = store.session.tree
    if isinstance(parsed, ChunkKey) and tree.node(parsed.path) is None:
        tree.put_document(parsed.path, array_document(*(100 for _ in parsed.index)))


class TestIcechunkStore(StoreTests[IcechunkStore, cpu.Buffer]):
    store_cls = IcechunkStore
    buffer_cls = cpu.Buffer

    @pytest.fixture
    def store_kwargs(self, backend: Callable[[], Storage]) -> dict[str, Any]:
        repo = icechunk.Repository.create(backend())
        return {"session": repo.writable_session("main")}

    @pytest.fixture
    def store(self, store_kwargs: dict[str, Any]) -> IcechunkStore:
        # The suite's fixture is asynchronous, which needs a mode of pytest-asyncio we do not use.
        return sync(self.store_cls.open(**store_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs: dict[str, Any]) -> IcechunkStore:
        return self.store_cls(**store_kwargs)

    async def set(self, store: IcechunkStore, key: str, value: Buffer) -> None:
        make_room(store, key)
        match parse(key):
            case DocumentKey(path):
                store.session.tree.put_document(path, value.to_bytes())
            case ChunkKey(path, index):
                store.session.tree.put_chunk(path, index, value.to_bytes())
            case None:
                pytest.fail(f"{key} is no key of a repository")

    async def get(self, store: IcechunkStore, key: str) -> Buffer:
        tree = store.session.tree
        match parse(key):
            case DocumentKey(path):
                return self.buffer_cls.from_bytes(tree.node(path).user_data)
            case ChunkKey(path, index):
                payload = tree.chunk(path, index)
                (data,) = tree.read([Wanted(payload, 0, 1 << 20)])
                return self.buffer_cls.from_bytes(data)
            case None:
                return pytest.fail(f"{key} is no key of a repository")

    def test_store_repr(self, store: IcechunkStore) -> None:
        assert repr(store).startswith("<icechunk.IcechunkStore>")
        assert "branch: main" in repr(store)
        assert store.session.snapshot_id in repr(store)

    def test_store_supports_writes(self, store: IcechunkStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: IcechunkStore) -> None:
        assert store.supports_listing

    # A writable session belongs to one process: what travels are forks and readers.
    async def test_serializable_store(self, store: IcechunkStore) -> None:
        with pytest.raises(ValueError, match="fork"):
            pickle.dumps(store)
        await store.set("zarr.json", self.buffer_cls.from_bytes(array_document(4)))
        await store.set("c/2", self.buffer_cls.from_bytes(b"\x05"))
        store.session.commit("something to read")
        if store.session.location.startswith("s3://"):
            with pytest.raises(TypeError, match="secret"):
                pickle.dumps(store)
            return
        twin = pickle.loads(pickle.dumps(store))
        assert twin == store
        assert twin.read_only
        assert twin.session.snapshot_id == store.session.snapshot_id
        found = await twin.get("c/2", default_buffer_prototype())
        assert found.to_bytes() == b"\x05"

    # Written with keys of a repository; the suite's `foo` is none.
    async def test_read_only_store_raises(self, open_kwargs: dict[str, Any]) -> None:
        store = await self.store_cls.open(**open_kwargs, read_only=True)
        refused = "store was opened in read-only mode and does not support writing"
        for key in ("foo", "foo/zarr.json", "foo/c/0"):
            with pytest.raises(ValueError, match=refused):
                await store.set(key, self.buffer_cls.from_bytes(b"bar"))
            with pytest.raises(ValueError, match=refused):
                await store.delete(key)

    async def test_with_read_only_store(self, open_kwargs: dict[str, Any]) -> None:
        store = await self.store_cls.open(**open_kwargs, read_only=True)
        writer = store.with_read_only(read_only=False)
        assert not writer._is_open
        assert not writer.read_only
        await writer.set("zarr.json", self.buffer_cls.from_bytes(GROUP))
        await writer.delete("zarr.json")
        for reader in (store, store.with_read_only(read_only=True)):
            assert reader.read_only
            with pytest.raises(ValueError, match="read-only mode"):
                await reader.set("zarr.json", self.buffer_cls.from_bytes(GROUP))
            with pytest.raises(ValueError, match="read-only mode"):
                await reader.delete("zarr.json")

    # Only `c/…` keys with `/` name chunks here, and chunks of no bytes are refused.
    @pytest.mark.parametrize("key", ["c/0", "foo/c/0/0", "foo/bar/c/0/0/0"])
    @pytest.mark.parametrize(
        "byte_range", [None, RangeByteRequest(1, 4), OffsetByteRequest(1), SuffixByteRequest(1)]
    )
    async def test_get(self, store: IcechunkStore, key: str, byte_range: Any) -> None:
        await super().test_get(store, key, b"\x01\x02\x03\x04", byte_range)

    @pytest.mark.parametrize("key", ["c/0", "foo/c/0/0"])
    async def test_getsize(self, store: IcechunkStore, key: str) -> None:
        await super().test_getsize(store, key, b"\x01\x02\x03\x04")

    @pytest.mark.parametrize("key", ["c/0", "foo/c/0/0", "foo/bar/c/0/0/0"])
    async def test_set(self, store: IcechunkStore, key: str) -> None:
        make_room(store, key)
        await super().test_set(store, key, b"\x01\x02\x03\x04")

    async def test_a_document_is_kept_to_the_byte(self, store: IcechunkStore) -> None:
        await super().test_set(store, "zarr.json", GROUP)

    @pytest.mark.parametrize(
        "key", ["foo", "foo/c/0.0", "foo/0/0", "foo/.zarray", "foo//zarr.json"]
    )
    async def test_keys_of_other_encodings_are_absent_and_refused(self, store, key) -> None:
        assert not await store.exists(key)
        assert await store.get(key, default_buffer_prototype()) is None
        with pytest.raises(InvalidInputError):
            await store.set(key, self.buffer_cls.from_bytes(b"\x01"))

    async def test_a_chunk_of_no_bytes_is_refused(self, store: IcechunkStore) -> None:
        make_room(store, "c/0")
        with pytest.raises(InvalidInputError, match="an empty chunk"):
            await store.set("c/0", self.buffer_cls.from_bytes(b""))

    async def test_set_not_open(self, store_not_open: IcechunkStore) -> None:
        make_room(store_not_open, "c/0")
        await super().test_set_not_open(store_not_open)

    # What begins alike is another folder; the suite's `cc/0` is no key here.
    async def test_getsize_prefix(self, store: IcechunkStore) -> None:
        for key in ("c/0/0", "c/1/1", "cc/c/0"):
            await self.set(store, key, self.buffer_cls.from_bytes(b"\x01\x02\x03"))
        assert await store.getsize_prefix("c") == 6

    # Ten chunks of one array in the place of ten keys without a slash.
    async def test_get_many(self, store: IcechunkStore) -> None:
        keys = [f"c/{number}" for number in range(10)]
        for key in keys:
            await self.set(store, key, self.buffer_cls.from_bytes(key.encode()))
        asked = [(key, default_buffer_prototype(), None) for key in keys]
        observed = await _collect_aiterator(store._get_many(asked))
        assert sorted((k, b.to_bytes()) for k, b in observed) == [(k, k.encode()) for k in keys]

    async def test_set_many(self, store: IcechunkStore) -> None:
        items = {
            "zarr.json": GROUP,
            "foo/zarr.json": array_document(3, 3),
            "foo/c/0/0": b"a",
            "foo/c/2/1": b"b",
        }
        await store._set_many((k, self.buffer_cls.from_bytes(v)) for k, v in items.items())
        for key, value in items.items():
            assert (await self.get(store, key)).to_bytes() == value

    @pytest.mark.parametrize(
        "key_ranges",
        [
            [],
            [("c/0", RangeByteRequest(0, 2)), ("c/1", None)],
            [
                ("c/0/0", RangeByteRequest(0, 2)),
                ("c/0/1", SuffixByteRequest(2)),
                ("c/0/2", OffsetByteRequest(2)),
            ],
        ],
    )
    async def test_get_partial_values(self, store: IcechunkStore, key_ranges: Any) -> None:
        await super().test_get_partial_values(store, key_ranges)

    # Documents are JSON.
    async def test_exists(self, store: IcechunkStore) -> None:
        assert not await store.exists("foo/zarr.json")
        await store.set("foo/zarr.json", self.buffer_cls.from_bytes(GROUP))
        assert await store.exists("foo/zarr.json")
        assert not await store.exists("foo")

    async def test_delete(self, store: IcechunkStore) -> None:
        await store.set("foo/zarr.json", self.buffer_cls.from_bytes(GROUP))
        await store.delete("foo/zarr.json")
        assert not await store.exists("foo/zarr.json")

    async def test_delete_dir(self, store: IcechunkStore) -> None:
        await store.set("zarr.json", self.buffer_cls.from_bytes(GROUP))
        await store.set("foo-bar/zarr.json", self.buffer_cls.from_bytes(GROUP))
        await store.set("foo/zarr.json", self.buffer_cls.from_bytes(array_document(3)))
        await store.set("foo/c/0", self.buffer_cls.from_bytes(b"chunk"))
        await store.delete_dir("foo")
        assert await store.exists("zarr.json")
        assert await store.exists("foo-bar/zarr.json")
        assert not await store.exists("foo/zarr.json")
        assert not await store.exists("foo/c/0")

    async def test_is_empty(self, store: IcechunkStore) -> None:
        assert await store.is_empty("")
        await store.set("foo/bar/zarr.json", self.buffer_cls.from_bytes(GROUP))
        assert not await store.is_empty("")
        assert await store.is_empty("fo")
        assert not await store.is_empty("foo/")
        assert not await store.is_empty("foo")
        assert await store.is_empty("spam/")

    async def test_clear(self, store: IcechunkStore) -> None:
        await self.set(store, "foo/c/0", self.buffer_cls.from_bytes(b"something"))
        await store.clear()
        assert await store.is_empty("")

    async def test_list(self, store: IcechunkStore) -> None:
        assert await _collect_aiterator(store.list()) == ()
        chunks = {f"foo/c/{number}": b"x" for number in range(10)}
        items = {"foo/zarr.json": array_document(10), **chunks}
        await store._set_many((k, self.buffer_cls.from_bytes(v)) for k, v in items.items())
        assert sorted(await _collect_aiterator(store.list())) == sorted(items)

    async def test_list_prefix(self, store: IcechunkStore) -> None:
        items = [f"{prefix}zarr.json" for prefix in ("", "a/", "a/b/", "a/b/c/", "ab/")]
        await store._set_many((key, self.buffer_cls.from_bytes(GROUP)) for key in items)
        for prefix in ("", "a", "a/", "a/b", "a/b/", "a/b/c/", "a/b/c/z", "x"):
            observed = sorted(await _collect_aiterator(store.list_prefix(prefix)))
            # The end of a prefix is the end of a name: `a` is not the begin of `ab`.
            below = f"{prefix.rstrip('/')}/" if prefix else ""
            assert observed == sorted(key for key in items if key.startswith(below))

    async def test_list_empty_path(self, store: IcechunkStore) -> None:
        items = {
            "foo/bar/zarr.json": array_document(3),
            "foo/bar/c/1": b"x",
            "foo/baz/zarr.json": array_document(3),
            "foo/baz/c/0": b"x",
        }
        await store._set_many((k, self.buffer_cls.from_bytes(v)) for k, v in items.items())
        for prefix in ("", "foo/bar/", "foo/bar/c", "foo/ba"):
            observed = sorted(await _collect_aiterator(store.list_prefix(prefix)))
            # The end of a prefix is the end of a name: `a` is not the begin of `ab`.
            below = f"{prefix.rstrip('/')}/" if prefix else ""
            assert observed == sorted(key for key in items if key.startswith(below))

    async def test_list_dir(self, store: IcechunkStore) -> None:
        assert await _collect_aiterator(store.list_dir("")) == ()
        items = {
            "foo/zarr.json": GROUP,
            "foo/bar/zarr.json": array_document(3, 3),
            "foo/bar/c/1/0": b"x",
            "foo/bar/c/1/2": b"x",
            "foo/baz/deep/zarr.json": GROUP,
            "empty/zarr.json": array_document(3, 3),
        }
        await store._set_many((k, self.buffer_cls.from_bytes(v)) for k, v in items.items())
        for root in ("", "foo", "foo/bar", "foo/bar/c", "foo/bar/c/1", "foo/baz", "fo", "foo/x"):
            below = f"{root}/" if root else ""
            expected = {k.removeprefix(below).split("/")[0] for k in items if k.startswith(below)}
            for spelt in {root, below}:
                observed = await _collect_aiterator(store.list_dir(spelt))
                assert sorted(observed) == sorted(expected), spelt
        # As officially: manifests are not read to know whether there are chunks.
        assert set(await _collect_aiterator(store.list_dir("empty"))) == {"zarr.json", "c"}

    async def test_set_if_not_exists(self, store: IcechunkStore) -> None:
        old, new = self.buffer_cls.from_bytes(b"0000"), self.buffer_cls.from_bytes(b"1111")
        await self.set(store, "c/0", old)
        await store.set_if_not_exists("c/0", new)
        assert await store.get("c/0", default_buffer_prototype()) == old
        await store.set_if_not_exists("c/1", new)
        assert await store.get("c/1", default_buffer_prototype()) == new

    @until_3_3
    async def test_get_bytes(self, store: IcechunkStore) -> None:
        await self.set(store, "zarr.json", self.buffer_cls.from_bytes(GROUP))
        assert await store._get_bytes("zarr.json", prototype=default_buffer_prototype()) == GROUP
        with pytest.raises(FileNotFoundError):
            await store._get_bytes("nonexistent_key", prototype=default_buffer_prototype())

    @until_3_3
    def test_get_bytes_sync(self, store: IcechunkStore) -> None:
        sync(self.set(store, "zarr.json", self.buffer_cls.from_bytes(GROUP)))
        assert store._get_bytes_sync("zarr.json", prototype=default_buffer_prototype()) == GROUP

    @until_3_3
    async def test_get_json(self, store: IcechunkStore) -> None:
        await self.set(store, "zarr.json", self.buffer_cls.from_bytes(GROUP))
        found = await store._get_json("zarr.json", prototype=default_buffer_prototype())
        assert found == json.loads(GROUP)

    @until_3_3
    def test_get_json_sync(self, store: IcechunkStore) -> None:
        sync(self.set(store, "zarr.json", self.buffer_cls.from_bytes(GROUP)))
        found = store._get_json_sync("zarr.json", prototype=default_buffer_prototype())
        assert found == json.loads(GROUP)

    def test_get_sync(self, store: IcechunkStore) -> None:
        sync(self.set(store, "c/1", self.buffer_cls.from_bytes(b"\x01\x02")))
        assert store.get_sync("c/1").to_bytes() == b"\x01\x02"

    def test_set_sync(self, store: IcechunkStore) -> None:
        make_room(store, "c/1")
        store.set_sync("c/1", self.buffer_cls.from_bytes(b"\x01\x02"))
        assert sync(self.get(store, "c/1")).to_bytes() == b"\x01\x02"

    def test_delete_sync(self, store: IcechunkStore) -> None:
        sync(self.set(store, "c/1", self.buffer_cls.from_bytes(b"\x01\x02")))
        store.delete_sync("c/1")
        assert store.get_sync("c/1") is None

    # The suite has these from Zarr 3.3 on, with keys that name nothing here.
    @pytest.mark.parametrize("direction", ["set_async_get_sync", "set_sync_get_async"])
    async def test_sync_async_set_get_parity(self, store: IcechunkStore, direction: str) -> None:
        make_room(store, "c/1")
        data = self.buffer_cls.from_bytes(b"\x01\x02")
        if direction == "set_async_get_sync":
            await store.set("c/1", data)
            found = store.get_sync("c/1")
        else:
            store.set_sync("c/1", data)
            found = await store.get("c/1", default_buffer_prototype())
        assert found.to_bytes() == b"\x01\x02"

    async def test_delete_sync_visible_to_async_get(self, store: IcechunkStore) -> None:
        await self.set(store, "c/1", self.buffer_cls.from_bytes(b"\x01\x02"))
        store.delete_sync("c/1")
        assert await store.get("c/1", default_buffer_prototype()) is None

    @pytest.mark.parametrize(
        "byte_range",
        [
            None,
            RangeByteRequest(1, 4),
            OffsetByteRequest(1),
            SuffixByteRequest(1),
            RangeByteRequest(10, 20),
        ],
    )
    async def test_get_sync_byte_range_parity(
        self, store: IcechunkStore, byte_range: ByteRequest | None
    ) -> None:
        await self.set(store, "c/1", self.buffer_cls.from_bytes(b"\x01\x02\x03\x04"))
        at_once = store.get_sync("c/1", byte_range=byte_range)
        awaited = await store.get("c/1", default_buffer_prototype(), byte_range)
        assert (at_once and at_once.to_bytes()) == (awaited and awaited.to_bytes())


# The suite leaves its coroutines to the automatic mode of pytest-asyncio; this project is strict.
for _name in dir(TestIcechunkStore):
    _test = getattr(TestIcechunkStore, _name)
    if _name.startswith("test_") and inspect.iscoroutinefunction(_test):
        setattr(TestIcechunkStore, _name, pytest.mark.asyncio(_test))
