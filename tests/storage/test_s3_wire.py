"""HTTP as stores speak it, and as broken ones do."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest
from botocore.exceptions import EndpointConnectionError, HTTPClientError, SSLError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from airflow_provider_icechunk.storage.s3_wire import Address, Wire

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGE = bytes(range(256)) * 4096


@contextmanager
def speaking(
    *connections: list[bytes], wrap: Callable[[socket.socket], socket.socket] = lambda one: one
) -> Iterator[tuple[int, list[bytes]]]:
    """A server that gives each connection its answers, one for each request, and hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def serve() -> None:
        for answers in connections:
            try:
                with wrap(listener.accept()[0]) as caller:
                    for answer in answers:
                        heard.append(caller.recv(65536))
                        caller.sendall(answer)
            except OSError:
                continue

    thread = Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1], heard
    finally:
        thread.join()
        listener.close()


def wire(port: int, **options) -> Wire:
    url = f"{options.pop('scheme', 'http')}://127.0.0.1:{port}"
    return Wire(Address.of(url), connect_timeout=5, read_timeout=5, kept=4, **options)


def ask(made: Wire, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    return made.exchange(method, "/k", {"Host": "h"}, b"")


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (PLAIN, b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", b"until the end"),
        (CHUNKED + b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n", b"abcde"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LARGE) + LARGE, LARGE),
    ],
)
def test_answers_as_stores_give_them(answer, body):
    with speaking([answer]) as (port, _):
        status, _, found = ask(wire(port))
    assert 200 <= status < 300
    assert found == body


@pytest.mark.parametrize("status", ["200 OK", "206 Partial Content"])
@pytest.mark.parametrize("size", [2, 100_000, len(LARGE)])
def test_a_body_that_fits_is_received_where_it_stays(status, size):
    head = f"HTTP/1.1 {status}\r\nContent-Length: {size}\r\n\r\n".encode()
    memory = bytearray(b"-" * (size + 2))
    space = memoryview(memory)[1:-1]
    with speaking([head + LARGE[:size], PLAIN]) as (port, _):
        made = wire(port)
        assert made.exchange("GET", "/k", {"Host": "h"}, b"", space)[2] is space
        assert ask(made)[2] == b"ok"
    assert memory == b"-" + LARGE[:size] + b"-"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot there",
        CHUNKED + b"9\r\nabcdefghi\r\n0\r\n\r\n",
    ],
)
def test_any_other_body_leaves_the_place_alone(answer):
    memory = bytearray(b"-" * 9)
    with speaking([answer]) as (port, _):
        wire(port).exchange("GET", "/k", {"Host": "h"}, b"", memoryview(memory))
    assert memory == b"-" * 9


def test_an_answer_to_head_has_a_length_and_no_body():
    with speaking([b"HTTP/1.1 200 OK\r\nContent-Length: 77\r\nETag: e\r\n\r\n", PLAIN]) as (
        port,
        _,
    ):
        made = wire(port)
        assert ask(made, "HEAD")[1] == {"content-length": "77", "etag": "e"}
        assert ask(made)[2] == b"ok"


def test_a_connection_serves_many_requests_after_a_large_answer():
    large = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LARGE) + LARGE
    with speaking([large, PLAIN, large, PLAIN]) as (port, heard):
        made = wire(port)
        assert [ask(made)[2] for _ in range(4)] == [LARGE, b"ok", LARGE, b"ok"]
    assert len(heard) == 4


@pytest.mark.parametrize("header", [b"Connection: close\r\n", b""])
def test_a_connection_that_ends_is_replaced(header):
    last = b"HTTP/1.1 200 OK\r\n" + header + b"Content-Length: 2\r\n\r\nok"
    with speaking([last], [PLAIN]) as (port, heard):
        made = wire(port)
        assert ask(made)[2] == b"ok"
        # The server has hung up behind its answer; give its farewell time to arrive.
        while made._idle and not _ended(made._idle[0]):
            pass
        assert ask(made)[2] == b"ok"
    assert len(heard) == 2


def _ended(connection: socket.socket) -> bool:
    connection.settimeout(5)
    return connection.recv(1, socket.MSG_PEEK) == b""


def test_bytes_that_nobody_asked_for_end_a_connection():
    with speaking([PLAIN + b"HTTP/1.1 200 OK"], [PLAIN]) as (port, heard):
        made = wire(port)
        assert [ask(made)[2], ask(made)[2]] == [b"ok", b"ok"]
    assert len(heard) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nshort",
        CHUNKED + b"5\r\nab",
    ],
)
def test_a_torn_answer_is_a_broken_connection(answer):
    with speaking([answer]) as (port, _), pytest.raises(ConnectionError):
        ask(wire(port))


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        CHUNKED + b"-5\r\nab",
        CHUNKED + b"2\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 500 no\r\nContent-Length: 99999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
    ],
)
def test_what_is_no_answer_is_refused(answer):
    with speaking([answer]) as (port, _), pytest.raises(HTTPClientError, match="not an answer"):
        ask(wire(port))


def test_nobody_there():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(EndpointConnectionError, match=f"127.0.0.1:{port}"):
        ask(wire(port))


@pytest.mark.parametrize(
    ("url", "header"),
    [
        ("http://store.example/bucket", "store.example"),
        ("https://store.example:443", "store.example"),
        ("http://store.example:443", "store.example:443"),
        ("http://[::1]:9000", "[::1]:9000"),
    ],
)
def test_what_a_host_is_called(url, header):
    assert Address.of(url).header == header


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A key and a certificate that it signed for itself, for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


def _secure(certificate: Path) -> Callable[[socket.socket], socket.socket]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return lambda one: context.wrap_socket(one, server_side=True)


def test_behind_tls_large_answers_arrive_whole(certificate):
    large = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LARGE) + LARGE
    with speaking([large, PLAIN], wrap=_secure(certificate)) as (port, _):
        made = Wire(
            Address("localhost", port, is_secure=True),
            connect_timeout=5,
            read_timeout=5,
            kept=1,
            bundle=str(certificate),
        )
        assert [ask(made)[2], ask(made)[2]] == [LARGE, b"ok"]


@pytest.mark.parametrize("trusted", [False, True])
def test_a_host_must_prove_its_name(certificate, trusted):
    bundle = str(certificate) if trusted else None
    with speaking([PLAIN], wrap=_secure(certificate)) as (port, _):
        # The certificate is for localhost, not for its address.
        made = wire(port, scheme="https", bundle=bundle)
        with pytest.raises(SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            ask(made)
