"""The ledger of `draft`: `state.json`, replaced as a whole on condition that it is unchanged.

Every change reads the document, applies itself to it as a value, and stores the result under the
next `generation` if the object is still the one that was read. Whoever loses starts again from the
newer document, so that changes to different branches do not disturb each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar
from uuid import NAMESPACE_OID, uuid5

from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    ConflictError,
    Kind,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from airflow_provider_icechunk.format.config import RepositoryConfig, ResolvedConfig
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.generations.draft.codec import DraftCodec
from airflow_provider_icechunk.format.generations.draft.layout import (
    DraftLayout,
    parquet_name,
)
from airflow_provider_icechunk.format.generations.draft.state import (
    STATE_KEY,
    Entry,
    Ref,
    RefType,
    State,
    decode_state,
    encode_state,
    entry_of,
)
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.format.names import MAIN, check_ref_name
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.repository.ledgers.attribute_store import attribute_files
from airflow_provider_icechunk.repository.ledgers.base import (
    Behind,
    Creation,
    Moved,
    Registered,
    StoredConfig,
    Trust,
)
from airflow_provider_icechunk.repository.ledgers.config_file import read_config, swap_config
from airflow_provider_icechunk.repository.ledgers.draft_root import folder_below
from airflow_provider_icechunk.repository.world import REAL_WORLD, World
from airflow_provider_icechunk.storage.base import (
    Absent,
    Exactly,
    Storage,
    Version,
    Written,
)

_TRIES = 100
_AT_ONCE = 5
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0
_JSON = "application/json"

T = TypeVar("T")


class DraftLedger:
    """Snapshots, branches and tags in one document; the configuration beside it."""

    generation = Generation.DRAFT
    holds_config = False

    def __init__(
        self,
        storage: Storage,
        world: World = REAL_WORLD,
        threshold: int | None = None,
        layout: DraftLayout | None = None,
    ) -> None:
        self.storage = storage
        self._layout = layout or DraftLayout()
        self._looked = layout is not None
        attributes = attribute_files(storage, self._layout, self.generation, threshold)
        self.codec = DraftCodec(entry=self._listed, attributes=attributes, layout=self._layout)
        self._threshold = threshold
        self._world = world
        self._entries: dict[SnapshotId, Entry] = {}
        self._newest = 0

    @property
    def layout(self) -> DraftLayout:
        """Where files are: the state says in which folder, so it is read first."""
        if not self._looked:
            self._read_if_there()
        return self._layout

    def initialize(self, first: Snapshot, config: RepositoryConfig | None = None) -> bool:
        """Create the document; its id is made from that of the first snapshot."""
        del config
        state = State(
            id=str(uuid5(NAMESPACE_OID, first.id.hex())),
            generation=1,
            snapshots={first.id: entry_of(first)},
            refs={MAIN: Ref(first.id, "branch")},
        )
        outcome = self.storage.put(
            STATE_KEY, encode_state(state), expect=Absent(), content_type=_JSON
        )
        return isinstance(outcome, Written)

    def branches(self) -> dict[str, SnapshotId]:
        """All branches."""
        return self._read()[0].named("branch")

    def branch(self, name: str) -> SnapshotId | None:
        """Where the branch is."""
        check_ref_name(name)
        return self.branches().get(name)

    def create_branch(self, name: str, to: SnapshotId) -> Creation:
        """Add a branch unless there is one; a name is that of a branch or of a tag, not of both."""
        return self._create(name, "branch", to)

    def commit(self, name: str, expected: SnapshotId, snapshot: Snapshot) -> Moved | Behind:
        """List the snapshot and move the branch to it; a branch at our own id is our commit."""
        entry = entry_of(snapshot)

        def apply(state: State) -> tuple[State | None, Moved | Behind]:
            actual = state.named("branch").get(name)
            if actual == snapshot.id:
                return None, Moved()
            if actual != expected:
                return None, Behind(actual)
            return state.listing(entry).pointing(name, "branch", snapshot.id), Moved()

        return self._update(apply)

    def announce(self, snapshot: Snapshot) -> None:
        """List a snapshot that no branch names."""
        entry = entry_of(snapshot)
        self._update(
            lambda state: (None if snapshot.id in state.snapshots else state.listing(entry), None)
        )

    def reset_branch(self, name: str, to: SnapshotId, expected: SnapshotId) -> Moved | Behind:
        """Move the branch if it still is at `expected`."""

        def apply(state: State) -> tuple[State | None, Moved | Behind]:
            actual = state.named("branch").get(name)
            if actual != expected:
                return None, Behind(actual)
            return self._with_line(state, to).pointing(name, "branch", to), Moved()

        check_ref_name(name)
        return self._update(apply)

    def delete_branch(self, name: str) -> bool:
        """Remove the branch."""
        return self._delete(name, "branch")

    def tags(self) -> dict[str, SnapshotId]:
        """All tags."""
        return self._read()[0].named("tag")

    def tag(self, name: str) -> SnapshotId | None:
        """What the tag names."""
        check_ref_name(name, "tag")
        return self.tags().get(name)

    def deleted_tags(self) -> list[str]:
        """Names that the document remembers as deleted."""
        return sorted(self._read()[0].deleted_tags)

    def create_tag(self, name: str, to: SnapshotId) -> Creation:
        """Add a tag unless there is or was one of this name."""
        return self._create(name, "tag", to)

    def delete_tag(self, name: str) -> bool:
        """Remove the tag and remember its name."""
        return self._delete(name, "tag")

    def config(self) -> StoredConfig | None:
        """The stored `config.yaml`. The state is read too: it says what files are called."""
        self._read_if_there()
        return read_config(self.storage)

    def save_config(self, config: RepositoryConfig, expected: Version | None) -> Version | None:
        """Swap `config.yaml`."""
        return swap_config(self.storage, config, expected)

    def parent(self, snapshot: Snapshot) -> SnapshotId | None:
        """As the state lists it; what it does not list stands on what its file says."""
        entry = self._entries.get(snapshot.id)
        return snapshot.parent_id if entry is None else entry.parent

    def pruned_logs(self, identity: SnapshotId) -> tuple[SnapshotId, ...]:
        """None: there are no logs, and what changed is found by comparing snapshots."""
        del identity
        return ()

    def trusting(self, trust: Trust) -> DraftLedger:
        """One document for everything cannot be replaced blindly."""
        if not (trust.creates and trust.updates):
            raise UnsupportedError(
                "a repository of generation `draft` cannot be written without conditional writes: "
                "one writer would undo what others did"
            )
        return self

    def check_writable(self) -> None:
        """It can be written."""

    def register(self) -> Registered:
        """References and snapshots of the present state."""
        state = self._read()[0]
        return Registered(state.named("branch"), state.named("tag"), state.snapshots.keys())

    def strike_off(self, snapshots: frozenset[SnapshotId]) -> bool:
        """Drop snapshots from the state, unless a reference or one that stays needs them."""

        def apply(state: State) -> tuple[State | None, bool]:
            named = {*state.named("branch").values(), *state.named("tag").values()}
            left = {one: entry for one, entry in state.snapshots.items() if one not in snapshots}
            needed = named | {entry.parent for entry in left.values()}
            if needed & snapshots:
                return None, False
            changed = len(left) < len(state.snapshots)
            return (replace(state, snapshots=left) if changed else None), True

        return self._update(apply)

    def state(self) -> State:
        """The present state."""
        return self._read()[0]

    def change(self, apply: Callable[[State], State | None]) -> None:
        """Replace the state by what `apply` makes of it; `None` leaves it."""
        self._update(lambda state: (apply(state), None))

    def following(self, settings: ResolvedConfig) -> DraftLedger:
        """The same ledger with long attributes in files of their own, or not."""
        threshold = settings.attributes_file_threshold_bytes
        if threshold == self._threshold:
            return self
        twin = DraftLedger(self.storage, self._world, threshold, self._layout)
        twin._looked = self._looked
        twin._newest = self._newest
        twin._entries = self._entries
        return twin

    def relocate(self, missing: SnapshotId) -> SnapshotId | None:
        """The state says what every file is called."""
        del missing
        return None

    def _create(self, name: str, kind: RefType, to: SnapshotId) -> Creation:
        def apply(state: State) -> tuple[State | None, Creation]:
            other: RefType = "tag" if kind == "branch" else "branch"
            if name in state.named(kind):
                return None, Creation.EXISTS
            if kind == "tag" and name in state.deleted_tags:
                return None, Creation.WAS_DELETED
            if name in state.named(other):
                raise AlreadyExistsError(
                    f"{name!r} is the name of a {other} already; in generation `draft` branches "
                    "and tags share one list of names: choose another",
                    kind=Kind.TAG_EXISTS if other == "tag" else Kind.BRANCH_EXISTS,
                )
            return self._with_line(state, to).pointing(name, kind, to), Creation.CREATED

        check_ref_name(name, kind)
        return self._update(apply)

    def _delete(self, name: str, kind: RefType) -> bool:
        check_ref_name(name, kind)
        return self._update(
            lambda state: (
                (state.forgetting(name), True) if name in state.named(kind) else (None, False)
            )
        )

    def _with_line(self, state: State, to: SnapshotId) -> State:
        """The state with `to` listed, and those of its ancestors that are not."""
        entries: dict[SnapshotId, Entry] = {}
        current: SnapshotId | None = to
        while current is not None and current not in state.snapshots and current not in entries:
            snapshot = self._load(current)
            entries[current] = entry_of(snapshot)
            current = snapshot.parent_id
        return state.listing(*reversed(entries.values())) if entries else state

    def _load(self, identity: SnapshotId) -> Snapshot:
        key = self.layout.snapshot(identity)
        found = self.storage.get(key)
        if found is None:
            raise NotFoundError(
                f"there is no snapshot {key} in {self.storage.location}",
                kind=Kind.SNAPSHOT_NOT_FOUND,
            )
        return self.codec.decode_snapshot(found.data, identity, where=key)

    def _listed(self, identity: SnapshotId, again: bool) -> Entry | None:
        """What the state says of a snapshot, by what is known of it or by reading it again."""
        if identity not in self._entries and again:
            self._read_if_there()
        return self._entries.get(identity)

    def _update(self, apply: Callable[[State], tuple[State | None, T]]) -> T:
        """Replace the document by what `apply` makes of it; nothing where it gives `None`."""
        for attempt in range(_TRIES):
            self._pause(attempt)
            state, version = self._read()
            changed, result = apply(state)
            if changed is None:
                return result
            following = changed.next()
            outcome = self.storage.put(
                STATE_KEY, encode_state(following), expect=Exactly(version), content_type=_JSON
            )
            if isinstance(outcome, Written):
                self._remember(following)
                return result
        raise ConflictError(
            f"{STATE_KEY} of {self.storage.location} was replaced {_TRIES} times while it was "
            "being changed; try again",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def _pause(self, attempt: int) -> None:
        """No pause at first; then longer and longer ones, with full jitter."""
        if attempt > _AT_ONCE:
            longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt - _AT_ONCE, 10))
            self._world.sleep(longest * self._world.jitter())

    def _read(self) -> tuple[State, Version]:
        found = self._read_if_there()
        if found is None:
            raise StorageError(
                f"{STATE_KEY} is missing in {self.storage.location}: the repository was deleted",
                kind=Kind.OBJECT_MISSING,
            )
        return found

    def _read_if_there(self) -> tuple[State, Version] | None:
        """The document as it is; one older than what was read before is no basis for anything."""
        known = self._newest
        found = self.storage.get(STATE_KEY)
        self._looked = True
        if found is None:
            return None
        state = decode_state(found.data)
        if state.generation < known:
            raise StorageError(
                f"{STATE_KEY} of {self.storage.location} went back from generation {known} to "
                f"{state.generation}: an old copy was put in its place. Open the repository anew "
                "to work with that copy"
            )
        self._remember(state)
        return state, found.version

    def _remember(self, state: State) -> None:
        root = folder_below(state.store_root, self.storage.location, where=STATE_KEY)
        if self._newest and root != self._layout.root:
            raise StorageError(
                f"the data of {self.storage.location} moved from {self._layout.root!r} to {root!r}"
                " while it was open: open the repository anew"
            )
        self._layout.root = root
        self._newest = max(self._newest, state.generation)
        self._entries = dict(state.snapshots)
        for entry in state.snapshots.values():
            if entry.structure_file != parquet_name(entry.id):
                self._layout.names[entry.id] = entry.structure_file
