"""The ledger of `alpha1`: numbered branch files, tags that are never deleted.

A repository as software of September 2024 wrote it is spelled differently and had no protection
against two writers; it can be read, not written.
"""

from __future__ import annotations

from airflow_provider_icechunk.exceptions import (
    FormatError,
    InvalidInputError,
    Kind,
    UnsupportedError,
)
from airflow_provider_icechunk.format.config import RepositoryConfig, ResolvedConfig
from airflow_provider_icechunk.format.generations.alpha1.codec import Alpha1Codec
from airflow_provider_icechunk.format.generations.alpha1.layout import (
    REFS,
    Alpha1Layout,
    Spelling,
    branch_prefix,
    check_new_branch,
    decode_ref,
    encode_ref,
    follow_ref,
    parse_state_file,
    tag_key,
)
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.ids import (
    EARLY_OBJECT_ID_SIZE,
    SnapshotId,
    decode_base32,
)
from airflow_provider_icechunk.format.names import MAIN
from airflow_provider_icechunk.format.snapshot import Snapshot
from airflow_provider_icechunk.repository.ledgers.attribute_store import attribute_files
from airflow_provider_icechunk.repository.ledgers.base import (
    Behind,
    Creation,
    Moved,
    StoredConfig,
    Trust,
)
from airflow_provider_icechunk.repository.ledgers.config_file import read_config, swap_config
from airflow_provider_icechunk.repository.ledgers.listed import listed_names
from airflow_provider_icechunk.repository.ledgers.numbered import NumberedBranches
from airflow_provider_icechunk.repository.world import to_micros
from airflow_provider_icechunk.storage.base import (
    Absent,
    Storage,
    Version,
    Written,
)

_JSON = "application/json"
_BRANCH, _TAG = "branch:", "tag:"


class Alpha1Ledger:
    """References as files below `r/`; the configuration as the `config.yaml` of later days."""

    generation = Generation.ALPHA1
    holds_config = False

    def __init__(
        self,
        storage: Storage,
        threshold: int | None = None,
        spelling: Spelling | None = None,
    ) -> None:
        self.storage = storage
        self.spelling = spelling or _spelling(storage)
        self.layout = Alpha1Layout(self.spelling)
        attributes = attribute_files(storage, self.layout, self.generation, threshold)
        self.codec = Alpha1Codec(fetch=self._snapshot_file, attributes=attributes)
        self._threshold = threshold
        self._branches = NumberedBranches(storage, self._prefix, parse_state_file, decode_ref)

    def initialize(self, first: Snapshot, config: RepositoryConfig | None = None) -> bool:
        """Create file 0 of `main`; who creates it has created the repository."""
        del config
        return self._branches.create(MAIN, encode_ref(first.id, first.flushed_at))

    def branches(self) -> dict[str, SnapshotId]:
        """All branches; a folder without numbered files is none."""
        folders = self.storage.list_folders(REFS)
        kind = ""
        if self.spelling is Spelling.DEVELOPMENT:
            kind = _BRANCH
            _check_one_spelling(folders)
            folders = [name.removeprefix(kind) for name in folders if name.startswith(kind)]
        names = listed_names(folders, REFS + kind, "branch")
        heads = {name: self._branches.head(name) for name in names}
        return {name: head.snapshot for name, head in heads.items() if head is not None}

    def branch(self, name: str) -> SnapshotId | None:
        """Where the branch is."""
        head = self._branches.head(name)
        return None if head is None else head.snapshot

    def create_branch(self, name: str, to: SnapshotId) -> Creation:
        """Create file 0, unless the branch has any file."""
        self.check_writable()
        check_new_branch(name)
        created = self._branches.create(name, encode_ref(to, self._now()))
        return Creation.CREATED if created else Creation.EXISTS

    def commit(self, name: str, expected: SnapshotId, snapshot: Snapshot) -> Moved | Behind:
        """Create the next file; snapshot ids are unique, so a head at our own id is our commit."""
        self.check_writable()
        outcome = self._move(name, expected, snapshot.id, snapshot.flushed_at)
        return Moved() if outcome == Behind(snapshot.id) else outcome

    def announce(self, snapshot: Snapshot) -> None:
        """Snapshots are found by their files alone."""

    def reset_branch(self, name: str, to: SnapshotId, expected: SnapshotId) -> Moved | Behind:
        """Create the next file if the newest one names `expected`."""
        self.check_writable()
        return self._move(name, expected, to, self._now())

    def delete_branch(self, name: str) -> bool:
        """Delete all files, the newest last."""
        self.check_writable()
        return self._branches.delete(name)

    def tags(self) -> dict[str, SnapshotId]:
        """All tags. They lie beside the folders of branches, so every reference is listed."""
        kind = _TAG if self.spelling is Spelling.DEVELOPMENT else ""
        names = listed_names(self._tag_names(), REFS + kind, "tag")
        keys = [tag_key(name, self.spelling) for name in names]
        found = self.storage.get_many([(key, None) for key in keys])
        return {
            name: decode_ref(fetched.data, where=key)
            for name, key, fetched in zip(names, keys, found, strict=True)
            if fetched is not None
        }

    def tag(self, name: str) -> SnapshotId | None:
        """What the tag names."""
        key = tag_key(name, self.spelling)
        found = self.storage.get(key)
        return None if found is None else decode_ref(found.data, where=key)

    def deleted_tags(self) -> list[str]:
        """None: tags cannot be deleted."""
        return []

    def create_tag(self, name: str, to: SnapshotId) -> Creation:
        """Create the file unless it exists."""
        self.check_writable()
        outcome = self.storage.put(
            tag_key(name), encode_ref(to, self._now()), expect=Absent(), content_type=_JSON
        )
        return Creation.CREATED if isinstance(outcome, Written) else Creation.EXISTS

    def delete_tag(self, name: str) -> bool:
        """Refused: tags of this generation are for ever."""
        if self.tag(name) is None:
            return False
        raise InvalidInputError(
            f"tag {name!r} cannot be deleted: in generation `alpha1` tags are for ever",
            kind=Kind.INVALID_ARGUMENT,
        )

    def config(self) -> StoredConfig | None:
        """The stored `config.yaml`."""
        return read_config(self.storage)

    def save_config(self, config: RepositoryConfig, expected: Version | None) -> Version | None:
        """Swap `config.yaml`."""
        self.check_writable()
        return swap_config(self.storage, config, expected)

    def parent(self, snapshot: Snapshot) -> SnapshotId | None:
        """The youngest ancestor that the snapshot lists."""
        return snapshot.parent_id

    def pruned_logs(self, identity: SnapshotId) -> tuple[SnapshotId, ...]:
        """None: there are no logs, and what changed is found by comparing snapshots."""
        del identity
        return ()

    def trusting(self, trust: Trust) -> Alpha1Ledger:
        """Numbered files need nothing but create-if-absent, which cannot be done without."""
        if not trust.creates:
            raise UnsupportedError(
                "a repository of generation `alpha1` cannot be written without conditional creates"
            )
        return self

    def check_writable(self) -> None:
        """Refuse repositories of development software."""
        if self.spelling is Spelling.DEVELOPMENT:
            raise UnsupportedError(
                f"{self.storage.location} was written by development software of September 2024, "
                "which had no protection against two writers: it can only be read; copy its data "
                "into a new repository"
            )

    def following(self, settings: ResolvedConfig) -> Alpha1Ledger:
        """The same ledger with long attributes in files of their own, or not."""
        threshold = settings.attributes_file_threshold_bytes
        if threshold == self._threshold:
            return self
        return Alpha1Ledger(self.storage, threshold, self.spelling)

    def relocate(self, missing: SnapshotId) -> SnapshotId | None:
        """The file name of the first snapshot that has `missing` as its id inside.

        Only software of September 2024 named first snapshots wrongly. Repositories as specified are
        not searched.
        """
        if self.spelling is Spelling.SPECIFIED:
            return None
        for item in self.storage.scan(self.layout.snapshots):
            found = self.storage.get(item.key)
            if found is not None and self._is_inside(missing, found.data, item.key):
                name = item.key.removeprefix(self.layout.snapshots)
                return _id_in_name(name.removesuffix(self.spelling.value))
        return None

    def _is_inside(self, wanted: SnapshotId, data: bytes, key: str) -> bool:
        """A file that cannot be read is not the one: others must not suffer from it."""
        try:
            return self.codec.embedded_id(data, where=key) == wanted
        except (FormatError, UnsupportedError):
            return False

    def _move(self, name: str, expected: SnapshotId, to: SnapshotId, time: int) -> Moved | Behind:
        return self._branches.move(
            name,
            expected,
            lambda newest: follow_ref(newest, to, time, where=self._prefix(name)),
        )

    def _prefix(self, name: str) -> str:
        return branch_prefix(name, self.spelling)

    def _tag_names(self) -> list[str]:
        if self.spelling is Spelling.DEVELOPMENT:
            folders = self.storage.list_folders(REFS)
            return [name.removeprefix(_TAG) for name in folders if name.startswith(_TAG)]
        names = (item.key.removeprefix(REFS) for item in self.storage.scan(REFS))
        return [n.removesuffix(".json") for n in names if "/" not in n and n.endswith(".json")]

    def _now(self) -> int:
        return to_micros(self.storage.now())

    def _snapshot_file(self, identity: SnapshotId) -> bytes | None:
        found = self.storage.get(self.layout.snapshot(identity))
        return None if found is None else found.data


def _spelling(storage: Storage) -> Spelling:
    folders = storage.list_folders(REFS)
    development = any(name.startswith(_BRANCH) for name in folders)
    return Spelling.DEVELOPMENT if development else Spelling.SPECIFIED


def _id_in_name(name: str) -> SnapshotId | None:
    try:
        return SnapshotId(decode_base32(name, EARLY_OBJECT_ID_SIZE))
    except InvalidInputError:
        return None


def _check_one_spelling(folders: list[str]) -> None:
    """Software of September 2024 wrote all references below `r/`, and all in its own spelling."""
    for name in folders:
        if not name.startswith((_BRANCH, _TAG)):
            raise FormatError(
                f"{REFS}{name}/ is a reference in another spelling than {REFS}{_BRANCH}{MAIN}/: "
                "references of two repositories lie in one folder. Move those of one of them away"
            )
