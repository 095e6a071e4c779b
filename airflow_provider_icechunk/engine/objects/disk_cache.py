"""Chunks and manifests on the local disk, shared by the processes of one user. Off by default.

Objects are written once under random ids, so an entry never becomes stale. Each range that was read
is a file named by a hash of the repository's location, the key and the range. It is written under
another name and renamed, and read back only if its length and checksum are right: a torn, truncated
or foreign file counts as absent. No disk error makes a read fail.

The files are in shards, each with its share of the allowed size. There is no index that a killed
process could leave wrong: a writer looks at the shard and removes the least recently used files.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from airflow_provider_icechunk.engine.concurrency import PerProcess, run_while_brief
from airflow_provider_icechunk.engine.storage.base import (
    Bounded,
    ByteRange,
    Fetched,
    Storage,
    Version,
    read_into,
)
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

FOLDER = "ICECHUNK_DISK_CACHE"
LIMIT = "ICECHUNK_DISK_CACHE_BYTES"
DEFAULT_LIMIT = 10 << 30
_SHARDS = 64
_MAGIC = b"apic\x00\x01"
_DIGEST = 16
_HEADER = len(_MAGIC) + 8 + _DIGEST
_ABANDONED = 3600.0
"""Seconds after which an unfinished file no longer has a writer."""
_TOUCH = 600.0
"""Seconds by which the recorded time of the last use may lag behind."""
_KEPT = Version("kept on disk")
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file of a shard."""

    used: float
    size: int
    path: Path


class DiskCache:
    """A folder of at most about `limit` bytes."""

    def __init__(self, folder: str | os.PathLike[str], limit: int = DEFAULT_LIMIT) -> None:
        self._folder = Path(folder).expanduser().absolute()
        self._limit = limit
        self._share = limit // _SHARDS
        self._written: PerProcess[dict[Path, int]] = PerProcess(dict)
        """Bytes that this process has written to each shard since it last checked."""
        self._lock = PerProcess(threading.Lock)
        _make_private(self._folder)

    def get(self, name: str) -> bytes | None:
        """The entry `name`; `None` if there is no valid one."""
        path, digest = self._path(name)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            with os.fdopen(handle, "rb", buffering=0) as file:
                state = os.fstat(file.fileno())
                whole = file.read(state.st_size)
        except OSError:
            return None
        data = _checked(digest, whole)
        with suppress(OSError):
            if data is None:
                path.unlink()
            elif time.time() - state.st_mtime > _TOUCH:
                os.utime(path)
        return data

    def put(self, name: str, data: bytes) -> None:
        """Keep `data`, unless it would take up too much of a shard."""
        size = _HEADER + len(data)
        if size > self._share // 4:
            return
        path, digest = self._path(name)
        unfinished = path.with_name(f".{secrets.token_hex(8)}")
        try:
            self._make_room(path.parent, size)
            handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "wb", buffering=0) as file:
                file.write(_sealed(digest, data))
            unfinished.replace(path)
        except OSError:
            with suppress(OSError):
                unfinished.unlink()

    def _make_room(self, shard: Path, size: int) -> None:
        """Check the shard if this process wrote a lot there, and remove the excess."""
        with self._lock.get():
            written = self._written.get()
            before = written.get(shard)
            if before is not None and before + size <= self._share // 16:
                written[shard] = before + size
                return
            written[shard] = size
        shard.mkdir(mode=0o700, exist_ok=True)
        entries = sorted(_entries(shard), key=lambda entry: entry.used)
        total = sum(entry.size for entry in entries) + size
        if total <= self._share:
            return
        for entry in entries:
            if total <= self._share * 3 // 4:
                return
            with suppress(OSError):
                entry.path.unlink()
                total -= entry.size

    def _path(self, name: str) -> tuple[Path, bytes]:
        digest = blake2b(name.encode(errors="surrogatepass"), digest_size=32).digest()
        return self._folder / f"{digest[0] % _SHARDS:02x}" / digest.hex(), digest


def _entries(folder: Path) -> Iterator[_Entry]:
    """The files of a shard; abandoned ones are removed."""
    oldest = time.time() - _ABANDONED
    with os.scandir(folder) as found:
        for item in found:
            with suppress(OSError):
                state = item.stat(follow_symlinks=False)
                if item.name.startswith(".") and state.st_mtime < oldest:
                    Path(item.path).unlink()
                else:
                    yield _Entry(state.st_mtime, state.st_size, Path(item.path))


def _sealed(name: bytes, data: bytes) -> bytes:
    checksum = blake2b(data, digest_size=_DIGEST, key=name).digest()
    return b"".join((_MAGIC, len(data).to_bytes(8, "little"), checksum, data))


def _checked(name: bytes, whole: bytes) -> bytes | None:
    data = whole[_HEADER:]
    if len(whole) < _HEADER or whole[: len(_MAGIC)] != _MAGIC:
        return None
    if int.from_bytes(whole[len(_MAGIC) : len(_MAGIC) + 8], "little") != len(data):
        return None
    checksum = blake2b(data, digest_size=_DIGEST, key=name).digest()
    return data if checksum == whole[_HEADER - _DIGEST : _HEADER] else None


def _make_private(folder: Path) -> None:
    """Create the folder, or refuse one to which others can write."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except OSError as error:
        raise _refusal(folder, f"cannot be created: {error.strerror}") from error
    if state.st_uid != os.geteuid():
        raise _refusal(folder, "belongs to another user")
    if state.st_mode & 0o077:
        raise _refusal(folder, "can be read or written by others; run `chmod 700` on it")


def _refusal(folder: Path, problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"the disk cache {folder} ({FOLDER}) {problem}", kind=Kind.INVALID_CONFIG
    )


class CachedReads:
    """Reads of immutable objects, from the disk if they were read before."""

    def __init__(self, storage: Storage, cache: DiskCache) -> None:
        self._storage = storage
        self._cache = cache

    @property
    def location(self) -> str:
        """Where the objects are."""
        return self._storage.location

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        """One object or range."""
        return self.get_many([(key, byte_range)])[0]

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        """Many objects or ranges; those not cached are requested together."""
        names = [self._name(*request) for request in requests]
        kept = run_while_brief(self._cache.get, names, at_once=_AT_ONCE)
        found = [None if data is None else Fetched(data, _KEPT) for data in kept]
        missing = [row for row, data in enumerate(kept) if data is None]
        if missing:
            fetched = self._storage.get_many([requests[row] for row in missing])
            for row, answer in zip(missing, fetched, strict=True):
                found[row] = answer
                if answer is not None:
                    self._cache.put(names[row], answer.data)
        return found

    def get_into(self, key: str, start: int, space: memoryview) -> int | None:
        """One range, read into `space`."""
        name = self._name(key, Bounded(start, start + len(space)))
        kept = self._cache.get(name)
        if kept is not None:
            space[: len(kept)] = kept
            return len(kept)
        size = read_into(self._storage, key, start, space)
        if size is not None:
            self._cache.put(name, bytes(space[:size]))
        return size

    def _name(self, key: str, byte_range: ByteRange | None) -> str:
        return f"{self._storage.location}\0{key}\0{byte_range!r}"


def disk_cache() -> DiskCache | None:
    """The cache configured in the environment, if any."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return None
    text = os.environ.get(LIMIT, "").strip()
    if text and not (text.isascii() and text.isdigit()):
        raise InvalidInputError(
            f"{LIMIT} is {text!r}; set it to the maximum size of the disk cache in bytes",
            kind=Kind.INVALID_CONFIG,
        )
    return DiskCache(folder, int(text) if text else DEFAULT_LIMIT)
