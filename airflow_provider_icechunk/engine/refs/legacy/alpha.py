"""The refs of `alpha`: numbered branch files, tags with tombstones, and `config.yaml`."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.legacy.alpha.codec import (
    SEPARATORS,
    AlphaCodec,
    AlphaLayout,
    branch_prefix,
    parse_sequence_file,
    tag_key,
    tombstone_key,
)
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.format.names import MAIN
from airflow_provider_icechunk.engine.format.v1.codec import REF_FILE, REFS, decode_ref, encode_ref
from airflow_provider_icechunk.engine.refs.base import Behind, Creation, Moved, Trust, listed_names
from airflow_provider_icechunk.engine.storage.base import Absent, Storage, Written
from airflow_provider_icechunk.exceptions import FormatError

from .numbered import NumberedBranches, NumberedRefs, attribute_files

_JSON = "application/json"


class AlphaRefs(NumberedRefs):
    """Refs as numbered files, configuration as `config.yaml`.

    Repositories of October 2024 separate `branch` and the name by `:`. They are read, and
    committed to, in that spelling.
    """

    generation = Generation.ALPHA

    def __init__(
        self, storage: Storage, threshold: int | None = None, trust: Trust = Trust.CONDITIONS
    ) -> None:
        self.storage, self.threshold, self.trust = storage, threshold, trust
        self.layout = AlphaLayout()
        self.codec = AlphaCodec(
            attributes=attribute_files(storage, self.layout, self.generation, threshold)
        )
        self._known_separator: str | None = None
        self.numbered = NumberedBranches(
            storage,
            lambda name: branch_prefix(name, self._separator()),
            parse_sequence_file,
            decode_ref,
            frozenset({REF_FILE}),
        )

    def initialize(self, first: Snapshot, config: RepositoryConfig | None = None) -> bool:
        """Create file 0 of `main`: this write creates the repository."""
        del config
        return self.create_branch(MAIN, first.id) is Creation.CREATED

    def branches(self) -> dict[str, SnapshotId]:
        """All branches; a folder without numbered files belongs to a deleted one."""
        return self.numbered.heads(self._names("branch"))

    def create_branch(self, name: str, to: SnapshotId) -> Creation:
        """Create file 0, unless the branch has any file."""
        created = self.numbered.create(name, encode_ref(to))
        return Creation.CREATED if created else Creation.EXISTS

    def commit(self, name: str, expected: SnapshotId, snapshot: Snapshot) -> Moved | Behind:
        """Create the next file; a head with our unique snapshot id is our commit."""
        outcome = self.reset_branch(name, snapshot.id, expected)
        return Moved() if outcome == Behind(snapshot.id) else outcome

    def reset_branch(self, name: str, to: SnapshotId, expected: SnapshotId) -> Moved | Behind:
        """Create the next file if the newest one names `expected`."""
        return self.numbered.move(name, expected, lambda _: encode_ref(to))

    def tags(self) -> dict[str, SnapshotId]:
        """All tags that have no tombstone."""
        names = self._names("tag")
        found = list(zip(names, self._read_tags(names), strict=True))
        strange = {name for name, snapshot in found if snapshot is None}
        if strange and (strange := strange - set(self.deleted_tags())):
            raise FormatError(
                f"{tag_key(min(strange), self._separator())} is missing, and there are other files "
                "in its folder: what the tag refers to is unknown. Restore it, or remove the folder"
            )
        return {name: snapshot for name, snapshot in found if snapshot is not None}

    def tag(self, name: str) -> SnapshotId | None:
        """The snapshot of the tag, unless it has a tombstone."""
        return self._read_tags([name])[0]

    def deleted_tags(self) -> list[str]:
        """Names with a tombstone."""
        names = self._names("tag")
        keys = [tombstone_key(name, self._separator()) for name in names]
        stones = self.storage.get_many([(key, None) for key in keys])
        return [name for name, stone in zip(names, stones, strict=True) if stone is not None]

    def create_tag(self, name: str, to: SnapshotId) -> Creation:
        """Create the ref unless it or its tombstone exists."""
        separator = self._separator()
        if self.storage.head(tombstone_key(name, separator)) is not None:
            return Creation.WAS_DELETED
        created = self._create(tag_key(name, separator), encode_ref(to))
        return Creation.CREATED if created else Creation.EXISTS

    def delete_tag(self, name: str) -> bool:
        """Create the tombstone; the ref itself stays."""
        if self.tag(name) is None:
            return False
        return self._create(tombstone_key(name, self._separator()), b"")

    def relocate(self, missing: SnapshotId) -> SnapshotId | None:
        """The id in the name of the snapshot file with the id `missing` inside.

        Small snapshots are read first: only first snapshots, which hold no nodes, were misnamed.
        """
        return self.find_misnamed(missing)

    def with_options(self, threshold: int | None, trust: Trust) -> AlphaRefs:
        """The same refs with another threshold or trust."""
        return AlphaRefs(self.storage, threshold, trust)

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
        """The separator in this repository's ref names; remembered once `main` exists.

        If both exist, the older one counts: the newer refs come from a migration.
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
        """Raise if the refs of two repositories are mixed: one of them would be lost.

        A migration adds refs of generation `1`, which are not numbered, to those of October
        2024.
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
                    f"{MAIN}/: references of two repositories are in one folder. Move those of one "
                    "of them away"
                )

    def _create(self, key: str, data: bytes) -> bool:
        outcome = self.storage.put(key, data, expect=Absent(), content_type=_JSON)
        return isinstance(outcome, Written)
