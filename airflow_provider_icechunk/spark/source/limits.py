"""The limits of a micro-batch, available since Spark 4.2; stand-ins for earlier releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxFiles,
            SupportsTriggerAvailableNow,
        )
    except ImportError:

        class ReadLimit:
            """Spark before 4.2 requests none."""

        class ReadAllAvailable(ReadLimit):
            """As Spark before 4.2 always reads."""

        class ReadMaxFiles(ReadLimit):
            """Never created: a limit is refused earlier."""

        class SupportsTriggerAvailableNow:
            """Spark before 4.2 runs such a trigger as one batch."""


__all__ = [
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxFiles",
    "SupportsTriggerAvailableNow",
    "can_limit",
]


def can_limit() -> bool:
    """Whether Spark asks a source for the limit of a batch."""
    return bool(ReadLimit.__module__ != __name__)
