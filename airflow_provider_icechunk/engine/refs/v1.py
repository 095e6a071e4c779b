"""The refs of generation `1`: one conditional `ref.json` per branch and tag, one `config.yaml`.

Each change is one conditional write, so a crash leaves a ref at the old or the new snapshot.
Deleting a tag creates a tombstone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from airflow_provider_icechunk.engine.concurrency import together
from airflow_provider_icechunk.engine.format.config.model import RepositoryConfig
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.format.names import MAIN, check_ref_name
from airflow_provider_icechunk.engine.format.v1.codec import (
    REF_FILE,
    REFS,
    TOMBSTONE_FILE,
    V1Codec,
    V1Layout,
    branch_key,
    decode_ref,
    encode_ref,
    tag_key,
    tombstone_key,
)
from airflow_provider_icechunk.engine.retry import at_once
from airflow_provider_icechunk.engine.storage.base import Fetched, Storage, Version, Written
from airflow_provider_icechunk.exceptions import ConflictError, FormatError, Kind, StorageError

from .base import (
    Behind,
    Creation,
    JustRead,
    Moved,
    RefFiles,
    Trust,
    count_move,
    get_once,
    listed_names,
)

_BRANCH = "branch."
_TAG = "tag."
_KINDS = (_BRANCH, _TAG, "branch:", "tag:")
"""Prefixes of the names of folders; those with a colon date from October 2024."""
_NUMBERED = re.compile(r"[0-9A-HJKMNP-TV-Z]{8}\.json")
"""Files of branches of generation `alpha`, which a migration may leave behind."""
_SAME_TIP = at_once(10)
_GUESSES = 16
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class V1Refs(RefFiles):
    """Refs and configuration as separate, conditionally written objects."""

    storage: Storage
    generation: Generation = Generation.V1
    codec: V1Codec = field(default_factory=V1Codec)
    layout: V1Layout = field(default_factory=V1Layout)
    trust: Trust = Trust.CONDITIONS
    found: JustRead | None = field(default=None, repr=False, compare=False)
    seen: dict[str, tuple[SnapshotId, Version]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Where branches were when they were last read, and the versions of their refs."""
    listed: set[str] = field(default_factory=set, repr=False, compare=False)
    """Keys of the branches that existed when all of them were last read."""

    def initialize(self, first: Snapshot, config: RepositoryConfig | None = None) -> bool:
        """Create `main`: this write creates the repository."""
        del config
        return self._create(branch_key(MAIN), first.id)

    def roots(self) -> tuple[dict[str, SnapshotId], dict[str, SnapshotId]]:
        """All branches and all tags, from one listing and the refs in it.

        Those that existed last time are requested along with the listing.
        """
        guessed = sorted(self.listed or {branch_key(MAIN)})[:_GUESSES]
        folders, fetched = together(
            self._folders, lambda: self.storage.get_many([(key, None) for key in guessed])
        )
        known = dict(zip(guessed, fetched, strict=True))
        branches = self._named(folders, _BRANCH, branch_key, known)
        self.listed.clear()
        self.listed.update(map(branch_key, branches))
        return branches, self._tags(folders, known)

    def branches(self) -> dict[str, SnapshotId]:
        """All branches; a folder with only old numbered files belongs to a deleted one."""
        return self._named(self._folders(), _BRANCH, branch_key, {})

    def branch(self, name: str) -> SnapshotId | None:
        """The snapshot of the branch."""
        key = branch_key(check_ref_name(name))
        found = get_once(self.storage, key, self.found)
        return None if found is None else self._saw(name, key, found)

    def create_branch(self, name: str, to: SnapshotId) -> Creation:
        """Create the ref unless it exists."""
        created = self._create(branch_key(check_ref_name(name)), to)
        return Creation.CREATED if created else Creation.EXISTS

    def commit(self, name: str, expected: SnapshotId, snapshot: Snapshot) -> Moved | Behind:
        """Swap the ref from `expected` to the new snapshot."""
        return self.reset_branch(name, snapshot.id, expected)

    def reset_branch(self, name: str, to: SnapshotId, expected: SnapshotId) -> Moved | Behind:
        """Swap the ref from `expected` to `to`.

        A swap lost to a write of the same content, so that the branch is still at `expected`, is
        retried; otherwise somebody else moved the branch. If the branch was at `expected` when it
        was last read, the swap is tried without reading it again.
        """
        key = branch_key(check_ref_name(name))
        known = self.seen.get(name)
        fits = known is not None and known[0] == expected and self.trust.updates
        if known is not None and fits and self._swapped(name, key, to, known[1]):
            return Moved()
        for _ in _SAME_TIP.attempts():
            found = self.storage.get(key)
            if found is None:
                return Behind(None)
            actual = self._saw(name, key, found)
            if actual != expected:
                return Behind(actual)
            if self._swapped(name, key, to, found.version):
                return Moved()
        raise ConflictError(
            f"{key} was rewritten {_SAME_TIP.tries} times while it was being moved; try again",
            kind=Kind.ATTEMPTS_EXHAUSTED,
        )

    def delete_branch(self, name: str) -> bool:
        """Delete the ref."""
        key = branch_key(check_ref_name(name))
        prefix = key.removesuffix(REF_FILE)
        files = [item.key.removeprefix(prefix) for item in self.storage.scan(prefix)]
        strange = next((file for file in files if _is_strange(file)), None)
        if strange is not None:
            raise FormatError(
                f"{prefix}{strange}: not the name of a branch file; branch {name!r} is not "
                "deleted, because only this file would remain. Remove it first if it is not a "
                "reference"
            )
        if REF_FILE not in files:
            return False
        count_move()
        self.seen.pop(name, None)
        failed = self.storage.delete([key]).failed
        if failed:
            raise StorageError(f"cannot delete {key} in {self.storage.location}: {failed[key]}")
        return True

    def tags(self) -> dict[str, SnapshotId]:
        """All tags that have no tombstone."""
        return self._tags(self._folders(), {})

    def tag(self, name: str) -> SnapshotId | None:
        """The snapshot of the tag, unless it has a tombstone."""
        check_ref_name(name, "tag")
        found, tombstone = self.storage.get_many(
            [(tag_key(name), None), (tombstone_key(name), None)]
        )
        if found is None or tombstone is not None:
            return None
        return decode_ref(found.data, where=tag_key(name))

    def deleted_tags(self) -> list[str]:
        """Names with a tombstone."""
        folders = self._folders()
        return [name for name in _names(folders, _TAG) if TOMBSTONE_FILE in folders[_TAG + name]]

    def create_tag(self, name: str, to: SnapshotId) -> Creation:
        """Create the ref unless it or its tombstone exists."""
        check_ref_name(name, "tag")
        if self.storage.head(tombstone_key(name)) is not None:
            return Creation.WAS_DELETED
        return Creation.CREATED if self._create(tag_key(name), to) else Creation.EXISTS

    def delete_tag(self, name: str) -> bool:
        """Create the tombstone; the ref itself stays, as official readers expect."""
        if self.tag(name) is None:
            return False
        expect = self.trust.create()
        outcome = self.storage.put(tombstone_key(name), b"", expect=expect, content_type=_JSON)
        return isinstance(outcome, Written)

    def trusting(self, trust: Trust) -> V1Refs:
        """The same refs, relying on these conditional writes."""
        return replace(self, trust=trust)

    def after(self, found: JustRead | None) -> V1Refs:
        """The same refs, which need not read again what was just read."""
        return self if found is None else replace(self, found=found)

    def _saw(self, name: str, key: str, found: Fetched) -> SnapshotId:
        snapshot = decode_ref(found.data, where=key)
        self.seen[name] = (snapshot, found.version)
        return snapshot

    def _swapped(self, name: str, key: str, to: SnapshotId, version: Version) -> bool:
        count_move()
        self.seen.pop(name, None)
        expect = self.trust.update(version)
        outcome = self.storage.put(key, encode_ref(to), expect=expect, content_type=_JSON)
        if not isinstance(outcome, Written):
            return False
        self.seen[name] = (to, outcome.version)
        return True

    def _create(self, key: str, to: SnapshotId) -> bool:
        count_move()
        if not self.trust.creates and self.storage.head(key) is not None:
            return False
        expect = self.trust.create()
        outcome = self.storage.put(key, encode_ref(to), expect=expect, content_type=_JSON)
        return isinstance(outcome, Written)

    def _folders(self) -> dict[str, set[str]]:
        """The folders of refs, and which of the two known files are in them.

        Raises for a folder with only unknown files: it is not an absent ref.
        """
        found: dict[str, set[str]] = {}
        strange: dict[str, str] = {}
        for item in self.storage.scan(REFS):
            folder, slash, file = item.key.removeprefix(REFS).partition("/")
            files = found.setdefault(folder, set())
            if file in {REF_FILE, TOMBSTONE_FILE}:
                files.add(file)
            if slash and (_is_strange(file) or not folder.startswith(_KINDS)):
                strange[folder] = item.key
        for folder, key in strange.items():
            if not (found[folder] and folder.startswith(_KINDS)):
                raise FormatError(
                    f"{key}: not the name of a reference, and {REFS}{folder}/ has no other: what "
                    "it refers to is unknown. Update this package if a newer release wrote it, "
                    "restore its files, or remove this one if it is not a reference"
                )
        return found

    def _tags(
        self, folders: Mapping[str, set[str]], known: Mapping[str, Fetched | None]
    ) -> dict[str, SnapshotId]:
        buried = {name for name, files in folders.items() if TOMBSTONE_FILE in files}
        return self._named(folders, _TAG, tag_key, known, without=buried)

    def _named(
        self,
        folders: Mapping[str, set[str]],
        prefix: str,
        key_of: Callable[[str], str],
        known: Mapping[str, Fetched | None],
        *,
        without: Collection[str] = (),
    ) -> dict[str, SnapshotId]:
        names = [
            name
            for name in _names(folders, prefix)
            if REF_FILE in folders[prefix + name] and prefix + name not in without
        ]
        # One that was absent a moment ago and is listed now was created in between.
        missing = [key_of(name) for name in names if known.get(key_of(name)) is None]
        more = self.storage.get_many([(key, None) for key in missing]) if missing else []
        found = {**known, **dict(zip(missing, more, strict=True))}
        return {
            name: decode_ref(fetched.data, where=key_of(name))
            for name in names
            if (fetched := found[key_of(name)]) is not None
        }


def _is_strange(file: str) -> bool:
    return file not in {REF_FILE, TOMBSTONE_FILE} and not _NUMBERED.fullmatch(file)


def _names(folders: Mapping[str, set[str]], prefix: str) -> list[str]:
    names = (name.removeprefix(prefix) for name in folders if name.startswith(prefix))
    return listed_names(names, REFS + prefix, prefix.rstrip("."))
