"""Retry temporary errors, fail at once on permanent ones."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

from airflow_provider_icechunk import exceptions


def icechunk_retry_policy(
    retry_delay: timedelta = timedelta(seconds=30),
) -> ExceptionRetryPolicy:
    """A `retry_policy` for tasks that use this provider.

    Lost races, unreachable or slow storage and writes with an unknown outcome are retried after
    `retry_delay`, as often as the task's `retries` allow; that is safe because commits carry a
    token. Denied access, missing or existing names, invalid input, damaged files and conflicts
    that need a decision fail at once. Other errors follow the task's own settings.
    """
    return ExceptionRetryPolicy(
        rules=[
            RetryRule(
                exception=[exceptions.AccessDeniedError, exceptions.UnsafeStorageError],
                action=RetryAction.FAIL,
                reason="permanent: the storage refuses",
            ),
            RetryRule(
                exception=[exceptions.StorageError, exceptions.ConflictError],
                action=RetryAction.RETRY,
                retry_delay=retry_delay,
                reason="temporary: a storage failure or a lost race",
            ),
            RetryRule(
                exception=[
                    exceptions.AlreadyExistsError,
                    exceptions.FormatError,
                    exceptions.InvalidInputError,
                    exceptions.MaintenanceError,
                    exceptions.NotFoundError,
                    exceptions.RebaseFailedError,
                    exceptions.UnsupportedError,
                ],
                action=RetryAction.FAIL,
                reason="permanent: a retry would fail the same way",
            ),
        ]
    )
