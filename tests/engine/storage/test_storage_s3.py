from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import boto3
import pytest
from support import moto_server

from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Anything,
    Bounded,
    Exactly,
    Put,
    Written,
)
from airflow_provider_icechunk.engine.storage.clouds.settings import MIB
from airflow_provider_icechunk.engine.storage.readback import WRITE_ID
from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings
from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage
from airflow_provider_icechunk.engine.storage.secrets import (
    RefreshableCredentials,
    StaticCredentials,
    static_credentials,
)
from airflow_provider_icechunk.testing.conformance import StorageSuite

if TYPE_CHECKING:
    from support.seaweedfs import SeaweedFS

_buckets = count()
QUICK = Backoff(tries=3, first_pause=0.0)


@pytest.fixture(scope="module")
def moto_url() -> Iterator[str]:
    with moto_server.running() as url:
        yield url


@pytest.fixture(scope="module")
def moto_client(moto_url: str):
    client = boto3.client(
        "s3",
        endpoint_url=moto_url,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing-secret",
    )
    yield client
    client.close()


@pytest.fixture
def settings(moto_url: str, moto_client) -> S3Settings:
    made = S3Settings(
        f"bucket-{next(_buckets)}",
        "some/prefix",
        endpoint_url=moto_url,
        credentials=static_credentials("testing", "testing-secret"),
        force_path_style=True,
        allow_http=True,
        page_size=7,
        retry=QUICK,
    )
    moto_client.create_bucket(Bucket=made.bucket)
    return made


class TestS3StorageOnMoto(StorageSuite):
    # moto checks a condition and writes in two steps without a lock, so its races prove nothing
    # about a store; one writer at a time is what it can show. SeaweedFS has the real races.
    races = 1

    @pytest.fixture
    def storage(self, settings: S3Settings) -> S3Storage:
        return S3Storage(settings)


@pytest.mark.seaweedfs
class TestS3StorageOnSeaweedFS(StorageSuite):
    # SeaweedFS keeps folders, and lists `a/x` before `a-b`.
    lists_in_key_order = False

    @pytest.fixture
    def storage(self, seaweedfs: SeaweedFS) -> S3Storage:
        from support.seaweedfs import SHARED_BUCKET

        return S3Storage(
            S3Settings(
                SHARED_BUCKET,
                f"{seaweedfs.fresh_prefix()}/repository",
                endpoint_url=seaweedfs.endpoint_url,
                credentials=seaweedfs.credentials,
                force_path_style=True,
                allow_http=True,
                page_size=7,
                retry=QUICK,
            )
        )

    def test_the_server_accepts_listings_and_deletes_that_boto3_has_no_part_in(
        self, storage: S3Storage
    ) -> None:
        storage = S3Storage(replace(storage.settings, page_size=3))
        keys = [f"x/{number} +%é&=" for number in range(8)]
        storage.put_many([Put(key, b"1") for key in keys])

        assert sorted(one.key for one in storage.scan("x/")) == sorted(keys)
        assert storage.delete(keys).keys == tuple(keys)
        assert list(storage.scan("")) == []
        assert storage._bucket._connection.get()._client is None

    def test_large_objects_go_in_parts_and_come_back_whole(self, storage: S3Storage) -> None:
        large = S3Storage(replace(storage.settings, multipart_threshold=5 * MIB, part_size=5 * MIB))
        data = bytes(range(256)) * (11 * MIB // 256) + b"end"
        large.put("chunks/large", data, expect=Anything())
        found = storage.get("chunks/large")
        assert found is not None
        assert found.data == data
        tail = storage.get("chunks/large", Bounded(len(data) - 3, len(data)))
        assert tail is not None
        assert tail.data == b"end"


def test_conditional_writes_carry_a_fresh_id_and_the_metadata_given(
    settings: S3Settings, moto_client
) -> None:
    storage = S3Storage(settings)
    first = storage.put("a", b"1", expect=Absent(), metadata={"icspecver": "1"})
    assert isinstance(first, Written)
    one = moto_client.head_object(Bucket=settings.bucket, Key="some/prefix/a")["Metadata"]
    storage.put("a", b"2", expect=Exactly(first.version))
    two = moto_client.head_object(Bucket=settings.bucket, Key="some/prefix/a")["Metadata"]
    assert one["icspecver"] == "1"
    assert one[WRITE_ID] != two[WRITE_ID]


def test_without_metadata_nothing_is_attached(settings: S3Settings, moto_client) -> None:
    storage = S3Storage(replace(settings, use_metadata=False))
    storage.put("a", b"1", expect=Absent(), metadata={"icspecver": "1"})
    storage.put("b", b"1", expect=Anything(), metadata={"icspecver": "1"})
    for key in ("a", "b"):
        head = moto_client.head_object(Bucket=settings.bucket, Key=f"some/prefix/{key}")
        assert head["Metadata"] == {}


def test_unconditional_writes_of_chunks_carry_no_metadata(
    settings: S3Settings, moto_client
) -> None:
    S3Storage(settings).put_many([Put("chunks/a", b"1")])
    head = moto_client.head_object(Bucket=settings.bucket, Key="some/prefix/chunks/a")
    assert head["Metadata"] == {}


def test_content_type_and_storage_classes_reach_the_store(
    settings: S3Settings, moto_client
) -> None:
    storage = S3Storage(
        replace(settings, storage_class="STANDARD_IA", chunks_storage_class="GLACIER_IR")
    )
    storage.put("chunks/a", b"", expect=Anything())
    storage.put("refs/a", b"{}", expect=Absent(), content_type="application/json")
    chunk = moto_client.head_object(Bucket=settings.bucket, Key="some/prefix/chunks/a")
    ref = moto_client.head_object(Bucket=settings.bucket, Key="some/prefix/refs/a")
    assert chunk["StorageClass"] == "GLACIER_IR"
    assert (ref["StorageClass"], ref["ContentType"]) == ("STANDARD_IA", "application/json")


def test_objects_outside_of_the_prefix_are_not_seen(settings: S3Settings, moto_client) -> None:
    for key in ("other/x", "some/prefixed/x", "x"):
        moto_client.put_object(Bucket=settings.bucket, Key=key, Body=b"")
    storage = S3Storage(settings)
    storage.put("mine", b"", expect=Anything())
    assert [one.key for one in storage.scan("")] == ["mine"]
    assert storage.list_folders("") == []


def test_folder_markers_are_not_objects(settings: S3Settings, moto_client) -> None:
    moto_client.put_object(Bucket=settings.bucket, Key="some/prefix/refs/", Body=b"")
    assert list(S3Storage(settings).scan("")) == []
    assert S3Storage(settings).list_folders("") == []


def test_no_prefix_means_the_whole_bucket(settings: S3Settings) -> None:
    storage = S3Storage(replace(settings, prefix=""))
    storage.put("refs/a", b"", expect=Anything())
    assert [one.key for one in storage.scan("")] == ["refs/a"]
    assert storage.location == f"s3://{settings.bucket}"


def test_more_than_a_thousand_keys_are_deleted_in_batches(settings: S3Settings) -> None:
    storage = S3Storage(settings)
    storage.put_many([Put(f"chunks/{n}", b"") for n in (0, 500, 1500, 2000)])
    keys = [f"chunks/{n}" for n in range(2001)]
    deleted = storage.delete(keys)
    assert sorted(deleted.keys) == sorted(keys)
    assert list(storage.scan("")) == []


def test_conditional_writes_are_one_request_however_large(settings: S3Settings) -> None:
    storage = S3Storage(replace(settings, multipart_threshold=5 * MIB, part_size=5 * MIB))
    outcome = storage.put("repo", b"x" * (6 * MIB), expect=Absent())
    assert isinstance(outcome, Written)
    assert "-" not in outcome.version
    plain = storage.put("chunks/a", b"x" * (6 * MIB), expect=Anything())
    assert isinstance(plain, Written)
    assert "-" in plain.version


def test_refreshable_credentials_are_asked_for_when_needed(settings: S3Settings) -> None:
    asked = []

    def fetch() -> StaticCredentials:
        asked.append(1)
        return static_credentials("testing", "testing-secret", "token")

    storage = S3Storage(replace(settings, credentials=RefreshableCredentials(fetch)))
    assert asked == []
    storage.put("a", b"", expect=Anything())
    storage.get("a")
    assert asked == [1]
