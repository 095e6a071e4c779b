"""Create, find and open a repository of any generation.

The write that creates branch `main` creates the repository, and only one writer wins it. A process
that dies before that leaves a first snapshot and perhaps a configuration, which the next attempt
accepts.

A migration keeps the entry point of the older generation until it is asked to remove it. The newest
entry point counts: the write that creates it completes the migration, and before that nothing of
the newer generation is visible. A damaged entry point is an error, never "absent".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import cache, partial
from itertools import islice

from airflow_provider_icechunk.engine.format.codec import FileType
from airflow_provider_icechunk.engine.format.config.codec import encode_config
from airflow_provider_icechunk.engine.format.config.conditions import standard_splitting
from airflow_provider_icechunk.engine.format.config.model import ManifestConfig, RepositoryConfig
from airflow_provider_icechunk.engine.format.detect import (
    FILES_TO_LOOK_AT,
    FIRST_KEYS,
    FOLDERS,
    PROBE_SIZE,
    STATE_KEY,
    EntryPoint,
    Names,
    Opening,
    decide,
    entry_points,
)
from airflow_provider_icechunk.engine.format.file_marks import file_content_type, file_marks
from airflow_provider_icechunk.engine.format.generation import DEFAULT_GENERATION, Generation
from airflow_provider_icechunk.engine.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId, new_id
from airflow_provider_icechunk.engine.format.model import FIRST_MESSAGE, Snapshot, TransactionLog
from airflow_provider_icechunk.engine.refs import open_refs
from airflow_provider_icechunk.engine.refs.base import JustRead, Known, Refs, Trust, read_openings
from airflow_provider_icechunk.engine.storage.base import Bounded, Fetched, Storage, Version
from airflow_provider_icechunk.engine.storage.readback import PROBE_PREFIX
from airflow_provider_icechunk.exceptions import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    Kind,
    MaintenanceError,
    NotFoundError,
)

from .concurrency import run_all, together
from .core import Authorization, Choices, ConditionGuard, Core, build_core, follow, server_of
from .world import World, to_micros


def detect_generation(storage: Storage) -> Generation | None:
    """The generation of the repository in `storage`; `None` if there is none.

    All entry points of generations `2` and `1` are requested together, and those of earlier ones
    after that. List permission is needed only for the latter.

    Raises `FormatError` for an entry point that is damaged, or fenced although the newer
    generation does not exist.
    """
    return decide(*_probes(storage), where=f"{storage.location}/")


def detect_all(storage: Storage) -> Iterator[EntryPoint]:
    """Every entry point in `storage`, lazily, newest first, fenced or not; the first one counts."""
    return entry_points(*_probes(storage), where=f"{storage.location}/")


def check_newest(storage: Storage, generation: Generation) -> None:
    """Raise `MaintenanceError` if the repository has been migrated to a newer generation.

    With the old references, maintenance would delete what only the new ones reach.
    """
    if generation.is_newest:
        return
    found = detect_generation(storage)
    if found is not generation:
        raise MaintenanceError(
            f"{storage.location} was opened as a repository of generation `{generation}` and is "
            f"now {'gone' if found is None else f'one of generation `{found}`'}: open it again. "
            "Nothing else was changed or deleted"
        )


def _probes(storage: Storage, found: JustRead | None = None) -> tuple[Opening, Names]:
    if found is None:
        answers = read_openings(storage, [(key, Bounded(0, PROBE_SIZE)) for key in FIRST_KEYS])
        first = dict(zip(FIRST_KEYS, answers, strict=True))
    else:
        first = found.objects
    early = cache(partial(_early_places, storage))

    def opening(key: str) -> bytes | None:
        fetched = first[key] if key in first else early()[1]
        return None if fetched is None else fetched.data[:PROBE_SIZE]

    def names(folder: str) -> Iterable[str]:
        return early()[0][folder]

    return opening, names


def _early_places(storage: Storage) -> tuple[dict[str, list[str]], Fetched | None]:
    """The names in the folders that early generations have, and the start of the state file."""

    def names(folder: str) -> list[str]:
        try:
            listed = list(islice(storage.scan(folder), FILES_TO_LOOK_AT + 1))
        except AccessDeniedError:
            # The first file of a branch is never replaced; it differs only if it is damaged.
            return [_FIRST_FILE] if storage.head(folder + _FIRST_FILE) is not None else []
        return [item.key.removeprefix(folder) for item in listed]

    *found, state = together(
        *(partial(names, folder) for folder in FOLDERS),
        lambda: storage.get(STATE_KEY, Bounded(0, PROBE_SIZE)),
    )
    return dict(zip(FOLDERS, found, strict=True)), state


_FIRST_FILE = "ZZZZZZZZ.json"
_CONFIG_KEY = "config.yaml"
_NO_CHOICES = Choices()
_ABANDONED_AFTER = timedelta(seconds=60)
_MAX_LEFTOVERS = 64


def create(
    storage: Storage,
    generation: Generation,
    config: RepositoryConfig | None,
    world: World,
    *,
    check_clean_root: bool = True,
) -> Refs:
    """Create a repository in an empty location; `AlreadyExistsError` if there is one."""
    settings = (config or RepositoryConfig()).resolved().storage
    trust = Trust.of(
        creates=settings.use_conditional_create, updates=settings.use_conditional_update
    )
    refs = open_refs(generation, storage, world)
    # If only leftovers are listed, there is no entry point of any generation.
    unread = True
    if check_clean_root:
        unread = _check_clean(storage, refs)
    else:
        _check_absent(storage)
    refs = refs.trusting(trust)
    asked = ConditionGuard(storage, trust).begin()
    first = _first_snapshot(generation, world)
    chosen = None if config == RepositoryConfig() else config
    if generation.splits_by_default:
        chosen = _with_standard_rules(chosen or RepositoryConfig())
    writes: list[Callable[[], object]] = [partial(_put_first, refs, trust, storage, first)]
    if chosen is not None and not refs.holds_config:
        writes.append(partial(_claim_config, storage, refs, chosen))
    *_, version = together(*writes)
    for answer in asked:
        answer.result()
    storage.settle()
    if not refs.initialize(first, chosen):
        raise _exists(storage, "somebody else created one at the same time")
    if chosen is None:
        return refs if unread else refs.after(Known({_CONFIG_KEY: None}))
    if version is None:
        return refs
    return refs.after(Known({_CONFIG_KEY: Fetched(encode_config(chosen), version)}))


def _with_standard_rules(config: RepositoryConfig) -> RepositoryConfig:
    """The configuration to store: rules that split manifests are part of it."""
    standard = RepositoryConfig(manifest=ManifestConfig(splitting=standard_splitting()))
    return standard.merge(config)


def _put_first(refs: Refs, trust: Trust, storage: Storage, first: Snapshot) -> None:
    """Store the first snapshot and, where it has one, its log."""
    layout, codec, generation = refs.layout, refs.codec, refs.generation
    files = [(layout.snapshot(first.id), FileType.SNAPSHOT, codec.encode_snapshot(first, level=3))]
    if generation.logs_first_snapshot:
        log = codec.encode_log(TransactionLog(first.id), level=3)
        files.append((layout.transaction(first.id), FileType.TRANSACTION_LOG, log))

    def put(file: tuple[str, FileType, bytes]) -> None:
        key, kind, data = file
        storage.put(
            key,
            data,
            expect=trust.create(),
            metadata=file_marks(generation, kind),
            content_type=file_content_type(generation),
        )

    run_all(put, files, at_once=len(files))


def _first_snapshot(generation: Generation, world: World) -> Snapshot:
    nested = generation.nests_own_metadata
    root = {"__icechunk": {"is_root": True}} if nested else {"__root": True}
    identity = new_id(generation, world.entropy(generation.id_size))
    return Snapshot(
        id=INITIAL_SNAPSHOT_ID if generation.fixed_first_id else SnapshotId(identity),
        parent_id=None,
        flushed_at=to_micros(world.now()),
        message=FIRST_MESSAGE,
        metadata=root,
        nodes={},
    )


def _check_absent(storage: Storage) -> None:
    """Refuse a location that holds a repository."""
    existing = detect_generation(storage)
    if existing is not None:
        raise _exists(storage, f"it holds a repository of format generation `{existing}`")


def _check_clean(storage: Storage, refs: Refs) -> bool:
    """Refuse a location that holds anything but leftovers of an unfinished creation.

    Returns whether a configuration is among them.
    """
    layout, configured = refs.layout, False
    folders = (layout.snapshots, layout.transactions)[: 2 if refs.holds_config else 1]
    for number, listed in enumerate(storage.scan("")):
        configured |= listed.key == _CONFIG_KEY
        leftover = listed.key == _CONFIG_KEY or listed.key.startswith((PROBE_PREFIX, *folders))
        if not leftover or number >= _MAX_LEFTOVERS:
            _check_absent(storage)
            raise InvalidInputError(
                f"{storage.location} is not empty (it holds {listed.key!r}); choose another path "
                "or prefix for the repository, or pass check_clean_root=False to keep the files",
                kind=Kind.REPOSITORY_EXISTS,
            )
    return configured


def _claim_config(storage: Storage, refs: Refs, config: RepositoryConfig) -> Version:
    """Store the configuration, replacing that of an abandoned creation."""
    version = refs.save_config(config, None)
    if version is not None:
        return version
    stored, listed = refs.config(), storage.head(_CONFIG_KEY)
    if stored is None or listed is None:
        raise _exists(storage, "somebody else is creating one")
    if stored.config == config:
        return stored.version
    abandoned = storage.now() - listed.created_at > _ABANDONED_AFTER
    version = refs.save_config(config, stored.version) if abandoned else None
    if version is None:
        raise _exists(storage, "somebody else is creating one with another configuration")
    return version


def _exists(storage: Storage, reason: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"cannot create a repository in {storage.location}: {reason}; open it instead"
    )


def create_core(
    storage: Storage,
    spec_version: int | str | None,
    choices: Choices,
    *,
    check_clean_root: bool = True,
) -> Core:
    """Create a repository in an empty location and open it."""
    generation = generation_named(spec_version)
    storage = follow(storage, choices.config)
    refs = create(
        storage, generation, choices.config, choices.world, check_clean_root=check_clean_root
    )
    return build_core(refs, storage, choices)


def find_core(storage: Storage, choices: Choices = _NO_CHOICES) -> Core | None:
    """Open the repository; `None` if there is none."""
    storage = follow(storage, choices.config)
    found = None
    if server_of(storage) is not None:
        # Elsewhere reading again costs less than checking whether the first read is still fresh.
        found = JustRead(storage, (*FIRST_KEYS, _CONFIG_KEY), choices.world.monotonic)
    generation = decide(*_probes(storage, found), where=f"{storage.location}/")
    if generation is None:
        return None
    return build_core(open_refs(generation, storage, choices.world), storage, choices, found)


def open_core(storage: Storage, choices: Choices = _NO_CHOICES) -> Core:
    """Open the repository; `NotFoundError` if there is none."""
    found = find_core(storage, choices)
    if found is None:
        raise NotFoundError(
            f"the repository doesn't exist: {storage.location} contains none; check the "
            "path or prefix, or create one there with `Repository.create`"
        )
    return found


def open_or_create_core(
    storage: Storage,
    spec_version: int | str | None,
    choices: Choices,
    *,
    check_clean_root: bool = True,
) -> Core:
    """Open the repository, or create it if there is none."""
    found = find_core(storage, choices)
    if found is not None:
        return found
    try:
        return create_core(storage, spec_version, choices, check_clean_root=check_clean_root)
    except AlreadyExistsError:
        return open_core(storage, choices)


def reopen_core(
    core: Core, config: RepositoryConfig | None, authorize: Authorization | None
) -> Core:
    """Reopen the same repository with another configuration or other grants."""
    grants = core.authorize if authorize is None else authorize
    return build_core(core.refs, core.storage, Choices(config, grants, core.packing, core.world))


def stored_config(storage: Storage) -> RepositoryConfig | None:
    """The configuration stored with a repository, if there is one."""
    generation = detect_generation(storage)
    if generation is None:
        return None
    stored = open_refs(generation, storage).config()
    return None if stored is None else stored.config


def save_config(core: Core, version: Version | None) -> Version:
    """Store the effective configuration, unless the stored one is no longer at `version`."""
    saved = core.refs.save_config(core.config, version)
    if saved is None:
        raise ConflictError(
            f"the configuration of {core.storage.location} has changed since this repository "
            "was opened; open it again, apply your change and save",
            kind=Kind.CONFIG_CHANGED,
        )
    return saved


def generation_named(spec_version: int | str | None) -> Generation:
    """The generation with this name, or the default; raises for unknown names."""
    if spec_version is None:
        return DEFAULT_GENERATION
    try:
        return Generation(str(spec_version))
    except ValueError:
        names = ", ".join(generation.value for generation in Generation)
        raise InvalidInputError(
            f"Unsupported version {spec_version}: Couldn't parse a valid version of the format "
            f"from it; choose one of: {names}"
        ) from None
