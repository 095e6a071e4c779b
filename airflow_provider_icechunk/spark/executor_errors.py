"""Errors of this package that happened on executors, as themselves instead of Spark's report."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from pyspark.errors import PySparkException

from airflow_provider_icechunk import exceptions
from airflow_provider_icechunk.exceptions import IcechunkError

Result = TypeVar("Result")

_SAID = re.compile(r"airflow_provider_icechunk\.exceptions\.(\w+): (.+)")


def on_executors(action: Callable[[], Result]) -> Result:
    """Run an action of Spark; if it failed for a reason of ours, that is the error."""
    try:
        return action()
    except PySparkException as error:
        found = said(str(error))
        if found is None:
            raise
        raise found from error


def said(report: str) -> IcechunkError | None:
    """The last error of this package in a report of Spark, which has the traceback as text."""
    told = _SAID.findall(report)
    if not told:
        return None
    name, message = told[-1]
    kind = getattr(exceptions, name, None)
    if not (isinstance(kind, type) and issubclass(kind, IcechunkError)):
        return None
    try:
        return kind(message.strip())
    except TypeError:
        # Some errors carry more than a message, which has not come along.
        return IcechunkError(message.strip())
