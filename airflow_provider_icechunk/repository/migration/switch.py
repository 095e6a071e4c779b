"""The one write that makes the newer generation the repository, and what it needs before.

Generation `2`: the `repo` object is created. Generation `1`: `refs/branch.main/ref.json` is, after
all other branches, tags and tombstones. Before that write nothing finds the newer generation; after
it everything finds nothing else.
"""

from __future__ import annotations

from airflow_provider_icechunk.exceptions import ConflictError, Kind, StorageError
from airflow_provider_icechunk.format.config_codec import encode_config as to_yaml
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.generations.v1.layout import (
    BRANCH_PREFIX,
    CONFIG_KEY,
    REF_FILE,
    branch_key,
    tag_key,
    tombstone_key,
)
from airflow_provider_icechunk.format.names import MAIN
from airflow_provider_icechunk.repository.ledgers import open_ledger
from airflow_provider_icechunk.repository.ledgers.base import Behind, Creation, Ledger, Trust
from airflow_provider_icechunk.repository.ledgers.v2 import V2Ledger, encode_config
from airflow_provider_icechunk.repository.migration.plan import MigrationPlan
from airflow_provider_icechunk.repository.migration.references import References
from airflow_provider_icechunk.repository.migration.repo_state import migrated_state
from airflow_provider_icechunk.repository.migration.survey import Source
from airflow_provider_icechunk.repository.world import World, to_micros
from airflow_provider_icechunk.storage.base import Put, Storage

_JSON = "application/json"


def open_target(storage: Storage, generation: Generation, trust: Trust, world: World) -> Ledger:
    """The ledger of the newer generation."""
    return open_ledger(generation, storage, world).trusting(trust)


def prepare(plan: MigrationPlan, source: Source, target: Ledger) -> None:
    """Store everything that must be there before the switch."""
    if plan.target is Generation.V1:
        _prepare_config(source)
        _prepare_references(plan.references(), source.storage, target)


def switch(plan: MigrationPlan, source: Source, target: Ledger, world: World) -> bool:
    """Make the newer generation the repository. False: somebody else has."""
    references = plan.references()
    if not isinstance(target, V2Ledger):
        return target.create_branch(MAIN, references.branches[MAIN]) is Creation.CREATED
    stored = source.ledger.config()
    return target.establish(
        migrated_state(
            references,
            plan.history(),
            config=None if stored is None else encode_config(stored.config),
            at=to_micros(world.now()),
        )
    )


def _prepare_config(source: Source) -> None:
    """Spell `config.yaml` as software of today does; early versions had other words in it."""
    stored = source.ledger.config()
    found = None if stored is None else source.storage.get(CONFIG_KEY)
    if stored is None or found is None or found.data == to_yaml(stored.config):
        return
    if source.ledger.save_config(stored.config, stored.version) is None:
        raise ConflictError(
            f"{CONFIG_KEY} of {source.storage.location} was changed during the migration; nothing "
            "was migrated, run it again",
            kind=Kind.CONFIG_CHANGED,
        )


def _prepare_references(references: References, storage: Storage, target: Ledger) -> None:
    """Branches but `main`, tags and tombstones. What an earlier attempt left is brought to date."""
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
                f"{tag_key(name)} in {storage.location} names another snapshot than the old "
                "repository does: a stranger wrote it; remove it and run the migration again"
            )
    buried = set(target.deleted_tags()) if references.buried else set()
    stones = [tombstone_key(name) for name in references.buried if name not in buried]
    storage.put_many([Put(key, b"", content_type=_JSON) for key in stones])
    storage.settle()


def _forget_branches(wanted: set[str], storage: Storage) -> None:
    """Remove branches that an earlier attempt prepared and that have been deleted since.

    They are invisible as long as there is no `main`, so that is looked at right before.
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
        f"another migration of {storage.location} is running or has just finished; look at the "
        "repository, and run this again if it still is of the old generation",
        kind=Kind.CONFLICT,
    )
