"""Keys of `draft`: `state.json` and four folders, whose files are named by UUIDs or otherwise.

The folders may be in a different location from the state file, and files of other software may have
any names. In memory every file has an id of 16 bytes: a foreign name is remembered under an id that
is derived from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from airflow_provider_icechunk.engine.format.codec import FileNames
from airflow_provider_icechunk.engine.format.ids import (
    EARLY_OBJECT_ID_SIZE,
    ChunkId,
    ManifestId,
    SnapshotId,
)
from airflow_provider_icechunk.engine.format.names import check_file_name
from airflow_provider_icechunk.exceptions import (
    FormatError,
    InvalidInputError,
    Kind,
    UnsupportedError,
)

CONFIG_KEY = "config.yaml"
SUFFIX = ".parquet"
FOREIGN = b"name"
"""The first bytes of ids that represent names. Ids of this package are random UUIDs."""

_OURS = re.compile(r"[0-9a-f]{32}", re.ASCII)
_CHUNKS = "c/"
_MOST_NAMES = 1 << 18
"""Foreign names are kept as long as the repository is open, some 200 bytes each."""


class FileIds:
    """The ids of the files of one folder: digits of our own names, or derived from foreign ones."""

    __slots__ = ("names", "suffix")

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix
        self.names: dict[bytes, str] = {}
        """Foreign names by id."""

    def id_of(self, name: str, *, where: str) -> bytes:
        """The id of the file of this name."""
        stem = name.removesuffix(self.suffix)
        if len(name) == len(stem) + len(self.suffix) and _OURS.fullmatch(stem):
            identity = bytes.fromhex(stem)
            if not identity.startswith(FOREIGN):
                return identity
        try:
            check_file_name(name)
        except InvalidInputError as error:
            raise FormatError(f"{where}: {error.message}") from None
        size = EARLY_OBJECT_ID_SIZE - len(FOREIGN)
        identity = FOREIGN + blake2b(name.encode(), digest_size=size).digest()
        if self.names.setdefault(identity, name) != name:
            raise FormatError(f"{where}: two file names have the same id: {name[:80]!r}")
        if len(self.names) > _MOST_NAMES:
            del self.names[identity]
            raise FormatError(
                f"{where}: more than {_MOST_NAMES} files have names of other software",
                kind=Kind.LIMIT_EXCEEDED,
            )
        return identity

    def name_of(self, identity: bytes) -> str:
        """The name of a file; a foreign one must have been read before."""
        known = self.names.get(identity)
        if known is not None:
            return known
        if identity.startswith(FOREIGN):
            raise UnsupportedError(
                f"{identity.hex()} stands for a file that other software named, and what names it "
                "was not read here: open the repository again and read the array first"
            )
        return identity.hex() + self.suffix


@dataclass(slots=True)
class DraftLayout:
    """Keys of the immutable objects. There are no transaction logs: their folder is empty."""

    root: str = ""
    """The path from the state file to the folders: empty, or ending in a slash."""
    names: dict[SnapshotId, str] = field(default_factory=dict)
    """Structure files that are not named by the id of their snapshot, from the state file."""
    inventories: FileIds = field(default_factory=lambda: FileIds(SUFFIX))
    chunk_files: FileIds = field(default_factory=lambda: FileIds(""))
    attribute_files: FileIds = field(default_factory=lambda: FileIds(SUFFIX))

    @property
    def snapshots(self) -> str:
        """Prefix of all structure files."""
        return self.root + "s/"

    @property
    def manifests(self) -> str:
        """Prefix of all inventory files."""
        return self.root + "i/"

    @property
    def transactions(self) -> str:
        """A prefix below which nothing is ever stored."""
        return self.root + "t/"

    @property
    def chunks(self) -> str:
        """Prefix of all chunk files."""
        return self.root + _CHUNKS

    @property
    def attributes(self) -> str:
        """Prefix of all attributes files."""
        return self.root + "a/"

    def names_in(self, prefix: str) -> FileNames:
        """Ids of 16 bytes as hexadecimal digits; metadata files have an extension."""
        aliases: dict[str, Mapping[Any, str]] = {
            self.snapshots: self.names,
            self.manifests: self.inventories.names,
            self.chunks: self.chunk_files.names,
            self.attributes: self.attribute_files.names,
        }
        return FileNames(
            EARLY_OBJECT_ID_SIZE,
            "" if prefix.endswith(_CHUNKS) else SUFFIX,
            hexadecimal=True,
            aliases=aliases.get(prefix, {}),
            stand_in=b"" if prefix == self.snapshots else FOREIGN,
        )

    def snapshot(self, identity: SnapshotId) -> str:
        """Key of a structure file."""
        return self.snapshots + self.names.get(identity, parquet_name(identity))

    def manifest(self, identity: ManifestId) -> str:
        """Key of an inventory file."""
        return self.manifests + self.inventories.name_of(identity)

    def transaction(self, identity: SnapshotId) -> str:
        """A key under which nothing is ever stored."""
        return self.transactions + parquet_name(identity)

    def chunk(self, identity: ChunkId) -> str:
        """Key of a chunk file."""
        return self.chunks + self.chunk_files.name_of(identity)


def parquet_name(identity: bytes) -> str:
    """The file name of a structure or inventory."""
    return identity.hex() + SUFFIX
