"""Nodes and chunks without Zarr: documents by hand, chunk bytes that say where they belong."""

from __future__ import annotations

import json
from collections.abc import Iterable

from airflow_provider_icechunk.engine.format.chunk_refs import Index
from airflow_provider_icechunk.engine.sessions.session import Session

GROUP = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()


def array(shape: Iterable[int], chunks: Iterable[int], **attributes: object) -> bytes:
    """The `zarr.json` of an uncompressed byte array."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(shape),
            "data_type": "uint8",
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": list(chunks)},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            "attributes": attributes,
        }
    ).encode()


def put(session: Session, path: str, index: Index, data: bytes) -> None:
    """Write one chunk."""
    session.tree.put_chunk(path, index, data)


def contents(session: Session) -> dict[str, object]:
    """Everything a reader of the session can see: documents, and the bytes of every chunk.

    Documents are compared by content: early generations store them in parts.
    """
    from airflow_provider_icechunk.engine.objects.chunk_reader import Wanted

    seen: dict[str, object] = {}
    for node in session.tree.nodes():
        seen[node.path] = json.loads(node.user_data)
        if node.array is None:
            continue
        refs = session.tree.references(node)
        wanted = []
        for row in range(len(refs)):
            payload = refs[row]
            assert payload is not None
            wanted.append(Wanted(payload, 0, int(refs.length[row])))
        for row, data in enumerate(session.tree.read(wanted)):
            seen[f"{node.path}{refs.index[row].tolist()}"] = data
    return seen
