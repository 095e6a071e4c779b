"""`IcechunkStore`: a `zarr.abc.store.Store` over one session.

The engine is synchronous. Requests that need no storage (documents, inline and packed chunks) are
answered in the event loop; everything else runs in threads, with the chunks of one turn read
together.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Never, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.common import BytesLike

from airflow_provider_icechunk.engine.concurrency import add_async_twins
from airflow_provider_icechunk.engine.display import Shown
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Payload, Virtual
from airflow_provider_icechunk.engine.format.model import Node
from airflow_provider_icechunk.engine.format.names import (
    CHUNK_PREFIX,
    METADATA_FILE,
    ROOT,
    is_below,
)
from airflow_provider_icechunk.engine.format.zarr_metadata import array_document
from airflow_provider_icechunk.engine.tree.chunk_table import ChunkTable, chunk_tables
from airflow_provider_icechunk.engine.tree.tree import WorkingTree
from airflow_provider_icechunk.engine.virtual.locations import (
    VirtualChunkSpec,
    checksum_of,
    has_known_scheme,
    parse_location,
    reference_of,
)
from airflow_provider_icechunk.engine.virtual.reader import VirtualReader
from airflow_provider_icechunk.exceptions import (
    InvalidInputError,
    Kind,
    ReadOnlyError,
    UnsupportedError,
)

from .codecs import bytes_of
from .keys import (
    ChunkKey,
    DocumentKey,
    chunk_prefix,
    document_key,
    parse,
    parse_for_writing,
    path_of,
)
from .pipeline import TreeStore
from .plain import PlainValues
from .reads import Ask, Batcher, ChunkReads, length, span
from .virtual_refs import columns, covered, grid_index

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.async_twins import IcechunkStoreTwins
else:
    IcechunkStoreTwins = object


# `list` is a method of every Zarr store, so the type needs other names inside the class.
Coordinates = list[tuple[int, ...]]
Buffers = list[Buffer | None]
Items = list[tuple[tuple[int, ...], Payload | None]]


class StoreSession(Protocol):
    """What a store must know about its session."""

    @property
    def tree(self) -> WorkingTree:
        """Nodes and chunks as the session sees and changes them."""
        ...

    @property
    def virtual(self) -> VirtualReader:
        """Which foreign locations may be read and referred to."""
        ...

    @property
    def location(self) -> str:
        """Where the repository is."""
        ...

    @property
    def snapshot_id(self) -> str:
        """The snapshot below the tree."""
        ...

    @property
    def branch(self) -> str | None:
        """The branch that the changes are for, if any."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written (any more)."""
        ...


def _be_known_to_others() -> None:
    """Let `isinstance` checks against the official class accept this one, for programs like
    VirtualiZarr.

    If neither it nor VirtualiZarr was imported, no such check can happen, and nothing is imported.
    """
    if _KNOWN or not {"icechunk", "virtualizarr"} & sys.modules.keys():
        return
    _KNOWN.append(True)
    try:
        official = import_module("icechunk").IcechunkStore
    except (ImportError, AttributeError):
        return
    if official is not IcechunkStore:
        official.register(IcechunkStore)


_KNOWN: list[bool] = []


class IcechunkStore(Shown, TreeStore, IcechunkStoreTwins):
    """Zarr arrays and groups of one session. Writes become visible when the session commits."""

    def __init__(self, session: StoreSession, *, read_only: bool | None = None) -> None:
        super().__init__(read_only=session.read_only if read_only is None else read_only)
        self._session = session
        self._tree = session.tree
        self._chunks = ChunkReads(session.tree)
        _be_known_to_others()
        self._reads = Batcher[Ask, bytes | None](self._chunks.large_apart)

    def __eq__(self, value: object) -> bool:
        """Stores are equal if they show the same: one session, or readers of one snapshot."""
        if not isinstance(value, IcechunkStore):
            return False
        ours, theirs = self._session, value._session
        readers = ours.read_only and theirs.read_only
        return ours is theirs or (readers and _identity(ours) == _identity(theirs))

    def __hash__(self) -> int:
        return hash(self._session.location)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self._session, self._read_only, self._is_open))

    def shown_name(self) -> str:
        """As in the official package."""
        return "icechunk.IcechunkStore"

    def shown_facts(self) -> Mapping[str, object]:
        """Which snapshot it shows and which branch it is for."""
        session = self._session
        facts = {"read_only": self.read_only, "snapshot_id": session.snapshot_id}
        return facts if self.read_only else facts | {"branch": session.branch}

    @property
    def session(self) -> Any:
        """The session whose tree this is. Its class is above: the store knows only a protocol."""
        return self._session

    @property
    def tree(self) -> WorkingTree:
        """Nodes and chunks as the session sees them."""
        return self._tree

    @property
    def _store(self) -> PlainValues:
        """Values as bytes, under the name that programs know from the official store."""
        return PlainValues(self)

    @property
    def read_only(self) -> bool:
        """Whether writes are refused; a session that committed refuses them."""
        return self._read_only or self._session.read_only

    def with_read_only(self, read_only: bool = False) -> Self:
        """The same session behind a store that does or does not refuse writes."""
        return type(self)(self._session, read_only=read_only)

    @property
    def supports_writes(self) -> bool:
        """Writes work, on a writable session."""
        return True

    @property
    def supports_deletes(self) -> bool:
        """Deletes work, on a writable session."""
        return True

    @property
    def supports_partial_writes(self) -> Literal[False]:
        """Chunks are written whole."""
        return False

    @property
    def supports_listing(self) -> bool:
        """Listings work."""
        return True

    @property
    def supports_consolidated_metadata(self) -> bool:
        """A snapshot holds all metadata in one object; a second copy would only go stale."""
        return False

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """The value under `key` or a part of it; `None` only if it was never written."""
        parsed = parse(key)
        if isinstance(parsed, ChunkKey):
            ask = Ask(parsed, byte_range)
            data = self._chunks.cached(ask)
            if data is None:
                data = await self._reads.ask(ask)
        else:
            data = self._document(parsed, byte_range)
        return _buffer(data, prototype)

    def get_sync(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """`get` for callers outside an event loop."""
        parsed = parse(key)
        if isinstance(parsed, ChunkKey):
            return _buffer(self._chunks.together([Ask(parsed, byte_range)])[0], prototype)
        return _buffer(self._document(parsed, byte_range), prototype)

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> Buffers:
        """Many values or parts of values; neighbours are read together.

        All of them at once, unless `get_partial_values_concurrency` was chosen.
        """
        chosen = self._tree.core.config.get_partial_values_concurrency
        at_once = None if chosen is None else asyncio.Semaphore(max(1, chosen))

        async def read(key: str, byte_range: ByteRequest | None) -> Buffer | None:
            if at_once is None:
                return await self.get(key, prototype, byte_range)
            async with at_once:
                return await self.get(key, prototype, byte_range)

        return list(await asyncio.gather(*(read(*one) for one in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Whether there is a value under `key`."""
        match parse(key):
            case DocumentKey(path):
                return self._tree.node(path) is not None
            case ChunkKey(path, index):
                return await asyncio.to_thread(self._tree.chunk, path, index) is not None
            case None:
                return False

    async def getsize(self, key: str) -> int:
        """Bytes under `key`, without reading them."""
        size: int | None = None
        match parse(key):
            case DocumentKey(path):
                node = self._tree.node(path)
                size = None if node is None else len(node.user_data)
            case ChunkKey(path, index):
                payload = await asyncio.to_thread(self._tree.chunk, path, index)
                size = None if payload is None else length(payload)
            case None:
                pass
        if size is None:
            raise FileNotFoundError(key)
        return size

    async def getsize_prefix(self, prefix: str) -> int:
        """Bytes under all keys that start with `prefix`."""
        keys = await asyncio.to_thread(lambda: list(keys_with_prefix(self._tree, prefix)))
        return sum([await self.getsize(key) for key in keys])

    async def set(self, key: str, value: Buffer) -> None:
        """Write a whole value."""
        self.refuse_if_read_only()
        data = bytes_of(value)
        match parse_for_writing(key):
            case DocumentKey(path):
                self._tree.put_document(path, bytes(data))
            case ChunkKey(path, index):
                if self._tree.writer.stores_at_once(len(data)):
                    await asyncio.to_thread(self._tree.put_chunk, path, index, data)
                else:
                    self._tree.put_chunk(path, index, data)

    def set_sync(self, key: str, value: Buffer) -> None:
        """`set` for callers outside an event loop."""
        self.refuse_if_read_only()
        match parse_for_writing(key):
            case DocumentKey(path):
                self._tree.put_document(path, bytes(bytes_of(value)))
            case ChunkKey(path, index):
                self._tree.put_chunk(path, index, bytes_of(value))

    async def set_partial_values(
        self, key_start_values: Iterable[tuple[str, int, BytesLike]]
    ) -> Never:
        """Refused, as officially: chunks are written whole."""
        del key_start_values
        raise UnsupportedError(
            "parts of values cannot be written; write the whole chunk with `set`"
        )

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Write a value unless there is one."""
        self.refuse_if_read_only()
        if not await self.exists(key):
            await self.set(key, value)

    async def delete(self, key: str) -> None:
        """Delete the value under `key`; a node goes with everything below it."""
        self.delete_sync(key)

    def delete_sync(self, key: str) -> None:
        """`delete` for callers outside an event loop."""
        self.refuse_if_read_only()
        match parse(key):
            case DocumentKey(path):
                self._tree.delete(path)
            case ChunkKey(path, index):
                self._tree.erase(path, [index])
            case None:
                pass

    async def delete_dir(self, prefix: str) -> None:
        """Delete a node with everything below it, or chunks below a prefix like `array/c/0`."""
        self.refuse_if_read_only()
        path = path_of(prefix)
        if path is None:
            return
        if self._tree.node(path) is not None:
            self._tree.delete(path)
            return
        keys = await asyncio.to_thread(lambda: list(keys_with_prefix(self._tree, f"{path[1:]}/")))
        for key in keys:
            self.delete_sync(key)

    async def clear(self) -> None:
        """Delete everything in the session's tree; history is untouched."""
        self.sync_clear()

    def sync_clear(self) -> None:
        """`clear` for callers outside an event loop."""
        self.refuse_if_read_only()
        for node in self._tree.nodes():
            self._tree.delete(node.path)

    async def is_empty(self, prefix: str) -> bool:
        """Whether there is no key below `prefix`."""
        names = await asyncio.to_thread(names_in, self._tree, prefix)
        return not names

    async def list(self) -> AsyncIterator[str]:
        """All keys."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """All keys that start with `prefix`."""
        keys = await asyncio.to_thread(lambda: [*keys_with_prefix(self._tree, prefix)])
        for key in keys:
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Names directly below `prefix`."""
        for name in await asyncio.to_thread(names_in, self._tree, prefix):
            yield name

    def array_chunk_iterator(
        self, array_path: str, batch_size: int = 100_000
    ) -> AsyncIterator[ChunkTable]:
        """Where the chunks of an array are, in tables; see `Session.array_chunk_iterator`."""
        return chunk_tables(self._tree, array_path, batch_size)

    def set_virtual_ref(
        self,
        key: str,
        location: str,
        *,
        offset: int,
        length: int,
        checksum: str | datetime | None = None,
        validate_container: bool = True,
    ) -> None:
        """Make a chunk refer to bytes of a foreign object.

        With `validate_container` a location that no virtual chunk container covers is refused.
        """
        self.refuse_if_read_only()
        parsed = parse_for_writing(key)
        if not isinstance(parsed, ChunkKey):
            raise InvalidInputError(
                f"{key!r} is a document; only chunks can be virtual", kind=Kind.INVALID_KEY
            )
        if length <= 0 or offset < 0:
            raise InvalidInputError(
                f"{length} bytes at {offset} of {location} are not a valid chunk"
            )
        parse_location(location)
        if validate_container:
            self._session.virtual.validate_location(location)
        payload = Virtual(location, offset, length, checksum_of(checksum))
        self._tree.put_payload(parsed.path, parsed.index, payload)

    def set_virtual_refs(
        self,
        array_path: str,
        chunks: Sequence[VirtualChunkSpec],
        *,
        validate_containers: bool = True,
    ) -> Coordinates | None:
        """Many virtual references of one array.

        Returns `None`, or the chunks that were left out because no container covers them.
        """
        covers = dict.fromkeys((spec.location for spec in chunks), True)
        if validate_containers:
            covers = {location: self._session.virtual.is_declared(location) for location in covers}
        for location, is_covered in covers.items():
            if not is_covered and has_known_scheme(location):
                parse_location(location)
        # Before a later reference replaces an earlier one: an omitted one replaces nothing.
        kept = [spec for spec in chunks if covers[spec.location]]
        items: Items = [(tuple(spec.index), reference_of(spec)) for spec in kept]
        refs = ChunkRefs.from_items(len(items[0][0]) if items else 0, items)
        self._put_virtual(array_path, refs, validate=False)
        return [tuple(spec.index) for spec in chunks if not covers[spec.location]] or None

    def set_virtual_refs_arr(
        self,
        array_path: str,
        chunk_grid_shape: tuple[int, ...],
        locations: Sequence[str],
        offsets: ArrayLike,
        lengths: ArrayLike,
        *,
        validate_containers: bool = True,
        arr_offset: tuple[int, ...] | None = None,
        checksum: datetime | str | None = None,
    ) -> Coordinates | None:
        """Virtual references of a whole grid of chunks, in row-major order, as columns.

        An empty location leaves its chunk out. Returns what `set_virtual_refs` does.
        """
        array = self._tree.array(f"/{array_path.strip('/')}")
        if not array_document(array).shape and set(chunk_grid_shape) <= {1}:
            # The one chunk of an array without dimensions is often given as a grid of one.
            chunk_grid_shape, arr_offset = (), None
        index = grid_index(chunk_grid_shape, arr_offset)
        refs = columns(index, locations, offsets, lengths, checksum_of(checksum))
        return self._put_virtual(array_path, refs, validate=validate_containers)

    def set_virtual_refs_sparse(
        self,
        array_path: str,
        index: NDArray[np.integer[Any]],
        locations: Sequence[str],
        offsets: ArrayLike,
        lengths: ArrayLike,
        *,
        validate_containers: bool = True,
        checksum: datetime | str | None = None,
    ) -> Coordinates | None:
        """The same for chunks given by an `(n, d)` array of coordinates."""
        given = np.asarray(index)
        if given.ndim != 2 or given.dtype.kind not in "ui":
            raise InvalidInputError("index must be an (n, d) array of whole numbers")
        if given.size and (int(given.min()) < 0 or int(given.max()) >= 1 << 32):
            raise InvalidInputError("chunk coordinates must fit 32 bits")
        refs = columns(given.astype(np.uint32), locations, offsets, lengths, checksum_of(checksum))
        return self._put_virtual(array_path, refs, validate=validate_containers)

    def _put_virtual(
        self, array_path: str, refs: ChunkRefs, *, validate: bool
    ) -> Coordinates | None:
        self.refuse_if_read_only()
        if not len(refs):
            return None
        for location in refs.locations():
            if not validate or has_known_scheme(location):
                parse_location(location)
        path = array_path if array_path.startswith("/") else f"/{array_path}"
        failed: Coordinates = []
        if validate:
            allowed = covered(refs, self._session.virtual)
            failed = [tuple(row) for row in refs.index[~allowed].tolist()]
            refs = refs.take(allowed) if failed else refs
        if len(refs):
            self._tree.put_references(path, refs)
        return failed or None

    def _document(self, parsed: DocumentKey | None, byte_range: ByteRequest | None) -> bytes | None:
        node = None if parsed is None else self._tree.node(parsed.path)
        if node is None:
            return None
        start, stop = span(byte_range, len(node.user_data))
        return node.user_data[start:stop]

    def refuse_if_read_only(self) -> None:
        """Raise if nothing can be written."""
        if self.read_only:
            raise ReadOnlyError(
                "store was opened in read-only mode and does not support writing: open a writable "
                "session (one that has committed is finished)"
            )


def _identity(session: StoreSession) -> tuple[str, str]:
    return session.location, session.snapshot_id


def _rebuild(
    cls: type[IcechunkStore], session: StoreSession, read_only: bool, is_open: bool
) -> IcechunkStore:
    store = cls(session, read_only=read_only)
    store._is_open = is_open
    return store


def _buffer(data: bytes | None, prototype: BufferPrototype | None) -> Buffer | None:
    if data is None:
        return None
    return (prototype or default_buffer_prototype()).buffer.from_bytes(data)


add_async_twins(IcechunkStore, ("set_virtual_ref", "set_virtual_refs", "set_virtual_refs_arr"))


def keys_with_prefix(tree: WorkingTree, prefix: str) -> Iterator[str]:
    """Every key at or below the path `prefix`.

    The prefix ends where a name ends, as officially and in a folder: `foo` does not include
    `foo-bar`.
    """
    path = prefix.strip("/")
    for node in tree.nodes():
        document, chunks = document_key(node.path), chunk_prefix(node.path)
        if _reaches(path, document):
            yield document
        if node.is_group:
            continue
        if _reaches(path, chunks):
            yield from _chunk_keys(tree, node)
        elif _reaches(chunks, path):
            yield from (key for key in _chunk_keys(tree, node) if _reaches(path, key))


def _reaches(path: str, key: str) -> bool:
    """Whether a key is at a path or below it."""
    return not path or key == path or key.startswith(f"{path}/")


def names_in(tree: WorkingTree, prefix: str) -> list[str]:
    """Names directly below `prefix`: documents, child nodes, `c`, or parts of chunk keys."""
    path = path_of(prefix)
    if path is None:
        return []
    node = tree.node(path)
    if node is not None and not node.is_group:
        # As officially, with or without chunks: finding out would mean reading manifests.
        return [METADATA_FILE, CHUNK_PREFIX]
    below = _children(tree, path)
    if node is not None:
        return [METADATA_FILE, *below]
    return below or _chunk_names(tree, path)


def _children(tree: WorkingTree, path: str) -> list[str]:
    start = 1 if path == ROOT else len(path) + 1
    names = dict.fromkeys(
        node.path[start:].split("/", 1)[0] for node in tree.nodes(path) if is_below(node.path, path)
    )
    return list(names)


def _chunk_names(tree: WorkingTree, path: str) -> list[str]:
    """Parts of chunk keys below a prefix such as `array/c/0`."""
    owner = tree.ancestor(path)
    if owner is None or owner.is_group:
        return []
    prefix = f"{path[1:]}/"
    names = dict.fromkeys(
        key[len(prefix) :].split("/", 1)[0]
        for key in _chunk_keys(tree, owner)
        if key.startswith(prefix)
    )
    return list(names)


def _chunk_keys(tree: WorkingTree, node: Node) -> Iterator[str]:
    prefix = chunk_prefix(node.path)
    refs = tree.references(node)
    if not refs.ndim:
        yield from [prefix] * len(refs)
        return
    for start in range(0, len(refs), 10_000):
        for row in refs.index[start : start + 10_000].tolist():
            yield f"{prefix}/{'/'.join(map(str, row))}"
