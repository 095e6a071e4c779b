"""The ledger of generation `2`: one `repo` object, changed by one conditional write at a time.

An update reads the object, applies the change to it as a value, keeps a copy of what it read under
`overwritten/`, and writes the new state on condition that nobody else has. Whoever loses starts
again from the newer state, so that changes to different branches do not disturb each other. A
process that dies leaves at most a copy too many.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from airflow_provider_icechunk.exceptions import (
    ConflictError,
    Kind,
    NotFoundError,
    ReadOnlyError,
    UnsupportedError,
)
from airflow_provider_icechunk.format.config import RepositoryConfig, ResolvedConfig
from airflow_provider_icechunk.format.config_codec import config_from_tree, config_to_tree
from airflow_provider_icechunk.format.file_marks import FILE_CONTENT_TYPE, file_marks
from airflow_provider_icechunk.format.generations.base import FileType, Generation
from airflow_provider_icechunk.format.generations.detect import REPO_KEY
from airflow_provider_icechunk.format.generations.v1.layout import V1Layout
from airflow_provider_icechunk.format.generations.v2 import repo_updates as updates
from airflow_provider_icechunk.format.generations.v2.codec import V2Codec
from airflow_provider_icechunk.format.generations.v2.events import Availability
from airflow_provider_icechunk.format.generations.v2.flags import Feature, is_enabled
from airflow_provider_icechunk.format.generations.v2.repo_codec import decode_repo, encode_repo
from airflow_provider_icechunk.format.generations.v2.repo_info import (
    RepoInfo,
    SnapshotRecord,
    Update,
    initial,
)
from airflow_provider_icechunk.format.generations.v2.repo_updates import (
    Applied,
    Change,
    Reason,
    Refused,
)
from airflow_provider_icechunk.format.ids import OBJECT_ID_SIZE, SnapshotId, encode_base32
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.format.wire import flexbuffers
from airflow_provider_icechunk.repository.ledgers.base import (
    Behind,
    Creation,
    Ledger,
    Moved,
    Registered,
    StoredConfig,
    Trust,
)
from airflow_provider_icechunk.repository.world import REAL_WORLD, World, to_micros
from airflow_provider_icechunk.storage.base import Anything, Storage, Version, Written

OVERWRITTEN = "overwritten/"
_LAST_MILLISECOND = 32_503_680_000_000
"""Names of copies count down from the year 3000, so that listings show the newest first."""
_AT_ONCE = 5
_METADATA = file_marks(Generation.V2, FileType.REPO_INFO)


@dataclass(frozen=True, slots=True)
class _State:
    """The `repo` object as it was last read or written here."""

    info: RepoInfo
    data: bytes
    version: Version


class V2Ledger:
    """References, history, configuration and operations log in one object."""

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
        self._last: _State | None = None

    def initialize(self, first: Snapshot, config: RepositoryConfig | None = None) -> bool:
        """Create the `repo` object; who creates it has created the repository."""
        stored = None if config is None else encode_config(config)
        return self.establish(initial(first, at=to_micros(self._world.now()), config=stored))

    def establish(self, info: RepoInfo) -> bool:
        """Create the `repo` object in a given state. False: it exists."""
        if not self._trust.creates and self.storage.head(REPO_KEY) is not None:
            return False
        outcome = self.storage.put(
            REPO_KEY,
            encode_repo(info),
            expect=self._trust.create(),
            metadata=_METADATA,
            content_type=FILE_CONTENT_TYPE,
        )
        return isinstance(outcome, Written)

    def branches(self) -> dict[str, SnapshotId]:
        """All branches by name."""
        return dict(sorted(self.info().branches.items()))

    def branch(self, name: str) -> SnapshotId | None:
        """Where the branch is."""
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
        """List the snapshot and move the branch to it; ids are unique, so a head there is ours."""
        record = SnapshotRecord.of(snapshot)
        outcome = self.update(updates.AddCommit(name, expected, record))
        if outcome is None or outcome.actual == snapshot.id:
            return Moved()
        return Behind(outcome.actual)

    def amend(self, name: str, expected: SnapshotId, snapshot: Snapshot) -> Moved | Behind:
        """Let the snapshot take the place of the newest commit `expected`."""
        record = SnapshotRecord.of(snapshot)
        outcome = self.update(updates.AmendCommit(name, expected, record))
        if outcome is None or outcome.actual == snapshot.id:
            return Moved()
        return Behind(outcome.actual)

    def announce(self, snapshot: Snapshot) -> None:
        """List a snapshot that no branch names, so that it can be given one."""
        outcome = self.update(updates.AddDetached(SnapshotRecord.of(snapshot)))
        if outcome is not None and outcome.reason is Reason.UNLISTED:
            assert snapshot.parent_id is not None
            raise self._unlisted(snapshot.parent_id)

    def reset_branch(self, name: str, to: SnapshotId, expected: SnapshotId) -> Moved | Behind:
        """Move the branch to a listed snapshot if it still is at `expected`."""
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
        """All tags that were not deleted."""
        return dict(sorted(self.info().tags.items()))

    def tag(self, name: str) -> SnapshotId | None:
        """What the tag names."""
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
        """Bury the tag."""
        return self.update(updates.DeleteTag(name)) is None

    def config(self) -> StoredConfig | None:
        """The configuration in the object; its version is that of its bytes alone."""
        stored = self.info().config
        if stored is None:
            return None
        where = f"{REPO_KEY}: the configuration"
        config = config_from_tree(flexbuffers.decode(stored, where=where), where=where)
        return StoredConfig(config, _config_version(stored))

    def save_config(self, config: RepositoryConfig, expected: Version | None) -> Version | None:
        """Put the configuration into the object."""
        stored = self.info().config
        if (None if stored is None else _config_version(stored)) != expected:
            return None
        data = encode_config(config)
        outcome = self.update(updates.SetConfig(data, stored))
        return _config_version(data) if outcome is None else None

    def parent(self, snapshot: Snapshot) -> SnapshotId | None:
        """As the state last read says; a snapshot that is not listed is looked up anew.

        Walking a history takes one request, not one for each snapshot: it starts at a reference,
        which was just read.
        """
        record = self._record(snapshot.id)
        return snapshot.parent_id if record is None else record.parent_id

    def pruned_logs(self, identity: SnapshotId) -> tuple[SnapshotId, ...]:
        """Snapshots that expired between this one and its parent, oldest first."""
        record = self._record(identity)
        return () if record is None else record.pruned_logs

    def trusting(self, trust: Trust) -> V2Ledger:
        """The same ledger on a store whose conditional writes are used or not."""
        if trust is self._trust:
            return self
        return V2Ledger(self.storage, self._world, trust, self._settings)

    def check_writable(self) -> None:
        """Refuse if the status last read is read-only; a change looks at it anew."""
        self._check_online((self._last or self._fetch()).info)

    def check_listed(self, identity: SnapshotId) -> None:
        """Refuse a snapshot that is not listed: it expired, though its file may still be there."""
        if identity not in self.info().snapshots:
            raise self._unlisted(identity)

    def register(self) -> Registered:
        """References and snapshots of the present state."""
        info = self.info()
        return Registered(info.branches, info.tags, info.snapshots.keys())

    def strike_off(self, snapshots: frozenset[SnapshotId]) -> bool:
        """Take snapshots off the list, unless one that stays stands on them."""

        def has_no_heirs(info: RepoInfo) -> bool:
            return not any(
                record.parent_id in snapshots
                for one, record in info.snapshots.items()
                if one not in snapshots
            )

        return self.update(updates.Collect(snapshots), accept=has_no_heirs) is None

    def following(self, settings: ResolvedConfig) -> V2Ledger:
        """The same ledger with chosen retries, length of the log and compression of locations."""
        if settings == self._settings:
            return self
        twin = V2Ledger(self.storage, self._world, self._trust, settings)
        twin._last = self._last
        return twin

    def relocate(self, missing: SnapshotId) -> SnapshotId | None:
        """Every snapshot is stored under its own id."""
        del missing
        return None

    def info(self) -> RepoInfo:
        """The present state."""
        return self._fetch().info

    def operations(self) -> Iterator[Update]:
        """The operations log, newest first; it ends where a copy it continues in is gone."""
        info, name = self.info(), None
        seen: set[str] = set()
        while True:
            for number, update in enumerate(info.updates):
                yield Update(update.event, update.updated_at, update.backup if number else name)
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
        """Apply a change; `None` if it was applied, else why it cannot be.

        :param silent: leave the operations log as it is.
        :param accept: called with each state the change is applied to; `False` refuses it.
        """
        tries = self._settings.repo_update_retries.max_tries
        for attempt in range(tries):
            self._pause(attempt)
            state = self._fetch()
            if accept is not None and not accept(state.info):
                return Refused(Reason.MOVED)
            self._check_allowed(change, state.info)
            match updates.apply(change, state.info):
                case Refused() as refused:
                    return refused
                case Applied() as applied:
                    if self._swap(state, applied, silent=silent):
                        return None
        raise ConflictError(
            f"{REPO_KEY} in {self.storage.location} was changed {tries} times while a change to "
            "it was tried; try again later",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def _swap(self, state: _State, applied: Applied, *, silent: bool) -> bool:
        now = to_micros(self._world.now())
        info = applied.info
        if not silent:
            backup = self._backup_name(now)
            most = self._settings.num_updates_per_repo_info_file
            info = updates.record(info, applied.event, at=now, backup=backup, most=most)
            key = OVERWRITTEN + backup
            self.storage.put(
                key,
                state.data,
                expect=Anything(),
                metadata=_METADATA,
                content_type=FILE_CONTENT_TYPE,
            )
            self.storage.settle()
        data = encode_repo(info)
        outcome = self.storage.put(
            REPO_KEY,
            data,
            expect=self._trust.update(state.version),
            metadata=_METADATA,
            content_type=FILE_CONTENT_TYPE,
        )
        if not isinstance(outcome, Written):
            return False
        self._last = _State(info, data, outcome.version)
        return True

    def _fetch(self) -> _State:
        found = self.storage.get(REPO_KEY)
        if found is None:
            raise NotFoundError(
                f"there is no repository in {self.storage.location} any more: its `{REPO_KEY}` "
                "object is gone"
            )
        last = self._last
        if last is not None and last.data == found.data:
            state = _State(last.info, last.data, found.version)
        else:
            state = _State(decode_repo(found.data, where=REPO_KEY), found.data, found.version)
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
                f"{self.storage.location} is read-only"
                + (f": {status.reason}" if status.reason else "; set its status to change it")
            )

    def _pause(self, attempt: int) -> None:
        """No pause at first; then longer and longer ones, with full jitter."""
        if attempt > _AT_ONCE:
            retries = self._settings.repo_update_retries
            grown = retries.initial_backoff_ms * 2 ** min(attempt - _AT_ONCE, 20)
            longest = min(retries.max_backoff_ms, grown)
            self._world.sleep(longest / 1000 * self._world.jitter())

    def _backup_name(self, now: int) -> str:
        countdown = max(_LAST_MILLISECOND - now // 1000, 0)
        return f"{REPO_KEY}.{countdown:014}.{encode_base32(self._world.entropy(OBJECT_ID_SIZE))}"

    def _unlisted(self, identity: SnapshotId) -> NotFoundError:
        return NotFoundError(
            f"snapshot {encode_base32(identity)} is not listed in {self.storage.location}: it was "
            "expired, or its commit never finished",
            kind=Kind.SNAPSHOT_NOT_FOUND,
        )


def newer_ledger(ledger: Ledger, what: str) -> V2Ledger:
    """The ledger if it is one of generation `2`, which `what` needs."""
    if not isinstance(ledger, V2Ledger):
        raise UnsupportedError(
            f"this repository is of generation `{ledger.generation}`; {what} needs generation `2`"
        )
    return ledger


_NEEDED_FEATURES: dict[type[Change], Feature] = {
    updates.CreateTag: Feature.CREATE_TAG,
    updates.DeleteTag: Feature.DELETE_TAG,
}


def encode_config(config: RepositoryConfig) -> bytes:
    """A configuration as the `repo` object holds it."""
    return flexbuffers.encode(config_to_tree(config, tags=False))


def _config_version(data: bytes) -> Version:
    return Version(hashlib.sha256(data).hexdigest())
