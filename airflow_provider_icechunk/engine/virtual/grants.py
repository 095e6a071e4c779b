"""Which external locations may be read, how, and with which credentials.

A container declares a location; a grant, which the caller passes when opening, allows reading it.
A stored configuration is trusted only as far as it cannot harm the caller:

* nothing below a URL prefix is read without an entry in `authorize_virtual_chunk_access`;
* the entry covers exactly that scheme, host, port and path prefix, compared after decoding;
* an endpoint from the stored configuration gets no signed requests, and none at all if it is a
  private address, unless it is the endpoint of AWS (or, for Tigris, of Tigris) or the caller names
  it: in the `config` passed to open, or among the trusted endpoints. The addresses that a name
  resolves to are checked as well, when the connection is made.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.format.config.stores import (
    ObjectStoreConfig,
    S3Options,
    VirtualChunkContainer,
)
from airflow_provider_icechunk.engine.storage.cloud_credentials import (
    google_credentials,
    microsoft_credentials,
)
from airflow_provider_icechunk.engine.storage.credentials import (
    AnyAzureCredential,
    AnyGcsCredential,
    AnyS3Credential,
    AuthorizeMapping,
    Credentials,
    NoCredential,
    storage_credentials,
)
from airflow_provider_icechunk.engine.storage.credentials import S3Credentials as PublicS3
from airflow_provider_icechunk.engine.storage.location import shown
from airflow_provider_icechunk.engine.storage.secrets import AnonymousCredentials, S3Credentials
from airflow_provider_icechunk.engine.storage.secrets import AzureCredentials as AzureSecrets
from airflow_provider_icechunk.engine.storage.secrets import GcsCredentials as GcsSecrets
from airflow_provider_icechunk.exceptions import (
    InvalidInputError,
    Kind,
    UnsupportedError,
    VirtualAccessDeniedError,
)

from .locations import BY_NAME, Location, is_private_host, parse_location

_AWS = re.compile(
    r"s3([.-](fips|dualstack|external-1|[a-z]{2}(-[a-z]+){1,2}-[0-9]))*\.amazonaws\.com(\.cn)?"
)
_TIGRIS = ("t3.storage.dev", "fly.storage.tigris.dev")
_TIGRIS_DEFAULT = "https://t3.storage.dev"
_GOOGLE = S3Options(
    region="auto", endpoint_url="https://storage.googleapis.com", force_path_style=True
)
"""Google Cloud Storage with the S3 protocol, for public buckets and HMAC keys."""


@dataclass(frozen=True, slots=True)
class S3Access:
    """Access with the S3 protocol."""

    options: S3Options
    credentials: S3Credentials
    guarded: bool = False
    """Whether only the repository names the endpoint: then private addresses are refused."""


@dataclass(frozen=True, slots=True)
class CloudAccess:
    """Access to Google Cloud Storage or Azure Blob Storage, by their own protocols."""

    scheme: str
    """`gs` or `az`."""
    credentials: GcsSecrets | AzureSecrets
    account: str | None = None
    endpoint_url: str | None = None
    """An address that the caller named; by default the vendor's."""
    allow_http: bool = False


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """Access to a web server, without credentials."""

    guarded: bool = False
    """Whether its name must resolve to public addresses."""


@dataclass(frozen=True, slots=True)
class FileAccess:
    """Access to files of this machine."""


Access = S3Access | CloudAccess | HttpAccess | FileAccess


@dataclass(frozen=True, slots=True)
class Container:
    """A declared location of virtual chunks."""

    url_prefix: str
    """As declared, with a trailing `/`."""
    prefix: Location
    store: object
    name: str | None
    trusted: bool
    """Whether the caller declared it, rather than the stored configuration."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission to read below a prefix, and how."""

    url_prefix: str
    prefix: Location
    access: Access


@dataclass(frozen=True, slots=True)
class Grants:
    """All declared containers and the caller's grants."""

    containers: tuple[Container, ...] = ()
    """Longest path first."""
    authorized: Mapping[Location, object] = field(default_factory=dict)
    """Granted prefix to its credentials."""
    trusted_endpoints: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        config: RepositoryConfig,
        authorize: AuthorizeMapping | None,
        *,
        given: RepositoryConfig | None = None,
        trusted_endpoints: Collection[str] = (),
    ) -> Grants:
        """The grants of a caller.

        `config` is the effective configuration, `given` the one the caller passed: containers
        in `given` replace the stored ones, so their endpoints are trusted.
        """
        trusted = given is not None and given.virtual_chunk_containers is not None
        containers = _usable((config.virtual_chunk_containers or {}).values(), trusted=trusted)
        return cls(
            tuple(sorted(containers, key=lambda one: -len(one.prefix.path))),
            {_granted_prefix(url): credential for url, credential in (authorize or {}).items()},
            frozenset(_origin(url) for url in trusted_endpoints),
        )

    def resolve(self, url: str) -> Location:
        """The location of `url`, resolved through its container if it names one."""
        location = parse_location(url)
        if location.scheme != BY_NAME:
            return location
        for container in self.containers:
            if container.name == location.host:
                return replace(container.prefix, path=container.prefix.path + location.key)
        raise VirtualAccessDeniedError(
            f"the virtual chunk location {shown(url)} names an undeclared container; "
            "declared are: " + (", ".join(sorted(self._names())) or "none")
        )

    def container_of(self, location: Location) -> Container:
        """The declared container with the longest matching prefix."""
        for container in self.containers:
            if container.prefix.covers(location):
                return container
        raise VirtualAccessDeniedError(
            f"no virtual chunk container is declared for {shown(str(location))}. To declare one, "
            "edit the repository configuration with `set_virtual_chunk_container`; declared are: "
            + (", ".join(sorted(c.url_prefix for c in self.containers)) or "none")
        )

    def grant_for(self, location: Location) -> Grant:
        """The grant for `location`, or an error that says what is missing."""
        container = self.container_of(location)
        if container.prefix not in self.authorized:
            raise VirtualAccessDeniedError(
                f"reading {shown(str(location))} is not authorized. To allow it, open the "
                "repository with authorize_virtual_chunk_access="
                f"{{{container.url_prefix!r}: credentials or None}}"
            )
        access = self._access(container, self.authorized[container.prefix])
        return Grant(container.url_prefix, container.prefix, access)

    def _names(self) -> Iterable[str]:
        return (container.name for container in self.containers if container.name is not None)

    def _access(self, container: Container, credential: object) -> Access:
        match container.store:
            case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
                return self._s3(container, options, credential)
            case ObjectStoreConfig.Tigris(options):
                endpoint = options.endpoint_url or _TIGRIS_DEFAULT
                return self._s3(container, replace(options, endpoint_url=endpoint), credential)
            case ObjectStoreConfig.Gcs(options):
                return self._google(container, options or {}, credential)
            case ObjectStoreConfig.Azure(options):
                return self._azure(container, options or {}, credential)
            case ObjectStoreConfig.Http():
                _no_credentials(container, credential)
                return HttpAccess(self._is_guarded(container))
            case ObjectStoreConfig.LocalFileSystem():
                _no_credentials(container, credential)
                return FileAccess()
        raise UnsupportedError(
            f"virtual chunks below {container.url_prefix!r} are not supported; use s3://, "
            "tigris://, gs://, az://, https://, http:// or file://",
            kind=Kind.FORMAT_UNSUPPORTED,
        )

    def _s3(self, container: Container, options: S3Options, credential: object) -> S3Access:
        credentials = _s3_credentials(container, options, credential)
        guarded = (
            options.endpoint_url is not None
            and not container.trusted
            and self._check_endpoint(container, options.endpoint_url, credentials)
        )
        return S3Access(options, credentials, guarded)

    def _google(
        self, container: Container, options: Mapping[str, str], credential: object
    ) -> S3Access | CloudAccess:
        if isinstance(credential, Credentials.S3 | Credentials.Gcs):
            credential = credential.credentials
        endpoint = self._named_endpoint(container, options, ("base_url", "google_base_url"))
        if endpoint is None and (credential is None or isinstance(credential, AnyS3Credential)):
            return S3Access(_GOOGLE, _google_keys(credential))
        if isinstance(credential, AnyGcsCredential):
            chosen = google_credentials(credential)
        elif credential is None:
            chosen = AnonymousCredentials()
        else:
            expected = "GCS credentials, an HMAC key as S3 credentials, or None"
            raise _mismatch(container, credential, expected)
        if endpoint is None and isinstance(chosen, AnonymousCredentials):
            return S3Access(_GOOGLE, chosen)
        return CloudAccess("gs", chosen, endpoint_url=endpoint, allow_http=_is_plain(endpoint))

    def _azure(
        self, container: Container, options: Mapping[str, str], credential: object
    ) -> CloudAccess:
        if isinstance(credential, Credentials.Azure):
            credential = credential.credentials
        if credential is not None and not isinstance(credential, AnyAzureCredential):
            raise _mismatch(container, credential, "Azure credentials or None")
        account = options.get("account") or options.get("account_name")
        if not account:
            raise VirtualAccessDeniedError(
                f"the container of {container.url_prefix!r} does not name its storage account: "
                "declare it with azure_store(account=...)"
            )
        chosen = AnonymousCredentials() if credential is None else microsoft_credentials(credential)
        endpoint = self._named_endpoint(
            container, options, ("endpoint", "azure_endpoint", "azure_storage_endpoint")
        )
        return CloudAccess("az", chosen, account, endpoint, _is_plain(endpoint))

    def _named_endpoint(
        self, container: Container, options: Mapping[str, str], names: tuple[str, ...]
    ) -> str | None:
        """An endpoint in a container's options, if the caller named it too.

        One that only the repository names is ignored: requests go to the vendor's address.
        """
        endpoint = next((options[name] for name in names if options.get(name)), None)
        if endpoint is None:
            return None
        named = container.trusted or _origin(endpoint) in self.trusted_endpoints
        return endpoint if named else None

    def _is_guarded(self, container: Container) -> bool:
        """Whether a web server must have public addresses.

        Not if the caller declared it, trusts it, or authorized an explicitly private name.
        """
        place = container.prefix
        origin = f"{place.scheme}://{place.netloc}"
        known = container.trusted or origin in self.trusted_endpoints
        return not known and not is_private_host(place.host)

    def _check_endpoint(
        self, container: Container, endpoint: str, credentials: S3Credentials
    ) -> bool:
        """Whether requests to a stored endpoint must be guarded; raises if none are allowed.

        Names of AWS may resolve to private addresses, in networks with a private endpoint for S3.
        """
        origin = _origin(endpoint)
        place = parse_location(origin)
        if origin in self.trusted_endpoints:
            return False
        if place.scheme == "https" and place.port is None:
            tigris = isinstance(container.store, ObjectStoreConfig.Tigris)
            if _AWS.fullmatch(place.host) or (tigris and place.host in _TIGRIS):
                return False
        private = is_private_host(place.host)
        if isinstance(credentials, AnonymousCredentials) and not private:
            return True
        trusted = ", ".join(sorted(self.trusted_endpoints)) or "none"
        raise VirtualAccessDeniedError(
            f"the stored configuration sends requests for {container.url_prefix!r} to the endpoint "
            f"{origin}, which only the repository names, not the caller (trusted: {trusted}). "
            f"{'A private address' if private else 'Signed requests'} could be abused this way. If "
            "the endpoint is correct, open the repository with a config that has this container, "
            f"or with trusted_endpoints=[{origin!r}]"
        )


def _usable(declared: Iterable[VirtualChunkContainer], *, trusted: bool) -> Iterable[Container]:
    """The valid containers; early versions stored many invalid ones."""
    for container in declared:
        prefix = container.url_prefix
        complete = replace(container, url_prefix=prefix if prefix.endswith("/") else prefix + "/")
        if complete.problem() is not None:
            continue
        try:
            location = parse_location(complete.url_prefix)
        except VirtualAccessDeniedError:
            continue
        yield Container(complete.url_prefix, location, complete.store, complete.name, trusted)


def _granted_prefix(url: str) -> Location:
    try:
        return parse_location(url if url.endswith("/") else url + "/")
    except VirtualAccessDeniedError as error:
        raise InvalidInputError(
            f"authorize_virtual_chunk_access: {error.message}", kind=Kind.INVALID_ARGUMENT
        ) from None


def _origin(endpoint: str) -> str:
    """Scheme, host and port of an endpoint in canonical form."""
    place = parse_location(endpoint)
    if place.scheme not in ("http", "https"):
        raise VirtualAccessDeniedError(f"the endpoint {shown(endpoint)} is not a web address")
    return f"{place.scheme}://{place.netloc}"


def _s3_credentials(container: Container, options: S3Options, credential: object) -> S3Credentials:
    if isinstance(credential, Credentials.S3):
        credential = credential.credentials
    if credential is None and options.anonymous:
        credential = PublicS3.Anonymous()
    if credential is None or isinstance(credential, AnyS3Credential):
        return storage_credentials(credential)
    raise _mismatch(container, credential, "S3 credentials or None")


def _google_keys(credential: AnyS3Credential | None) -> S3Credentials:
    """None for public buckets, or an HMAC key, which is a key pair like those of S3."""
    return AnonymousCredentials() if credential is None else storage_credentials(credential)


def _is_plain(endpoint: str | None) -> bool:
    return endpoint is not None and endpoint.startswith("http://")


def _no_credentials(container: Container, credential: object) -> None:
    if not (credential is None or isinstance(credential, NoCredential)):
        raise _mismatch(container, credential, "None, as this kind of store takes no credentials")


def _mismatch(container: Container, credential: object, expected: str) -> InvalidInputError:
    return InvalidInputError(
        f"authorize_virtual_chunk_access[{container.url_prefix!r}] is a "
        f"{type(credential).__qualname__}; it must be {expected}"
    )
