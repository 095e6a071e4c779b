"""The generations of the format, each a row of capabilities."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Self


class History(StrEnum):
    """Where a generation stores the list of snapshots and their parents."""

    FILES = "snapshot files"
    STATE = "state file"
    REPO = "repo object"


class Capabilities:
    """The capabilities of a generation; it can do nothing that its row does not name."""

    id_size: int
    """Bytes of the ids of snapshots, manifests and chunks."""
    node_numbers: int | None = None
    """How many node numbers there are; `None` where their ids are 8 random bytes."""
    history: History
    """Where the list of snapshots and their parents are stored."""
    uses_uuids: bool = False
    """Whether ids are version 4 UUIDs, written as such."""
    fixed_first_id: bool = False
    """Whether the first snapshot of every repository has the same id."""
    marks_objects: bool = False
    """Whether objects carry store metadata that says what they are."""
    lists_manifests: bool = False
    """Whether a snapshot says how large its manifests are."""
    splits_listings: bool = False
    """Whether folders are worth listing in parts, by the first letter of the names."""
    keeps_logs: bool = False
    """Whether a commit stores its transaction log; if not, it is derived from two snapshots."""
    logs_first_snapshot: bool = False
    """Whether the first snapshot, which changes nothing, has a log as well."""
    logs_moves: bool = False
    """Whether logs record moves; if not, a moved node is logged as deleted and created."""
    tags_can_be_deleted: bool = False
    """Whether tags can be deleted."""
    hides_expired: bool = False
    """Whether an expired snapshot can no longer be read by its id."""
    can_amend: bool = False
    """Whether the newest commit of a branch can be replaced."""
    has_features: bool = False
    """Whether features can be turned off, an operations log is kept and a status can be set."""
    rectilinear: bool = False
    """Whether arrays can have chunks of different sizes."""
    compresses_locations: bool = False
    """Whether locations of virtual chunks can be stored compressed."""
    compresses_files: bool = False
    """Whether metadata files are compressed."""
    separates_attributes: bool = False
    """Whether long attributes can be stored in files of their own."""
    splits_by_default: bool = False
    """Whether new repositories store rules that split the manifests of large arrays."""
    nests_own_metadata: bool = False
    """Whether what this package adds to the metadata of a commit is below `__icechunk`."""


class CapabilityRow(dict[str, object]):
    """The capabilities of one generation by name."""


class Generation(Capabilities, StrEnum):
    """The generations of the format by the names users give, each with a row of capabilities.

    Code outside `format` and `refs` checks capabilities, never a generation by name.
    """

    def __new__(cls, name: str, row: CapabilityRow | None = None) -> Self:
        """The name of a generation with its capabilities as attributes.

        Type checkers mistake `Generation(name)`, which looks up a member, for a call of this.
        """
        member = str.__new__(cls, name)
        member._value_ = name
        for capability, value in (row or {}).items():
            if capability not in Capabilities.__annotations__:
                raise TypeError(f"generation {name!r}: there is no capability {capability!r}")
            setattr(member, capability, value)
        return member

    DRAFT = (
        "draft",
        CapabilityRow(
            id_size=16,
            node_numbers=1 << 16,
            history=History.STATE,
            uses_uuids=True,
            tags_can_be_deleted=True,
            compresses_files=True,
            separates_attributes=True,
        ),
    )
    ALPHA1 = (
        "alpha1",
        CapabilityRow(
            id_size=16,
            node_numbers=1 << 32,
            history=History.FILES,
            separates_attributes=True,
        ),
    )
    ALPHA = (
        "alpha",
        CapabilityRow(
            id_size=12,
            history=History.FILES,
            marks_objects=True,
            lists_manifests=True,
            splits_listings=True,
            keeps_logs=True,
            tags_can_be_deleted=True,
            compresses_files=True,
            separates_attributes=True,
        ),
    )
    V1 = (
        "1",
        CapabilityRow(
            id_size=12,
            history=History.FILES,
            fixed_first_id=True,
            marks_objects=True,
            lists_manifests=True,
            splits_listings=True,
            keeps_logs=True,
            tags_can_be_deleted=True,
            compresses_files=True,
            splits_by_default=True,
        ),
    )
    V2 = (
        "2",
        CapabilityRow(
            id_size=12,
            history=History.REPO,
            fixed_first_id=True,
            marks_objects=True,
            lists_manifests=True,
            splits_listings=True,
            keeps_logs=True,
            logs_first_snapshot=True,
            logs_moves=True,
            tags_can_be_deleted=True,
            hides_expired=True,
            can_amend=True,
            has_features=True,
            rectilinear=True,
            compresses_locations=True,
            compresses_files=True,
            splits_by_default=True,
            nests_own_metadata=True,
        ),
    )

    @property
    def is_newest(self) -> bool:
        """Whether there is no newer generation."""
        return self is list(Generation)[-1]


DEFAULT_GENERATION = Generation.V1
"""The generation of new repositories by default."""


class SpecVersion(IntEnum):
    """The numbered generations of the format, which official releases open.

    Also equal to the number as text, which is what `Repository.spec_version` was in earlier
    releases.
    """

    v1 = 1
    v2 = 2

    @staticmethod
    def current() -> SpecVersion:
        """The default for new repositories."""
        return SpecVersion.v1

    def __eq__(self, other: object) -> bool:
        return self.value == other or (isinstance(other, str) and str(self.value) == other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return f"SpecVersion.{self.name}"

    __hash__ = IntEnum.__hash__


def version_of(generation: Generation) -> SpecVersion | str:
    """The number of a generation, or the name of one that has none."""
    try:
        return SpecVersion(int(generation.value))
    except ValueError:
        return generation.value
