"""A host that only a repository names is judged by the addresses it resolves to."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from urllib3.exceptions import SSLError

from airflow_provider_icechunk.engine.format.chunk_refs import Virtual
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.format.config.stores import (
    VirtualChunkContainer,
    http_store,
    s3_store,
)
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.credentials import s3_anonymous_credentials
from airflow_provider_icechunk.engine.virtual import guarded
from airflow_provider_icechunk.engine.virtual.addresses import is_private_address
from airflow_provider_icechunk.engine.virtual.reader import NetworkTransport, VirtualReader
from airflow_provider_icechunk.engine.virtual.transports import http_pool
from airflow_provider_icechunk.exceptions import VirtualAccessDeniedError, VirtualChunkError

NAME = "data.example.org"
DATA = bytes(range(200))

PRIVATE = [
    "127.0.0.1",
    "127.8.9.1",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "224.0.0.1",
    "239.255.255.250",
    "255.255.255.255",
    "240.0.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "::",
    "::1",
    "fe80::1",
    "fe80::1%1",
    "fc00::1",
    "fd12:3456::1",
    "ff02::1",
    "ff0e::1",
    "2001:db8::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::808:808",
    "2002:7f00:1::1",
    "2002:a00:1::",
    "2001:0:808:808:0:0:80ff:fffe",
    "2600:1f18::5efe:7f00:1",
    "2600:1f18::200:5efe:a00:1",
    "168.63.129.16",
    "::ffff:168.63.129.16",
    "192.0.0.8",
    "fec0::1",
    "3fff::1",
]
PUBLIC = ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"]


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_of_this_network_are_private_whatever_they_are_wrapped_in(address: str) -> None:
    assert is_private_address(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_of_the_internet_are_not_private(address: str) -> None:
    assert not is_private_address(address)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.paths.append(self.path)  # type: ignore[attr-defined]
        if self.path.endswith("/away"):
            self.send_response(302)
            self.send_header("Location", self.path.removesuffix("/away"))
            self.end_headers()
            return
        self.send_response(206)
        self.send_header("Content-Range", f"bytes 0-9/{len(DATA)}")
        self.send_header("Content-Length", "10")
        self.send_header("ETag", '"e"')
        self.end_headers()
        self.wfile.write(DATA[:10])

    def log_message(self, *_: object) -> None:
        pass


class Web:
    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.server.paths = []  # type: ignore[attr-defined]
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def paths(self) -> list[str]:
        return self.server.paths  # type: ignore[attr-defined, no-any-return]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def web() -> Iterator[Web]:
    made = Web()
    yield made
    made.close()


class Resolver:
    """Answers for names as told, one answer after the other, the last one for ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, list[list[str]]] = {}
        self.asked: list[str] = []
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: str, port: int, *args: int, **kwargs: int) -> list[tuple]:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in self.answers:
            return self._real(host, port, *args, **kwargs)
        self.asked.append(name)
        answers = self.answers[name]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            (
                socket.AF_INET6 if ":" in one else socket.AF_INET,
                socket.SOCK_STREAM,
                socket.IPPROTO_TCP,
                "",
                (one, port, 0, 0) if ":" in one else (one, port),
            )
            for one in found
        ]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    return Resolver(monkeypatch)


def reader_of(kind: str, origin: str, trusted: tuple[str, ...] = ()) -> tuple[VirtualReader, str]:
    """A reader of a repository that names `origin`, and what it refers to."""
    store = (
        http_store()
        if kind == "http"
        else s3_store(endpoint_url=origin, allow_http=True, force_path_style=True, region="x")
    )
    prefix = f"{origin}/data/" if kind == "http" else "s3://bucket/data/"
    config = RepositoryConfig()
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store))
    reader = VirtualReader.from_config(
        config,
        {prefix: None if kind == "http" else s3_anonymous_credentials()},
        trusted_endpoints=trusted,
        transport=NetworkTransport(Backoff(tries=2, first_pause=0.0)),
    )
    return reader, prefix + "a"


@pytest.mark.parametrize("kind", ["http", "s3"])
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        (NAME, ["127.0.0.1"]),
        (NAME, ["::ffff:127.0.0.1"]),
        (NAME, ["64:ff9b::7f00:1"]),
        (NAME, ["8.8.8.8", "127.0.0.1"]),
        (NAME, ["169.254.169.254"]),
        (NAME, ["100.64.0.1"]),
        (NAME, ["fe80::1"]),
        ("127.0.0.1.nip.io", ["127.0.0.1"]),
        ("0.0.0.0.example.com", ["0.0.0.0"]),
    ],
)
def test_a_public_name_at_a_private_address_is_not_connected_to(
    web: Web, resolver: Resolver, kind: str, name: str, answer: list[str]
) -> None:
    resolver.answers[name] = [answer]
    reader, url = reader_of(kind, f"http://{name}:{web.port}")
    with pytest.raises(VirtualAccessDeniedError, match="private address"):
        reader.read(Virtual(url, 0, 10))
    with pytest.raises(VirtualAccessDeniedError, match="private address"):
        reader.describe(url)
    assert web.paths == []
    assert resolver.asked == [name, name]


@pytest.mark.parametrize("host", ["[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::127.0.0.1]"])
def test_a_wrapped_loopback_is_a_private_endpoint_by_its_spelling(host: str) -> None:
    reader, url = reader_of("s3", f"http://{host}:9000")
    with pytest.raises(VirtualAccessDeniedError, match="private address"):
        reader.read(Virtual(url, 0, 10))


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_a_private_host_that_the_operator_trusts_is_read(
    web: Web, resolver: Resolver, kind: str
) -> None:
    resolver.answers[NAME] = [["127.0.0.1"]]
    origin = f"http://{NAME}:{web.port}"
    reader, url = reader_of(kind, origin, trusted=(origin,))
    assert reader.read(Virtual(url, 0, 10)) == DATA[:10]
    assert len(web.paths) == 1


def test_a_private_web_server_that_the_operator_authorises_by_its_address_is_read(web: Web) -> None:
    reader, url = reader_of("http", f"http://127.0.0.1:{web.port}")
    assert reader.read(Virtual(url, 0, 10)) == DATA[:10]


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_the_connection_goes_to_the_address_that_was_judged(
    web: Web, resolver: Resolver, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second answer of a rebinding resolver is never asked for within one connection."""
    resolver.answers[NAME] = [["8.8.8.8"], ["127.0.0.1"]]
    reached: list[str] = []

    class Unreachable(socket.socket):
        def connect(self, address: tuple, /) -> None:  # type: ignore[override]
            reached.append(address[0])
            raise ConnectionRefusedError

    monkeypatch.setattr(socket, "socket", Unreachable)
    reader, url = reader_of(kind, f"http://{NAME}:{web.port}")
    with pytest.raises((VirtualChunkError, VirtualAccessDeniedError)):
        reader.read(Virtual(url, 0, 10))
    assert reached == ["8.8.8.8"]
    assert web.paths == []


def test_each_hop_of_a_redirect_is_judged(
    web: Web, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server keeps no connection, so the second hop asks for the address of the name again."""
    resolver.answers[NAME] = [["127.0.0.1"]]
    private: list[bool] = [False, True]
    monkeypatch.setattr(guarded, "is_private_address", lambda _: private.pop(0))
    reader, url = reader_of("http", f"http://{NAME}:{web.port}")
    with pytest.raises(VirtualAccessDeniedError, match="private address"):
        reader.read(Virtual(f"{url}/away", 0, 10))
    assert web.paths == ["/data/a/away"]
    assert private == []


def test_a_redirect_within_the_grant_is_followed(
    web: Web, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver.answers[NAME] = [["127.0.0.1"]]
    monkeypatch.setattr(guarded, "is_private_address", lambda _: False)
    reader, url = reader_of("http", f"http://{NAME}:{web.port}")
    assert reader.read(Virtual(f"{url}/away", 0, 10)) == DATA[:10]
    assert web.paths == ["/data/a/away", "/data/a"]


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_a_proxy_of_the_environment_is_not_asked_for_hosts_that_a_repository_names(
    web: Web, resolver: Resolver, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{web.port}")
    resolver.answers[NAME] = [["127.0.0.1"]]
    reader, url = reader_of(kind, f"http://{NAME}:{web.port}")
    with pytest.raises(VirtualAccessDeniedError):
        reader.read(Virtual(url, 0, 10))
    assert web.paths == []


def certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's context with a certificate for `NAME`, and the file that vouches for it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "server.pem"
    public = made.public_bytes(serialization.Encoding.PEM)
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + public
    )
    authority = folder / "authority.pem"
    authority.write_bytes(public)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context, authority


def test_tls_still_asks_for_the_name_and_verifies_it(
    tmp_path: Path, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, authority = certificate(tmp_path)
    named: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: named.append(name)
    monkeypatch.setattr(guarded, "is_private_address", lambda _: False)
    resolver.answers = {NAME: [["127.0.0.1"]], "other.example.org": [["127.0.0.1"]]}
    web = Web(context)
    try:
        pool = http_pool(guarded=True)
        pool.connection_pool_kw["ca_certs"] = str(authority)
        assert pool.request("GET", f"https://{NAME}:{web.port}/data/a").status == 206
        assert named == [NAME]
        with pytest.raises(SSLError, match=r"other\.example\.org"):
            pool.request("GET", f"https://other.example.org:{web.port}/data/a")
    finally:
        web.close()
    assert web.paths == ["/data/a"]
