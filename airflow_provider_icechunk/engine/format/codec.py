"""What every generation provides: a codec (bytes to values) and a layout (keys).

How refs move (conditional files, numbered files, one `repo` object) differs too much between
generations and is in `engine.refs`; their documents are encoded and decoded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.exceptions import InvalidInputError

from .chunk_refs import ChunkRefs, Index, Payload
from .generation import Generation
from .ids import (
    OBJECT_ID_SIZE,
    ChunkId,
    ManifestId,
    NodeId,
    SnapshotId,
    decode_many,
    encode_many,
    text_length,
)
from .model import Manifest, Node, Snapshot, TransactionLog

_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_VALUES = np.full(256, 255, np.uint8)
_VALUES[_DIGITS] = np.arange(16, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class FileNames:
    """File names that consist of an id as text and a suffix."""

    id_size: int = OBJECT_ID_SIZE
    suffix: str = ""
    hexadecimal: bool = False
    """Whether ids are hexadecimal instead of base 32."""
    aliases: Mapping[bytes, str] = field(default_factory=dict, compare=False, repr=False)
    """Names given by other software, keyed by the ids that represent them."""
    stand_in: bytes = b""
    """Prefix of the ids that represent such names; no file is named after these ids."""

    @property
    def length(self) -> int:
        """The length of every name."""
        return self._text_length + len(self.suffix)

    def encode(self, ids: NDArray[np.uint8]) -> list[str]:
        """The names of files with `(n, size)` ids."""
        texts = _to_hex(ids) if self.hexadecimal else encode_many(ids)
        names = [text.decode() + self.suffix for text in texts.tolist()]
        if not self.aliases:
            return names
        rows = map(np.ndarray.tobytes, ids)
        return [self.aliases.get(row, name) for row, name in zip(rows, names, strict=True)]

    def decode(self, names: list[str]) -> NDArray[np.uint8]:
        """The `(n, size)` ids in names of the right length; raises for anything else."""
        size = self._text_length
        if self.suffix and not all(name.endswith(self.suffix) for name in names):
            raise InvalidInputError(f"not all names end with {self.suffix!r}")
        letters = "".join([name[:size] for name in names]).encode()
        texts = np.frombuffer(letters, f"S{size}")
        ids = _from_hex(texts, size) if self.hexadecimal else decode_many(texts, self.id_size)
        start = np.frombuffer(self.stand_in, np.uint8)
        if len(start) and (ids[:, : len(start)] == start).all(axis=1).any():
            raise InvalidInputError("a name looks like the id of a file with another name")
        return ids

    @property
    def _text_length(self) -> int:
        return 2 * self.id_size if self.hexadecimal else text_length(self.id_size)


def _to_hex(ids: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    rows, size = ids.shape
    digits = np.stack([ids >> 4, ids & 15], axis=2).reshape(rows, 2 * size)
    return np.ascontiguousarray(_DIGITS[digits]).view(f"S{2 * size}").reshape(rows)


def _from_hex(texts: NDArray[np.bytes_], length: int) -> NDArray[np.uint8]:
    values = _VALUES[np.ascontiguousarray(texts).view(np.uint8).reshape(len(texts), length)]
    if (values == 255).any():
        raise InvalidInputError("a name does not consist of hexadecimal digits")
    return np.asarray(values[:, ::2] << 4 | values[:, 1::2], np.uint8)


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
    """Maximum unpacked size of one file; `budget` may allow less."""

    manifest_bytes: int = 4 << 30
    other_bytes: int = 512 << 20


DEFAULT_LIMITS = Limits()


class Codec(Protocol):
    """Bytes to values and back; `where` names the file in errors.

    Invalid bytes raise `FormatError`. Decoding checks the identity: a file whose id is not the
    requested one is refused, except where old writers are known to have written such files.
    """

    @property
    def generation(self) -> Generation:
        """The generation."""
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
    """A codec that can read the header of a snapshot without decoding its tree."""

    def glance_at_snapshot(self, data: bytes, expected: SnapshotId, *, where: str) -> Snapshot:
        """The snapshot in the file `where`, whose tree is decoded on first access."""
        ...


class Search(Protocol):
    """A manifest that is searched for single references."""

    @property
    def nbytes(self) -> int:
        """Approximate memory."""
        ...

    def is_worth_it(self) -> bool:
        """Whether to search again; if not, decoding everything is cheaper."""
        ...

    def find(self, node_id: NodeId, index: Index) -> Payload | None:
        """The reference at `index` of an array; `None` if there is none."""
        ...

    def decode(self) -> Manifest:
        """Decode everything."""
        ...


@runtime_checkable
class Searching(Protocol):
    """A codec that finds single references without decoding a whole manifest."""

    def search_manifest(self, data: bytes, expected: ManifestId, *, where: str) -> Search:
        """The manifest in the file `where`, unpacked but not decoded."""
        ...


@runtime_checkable
class Selective(Protocol):
    """A codec of a generation with restrictions, which are checked before anything is stored.

    Both methods raise `InvalidInputError`.
    """

    def check_node(self, node: Node) -> None:
        """Raise for a node whose `zarr.json` this generation cannot store."""
        ...

    def check_references(self, refs: ChunkRefs) -> None:
        """Raise for references that this generation cannot store."""
        ...


class Layout(Protocol):
    """Keys of the immutable objects, built only from ids; in `draft` also from checked names."""

    @property
    def snapshots(self) -> str:
        """Prefix of all snapshot keys, with a slash."""
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
        """The names of the files below one of the prefixes."""
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
