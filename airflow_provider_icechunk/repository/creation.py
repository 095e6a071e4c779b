"""Make a new repository: first snapshot, configuration, then the one write that decides.

The creation of branch `main` is the creation of the repository; whoever loses that write did not
create it. A process that dies before it leaves a first snapshot and perhaps a configuration, over
which the next attempt goes without complaint.
"""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_icechunk.exceptions import AlreadyExistsError, InvalidInputError, Kind
from airflow_provider_icechunk.format.config import RepositoryConfig
from airflow_provider_icechunk.format.file_marks import file_content_type, file_marks
from airflow_provider_icechunk.format.generations.base import FileType, Generation
from airflow_provider_icechunk.format.generations.identities import new_id
from airflow_provider_icechunk.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from airflow_provider_icechunk.format.snapshot import FIRST_MESSAGE, Snapshot
from airflow_provider_icechunk.format.transactions import TransactionLog
from airflow_provider_icechunk.repository.commit import ConditionGuard
from airflow_provider_icechunk.repository.detection import detect_generation
from airflow_provider_icechunk.repository.ledgers import open_ledger
from airflow_provider_icechunk.repository.ledgers.base import Ledger, Trust
from airflow_provider_icechunk.repository.world import World, to_micros
from airflow_provider_icechunk.storage.base import Storage
from airflow_provider_icechunk.storage.probe import PROBE_PREFIX

_CONFIG_KEY = "config.yaml"
_ABANDONED_AFTER = timedelta(seconds=60)
_MAX_LEFTOVERS = 64


def create(
    storage: Storage,
    generation: Generation,
    config: RepositoryConfig | None,
    world: World,
    *,
    check_clean_root: bool = True,
) -> Ledger:
    """Create a repository in an empty place; `AlreadyExistsError` if somebody has."""
    existing = detect_generation(storage)
    if existing is not None:
        raise _exists(storage, f"a repository of format generation `{existing}` is there")
    ledger = open_ledger(generation, storage, world)
    if check_clean_root:
        _check_clean(storage, ledger)
    settings = (config or RepositoryConfig()).resolved().storage
    trust = Trust.of(
        creates=settings.use_conditional_create, updates=settings.use_conditional_update
    )
    ConditionGuard(storage, trust).check()
    ledger = ledger.trusting(trust)
    first = _first_snapshot(generation, world)
    _put_first(ledger, trust, storage, first)
    chosen = None if config == RepositoryConfig() else config
    if chosen is not None and not ledger.holds_config:
        _claim_config(storage, ledger, chosen)
    storage.settle()
    if not ledger.initialize(first, chosen):
        raise _exists(storage, "somebody else created it at the same moment")
    return ledger


def _put_first(ledger: Ledger, trust: Trust, storage: Storage, first: Snapshot) -> None:
    """Store the first snapshot and, in generation `2`, its log."""
    layout, codec, generation = ledger.layout, ledger.codec, ledger.generation
    files = [
        (layout.snapshot(first.id), FileType.SNAPSHOT, codec.encode_snapshot(first, level=3)),
    ]
    if generation is Generation.V2:
        log = codec.encode_log(TransactionLog(first.id), level=3)
        files.append((layout.transaction(first.id), FileType.TRANSACTION_LOG, log))
    for key, kind, data in files:
        storage.put(
            key,
            data,
            expect=trust.create(),
            metadata=file_marks(generation, kind),
            content_type=file_content_type(generation),
        )


def _first_snapshot(generation: Generation, world: World) -> Snapshot:
    fixed = generation in (Generation.V1, Generation.V2)
    root = {"__icechunk": {"is_root": True}} if generation is Generation.V2 else {"__root": True}
    identity = new_id(generation, world.entropy(generation.id_size))
    return Snapshot(
        id=INITIAL_SNAPSHOT_ID if fixed else SnapshotId(identity),
        parent_id=None,
        flushed_at=to_micros(world.now()),
        message=FIRST_MESSAGE,
        metadata=root,
        nodes={},
    )


def _check_clean(storage: Storage, ledger: Ledger) -> None:
    """Refuse a place that holds anything but leftovers of a creation that did not finish."""
    layout = ledger.layout
    folders = (layout.snapshots, layout.transactions)[: 2 if ledger.holds_config else 1]
    for number, listed in enumerate(storage.scan("")):
        leftover = listed.key == _CONFIG_KEY or listed.key.startswith((PROBE_PREFIX, *folders))
        if not leftover or number >= _MAX_LEFTOVERS:
            if detect_generation(storage) is not None:
                raise _exists(storage, "somebody else created it at the same moment")
            raise InvalidInputError(
                f"{storage.location} is not empty (it holds {listed.key!r}); a repository is "
                "created in an empty place: choose another path or prefix, or say "
                "check_clean_root=False if the files may stay",
                kind=Kind.REPOSITORY_EXISTS,
            )


def _claim_config(storage: Storage, ledger: Ledger, config: RepositoryConfig) -> None:
    """Store the configuration, over one that an abandoned creation left behind."""
    if ledger.save_config(config, None) is not None:
        return
    stored, listed = ledger.config(), storage.head(_CONFIG_KEY)
    if stored is None or listed is None:
        raise _exists(storage, "somebody else is creating it")
    if stored.config == config:
        return
    abandoned = storage.now() - listed.created_at > _ABANDONED_AFTER
    if not abandoned or ledger.save_config(config, stored.version) is None:
        raise _exists(storage, "somebody else is creating it with another configuration")


def _exists(storage: Storage, reason: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"cannot create a repository in {storage.location}: {reason}; open it instead"
    )
