"""A matrix of locations and grants: nothing is requested that was not granted."""

from itertools import product

import pytest

from airflow_provider_icechunk.engine.format.chunk_refs import Virtual
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig, S3Options
from airflow_provider_icechunk.engine.format.config.stores import (
    ObjectStoreConfig,
    VirtualChunkContainer,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from airflow_provider_icechunk.engine.storage import secrets
from airflow_provider_icechunk.engine.storage.credentials import (
    Credentials,
    azure_credentials,
    containers_credentials,
    gcs_anonymous_credentials,
    gcs_credentials,
    gcs_from_env_credentials,
    s3_anonymous_credentials,
    s3_from_env_credentials,
    s3_static_credentials,
    storage_credentials,
)
from airflow_provider_icechunk.engine.storage.secrets import AnonymousCredentials
from airflow_provider_icechunk.engine.virtual.reader import VirtualReader
from airflow_provider_icechunk.engine.virtual.transports import Part
from airflow_provider_icechunk.exceptions import (
    IcechunkError,
    InvalidInputError,
    VirtualAccessDeniedError,
)

KEYS = s3_static_credentials(access_key_id="AKIAMARKER", secret_access_key="hunter2")


class Recorder:
    """Answers everything and remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def fetch(self, grant, location, start, stop, checksum):
        self.asked.append((grant, location))
        return Part(b"x" * (stop - start), None)


def config_of(containers):
    # Directly, as a stored configuration may hold containers that the setter would refuse.
    return RepositoryConfig(
        virtual_chunk_containers={
            prefix: VirtualChunkContainer(prefix, store) for prefix, store in containers.items()
        }
    )


def reader_of(containers, authorize, **options):
    recorder = Recorder()
    reader = VirtualReader.from_config(
        config_of(containers), authorize, transport=recorder, **options
    )
    return reader, recorder


STORES = {
    "s3://bucket/foo/": s3_store(region="eu-central-1"),
    "s3://other/": s3_store(),
    "https://host/public/": http_store(),
    "http://127.0.0.1:8080/": http_store(),
    "http://[::1]/": http_store(),
    "file:///data/granted/": local_filesystem_store("/data/granted"),
}
# Where a location would be requested, by the grant that covers it; None: never.
LOCATIONS = {
    "s3://bucket/foo/a": "s3://bucket/foo/",
    "S3://bucket/foo/a": "s3://bucket/foo/",
    "s3://bucket/f%6fo/a": "s3://bucket/foo/",
    "s3://bucket/foo//a": "s3://bucket/foo/",
    "s3://bucket/foo": None,
    "s3://bucket/foo-prod/a": None,
    "s3://bucket/Foo/a": None,
    "s3://Bucket/foo/a": None,
    "s3://bucket/foo/../bar": None,
    "s3://bucket/foo/%2e%2e/bar": None,
    "s3://bucket-prod/foo/a": None,
    "s3://other/": "s3://other/",
    "s3://other/deep/a": "s3://other/",
    "s3://user:pw@other/a": None,
    "tigris://bucket/foo/a": None,
    "gs://bucket/foo/a": None,
    "https://host/public/a": "https://host/public/",
    "https://HOST:443/public/a": "https://host/public/",
    "https://host/public%2Fa": "https://host/public/",
    "https://host/private": None,
    "https://host/public": None,
    "https://host/public/../private": None,
    "https://host/public/%2e%2e/private": None,
    "https://host/public/%252e%252e/private": None,
    "https://host/public/..%2fprivate": None,
    "https://host/PUBLIC/a": None,
    "https://host.evil/public/a": None,
    "https://host:8443/public/a": None,
    "https://host@evil/public/a": None,
    "https://evil#@host/public/a": None,
    "https://evil?@host/public/a": None,
    "https://xn--hst-sna/public/a": None,
    "https://hоst/public/a": None,  # noqa: RUF001 - the look-alike is the point
    "http://host/public/a": None,
    "http://127.0.0.1:8080/a": "http://127.0.0.1:8080/",
    "http://127.0.0.1/a": None,
    "http://127.0.0.1:80/a": None,
    "http://localhost:8080/a": None,
    "http://127.1:8080/a": None,
    "http://2130706433:8080/a": None,
    "http://0x7f000001:8080/a": None,
    "http://[::ffff:127.0.0.1]:8080/a": None,
    "http://[0:0:0:0:0:0:0:1]/a": "http://[::1]/",
    "http://[::1]:81/a": None,
    "http://169.254.169.254/latest/meta-data/": None,
    "http://10.0.0.1/a": None,
    "file:///data/granted/a": "file:///data/granted/",
    "file:///data/granted/x/../a": "file:///data/granted/",
    "file:///data/granted/../secret": None,
    "file:///data/granted/%2e%2e/secret": None,
    "file:///data/granted-too/a": None,
    "file:///etc/passwd": None,
    "file://evil/data/granted/a": None,
    "/data/granted/a": None,
    "vcc://nobody/a": None,
}
AUTHORISATIONS = {
    "all": dict.fromkeys(STORES),
    "without slashes": {prefix.rstrip("/"): None for prefix in STORES},
    "only s3": {"s3://bucket/foo/": KEYS, "s3://other/": None},
    "only web": {"https://host/public/": None},
    "only loopback": {"http://127.0.0.1:8080/": None, "http://[::1]/": None},
    "only files": {"file:///data/granted/": None},
    "too wide": {"s3://bucket/": KEYS, "https://host/": None, "file:///data/": None},
    "none": {},
}


def granted(authorisation):
    return {prefix if prefix.endswith("/") else prefix + "/" for prefix in authorisation}


@pytest.mark.parametrize(
    ("location", "authorisation"), list(product(LOCATIONS, AUTHORISATIONS)), ids=str
)
def test_only_what_is_granted_is_requested(location, authorisation):
    authorize = AUTHORISATIONS[authorisation]
    reader, recorder = reader_of(STORES, authorize)
    covering = LOCATIONS[location]
    reference = Virtual(location, 5, 3)
    if covering is not None and covering in granted(authorize):
        assert reader.read(reference) == b"xxx"
        ((grant, asked),) = recorder.asked
        assert grant.url_prefix == covering
        assert grant.prefix.covers(asked)
    else:
        with pytest.raises(VirtualAccessDeniedError):
            reader.read(reference)
        assert recorder.asked == []


def test_the_matrix_is_as_large_as_promised():
    assert len(LOCATIONS) * len(AUTHORISATIONS) >= 200


def test_an_ungranted_container_inside_a_granted_one_stays_closed():
    containers = {"s3://b/": s3_store(), "s3://b/closed/": s3_store()}
    reader, recorder = reader_of(containers, {"s3://b/": None})
    assert reader.read(Virtual("s3://b/open/a", 0, 1)) == b"x"
    with pytest.raises(VirtualAccessDeniedError, match="s3://b/closed/"):
        reader.read(Virtual("s3://b/closed/a", 0, 1))
    assert len(recorder.asked) == 1


def test_a_grant_without_a_declared_container_reads_nothing():
    reader, recorder = reader_of({}, {"s3://bucket/": KEYS})
    with pytest.raises(VirtualAccessDeniedError, match="no virtual chunk container is declared"):
        reader.read(Virtual("s3://bucket/a", 0, 1))
    assert recorder.asked == []


def test_an_empty_range_needs_a_grant_as_well():
    reader, _ = reader_of(STORES, {})
    with pytest.raises(VirtualAccessDeniedError):
        reader.read(Virtual("s3://other/a", 0, 0))


def test_validation_asks_for_a_container_and_not_for_a_grant():
    reader, recorder = reader_of(STORES, None)
    reader.validate_location("s3://bucket/foo/a")
    assert reader.is_declared("https://host/public/a")
    for refused in ("s3://bucket/bar", "https://host/public/../a", "nonsense"):
        assert not reader.is_declared(refused)
        with pytest.raises(VirtualAccessDeniedError):
            reader.validate_location(refused)
    assert recorder.asked == []


def test_containers_can_be_named_instead_of_hosts():
    container = VirtualChunkContainer("s3://bucket/foo/", s3_store(), name="archive")
    config = RepositoryConfig(virtual_chunk_containers={"archive": container})
    recorder = Recorder()
    reader = VirtualReader.from_config(config, {"s3://bucket/foo/": None}, transport=recorder)
    reader.read(Virtual("vcc://archive/deep/a", 0, 1))
    assert str(recorder.asked[0][1]) == "s3://bucket/foo/deep/a"
    with pytest.raises(VirtualAccessDeniedError, match="archive"):
        reader.read(Virtual("vcc://other/a", 0, 1))
    with pytest.raises(VirtualAccessDeniedError):
        reader.read(Virtual("vcc://archive/../a", 0, 1))


def test_containers_of_early_versions_are_ignored():
    stale = {
        "file": local_filesystem_store(""),
        "s3://": s3_store(),
        "az": ObjectStoreConfig.Azure({}),
        "file:///": local_filesystem_store("/"),
    }
    reader, recorder = reader_of(stale, {"s3://x/": None, "file:///": None})
    for location in ("file:///etc/passwd", "s3://x/a"):
        with pytest.raises(VirtualAccessDeniedError):
            reader.read(Virtual(location, 0, 1))
    assert recorder.asked == []


@pytest.mark.parametrize(
    ("credential", "kind"),
    [
        (None, secrets.AnonymousCredentials),
        (azure_credentials(), secrets.EnvironmentCredentials),
        (azure_credentials(access_key="key"), secrets.AccountKey),
        (Credentials.Azure(azure_credentials(sas_token="sig=x")), secrets.SharedAccessSignature),
    ],
)
def test_azure_is_read_at_the_account_that_the_container_names(credential, kind):
    hostile = {"account": "archive", "endpoint": "https://evil.example"}
    store = ObjectStoreConfig.Azure(hostile)
    reader, recorder = reader_of({"az://bucket/": store}, {"az://bucket/": credential})
    assert reader.read(Virtual("az://bucket/a", 0, 1)) == b"x"
    ((grant, _),) = recorder.asked
    access = grant.access
    assert (access.scheme, access.account, access.endpoint_url) == ("az", "archive", None)
    assert type(access.credentials) is kind


def test_an_azure_container_has_to_name_its_account():
    store = ObjectStoreConfig.Azure({})
    reader, recorder = reader_of({"az://bucket/": store}, {"az://bucket/": None})
    with pytest.raises(VirtualAccessDeniedError, match="azure_store"):
        reader.read(Virtual("az://bucket/a", 0, 1))
    assert recorder.asked == []


@pytest.mark.parametrize("scheme", ["gs", "gcs"])
@pytest.mark.parametrize(
    ("credential", "access"),
    [
        (None, AnonymousCredentials()),
        (gcs_anonymous_credentials(), AnonymousCredentials()),
        (Credentials.Gcs(gcs_anonymous_credentials()), AnonymousCredentials()),
        (Credentials.S3(KEYS), storage_credentials(KEYS)),
    ],
)
def test_google_cloud_storage_is_read_at_its_own_endpoint(scheme, credential, access):
    hostile = {"endpoint_url": "https://evil.example", "google_base_url": "https://evil.example"}
    prefix = f"{scheme}://bucket/"
    reader, recorder = reader_of({prefix: gcs_store(hostile)}, {prefix: credential})
    assert reader.read(Virtual(prefix + "a", 0, 1)) == b"x"
    ((grant, location),) = recorder.asked
    assert (location.host, location.key) == ("bucket", "a")
    assert grant.access.options.endpoint_url == "https://storage.googleapis.com"
    assert grant.access.options.force_path_style
    assert type(grant.access.credentials) is type(access)


@pytest.mark.parametrize(
    ("credential", "kind"),
    [
        (gcs_from_env_credentials(), secrets.EnvironmentCredentials),
        (Credentials.Gcs(gcs_credentials(bearer_token="token")), secrets.Token),
        (gcs_credentials(service_account_file="/key.json"), secrets.ServiceAccountFile),
    ],
)
def test_tokens_and_service_accounts_of_google_go_to_google_alone(credential, kind):
    hostile = gcs_store({"google_base_url": "https://evil.example"})
    reader, recorder = reader_of({"gs://bucket/": hostile}, {"gs://bucket/": credential})
    assert reader.read(Virtual("gs://bucket/a", 0, 1)) == b"x"
    ((grant, _),) = recorder.asked
    assert (grant.access.scheme, grant.access.endpoint_url) == ("gs", None)
    assert type(grant.access.credentials) is kind


def test_an_endpoint_that_the_caller_names_too_is_used():
    store = gcs_store({"google_base_url": "https://storage.site"})
    reader, recorder = reader_of(
        {"gs://bucket/": store},
        {"gs://bucket/": gcs_credentials(bearer_token="token")},
        trusted_endpoints=["https://storage.site"],
    )
    reader.read(Virtual("gs://bucket/a", 0, 1))
    assert recorder.asked[0][0].access.endpoint_url == "https://storage.site"


@pytest.mark.parametrize(
    ("prefix", "credential"),
    [
        ("s3://other/", Credentials.Gcs(gcs_credentials())),
        ("s3://other/", "AKIAMARKER"),
        ("gs://bucket/", azure_credentials(access_key="key")),
        ("az://bucket/", Credentials.S3(KEYS)),
        ("https://host/public/", Credentials.S3(KEYS)),
        ("file:///data/granted/", KEYS),
    ],
)
def test_credentials_of_the_wrong_kind_are_refused(prefix, credential):
    clouds = {
        "gs://bucket/": gcs_store(),
        "az://bucket/": ObjectStoreConfig.Azure({"account": "archive"}),
    }
    reader, recorder = reader_of(STORES | clouds, {prefix: credential})
    with pytest.raises(InvalidInputError, match="authorize_virtual_chunk_access"):
        reader.read(Virtual(prefix + "a", 0, 1))
    assert recorder.asked == []


def test_a_prefix_that_could_be_misunderstood_cannot_be_authorised():
    with pytest.raises(InvalidInputError, match="authorize_virtual_chunk_access"):
        reader_of(STORES, {"https://user:hunter2@host/": None})


# --- endpoints -----------------------------------------------------------------------------------

HOSTILE = "https://evil.example.com"
SIGNED = [KEYS, Credentials.S3(KEYS), s3_from_env_credentials(), None]
LEAKY_ENDPOINTS = [
    HOSTILE,
    "http://evil.example.com",
    "https://s3.amazonaws.com.evil.example",
    "https://evil.execute-api.us-east-1.amazonaws.com",
    "https://bucket.s3.amazonaws.com.evil.org",
    "https://s3.us-east-1.amazonaws.com:8443",
    "http://s3.us-east-1.amazonaws.com",
    "https://evil-s3.us-east-1.elb.amazonaws.com",
    "https://t3.storage.dev",
    "http://127.0.0.1:9000",
    "http://169.254.169.254",
]


@pytest.mark.parametrize("endpoint", LEAKY_ENDPOINTS)
@pytest.mark.parametrize("credential", SIGNED, ids=lambda c: type(c).__qualname__)
def test_a_stored_endpoint_gets_no_signed_request(endpoint, credential):
    stored = {"s3://bucket/": s3_store(endpoint_url=endpoint, allow_http=True)}
    reader, recorder = reader_of(
        stored, {"s3://bucket/": credential}, trusted_endpoints=["https://minio.example.org"]
    )
    with pytest.raises(VirtualAccessDeniedError) as caught:
        reader.read(Virtual("s3://bucket/a", 0, 1))
    assert recorder.asked == []
    assert endpoint in str(caught.value)
    assert "https://minio.example.org" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["http://user:hunter2@host", "ftp://host", "host:9000", "::"])
def test_an_endpoint_that_could_be_misunderstood_is_refused(endpoint):
    stored = {"s3://bucket/": s3_store(endpoint_url=endpoint, allow_http=True)}
    reader, recorder = reader_of(stored, {"s3://bucket/": KEYS})
    with pytest.raises(IcechunkError) as caught:
        reader.read(Virtual("s3://bucket/a", 0, 1))
    assert "hunter2" not in str(caught.value)
    assert recorder.asked == []


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://s3.amazonaws.com",
        "https://s3.eu-central-1.amazonaws.com",
        "https://s3.dualstack.us-gov-west-1.amazonaws.com/",
        "https://s3-fips.us-east-1.amazonaws.com",
        "https://s3.cn-north-1.amazonaws.com.cn",
    ],
)
def test_the_endpoints_of_aws_are_honoured(endpoint):
    stored = {"s3://bucket/": s3_store(endpoint_url=endpoint)}
    reader, recorder = reader_of(stored, {"s3://bucket/": KEYS})
    reader.read(Virtual("s3://bucket/a", 0, 1))
    assert recorder.asked[0][0].access.options.endpoint_url == endpoint


def test_tigris_is_reached_at_its_own_endpoint():
    stored = {"tigris://bucket/": ObjectStoreConfig.Tigris(S3Options())}
    reader, recorder = reader_of(stored, {"tigris://bucket/": KEYS})
    reader.read(Virtual("tigris://bucket/a", 0, 1))
    assert recorder.asked[0][0].access.options.endpoint_url == "https://t3.storage.dev"


def test_unsigned_requests_go_to_stored_endpoints_that_are_public():
    stored = {"s3://bucket/": s3_store(endpoint_url=HOSTILE)}
    reader, recorder = reader_of(stored, {"s3://bucket/": s3_anonymous_credentials()})
    assert reader.read(Virtual("s3://bucket/a", 0, 1)) == b"x"
    private = {"s3://bucket/": s3_store(endpoint_url="http://169.254.169.254", allow_http=True)}
    reader, recorder = reader_of(private, {"s3://bucket/": s3_anonymous_credentials()})
    with pytest.raises(VirtualAccessDeniedError, match="private address"):
        reader.read(Virtual("s3://bucket/a", 0, 1))
    assert recorder.asked == []


def test_an_endpoint_the_caller_names_is_honoured(monkeypatch):
    minio = "http://minio:9000"
    stored = {"s3://bucket/": s3_store(endpoint_url=minio + "/", allow_http=True)}
    authorize = containers_credentials({"s3://bucket/": KEYS})
    reference = Virtual("s3://bucket/a", 0, 1)

    reader, _ = reader_of(stored, authorize, given=config_of(stored))
    assert reader.read(reference) == b"x"
    reader, _ = reader_of(stored, authorize, trusted_endpoints=["http://MINIO:9000"])
    assert reader.read(reference) == b"x"
    reader, _ = reader_of(stored, authorize, given=RepositoryConfig())
    with pytest.raises(VirtualAccessDeniedError):
        reader.read(reference)
    monkeypatch.setenv("ICECHUNK_TRUSTED_ENDPOINTS", f"https://a.example, {minio}")
    reader, _ = reader_of(stored, authorize)
    assert reader.read(reference) == b"x"


# --- sizes ---------------------------------------------------------------------------------------


class Counting(Recorder):
    def fetch(self, grant, location, start, stop, checksum):
        self.asked.append((start, stop))
        return Part(bytes(i % 251 for i in range(start, stop)), None)


def test_a_large_range_is_fetched_in_parts_that_fit_together():
    config = config_of(STORES)
    recorder = Counting()
    reader = VirtualReader.from_config(config, {"s3://other/": None}, transport=recorder)
    reader._part_size = 10
    data = reader.read(Virtual("s3://other/a", 7, 95), 3, 90)
    assert data == bytes(i % 251 for i in range(10, 97))
    assert len(recorder.asked) == 9
    recorder.asked.clear()
    reader._part_size = 1
    reader.read(Virtual("s3://other/a", 0, 1000))
    assert len(recorder.asked) == 18


def test_ranges_are_cut_at_the_end_of_the_chunk():
    recorder = Counting()
    reader = VirtualReader.from_config(config_of(STORES), {"s3://other/": None}, transport=recorder)
    reference = Virtual("s3://other/a", 100, 10)
    assert reader.read(reference, 8, 50) == bytes((108, 109))
    assert reader.read(reference, 10, 20) == b""
    assert reader.read_many([(reference, 0, 1), (reference, 9, None)]) == [b"d", b"m"]
    with pytest.raises(InvalidInputError):
        reader.read(reference, -1, 2)


@pytest.mark.parametrize(("offset", "length"), [(0, 1 << 63), ((1 << 64) - 1, 5)])
def test_absurd_references_are_errors_and_not_requests(offset, length):
    reader, recorder = reader_of(STORES, {"s3://other/": None})
    with pytest.raises(IcechunkError, match="beyond"):
        reader.read(Virtual("s3://other/a", offset, length))
    assert recorder.asked == []
