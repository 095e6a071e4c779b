"""The ledger of `alpha`: numbered branch files, tags with tombstones, and `config.yaml`."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_icechunk.exceptions import (
    FormatError,
    InvalidInputError,
    UnsupportedError,
)
from airflow_provider_icechunk.format.config import RepositoryConfig, ResolvedConfig
from airflow_provider_icechunk.format.generations.alpha.codec import AlphaCodec
from airflow_provider_icechunk.format.generations.alpha.layout import (
    SEPARATORS,
    AlphaLayout,
    branch_prefix,
    parse_sequence_file,
    tag_key,
    tombstone_key,
)
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.generations.v1.layout import (
    REFS,
    decode_ref,
    encode_ref,
)
from airflow_provider_icechunk.format.ids import SnapshotId, decode_base32
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
from airflow_provider_icechunk.storage.base import (
    Absent,
    Listed,
    Storage,
    Version,
    Written,
)

_SEARCH_BATCH = 64
_JSON = "application/json"


class AlphaLedger:
    """References as numbered files, configuration as `config.yaml`.

    Repositories of October 2024 separate `branch` and name by `:`. They are read and committed to
    in their own spelling.
    """

    generation = Generation.ALPHA
    holds_config = False

    def __init__(self, storage: Storage, threshold: int | None = None) -> None:
        self.storage = storage
        self.layout = AlphaLayout()
        self.codec = AlphaCodec(
            attributes=attribute_files(storage, self.layout, self.generation, threshold)
        )
        self._threshold = threshold
        self._known_separator: str | None = None
        self._branches = NumberedBranches(
            storage,
            lambda name: branch_prefix(name, self._separator()),
            parse_sequence_file,
            decode_ref,
        )

    def initialize(self, first: Snapshot, config: RepositoryConfig | None = None) -> bool:
        """Create file 0 of `main`; who creates it has created the repository."""
        del config
        return self.create_branch(MAIN, first.id) is Creation.CREATED

    def branches(self) -> dict[str, SnapshotId]:
        """All branches; a folder without numbered files is a deleted one."""
        heads = {name: self._branches.head(name) for name in self._names("branch")}
        return {name: head.snapshot for name, head in heads.items() if head is not None}

    def branch(self, name: str) -> SnapshotId | None:
        """Where the branch is."""
        head = self._branches.head(name)
        return None if head is None else head.snapshot

    def create_branch(self, name: str, to: SnapshotId) -> Creation:
        """Create file 0, unless the branch has any file."""
        created = self._branches.create(name, encode_ref(to))
        return Creation.CREATED if created else Creation.EXISTS

    def commit(self, name: str, expected: SnapshotId, snapshot: Snapshot) -> Moved | Behind:
        """Create the next file; snapshot ids are unique, so a head at our own id is our commit."""
        outcome = self.reset_branch(name, snapshot.id, expected)
        return Moved() if outcome == Behind(snapshot.id) else outcome

    def announce(self, snapshot: Snapshot) -> None:
        """Snapshots are found by their files alone."""

    def reset_branch(self, name: str, to: SnapshotId, expected: SnapshotId) -> Moved | Behind:
        """Create the next file if the newest one names `expected`."""
        return self._branches.move(name, expected, lambda _: encode_ref(to))

    def delete_branch(self, name: str) -> bool:
        """Delete all files, the newest last."""
        return self._branches.delete(name)

    def tags(self) -> dict[str, SnapshotId]:
        """All tags without a tombstone."""
        names = self._names("tag")
        found = zip(names, self._read_tags(names), strict=True)
        return {name: snapshot for name, snapshot in found if snapshot is not None}

    def tag(self, name: str) -> SnapshotId | None:
        """What the tag names, unless it has a tombstone."""
        return self._read_tags([name])[0]

    def deleted_tags(self) -> list[str]:
        """Names with a tombstone."""
        names = self._names("tag")
        keys = [tombstone_key(name, self._separator()) for name in names]
        stones = self.storage.get_many([(key, None) for key in keys])
        return [name for name, stone in zip(names, stones, strict=True) if stone is not None]

    def create_tag(self, name: str, to: SnapshotId) -> Creation:
        """Create the reference unless it or its tombstone exists."""
        separator = self._separator()
        if self.storage.head(tombstone_key(name, separator)) is not None:
            return Creation.WAS_DELETED
        created = self._create(tag_key(name, separator), encode_ref(to))
        return Creation.CREATED if created else Creation.EXISTS

    def delete_tag(self, name: str) -> bool:
        """Create the tombstone; the reference itself stays."""
        if self.tag(name) is None:
            return False
        return self._create(tombstone_key(name, self._separator()), b"")

    def config(self) -> StoredConfig | None:
        """The stored `config.yaml`."""
        return read_config(self.storage)

    def save_config(self, config: RepositoryConfig, expected: Version | None) -> Version | None:
        """Swap `config.yaml`."""
        return swap_config(self.storage, config, expected)

    def parent(self, snapshot: Snapshot) -> SnapshotId | None:
        """As the snapshot says; in old files it may be an id that only `relocate` finds."""
        return snapshot.parent_id

    def trusting(self, trust: Trust) -> AlphaLedger:
        """Numbered files need nothing but create-if-absent, which cannot be done without."""
        if not trust.creates:
            raise UnsupportedError(
                "a repository of generation `alpha` cannot be written without conditional creates"
            )
        return self

    def pruned_logs(self, identity: SnapshotId) -> tuple[SnapshotId, ...]:
        """Expiration forgets what it takes out of the history."""
        del identity
        return ()

    def check_writable(self) -> None:
        """It can be written."""

    def following(self, settings: ResolvedConfig) -> AlphaLedger:
        """The same ledger with long attributes in files of their own, or not."""
        threshold = settings.attributes_file_threshold_bytes
        return self if threshold == self._threshold else AlphaLedger(self.storage, threshold)

    def relocate(self, missing: SnapshotId) -> SnapshotId | None:
        """The file name of the snapshot that has `missing` as its id inside.

        Reads snapshots until it is found, small ones first: only first snapshots, which hold no
        nodes, were stored under a wrong name.
        """
        listed = sorted(self.storage.scan(self.layout.snapshots), key=lambda item: item.size)
        for start in range(0, len(listed), _SEARCH_BATCH):
            found = self._holder(missing, listed[start : start + _SEARCH_BATCH])
            if found is not None:
                return found
        return None

    def _holder(self, missing: SnapshotId, listed: list[Listed]) -> SnapshotId | None:
        found = self.storage.get_many([(item.key, None) for item in listed])
        for item, fetched in zip(listed, found, strict=True):
            if fetched is not None and self._is_inside(missing, fetched.data, item.key):
                return _id_in_name(item.key.removeprefix(self.layout.snapshots))
        return None

    def _is_inside(self, wanted: SnapshotId, data: bytes, key: str) -> bool:
        """A file that cannot be read is not the one: others must not suffer from it."""
        try:
            return self.codec.embedded_id(data, where=key) == wanted
        except (FormatError, UnsupportedError):
            return False

    def _read_tags(self, names: list[str]) -> list[SnapshotId | None]:
        separator = self._separator()
        keys = [tag_key(name, separator) for name in names]
        stones = [tombstone_key(name, separator) for name in names]
        found = self.storage.get_many([(key, None) for key in (*keys, *stones)])
        return [
            None if fetched is None or stone is not None else decode_ref(fetched.data, where=key)
            for key, fetched, stone in zip(keys, found, found[len(keys) :], strict=False)
        ]

    def _separator(self) -> str:
        """How this repository spells its references; remembered once there is a `main`.

        The older spelling decides: where it is, the newer one is that of a migration.
        """
        if self._known_separator is None:
            folders = set(self.storage.list_folders(REFS))
            for separator in reversed(SEPARATORS):
                if f"branch{separator}{MAIN}" in folders:
                    self._check_one_spelling(folders, separator)
                    self._known_separator = separator
                    break
        return self._known_separator or SEPARATORS[0]

    def _names(self, what: str) -> list[str]:
        prefix = what + self._separator()
        folders = self.storage.list_folders(REFS)
        self._check_one_spelling(folders, self._separator())
        names = (name.removeprefix(prefix) for name in folders if name.startswith(prefix))
        return listed_names(names, REFS + prefix, what)

    def _check_one_spelling(self, folders: Iterable[str], separator: str) -> None:
        """Refuse references of two repositories: whichever is read, the other is lost.

        Beside those of October 2024 a migration puts references of generation `1`, which are not
        numbered.
        """
        others = tuple(f"{kind}:" for kind in ("branch", "tag"))
        if separator != SEPARATORS[0]:
            others = (f"branch{SEPARATORS[0]}",)
        for name in folders:
            prefix = f"{REFS}{name}/"
            if name.startswith(others) and (
                separator == SEPARATORS[0]
                or any(
                    parse_sequence_file(item.key.removeprefix(prefix)) is not None
                    for item in self.storage.scan(prefix)
                )
            ):
                raise FormatError(
                    f"{prefix} is a reference in another spelling than {REFS}branch{separator}"
                    f"{MAIN}/: references of two repositories lie in one folder. Move those of one "
                    "of them away"
                )

    def _create(self, key: str, data: bytes) -> bool:
        outcome = self.storage.put(key, data, expect=Absent(), content_type=_JSON)
        return isinstance(outcome, Written)


def _id_in_name(name: str) -> SnapshotId | None:
    try:
        return SnapshotId(decode_base32(name))
    except InvalidInputError:
        return None
