"""The refs of `alpha1`: numbered branch files, tags that are never deleted.

Repositories written by development software of September 2024 use other names and had no protection
against concurrent writers; they are read-only.
"""

from __future__ import annotations

from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.legacy.alpha1.codec import Alpha1Codec
from airflow_provider_icechunk.engine.format.legacy.alpha1.layout import (
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
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.format.names import MAIN
from airflow_provider_icechunk.engine.refs.base import Behind, Creation, Moved, Trust, listed_names
from airflow_provider_icechunk.engine.storage.base import Absent, Storage, Written
from airflow_provider_icechunk.engine.world import to_micros
from airflow_provider_icechunk.exceptions import (
    FormatError,
    InvalidInputError,
    Kind,
    UnsupportedError,
)

from .numbered import NumberedBranches, NumberedRefs, attribute_files

_JSON = "application/json"
_BRANCH, _TAG = "branch:", "tag:"


class Alpha1Refs(NumberedRefs):
    """Refs as files below `r/`; the configuration in `config.yaml`, as it was later."""

    generation = Generation.ALPHA1

    def __init__(
        self,
        storage: Storage,
        threshold: int | None = None,
        spelling: Spelling | None = None,
        trust: Trust = Trust.CONDITIONS,
    ) -> None:
        self.storage, self.threshold, self.trust = storage, threshold, trust
        self.spelling = spelling or _spelling(storage)
        self.layout = Alpha1Layout(self.spelling)
        attributes = attribute_files(storage, self.layout, self.generation, threshold)
        self.codec = Alpha1Codec(fetch=self._snapshot_file, attributes=attributes)
        self.numbered = NumberedBranches(storage, self._prefix, parse_state_file, decode_ref)

    def initialize(self, first: Snapshot, config: RepositoryConfig | None = None) -> bool:
        """Create file 0 of `main`: this write creates the repository."""
        del config
        return self.numbered.create(MAIN, encode_ref(first.id, first.flushed_at))

    def branches(self) -> dict[str, SnapshotId]:
        """All branches; a folder without numbered files does not count."""
        folders = self.storage.list_folders(REFS)
        kind = ""
        if self.spelling is Spelling.DEVELOPMENT:
            kind = _BRANCH
            _check_one_spelling(folders)
            folders = [name.removeprefix(kind) for name in folders if name.startswith(kind)]
        return self.numbered.heads(listed_names(folders, REFS + kind, "branch"))

    def create_branch(self, name: str, to: SnapshotId) -> Creation:
        """Create file 0, unless the branch has any file."""
        self.check_writable()
        check_new_branch(name)
        created = self.numbered.create(name, encode_ref(to, self._now()))
        return Creation.CREATED if created else Creation.EXISTS

    def commit(self, name: str, expected: SnapshotId, snapshot: Snapshot) -> Moved | Behind:
        """Create the next file; a head with our unique snapshot id is our commit."""
        self.check_writable()
        outcome = self._move(name, expected, snapshot.id, snapshot.flushed_at)
        return Moved() if outcome == Behind(snapshot.id) else outcome

    def reset_branch(self, name: str, to: SnapshotId, expected: SnapshotId) -> Moved | Behind:
        """Create the next file if the newest one names `expected`."""
        self.check_writable()
        return self._move(name, expected, to, self._now())

    def tags(self) -> dict[str, SnapshotId]:
        """All tags. They are beside the branch folders, so this lists every ref."""
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
        """The snapshot of the tag."""
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
        """Raise: tags of this generation are immutable, unless their snapshot no longer exists."""
        named = self.tag(name)
        if named is None:
            return False
        if self.storage.head(self.layout.snapshot(named)) is None:
            return not self.storage.delete([tag_key(name)]).failed
        raise InvalidInputError(
            f"tag {name!r} cannot be deleted: tags of generation `alpha1` are immutable",
            kind=Kind.INVALID_ARGUMENT,
        )

    def check_writable(self) -> None:
        """Raise for repositories written by development software."""
        if self.spelling is Spelling.DEVELOPMENT:
            raise UnsupportedError(
                f"{self.storage.location} was written by development software of September 2024, "
                "which had no protection against concurrent writers: it is read-only; copy its "
                "data into a new repository"
            )

    def relocate(self, missing: SnapshotId) -> SnapshotId | None:
        """The id in the name of the snapshot file with the id `missing` inside.

        Only development software misnamed first snapshots; other repositories are not searched.
        """
        return None if self.spelling is Spelling.SPECIFIED else self.find_misnamed(missing)

    def with_options(self, threshold: int | None, trust: Trust) -> Alpha1Refs:
        """The same refs with another threshold or trust."""
        return Alpha1Refs(self.storage, threshold, self.spelling, trust)

    def _move(self, name: str, expected: SnapshotId, to: SnapshotId, time: int) -> Moved | Behind:
        return self.numbered.move(
            name, expected, lambda newest: follow_ref(newest, to, time, where=self._prefix(name))
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


def _check_one_spelling(folders: list[str]) -> None:
    """Development software wrote all refs below `r/` in its own spelling."""
    for name in folders:
        if not name.startswith((_BRANCH, _TAG)):
            raise FormatError(
                f"{REFS}{name}/ is a reference in another spelling than {REFS}{_BRANCH}{MAIN}/: "
                "references of two repositories are in one folder. Move those of one of them away"
            )
