"""Remove the files of older generations: their entry points first, so that old clients stop.

Only keys that an older generation uses and the newer one does not are removed; similar names stay.
Removal can be repeated until nothing is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from airflow_provider_icechunk.engine.format.detect import (
    EARLY_FOLDERS,
    SEQUENCE_FOLDERS,
    STATE_KEY,
)
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.names import MAIN
from airflow_provider_icechunk.engine.format.v1.codec import CONFIG_KEY, REFS, branch_key
from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.exceptions import StorageError

from .plan import Listener, MigrationProgress, Step

_BATCH = 1000
_B32 = "[0-9A-HJKMNP-TV-Z]"
_EARLY_NAME = re.compile(
    rf"(?:{_B32}{{26}}(?:\.json|\.msgpack)?|[0-9a-f]{{32}}(?:\.parquet)?"
    r"|[A-Za-z0-9_-]{22}==(?:\.msgpack)?)",
    re.ASCII,
)
"""Files of `alpha1` in all its forms, and of `draft`."""
_NUMBERED = re.compile(rf"refs/branch\.[^/]+/{_B32}{{8}}\.json", re.ASCII)
_COLON = re.compile(
    rf"refs/(?:branch:[^/]+/{_B32}{{8}}\.json|tag:[^/]+/ref\.json(?:\.deleted)?)", re.ASCII
)
_V1_REF = re.compile(r"refs/(?:branch\.[^/]+/ref\.json|tag\.[^/]+/ref\.json(?:\.deleted)?)")
_EARLY_REF = re.compile(r"r/(?:[^/]+\.json|(?:[^/]+)/[^/]+\.json)")
_EARLY_PREFIXES = ("s/", "a/", "i/", "m/", "c/")
_ATTRIBUTES = "attributes/"
_ATTRIBUTES_FILE = re.compile(rf"{_ATTRIBUTES}{_B32}{{20}}", re.ASCII)
"""Files of `alpha`; later generations keep attributes with their nodes."""


def is_old(key: str, target: Generation) -> bool:
    """Whether a key belongs to a generation before `target`. Pure."""
    if key.startswith(REFS):
        if _NUMBERED.fullmatch(key) or _COLON.fullmatch(key):
            return True
        return target is Generation.V2 and _V1_REF.fullmatch(key) is not None
    if key == STATE_KEY or (key == CONFIG_KEY and target is Generation.V2):
        return True
    if key.startswith(_ATTRIBUTES):
        return _ATTRIBUTES_FILE.fullmatch(key) is not None
    if key.startswith("r/"):
        return _EARLY_REF.fullmatch(key) is not None
    return key.startswith(_EARLY_PREFIXES) and _EARLY_NAME.fullmatch(key[2:]) is not None


def find_old(storage: Storage, target: Generation) -> Iterator[str]:
    """Keys of all files of older generations."""
    config = [CONFIG_KEY] if target is Generation.V2 else []
    for prefix in (REFS, "r/", STATE_KEY, _ATTRIBUTES, *_EARLY_PREFIXES, *config):
        for item in storage.scan(prefix):
            if is_old(item.key, target):
                yield item.key


def sweep(storage: Storage, target: Generation, listener: Listener) -> int:
    """Delete the files of older generations; returns their number."""
    removed = 0
    for keys in _entry_points(storage, target):
        removed += _delete(storage, keys)
    found = find_old(storage, target)
    while batch := list(islice(found, _BATCH)):
        removed += _delete(storage, batch)
        listener(MigrationProgress(Step.REMOVING, removed, None))
    return removed


def _entry_points(storage: Storage, target: Generation) -> Iterator[list[str]]:
    """The keys by which older software finds a repository.

    The newest numbered file goes last: a remaining older one would be an older state.
    """
    yield [STATE_KEY] if storage.head(STATE_KEY) is not None else []
    for folder in (*SEQUENCE_FOLDERS, *EARLY_FOLDERS):
        keys = [item.key for item in storage.scan(folder) if is_old(item.key, target)]
        numbered = [key for key in keys if not key.endswith("/ref.json")]
        yield numbered[1:]
        yield numbered[:1]
    if target is Generation.V2 and storage.head(branch_key(MAIN)) is not None:
        yield [branch_key(MAIN)]


def _delete(storage: Storage, keys: list[str]) -> int:
    if keys:
        failed = storage.delete(keys).failed
        for key, reason in failed.items():
            raise StorageError(
                f"cannot delete {key} in {storage.location}: {reason}; the repository is migrated, "
                "run the migration again to remove the rest"
            )
    return len(keys)
