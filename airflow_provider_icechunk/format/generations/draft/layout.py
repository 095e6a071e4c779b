"""Keys of `draft`: `state.json` and four folders with files that are called by UUIDs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from airflow_provider_icechunk.exceptions import UnsupportedError
from airflow_provider_icechunk.format.file_names import FileNames
from airflow_provider_icechunk.format.ids import (
    EARLY_OBJECT_ID_SIZE,
    ChunkId,
    ManifestId,
    SnapshotId,
)

CONFIG_KEY = "config.yaml"
SUFFIX = ".parquet"

_NAME = re.compile(r"([0-9a-f]{32})\.parquet", re.ASCII)


@dataclass(frozen=True, slots=True)
class DraftLayout:
    """Keys of the immutable objects. There are no transaction logs: nothing is in their folder."""

    names: dict[SnapshotId, str] = field(default_factory=dict)
    """Structure files that are not called by the id of their snapshot, by what the state says."""
    snapshots: str = "s/"
    manifests: str = "i/"
    transactions: str = "t/"
    chunks: str = "c/"
    attributes: str = "a/"

    def names_in(self, prefix: str) -> FileNames:
        """Ids of 16 bytes as hexadecimal digits; metadata files have an ending."""
        suffix = "" if prefix == self.chunks else SUFFIX
        return FileNames(EARLY_OBJECT_ID_SIZE, suffix, hexadecimal=True)

    def snapshot(self, identity: SnapshotId) -> str:
        """Key of a structure file."""
        return self.snapshots + self.names.get(identity, parquet_name(identity))

    def manifest(self, identity: ManifestId) -> str:
        """Key of an inventory file."""
        return self.manifests + parquet_name(identity)

    def transaction(self, identity: SnapshotId) -> str:
        """A key under which there never is anything."""
        return self.transactions + parquet_name(identity)

    def chunk(self, identity: ChunkId) -> str:
        """Key of a chunk file."""
        return self.chunks + identity.hex()


def parquet_name(identity: bytes) -> str:
    """The file name of a structure or inventory."""
    return identity.hex() + SUFFIX


def parse_inventory_name(name: str, *, where: str) -> ManifestId:
    """The id of the inventory in a file of this name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise UnsupportedError(
            f"{where}: the inventory file {name[:80]!r} is not called by 32 hexadecimal digits"
        )
    return ManifestId(bytes.fromhex(match[1]))
