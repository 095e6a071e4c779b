"""Connections for Google Cloud Storage and Azure: fields, credentials, borrowing, testing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import boto3
import pytest
from airflow.sdk import Connection
from support import gcs_server, moto_server
from support.gcs_server import BUCKET, READER, WRITER, GcsServer

from airflow_provider_icechunk.engine.pipelines.description import SessionDescription
from airflow_provider_icechunk.engine.storage import secrets
from airflow_provider_icechunk.engine.storage.location import StorageLocation
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.hooks.borrowed import credentials_of
from airflow_provider_icechunk.hooks.connection import IcechunkConnection, parse_connection
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook

SECRET = "marker-secret-51c9"


def parsed(extra: dict[str, Any], **fields: object) -> IcechunkConnection:
    given = {"conn_id": "c", "conn_type": "icechunk", "host": "bucket", **fields}
    return parse_connection(Connection(**given, extra=json.dumps(extra)))


GCS = {"storage": "gcs"}
AZURE = {"storage": "azure", "account": "archive"}


@pytest.mark.parametrize(
    ("extra", "fields", "kind"),
    [
        (GCS, {}, secrets.EnvironmentCredentials),
        (GCS, {"password": SECRET}, secrets.ServiceAccountKey),
        (GCS | {"service_account_file": "/key.json"}, {}, secrets.ServiceAccountFile),
        (GCS | {"anonymous": True}, {}, secrets.AnonymousCredentials),
        (GCS | {"gcp_conn_id": "google"}, {}, secrets.RefreshableToken),
        (AZURE, {}, secrets.EnvironmentCredentials),
        (AZURE, {"password": SECRET}, secrets.AccountKey),
        (AZURE | {"sas_token": SECRET}, {}, secrets.SharedAccessSignature),
        (AZURE | {"managed_identity": True}, {}, secrets.ManagedIdentity),
        (AZURE | {"anonymous": True}, {}, secrets.AnonymousCredentials),
        (
            AZURE | {"tenant_id": "tenant"},
            {"login": "client", "password": SECRET},
            secrets.ServicePrincipal,
        ),
    ],
)
def test_the_fields_decide_about_the_credentials(
    extra: dict[str, Any], fields: dict[str, Any], kind: type
) -> None:
    settings = parsed(extra, **fields)
    found = credentials_of(settings)
    assert type(found) is kind
    shown = repr(settings) + settings.model_dump_json() + repr(found) + repr(settings.location("a"))
    assert SECRET not in shown
    assert set(settings.secrets) <= {SECRET}


@pytest.mark.parametrize(
    ("extra", "fields", "match"),
    [
        (GCS | {"region": "eu"}, {}, "leave empty with storage 'gcs': region"),
        (GCS | {"account": "archive"}, {}, "leave empty with storage 'gcs': account"),
        (GCS, {"login": "x"}, "leave empty with storage 'gcs': login"),
        (GCS | {"anonymous": True}, {"password": SECRET}, "set only one of"),
        (AZURE | {"aws_conn_id": "x"}, {}, "leave empty with storage 'azure': aws_conn_id"),
        ({"storage": "azure"}, {}, "account is missing"),
        (AZURE, {"login": "x", "password": SECRET}, "a service principal needs"),
        (AZURE | {"sas_token": SECRET}, {"password": SECRET}, "set only one of"),
        ({"gcp_conn_id": "x"}, {}, "leave empty with storage 's3': gcp_conn_id"),
        ({"storage": "file", "account": "a"}, {"host": "/x"}, "leave empty with storage 'file'"),
    ],
)
def test_fields_of_another_storage_and_two_kinds_of_credentials_are_refused(
    extra: dict[str, Any], fields: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidInputError, match=match) as caught:
        parsed(extra, **fields)
    assert SECRET not in str(caught.value)


def test_a_location_goes_through_a_session_description_without_secrets() -> None:
    where = parsed(AZURE | {"prefix": "team", "sas_token": SECRET}).location("weather")
    assert where == StorageLocation("az://bucket/team/weather", account="archive")
    session = {"repository": "r", "conn_id": "c", "work_unit": {}, "fragments": "f/"}
    described = SessionDescription(place=where, **session)  # type: ignore[arg-type]
    assert SECRET not in described.model_dump_json()
    again = SessionDescription.model_validate_json(described.model_dump_json())
    assert again.place == where
    earlier = {"kind": "s3", "bucket": "b", "prefix": "p", "region": "eu-west-1"}
    old = SessionDescription.model_validate({**session, "place": earlier})
    assert old.place == StorageLocation("s3://b/p", region="eu-west-1")


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with gcs_server.running() as state:
        yield state


def installed(monkeypatch: pytest.MonkeyPatch, tokens: list[str]) -> None:
    """Stand-ins for the Google provider and its library, which the tests' environment lacks."""

    class GoogleBaseHook:
        def __init__(self, gcp_conn_id: str) -> None:
            assert gcp_conn_id == "google"

        def get_credentials(self) -> object:
            found = SimpleNamespace(token=None, expiry=None)

            def refresh(_: object) -> None:
                found.token = tokens[0]
                found.expiry = (datetime.now(UTC) + timedelta(hours=1)).replace(tzinfo=None)

            found.refresh = refresh
            return found

    for name, content in (
        ("airflow.providers.google.common.hooks.base_google", {"GoogleBaseHook": GoogleBaseHook}),
        ("google.auth.transport.requests", {"Request": object}),
    ):
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)


def test_a_google_connection_can_be_borrowed(
    server: GcsServer, connect: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [WRITER]
    installed(monkeypatch, tokens)
    extra = GCS | {
        "endpoint_url": server.url,
        "allow_http": True,
        "prefix": "team",
        "gcp_conn_id": "google",
    }
    connect(host=BUCKET, extra=extra)
    IcechunkHook().create("weather")
    assert any(name.startswith("team/weather/") for name in server.objects)
    tokens[0] = READER
    server.asked.clear()
    good, text = IcechunkHook().test_connection()
    assert good
    assert text.startswith("gs://bucket/team is reachable")
    assert server.writes_of(READER) == []
    tokens[0] = SECRET
    good, text = IcechunkHook().test_connection()
    assert (good, text.startswith("no permission")) == (False, True)
    assert SECRET not in text


def test_without_the_package_borrowing_says_what_to_install(connect: Callable[..., str]) -> None:
    connect(host=BUCKET, extra=GCS | {"gcp_conn_id": "google"})
    with pytest.raises(InvalidInputError, match="apache-airflow-providers-google"):
        IcechunkHook().exists("weather")


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"extra": {"sas_token": f"https://x.blob.core.windows.net?{SECRET}"}}, "Shared"),
        ({"extra": {"shared_access_key": SECRET}}, "AccountKey"),
        ({"login": "archive", "password": SECRET}, "AccountKey"),
        ({"login": "c", "password": SECRET, "extra": {"tenant_id": "t"}}, "ServicePrincipal"),
        ({"extra": {}}, "RefreshableToken"),
    ],
)
def test_an_azure_connection_can_be_borrowed(
    fields: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = json.dumps({"conn_type": "wasb", **fields})
    monkeypatch.setenv("AIRFLOW_CONN_THEIRS", value)
    found = credentials_of(parsed(AZURE | {"wasb_conn_id": "theirs"}))
    assert type(found).__name__.startswith(kind)
    assert SECRET not in repr(found)


def test_a_borrowed_connection_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_THEIRS", json.dumps({"conn_type": "http"}))
    with pytest.raises(InvalidInputError, match="not 'wasb'"):
        credentials_of(parsed(AZURE | {"wasb_conn_id": "theirs"}))


def test_the_test_of_a_connection_warns_of_rules_of_the_bucket(
    connect: Callable[..., str],
) -> None:
    with moto_server.running("watched") as url:
        extra = {"endpoint_url": url, "allow_http": True, "force_path_style": True, "prefix": "p"}
        connect(host="watched", login="testing", password=SECRET, extra=extra)
        good, text = IcechunkHook().test_connection()
        assert good
        assert "lifecycle" not in text
        client = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        client.put_bucket_versioning(
            Bucket="watched", VersioningConfiguration={"Status": "Enabled"}
        )
        chosen = (("ours", "Enabled", ""), ("off", "Disabled", ""), ("far", "Enabled", "q"))
        rules = [
            {"ID": name, "Status": status, "Filter": {"Prefix": where}, "Expiration": {"Days": 3}}
            for name, status, where in chosen
        ]
        client.put_bucket_lifecycle_configuration(
            Bucket="watched", LifecycleConfiguration={"Rules": rules}
        )
        client.close()
        good, text = IcechunkHook().test_connection()
        assert good
        assert "keeps old versions" in text
        assert "'ours' deletes objects by their age" in text
        assert "'off'" not in text
        assert "'far'" not in text
