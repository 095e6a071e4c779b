"""Keys of generation `1`, and its reference documents."""

from __future__ import annotations

import json

from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError
from airflow_provider_icechunk.format.file_names import FileNames
from airflow_provider_icechunk.format.generations.fence import check_unfenced
from airflow_provider_icechunk.format.ids import (
    ChunkId,
    ManifestId,
    SnapshotId,
    decode_base32,
    encode_base32,
)
from airflow_provider_icechunk.format.names import check_ref_name

CONFIG_KEY = "config.yaml"
REFS = "refs/"
BRANCH_PREFIX = "refs/branch."
TAG_PREFIX = "refs/tag."
REF_FILE = "ref.json"
TOMBSTONE_FILE = "ref.json.deleted"

_MAX_REF = 64 << 10


class V1Layout:
    """Keys of the immutable objects of generations `1` and `2`."""

    snapshots = "snapshots/"
    manifests = "manifests/"
    transactions = "transactions/"
    chunks = "chunks/"
    attributes: str | None = None

    def names_in(self, prefix: str) -> FileNames:
        """All files are called by their ids alone."""
        del prefix
        return FileNames()

    def snapshot(self, identity: SnapshotId) -> str:
        """Key of a snapshot file."""
        return self.snapshots + encode_base32(identity)

    def manifest(self, identity: ManifestId) -> str:
        """Key of a manifest file."""
        return self.manifests + encode_base32(identity)

    def transaction(self, identity: SnapshotId) -> str:
        """Key of the log of a snapshot."""
        return self.transactions + encode_base32(identity)

    def chunk(self, identity: ChunkId) -> str:
        """Key of a chunk file."""
        return self.chunks + encode_base32(identity)


def branch_key(name: str) -> str:
    """Key of the document that says which snapshot a branch is at."""
    return f"{BRANCH_PREFIX}{check_ref_name(name, 'branch')}/{REF_FILE}"


def tag_key(name: str) -> str:
    """Key of the document that says which snapshot a tag names."""
    return f"{TAG_PREFIX}{check_ref_name(name, 'tag')}/{REF_FILE}"


def tombstone_key(name: str) -> str:
    """Key of the empty object that marks a tag as deleted, for ever."""
    return f"{TAG_PREFIX}{check_ref_name(name, 'tag')}/{TOMBSTONE_FILE}"


def encode_ref(snapshot_id: SnapshotId) -> bytes:
    """The document of a branch or a tag."""
    return b'{"snapshot":"%s"}' % encode_base32(snapshot_id).encode()


def decode_ref(data: bytes, *, where: str) -> SnapshotId:
    """The snapshot that a branch or tag document names; other keys in it are ignored."""
    if len(data) > _MAX_REF:
        raise FormatError(f"{where}: {len(data)} bytes are too many for a reference document")
    check_unfenced(data, where=where)
    try:
        document = json.loads(data)
        snapshot = document["snapshot"] if isinstance(document, dict) else None
        if isinstance(snapshot, str):
            return SnapshotId(decode_base32(snapshot))
    except (ValueError, RecursionError, KeyError, InvalidInputError):
        pass
    raise FormatError(
        f'{where}: not a reference document; expected {{"snapshot":"<20 characters>"}}'
    )
