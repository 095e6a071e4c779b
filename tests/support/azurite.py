"""A real Azurite server for tests: started on a free loopback port, gone afterwards."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import count
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

from tools.azurite import ACCOUNT, azurite

KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, the same everywhere and printed in its documentation."""
CONTAINER = "container"
_API = "2021-08-06"
_numbers = count()


@dataclass(frozen=True)
class Azurite:
    """Where the server is."""

    endpoint_url: str

    def fresh_prefix(self) -> str:
        """An unused prefix of `CONTAINER`."""
        return f"prefix-{next(_numbers)}/some"

    def make_container(self) -> None:
        """Create `CONTAINER`, with a request that is signed here."""
        date = format_datetime(datetime.now(UTC), usegmt=True)
        path = f"{urlsplit(self.endpoint_url).path}/{CONTAINER}"
        named = f"x-ms-date:{date}\nx-ms-version:{_API}\n"
        text = "PUT" + "\n" * 12 + named + f"/{ACCOUNT}{path}\nrestype:container"
        request = Request(
            f"{self.endpoint_url}/{CONTAINER}?restype=container",
            method="PUT",
            headers={
                "x-ms-date": date,
                "x-ms-version": _API,
                "Content-Length": "0",
                "Authorization": f"SharedKey {ACCOUNT}:{_signed(text)}",
            },
        )
        urlopen(request, timeout=30).close()

    def signature(self, permissions: str) -> str:
        """A SAS token for the container, with the named rights: `r` read, `l` list, `w` write."""
        ends = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        lines = [permissions, "", ends, f"/blob/{ACCOUNT}/{CONTAINER}", "", "", "https,http", _API]
        text = "\n".join([*lines, "c", "", "", "", "", "", "", ""])
        asked = {"sp": permissions, "se": ends, "spr": "https,http", "sv": _API, "sr": "c"}
        return urlencode({**asked, "sig": _signed(text)}, quote_via=quote)


def _signed(text: str) -> str:
    digest = hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)
    return base64.b64encode(digest).decode()


@contextmanager
def running(folder: Path, program: str) -> Iterator[Azurite]:
    """A server that keeps its data in `folder`, with one container."""
    with azurite(folder, program) as endpoint:
        server = Azurite(endpoint)
        server.make_container()
        yield server
