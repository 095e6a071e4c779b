"""Which release wrote something that travels between processes, for messages of another one.

Work units, fragments, reports of writers and rows of triggers outlive an upgrade, so they say who
wrote them. What another release wrote is read as long as it is understood; if it is not, both are
named.
"""

from __future__ import annotations

from airflow_provider_icechunk import __version__

RELEASE = "release"
_LONGEST = 40


def both_releases(wrote: object) -> str:
    """A sentence that names both releases, to be added to a message; empty if they are the same."""
    if not isinstance(wrote, str) or wrote == __version__:
        return ""
    return (
        f". Release {wrote[:_LONGEST]!r} of airflow-provider-icechunk wrote it, and this is "
        f"{__version__}: install the same release on workers, drivers and executors"
    )
