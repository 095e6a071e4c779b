"""The one write that makes the newer generation the repository, and the `repo` object it writes.

It creates the `repo` object (generation `2`) or `refs/branch.main/ref.json` (generation `1`, after
all other branches, tags and tombstones). Before that write nothing finds the newer generation;
after it everything does.

The operations log is reconstructed: commits at their times, branches and tags a moment after their
snapshots. No entry has a backup, and the migration is the newest.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_icechunk.engine.format.config.codec import encode_config as to_yaml
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.names import MAIN
from airflow_provider_icechunk.engine.format.v1.codec import (
    BRANCH_PREFIX,
    CONFIG_KEY,
    REF_FILE,
    branch_key,
    tag_key,
    tombstone_key,
)
from airflow_provider_icechunk.engine.format.v2 import repo
from airflow_provider_icechunk.engine.format.v2.repo import (
    OperationsEntry,
    RepoInfo,
    SnapshotRecord,
    encode_items,
)
from airflow_provider_icechunk.engine.refs import open_refs
from airflow_provider_icechunk.engine.refs.base import Behind, Creation, Refs, Trust
from airflow_provider_icechunk.engine.refs.v2 import V2Refs, encode_config
from airflow_provider_icechunk.engine.storage.base import Put, Storage
from airflow_provider_icechunk.engine.world import World, to_micros
from airflow_provider_icechunk.exceptions import ConflictError, Kind, StorageError

from .plan import MigrationPlan
from .ref_sets import References
from .survey import MigrationSource, SnapshotFacts

_FROM, _TO = 1, 2
"""Older generations have no number that official readers would accept."""
_MOMENT = 1000


def migrated_state(
    references: References,
    history: Mapping[SnapshotId, SnapshotFacts],
    *,
    config: bytes | None,
    at: int,
) -> RepoInfo:
    """The first state of the repository in generation `2`, with the new ids."""
    past = reconstructed_log(references, history)
    newest = OperationsEntry(repo.RepoMigrated(_FROM, _TO), max(at, past[0].updated_at + 1))
    root = _line(references.branches[MAIN], history)[-1]
    return RepoInfo(
        branches=dict(references.branches),
        snapshots={
            facts.id: SnapshotRecord(
                facts.id,
                facts.parent,
                facts.flushed_at,
                facts.message,
                encode_items(facts.metadata),
            )
            for facts in history.values()
        },
        updates=(newest, *past),
        status=repo.Status(repo.Availability.ONLINE, root.flushed_at),
        tags=dict(references.tags),
        deleted_tags=frozenset(references.buried),
        config=config,
    )


def reconstructed_log(
    references: References, history: Mapping[SnapshotId, SnapshotFacts]
) -> tuple[OperationsEntry, ...]:
    """The presumable operations, newest first, with strictly increasing times."""
    main = _line(references.branches[MAIN], history)
    root = main[-1].flushed_at
    entries: list[tuple[repo.Event, int]] = [(repo.RepoInitialized(), root)]
    recorded = {facts.id for facts in main}
    entries += [(repo.NewCommit(MAIN, facts.id), facts.flushed_at) for facts in reversed(main[:-1])]
    for name, tip in references.branches.items():
        if name == MAIN:
            continue
        entries.append((repo.BranchCreated(name), history[tip].flushed_at + _MOMENT))
        for facts in reversed(_line(tip, history)):
            if facts.id not in recorded:
                recorded.add(facts.id)
                entries.append((repo.NewCommit(name, facts.id), facts.flushed_at))
    for name, named in references.tags.items():
        entries.append((repo.TagCreated(name), history[named].flushed_at + _MOMENT))
    for name, once in references.buried.items():
        if once is not None:
            time = history[once].flushed_at if once in history else root
            entries.append((repo.TagCreated(name), time + _MOMENT))
            entries.append((repo.TagDeleted(name, once), time + 2 * _MOMENT))
    return _strictly_later(sorted(entries, key=lambda entry: entry[1]))


def _strictly_later(entries: list[tuple[repo.Event, int]]) -> tuple[OperationsEntry, ...]:
    updates: list[OperationsEntry] = []
    for event, at in entries:
        after = updates[-1].updated_at + 1 if updates else 0
        updates.append(OperationsEntry(event, max(at, after)))
    return tuple(reversed(updates))


def _line(tip: SnapshotId, history: Mapping[SnapshotId, SnapshotFacts]) -> list[SnapshotFacts]:
    """A snapshot and its ancestors, newest first."""
    line = [history[tip]]
    while (parent := line[-1].parent) is not None:
        line.append(history[parent])
    return line


_JSON = "application/json"


def open_target(storage: Storage, generation: Generation, trust: Trust, world: World) -> Refs:
    """The refs of the newer generation."""
    return open_refs(generation, storage, world).trusting(trust)


def prepare(plan: MigrationPlan, source: MigrationSource, target: Refs) -> None:
    """Store everything that must exist before the switch."""
    if plan.target is Generation.V1:
        _prepare_config(source)
        _prepare_references(plan.references(), source.storage, target)


def switch(plan: MigrationPlan, source: MigrationSource, target: Refs, world: World) -> bool:
    """Make the newer generation the repository. False: somebody else did."""
    references = plan.references()
    if not isinstance(target, V2Refs):
        return target.create_branch(MAIN, references.branches[MAIN]) is Creation.CREATED
    stored = source.refs.config()
    return target.establish(
        migrated_state(
            references,
            plan.history(),
            config=None if stored is None else encode_config(stored.config),
            at=to_micros(world.now()),
        )
    )


def _prepare_config(source: MigrationSource) -> None:
    """Rewrite `config.yaml` in today's form; early versions used other names."""
    stored = source.refs.config()
    found = None if stored is None else source.storage.get(CONFIG_KEY)
    if stored is None or found is None or found.data == to_yaml(stored.config):
        return
    if source.refs.save_config(stored.config, stored.version) is None:
        raise ConflictError(
            f"{CONFIG_KEY} of {source.storage.location} changed during the migration; nothing "
            "was migrated, run it again",
            kind=Kind.CONFIG_CHANGED,
        )


def _prepare_references(references: References, storage: Storage, target: Refs) -> None:
    """Create branches except `main`, tags and tombstones, or update those of an earlier attempt."""
    others = {name: at for name, at in references.branches.items() if name != MAIN}
    _forget_branches(set(others), storage)
    for name, to in others.items():
        if target.create_branch(name, to) is not Creation.CREATED:
            actual = target.branch(name)
            moved = None if actual in (None, to) else target.reset_branch(name, to, actual)
            if actual is None or isinstance(moved, Behind):
                raise _busy(storage)
    for name, to in references.tags.items():
        if target.create_tag(name, to) is not Creation.CREATED and target.tag(name) != to:
            raise StorageError(
                f"{tag_key(name)} in {storage.location} names another snapshot than in the old "
                "repository: something else wrote it; remove it and run the migration again"
            )
    buried = set(target.deleted_tags()) if references.buried else set()
    stones = [tombstone_key(name) for name in references.buried if name not in buried]
    storage.put_many([Put(key, b"", content_type=_JSON) for key in stones])
    storage.settle()


def _forget_branches(wanted: set[str], storage: Storage) -> None:
    """Remove branches that an earlier attempt created and that have been deleted since.

    They are invisible while there is no `main`, which is checked right before.
    """
    stale = [
        item.key
        for item in storage.scan(BRANCH_PREFIX)
        if item.key.endswith(f"/{REF_FILE}")
        and item.key.removeprefix(BRANCH_PREFIX).removesuffix(f"/{REF_FILE}") not in wanted
    ]
    if not stale:
        return
    if storage.head(branch_key(MAIN)) is not None:
        raise _busy(storage)
    failed = storage.delete(stale).failed
    for key, reason in failed.items():
        raise StorageError(f"cannot delete {key} in {storage.location}: {reason}")


def _busy(storage: Storage) -> ConflictError:
    return ConflictError(
        f"another migration of {storage.location} is running or has just finished; check the "
        "repository, and run this again if it is still of the old generation",
        kind=Kind.CONFLICT,
    )
