"""One bucket and prefix: single requests, tried again while that may help."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_icechunk.exceptions import IcechunkError, StorageError
from airflow_provider_icechunk.storage.base import Data, Listed, Version
from airflow_provider_icechunk.storage.process import PerProcess
from airflow_provider_icechunk.storage.ranges import Unfinished, check_finished
from airflow_provider_icechunk.storage.s3_errors import (
    FAILURES,
    PASSING,
    Trouble,
    UseClient,
    classify,
    translate,
)
from airflow_provider_icechunk.storage.s3_settings import S3Settings
from airflow_provider_icechunk.storage.tuning import Slots

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef

    from airflow_provider_icechunk.storage.s3_client import Connection
    from airflow_provider_icechunk.storage.s3_lane import Answer, Lane

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of an object without its bytes."""

    size: int
    created_at: datetime
    version: Version
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class Body:
    """Bytes that a store sent, and whether they are the range that was asked for or everything."""

    data: Data
    version: Version
    is_range: bool


class Bucket:
    """Requests to the objects below one prefix of a bucket.

    Every process has its own client: connections do not survive a fork.
    """

    def __init__(self, settings: S3Settings) -> None:
        self.settings = settings
        self.location = "/".join(filter(None, ("s3:/", settings.bucket, settings.prefix)))
        self._root = f"{settings.prefix}/" if settings.prefix else ""
        self._connection = PerProcess(lambda: _connect(settings))
        self._slots = Slots(settings.concurrency)

    @property
    def client(self) -> S3Client:
        """The client of this process."""
        return self._connection.get().client

    def name(self, key: str) -> str:
        """The full name of an object in the bucket."""
        return self._root + key

    def calling(self, doing: str, key: str, call: Callable[[], T]) -> T:
        """The result of `call`, tried again after passing trouble. Only for calls that may repeat.

        Trouble that is no failure to the caller (a missing object, a range over the end) is raised
        as the library raised it; everything else as an error of this package.
        """
        for is_last in self.settings.retry.attempts():
            try:
                with self._slots.one():
                    return call()
            except FAILURES as error:
                trouble = classify(error)
                if trouble in {Trouble.MISSING, Trouble.BAD_RANGE, Trouble.NO_UPLOAD}:
                    raise
                if trouble not in PASSING or is_last:
                    raise self.error(error, doing, key) from error
        raise AssertionError("a retry has at least one try")

    def error(self, error: BaseException, doing: str, key: str) -> IcechunkError:
        """The error of this package, naming the object."""
        where = f"{self.location}/{key}" if key else self.location
        return translate(error, doing=doing, where=where)

    def head(self, key: str) -> Head | None:
        """Size, time, version and metadata; `None` if there is no such object."""
        try:
            found = self.calling("look at", key, lambda: self._head(key))
        except FAILURES as error:
            if classify(error) is Trouble.MISSING:
                return None
            raise self.error(error, "look at", key) from error
        return found

    def get(self, key: str, asked: str | None, space: memoryview | None = None) -> Body | None:
        """The object, or the part that the `Range` header `asked` names; `None` if it is missing.

        Where that fits into `space` exactly it is received there, and `space` is the body's data.

        Raises the library's error when the range lies outside of the object.
        """
        try:
            return self.calling("read", key, lambda: self._get(key, asked, space))
        except FAILURES as error:
            if classify(error) is Trouble.MISSING:
                return None
            raise

    def honours_condition(self, key: str) -> bool:
        """Whether a read is refused that asks for a version which the object cannot have."""

        def read() -> bool:
            try:
                found = self.client.get_object(
                    Bucket=self.settings.bucket, Key=self.name(key), IfMatch=f'"{"0" * 32}"'
                )
            except FAILURES as error:
                if classify(error) in {Trouble.REFUSED, Trouble.MISSING}:
                    return True
                raise
            found["Body"].close()
            return False

        try:
            return self.calling("read", key, read)
        except FAILURES as error:
            raise self.error(error, "read", key) from error

    def pages(self, prefix: str, *, delimiter: str = "") -> Iterator[ListObjectsV2OutputTypeDef]:
        """The pages of a listing, to its end; a store that does not give the rest is an error.

        Half a listing looks like a whole one, and what is missing in it like something deleted.
        """
        token = ""
        while True:
            page = self._page(prefix, delimiter, token)
            following = page.get("NextContinuationToken", "")
            more = page.get("IsTruncated", bool(following))
            if more and following in ("", token):
                raise StorageError(
                    f"{self.location}/{prefix} has more objects than the store lists: an answer is "
                    "cut short and does not say how to go on (IsTruncated without a new "
                    "NextContinuationToken). Nothing is decided on half a listing: ask the store's "
                    "operator, or try another endpoint"
                )
            yield page
            if not more:
                return
            token = following

    def listed(self, page: ListObjectsV2OutputTypeDef) -> Iterator[Listed]:
        """The objects of a page; markers that some stores keep for folders are none."""
        for entry in page.get("Contents", []):
            key = entry["Key"].removeprefix(self._root)
            if key and not key.endswith("/"):
                yield Listed.at(key, entry["Size"], entry["LastModified"])

    def folder_names(self, page: ListObjectsV2OutputTypeDef, prefix: str) -> Iterator[str]:
        """The folders directly below `prefix` in a page that was asked for with a delimiter."""
        for entry in page.get("CommonPrefixes", []):
            yield entry["Prefix"].removeprefix(self._root + prefix).removesuffix("/")

    def delete_batch(self, keys: Sequence[str]) -> dict[str, str]:
        """Delete up to 1000 objects; key to reason for those that could not be deleted."""
        try:
            answer = self.calling("delete in", "", lambda: self._delete(keys))
        except IcechunkError as error:
            return dict.fromkeys(keys, error.message)
        except FAILURES as error:
            return dict.fromkeys(keys, self.error(error, "delete in", "").message)
        return {
            str(one.get("Key", "")).removeprefix(self._root): str(one.get("Code", "unknown"))
            for one in answer
            if one.get("Code") != "NoSuchKey"
        }

    def now(self) -> datetime:
        """The `Date` of an answer, whatever the answer was."""
        try:
            date = self.calling("ask the time of", "", self._date)
        except FAILURES as error:
            date = _date_in(getattr(error, "response", {}))
        if not date:
            raise StorageError(f"{self.location} answers without its time, so its clock is unknown")
        return parsedate_to_datetime(date).astimezone(UTC)

    def put(self, key: str, data: bytes, request: Mapping[str, Any]) -> Version:
        """One PUT, once. `request` has the client's names for what goes with the bytes."""
        name, headers = self.name(key), _headers(request)
        with self._slots.one():
            short = self._by_lane(lambda lane: lane.put(name, data, headers))
            if short is not None:
                return _tag(short.headers)
            bucket = self.settings.bucket
            answer = self.client.put_object(Bucket=bucket, Key=name, Body=data, **request)
            return Version(answer["ETag"])

    def _by_lane(self, request: Callable[[Lane], Answer]) -> Answer | None:
        """The answer on the short way; `None` where the client has to make the request."""
        lane = self._connection.get().lane
        if lane is None:
            return None
        try:
            return request(lane)
        except UseClient:
            return None

    def _head(self, key: str) -> Head:
        short = self._by_lane(lambda lane: lane.head(self.name(key)))
        if short is not None:
            return _described(short.headers)
        found = self.client.head_object(Bucket=self.settings.bucket, Key=self.name(key))
        return Head(
            found["ContentLength"],
            found["LastModified"].astimezone(UTC),
            Version(found["ETag"]),
            found.get("Metadata", {}),
        )

    def _get(self, key: str, asked: str | None, space: memoryview | None) -> Body:
        bucket, name = self.settings.bucket, self.name(key)
        short = self._by_lane(lambda lane: lane.get(name, asked, space))
        if short is not None:
            return _body(short.data, short.headers)
        if asked is None:
            found = self.client.get_object(Bucket=bucket, Key=name)
        else:
            found = self.client.get_object(Bucket=bucket, Key=name, Range=asked)
        with found["Body"] as body:
            data = body.read()
        return _body(data, found["ResponseMetadata"]["HTTPHeaders"])

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
                "list", prefix, lambda: _listing(self.client.list_objects_v2(**request))
            )
        except FAILURES as error:
            raise self.error(error, "list", prefix) from error

    def _date(self) -> str | None:
        # There is no such object, and need not be.
        short = self._by_lane(lambda lane: lane.head(self.name(_NO_OBJECT)))
        if short is not None:
            return short.headers.get("date")
        return _date_in(
            self.client.list_objects_v2(
                Bucket=self.settings.bucket, Prefix=self.name(""), MaxKeys=1
            )
        )

    def _delete(self, keys: Sequence[str]) -> Sequence[Any]:
        if len(keys) == 1 and self._by_lane(lambda lane: lane.delete(self.name(keys[0]))):
            return []
        answer = self.client.delete_objects(
            Bucket=self.settings.bucket,
            Delete={"Objects": [{"Key": self.name(key)} for key in keys], "Quiet": True},
        )
        # Nothing said means all deleted, so an answer that was cut would say the same.
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders")
        if headers is not None:
            check_finished(headers, 0)
        return answer.get("Errors", [])


_HEADERS = {
    "ContentType": "Content-Type",
    "StorageClass": "x-amz-storage-class",
    "IfMatch": "If-Match",
    "IfNoneMatch": "If-None-Match",
}
_META = "x-amz-meta-"
_NO_OBJECT = "what-time-is-it"


def _date_in(answer: Any) -> str | None:
    found: str | None = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return found


def _headers(request: Mapping[str, Any]) -> dict[str, str]:
    metadata: Mapping[str, str] = request.get("Metadata", {})
    named = {_HEADERS[name]: value for name, value in request.items() if name != "Metadata"}
    return {**{_META + name: value for name, value in metadata.items()}, **named}


def _listing(page: ListObjectsV2OutputTypeDef) -> ListObjectsV2OutputTypeDef:
    """A page that says what it lists; the client takes an answer of no bytes for an empty one."""
    if not {"Name", "Prefix", "KeyCount", "IsTruncated", "Contents"} & page.keys():
        raise Unfinished("the answer is not a listing")
    return page


def _tag(headers: Mapping[str, str]) -> Version:
    return Version(_said(headers, "etag"))


def _said(headers: Mapping[str, str], name: str) -> str:
    """A header that every store sends; an answer without it was cut on its way."""
    if name not in headers:
        raise Unfinished(f"the answer has no {name}")
    return headers[name]


def _body(data: Data, headers: Mapping[str, str]) -> Body:
    check_finished(headers, len(data))
    return Body(data, _tag(headers), bool(headers.get("content-range")))


def _described(headers: Mapping[str, str]) -> Head:
    metadata = {
        name.removeprefix(_META): value for name, value in headers.items() if name.startswith(_META)
    }
    return Head(
        int(_said(headers, "content-length")),
        parsedate_to_datetime(_said(headers, "last-modified")).astimezone(UTC),
        _tag(headers),
        metadata,
    )


def _connect(settings: S3Settings) -> Connection:
    # Importing boto3 takes longer than most programs that never reach a bucket live.
    from airflow_provider_icechunk.storage.s3_client import Connection

    return Connection(settings)
