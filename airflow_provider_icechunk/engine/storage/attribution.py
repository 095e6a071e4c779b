"""Who makes requests, sent in the user agent: for bills, logs and limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.engine.display import Made
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind

AGENT = f"airflow-provider-icechunk/{__version__}"
"""What this package calls itself in requests."""
_LONGEST = 128
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~/-]+")
_FORBIDDEN = re.compile(r"[^\x21-\x7e]|[;()\\\"]")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")


@dataclass(frozen=True, slots=True, repr=False)
class Attribution(Made):
    """Labels that every request of a repository carries. They are sent in clear text."""

    client: str | None = None
    """The program, such as `weatherlib/0.9`."""
    workload: str | None = None
    """What the requests are for, such as the name of a pipeline."""
    principal: str | None = None
    """On whose behalf they are made."""

    def __post_init__(self) -> None:
        for name in ("client", "workload", "principal"):
            value = getattr(self, name)
            if value is not None:
                _check_label(name, value)

    @property
    def user_agent(self) -> str:
        """The user agent with these labels."""
        labels = {"workload": self.workload, "principal": self.principal}
        told = "; ".join(f"{name}={one}" for name, one in labels.items() if one is not None)
        return " ".join(filter(None, (self.client, AGENT, told and f"({told})")))


def _check_label(name: str, value: str) -> None:
    problem = None
    if len(value) > _LONGEST:
        problem = f"it is longer than {_LONGEST} characters"
    elif name == "client" and not _TOKEN.fullmatch(value):
        problem = "a client consists of token characters, as in `weatherlib/0.9`"
    elif not value or _FORBIDDEN.search(value):
        problem = 'it is empty or has a forbidden character: a space, one of ;()\\" or no ASCII'
    if problem:
        raise InvalidInputError(
            f"{value[:_LONGEST]!r} cannot be the {name} of an attribution: {problem}",
            kind=Kind.INVALID_ARGUMENT,
        )


def checked_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Headers that can be sent; the error names the header and never its value."""
    for name, value in (headers or {}).items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise InvalidInputError(
                f"invalid HTTP header {name[:80]!r}: a name has letters, digits and hyphens, a "
                "value printable ASCII",
                kind=Kind.INVALID_CONFIG,
            )
    return dict(headers or {})
