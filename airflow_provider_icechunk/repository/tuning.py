"""From the configuration of a repository to the use of its storage, and what cannot be followed."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace

from airflow_provider_icechunk.format.config import (
    CachingConfig,
    RepositoryConfig,
    StorageRetriesSettings,
    StorageSettings,
)
from airflow_provider_icechunk.storage.base import Storage
from airflow_provider_icechunk.storage.tuning import Tunable, Tuning, tuned

_MILLI = 1000
_ATTRIBUTES = (
    "the last few attributes files are kept, whatever their size; leave "
    "attributes_file_threshold_bytes out to have none"
)


def follow(storage: Storage, given: RepositoryConfig | None) -> Storage:
    """The storage used as its caller says; what he does not say stays as it is."""
    return storage if given is None else tuned(storage, tuning_of(given))


def follow_stored(storage: Storage, config: RepositoryConfig, chunks_prefix: str) -> Storage:
    """The storage used as the configuration in force says, where its caller chose nothing else.

    A web page that tries twice and no more does so for every repository.

    :param chunks_prefix: how the keys of chunks begin in the generation of the repository.
    """
    chosen = replace(tuning_of(config), only_defaults=True)
    has_classes = chosen.chunks_storage_class != chosen.metadata_storage_class
    return tuned(storage, replace(chosen, chunks_prefix=chunks_prefix if has_classes else None))


def tuning_of(config: RepositoryConfig) -> Tuning:
    """What a configuration says about the use of the storage. Pure."""
    chosen = config.storage or StorageSettings()
    retries = chosen.retries or StorageRetriesSettings()
    at_once = config.max_concurrent_requests
    return Tuning(
        requests_at_once=None if at_once is None else max(1, at_once),
        tries=retries.max_tries,
        first_pause=_seconds(retries.initial_backoff_ms),
        longest_pause=_seconds(retries.max_backoff_ms),
        use_metadata=chosen.unsafe_use_metadata,
        storage_class=chosen.storage_class,
        metadata_storage_class=chosen.metadata_storage_class,
        chunks_storage_class=chosen.chunks_storage_class,
        multipart_threshold=chosen.minimum_size_for_multipart_upload,
    )


def warn_of_unheeded(given: RepositoryConfig | None, storage: Storage) -> None:
    """Warn, once in a process, of each setting that the caller gave and that nothing follows.

    What is only stored with a repository is not the caller's choice and is passed over.
    """
    for name, instead in unheeded(given, storage) if given is not None else ():
        with _lock:
            if name in _warned:
                continue
            _warned.add(name)
        warnings.warn(f"the setting {name} is stored and not followed: {instead}", stacklevel=5)


def unheeded(given: RepositoryConfig, storage: Storage) -> Iterator[tuple[str, str]]:
    """Settings with another value than their default that change nothing, and what to do. Pure."""
    if (given.caching or CachingConfig()).num_bytes_attributes:
        yield "caching.num_bytes_attributes", _ATTRIBUTES
    chosen = given.storage or StorageSettings()
    if isinstance(storage, Tunable) and storage.tuned(_CLASSES) is not storage:
        return
    for name in ("storage_class", "metadata_storage_class", "chunks_storage_class"):
        if getattr(chosen, name) is not None:
            reason = f"{storage.location} has no storage classes; they are for S3"
            yield f"storage.{name}", reason


_CLASSES = Tuning(storage_class="?")
_lock = threading.Lock()
_warned: set[str] = set()


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / _MILLI
