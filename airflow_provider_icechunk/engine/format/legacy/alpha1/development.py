"""MessagePack files of September 2024, turned into the documents that the specification shows.

Structs were arrays in the order of declaration, and ids were base 32 text. Only the shapes with
complete snapshots are read; earlier ones contained neither an id nor a history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_icechunk.engine.format.ids import EARLY_OBJECT_ID_SIZE, decode_base32
from airflow_provider_icechunk.engine.format.wire import messagepack as mp
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, UnsupportedError

from .manifests import Entries

_ZARR = (
    "shape",
    "data_type",
    "chunk_shape",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
    "storage_transformers",
    "dimension_names",
)


def is_message_pack(data: bytes) -> bool:
    """Whether a file starts with a short MessagePack array, as a JSON document never does."""
    return bool(data) and data[0] & 0xF0 == 0x90


def snapshot_document(data: bytes, *, where: str) -> dict[str, Any]:
    """The document of a snapshot that is stored as an array of seven items."""
    items = mp.as_array(mp.unpack(data, where=where), "the snapshot", where=where, sizes=(1, 7))
    if len(items) == 1:
        raise UnsupportedError(
            f"{where}: a snapshot from before 18 September 2024, which has neither an id nor a "
            "history; such files are not read"
        )
    total, parents, history, own, started_at, properties, nodes = items
    entries = mp.as_array(history, "the history", where=where)
    return {
        "total_parents": total,
        "short_term_parents": parents,
        "short_term_history": [_ancestor(entry, where) for entry in entries],
        "metadata": _ancestor(own, where),
        "started_at": started_at,
        "properties": mp.as_json(properties, "the properties", where=where),
        "nodes": {
            path: _node(node, where)
            for path, node in mp.as_members(nodes, "the nodes", where=where).items()
        },
    }


def manifest_entries(data: bytes, *, where: str) -> Entries:
    """The references of a manifest: a map by pairs of node and coordinates."""
    items = mp.as_array(mp.unpack(data, where=where), "the manifest", where=where, sizes=(1,))
    pairs = mp.as_pairs(items[0], "the references", where=where)
    places = [mp.as_array(key, "a key", where=where, sizes=(2,)) for key, _ in pairs]
    variants = [mp.as_variant(payload, "a reference", where=where) for _, payload in pairs]
    return Entries(
        nodes=[mp.as_number(node, "a node", where=where, most=(1 << 32) - 1) for node, _ in places],
        coordinates=[mp.as_index(index, "coordinates", where=where) for _, index in places],
        kinds=[kind for kind, _ in variants],
        bodies=[_body(kind, body, where) for kind, body in variants],
    )


def _body(kind: str, body: mp.Value, where: str) -> object:
    match kind:
        case "Inline":
            return mp.as_bytes(body, "inline data", where=where)
        case "Ref":
            identity, offset, length = mp.as_array(body, "a reference", where=where, sizes=(3,))
            return bytes(_id(identity, where)), offset, length
        case "Virtual":
            location, offset, length = mp.as_array(body, "a reference", where=where, sizes=(3,))
            return _location(location, where), offset, length
        case _:
            raise FormatError(f"{where}: a reference of unknown kind {kind[:60]!r}")


def _location(value: mp.Value, where: str) -> str:
    if not isinstance(value, str):
        kind, value = mp.as_variant(value, "a location", where=where)
        if kind != "Absolute":
            raise FormatError(f"{where}: a location of unknown kind {kind[:60]!r}")
    return mp.as_text(value, "a location", where=where)


def _id(value: mp.Value, where: str) -> list[int]:
    """An id as the documents show it."""
    try:
        text = mp.as_text(value, "an id", where=where)
        return list(decode_base32(text, EARLY_OBJECT_ID_SIZE))
    except InvalidInputError as error:
        raise FormatError(f"{where}: {error.message}") from None


def _ancestor(value: mp.Value, where: str) -> dict[str, Any]:
    identity, written_at, message = mp.as_array(value, "metadata", where=where, sizes=(3,))
    return {"id": _id(identity, where), "written_at": written_at, "message": message}


def _node(value: mp.Value, where: str) -> dict[str, Any]:
    identity, path, attributes, data = mp.as_array(value, "a node", where=where, sizes=(4,))
    kind, content = mp.as_variant(data, "the data of a node", where=where)
    node_data: object = kind
    if content is not None:
        zarr, refs = mp.as_array(content, "an array", where=where, sizes=(2,))
        manifests = mp.as_array(refs, "the manifests of an array", where=where)
        node_data = {kind: [_zarr(zarr, where), [_manifest_ref(ref, where) for ref in manifests]]}
    return {
        "id": identity,
        "path": path,
        "node_data": node_data,
        "user_attributes": _attributes(attributes, where),
    }


def _attributes(value: mp.Value, where: str) -> dict[str, Any] | None:
    if value is None:
        return None
    kind, content = mp.as_variant(value, "the attributes of a node", where=where)
    return {kind: mp.as_json(content, "the attributes of a node", where=where)}


def _manifest_ref(value: mp.Value, where: str) -> dict[str, Any]:
    identity, flags, extents = mp.as_array(value, "a manifest reference", where=where, sizes=(3,))
    return {
        "object_id": _id(identity, where),
        "flags": mp.as_json(flags, "flags", where=where),
        "extents": mp.as_json(extents, "extents", where=where),
    }


def _zarr(value: mp.Value, where: str) -> dict[str, Any]:
    items = mp.as_array(value, "the Zarr metadata", where=where, sizes=(len(_ZARR),))
    fields = dict(zip(_ZARR, items, strict=True))
    readers: dict[str, Callable[[mp.Value, str], object]] = {
        "codecs": _steps,
        "storage_transformers": _steps,
        "fill_value": _fill,
    }
    return {name: readers.get(name, _plain)(item, where) for name, item in fields.items()}


def _plain(value: mp.Value, where: str) -> object:
    return mp.as_json(value, "the Zarr metadata", where=where)


def _steps(value: mp.Value, where: str) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    steps = []
    for step in mp.as_array(value, "a list of codecs", where=where):
        name, configuration = mp.as_array(step, "a codec", where=where, sizes=(2,))
        steps.append({"name": name, "configuration": _plain(configuration, where)})
    return steps


def _fill(value: mp.Value, where: str) -> dict[str, Any]:
    """A fill value; raw bits may be binary or a list of numbers."""
    kind, content = mp.as_variant(value, "the fill value", where=where)
    if isinstance(content, bytes):
        return {kind: list(content)}
    return {kind: _plain(content, where)}
