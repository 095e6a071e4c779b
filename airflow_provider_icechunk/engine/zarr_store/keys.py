"""The grammar of Zarr keys: which key names a node's document and which a chunk. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_icechunk.engine.format.chunk_refs import Index
from airflow_provider_icechunk.engine.format.names import (
    CHUNK_PREFIX,
    METADATA_FILE,
    ROOT,
    check_node_path,
    parse_index,
)
from airflow_provider_icechunk.exceptions import InvalidInputError, Kind


@dataclass(frozen=True, slots=True)
class DocumentKey:
    """The `zarr.json` of a node."""

    path: str


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """A chunk of an array."""

    path: str
    index: Index


def parse(key: str) -> DocumentKey | ChunkKey | None:
    """What `key` names; `None` for keys that cannot exist here, such as those of Zarr format 2."""
    segments = key.split("/")
    if segments[-1] == METADATA_FILE:
        path = _path(segments[:-1])
        return None if path is None else DocumentKey(path)
    place = len(segments) - 1
    while place >= 0 and segments[place] != CHUNK_PREFIX:
        place -= 1
    if place < 0:
        return None
    index = parse_index(segments[place + 1 :])
    path = _path(segments[:place])
    return None if index is None or path is None else ChunkKey(path, index)


def parse_for_writing(key: str) -> DocumentKey | ChunkKey:
    """The same, with an error for keys that nothing can be stored under."""
    parsed = parse(key)
    if parsed is None:
        raise InvalidInputError(
            f"nothing can be stored under the key {key[:200]!r}: a repository holds `zarr.json` "
            "documents and chunks with keys like `array/c/0/0`",
            kind=Kind.INVALID_KEY,
        )
    return parsed


def path_of(prefix: str) -> str | None:
    """The node path of a key prefix; `None` if it cannot be one."""
    return _path([segment for segment in prefix.strip("/").split("/") if segment])


def document_key(path: str) -> str:
    """The key of a node's `zarr.json`."""
    return METADATA_FILE if path == ROOT else f"{path[1:]}/{METADATA_FILE}"


def chunk_prefix(path: str) -> str:
    """The prefix of all chunk keys of an array; the only chunk of a 0-d array has just this key."""
    return CHUNK_PREFIX if path == ROOT else f"{path[1:]}/{CHUNK_PREFIX}"


def _path(segments: list[str]) -> str | None:
    path = ROOT + "/".join(segments)
    try:
        return check_node_path(path)
    except InvalidInputError:
        return None
