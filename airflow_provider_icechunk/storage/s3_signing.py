"""Signatures of AWS, version 4, for requests to objects. Pure.

botocore signs any request to any service; that takes longer than a store on the same network takes
to answer. Objects need one shape of it, which the tests hold against botocore's.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from hashlib import sha256

UNSIGNED = "UNSIGNED-PAYLOAD"
"""In the place of a digest, where TLS and a checksum protect the bytes."""
_ALGORITHM = "AWS4-HMAC-SHA256"
_LEFT_OUT = frozenset({"user-agent", "expect", "transfer-encoding"})
"""What proxies may change on the way."""


@dataclass(frozen=True, slots=True)
class Signer:
    """Who signs, and for which region."""

    access_key_id: str
    secret_access_key: str
    token: str | None
    region: str

    def __repr__(self) -> str:
        return f"Signer({self.access_key_id!r}, region={self.region!r})"

    def sign(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        *,
        digest: str,
        moment: datetime,
    ) -> dict[str, str]:
        """The headers of a request with those that prove who sends it.

        :param target: the path as it is sent, without a query.
        :param headers: with `Host`; values without line breaks.
        :param digest: of the body, in hexadecimal digits, or `UNSIGNED`.
        :param moment: the time in UTC.
        """
        time = f"{moment:%Y%m%dT%H%M%SZ}"
        sent = {**headers, "X-Amz-Date": time, "X-Amz-Content-SHA256": digest}
        if self.token is not None:
            sent["X-Amz-Security-Token"] = self.token
        told = sorted(
            (name.lower(), " ".join(value.split()))
            for name, value in sent.items()
            if name.lower() not in _LEFT_OUT
        )
        names = ";".join(name for name, _ in told)
        lines = "".join(f"{name}:{value}\n" for name, value in told)
        request = f"{method}\n{target}\n\n{lines}\n{names}\n{digest}"
        scope = f"{time[:8]}/{self.region}/s3/aws4_request"
        text = f"{_ALGORITHM}\n{time}\n{scope}\n{sha256(request.encode()).hexdigest()}"
        key = _key(self.secret_access_key, time[:8], self.region)
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        sent["Authorization"] = (
            f"{_ALGORITHM} Credential={self.access_key_id}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}"
        )
        return sent


@lru_cache(maxsize=16)
def _key(secret: str, day: str, region: str) -> bytes:
    """The key of one day, region and service."""
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key
