"""Transactions on growing arrays, carried out by sessions and by a model of plain NumPy."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zarr
from hypothesis import strategies as st

from airflow_provider_icechunk.engine.commit.merge import MergeSolver
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import RebaseFailedError

WIDTH = 3
CHUNKS = (4, 2)
BASE_LENGTH = 6
Seen = dict[str, tuple[tuple[int, ...], dict[str, Any], bytes]]


@dataclass(frozen=True)
class Ensure:
    """The array exists, and has at least this length: `create` and `grow`."""

    path: str
    length: int


@dataclass(frozen=True)
class Write:
    """A part of the array has this value; the array is created or extended for it."""

    path: str
    box: tuple[tuple[int, int], tuple[int, int]]
    value: float
    is_recorded: bool = True


@dataclass(frozen=True)
class Attribute:
    path: str
    key: str
    value: int | None
    """`None` removes it."""


@dataclass(frozen=True)
class Delete:
    path: str


Operation = Ensure | Write | Attribute | Delete
Transaction = list[Operation]

paths = st.sampled_from(["a", "a", "new"])
values = st.sampled_from([0.0, 1.0, 2.0, float("nan")])
spans = st.tuples(st.integers(0, 9), st.integers(1, 4)).map(lambda one: (one[0], one[0] + one[1]))
parts = st.tuples(spans, st.sampled_from([(0, 3), (0, 1), (1, 3), (2, 3)]))
whole = st.integers(0, 3).map(lambda number: ((4 * number, 4 * number + 4), (0, WIDTH)))
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Ensure, paths, st.integers(1, 14)),
    st.builds(Write, paths, parts, values),
    st.builds(Write, paths, parts, values),
    st.builds(Write, paths, whole, values, st.booleans()),
    st.builds(Attribute, paths, st.sampled_from("xy"), st.sampled_from([1, 2])),
    st.builds(Attribute, st.just("a"), st.just("x"), st.none()),
    st.builds(Delete, st.just("a")),
)
transactions = st.lists(operations, min_size=1, max_size=3).map(lambda one: effective(one))


def document(length: int) -> bytes:
    fields = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [length, WIDTH],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(CHUNKS)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
    }
    return json.dumps(fields).encode()


def _edit(session: Session, path: str, **changed: Any) -> None:
    node = session.tree.array(f"/{path}")
    fields = {**json.loads(node.user_data), **changed}
    session.tree.put_document(f"/{path}", json.dumps(fields).encode())


def _ensure(session: Session, path: str, length: int) -> None:
    node = session.tree.node(f"/{path}")
    if node is None:
        session.tree.put_document(f"/{path}", document(length))
        return
    shape = json.loads(node.user_data)["shape"]
    if shape[0] < length:
        _edit(session, path, shape=[length, WIDTH])


def run(session: Session, transaction: Transaction) -> Session:
    """Carry it out in a session."""
    for operation in transaction:
        match operation:
            case Ensure(path, length):
                _ensure(session, path, length)
            case Write(path, box, value, is_recorded):
                _ensure(session, path, box[0][1])
                array = zarr.open_array(session.store, path=path, mode="r+")
                part = tuple(slice(*span) for span in box)
                if is_recorded:
                    with session.recording({path: box}):
                        array[part] = value
                else:
                    array[part] = value
            case Attribute(path, key, value):
                _ensure(session, path, 1)
                known = json.loads(session.tree.array(f"/{path}").user_data)["attributes"]
                kept = {name: one for name, one in known.items() if name != key}
                _edit(session, path, attributes=kept if value is None else {**kept, key: value})
            case Delete(path):
                session.tree.delete(f"/{path}")
    return session


@dataclass
class Model:
    """The expected result."""

    arrays: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    attributes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self, transaction: Transaction) -> None:
        for operation in transaction:
            match operation:
                case Ensure(path, length):
                    self._ensure(path, length)
                case Write(path, box, value, _):
                    self._ensure(path, box[0][1])
                    self.arrays[path][tuple(slice(*span) for span in box)] = value
                case Attribute(path, key, value):
                    self._ensure(path, 1)
                    self.attributes[path].pop(key, None)
                    if value is not None:
                        self.attributes[path][key] = value
                case Delete(path):
                    self.arrays.pop(path, None)
                    self.attributes.pop(path, None)

    def _ensure(self, path: str, length: int) -> None:
        old = self.arrays.get(path)
        if old is None:
            self.arrays[path] = np.zeros((length, WIDTH), "f4")
            self.attributes[path] = {}
        elif len(old) < length:
            self.arrays[path] = np.zeros((length, WIDTH), "f4")
            self.arrays[path][: len(old)] = old

    def seen(self) -> Seen:
        return {
            path: (array.shape, dict(self.attributes[path]), array.tobytes())
            for path, array in sorted(self.arrays.items())
        }


BASE: Transaction = [
    Write("a", ((0, BASE_LENGTH), (0, WIDTH)), 5.0, is_recorded=False),
    Attribute("a", "x", 0),
]


def effective(transaction: Transaction) -> Transaction:
    """Without what changes nothing: a session that finds what it wants in place claims nothing.

    Nor does one that changes an attribute and changes it back.
    """
    kept: Transaction = []
    model = Model()
    model.run(BASE)
    for operation in transaction:
        if isinstance(operation, Attribute) and any(
            isinstance(one, Attribute) and (one.path, one.key) == (operation.path, operation.key)
            for one in kept
        ):
            continue
        before = model.seen()
        model.run([operation])
        if isinstance(operation, Write) or model.seen() != before:
            kept.append(operation)
    return kept


def modelled(*order: Transaction) -> Seen:
    model = Model()
    for transaction in (BASE, *order):
        model.run(transaction)
    return model.seen()


def seen(session: Session) -> Seen:
    """What a reader sees of all arrays."""
    found: Seen = {}
    for node in session.tree.nodes():
        if node.array is not None:
            array = zarr.open_array(session.store, path=node.path[1:], mode="r")
            found[node.path[1:]] = (
                array.shape,
                dict(array.attrs),
                np.asarray(array[...]).tobytes(),
            )
    return dict(sorted(found.items()))


def based(storage: MemoryStorage) -> Repository:
    repo = Repository.create(storage)
    run(repo.writable_session("main"), BASE).commit("base")
    return repo


def merged(
    ours: Transaction, *theirs: Transaction, solver: MergeSolver | None = None
) -> Seen | None:
    """The result of `ours` over `theirs`, all from the same base; `None` on a conflict."""
    repo = based(MemoryStorage())
    late = run(repo.writable_session("main"), ours)
    others = [run(repo.writable_session("main"), one) for one in theirs]
    solver = solver or MergeSolver()
    try:
        for number, other in enumerate(others):
            if other.has_uncommitted_changes:
                other.commit(f"theirs {number}", rebase_with=solver)
        if late.has_uncommitted_changes:
            late.commit("ours", rebase_with=solver)
    except RebaseFailedError:
        return None
    return seen(repo.readonly_session("main"))
