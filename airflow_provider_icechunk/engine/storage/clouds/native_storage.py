"""A bucket that only the native client accesses, as a storage."""

from __future__ import annotations

from typing import Self

from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.storage.tuning import EVERY_SETTING, Tuning

from .bucket import CloudBucket
from .cloud import CloudSettings
from .storage import BucketStorage


class NativeStorage(BucketStorage):
    """Objects below a prefix of a bucket.

    Conditional writes are single requests, never retried blindly: ambiguous responses are resolved
    by reading back.
    """

    def __init__(self, settings: CloudSettings) -> None:
        self.settings = settings
        super().__init__(CloudBucket(settings), settings.concurrency)

    def __reduce__(self) -> tuple[type[Self], tuple[CloudSettings]]:
        """Without connections; secrets cannot be pickled."""
        return (type(self), (self.settings,))

    @property
    def endpoint_url(self) -> str | None:
        """The address, if it is not the vendor's own."""
        return self.settings.endpoint_url

    @property
    def followed(self) -> frozenset[str]:
        """All: settings are made for buckets."""
        return EVERY_SETTING

    def tuned(self, tuning: Tuning) -> Self:
        """The same bucket with other retries, storage classes or concurrency."""
        settings = self.settings.tuned(tuning)
        return self if settings is self.settings else type(self)(settings)

    def list_folders(self, prefix: str) -> list[str]:
        """Names directly below `prefix` that contain objects."""
        names = super().list_folders(prefix)
        if not self.settings.real_folders:
            return names
        full = run_all(
            lambda name: next(self.scan(f"{prefix}{name}/"), None) is not None,
            names,
            at_once=self.settings.concurrency,
        )
        return [name for name, is_full in zip(names, full, strict=True) if is_full]
