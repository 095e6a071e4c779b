"""Retry what time can cure, fail what it can not."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

from airflow_provider_icechunk import exceptions


def icechunk_retry_policy(
    retry_delay: timedelta = timedelta(seconds=30),
) -> ExceptionRetryPolicy:
    """A `retry_policy` for tasks that use this provider.

    Lost races and a storage that is unreachable, slow or of unknown outcome are tried again after
    `retry_delay`, as often as the task's `retries` allow; that is safe, because a commit carries a
    token. Denied access, missing or existing names, wrong input, damaged files and conflicts that a
    person has to decide fail at once. Any other error is left to the task's own settings.
    """
    return ExceptionRetryPolicy(
        rules=[
            RetryRule(
                exception=[exceptions.AccessDeniedError, exceptions.UnsafeStorageError],
                action=RetryAction.FAIL,
                reason="the storage refuses, and will refuse again",
            ),
            RetryRule(
                exception=[exceptions.StorageError, exceptions.ConflictError],
                action=RetryAction.RETRY,
                retry_delay=retry_delay,
                reason="the storage or a race; another try can succeed",
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
                reason="trying again gives the same error",
            ),
        ]
    )
