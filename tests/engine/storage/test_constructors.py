import inspect
import pickle

import pytest

from airflow_provider_icechunk.engine.format.config import stores
from airflow_provider_icechunk.engine.storage import constructors, credentials
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage
from airflow_provider_icechunk.exceptions import InvalidInputError, UnsupportedError


def test_storages_are_made_of_official_arguments(tmp_path):
    made = [
        (constructors.in_memory_storage(), MemoryStorage),
        (constructors.local_filesystem_storage(str(tmp_path)), LocalStorage),
        (constructors.s3_storage(bucket="bucket", prefix="a/b"), S3Storage),
        (constructors.r2_storage(prefix="bucket/a", account_id="me"), S3Storage),
    ]
    for storage, kind in made:
        assert isinstance(storage, kind)
        assert isinstance(storage, Storage)
    assert "bucket" in made[3][0].location


def test_secrets_of_a_storage_are_not_printed():
    storage = constructors.s3_storage(
        bucket="bucket",
        prefix="a",
        access_key_id="AKIA",
        secret_access_key="hunter2",
        session_token="hunter2",
    )
    assert "hunter2" not in repr(storage) + storage.location


def test_contradicting_arguments_are_refused():
    with pytest.raises(InvalidInputError, match="s3_credentials"):
        constructors.s3_storage(bucket="b", prefix="a", anonymous=True, from_env=True)
    with pytest.raises(InvalidInputError, match="account_id"):
        constructors.r2_storage(bucket="b")


CLOUDS = [
    lambda: constructors.gcs_storage(bucket="bucket", prefix="p", bearer_token="hunter2"),
    lambda: constructors.gcs_storage(bucket="bucket", prefix="p", service_account_key="hunter2"),
    lambda: constructors.azure_storage(
        account="account", container="container", prefix="p", access_key="hunter2"
    ),
    lambda: constructors.azure_storage(
        account="account", container="container", prefix="p", sas_token="sig=hunter2"
    ),
    lambda: constructors.tigris_storage(
        bucket="bucket", prefix="p", access_key_id="id", secret_access_key="hunter2"
    ),
]


@pytest.mark.parametrize("make", CLOUDS)
def test_a_cloud_storage_shows_no_secret_and_is_not_pickled_with_one(make):
    storage = make()
    assert isinstance(storage, Storage)
    assert "hunter2" not in repr(storage) + storage.location + repr(storage.settings)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(storage)


def test_settings_of_the_official_library_are_taken_or_refused_by_name():
    gcs = constructors.gcs_storage(
        bucket="bucket", prefix="p", config={"google_base_url": "https://elsewhere"}
    )
    assert gcs.endpoint_url == "https://elsewhere"
    azure = constructors.azure_storage(
        account="account",
        container="c",
        prefix="p",
        config={"azure_storage_endpoint": "http://127.0.0.1:1/account", "allow_http": "true"},
    )
    assert azure.endpoint_url == "http://127.0.0.1:1/account"
    with pytest.raises(InvalidInputError, match="only endpoint, allow_http"):
        constructors.azure_storage(
            account="account", container="c", prefix="p", config={"account_key": "hunter2"}
        )


def test_what_is_not_supported_says_so():
    with pytest.raises(UnsupportedError, match="S3 gateway"):
        constructors.hf_storage(bucket="b", prefix="p", namespace="n")


ELSEWHERE = {"http_storage", "redirect_storage", "hf_storage", "storage_credentials"}
"""Names of official 2.x, which the interop tests compare, and one for the engine itself."""
NAMES = [
    (module, name)
    for module in (credentials, stores, constructors)
    for name, value in vars(module).items()
    if inspect.isfunction(value)
    and value.__module__ == module.__name__
    and not name.startswith("_")
    and name not in ELSEWHERE
]


def parameters(function):
    """Names and defaults; credential arguments that are passed through count as absent ones."""
    found = {
        item.name: item.default
        for item in inspect.signature(function).parameters.values()
        if item.kind is not inspect.Parameter.VAR_KEYWORD
    }
    if len(found) < len(inspect.signature(function).parameters):
        passed_on = inspect.signature(credentials.s3_credentials).parameters.values()
        found |= {item.name: item.default for item in passed_on}
    return found


ADDED = {"s3_storage": ("headers", "read_headers", "write_headers")}
"""Of official 2.x; the installed release is 1.1."""


@pytest.mark.parametrize(
    ("module", "name"), NAMES, ids=lambda value: getattr(value, "__name__", value)
)
def test_arguments_are_the_official_ones(module, name):
    icechunk = pytest.importorskip("icechunk")
    places = (icechunk, icechunk.storage, icechunk.credentials)
    official = next(getattr(place, name) for place in places if hasattr(place, name))
    added = dict.fromkeys(ADDED.get(name, ()))
    assert parameters(getattr(module, name)) == {**parameters(official), **added}
