"""Writes to a bucket: plain, multipart, or conditional with read-back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, assert_never
from uuid import uuid4

from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.storage.base import Absent, Exactly, PutOutcome, Version
from airflow_provider_icechunk.engine.storage.clouds.conditional import settle_put
from airflow_provider_icechunk.engine.storage.clouds.requests import Upload
from airflow_provider_icechunk.engine.storage.clouds.troubles import Trouble
from airflow_provider_icechunk.engine.storage.readback import WRITE_ID, carries
from airflow_provider_icechunk.exceptions import IcechunkError

from .bucket import Bucket
from .errors import classify, failures

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef

_log = logging.getLogger(__name__)

PARTS_AT_ONCE = 8


class WritableBucket(Bucket):
    """A bucket, with writes."""

    def put(self, upload: Upload) -> Version:
        """Write unconditionally: in one request, or as a multipart upload if it is large."""
        large = len(upload.data) >= max(1, self.settings.multipart_threshold)
        return (put_in_parts if large else put_plainly)(self, upload)

    def put_if(self, upload: Upload, expect: Absent | Exactly) -> PutOutcome:
        """Write conditionally in one request, and determine the outcome."""
        write_id = str(uuid4())
        request = {**_kept(self, upload, write_id), **_condition(expect)}
        return settle_put(
            self,
            upload.key,
            expect,
            write_id=write_id,
            send=lambda: self.put_once(upload.key, upload.data, request),
        )


def put_plainly(bucket: Bucket, upload: Upload) -> Version:
    """Write unconditionally in one request."""
    request = _kept(bucket, upload)
    try:
        return bucket.calling(
            "write", upload.key, lambda: bucket.put_once(upload.key, upload.data, request)
        )
    except failures() as error:
        raise bucket.error(error, "write", upload.key) from error


def put_in_parts(bucket: Bucket, upload: Upload) -> Version:
    """Write unconditionally as a multipart upload. A failure leaves no parts behind."""
    write_id = str(uuid4())
    name, request = bucket.name(upload.key), _kept(bucket, upload, write_id)
    try:
        started = bucket.calling(
            "write",
            upload.key,
            lambda: bucket.client.create_multipart_upload(
                Bucket=bucket.settings.bucket, Key=name, **request
            ),
        )
    except failures() as error:
        raise bucket.error(error, "write", upload.key) from error
    upload_id = started["UploadId"]
    try:
        return _send_parts(bucket, upload, upload_id, write_id)
    except BaseException:
        _abort(bucket, upload.key, upload_id)
        raise


def _condition(expect: Absent | Exactly) -> dict[str, str]:
    match expect:
        case Absent():
            return {"IfNoneMatch": "*"}
        case Exactly(version):
            return {"IfMatch": version}
        case _:
            assert_never(expect)


def _kept(bucket: Bucket, upload: Upload, write_id: str | None = None) -> dict[str, Any]:
    """Metadata and the like, as arguments of the client."""
    request: dict[str, Any] = {}
    if bucket.settings.use_metadata:
        metadata = dict(upload.metadata)
        if write_id is not None:
            metadata[WRITE_ID] = write_id
        if metadata:
            request["Metadata"] = metadata
    if upload.content_type is not None:
        request["ContentType"] = upload.content_type
    if bucket.settings.kms_key_id is not None:
        request["ServerSideEncryption"] = "aws:kms"
        request["SSEKMSKeyId"] = bucket.settings.kms_key_id
    storage_class = bucket.settings.storage_class_of(upload.key)
    if storage_class is not None:
        request["StorageClass"] = storage_class
    return request


def _send_parts(bucket: Bucket, upload: Upload, upload_id: str, write_id: str) -> Version:
    where: dict[str, Any] = {
        "Bucket": bucket.settings.bucket,
        "Key": bucket.name(upload.key),
        "UploadId": upload_id,
    }
    size = bucket.settings.part_size
    view = memoryview(upload.data)

    def send(number: int) -> CompletedPartTypeDef:
        part = bytes(view[(number - 1) * size : number * size])
        answer = bucket.calling(
            "write",
            upload.key,
            lambda: bucket.client.upload_part(**where, PartNumber=number, Body=part),
        )
        return {"PartNumber": number, "ETag": answer["ETag"]}

    count = -(-len(view) // size)
    try:
        parts = run_all(send, range(1, count + 1), at_once=PARTS_AT_ONCE)
        done = bucket.calling(
            "write",
            upload.key,
            lambda: bucket.client.complete_multipart_upload(
                **where, MultipartUpload={"Parts": parts}
            ),
        )
        return Version(done["ETag"])
    except failures() as error:
        landed = _completed(bucket, upload, write_id, classify(error))
        if landed is None:
            raise bucket.error(error, "write", upload.key) from error
        return landed


def _completed(bucket: Bucket, upload: Upload, write_id: str, trouble: Trouble) -> Version | None:
    """The version, if an earlier try completed the upload and its response was lost."""
    if trouble is not Trouble.NO_UPLOAD:
        return None
    found = bucket.head(upload.key)
    if found is None or found.size != len(upload.data):
        return None
    marked = carries(found.metadata, write_id)
    return found.version if marked or not bucket.settings.use_metadata else None


def _any_failure() -> tuple[type[BaseException], ...]:
    return (IcechunkError, *failures())


def _abort(bucket: Bucket, key: str, upload_id: str) -> None:
    try:
        bucket.calling(
            "abort the upload of",
            key,
            lambda: bucket.client.abort_multipart_upload(
                Bucket=bucket.settings.bucket, Key=bucket.name(key), UploadId=upload_id
            ),
        )
    except _any_failure() as error:
        if isinstance(error, IcechunkError) or classify(error) is not Trouble.NO_UPLOAD:
            _log.warning(
                "Parts of an upload of %s remain in %s (%s): a lifecycle rule can remove them",
                key,
                bucket.location,
                type(error).__name__,
            )
