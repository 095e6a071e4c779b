import pickle
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_icechunk.engine.format.chunk_refs import ETag, LastModified, Virtual
from airflow_provider_icechunk.engine.storage import credentials
from airflow_provider_icechunk.engine.storage import secrets as internal
from airflow_provider_icechunk.engine.storage.credentials import (
    AzureCredentials,
    AzureStaticCredentials,
    Credentials,
    GcsBearerCredential,
    GcsCredentials,
    GcsStaticCredentials,
    S3Credentials,
    S3StaticCredentials,
    containers_credentials,
    storage_credentials,
)
from airflow_provider_icechunk.engine.virtual.locations import VirtualChunkSpec, checksum_of
from airflow_provider_icechunk.exceptions import InvalidInputError

SOON = datetime.now(UTC) + timedelta(hours=1)
KEYS = S3StaticCredentials("AKIAHUNTER2", "hunter2", "hunter2-token", SOON)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({}, S3Credentials.FromEnv),
        ({"from_env": True}, S3Credentials.FromEnv),
        ({"anonymous": True}, S3Credentials.Anonymous),
        ({"anonymous": False}, S3Credentials.FromEnv),
        ({"access_key_id": "a", "secret_access_key": "b"}, S3Credentials.Static),
        ({"get_credentials": lambda: KEYS}, S3Credentials.Refreshable),
    ],
)
def test_s3_credentials_are_of_the_kind_the_arguments_name(arguments, kind):
    assert isinstance(credentials.s3_credentials(**arguments), kind)


@pytest.mark.parametrize(
    "arguments",
    [
        {"from_env": False},
        {"access_key_id": "a"},
        {"secret_access_key": "b"},
        {"session_token": "c"},
        {"anonymous": True, "from_env": True},
        {"anonymous": True, "access_key_id": "a", "secret_access_key": "b"},
        {"get_credentials": lambda: KEYS, "from_env": True},
    ],
)
def test_contradicting_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match="s3_credentials"):
        credentials.s3_credentials(**arguments)


def test_the_official_library_decides_the_same():
    icechunk = pytest.importorskip("icechunk")
    options = {
        "access_key_id": (None, "a"),
        "secret_access_key": (None, "b"),
        "session_token": (None, "c"),
        "anonymous": (None, True, False),
        "from_env": (None, True, False),
    }
    from itertools import product

    for values in product(*options.values()):
        arguments = dict(zip(options, values, strict=True))
        try:
            theirs = type(icechunk.s3_credentials(**arguments)).__name__.rsplit("_", 1)[-1]
        except ValueError:
            theirs = None
        try:
            ours = type(credentials.s3_credentials(**arguments)).__name__
        except ValueError:
            ours = None
        assert ours == theirs, arguments


def test_storage_gets_the_same_credentials():
    static = storage_credentials(S3Credentials.Static(KEYS))
    assert isinstance(static, internal.StaticCredentials)
    assert static.secret_access_key.reveal() == "hunter2"
    assert static.expires_after == SOON
    assert storage_credentials(None) == internal.EnvironmentCredentials()
    assert storage_credentials(S3Credentials.FromEnv()) == internal.EnvironmentCredentials()
    assert storage_credentials(S3Credentials.Anonymous()) == internal.AnonymousCredentials()
    with pytest.raises(InvalidInputError):
        storage_credentials(GcsCredentials.FromEnv())


def test_scattered_credentials_are_used_first_and_once():
    answers = iter([KEYS, S3StaticCredentials("second", "x")])
    refreshable = credentials.s3_refreshable_credentials(
        lambda: next(answers), scatter_initial_credentials=True
    )
    fetch = storage_credentials(refreshable).fetch
    assert [fetch().access_key_id, fetch().access_key_id] == ["AKIAHUNTER2", "second"]


def test_pickled_functions_are_never_loaded():
    pickled = pickle.dumps(len)
    for kind in (S3Credentials.Refreshable, GcsCredentials.Refreshable):
        with pytest.raises(InvalidInputError, match="pickled"):
            kind(pickled)


EVERY_SECRET = [
    KEYS,
    S3Credentials.Static(KEYS),
    S3Credentials.Refreshable(lambda: KEYS, KEYS),
    Credentials.S3(S3Credentials.Static(KEYS)),
    GcsBearerCredential("hunter2"),
    GcsCredentials.Static(GcsStaticCredentials.ServiceAccountKey("hunter2")),
    GcsCredentials.Static(GcsStaticCredentials.BearerToken("hunter2")),
    GcsCredentials.Refreshable(lambda: KEYS, GcsBearerCredential("hunter2")),
    AzureCredentials.Static(AzureStaticCredentials.AccessKey("hunter2")),
    AzureCredentials.Static(AzureStaticCredentials.SasToken("hunter2")),
    AzureCredentials.Static(AzureStaticCredentials.BearerToken("hunter2")),
    storage_credentials(S3Credentials.Static(S3StaticCredentials("id", "hunter2", "hunter2"))),
]


@pytest.mark.parametrize("value", EVERY_SECRET, ids=lambda value: type(value).__qualname__)
def test_no_secret_is_printed(value):
    for text in (repr(value), str(value), f"{value}", repr([value]), repr({"a": value})):
        assert "hunter2" not in text.lower()


def test_static_credentials_give_what_they_were_made_of():
    assert KEYS.secret_access_key == "hunter2"
    assert KEYS.session_token == "hunter2-token"
    assert S3StaticCredentials("AKIAHUNTER2", "hunter2", "hunter2-token", SOON) == KEYS
    assert S3StaticCredentials("AKIAHUNTER2", "other", "hunter2-token", SOON) != KEYS


def test_containers_get_credentials_of_their_kind():
    gcs, azure = credentials.gcs_credentials(), credentials.azure_credentials()
    wrapped = containers_credentials(
        {
            "s3://a/": S3Credentials.Anonymous(),
            "gs://b/": gcs,
            "az://c/": azure,
            "https://d/": None,
        }
    )
    assert wrapped == {
        "s3://a/": Credentials.S3(S3Credentials.Anonymous()),
        "gs://b/": Credentials.Gcs(gcs),
        "az://c/": Credentials.Azure(azure),
        "https://d/": None,
    }
    with pytest.raises(ValueError, match="str"):
        containers_credentials({"s3://a/": "hunter2"})


def test_gcs_and_azure_credentials_are_of_the_kind_the_arguments_name():
    gcs, azure = credentials.gcs_credentials, credentials.azure_credentials
    assert isinstance(gcs(anonymous=True), GcsCredentials.Anonymous)
    assert isinstance(gcs(from_env=True), GcsCredentials.FromEnv)
    assert gcs(bearer_token="t") == GcsCredentials.Static(GcsStaticCredentials.BearerToken("t"))
    assert isinstance(gcs(get_credentials=lambda: KEYS), GcsCredentials.Refreshable)
    assert azure(sas_token="t") == AzureCredentials.Static(AzureStaticCredentials.SasToken("t"))
    for refused in (
        lambda: gcs(bearer_token="t", from_env=True),
        lambda: gcs(from_env=False),
        lambda: azure(access_key="a", sas_token="b"),
        lambda: azure(access_key="a", from_env=True),
        lambda: azure(from_env=False),
    ):
        with pytest.raises(ValueError, match="credentials"):
            refused()


def test_a_specification_becomes_a_reference():
    moment = datetime(2024, 5, 1, 12, tzinfo=UTC)
    spec = VirtualChunkSpec([0, 1], "s3://a/b", 3, 4, last_updated_at_checksum=moment)
    assert spec.reference() == Virtual("s3://a/b", 3, 4, LastModified(int(moment.timestamp())))
    assert VirtualChunkSpec([0], "s3://a/b", 3, 4, "tag", moment).reference().checksum == ETag(
        "tag"
    )
    assert VirtualChunkSpec([0], "s3://a/b", 3, 4).reference().checksum is None


def test_a_time_without_zone_is_taken_as_utc_and_absurd_ones_are_refused():
    assert checksum_of(datetime(2024, 1, 1)) == checksum_of(  # noqa: DTZ001 - the case at hand
        datetime(2024, 1, 1, tzinfo=UTC)
    )
    with pytest.raises(InvalidInputError):
        checksum_of(datetime(2200, 1, 1, tzinfo=UTC))
