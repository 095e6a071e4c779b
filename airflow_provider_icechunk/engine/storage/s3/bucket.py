"""One bucket and prefix: single requests, retried while that may help."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar, assert_never

from airflow_provider_icechunk.engine.concurrency import PerProcess, run_all
from airflow_provider_icechunk.engine.storage.base import (
    Bounded,
    ByteRange,
    Data,
    From,
    Last,
    Listed,
    Unfinished,
    Until,
    Version,
    check_finished,
    check_part,
)
from airflow_provider_icechunk.engine.storage.clouds.requests import Body, ObjectHead, Requests
from airflow_provider_icechunk.engine.storage.clouds.troubles import Trouble
from airflow_provider_icechunk.exceptions import IcechunkError, StorageError

from .errors import UseClient, classify, failures, translate
from .settings import S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef, ObjectTypeDef

    from .connection import Connection
    from .objects import NativeObjects

T = TypeVar("T")


class Bucket(Requests):
    """Requests to the objects below one prefix of a bucket.

    Every process has its own client: connections do not survive a fork.
    """

    def __init__(self, settings: S3Settings) -> None:
        location = "/".join(filter(None, ("s3:/", settings.bucket, settings.prefix)))
        super().__init__(location, settings.prefix, settings.retry, settings.concurrency)
        self.settings = settings
        self._connection = PerProcess(lambda: _connect(settings))

    @property
    def failures(self) -> tuple[type[BaseException], ...]:
        """Everything that either client raises when a request fails."""
        return failures()

    @property
    def client(self) -> S3Client:
        """The client of this process."""
        return self._connection.get().client

    def classify(self, error: BaseException) -> Trouble:
        """What an error of either client means."""
        return classify(error)

    def error(self, error: BaseException, doing: str, key: str) -> IcechunkError:
        """Convert an error of either client, naming the object."""
        return translate(error, doing=doing, where=self.where(key))

    def expresses(self, asked: ByteRange) -> bool:
        """Whether HTTP can express the range."""
        return range_header(asked) is not None

    def honours_condition(self, key: str) -> bool:
        """Whether the store refuses a read of a version that the object cannot have."""

        def read() -> bool:
            try:
                found = self.client.get_object(
                    Bucket=self.settings.bucket, Key=self.name(key), IfMatch=f'"{"0" * 32}"'
                )
            except failures() as error:
                if classify(error) in {Trouble.REFUSED, Trouble.MISSING}:
                    return True
                raise
            found["Body"].close()
            return False

        try:
            return self.calling("read", key, read)
        except failures() as error:
            raise self.error(error, "read", key) from error

    def pages(self, prefix: str, *, delimiter: str = "") -> Iterator[ListObjectsV2OutputTypeDef]:
        """The pages of a listing, to its end; an incomplete listing is an error.

        Objects missing from a listing would look deleted. A store that ignores continuation tokens
        would return the same page forever.
        """
        token, used, before = "", {""}, ""
        while True:
            page = self._page(prefix, delimiter, token)
            following = page.get("NextContinuationToken", "")
            entries = _entries(page)
            is_full = len(entries) >= self.settings.page_size
            more = page.get("IsTruncated", bool(following) or is_full)
            repeats = bool(entries) and entries[0] == before
            if (more and following in used) or repeats:
                raise StorageError(
                    f"{self.location}/{prefix} has more objects than the store lists: a response "
                    "is truncated without a way to continue (IsTruncated without a new "
                    "NextContinuationToken), or repeated. An incomplete listing is not used: "
                    "ask the store's operator, or try another endpoint"
                )
            yield page
            if not more:
                return
            token = following
            used.add(token)
            before = entries[0] if entries else before

    def listed(self, page: ListObjectsV2OutputTypeDef) -> Iterator[Listed]:
        """The objects of a page, without the folder markers of some stores."""
        for entry in page.get("Contents", []):
            key = entry["Key"].removeprefix(self._root)
            if key and not key.endswith("/"):
                yield Listed.at(key, entry["Size"], entry["LastModified"])

    def folder_names(self, page: ListObjectsV2OutputTypeDef, prefix: str) -> Iterator[str]:
        """The folders directly below `prefix` in a page requested with a delimiter."""
        for entry in page.get("CommonPrefixes", []):
            yield entry["Prefix"].removeprefix(self._root + prefix).removesuffix("/")

    def delete_batch(self, keys: Sequence[str]) -> dict[str, str]:
        """Delete up to 1000 objects; key to reason for those that could not be deleted.

        A few are deleted one by one at the same time: boto3 would take longer to get ready.
        """
        if len(keys) <= _FEW:
            told = dict(zip(keys, run_all(self._delete_one, keys, at_once=_FEW), strict=True))
            if None not in told.values():
                return {key: reason for key, reason in told.items() if reason}
        try:
            answer = self.calling("delete in", "", lambda: self._delete(keys))
        except IcechunkError as error:
            return dict.fromkeys(keys, error.message)
        except failures() as error:
            return dict.fromkeys(keys, self.error(error, "delete in", "").message)
        return {
            str(one.get("Key", "")).removeprefix(self._root): str(one.get("Code", "unknown"))
            for one in answer
            if one.get("Code") != "NoSuchKey"
        }

    def now(self) -> datetime:
        """The `Date` of a response, whatever the response was."""
        try:
            date = self.calling("get the time of", "", self._date)
        except failures() as error:
            date = _date_in(getattr(error, "response", {}))
        if not date:
            raise StorageError(
                f"{self.location} responds without a Date header, so its clock is unknown"
            )
        return parsedate_to_datetime(date).astimezone(UTC)

    def scan(self, prefix: str) -> Iterator[Listed]:
        """All objects whose key starts with `prefix`."""
        return (one for page in self.pages(prefix) for one in self.listed(page))

    def folders(self, prefix: str) -> set[str]:
        """The names directly below `prefix`; stores with real folders list empty ones too."""
        pages = self.pages(prefix, delimiter="/")
        return {name for page in pages for name in self.folder_names(page, prefix)}

    def put_once(self, key: str, data: bytes, request: Mapping[str, Any]) -> Version:
        """One PUT, without retries. `request` holds further arguments of the client."""
        name = self.name(key)
        with self._slots.one():
            version = self._natively(lambda objects: objects.put(name, data, request))
            if version is not None:
                return version
            bucket = self.settings.bucket
            answer = self.client.put_object(Bucket=bucket, Key=name, Body=data, **request)
            return Version(answer["ETag"])

    def _natively(self, request: Callable[[NativeObjects], T]) -> T | None:
        """The native client's response; `None` if boto3's has to make the request."""
        objects = self._connection.get().objects
        if objects is None:
            return None
        try:
            return request(objects)
        except UseClient:
            return None

    def _head(self, key: str) -> ObjectHead:
        name = self.name(key)
        native = self._natively(lambda objects: objects.head(name))
        if native is not None:
            return native
        found = self.client.head_object(Bucket=self.settings.bucket, Key=name)
        return ObjectHead(
            found["ContentLength"],
            found["LastModified"].astimezone(UTC),
            Version(found["ETag"]),
            found.get("Metadata", {}),
        )

    def _get(self, key: str, asked: ByteRange | None) -> Body:
        bucket, name = self.settings.bucket, self.name(key)
        native = self._natively(lambda objects: objects.get(name, asked))
        if native is not None:
            return native
        header = range_header(asked)
        if header is None:
            found = self.client.get_object(Bucket=bucket, Key=name)
        else:
            found = self.client.get_object(Bucket=bucket, Key=name, Range=header)
        # Not as a context manager, which would return the stream without its checksum.
        body = found["Body"]
        try:
            data = body.read()
        finally:
            body.close()
        told = found["ResponseMetadata"]
        if told["HTTPStatusCode"] == 206:
            check_part(told["HTTPHeaders"], asked)
        return _body(data, told["HTTPHeaders"])

    def _page(self, prefix: str, delimiter: str, token: str) -> ListObjectsV2OutputTypeDef:
        request: dict[str, Any] = {
            "Bucket": self.settings.bucket,
            "Prefix": self.name(prefix),
            "MaxKeys": self.settings.page_size,
        }
        if delimiter:
            request["Delimiter"] = delimiter
        if token:
            request["ContinuationToken"] = token
        try:
            return self.calling(
                "list",
                prefix,
                lambda: _listing(lambda: self._ask_page(request), request["Prefix"]),
            )
        except failures() as error:
            raise self.error(error, "list", prefix) from error

    def _ask_page(self, request: Mapping[str, Any]) -> ListObjectsV2OutputTypeDef:
        native = self._natively(lambda objects: objects.page(request))
        return self.client.list_objects_v2(**request) if native is None else native

    def _date(self) -> str | None:
        # The object does not exist, and need not.
        native = self._natively(lambda objects: objects.date(self.name(_NO_OBJECT)))
        return native or _date_in(
            self.client.list_objects_v2(
                Bucket=self.settings.bucket, Prefix=self.name(""), MaxKeys=1
            )
        )

    def _delete_one(self, key: str) -> str | None:
        """Why an object cannot be deleted; empty if it was, `None` if boto3 has to find out."""
        name = self.name(key)
        try:
            done = self.calling(
                "delete", key, lambda: self._natively(lambda objects: objects.delete(name))
            )
        except IcechunkError as error:
            return error.message
        except failures() as error:
            missing = self.classify(error) is Trouble.MISSING
            return None if missing else self.error(error, "delete", key).message
        return "" if done else None

    def _delete(self, keys: Sequence[str]) -> Sequence[Any]:
        answer = self.client.delete_objects(
            Bucket=self.settings.bucket,
            Delete={"Objects": [{"Key": self.name(key)} for key in keys], "Quiet": True},
        )
        # An empty response means that all were deleted, and a truncated one would look the same.
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders")
        if headers is not None:
            check_finished(headers, 0)
        return answer.get("Errors", [])


_FEW = 32
_NO_OBJECT = "what-time-is-it"


def _date_in(answer: Any) -> str | None:
    found: str | None = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return found


def range_header(byte_range: ByteRange | None) -> str | None:
    """The `Range` header, or `None` if HTTP cannot express the range."""
    match byte_range:
        case Bounded(start, stop) if stop > start:
            return f"bytes={start}-{stop - 1}"
        case From(start):
            return f"bytes={start}-"
        case Last(count) if count > 0:
            return f"bytes=-{count}"
        case None | Bounded() | Last() | Until():
            return None
        case _:
            assert_never(byte_range)


def _listing(
    ask: Callable[[], ListObjectsV2OutputTypeDef], prefix: str
) -> ListObjectsV2OutputTypeDef:
    """A page that names its prefix; the client takes an empty response for an empty page."""
    try:
        page = ask()
    except (ValueError, TypeError, KeyError) as error:
        raise Unfinished("the response to a listing cannot be parsed") from error
    if not {"Name", "Prefix", "KeyCount", "IsTruncated", "Contents"} & page.keys():
        raise Unfinished("the response is not a listing")
    if not all(one.startswith(prefix) for one in _entries(page)):
        raise Unfinished("the response lists something else")
    if not all(map(_is_described, page.get("Contents", []))):
        raise Unfinished("the listing does not describe its objects")
    return page


def _is_described(entry: ObjectTypeDef) -> bool:
    """Whether an object has a name, a size and a time with a time zone."""
    known = {"Key", "Size", "LastModified"} <= entry.keys()
    return known and entry["LastModified"].tzinfo is not None


def _entries(page: ListObjectsV2OutputTypeDef) -> list[str]:
    """Names of the objects and folders of a page."""
    objects = [one.get("Key", "") for one in page.get("Contents", [])]
    return objects + [one.get("Prefix", "") for one in page.get("CommonPrefixes", [])]


def _tag(headers: Mapping[str, str]) -> Version:
    return Version(_said(headers, "etag"))


def _said(headers: Mapping[str, str], name: str) -> str:
    """A header that every store sends; a response without it was truncated."""
    if name not in headers:
        raise Unfinished(f"the response has no {name}")
    return headers[name]


def _body(data: Data, headers: Mapping[str, str]) -> Body:
    check_finished(headers, len(data))
    return Body(data, _tag(headers), bool(headers.get("content-range")))


def _connect(settings: S3Settings) -> Connection:
    # Slow to import, and unused in programs without a bucket.
    from .connection import connect

    return connect(settings)
