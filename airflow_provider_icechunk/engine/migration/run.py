"""`migrate`: read, store, check that nothing moved, switch, follow, and remove on request."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_icechunk.engine.core import Choices, ConditionGuard, Core
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.opening import detect_all, detect_generation, open_core
from airflow_provider_icechunk.engine.refs.base import Refs, Trust
from airflow_provider_icechunk.engine.refs.v2 import V2Refs
from airflow_provider_icechunk.engine.retry import at_once
from airflow_provider_icechunk.engine.storage.base import Anything, Storage
from airflow_provider_icechunk.engine.world import REAL_WORLD, World
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    IcechunkError,
    InvalidInputError,
    Kind,
    MaintenanceError,
    NotFoundError,
)

from . import switch
from .fences import put_up, take_down
from .files import Files, FileWriter
from .follow import follow
from .plan import (
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
from .ref_sets import (
    RECORDS,
    Record,
    References,
    decode_record,
    encode_record,
    news,
    read_references,
    record_key,
)
from .retire import find_old, sweep
from .survey import MigrationSource, Survey, open_source, parents_first, take_survey

_AGAIN = at_once(10)


def migrate(
    place: Core | Storage,
    to: int | str = Generation.V2,
    *,
    dry_run: bool = False,
    remove_old: bool = False,
    fence_old: bool = True,
    progress: Listener | None = None,
    world: World | None = None,
) -> MigrationResult:
    """Migrate a repository to a newer generation of the format, in place; see `api.migrate`.

    :param place: an open repository, or the storage it is in.
    """
    if remove_old and not fence_old:
        raise InvalidInputError(
            "remove_old and fence_old=False cannot be combined: removed files cannot be opened"
        )
    storage, world = _place(place, world)
    target = read_target(to)
    found = list(detect_all(storage))
    if not found:
        raise NotFoundError(f"no repository found in {storage.location}: check the path")
    present = [one.generation for one in found]
    check_upward(present[0], target)
    if present[0] is target and found[0].fenced_for is not None:
        detect_generation(storage)  # raises with the reason
    run = _Run(storage, target, progress or (lambda _: None), world)
    if present[0] is target:
        result, older = run.finish(dry_run=dry_run), present[1:]
    else:
        result, older = run.migrate(present[0], dry_run=dry_run), present
    if remove_old:
        return run.remove(result, older)
    result = replace(result, leftovers=tuple(one.value for one in older))
    return result if dry_run else run.settle(result, older, fence=fence_old)


def _place(place: Core | Storage, world: World | None) -> tuple[Storage, World]:
    if isinstance(place, Core):
        return place.storage, world or place.world
    return place, world or REAL_WORLD


@dataclass(frozen=True, slots=True)
class _Run:
    """One call of `migrate`."""

    storage: Storage
    target: Generation
    listener: Listener
    world: World

    def migrate(self, generation: Generation, *, dry_run: bool) -> MigrationResult:
        """Migrate from an older generation; the last write is the switch."""
        source = open_source(self.storage, generation, self.world)
        writer = FileWriter(source, self.listener, store=not dry_run)
        survey = self._survey(source)
        if dry_run:
            plan = make_plan(survey, generation, self.target)
            return _counted(result_of(plan, dry_run=True), writer.carry_out(plan))
        target = self._open_target(source)
        plan, files = self._prepare(source, writer, survey, target)
        if not switch.switch(plan, source, target, self.world):
            raise ConflictError(
                f"somebody else migrated {self.storage.location} at the same time; open it",
                kind=Kind.CONFLICT,
            )
        followed, _ = self._follow(source, writer, plan.survey, target)
        return replace(_counted(result_of(plan, dry_run=False), files), followed=followed)

    def finish(self, *, dry_run: bool) -> MigrationResult:
        """The result for a repository that is already migrated."""
        name = self.target.value
        return MigrationResult(source=name, target=name, dry_run=dry_run, migrated=False)

    def settle(
        self, result: MigrationResult, older: list[Generation], *, fence: bool
    ) -> MigrationResult:
        """Transfer late changes of the older ones, and fence them or remove their fences."""
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
        """Delete the files of older generations."""
        if not older and next(self.storage.scan(RECORDS), None) is None:
            return result
        if result.dry_run:
            count = sum(1 for _ in find_old(self.storage, self.target))
            return replace(result, removed=count, leftovers=tuple(one.value for one in older))
        result = self.settle(result, older, fence=True)
        removed = sweep(self.storage, self.target, self.listener)
        return replace(result, removed=removed, fenced=())

    def _stop_writers(self, source: MigrationSource) -> int:
        """Fence the old references and transfer all late changes; returns how many."""
        trust, followed = _trust(source), 0
        for _ in _AGAIN.attempts():
            late, references = self._catch_up(source)
            followed += late
            fenced = put_up(self.storage, source.generation, self.target, references, trust)
            if fenced and self._news(source, references, self._open_target(source)) == references:
                return followed
        raise self._restless("were being fenced")

    def _let_writers_in(self, source: MigrationSource) -> int:
        """Remove fences after transferring late changes; returns how many."""
        followed, references = self._catch_up(source)
        trust, branches = _trust(source), references.branches
        for _ in _AGAIN.attempts():
            if take_down(self.storage, source.generation, branches, trust):
                return followed
        raise self._restless("were being opened again")

    def _restless(self, what: str) -> ConflictError:
        return ConflictError(
            f"the old references of {self.storage.location} moved {_AGAIN.tries} times while they "
            f"{what}: stop the writers that opened it before, and run it again",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def _prepare(
        self, source: MigrationSource, writer: FileWriter, survey: Survey, target: Refs
    ) -> tuple[MigrationPlan, Files]:
        """Store everything for the newest state of the references, until they stop moving."""
        for _ in _AGAIN.attempts():
            plan = make_plan(survey, source.generation, self.target)
            files = writer.carry_out(plan)
            switch.prepare(plan, source, target)
            self._record(source.generation, survey.references)
            if read_references(source.refs, self.storage) == survey.references:
                return plan, files
            survey = take_survey(source, survey.history)
        raise ConflictError(
            f"the references of {self.storage.location} moved {_AGAIN.tries} times during the "
            "migration; nothing was migrated: stop its writers and run it again",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def _follow(
        self, source: MigrationSource, writer: FileWriter, survey: Survey, target: Refs
    ) -> tuple[int, References]:
        """Repeat changes of the old references since the survey in the new repository.

        Returns how many, and the state of the old references that the new ones correspond to.
        """
        followed = 0
        for _ in _AGAIN.attempts():
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

    def _catch_up(self, source: MigrationSource) -> tuple[int, References]:
        """Transfer changes of the old references since the migration; see `_follow`."""
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

    def _news(self, source: MigrationSource, before: References, target: Refs) -> References:
        """The current old references, without what the new repository already has."""
        found = read_references(source.refs, self.storage)
        tags = {
            name: at
            for name, at in target.tags().items()
            if name in before.tags or self._is_readable(at, target)
        }
        return news(found, before, tags)

    def _is_readable(self, identity: SnapshotId, target: Refs) -> bool:
        """Whether the new repository can read a snapshot: a shared tag may point at an old one."""
        key = target.layout.snapshot(identity)
        found = self.storage.get(key)
        try:
            return found is not None and bool(
                target.codec.decode_snapshot(found.data, identity, where=key)
            )
        except IcechunkError:
            return False

    def _known(self, source: MigrationSource) -> References:
        """The old references without a record; raises unless their snapshots are all listed."""
        target = self._open_target(source)
        references = read_references(source.refs, self.storage)
        tips = set(references.tips())
        known = target.info().snapshots.keys() if isinstance(target, V2Refs) else set()
        if source.generation.id_size != self.target.id_size or not tips <= known:
            raise MaintenanceError(
                f"the entry point of generation `{source.generation}` in {self.storage.location} "
                f"names snapshots that generation `{self.target}` does not, and there is no record "
                "of its migration; nothing was removed: compare both manually"
            )
        return references

    def _survey(self, source: MigrationSource) -> Survey:
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

    def _open_target(self, source: MigrationSource) -> Refs:
        trust = _trust(source)
        ConditionGuard(self.storage, trust).check()
        return switch.open_target(self.storage, self.target, trust, self.world)


def _trust(source: MigrationSource) -> Trust:
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


def upgrade(core: Core, *, dry_run: bool, delete_unused_v1_files: bool) -> Core:
    """Migrate a repository to generation `2` and reopen it."""
    migrate(core, Generation.V2, dry_run=dry_run, remove_old=delete_unused_v1_files)
    choices = Choices(core.given, core.authorize, core.packing, core.world)
    return open_core(core.storage, choices)
