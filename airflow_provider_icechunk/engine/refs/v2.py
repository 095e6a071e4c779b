"""The refs of generation `2`: one `repo` object, changed by one conditional write at a time.

An update reads the object, applies the change to the value, stores a copy of what it read under
`overwritten/`, and writes the new state if nobody else has. The loser of a race starts again from
the newer state, so changes to different branches do not conflict. A process that dies leaves at
most one superfluous copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from airflow_provider_icechunk.engine.format.codec import FileType
from airflow_provider_icechunk.engine.format.config.codec import config_from_tree, config_to_tree
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig, ResolvedConfig
from airflow_provider_icechunk.engine.format.detect import REPO_KEY
from airflow_provider_icechunk.engine.format.file_marks import FILE_CONTENT_TYPE, file_marks
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import (
    OBJECT_ID_SIZE,
    SnapshotId,
    encode_base32,
    format_id,
)
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.format.v1.codec import V1Layout
from airflow_provider_icechunk.engine.format.v2 import updates
from airflow_provider_icechunk.engine.format.v2.codec import V2Codec
from airflow_provider_icechunk.engine.format.v2.repo import (
    Availability,
    Feature,
    OperationsEntry,
    RepoInfo,
    SnapshotRecord,
    initial,
    is_enabled,
)
from airflow_provider_icechunk.engine.format.v2.repo_codec import decode_repo, encode_repo
from airflow_provider_icechunk.engine.format.v2.updates import Applied, Change, Reason, Refused
from airflow_provider_icechunk.engine.format.wire import flexbuffers
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.base import (
    Anything,
    Expectation,
    PutOutcome,
    Storage,
    Version,
    Written,
)
from airflow_provider_icechunk.engine.world import REAL_WORLD, World, to_micros
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    Kind,
    NotFoundError,
    ReadOnlyError,
    UnsupportedError,
)

from .base import (
    Behind,
    Creation,
    JustRead,
    Moved,
    Registered,
    StoredConfig,
    Trust,
    count_move,
    get_once,
)

OVERWRITTEN = "overwritten/"
_LAST_MILLISECOND = 32_503_680_000_000
"""Backup names count down from the year 3000, so listings show the newest first."""
_METADATA = file_marks(Generation.V2, FileType.REPO_INFO)


@dataclass(frozen=True, slots=True)
class _RepoState:
    """The `repo` object as this process last read or wrote it."""

    info: RepoInfo
    data: bytes
    version: Version


class V2Refs:
    """Refs, history, configuration and operations log in one object."""

    generation = Generation.V2
    holds_config = True

    def __init__(
        self,
        storage: Storage,
        world: World = REAL_WORLD,
        trust: Trust = Trust.CONDITIONS,
        settings: ResolvedConfig | None = None,
    ) -> None:
        self.storage = storage
        self._settings = settings or ResolvedConfig()
        self.codec = V2Codec(compression=self._settings.location_compression)
        self.layout = V1Layout()
        self._world = world
        self._trust = trust
        self._last: _RepoState | None = None
        self._found: JustRead | None = None

    def initialize(self, first: Snapshot, config: RepositoryConfig | None = None) -> bool:
        """Create the `repo` object: this write creates the repository."""
        stored = None if config is None else encode_config(config)
        return self.establish(initial(first, at=to_micros(self._world.now()), config=stored))

    def establish(self, info: RepoInfo) -> bool:
        """Create the `repo` object in a given state. False: it exists."""
        if not self._trust.creates and self.storage.head(REPO_KEY) is not None:
            return False
        count_move()
        return isinstance(self._put(REPO_KEY, encode_repo(info), self._trust.create()), Written)

    def roots(self) -> tuple[dict[str, SnapshotId], dict[str, SnapshotId]]:
        """All branches and all tags, as of one moment."""
        info = self.info()
        return dict(sorted(info.branches.items())), dict(sorted(info.tags.items()))

    def branches(self) -> dict[str, SnapshotId]:
        """All branches by name."""
        return dict(sorted(self.info().branches.items()))

    def branch(self, name: str) -> SnapshotId | None:
        """The snapshot of the branch."""
        return self.info().branches.get(name)

    def create_branch(self, name: str, to: SnapshotId) -> Creation:
        """Create a branch at a listed snapshot."""
        outcome = self.update(updates.CreateBranch(name, to))
        if outcome is None:
            return Creation.CREATED
        if outcome.reason is Reason.UNLISTED:
            raise self._unlisted(to)
        return Creation.EXISTS

    def commit(self, name: str, expected: SnapshotId, snapshot: Snapshot) -> Moved | Behind:
        """List the snapshot and move the branch to it; a head with our unique id is our commit."""
        return self._move(updates.AddCommit(name, expected, SnapshotRecord.of(snapshot)))

    def amend(self, name: str, expected: SnapshotId, snapshot: Snapshot) -> Moved | Behind:
        """Replace the newest commit `expected` with the snapshot."""
        return self._move(updates.AmendCommit(name, expected, SnapshotRecord.of(snapshot)))

    def announce(self, snapshot: Snapshot) -> None:
        """List a snapshot that no branch points at, so that a branch can be created at it."""
        outcome = self.update(updates.AddDetached(SnapshotRecord.of(snapshot)))
        if outcome is not None and outcome.reason is Reason.UNLISTED:
            assert snapshot.parent_id is not None
            raise self._unlisted(snapshot.parent_id)

    def reset_branch(self, name: str, to: SnapshotId, expected: SnapshotId) -> Moved | Behind:
        """Move the branch to a listed snapshot if it is still at `expected`."""
        outcome = self.update(updates.ResetBranch(name, to, expected))
        if outcome is None:
            return Moved()
        if outcome.reason is Reason.UNLISTED:
            raise self._unlisted(to)
        return Behind(outcome.actual)

    def delete_branch(self, name: str) -> bool:
        """Delete the branch."""
        return self.update(updates.DeleteBranch(name)) is None

    def tags(self) -> dict[str, SnapshotId]:
        """All tags except deleted ones."""
        return dict(sorted(self.info().tags.items()))

    def tag(self, name: str) -> SnapshotId | None:
        """The snapshot of the tag."""
        return self.info().tags.get(name)

    def deleted_tags(self) -> list[str]:
        """Names of deleted tags."""
        return sorted(self.info().deleted_tags)

    def create_tag(self, name: str, to: SnapshotId) -> Creation:
        """Create a tag at a listed snapshot."""
        outcome = self.update(updates.CreateTag(name, to))
        if outcome is None:
            return Creation.CREATED
        if outcome.reason is Reason.UNLISTED:
            raise self._unlisted(to)
        return Creation.WAS_DELETED if outcome.reason is Reason.WAS_DELETED else Creation.EXISTS

    def delete_tag(self, name: str) -> bool:
        """Delete the tag and remember its name."""
        return self.update(updates.DeleteTag(name)) is None

    def config(self) -> StoredConfig | None:
        """The configuration in the object; its version is a hash of its bytes alone."""
        stored = self._fetch(again=True).info.config
        if stored is None:
            return None
        where = f"{REPO_KEY}: the configuration"
        config = config_from_tree(flexbuffers.decode(stored, where=where), where=where)
        return StoredConfig(config, _config_version(stored))

    def save_config(self, config: RepositoryConfig, expected: Version | None) -> Version | None:
        """Replace the configuration in the object."""
        stored = self.info().config
        if (None if stored is None else _config_version(stored)) != expected:
            return None
        data = encode_config(config)
        outcome = self.update(updates.SetConfig(data, stored))
        return _config_version(data) if outcome is None else None

    def parent(self, snapshot: Snapshot) -> SnapshotId | None:
        """The parent in the state last read; a snapshot that is not in it causes another read.

        Walking a history therefore takes one request, not one per snapshot: it starts at a
        ref that was just read.
        """
        record = self._record(snapshot.id)
        return snapshot.parent_id if record is None else record.parent_id

    def pruned_logs(self, identity: SnapshotId) -> tuple[SnapshotId, ...]:
        """Snapshots that expired between this one and its parent, oldest first."""
        record = self._record(identity)
        return () if record is None else record.pruned_logs

    def trusting(self, trust: Trust) -> V2Refs:
        """The same refs, relying on these conditional writes."""
        if trust is self._trust:
            return self
        return self._twin(trust, self._settings)

    def check_writable(self) -> None:
        """Raise if the status last read is read-only; a change checks it again."""
        self._check_online((self._last or self._fetch()).info)

    def check_listed(self, identity: SnapshotId) -> None:
        """Raise for an unlisted snapshot: it expired, even if its file still exists."""
        if identity not in self.info().snapshots:
            raise self._unlisted(identity)

    def register(self) -> Registered:
        """Refs and snapshots of the current state."""
        info = self.info()
        return Registered(info.branches, info.tags, info.snapshots.keys())

    def unlist(self, snapshots: frozenset[SnapshotId]) -> bool:
        """Remove snapshots from the list, unless a remaining one is their child."""

        def has_no_heirs(info: RepoInfo) -> bool:
            return not any(
                record.parent_id in snapshots
                for one, record in info.snapshots.items()
                if one not in snapshots
            )

        return self.update(updates.Collect(snapshots), accept=has_no_heirs) is None

    def following(self, settings: ResolvedConfig) -> V2Refs:
        """The same refs with these retries, log length and location compression."""
        if settings == self._settings:
            return self
        return self._twin(self._trust, settings)

    def after(self, found: JustRead | None) -> V2Refs:
        """The same refs, which need not read again what was just read."""
        if found is None:
            return self
        twin = self._twin(self._trust, self._settings)
        twin._found = found
        return twin

    def _twin(self, trust: Trust, settings: ResolvedConfig) -> V2Refs:
        twin = V2Refs(self.storage, self._world, trust, settings)
        twin._last, twin._found = self._last, self._found
        return twin

    def relocate(self, missing: SnapshotId) -> SnapshotId | None:
        """None: every snapshot is stored under its own id."""
        del missing
        return None

    def info(self) -> RepoInfo:
        """The current state."""
        return self._fetch().info

    def operations(self) -> Iterator[OperationsEntry]:
        """The operations log, newest first; it ends at the first backup that is missing."""
        info, name = self.info(), None
        seen: set[str] = set()
        while True:
            for number, update in enumerate(info.updates):
                yield OperationsEntry(
                    update.event, update.updated_at, update.backup if number else name
                )
            name = info.before_updates
            if name is None or name in seen:
                return
            seen.add(name)
            found = self.storage.get(OVERWRITTEN + name)
            if found is None:
                return
            info = decode_repo(found.data, where=OVERWRITTEN + name)

    def update(
        self,
        change: Change,
        *,
        silent: bool = False,
        accept: Callable[[RepoInfo], bool] | None = None,
    ) -> Refused | None:
        """Apply a change; returns `None` on success, otherwise the reason for the refusal.

        :param silent: do not add to the operations log.
        :param accept: called with each state the change is applied to; `False` refuses the change.
        """
        retries = self._settings.repo_update_retries
        backoff = Backoff(
            retries.max_tries,
            first_pause=2 * retries.initial_backoff_ms / 1000,
            longest_pause=retries.max_backoff_ms / 1000,
            at_once=5,
            world=self._world,
        )
        state = self._guess(change)
        for _ in backoff.attempts():
            state = state or self._fetch()
            if accept is not None and not accept(state.info):
                return Refused(Reason.MOVED)
            self._check_allowed(change, state.info)
            match updates.apply(change, state.info):
                case Refused() as refused:
                    return refused
                case Applied() as applied:
                    if self._swap(state, applied, silent=silent):
                        return None
            state = None
        raise ConflictError(
            f"other writers changed {REPO_KEY} in {self.storage.location} {backoff.tries} times "
            "in a row; try again later",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def _guess(self, change: Change) -> _RepoState | None:
        """The state last read, if a commit fits it; the write's condition verifies it."""
        last = self._last
        if last is None or not isinstance(change, updates.AddCommit) or not self._trust.updates:
            return None
        return last if last.info.branches.get(change.branch) == change.expected else None

    def _move(self, change: updates.AddCommit | updates.AmendCommit) -> Moved | Behind:
        outcome = self.update(change)
        if outcome is None or outcome.actual == change.record.id:
            return Moved()
        return Behind(outcome.actual)

    def _swap(self, state: _RepoState, applied: Applied, *, silent: bool) -> bool:
        now = to_micros(self._world.now())
        info = applied.info
        if not silent:
            backup = self._backup_name(now)
            most = self._settings.num_updates_per_repo_info_file
            info = updates.record(info, applied.event, at=now, backup=backup, most=most)
            self._put(OVERWRITTEN + backup, state.data, Anything())
            self.storage.settle()
        data = encode_repo(info)
        count_move()
        outcome = self._put(REPO_KEY, data, self._trust.update(state.version))
        if not isinstance(outcome, Written):
            return False
        self._last = _RepoState(info, data, outcome.version)
        return True

    def _put(self, key: str, data: bytes, expect: Expectation) -> PutOutcome:
        return self.storage.put(
            key, data, expect=expect, metadata=_METADATA, content_type=FILE_CONTENT_TYPE
        )

    def _fetch(self, *, again: bool = False) -> _RepoState:
        found = get_once(self.storage, REPO_KEY, self._found, again=again)
        if found is None:
            raise NotFoundError(
                f"the repository in {self.storage.location} no longer exists: its `{REPO_KEY}` "
                "object is missing"
            )
        last = self._last
        if last is not None and last.data == found.data:
            state = _RepoState(last.info, last.data, found.version)
        else:
            state = _RepoState(decode_repo(found.data, where=REPO_KEY), found.data, found.version)
        self._last = state
        return state

    def _record(self, identity: SnapshotId) -> SnapshotRecord | None:
        last = self._last
        if last is not None and identity in last.info.snapshots:
            return last.info.snapshots[identity]
        return self.info().snapshots.get(identity)

    def _check_allowed(self, change: Change, info: RepoInfo) -> None:
        if isinstance(change, updates.SetStatus):
            return
        self._check_online(info)
        needed = _NEEDED_FEATURES.get(type(change))
        if needed is not None and not is_enabled(info, needed):
            raise UnsupportedError(
                f"feature `{needed.name.lower()}` is disabled in {self.storage.location}"
            )

    def _check_online(self, info: RepoInfo) -> None:
        status = info.status
        if status.availability is Availability.READ_ONLY:
            raise ReadOnlyError(
                f"repository status is read-only in {self.storage.location}"
                + (f": {status.reason}" if status.reason else "; set its status to change it")
            )

    def _backup_name(self, now: int) -> str:
        countdown = max(_LAST_MILLISECOND - now // 1000, 0)
        return f"{REPO_KEY}.{countdown:014}.{encode_base32(self._world.entropy(OBJECT_ID_SIZE))}"

    def _unlisted(self, identity: SnapshotId) -> NotFoundError:
        return NotFoundError(
            f"snapshot {format_id(self.generation, identity)} is not listed in "
            f"{self.storage.location}: it was expired, or its commit never finished",
            kind=Kind.SNAPSHOT_NOT_FOUND,
        )


_NEEDED_FEATURES: dict[type[Change], Feature] = {
    updates.CreateTag: Feature.CREATE_TAG,
    updates.DeleteTag: Feature.DELETE_TAG,
}


def encode_config(config: RepositoryConfig) -> bytes:
    """Encode a configuration for the `repo` object."""
    return flexbuffers.encode(config_to_tree(config, tags=False))


def _config_version(data: bytes) -> Version:
    return Version(hashlib.sha256(data).hexdigest())
