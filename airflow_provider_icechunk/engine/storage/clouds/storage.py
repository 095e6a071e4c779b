"""The storage protocol over the requests of an object store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import assert_never

from airflow_provider_icechunk.engine import counters
from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Anything,
    Bounded,
    ByteRange,
    Data,
    Deleted,
    Exactly,
    Expectation,
    Fetched,
    Listed,
    Put,
    PutOutcome,
    Written,
    check_key,
    check_prefix,
    resolve,
)
from airflow_provider_icechunk.engine.storage.faces import OfficialStorage
from airflow_provider_icechunk.engine.storage.readback import probe_conditional_writes

from .requests import Requests, Upload
from .troubles import Trouble

_BATCH = 1000


class BucketStorage(OfficialStorage):
    """Objects below a prefix of a bucket; conditions of writes are left to the store."""

    def __init__(self, bucket: Requests, concurrency: int) -> None:
        self._bucket = bucket
        self._at_once = concurrency

    @property
    def location(self) -> str:
        """The bucket and prefix as a URL, without credentials."""
        return self._bucket.location

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        """The object or a range of it; `None` if it does not exist.

        Ranges that a request cannot express (empty ones, all but the last bytes) and those outside
        the object (the store refuses ranges that start after the end) take a second request.
        """
        check_key(key)
        resolve(byte_range, 0)
        if byte_range is not None and not self._bucket.expresses(byte_range):
            return self._get_by_size(key, byte_range)
        try:
            body = self._bucket.get(key, byte_range)
        except self._bucket.failures as error:
            if self._bucket.classify(error) is not Trouble.BAD_RANGE or byte_range is None:
                raise self._bucket.error(error, "read", key) from error
            return self._get_by_size(key, byte_range)
        if body is None:
            return None
        counters.add("bytes_read", len(body.data))
        if body.is_range or byte_range is None:
            return Fetched(bytes(body.data), body.version)
        start, stop = resolve(byte_range, len(body.data))
        return Fetched(bytes(body.data[start:stop]), body.version)

    def get_into(self, key: str, start: int, space: memoryview) -> int | None:
        """Fill `space` with the bytes of an object from `start` on; returns their number."""
        check_key(key)
        if not len(space):
            return 0
        try:
            body = self._bucket.get(key, Bounded(start, start + len(space)))
        except self._bucket.failures as error:
            if self._bucket.classify(error) is Trouble.BAD_RANGE:
                return 0
            raise self._bucket.error(error, "read", key) from error
        if body is None:
            return None
        counters.add("bytes_read", len(body.data))
        found = body.data if body.is_range else body.data[start : start + len(space)]
        space[: len(found)] = found
        return len(found)

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        """`get` many at once; results in the order of requests."""
        return run_all(lambda request: self.get(*request), requests, at_once=self._at_once)

    def put(
        self,
        key: str,
        data: Data,
        *,
        expect: Expectation,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> PutOutcome:
        """Write the whole object if `expect` holds."""
        upload = Upload.of(check_key(key), data, dict(metadata or {}), content_type)
        counters.add("bytes_written", len(upload.data))
        match expect:
            case Anything():
                return Written(self._bucket.put(upload))
            case Absent() | Exactly():
                return self._bucket.put_if(upload, expect)
            case _:
                assert_never(expect)

    def put_many(self, puts: Sequence[Put]) -> None:
        """Unconditional writes at once."""
        run_all(
            lambda one: self.put(
                one.key,
                one.data,
                expect=Anything(),
                metadata=one.metadata,
                content_type=one.content_type,
            ),
            puts,
            at_once=self._at_once,
        )

    def settle(self) -> None:
        """Do nothing: writes are durable immediately."""

    def scan(self, prefix: str) -> Iterator[Listed]:
        """Objects whose key starts with `prefix`, in the order in which the store lists them.

        That is ascending order of key for the large clouds; some other stores list folder by
        folder.
        """
        return self._bucket.scan(check_prefix(prefix))

    def list_folders(self, prefix: str) -> list[str]:
        """Names directly below `prefix` that contain objects."""
        return sorted(self._bucket.folders(check_prefix(prefix)))

    def head(self, key: str) -> Listed | None:
        """Size and time of the object; `None` if it does not exist."""
        found = self._bucket.head(check_key(key))
        return None if found is None else Listed.at(key, found.size, found.created_at)

    def delete(
        self,
        keys: Sequence[str],
        *,
        immutable: bool = False,  # noqa: ARG002 - the server guards what it stores
    ) -> Deleted:
        """Delete in batches of 1000; a missing key counts as deleted."""
        for key in keys:
            check_key(key)
        batches = [keys[start : start + _BATCH] for start in range(0, len(keys), _BATCH)]
        failed: dict[str, str] = {}
        for reasons in run_all(self._bucket.delete_batch, batches, at_once=8):
            failed.update(reasons)
        return Deleted(tuple(key for key in keys if key not in failed), failed)

    def now(self) -> datetime:
        """The store's clock, to the second, from the `Date` of a response."""
        return self._bucket.now()

    def check_conditional_writes(self) -> None:
        """Test with a temporary key whether conditional writes are honoured."""
        probe_conditional_writes(self)

    def _get_by_size(self, key: str, byte_range: ByteRange) -> Fetched | None:
        found = self._bucket.head(key)
        if found is None:
            return None
        start, stop = resolve(byte_range, found.size)
        if start >= stop:
            return Fetched(b"", found.version)
        return self.get(key, Bounded(start, stop))
