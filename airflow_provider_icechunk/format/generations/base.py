"""What every generation of the format provides: a codec (bytes and model) and a layout (keys).

How references move (conditional files, sequence files, one `repo` object) differs so much between
generations that it lives with the effects, in `repository.ledgers`; the documents they exchange are
encoded and decoded here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from airflow_provider_icechunk.format.file_names import FileNames
from airflow_provider_icechunk.format.ids import (
    EARLY_OBJECT_ID_SIZE,
    OBJECT_ID_SIZE,
    ChunkId,
    ManifestId,
    NodeId,
    SnapshotId,
)
from airflow_provider_icechunk.format.references import ChunkRefs, Index, Payload
from airflow_provider_icechunk.format.snapshot import Manifest, Node, Snapshot
from airflow_provider_icechunk.format.transactions import TransactionLog


class Generation(StrEnum):
    """The stages of the format, by the names users give."""

    DRAFT = "draft"
    ALPHA1 = "alpha1"
    ALPHA = "alpha"
    V1 = "1"
    V2 = "2"

    @property
    def id_size(self) -> int:
        """Bytes of the ids of snapshots, manifests and chunks."""
        return EARLY_OBJECT_ID_SIZE if self in _EARLY else OBJECT_ID_SIZE

    @property
    def node_numbers(self) -> int | None:
        """How many numbers there are for nodes; `None` where their ids are 8 random bytes."""
        return _NODE_NUMBERS.get(self)

    @property
    def keeps_logs(self) -> bool:
        """Whether a commit stores its transaction log; if not, it is derived from two snapshots."""
        return self not in _EARLY

    @property
    def logs_moves(self) -> bool:
        """Whether logs know moves; if not, a moved node is logged as deleted and created."""
        return self is Generation.V2

    @property
    def marks_objects(self) -> bool:
        """Whether objects carry metadata of the store that says what they are."""
        return self not in _EARLY

    @property
    def lists_manifests(self) -> bool:
        """Whether a snapshot says how large its manifests are."""
        return self not in _EARLY


_EARLY = frozenset({Generation.DRAFT, Generation.ALPHA1})
_NODE_NUMBERS = {Generation.DRAFT: 1 << 16, Generation.ALPHA1: 1 << 32}


class FileType(StrEnum):
    """Kinds of metadata files; the values are the `icfiletype` of object metadata."""

    SNAPSHOT = "snapshot"
    MANIFEST = "manifest"
    ATTRIBUTES = "attributes"
    TRANSACTION_LOG = "transaction-log"
    CHUNK = "chunk"
    REPO_INFO = "repo-info"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one file may unpack to at most; `budget` says when less is refused as hostile."""

    manifest_bytes: int = 4 << 30
    other_bytes: int = 512 << 20


DEFAULT_LIMITS = Limits()


class Codec(Protocol):
    """Bytes to values and back; `where` names the file in errors.

    Invalid bytes raise `FormatError`. Decoding checks the identity: a file that says it is another
    id than asked for is refused, except where old writers are known to have done that.
    """

    @property
    def generation(self) -> Generation:
        """Which generation this is."""
        ...

    def decode_snapshot(self, data: bytes, expected: SnapshotId, *, where: str) -> Snapshot:
        """The snapshot in the file `where`."""
        ...

    def encode_snapshot(self, snapshot: Snapshot, *, level: int) -> bytes:
        """A whole file, header included, compressed at `level`."""
        ...

    def decode_manifest(self, data: bytes, expected: ManifestId, *, where: str) -> Manifest:
        """The manifest in the file `where`, with orders, ranks and bounds checked."""
        ...

    def encode_manifest(self, manifest: Manifest, *, level: int) -> bytes:
        """A whole file. Erased rows must have been removed."""
        ...

    def decode_log(self, data: bytes, expected: SnapshotId, *, where: str) -> TransactionLog:
        """The transaction log in the file `where`."""
        ...

    def encode_log(self, log: TransactionLog, *, level: int) -> bytes:
        """A whole file."""
        ...


@runtime_checkable
class Glancing(Protocol):
    """A codec that can read what a snapshot says of itself without decoding its tree."""

    def glance_at_snapshot(self, data: bytes, expected: SnapshotId, *, where: str) -> Snapshot:
        """The snapshot in the file `where`, whose tree is decoded when it is looked into."""
        ...


class Search(Protocol):
    """A manifest of which single references are wanted."""

    @property
    def nbytes(self) -> int:
        """Memory held, about."""
        ...

    def is_worth_it(self) -> bool:
        """Whether to search once more; if not, decoding all of it comes cheaper."""
        ...

    def find(self, node_id: NodeId, index: Index) -> Payload | None:
        """The reference at `index` of an array; `None` when there is none."""
        ...

    def decode(self) -> Manifest:
        """All of it."""
        ...


@runtime_checkable
class Searching(Protocol):
    """A codec that finds single references without decoding a whole manifest."""

    def search_manifest(self, data: bytes, expected: ManifestId, *, where: str) -> Search:
        """The manifest in the file `where`, unpacked but not decoded."""
        ...


@runtime_checkable
class Selective(Protocol):
    """A codec of a generation that cannot hold everything, and says so before anything is stored.

    Both methods raise `InvalidInputError`.
    """

    def check_node(self, node: Node) -> None:
        """Refuse a node whose `zarr.json` has no place in this generation."""
        ...

    def check_references(self, refs: ChunkRefs) -> None:
        """Refuse references that have no place in this generation."""
        ...


class Layout(Protocol):
    """Keys of the immutable objects, built from ids alone; in `draft` also from checked names."""

    @property
    def snapshots(self) -> str:
        """Prefix of all snapshot keys, with its slash."""
        ...

    @property
    def manifests(self) -> str:
        """Prefix of all manifest keys."""
        ...

    @property
    def transactions(self) -> str:
        """Prefix of the keys of all transaction logs."""
        ...

    @property
    def chunks(self) -> str:
        """Prefix of the keys of all chunk files."""
        ...

    @property
    def attributes(self) -> str | None:
        """Prefix of the keys of attribute files; `None` in generations without them."""
        ...

    def names_in(self, prefix: str) -> FileNames:
        """How the files below one of the prefixes are called."""
        ...

    def snapshot(self, identity: SnapshotId) -> str:
        """Key of a snapshot file."""
        ...

    def manifest(self, identity: ManifestId) -> str:
        """Key of a manifest file."""
        ...

    def transaction(self, identity: SnapshotId) -> str:
        """Key of the log of a snapshot."""
        ...

    def chunk(self, identity: ChunkId) -> str:
        """Key of a chunk file."""
        ...
