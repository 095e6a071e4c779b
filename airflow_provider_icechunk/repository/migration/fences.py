"""Stop writers of the old repository before its references are removed, without losing a commit.

A fence is a document in the place where the next commit would go: over the `ref.json` of a branch
or over `state.json`, or as the next numbered file. It is written on the same condition as a commit,
so either the commit was first, which is noticed, or the fence was, and the commit fails. It carries
what it stands for, so that the old references can still be read here.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_icechunk.format.generations.alpha.layout import (
    SEPARATORS,
    branch_prefix,
    parse_sequence_file,
    sequence_file,
)
from airflow_provider_icechunk.format.generations.alpha1 import layout as alpha1
from airflow_provider_icechunk.format.generations.base import Generation
from airflow_provider_icechunk.format.generations.detect import STATE_KEY
from airflow_provider_icechunk.format.generations.draft.state import decode_state
from airflow_provider_icechunk.format.generations.fence import behind, fence
from airflow_provider_icechunk.format.generations.v1.layout import branch_key, decode_ref
from airflow_provider_icechunk.format.ids import SnapshotId
from airflow_provider_icechunk.repository.ledgers.base import Trust
from airflow_provider_icechunk.repository.migration.references import References
from airflow_provider_icechunk.storage.base import (
    Absent,
    ByteRange,
    Fetched,
    Storage,
    Written,
)
from airflow_provider_icechunk.storage.observed import ObservedStorage

_JSON = "application/json"


class Unfenced(ObservedStorage):
    """A storage as it was before fences were put up."""

    def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched | None:
        """The object, or what its fence stands for."""
        return _unfenced(super().get(key, byte_range))

    def get_many(self, requests: Sequence[tuple[str, ByteRange | None]]) -> list[Fetched | None]:
        """The objects, or what their fences stand for."""
        return [_unfenced(found) for found in super().get_many(requests)]


def _unfenced(found: Fetched | None) -> Fetched | None:
    was = None if found is None else behind(found.data)
    return found if found is None or was is None else Fetched(was, found.version)


def put_up(
    storage: Storage, source: Generation, target: Generation, expected: References, trust: Trust
) -> bool:
    """Fence every branch in that is still where `expected` says. False: one of them is not.

    What stands can stay: it can be read, and is put up only once.
    """
    if source is Generation.DRAFT:
        return _fence_state(storage, target, expected, trust)
    for name, at in expected.branches.items():
        fenced = (
            _fence_reference(storage, target, name, at, trust)
            if source is Generation.V1
            else _fence_numbered(storage, source, target, name, at)
        )
        if not fenced:
            return False
    return True


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
    outcome = storage.put(key, fence(found.data, target), expect=condition, content_type=_JSON)
    return isinstance(outcome, Written)


def _fence_numbered(
    storage: Storage, source: Generation, target: Generation, name: str, at: SnapshotId
) -> bool:
    """Create the next numbered file. Files of September 2024 are left: nothing writes them."""
    decode = decode_ref if source is Generation.ALPHA else alpha1.decode_ref
    for prefix in _folders(source, name):
        names = (item.key.removeprefix(prefix) for item in storage.scan(prefix))
        newest = next((one for one in names if parse_sequence_file(one) is not None), None)
        if newest is None:
            continue
        found = storage.get(prefix + newest)
        if found is None:
            return False
        if behind(found.data) is not None:
            return True
        if decode(found.data, where=prefix + newest) != at:
            return False
        number = parse_sequence_file(newest)
        assert number is not None
        following = prefix + sequence_file(number + 1)
        data = fence(found.data, target)
        outcome = storage.put(following, data, expect=Absent(), content_type=_JSON)
        return isinstance(outcome, Written)
    return True


def _folders(source: Generation, name: str) -> list[str]:
    if source is Generation.ALPHA1:
        return [alpha1.branch_prefix(name)]
    return [branch_prefix(name, separator) for separator in reversed(SEPARATORS)]
