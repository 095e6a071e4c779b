"""Objects in a bucket of S3 or a compatible store.

Conditional writes are single PUTs with `If-None-Match` or `If-Match`, never retried blindly:
ambiguous responses are resolved by reading back (`readback`).
"""

from __future__ import annotations

from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.storage.clouds.storage import BucketStorage
from airflow_provider_icechunk.engine.storage.tuning import EVERY_SETTING, Tuning

from .rules import warnings_about
from .settings import S3Settings
from .writes import WritableBucket


class S3Storage(BucketStorage):
    """Objects below a prefix of a bucket."""

    _bucket: WritableBucket

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        super().__init__(WritableBucket(settings), settings.concurrency)

    def __reduce__(self) -> tuple[type[S3Storage], tuple[S3Settings]]:
        """Without connections; secrets cannot be pickled."""
        return (S3Storage, (self._settings,))

    @property
    def settings(self) -> S3Settings:
        """The settings of this storage."""
        return self._settings

    @property
    def followed(self) -> frozenset[str]:
        """All: settings are made for buckets."""
        return EVERY_SETTING

    def tuned(self, tuning: Tuning) -> S3Storage:
        """The same bucket with other retries, storage classes or concurrency."""
        settings = self._settings.tuned(tuning)
        return self if settings is self._settings else S3Storage(settings)

    @property
    def endpoint_url(self) -> str | None:
        """The address, if it is not AWS's own."""
        return self._settings.endpoint_url

    def list_folders(self, prefix: str) -> list[str]:
        """Names directly below `prefix` that contain objects."""
        names = super().list_folders(prefix)
        if self._settings.endpoint_url is None:
            return names
        # Stores with real folders still list those that have become empty.
        full = run_all(
            lambda name: next(self.scan(f"{prefix}{name}/"), None) is not None,
            names,
            at_once=self._settings.concurrency,
        )
        return [name for name, is_full in zip(names, full, strict=True) if is_full]

    def warnings(self) -> list[str]:
        """What versioning, locks and lifecycle rules of the bucket mean for a repository."""
        return warnings_about(self._bucket)

    def honours_read_conditions(self) -> bool | None:
        """Whether conditional reads are honoured; `None` if there is nothing to read.

        Writes nothing, and is only a hint: a store that ignores conditions on reads cannot be
        trusted with writes, but one that honours them may still ignore those on writes.
        """
        first = next(self.scan(""), None)
        return None if first is None else self._bucket.honours_condition(first.key)
