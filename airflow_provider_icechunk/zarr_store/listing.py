"""Which keys a session's tree has, and which names lie directly below a prefix."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_icechunk.format.names import CHUNK_PREFIX, METADATA_FILE, ROOT, is_below
from airflow_provider_icechunk.format.snapshot import Node
from airflow_provider_icechunk.repository.working_tree import WorkingTree
from airflow_provider_icechunk.zarr_store.keys import chunk_prefix, document_key, path_of


def keys_with_prefix(tree: WorkingTree, prefix: str) -> Iterator[str]:
    """Every key at or below the path `prefix`.

    The prefix ends where a name ends, as officially and in a folder: what lies below `foo` is not
    in `foo-bar`.
    """
    path = prefix.strip("/")
    for node in tree.nodes():
        document, chunks = document_key(node.path), chunk_prefix(node.path)
        if _reaches(path, document):
            yield document
        if node.is_group:
            continue
        if _reaches(path, chunks):
            yield from _chunk_keys(tree, node)
        elif _reaches(chunks, path):
            yield from (key for key in _chunk_keys(tree, node) if _reaches(path, key))


def _reaches(path: str, key: str) -> bool:
    """Whether a key is at a path or below it."""
    return not path or key == path or key.startswith(f"{path}/")


def names_in(tree: WorkingTree, prefix: str) -> list[str]:
    """Names directly below `prefix`: documents, child nodes, `c`, or parts of chunk keys."""
    path = path_of(prefix)
    if path is None:
        return []
    node = tree.node(path)
    if node is not None and not node.is_group:
        return [METADATA_FILE, CHUNK_PREFIX] if _has_chunks(tree, node) else [METADATA_FILE]
    below = _children(tree, path)
    if node is not None:
        return [METADATA_FILE, *below]
    return below or _chunk_names(tree, path)


def _children(tree: WorkingTree, path: str) -> list[str]:
    start = 1 if path == ROOT else len(path) + 1
    names = dict.fromkeys(
        node.path[start:].split("/", 1)[0] for node in tree.nodes(path) if is_below(node.path, path)
    )
    return list(names)


def _chunk_names(tree: WorkingTree, path: str) -> list[str]:
    """Parts of chunk keys below a prefix such as `array/c/0`."""
    owner = tree.ancestor(path)
    if owner is None or owner.is_group:
        return []
    prefix = f"{path[1:]}/"
    names = dict.fromkeys(
        key[len(prefix) :].split("/", 1)[0]
        for key in _chunk_keys(tree, owner)
        if key.startswith(prefix)
    )
    return list(names)


def _chunk_keys(tree: WorkingTree, node: Node) -> Iterator[str]:
    prefix = chunk_prefix(node.path)
    refs = tree.references(node)
    if not refs.ndim:
        yield from [prefix] * len(refs)
        return
    for start in range(0, len(refs), 10_000):
        for row in refs.index[start : start + 10_000].tolist():
            yield f"{prefix}/{'/'.join(map(str, row))}"


def _has_chunks(tree: WorkingTree, node: Node) -> bool:
    return len(tree.references(node)) > 0
