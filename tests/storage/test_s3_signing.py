"""Our signatures are botocore's, byte for byte."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from itertools import product

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from airflow_provider_icechunk.storage.s3_signing import UNSIGNED, Signer

MOMENT = datetime(2026, 11, 16, 1, 2, 3, tzinfo=UTC)
CHECKSUM = {"x-amz-checksum-crc32": "AAAAAA=="}


def by_botocore(method, url, headers, body, token, monkeypatch) -> str:
    monkeypatch.setattr(
        botocore.auth, "get_current_datetime", lambda **_: MOMENT.replace(tzinfo=None)
    )
    request = AWSRequest(method=method, url=url, data=body, headers=headers)
    if CHECKSUM.keys() <= headers.keys():
        name = next(iter(CHECKSUM))
        request.context["checksum"] = {"request_algorithm": {"in": "header", "name": name}}
        request.context["has_streaming_input"] = True
    credentials = Credentials("AKID", "secret/+", token)
    botocore.auth.S3SigV4Auth(credentials, "s3", "eu-west-1").add_auth(request)
    return str(request.headers["Authorization"])


@pytest.mark.parametrize(
    ("scheme", "token", "extra"),
    list(product(("http", "https"), (None, "to/ken=="), ({}, CHECKSUM))),
)
@pytest.mark.parametrize(
    ("method", "body", "headers"),
    [
        ("GET", b"", {"Range": "bytes=1-3"}),
        ("HEAD", b"", {}),
        (
            "PUT",
            b"data",
            {"If-None-Match": "*", "x-amz-meta-b": "two  spaces ", "Content-Type": "x"},
        ),
    ],
)
def test_as_botocore_signs(scheme, token, extra, method, body, headers, monkeypatch):
    target = "/bucket/a%20repo/chunks/%C3%A4~x"
    headers = {"Host": "store.example:9000", **headers, **extra}
    digest = sha256(body).hexdigest()
    if scheme == "https" and extra:
        digest = UNSIGNED
    signer = Signer("AKID", "secret/+", token, "eu-west-1")
    ours = signer.sign(method, target, headers, digest=digest, moment=MOMENT)
    theirs = by_botocore(
        method, f"{scheme}://store.example:9000{target}", headers, body, token, monkeypatch
    )
    assert ours["Authorization"] == theirs
    assert ours.get("X-Amz-Security-Token") == token


def test_what_carries_no_weight_is_not_signed():
    signer = Signer("AKID", "secret", None, "r")
    headers = {"Host": "h", "User-Agent": "x"}
    signed = signer.sign("GET", "/k", headers, digest=UNSIGNED, moment=MOMENT)
    assert "user-agent" not in signed["Authorization"]
    assert signed["User-Agent"] == "x"


def test_a_signer_does_not_show_its_secret():
    assert "hidden" not in repr(Signer("AKID", "hidden", "hidden too", "r"))
