"""One bucket of Google Cloud Storage or Azure: all its requests, by the native client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

from urllib3.exceptions import HTTPError

from airflow_provider_icechunk.engine.concurrency import PerProcess, run_all
from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Anything,
    Bounded,
    ByteRange,
    Exactly,
    Expectation,
    From,
    Last,
    Listed,
    Lost,
    PutOutcome,
    Unfinished,
    Version,
)
from airflow_provider_icechunk.engine.storage.readback import WRITE_ID
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    IcechunkError,
    InvalidInputError,
    StorageError,
)

from .cloud import CloudSettings, Tokens
from .conditional import settle_put
from .forks import Holder, claim, usable
from .native import ONCE, SLOW, client_options, fetch, is_sendable, look, pool_to
from .requests import Body, ObjectHead, Requests, Upload
from .troubles import NativeError, Trouble, native_error

T = TypeVar("T")

_PAGE = 1000
_NO_OBJECT = "what-time-is-it"
_PARTS_AT_ONCE = 8


class CloudBucket(Requests):
    """Requests to the objects below one prefix. A child forked after the first makes none."""

    failures = (NativeError, HTTPError, OSError)

    def __init__(self, settings: CloudSettings) -> None:
        super().__init__(settings.location, settings.prefix, settings.retry, settings.concurrency)
        self._settings = settings
        self._stores = PerProcess(lambda: _Stores(settings))
        self._pool = PerProcess(lambda: pool_to(settings.address, settings))

    def expresses(self, asked: ByteRange) -> bool:
        """Whether one request can ask for a range."""
        match asked:
            case Bounded(start, stop):
                return stop > start
            case From():
                return True
            case Last(count):
                return count > 0 and self._settings.suffix_ranges
            case _:
                return False

    def put(self, upload: Upload) -> Version:
        """Write unconditionally: in one request, or in parts if it is large."""
        large = len(upload.data) >= max(1, self._settings.multipart_threshold)
        send = self._put_in_parts if large else self._put_whole
        try:
            return self.calling("write", upload.key, lambda: send(upload))
        except self.failures as error:
            raise self.error(error, "write", upload.key) from error

    def put_if(self, upload: Upload, expect: Absent | Exactly) -> PutOutcome:
        """Write conditionally in one request, and determine the outcome."""
        if isinstance(expect, Exactly) and not self._settings.may_be_version(expect.version):
            return Lost()
        write_id = str(uuid4())

        def send() -> Version:
            with self._slots.one():
                return self._put_whole(upload, expect, write_id)

        return settle_put(self, upload.key, expect, write_id=write_id, send=send)

    def scan(self, prefix: str) -> Iterator[Listed]:
        """All objects whose key starts with `prefix`; the client lists whole folders."""
        import obstore

        # Before the first request, so that a wrong prefix or a fork is reported at once.
        folder = self.name(prefix.rpartition("/")[0]).strip("/")
        pages = self._asking(
            "list", prefix, lambda store: obstore.list(store, folder or None, chunk_size=_PAGE)
        )
        while True:
            page = self._asking("list", prefix, lambda _: next(pages, None))
            if page is None:
                return
            for one in page:
                key = one["path"].removeprefix(self._root)
                if key.startswith(prefix) and one["path"].startswith(self._root):
                    yield Listed.at(key, one["size"], one["last_modified"])

    def folders(self, prefix: str) -> set[str]:
        """The names of the folders directly below `prefix`."""
        import obstore

        folder = self.name(prefix).strip("/")
        found = self._asking(
            "list", prefix, lambda store: obstore.list_with_delimiter(store, folder or None)
        )
        return {one.rstrip("/").rpartition("/")[2] for one in found["common_prefixes"]}

    def delete_batch(self, keys: Sequence[str]) -> dict[str, str]:
        """Delete objects one by one: a batch with a missing object does not say which went."""
        reasons = run_all(self._delete, keys, at_once=self._settings.concurrency)
        return {key: reason for key, reason in zip(keys, reasons, strict=True) if reason}

    def now(self) -> datetime:
        """The `Date` of a response to an unsigned request; a refusal has one too."""
        url = f"{self._settings.address}/{quote(self.name(_NO_OBJECT))}"

        def ask() -> str | None:
            return self._pool.get().request("HEAD", url, redirect=False).headers.get("Date")

        date = self.calling("get the time of", "", ask)
        if not date:
            raise StorageError(
                f"{self.location} responds without a Date header, so its clock is unknown"
            )
        return parsedate_to_datetime(date).astimezone(UTC)

    def _head(self, key: str) -> ObjectHead:
        name, version_of = self.name(key), self._settings.version_of
        return self.natively(lambda store: look(store, name, version_of))

    def _get(self, key: str, asked: ByteRange | None) -> Body:
        name, version_of = self.name(key), self._settings.version_of
        return self.natively(lambda store: fetch(store, name, asked, version_of))

    def _put_whole(
        self, upload: Upload, expect: Expectation | None = None, write_id: str | None = None
    ) -> Version:
        import obstore

        mode = self._settings.mode(Anything() if expect is None else expect)
        attributes = self._attributes(upload, write_id)
        made = self.natively(
            lambda store: obstore.put(
                store,
                self.name(upload.key),
                upload.data,
                mode=mode,
                attributes=attributes,
                use_multipart=False,
            ),
            large=len(upload.data) > SLOW,
            writes=True,
        )
        return self._settings.version_of(made)

    def _put_in_parts(self, upload: Upload) -> Version:
        import obstore

        attributes = self._attributes(upload, None)
        self.natively(
            lambda store: obstore.put(
                store,
                self.name(upload.key),
                upload.data,
                attributes=attributes,
                use_multipart=True,
                chunk_size=self._settings.part_size,
                max_concurrency=_PARTS_AT_ONCE,
            ),
            large=True,
            writes=True,
        )
        # The client does not return the version of an object that it uploaded in parts.
        return self._head(upload.key).version

    def _delete(self, key: str) -> str | None:
        import obstore

        name = self.name(key)
        try:
            self.calling(
                "delete",
                key,
                lambda: self.natively(lambda store: obstore.delete(store, name), writes=True),
            )
        except IcechunkError as error:
            return error.message
        except self.failures as error:
            if self.classify(error) is not Trouble.MISSING:
                return self.error(error, "delete", key).message
        return None

    def _attributes(self, upload: Upload, write_id: str | None) -> Any:
        settings = self._settings
        metadata: dict[str, str] = {}
        if settings.use_metadata:
            metadata = {**upload.metadata, **({} if write_id is None else {WRITE_ID: write_id})}
        named = {
            "Content-Type": upload.content_type,
            "Storage-Class": settings.storage_class_of(upload.key),
        }
        sent = {**metadata, **{name: value for name, value in named.items() if value is not None}}
        plain = all(name.isascii() and name.isalnum() and name.islower() for name in metadata)
        if not plain or not all(map(is_sendable, sent.values())):
            raise InvalidInputError(
                f"the metadata of {upload.key} cannot be stored in {self.location}: use names of "
                "lower-case letters and digits, and printable ASCII values"
            )
        return sent

    def _asking(self, doing: str, key: str, call: Callable[[Any], T]) -> T:
        """A request for a listing, which the client retries itself."""
        try:
            with self._slots.one():
                return self.natively(call, listing=True)
        except self.failures as error:
            raise self.error(error, doing, key) from error

    def natively(
        self,
        call: Callable[[Any], T],
        *,
        large: bool = False,
        listing: bool = False,
        writes: bool = False,
    ) -> T:
        """One request by the native client; raises `NativeError`."""
        from obstore.exceptions import BaseError

        if not usable():
            raise StorageError(
                f"{self.location} cannot be used in this process: the client of "
                f"{self._settings.vendor} does not survive a fork, and its calls would wait "
                "forever. Start processes by 'spawn' or 'forkserver' "
                "(multiprocessing.set_start_method), or open the repository in the child only"
            )
        if writes and self._settings.reads_only:
            raise AccessDeniedError(
                f"{self.location} was opened without credentials, which is enough for reading only"
            )
        store = self._stores.get().of("listing" if listing else "large" if large else "small")
        try:
            return call(store)
        except Unfinished:
            raise
        except (BaseError, OSError) as error:
            failure = _failure(error)
        # Not chained to the error: its text repeats the store's, which may contain anything.
        raise failure


class _Stores:
    """The stores of one process: replaced when credentials change."""

    def __init__(self, settings: CloudSettings) -> None:
        self._settings = settings
        self._tokens = Tokens(settings.source)
        self._held: dict[str, tuple[Any, Holder]] = {}
        self._making = Lock()

    def of(self, purpose: str) -> Any:
        token = self._tokens.present()
        # The first requests come at once, and creating a store costs more than sending them.
        with self._making:
            held = self._held.get(purpose)
            if held is None or held[0] != token:
                claim()
                held = (token, Holder(self._made(token, purpose)))
                self._held[purpose] = held
        return held[1].store

    def _made(self, token: Any, purpose: str) -> Any:
        from obstore.exceptions import BaseError

        settings = self._settings
        client = client_options(settings, large=purpose == "large")
        # A listing makes many repeatable requests, and a single one cannot be repeated from here.
        retry = {"max_retries": (settings.retry.tries or 10) - 1} if purpose == "listing" else ONCE
        try:
            return settings.make(token, client, retry)
        except (BaseError, OSError, ValueError) as error:
            if isinstance(error, IcechunkError):
                raise
            # Its text may repeat its input, including secrets.
            kind = type(error).__name__
        raise AccessDeniedError(
            f"no client for {settings.location} ({kind}): check the endpoint and the credentials, "
            "also those that variables of the environment name"
        )


def _failure(error: BaseException) -> NativeError:
    """Read an error; an answer to a request for credentials is not one about an object."""
    found = native_error(error)
    if found.status == 404 and found.code == "404" and not isinstance(error, FileNotFoundError):
        return NativeError(code="NoCredentials", sent=False, denied=True)
    return found
