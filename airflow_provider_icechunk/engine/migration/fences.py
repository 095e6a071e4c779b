"""Stop writers of the old repository without losing a commit, and let them in again.

A fence is a document where the next commit would be written: in place of a branch's `ref.json` or
of `state.json`, or as the next numbered file. It is written on the same condition as a commit, so
either the commit was first, which is noticed, or the fence was, and the commit fails. It contains
the document it replaces, so this package can still read the old references, and one more write of
the same kind restores them: nothing is deleted. A process that dies between these writes leaves
some branches fenced and others not, which the next call completes; the new repository does not
depend on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_icechunk.engine.format.detect import STATE_KEY
from airflow_provider_icechunk.engine.format.fence import (
    behind,
    fence,
    fence_config,
    fence_reference,
)
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import SnapshotId
from airflow_provider_icechunk.engine.format.legacy.alpha.codec import (
    SEPARATORS,
    branch_prefix,
    parse_sequence_file,
    sequence_file,
)
from airflow_provider_icechunk.engine.format.legacy.alpha1 import layout as alpha1
from airflow_provider_icechunk.engine.format.legacy.draft.state import decode_state
from airflow_provider_icechunk.engine.format.names import MAIN
from airflow_provider_icechunk.engine.format.v1.codec import (
    CONFIG_KEY,
    REFS,
    branch_key,
    decode_ref,
)
from airflow_provider_icechunk.engine.refs.base import Trust
from airflow_provider_icechunk.engine.storage.base import (
    Absent,
    ByteRange,
    Fetched,
    Storage,
    Written,
)
from airflow_provider_icechunk.engine.storage.observed import ObservedStorage

from .ref_sets import References

_JSON = "application/json"
_YAML = "application/yaml"


class Unfenced(ObservedStorage):
    """A storage as it was without fences."""

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        """The object, or the content of its fence."""
        return _unfenced(key, super().get(key, byte_range))

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        """The objects, or the contents of their fences."""
        found = zip(requests, super().get_many(requests), strict=True)
        return [_unfenced(key, one) for (key, _), one in found]


def _unfenced(key: str, found: Fetched | None) -> Fetched | None:
    """Only for keys that can be fenced: the bytes of a chunk may look like a fence."""
    stands = key in (STATE_KEY, CONFIG_KEY) or key.startswith((REFS, alpha1.REFS))
    was = behind(found.data) if stands and found is not None else None
    return found if found is None or was is None else Fetched(was, found.version)


def put_up(
    storage: Storage, source: Generation, target: Generation, expected: References, trust: Trust
) -> bool:
    """Fence every branch that is still where `expected` says. False: one has moved.

    `main` comes first, since programs find a repository by it. Existing fences stay.
    """
    if source is Generation.DRAFT:
        return _fence_state(storage, target, expected, trust)
    names = sorted(expected.branches, key=lambda name: name != MAIN)
    for name in names:
        at = expected.branches[name]
        fenced = (
            _fence_reference(storage, target, name, at, trust)
            if source is Generation.V1
            else _fence_numbered(storage, source, target, name, at)
        )
        if not fenced:
            return False
    return source is not Generation.V1 or _fence_config(storage, target, trust)


def take_down(storage: Storage, source: Generation, branches: Iterable[str], trust: Trust) -> bool:
    """Restore the contents of fences. False: somebody has written; try again.

    `main` comes last: the repository is found when all of it is readable.
    """
    if source is Generation.DRAFT:
        return _restore(storage, STATE_KEY, trust)
    names = sorted(branches, key=lambda name: name == MAIN)
    if source is Generation.V1:
        keys = [CONFIG_KEY, *map(branch_key, names)]
        return all(_restore(storage, key, trust) for key in keys)
    return all(_unfence_numbered(storage, source, name) for name in names)


def _restore(storage: Storage, key: str, trust: Trust) -> bool:
    found = storage.get(key)
    was = None if found is None else behind(found.data)
    if found is None or was is None:
        return True
    condition = trust.update(found.version)
    kind = _YAML if key == CONFIG_KEY else _JSON
    return isinstance(storage.put(key, was, expect=condition, content_type=kind), Written)


def _fence_state(storage: Storage, target: Generation, expected: References, trust: Trust) -> bool:
    found = storage.get(STATE_KEY)
    if found is None or behind(found.data) is not None:
        return True
    state = decode_state(found.data)
    named = (state.named("branch"), state.named("tag"))
    if named != (dict(expected.branches), dict(expected.tags)):
        return False
    condition = trust.update(found.version)
    outcome = storage.put(
        STATE_KEY, fence(found.data, target), expect=condition, content_type=_JSON
    )
    return isinstance(outcome, Written)


def _fence_reference(
    storage: Storage, target: Generation, name: str, at: SnapshotId, trust: Trust
) -> bool:
    key = branch_key(name)
    found = storage.get(key)
    if found is None:
        return False
    if behind(found.data) is not None:
        return True
    if decode_ref(found.data, where=key) != at:
        return False
    condition = trust.update(found.version)
    data = fence_reference(found.data, target)
    return isinstance(storage.put(key, data, expect=condition, content_type=_JSON), Written)


def _fence_config(storage: Storage, target: Generation, trust: Trust) -> bool:
    """A missing configuration is fenced as an empty one, so removing the fence deletes nothing."""
    found = storage.get(CONFIG_KEY)
    if found is not None and behind(found.data) is not None:
        return True
    condition = trust.create() if found is None else trust.update(found.version)
    data = fence_config(b"{}" if found is None else found.data, target)
    return isinstance(storage.put(CONFIG_KEY, data, expect=condition, content_type=_YAML), Written)


def _fence_numbered(
    storage: Storage, source: Generation, target: Generation, name: str, at: SnapshotId
) -> bool:
    """Create the next numbered file. Files of September 2024 need no fence: nothing writes them."""
    newest = _newest(storage, source, name)
    if newest is None:
        return True
    found = storage.get(newest.key)
    if found is None:
        return False
    if behind(found.data) is not None:
        return True
    decode = decode_ref if source is Generation.ALPHA else alpha1.decode_ref
    if decode(found.data, where=newest.key) != at:
        return False
    return newest.follow(storage, fence(found.data, target))


def _unfence_numbered(storage: Storage, source: Generation, name: str) -> bool:
    """Create the next numbered file with the content of the fence."""
    newest = _newest(storage, source, name)
    found = None if newest is None else storage.get(newest.key)
    was = None if found is None else behind(found.data)
    return newest is None or was is None or newest.follow(storage, was)


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest file of a branch with numbered files."""

    folder: str
    number: int

    @property
    def key(self) -> str:
        return self.folder + sequence_file(self.number)

    def follow(self, storage: Storage, data: bytes) -> bool:
        """Create the next file. False: somebody else did."""
        key = self.folder + sequence_file(self.number + 1)
        outcome = storage.put(key, data, expect=Absent(), content_type=_JSON)
        return isinstance(outcome, Written)


def _newest(storage: Storage, source: Generation, name: str) -> _Newest | None:
    for folder in _folders(source, name):
        names = (item.key.removeprefix(folder) for item in storage.scan(folder))
        numbers = (parse_sequence_file(one) for one in names)
        number = next((one for one in numbers if one is not None), None)
        if number is not None:
            return _Newest(folder, number)
    return None


def _folders(source: Generation, name: str) -> list[str]:
    if source is Generation.ALPHA1:
        return [alpha1.branch_prefix(name)]
    return [branch_prefix(name, separator) for separator in reversed(SEPARATORS)]
