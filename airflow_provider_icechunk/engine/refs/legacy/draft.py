"""The refs of `draft`: everything is in `state.json`, which is replaced as a whole.

An update reads the document, applies the change to the value, and stores the result with the next
`generation` if the object is still the one that was read. The loser of a race starts again from the
newer document, so changes to different branches do not conflict.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar
from urllib.parse import unquote
from uuid import NAMESPACE_OID, uuid5

from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig, ResolvedConfig
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.legacy.draft.codec import DraftCodec
from airflow_provider_icechunk.engine.format.legacy.draft.layout import DraftLayout, parquet_name
from airflow_provider_icechunk.engine.format.legacy.draft.state import (
    STATE_KEY,
    Ref,
    RefType,
    StateEntry,
    StateFile,
    decode_state,
    encode_state,
    entry_of,
)
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.format.names import MAIN, check_file_name, check_ref_name
from airflow_provider_icechunk.engine.refs.base import (
    Behind,
    Creation,
    Moved,
    RefFiles,
    Refs,
    Registered,
    StoredConfig,
    Trust,
    read_config,
)
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.base import Absent, Exactly, Storage, Version, Written
from airflow_provider_icechunk.engine.world import REAL_WORLD, World
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    ConflictError,
    FormatError,
    InvalidInputError,
    Kind,
    NotFoundError,
    StorageError,
    UnsupportedError,
)

from .numbered import attribute_files

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://(?:localhost(?=/))?)?")
_SAME_SCHEME = {"s3a": "s3", "s3n": "s3"}


def folder_below(store_root: str | None, location: str, *, where: str) -> str:
    """The folder of the data below the opened location: empty, or ending in a slash.

    A state file is untrusted: a folder outside that location is refused.
    """
    if not store_root:
        return ""
    spellings = (store_root, unquote(store_root))
    folder = next((f for f in (_relative(s, location) for s in spellings) if f is not None), None)
    if folder is None:
        raise UnsupportedError(
            f"{where}: keeps its data in {store_root[:200]!r}, which is not below the opened "
            f"location {location}; nothing outside of it is read. Open the location of the data, "
            "with a copy of the state file there that has no `store_root` (and no `sha256`)"
        )
    try:
        return f"{check_file_name(folder, 'folder')}/" if folder else ""
    except InvalidInputError as error:
        raise FormatError(f"{where}: `store_root`: {error.message}") from None


def _relative(target: str, location: str) -> str | None:
    """The path from a location to a URI, an absolute or a relative path; `None` if outside."""
    scheme = _SCHEME.match(target)
    if scheme is None and not target.startswith("/"):
        return target.removeprefix("./").rstrip("/")
    rest = target if scheme is None else target[scheme.end() :]
    kind = "file" if scheme is None else _SAME_SCHEME.get(scheme[1].lower(), scheme[1].lower())
    whole, home = f"{kind}://{rest}".rstrip("/"), location.rstrip("/")
    if whole == home:
        return ""
    return whole.removeprefix(f"{home}/") if whole.startswith(f"{home}/") else None


_SWAPS = Backoff(100, first_pause=0.1, longest_pause=5.0, at_once=5)
_JSON = "application/json"

T = TypeVar("T")


class DraftRefs(RefFiles):
    """Snapshots, branches and tags in one document; the configuration next to it."""

    generation = Generation.DRAFT
    trust = Trust.CONDITIONS

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
        self._entries: dict[SnapshotId, StateEntry] = {}
        self._newest = 0

    @property
    def layout(self) -> DraftLayout:
        """The keys of files: the state names their folder, so it is read first."""
        if not self._looked:
            self._read_if_there()
        return self._layout

    def initialize(self, first: Snapshot, config: RepositoryConfig | None = None) -> bool:
        """Create the document; its id is derived from that of the first snapshot."""
        del config
        state = StateFile(
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
        """The snapshot of the branch."""
        check_ref_name(name)
        return self.branches().get(name)

    def create_branch(self, name: str, to: SnapshotId) -> Creation:
        """Add a branch unless it exists; a branch and a tag cannot share a name."""
        return self._create(name, "branch", to)

    def commit(self, name: str, expected: SnapshotId, snapshot: Snapshot) -> Moved | Behind:
        """List the snapshot and move the branch to it; a head with our unique id is our commit."""
        entry = entry_of(snapshot)

        def apply(state: StateFile) -> tuple[StateFile | None, Moved | Behind]:
            actual = state.named("branch").get(name)
            if actual == snapshot.id:
                return None, Moved()
            if actual != expected:
                return None, Behind(actual)
            return state.listing(entry).pointing(name, "branch", snapshot.id), Moved()

        return self._update(apply)

    def announce(self, snapshot: Snapshot) -> None:
        """List a snapshot that no branch points at."""
        entry = entry_of(snapshot)
        self._update(
            lambda state: (None if snapshot.id in state.snapshots else state.listing(entry), None)
        )

    def reset_branch(self, name: str, to: SnapshotId, expected: SnapshotId) -> Moved | Behind:
        """Move the branch if it is still at `expected`."""

        def apply(state: StateFile) -> tuple[StateFile | None, Moved | Behind]:
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
        """The snapshot of the tag."""
        check_ref_name(name, "tag")
        return self.tags().get(name)

    def deleted_tags(self) -> list[str]:
        """Names that the document lists as deleted."""
        return sorted(self._read()[0].deleted_tags)

    def create_tag(self, name: str, to: SnapshotId) -> Creation:
        """Add a tag unless one of this name exists or was deleted."""
        return self._create(name, "tag", to)

    def delete_tag(self, name: str) -> bool:
        """Remove the tag and remember its name."""
        return self._delete(name, "tag")

    def config(self) -> StoredConfig | None:
        """Read `config.yaml`, and the state, which contains the names of files."""
        self._read_if_there()
        return read_config(self.storage)

    def parent(self, snapshot: Snapshot) -> SnapshotId | None:
        """The parent in the state; for unlisted snapshots, that in their file."""
        entry = self._entries.get(snapshot.id)
        return snapshot.parent_id if entry is None else entry.parent

    def trusting(self, trust: Trust) -> DraftRefs:
        """The same refs; a single document cannot be replaced blindly."""
        if not (trust.creates and trust.updates):
            raise UnsupportedError(
                "a repository of generation `draft` cannot be written without conditional writes: "
                "one writer would undo the changes of others"
            )
        return self

    def register(self) -> Registered:
        """Refs and snapshots of the current state."""
        state = self._read()[0]
        return Registered(state.named("branch"), state.named("tag"), state.snapshots.keys())

    def unlist(self, snapshots: frozenset[SnapshotId]) -> bool:
        """Remove snapshots from the state unless a ref or a remaining snapshot needs them."""

        def apply(state: StateFile) -> tuple[StateFile | None, bool]:
            named = {*state.named("branch").values(), *state.named("tag").values()}
            left = {one: entry for one, entry in state.snapshots.items() if one not in snapshots}
            needed = named | {entry.parent for entry in left.values()}
            if needed & snapshots:
                return None, False
            changed = len(left) < len(state.snapshots)
            return (replace(state, snapshots=left) if changed else None), True

        return self._update(apply)

    def state(self) -> StateFile:
        """The current state."""
        return self._read()[0]

    def change(self, apply: Callable[[StateFile], StateFile | None]) -> None:
        """Replace the state with the result of `apply`; `None` leaves it unchanged."""
        self._update(lambda state: (apply(state), None))

    def following(self, settings: ResolvedConfig) -> DraftRefs:
        """The same refs with the configured threshold for separate attributes files."""
        threshold = settings.attributes_file_threshold_bytes
        if threshold == self._threshold:
            return self
        twin = DraftRefs(self.storage, self._world, threshold, self._layout)
        twin._looked = self._looked
        twin._newest = self._newest
        twin._entries = self._entries
        return twin

    def _create(self, name: str, kind: RefType, to: SnapshotId) -> Creation:
        def apply(state: StateFile) -> tuple[StateFile | None, Creation]:
            other: RefType = "tag" if kind == "branch" else "branch"
            if name in state.named(kind):
                return None, Creation.EXISTS
            if kind == "tag" and name in state.deleted_tags:
                return None, Creation.WAS_DELETED
            if name in state.named(other):
                raise AlreadyExistsError(
                    f"{name!r} is already the name of a {other}; in generation `draft` branches "
                    "and tags share one list of names: choose another name",
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

    def _with_line(self, state: StateFile, to: SnapshotId) -> StateFile:
        """The state with `to` and its unlisted ancestors added."""
        entries: dict[SnapshotId, StateEntry] = {}
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
                f"snapshot {key} does not exist in {self.storage.location}",
                kind=Kind.SNAPSHOT_NOT_FOUND,
            )
        return self.codec.decode_snapshot(found.data, identity, where=key)

    def _listed(self, identity: SnapshotId, again: bool) -> StateEntry | None:
        if identity not in self._entries and again:
            self._read_if_there()
        return self._entries.get(identity)

    def _update(self, apply: Callable[[StateFile], tuple[StateFile | None, T]]) -> T:
        for _ in replace(_SWAPS, world=self._world).attempts():
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
            f"other writers replaced {STATE_KEY} in {self.storage.location} {_SWAPS.tries} times "
            "in a row; try again",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def _read(self) -> tuple[StateFile, Version]:
        found = self._read_if_there()
        if found is None:
            raise StorageError(
                f"{STATE_KEY} is missing in {self.storage.location}: the repository was deleted",
                kind=Kind.OBJECT_MISSING,
            )
        return found

    def _read_if_there(self) -> tuple[StateFile, Version] | None:
        """The current document; raises if it is older than the one read before."""
        known = self._newest
        found = self.storage.get(STATE_KEY)
        self._looked = True
        if found is None:
            return None
        state = decode_state(found.data)
        if state.generation < known:
            raise StorageError(
                f"{STATE_KEY} of {self.storage.location} went back from generation {known} to "
                f"{state.generation}: an old copy replaced it. Open the repository again "
                "to work with that copy"
            )
        self._remember(state)
        return state, found.version

    def _remember(self, state: StateFile) -> None:
        root = folder_below(state.store_root, self.storage.location, where=STATE_KEY)
        if self._newest and root != self._layout.root:
            raise StorageError(
                f"the data of {self.storage.location} moved from {self._layout.root!r} to {root!r}"
                " while it was open: open the repository again"
            )
        self._layout.root = root
        self._newest = max(self._newest, state.generation)
        self._entries = dict(state.snapshots)
        for entry in state.snapshots.values():
            if entry.structure_file != parquet_name(entry.id):
                self._layout.names[entry.id] = entry.structure_file


def draft_refs(refs: Refs) -> DraftRefs:
    """The refs, checked to be of generation `draft`."""
    if not isinstance(refs, DraftRefs):
        raise UnsupportedError(
            f"this repository is of generation `{refs.generation}`, which has no state file"
        )
    return refs
