"""Retry temporary errors, fail at once on permanent ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from airflow_provider_icechunk import exceptions
from airflow_provider_icechunk.compat import (
    AirflowFailException,
    airflow_version,
    has_retry_policies,
)

if TYPE_CHECKING:
    from airflow.sdk import ExceptionRetryPolicy

Given = ParamSpec("Given")
Returned = TypeVar("Returned")

_REFUSED = (exceptions.AccessDeniedError, exceptions.UnsafeStorageError)
_UNDECIDED = (exceptions.RebaseFailedError,)
"""A conflict, too, but one that a person must decide."""
_TEMPORARY = (exceptions.StorageError, exceptions.ConflictError)
_PERMANENT = (
    exceptions.AlreadyExistsError,
    exceptions.FormatError,
    exceptions.InvalidInputError,
    exceptions.MaintenanceError,
    exceptions.NotFoundError,
    exceptions.UnsupportedError,
)


def icechunk_retry_policy(
    retry_delay: timedelta = timedelta(seconds=30),
) -> ExceptionRetryPolicy:
    """A `retry_policy` for tasks that use this provider.

    Lost races, unreachable or slow storage and writes with an unknown outcome are retried after
    `retry_delay`, as often as the task's `retries` allow; that is safe because commits carry a
    token. Denied access, missing or existing names, invalid input, damaged files and conflicts
    that need a decision fail at once. Other errors follow the task's own settings.

    Airflow has retry policies since 3.3. Before, this warns and returns `None`, which
    `default_args` of a DAG may contain; there, every error is retried as the task's `retries` say,
    unless the function of the task has the decorator `fail_on_permanent_errors`.
    """
    if not has_retry_policies():
        warnings.warn(
            f"Airflow {airflow_version()} has no retry policies (3.3 and later have): permanent "
            "errors are retried too. Decorate task functions with fail_on_permanent_errors",
            stacklevel=2,
        )
        # Only `default_args` takes it there, and ignores it.
        return cast("ExceptionRetryPolicy", None)
    from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

    return ExceptionRetryPolicy(
        rules=[
            RetryRule(
                exception=[*_REFUSED],
                action=RetryAction.FAIL,
                reason="permanent: the storage refuses",
            ),
            # Before the rule for lost races, which would also match.
            RetryRule(
                exception=[*_UNDECIDED],
                action=RetryAction.FAIL,
                reason="permanent: a retry would fail the same way",
            ),
            RetryRule(
                exception=[*_TEMPORARY],
                action=RetryAction.RETRY,
                retry_delay=retry_delay,
                reason="temporary: a storage failure or a lost race",
            ),
            RetryRule(
                exception=[*_PERMANENT],
                action=RetryAction.FAIL,
                reason="permanent: a retry would fail the same way",
            ),
        ]
    )


def fail_on_permanent_errors(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """Let the function of a task fail without a retry where a retry would fail the same way.

    The same errors as in `icechunk_retry_policy`, on every release of Airflow. The decorator of the
    task goes above it.
    """

    @wraps(function)
    def decorated(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except exceptions.IcechunkError as error:
            if is_permanent(error):
                raise AirflowFailException(f"{error.kind.value}: {error}") from error
            raise

    return decorated


def is_permanent(error: BaseException) -> bool:
    """Whether a retry would fail the same way; `False` for unknown errors."""
    if isinstance(error, (*_REFUSED, *_UNDECIDED)):
        return True
    return isinstance(error, _PERMANENT) and not isinstance(error, _TEMPORARY)
