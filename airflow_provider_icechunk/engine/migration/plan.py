"""What a migration will do, and what it has done. Pure values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId, format_id
from airflow_provider_icechunk.engine.format.names import MAIN
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, UnsupportedError

from .identities import snapshot_ids
from .ref_sets import References
from .survey import SnapshotFacts, Survey

TARGETS = (Generation.V1, Generation.V2)
_AGES = tuple(Generation)


class Step(StrEnum):
    """The current activity of a migration."""

    READING = "reading the history"
    MANIFESTS = "writing manifests"
    CHUNKS = "copying chunk files"
    SNAPSHOTS = "writing snapshots"
    REMOVING = "removing the old files"


@dataclass(frozen=True, slots=True)
class MigrationProgress:
    """The progress of a step."""

    step: Step
    done: int
    total: int | None
    """`None` if it is not known before the end."""
    bytes_done: int = 0


Listener = Callable[[MigrationProgress], None]


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """A repository at one moment, and the new ids of its snapshots."""

    source: Generation
    target: Generation
    survey: Survey
    ids: Mapping[SnapshotId, SnapshotId]
    """Old to new ids of all snapshots."""

    @property
    def rewrites(self) -> bool:
        """Whether metadata files are rewritten; from `1` to `2` they all stay."""
        return is_older(self.source, Generation.V1)

    @property
    def copies_chunks(self) -> bool:
        """Whether chunk files need new names."""
        return self.source.id_size != self.target.id_size

    def references(self) -> References:
        """The references with new ids."""
        return self.survey.references.under(self.ids)

    def history(self) -> dict[SnapshotId, SnapshotFacts]:
        """The history with new ids, parents first."""
        return {
            self.ids[facts.id]: replace(
                facts,
                id=self.ids[facts.id],
                parent=None if facts.parent is None else self.ids[facts.parent],
            )
            for facts in self.survey.history.values()
        }


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """What was done, or would be done in a dry run."""

    source: str
    target: str
    dry_run: bool
    migrated: bool
    """Whether this call switched to the new generation; false in a dry run, and if an
    earlier call had done so."""
    snapshots: int = 0
    branches: int = 0
    tags: int = 0
    deleted_tags: int = 0
    manifests: int = 0
    """Rewritten manifests."""
    chunk_files: int = 0
    """Chunk files that need another name, including those that an earlier call copied."""
    chunk_bytes: int = 0
    followed: int = 0
    """References that changed in the old repository during the migration and were transferred."""
    removed: int = 0
    """Objects of the old generation that were deleted, or would be."""
    leftovers: tuple[str, ...] = ()
    """Older generations whose entry point still exists."""
    fenced: tuple[str, ...] = ()
    """Those of them that other programs can no longer open."""
    ids: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Old to new ids of snapshots whose ids changed."""

    def as_dict(self) -> dict[str, object]:
        """The result in JSON values."""
        return {
            "from": self.source,
            "to": self.target,
            "dry_run": self.dry_run,
            "migrated": self.migrated,
            "snapshots": self.snapshots,
            "branches": self.branches,
            "tags": self.tags,
            "deleted_tags": self.deleted_tags,
            "manifests": self.manifests,
            "chunk_files": self.chunk_files,
            "chunk_bytes": self.chunk_bytes,
            "followed": self.followed,
            "removed": self.removed,
            "leftovers": list(self.leftovers),
            "fenced": list(self.fenced),
            "ids": dict(self.ids),
        }


def make_plan(survey: Survey, source: Generation, target: Generation) -> MigrationPlan:
    """The plan to migrate a surveyed repository to `target`."""
    if MAIN not in survey.references.branches:
        raise FormatError(
            f"branch {MAIN!r} does not exist, but newer generations need it: create it"
        )
    return MigrationPlan(source, target, survey, snapshot_ids(survey.history))


def result_of(plan: MigrationPlan, *, dry_run: bool) -> MigrationResult:
    """The result so far; numbers of files are added as they become known."""
    references = plan.survey.references
    return MigrationResult(
        source=plan.source.value,
        target=plan.target.value,
        dry_run=dry_run,
        migrated=not dry_run,
        snapshots=len(plan.survey.history),
        branches=len(references.branches),
        tags=len(references.tags),
        deleted_tags=len(references.buried),
        ids={
            format_id(plan.source, old): format_id(plan.target, new)
            for old, new in plan.ids.items()
            if old != new
        },
    )


def read_target(to: int | str) -> Generation:
    """The requested generation; only the two newest are possible."""
    try:
        target = Generation(str(to))
    except ValueError:
        target = None
    if target not in TARGETS:
        raise InvalidInputError(f"cannot migrate to generation {str(to)[:40]!r}: choose 1 or 2")
    return target


def is_older(one: Generation, other: Generation) -> bool:
    """Whether `one` is older than `other`."""
    return _AGES.index(one) < _AGES.index(other)


def check_upward(source: Generation, target: Generation) -> None:
    """Raise for a downgrade: features of the newer generation would be lost."""
    if is_older(target, source):
        raise UnsupportedError(
            f"this repository is of generation `{source}` and cannot be migrated back to "
            f"`{target}`: moves, uneven chunk grids, the operations log, status and feature flags "
            "exist in generation `2` only; copy the data of a branch into a new repository instead"
        )
