"""Objects in a bucket of S3 or a compatible store.

Conditional writes are single PUTs with `If-None-Match` or `If-Match`, never retried blindly:
ambiguous responses are resolved by reading back (`readback`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import assert_never

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
from airflow_provider_icechunk.engine.storage.readback import probe_conditional_writes
from airflow_provider_icechunk.engine.storage.secrets import (
    AnonymousCredentials,
    EnvironmentCredentials,
    S3Credentials,
)
from airflow_provider_icechunk.engine.storage.tuning import Tuning

from .bucket import Bucket, range_header
from .errors import FAILURES, Trouble, classify
from .settings import S3Settings
from .writes import Upload, put_if, put_in_parts, put_plainly

_BATCH = 1000


class S3Storage:
    """Objects below a prefix of a bucket."""

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._bucket = Bucket(settings)

    @classmethod
    def at(
        cls,
        bucket: str,
        prefix: str = "",
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        credentials: S3Credentials | None = None,
        anonymous: bool = False,
        force_path_style: bool = False,
        allow_http: bool = False,
        use_metadata: bool = True,
    ) -> S3Storage:
        """The storage at a bucket and prefix; for further settings use `S3Settings`."""
        chosen = AnonymousCredentials() if anonymous else credentials or EnvironmentCredentials()
        return cls(
            S3Settings(
                bucket,
                prefix,
                region=region,
                endpoint_url=endpoint_url,
                credentials=chosen,
                force_path_style=force_path_style,
                allow_http=allow_http,
                use_metadata=use_metadata,
            )
        )

    def __repr__(self) -> str:
        return f"S3Storage({self.location!r})"

    def __reduce__(self) -> tuple[type[S3Storage], tuple[S3Settings]]:
        """Without connections; secrets cannot be pickled."""
        return (S3Storage, (self._settings,))

    @property
    def settings(self) -> S3Settings:
        """The settings of this storage."""
        return self._settings

    def tuned(self, tuning: Tuning) -> S3Storage:
        """The same bucket with other retries, storage classes or concurrency."""
        settings = self._settings.tuned(tuning)
        return self if settings is self._settings else S3Storage(settings)

    @property
    def location(self) -> str:
        """A URL-like name for messages."""
        return self._bucket.location

    @property
    def endpoint_url(self) -> str | None:
        """The address, if it is not AWS's own."""
        return self._settings.endpoint_url

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        """The object or a range of it; `None` if it does not exist.

        Ranges that HTTP cannot express (empty ones, all but the end) take a second request.
        """
        check_key(key)
        resolve(byte_range, 0)
        if byte_range is not None and range_header(byte_range) is None:
            return self._get_by_size(key, byte_range)
        try:
            body = self._bucket.get(key, byte_range)
        except FAILURES as error:
            if classify(error) is not Trouble.BAD_RANGE or byte_range is None:
                raise self._bucket.error(error, "read", key) from error
            return self._get_by_size(key, byte_range)
        if body is None:
            return None
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
        except FAILURES as error:
            if classify(error) is Trouble.BAD_RANGE:
                return 0
            raise self._bucket.error(error, "read", key) from error
        if body is None:
            return None
        found = body.data if body.is_range else body.data[start : start + len(space)]
        space[: len(found)] = found
        return len(found)

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        """`get` many at once; results in the order of requests."""
        return run_all(
            lambda request: self.get(*request), requests, at_once=self._settings.concurrency
        )

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
        upload = Upload.of(check_key(key), data, metadata, content_type)
        match expect:
            case Anything():
                large = len(upload.data) >= max(1, self._settings.multipart_threshold)
                put = put_in_parts if large else put_plainly
                return Written(put(self._bucket, upload))
            case Absent() | Exactly():
                return put_if(self._bucket, upload, expect)
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
            at_once=self._settings.concurrency,
        )

    def settle(self) -> None:
        """Do nothing: writes are durable immediately."""

    def scan(self, prefix: str) -> Iterator[Listed]:
        """Objects whose key starts with `prefix`, in the order in which the store lists them.

        That is ascending order of key for S3 itself; some other stores list folder by folder.
        """
        check_prefix(prefix)
        return (one for page in self._bucket.pages(prefix) for one in self._bucket.listed(page))

    def list_folders(self, prefix: str) -> list[str]:
        """Names directly below `prefix` that contain objects."""
        check_prefix(prefix)
        pages = self._bucket.pages(prefix, delimiter="/")
        names = sorted({name for page in pages for name in self._bucket.folder_names(page, prefix)})
        if self._settings.endpoint_url is None:
            return names
        # Stores with real folders below their keys still list those that have become empty.
        full = run_all(
            lambda name: next(self.scan(f"{prefix}{name}/"), None) is not None,
            names,
            at_once=self._settings.concurrency,
        )
        return [name for name, is_full in zip(names, full, strict=True) if is_full]

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

    def honours_read_conditions(self) -> bool | None:
        """Whether conditional reads are honoured; `None` if there is nothing to read.

        Writes nothing, and is only a hint: a store that ignores conditions on reads cannot be
        trusted with writes, but one that honours them may still ignore those on writes.
        """
        first = next(self.scan(""), None)
        return None if first is None else self._bucket.honours_condition(first.key)

    def _get_by_size(self, key: str, byte_range: ByteRange) -> Fetched | None:
        found = self._bucket.head(key)
        if found is None:
            return None
        start, stop = resolve(byte_range, found.size)
        if start >= stop:
            return Fetched(b"", found.version)
        return self.get(key, Bounded(start, stop))
