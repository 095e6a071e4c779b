"""Copy a repository to another location: a backup, or its restore.

Refs are read first and written last, after everything they name, so the copy is a valid repository
at every moment, whatever is committed to the source in the meantime. Immutable objects are written
only if missing, so a failed copy is resumed by repeating it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.engine.concurrency import run_all
from airflow_provider_icechunk.engine.maintenance.verify import verify
from airflow_provider_icechunk.engine.opening import find_core, open_core
from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    Exactly,
    Fetched,
    Listed,
    Lost,
    Storage,
)
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    FormatError,
    InvalidInputError,
    MaintenanceError,
    NotFoundError,
)

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.core import Core
    from airflow_provider_icechunk.engine.format.codec import Layout

CopyProgress = Callable[[int, int], None]
"""Called with how many objects have been copied so far, and their bytes."""

_OVERWRITTEN = "overwritten/"
"""Earlier states of the `repo` object, which its log of operations refers to."""
_MUTABLE = ("config.yaml", "state.json", "refs/", "repo")
"""The mutable objects: refs and configuration, the entry point of the newest generation last."""
_AT_ONCE = 8
_BATCH = 256


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The result of a copy."""

    copied: int
    """Objects written now."""
    copied_bytes: int
    there: int
    """Objects that were there already."""
    references: int
    """References and configurations that were written or moved."""
    left: tuple[str, ...]
    """References that only the copy has: since deleted in the source. A copy deletes nothing."""
    branches: dict[str, str]
    """Heads of the branches of the copy."""

    def to_json(self) -> dict[str, Any]:
        """As small JSON."""
        return {
            "copied": self.copied,
            "copied_bytes": self.copied_bytes,
            "there": self.there,
            "references": self.references,
            "left": list(self.left[:100]),
            "branches": self.branches,
        }


def copy_repository(
    source: Storage,
    target: Storage,
    *,
    overwrite: bool = False,
    compare: bool = False,
    progress: CopyProgress | None = None,
) -> CopyResult:
    """Copy a whole repository, of any generation, and verify the copy.

    Repeated, it copies what is new. The target is refused if one of its branches is at a snapshot
    that the source does not have: somebody committed there, and moving that branch would lose it.
    Virtual chunks are not copied.

    :param overwrite: move such branches of the target anyway.
    :param compare: read all existing objects and compare them byte by byte, not only their sizes.
    """
    if source is target or (
        source.location == target.location and not source.location.startswith("memory")
    ):
        raise InvalidInputError(f"{source.location} cannot be copied onto itself")
    origin = find_core(source)
    if origin is None:
        raise NotFoundError(f"there is no repository at {source.location} to copy")
    mutable = _mutable_objects(source)
    if not overwrite:
        _refuse_foreign_commits(source, target, origin)
    copied = size = there = 0
    for prefix in _prefixes(origin.refs.layout):
        pairs = _joined(source.scan(prefix), target.scan(prefix))
        while batch := list(islice(pairs, _BATCH)):
            for written in run_all(_Copy(source, target, compare), batch, at_once=_AT_ONCE):
                there += written is None
                if written:
                    copied, size = copied + 1, size + written
            if progress is not None:
                progress(copied, size)
    moved = [key for key, found in mutable.items() if _put_mutable(target, key, found)]
    left = _only_there(target, mutable)
    copy = open_core(target)
    _verify(copy)
    heads = {name: copy.format_id(head) for name, head in sorted(copy.refs.branches().items())}
    return CopyResult(copied, size, there, len(moved), left, heads)


def _prefixes(layout: Layout) -> list[str]:
    """Folders of immutable objects, those that others refer to first."""
    folders = [
        layout.chunks,
        *([] if layout.attributes is None else [layout.attributes]),
        layout.manifests,
        layout.transactions,
        layout.snapshots,
        _OVERWRITTEN,
    ]
    return list(dict.fromkeys(folder for folder in folders if folder))


def _mutable_objects(storage: Storage) -> dict[str, Fetched]:
    found: dict[str, Fetched] = {}
    for name in _MUTABLE:
        keys = [one.key for one in storage.scan(name)] if name.endswith("/") else [name]
        for key in keys:
            one = storage.get(key)
            if one is not None:
                found[key] = one
    return found


def _refuse_foreign_commits(source: Storage, target: Storage, origin: Core) -> None:
    """Refuse a target whose branches have snapshots that the source does not have."""
    copy = find_core(target)
    if copy is None:
        return
    for name, head in copy.refs.branches().items():
        if source.head(copy.refs.layout.snapshot(head)) is None:
            raise ConflictError(
                f"branch {name!r} of {target.location} is at {copy.format_id(head)}, which "
                f"{origin.storage.location} does not have: somebody committed to the copy, or it "
                "is not a copy of this repository. Choose another place, or pass overwrite=True "
                "to move its branches; nothing was copied"
            )


def _joined(
    source: Iterator[Listed], target: Iterator[Listed]
) -> Iterator[tuple[Listed, Listed | None]]:
    """Each object of the source with the one of the target; both listings are in order of keys."""
    other = next(target, None)
    for one in source:
        while other is not None and other.key < one.key:
            other = next(target, None)
        yield one, other if other is not None and other.key == one.key else None


@dataclass(frozen=True, slots=True)
class _Copy:
    source: Storage
    target: Storage
    compare: bool

    def __call__(self, pair: tuple[Listed, Listed | None]) -> int | None:
        """The bytes written; `None` if it already exists, 0 if it now exists in neither."""
        one, other = pair
        if other is not None:
            self._check_same(one, other)
            return None
        found = self.source.get(one.key)
        if found is None:
            # It has been collected: if anything needs it, the verification says so.
            return 0
        if isinstance(self.target.put(one.key, found.data, expect=Absent()), Lost):
            there = self.target.head(one.key)
            if there is not None:
                self._check_same(one, there)
            return None
        return len(found.data)

    def _check_same(self, one: Listed, other: Listed) -> None:
        same = one.size == other.size
        if same and self.compare:
            ours, theirs = self.source.get(one.key), self.target.get(one.key)
            same = ours is None or (theirs is not None and ours.data == theirs.data)
        if not same:
            raise FormatError(
                f"{one.key} differs between {self.source.location} and {self.target.location}, and "
                "such objects never change: one of the two is damaged, or they are different "
                "repositories. Nothing was overwritten"
            )


def _put_mutable(target: Storage, key: str, wanted: Fetched) -> bool:
    """Write a ref or a configuration if it differs; only over the version that was read."""
    there = target.get(key)
    if there is not None and there.data == wanted.data:
        return False
    expect = Absent() if there is None else Exactly(there.version)
    if isinstance(target.put(key, wanted.data, expect=expect), Lost):
        raise ConflictError(
            f"{target.location}/{key} was written by somebody else during the copy: run only one "
            "copy at a time, and do not commit there. Copy again"
        )
    return True


def _only_there(target: Storage, mutable: dict[str, Fetched]) -> tuple[str, ...]:
    keys = (one.key for one in target.scan("refs/"))
    return tuple(key for key in keys if key not in mutable)


def _verify(copy: Core) -> None:
    report = verify(copy)
    if not report.ok:
        first = "; ".join(str(one) for one in report.errors[:5])
        raise MaintenanceError(
            f"the copy in {copy.storage.location} is incomplete: {first}. Copy again; if that "
            "does not help, verify the source"
        )
