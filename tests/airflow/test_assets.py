"""Addresses of assets: one spelling, nothing strange; and what tags and retries decide."""

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.openlineage import facet
from airflow.sdk import Asset, RetryAction

from airflow_provider_icechunk import exceptions
from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.assets.icechunk import (
    convert_asset_to_openlineage,
    create_asset,
)
from airflow_provider_icechunk.notifications.tag import IcechunkTagNotifier
from airflow_provider_icechunk.policies.retry import icechunk_retry_policy


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("icechunk://Bucket/a/b", "icechunk://Bucket/a/b?branch=main"),
        ("ICECHUNK://Bucket//a/b/?branch=main", "icechunk://Bucket/a/b?branch=main"),
        ("icechunk:///data/weather?branch=dev", "icechunk:///data/weather?branch=dev"),
        ("icechunk://bucket?tag=v1", "icechunk://bucket/?tag=v1"),
        ("icechunk://bucket/a#main", "icechunk://bucket/a?branch=main"),
    ],
)
def test_airflow_stores_one_spelling_of_an_address(given: str, stored: str) -> None:
    assert Asset(given).uri == stored
    assert Asset(stored).uri == stored


@pytest.mark.parametrize(
    "address",
    [
        "icechunk://",
        "icechunk://bucket/../other",
        "icechunk://bucket/%2e%2e/other",
        "icechunk://bucket:9000/a",
        "icechunk://bucket/a?branch=main&tag=v1",
        "icechunk://bucket/a?version=3",
    ],
)
def test_addresses_that_name_no_branch_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="icechunk URI"):
        Asset(address)


def test_assets_are_made_from_their_parts() -> None:
    asset = create_asset(bucket="bucket", prefix="/a b/c/", branch="dev/x", extra={"k": 1})
    assert asset.uri == "icechunk://bucket/a%20b/c?branch=dev%2Fx"
    assert asset.extra == {"k": 1}
    assert create_asset(path="/data/weather").uri == "icechunk:///data/weather?branch=main"
    for wrong in ({}, {"bucket": "b", "path": "/p"}, {"path": "relative"}):
        with pytest.raises(ValueError, match="path"):
            create_asset(**wrong)


@pytest.mark.parametrize(
    ("parts", "namespace", "name"),
    [
        ({"bucket": "bucket", "prefix": "a b/c"}, "s3://bucket", "a b/c"),
        ({"path": "/data/weather"}, "file", "/data/weather"),
    ],
)
def test_lineage_knows_the_repository(
    parts: dict[str, Any], namespace: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The stand-in that Airflow has without the OpenLineage client is `None`.
    monkeypatch.setattr(facet, "Dataset", SimpleNamespace)
    dataset = convert_asset_to_openlineage(create_asset(**parts), None)
    assert (dataset.namespace, dataset.name) == (namespace, name)


def error(name: str) -> exceptions.IcechunkError:
    made = getattr(exceptions, name)
    extra = {"snapshot": "x", "conflicts": []} if name == "RebaseFailedError" else {}
    return made("text", **extra)


@pytest.mark.parametrize(
    ("names", "action"),
    [
        (["StorageError", "OutcomeUnknownError", "ConflictError"], RetryAction.RETRY),
        (
            [
                "AccessDeniedError", "UnsafeStorageError", "NotFoundError", "AlreadyExistsError",
                "InvalidInputError", "FormatError", "UnsupportedError", "RebaseFailedError",
                "MaintenanceError",
            ],
            RetryAction.FAIL,
        ),
        (["IcechunkError", "SessionError"], RetryAction.DEFAULT),
    ],
)  # fmt: skip
def test_what_time_can_cure_is_tried_again(names: list[str], action: RetryAction) -> None:
    policy = icechunk_retry_policy(timedelta(seconds=5))
    policy = type(policy).deserialize(policy.serialize())
    for name in names:
        decision = policy.evaluate(error(name), 1, 3)
        assert decision.action is action, name
        expected = timedelta(seconds=5) if action is RetryAction.RETRY else None
        assert decision.retry_delay == expected


def test_a_run_that_succeeds_tags_the_head_and_again_changes_nothing(folder: Path) -> None:
    repository = Repository.create(local_filesystem_storage(folder / "weather"))
    head = repository.lookup_branch("main")
    notifier = IcechunkTagNotifier(repository="{{ params.name }}", tag="run-{{ run_id }}")
    for _ in range(2):
        notifier({"params": {"name": "weather"}, "run_id": "7"})
        assert repository.lookup_tag("run-7") == head


@pytest.mark.parametrize(
    ("arguments", "uri", "lineage"),
    [
        ({"url": "gs://b/p/q"}, "icechunk+gs://b/p/q?branch=main", ("gs://b", "p/q")),
        (
            {"url": "az://c/p", "account": "archive"},
            "icechunk+az://archive/c/p?branch=main",
            ("abfss://c@archive.dfs.core.windows.net", "p"),
        ),
        (
            {"url": "abfs://c@archive.dfs.core.windows.net/p"},
            "icechunk+az://archive/c/p?branch=main",
            ("abfss://c@archive.dfs.core.windows.net", "p"),
        ),
        ({"url": "s3://b/p"}, "icechunk://b/p?branch=main", ("s3://b", "p")),
        ({"url": "/data/x"}, "icechunk:///data/x?branch=main", ("file", "/data/x")),
    ],
)
def test_an_asset_of_any_cloud_is_named_in_lineage_like_its_storage(
    arguments: dict[str, str],
    uri: str,
    lineage: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(facet, "Dataset", SimpleNamespace)
    asset = create_asset(**arguments)
    assert asset.uri == uri
    found = convert_asset_to_openlineage(asset, None)
    assert (found.namespace, found.name) == lineage


def test_an_asset_of_azure_needs_its_account() -> None:
    with pytest.raises(ValueError, match="account"):
        create_asset(url="az://c/p")
