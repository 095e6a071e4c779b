"""The work unit: what a worker must know about its session, as JSON.

A work unit (JSON, no credentials) names the repository and the base snapshot; a fragment
(columns in MessagePack) comes back. Workers write chunk files and nothing else; only the session
that handed the work out can commit. Chunks of attempts that were not chosen are garbage for the
collector.

Changes that the coordinating session made before (new arrays, resizes) travel as a *staged*
snapshot: stored, but named by no branch or tag, so that nobody else sees it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_icechunk import __version__
from airflow_provider_icechunk.engine.format.ids import SnapshotId, decode_object_id, encode_base32
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.leases import Tenancy
from airflow_provider_icechunk.exceptions import InvalidInputError

from .releases import RELEASE, both_releases

WORK_UNIT_VERSION = 1

_SINCE = "since"
_PERHAPS = {_SINCE, RELEASE}
"""Fields that work units of earlier releases lack."""
_FIELDS = {"version", "repository", "generation", "branch", "base", "staged", "job"}


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """The input of a worker. Holds no credentials: a worker uses its own."""

    repository: str
    """Where the repository is, for people and for checks; not an instruction to connect there."""
    generation: str
    branch: str
    base: SnapshotId
    """The base snapshot of the coordinating session."""
    staged: SnapshotId
    """The base snapshot of workers: `base`, or `base` with the coordinator's changes."""
    job: str
    since: int | None = None
    """Store time in microseconds before which nothing was stored for this work. Earlier releases do
    not state it."""

    @property
    def tenancy(self) -> Tenancy:
        """The lease shared by all who do this work."""
        base, staged = encode_base32(self.base), encode_base32(self.staged)
        return Tenancy.of_work(self.job, base, staged, since=self.since)

    def to_json(self) -> dict[str, str | int]:
        """A small JSON object."""
        fields = asdict(self)
        if self.since is None:
            del fields["since"]
        return {
            **fields,
            "version": WORK_UNIT_VERSION,
            RELEASE: __version__,
            "base": encode_base32(self.base),
            "staged": encode_base32(self.staged),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | str) -> WorkUnit:
        """The work unit in a JSON object or its text; refuses anything else."""
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise InvalidInputError("a work unit is a JSON object; this is not JSON") from None
        if not isinstance(value, Mapping):
            raise InvalidInputError("a work unit is a JSON object")
        told = both_releases(value.get(RELEASE))
        if value.get("version", WORK_UNIT_VERSION) != WORK_UNIT_VERSION:
            raise InvalidInputError(
                f"work unit version {value['version']!r} is unknown; both sides must run the same "
                f"release{told}"
            )
        if set(value) - _PERHAPS != _FIELDS:
            raise InvalidInputError(
                f"a work unit has exactly the fields {sorted(_FIELDS)} and perhaps "
                f"{sorted(_PERHAPS)}{told}"
            )
        texts = {name: value[name] for name in _FIELDS - {"version"}}
        if not all(isinstance(text, str) for text in texts.values()):
            raise InvalidInputError("the fields of a work unit must be strings")
        since = value.get(_SINCE)
        if since is not None and (type(since) is not int or not 0 <= since < 1 << 62):
            raise InvalidInputError(f"{_SINCE!r} of a work unit is a time in microseconds")
        return cls(
            **texts
            | {
                "base": SnapshotId(decode_object_id(texts["base"])),
                "staged": SnapshotId(decode_object_id(texts["staged"])),
                _SINCE: since,
            }
        )


def counted_since(work: WorkUnit, base: Snapshot) -> int:
    """The store time since when anything may have been stored for a work unit.

    If missing, that is when the base snapshot of the session was made.
    """
    return base.flushed_at if work.since is None else work.since
