"""The release that wrote something passed between processes, for error messages of another one.

Work units, fragments, reports of writers and rows of triggers outlive an upgrade, so they name
their release. Data of another release is read as long as it is understood; otherwise the error
names both.
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
