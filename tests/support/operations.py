"""Random small transactions on one small tree, expressed by path, so that they can be replayed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from hypothesis import strategies as st
from support.arrays import GROUP, array

from airflow_provider_icechunk.engine.format.chunk_refs import Inline
from airflow_provider_icechunk.engine.format.names import is_below
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage

GROUPS = ("/", "/g", "/g/h", "/n", "/x")
ARRAYS = ("/c", "/g/a", "/g/h/b", "/n", "/g/n", "/x", "/x/y")
SIZES = (2, 3, 5)


@dataclass(frozen=True)
class Create:
    """Create a node where there is none, and not below an array; an array has nothing below it."""

    path: str
    document: bytes

    def apply(self, session: Session) -> None:
        tree = session.tree
        above, below = tree.ancestor(self.path), tree.nodes(self.path)
        if below and (b'"array"' in self.document or below[0].path == self.path):
            return
        if above is None or above.is_group:
            tree.put_document(self.path, self.document)


@dataclass(frozen=True)
class Update:
    """Change attributes and shape of a node."""

    path: str
    document: bytes

    def apply(self, session: Session) -> None:
        node = session.tree.node(self.path)
        if node is not None and node.is_group is (b'"group"' in self.document):
            session.tree.put_document(self.path, self.document)


@dataclass(frozen=True)
class Delete:
    """Delete a node with everything below it."""

    path: str

    def apply(self, session: Session) -> None:
        session.tree.delete(self.path)


@dataclass(frozen=True)
class Write:
    """Write a chunk, or erase it."""

    path: str
    index: int
    data: bytes | None

    def apply(self, session: Session) -> None:
        node = session.tree.node(self.path)
        if node is None or node.array is None or self.index >= node.array.shape[0].length:
            return
        if self.data is None:
            session.tree.erase(self.path, [(self.index,)])
        else:
            session.tree.put_chunk(self.path, (self.index,), self.data)


Operation = Create | Update | Delete | Write
Transaction = tuple[Operation, ...]

_indices = st.integers(0, max(SIZES) - 1)
_groups = st.integers(0, 99).map(lambda mark: GROUP.replace(b"{}", b'{"mark": %d}' % mark))
_arrays = st.builds(
    lambda size, mark: array([size], [1], mark=mark), st.sampled_from(SIZES), st.integers(0, 99)
)
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Write, st.sampled_from(ARRAYS), _indices, st.binary(min_size=1, max_size=3)),
    st.builds(Write, st.sampled_from(ARRAYS), _indices, st.none()),
    st.builds(Create, st.sampled_from(ARRAYS), _arrays),
    st.builds(Update, st.sampled_from(ARRAYS), _arrays),
    st.builds(Create, st.sampled_from(GROUPS), _groups),
    st.builds(Update, st.sampled_from(GROUPS), _groups),
    st.builds(Delete, st.sampled_from((*GROUPS[1:], *ARRAYS))),
)
transactions: st.SearchStrategy[Transaction] = st.lists(operations, min_size=1, max_size=6).map(
    lambda drawn: net(tuple(drawn))
)


def fresh(generation: str = "1") -> MemoryStorage:
    """A storage of its own with the tree that all transactions start from."""
    storage = MemoryStorage()
    for key, data in _start(generation):
        storage.put(key, data, expect=Anything())
    return storage


def run(session: Session, transaction: Transaction) -> Session:
    """Apply a transaction to a session; what makes no sense there is left out."""
    for operation in transaction:
        operation.apply(session)
    return session


def net(transaction: Transaction) -> Transaction:
    """The net effect of a transaction on the tree that all transactions start from."""
    session = run(Repository.open(_untouched()).writable_session("main"), transaction)
    changes = session.tree.changes
    gone = [node.path for node in changes.deleted.values()]
    paths = {node.id: node.path for node in session.tree.nodes()}
    writes = []
    for node_id, refs in changes.edited():
        for row, (index,) in enumerate(refs.index.tolist()):
            payload = refs[row]
            data = payload.data if isinstance(payload, Inline) else None
            writes.append(Write(paths[node_id], index, data))
    return (
        *(Delete(path) for path in gone if not any(is_below(path, above) for above in gone)),
        *(Create(path, node.user_data) for path, node in sorted(changes.created.items())),
        *(Update(node.path, node.user_data) for node in changes.updated.values()),
        *writes,
    )


@cache
def _untouched() -> MemoryStorage:
    return fresh()


@cache
def _start(generation: str) -> tuple[tuple[str, bytes], ...]:
    storage = MemoryStorage()
    session = Repository.create(storage, spec_version=generation).writable_session("main")
    for path in ("/", "/g", "/g/h"):
        session.tree.put_document(path, GROUP)
    for path in ("/c", "/g/a", "/g/h/b"):
        session.tree.put_document(path, array([3], [1]))
        for index in range(2):
            session.tree.put_chunk(path, (index,), f"{path}{index}".encode())
    session.commit("start")
    return tuple((key, stored.data) for key, stored in storage.objects.items())
