"""`migrate`: read, store, check that nothing moved, switch, follow, fence; remove on request."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_icechunk.exceptions import (
    ConflictError,
    IcechunkError,
    InvalidInputError,
    Kind,
    MaintenanceError,
    NotFoundError,
)
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.repository.commit import ConditionGuard
from airflow_provider_icechunk.repository.detection import detect_all, detect_generation
from airflow_provider_icechunk.repository.ledgers.base import Ledger, Trust
from airflow_provider_icechunk.repository.ledgers.v2 import V2Ledger
from airflow_provider_icechunk.repository.migration import switch as entry
from airflow_provider_icechunk.repository.migration.fences import put_up, take_down
from airflow_provider_icechunk.repository.migration.files import Files, FileWriter
from airflow_provider_icechunk.repository.migration.follow import follow
from airflow_provider_icechunk.repository.migration.plan import (
    Listener,
    MigrationPlan,
    MigrationProgress,
    MigrationResult,
    Step,
    check_upward,
    make_plan,
    read_target,
    result_of,
)
from airflow_provider_icechunk.repository.migration.references import (
    RECORDS,
    Record,
    References,
    decode_record,
    encode_record,
    news,
    read_references,
    record_key,
)
from airflow_provider_icechunk.repository.migration.retire import find_old, sweep
from airflow_provider_icechunk.repository.migration.survey import (
    Source,
    Survey,
    open_source,
    parents_first,
    take_survey,
)
from airflow_provider_icechunk.repository.repository import BaseRepository
from airflow_provider_icechunk.repository.world import REAL_WORLD, World
from airflow_provider_icechunk.storage.base import Anything, Storage

_TRIES = 10


def migrate(
    repository: BaseRepository[Any] | Storage,
    to: int | str = Generation.V2,
    *,
    dry_run: bool = False,
    remove_old: bool = False,
    fence_old: bool = True,
    progress: Listener | None = None,
    world: World | None = None,
) -> MigrationResult:
    """Bring a repository to a newer generation of the format, in place. Open it anew afterwards.

    Everything that branches and tags reach comes along: trees, values, messages, times, metadata,
    deleted tags, the configuration. Readers see the old repository until one write makes it the new
    one. A call that died is simply made again. Sessions that were opened before commit to the old
    references until these are fenced; what they did is brought over.

    :param repository: an open repository, or the storage it is in.
    :param to: `1` or `2`; never an older generation than it has.
    :param dry_run: read everything, say what there is to do, and write nothing.
    :param remove_old: delete the old entry point and what only the old generation uses, at the end.
    :param fence_old: make the old entry point unreadable to programs that know nothing of the new
        one; nothing is deleted. `False` takes a fence away again, and then such programs read and
        write a repository that nobody else sees.
    :param progress: told how far each step is.
    """
    if remove_old and not fence_old:
        raise InvalidInputError(
            "remove_old and fence_old=False exclude each other: what is removed cannot be opened"
        )
    storage, world = _place(repository, world)
    target = read_target(to)
    found = list(detect_all(storage))
    if not found:
        raise NotFoundError(f"there is no repository in {storage.location}: check the path")
    present = [one.generation for one in found]
    check_upward(present[0], target)
    if present[0] is target and found[0].fenced_for is not None:
        detect_generation(storage)  # which says what is missing
    run = _Run(storage, target, progress or (lambda _: None), world)
    if present[0] is target:
        result, older = run.finish(dry_run=dry_run), present[1:]
    else:
        result, older = run.migrate(present[0], dry_run=dry_run), present
    if remove_old:
        return run.remove(result, older)
    result = replace(result, leftovers=tuple(one.value for one in older))
    return result if dry_run else run.settle(result, older, fence=fence_old)


def _place(repository: BaseRepository[Any] | Storage, world: World | None) -> tuple[Storage, World]:
    if isinstance(repository, BaseRepository):
        return repository.storage, world or repository._engine.world
    return repository, world or REAL_WORLD


@dataclass(frozen=True, slots=True)
class _Run:
    """One call."""

    storage: Storage
    target: Generation
    listener: Listener
    world: World

    def migrate(self, generation: Generation, *, dry_run: bool) -> MigrationResult:
        """From an older generation, as one write after everything else."""
        source = open_source(self.storage, generation, self.world)
        writer = FileWriter(source, self.listener, store=not dry_run)
        survey = self._survey(source)
        if dry_run:
            plan = make_plan(survey, generation, self.target)
            return _counted(result_of(plan, dry_run=True), writer.carry_out(plan))
        target = self._open_target(source)
        plan, files = self._prepare(source, writer, survey, target)
        if not entry.switch(plan, source, target, self.world):
            raise ConflictError(
                f"somebody else migrated {self.storage.location} at the same moment; open it",
                kind=Kind.CONFLICT,
            )
        followed, _ = self._follow(source, writer, plan.survey, target)
        return replace(_counted(result_of(plan, dry_run=False), files), followed=followed)

    def finish(self, *, dry_run: bool) -> MigrationResult:
        """The repository is there already."""
        name = self.target.value
        return MigrationResult(source=name, target=name, dry_run=dry_run, migrated=False)

    def settle(
        self, result: MigrationResult, older: list[Generation], *, fence: bool
    ) -> MigrationResult:
        """Bring over what came late to the older ones, and fence them in or take fences away."""
        followed = 0
        for generation in older:
            source = open_source(self.storage, generation, self.world)
            followed += self._stop_writers(source) if fence else self._let_writers_in(source)
        return replace(
            result,
            followed=result.followed + followed,
            fenced=tuple(one.value for one in older) if fence else (),
        )

    def remove(self, result: MigrationResult, older: list[Generation]) -> MigrationResult:
        """Delete what older generations left."""
        if not older and next(self.storage.scan(RECORDS), None) is None:
            return result
        if result.dry_run:
            count = sum(1 for _ in find_old(self.storage, self.target))
            return replace(result, removed=count, leftovers=tuple(one.value for one in older))
        result = self.settle(result, older, fence=True)
        removed = sweep(self.storage, self.target, self.listener)
        return replace(result, removed=removed, fenced=())

    def _stop_writers(self, source: Source) -> int:
        """From here on nobody commits to the old references, and all that was is brought over.

        Returns how much that was.
        """
        trust, followed = _trust(source), 0
        for _ in range(_TRIES):
            late, references = self._catch_up(source)
            followed += late
            fenced = put_up(self.storage, source.generation, self.target, references, trust)
            if fenced and self._news(source, references, self._open_target(source)) == references:
                return followed
        raise self._restless("were fenced in")

    def _let_writers_in(self, source: Source) -> int:
        """Take fences away, after what came before them was brought over; returns how much."""
        followed, references = self._catch_up(source)
        trust, branches = _trust(source), references.branches
        for _ in range(_TRIES):
            if take_down(self.storage, source.generation, branches, trust):
                return followed
        raise self._restless("were opened again")

    def _restless(self, what: str) -> ConflictError:
        return ConflictError(
            f"the old references of {self.storage.location} moved {_TRIES} times while they "
            f"{what}: stop the writers that opened it before, and run it again",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def _prepare(
        self, source: Source, writer: FileWriter, survey: Survey, target: Ledger
    ) -> tuple[MigrationPlan, Files]:
        """Store everything for the newest state of the references, which did not move meanwhile."""
        for _ in range(_TRIES):
            plan = make_plan(survey, source.generation, self.target)
            files = writer.carry_out(plan)
            entry.prepare(plan, source, target)
            self._record(source.generation, survey.references)
            if read_references(source.ledger, self.storage) == survey.references:
                return plan, files
            survey = take_survey(source, survey.history)
        raise ConflictError(
            f"the references of {self.storage.location} moved {_TRIES} times while they were "
            "migrated; nothing was migrated: stop its writers and run it again",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def _follow(
        self, source: Source, writer: FileWriter, survey: Survey, target: Ledger
    ) -> tuple[int, References]:
        """Repeat in the new repository what happened to the old references since the survey.

        Returns how much, and the state of the old references that the new ones correspond to.
        """
        followed = 0
        for _ in range(_TRIES):
            now = self._news(source, survey.references, target)
            if now == survey.references:
                return followed, now
            before, survey = survey, take_survey(source, survey.history, now)
            plan = make_plan(survey, source.generation, self.target)
            writer.carry_out(plan)
            followed += follow(before, plan, writer, target)
            self._record(source.generation, survey.references)
        raise ConflictError(
            f"the old references of {self.storage.location} keep moving after the switch to "
            f"generation `{self.target}`: stop the writers that opened it before, and run it again",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def _catch_up(self, source: Source) -> tuple[int, References]:
        """Bring over what happened to old references since they were migrated; see `_follow`."""
        found = self.storage.get(record_key(source.generation))
        if found is None:
            return 0, self._known(source)
        record = decode_record(found.data, where=record_key(source.generation))
        target = self._open_target(source)
        now = self._news(source, record.references, target)
        if now == record.references:
            return 0, now
        history = take_survey(source, references=now).history
        tips = [tip for tip in record.references.tips() if tip in history]
        before = Survey(record.references, parents_first(tips, history))
        writer = FileWriter(source, self.listener, store=True, done=set(before.history))
        return self._follow(source, writer, before, target)

    def _news(self, source: Source, before: References, target: Ledger) -> References:
        """The old references now, but for what the new repository has as well."""
        found = read_references(source.ledger, self.storage)
        tags = {
            name: at
            for name, at in target.tags().items()
            if name in before.tags or self._is_readable(at, target)
        }
        return news(found, before, tags)

    def _is_readable(self, identity: SnapshotId, target: Ledger) -> bool:
        """Whether the new repository can read a snapshot: a shared tag may name an old one."""
        key = target.layout.snapshot(identity)
        found = self.storage.get(key)
        try:
            return found is not None and bool(
                target.codec.decode_snapshot(found.data, identity, where=key)
            )
        except IcechunkError:
            return False

    def _known(self, source: Source) -> References:
        """Without a record of the migration: the old references, if all they name is listed."""
        target = self._open_target(source)
        references = read_references(source.ledger, self.storage)
        tips = set(references.tips())
        known = target.info().snapshots.keys() if isinstance(target, V2Ledger) else set()
        if source.generation.id_size != self.target.id_size or not tips <= known:
            raise MaintenanceError(
                f"the entry point of generation `{source.generation}` in {self.storage.location} "
                f"names snapshots that generation `{self.target}` does not, and no record says how "
                "it was migrated; nothing was removed: compare both by hand"
            )
        return references

    def _survey(self, source: Source) -> Survey:
        survey = take_survey(source)
        count = len(survey.history)
        self.listener(MigrationProgress(Step.READING, count, count))
        return survey

    def _record(self, source: Generation, references: References) -> None:
        data = encode_record(Record(source, self.target, references))
        self.storage.put(
            record_key(source), data, expect=Anything(), content_type="application/json"
        )
        self.storage.settle()

    def _open_target(self, source: Source) -> Ledger:
        trust = _trust(source)
        ConditionGuard(self.storage, trust).check()
        return entry.open_target(self.storage, self.target, trust, self.world)


def _trust(source: Source) -> Trust:
    settings = source.settings.storage
    return Trust.of(
        creates=settings.use_conditional_create, updates=settings.use_conditional_update
    )


def _counted(result: MigrationResult, files: Files) -> MigrationResult:
    return replace(
        result,
        manifests=files.manifests,
        chunk_files=len(files.copies),
        chunk_bytes=files.chunk_bytes,
    )
