"""Runs that append labels to a dimension without steps, and a model of them in plain NumPy."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zarr
from hypothesis import strategies as st

from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.engine.commit.merge import MergeSolver
from airflow_provider_icechunk.engine.datasets.declare import ensure
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import InvalidInputError, RebaseFailedError

LEVELS = 3
Seen = dict[str, tuple[tuple[int, ...], list[Any]]]


def stations(steps: int = 1, *, shards: bool = False, labels: int = 2) -> IcechunkDataset:
    """`x` has chunks of one label, `y` of `steps` labels, and the coordinate of `labels`."""
    dims: dict[str, Any] = {
        "station": Growing(by="labels", dtype="int64", coordinate_chunk=labels),
        "level": LEVELS,
    }
    inner, outer = ((1, 1), (steps, 2)) if shards else ((steps, 2), None)
    variables = {
        "x": Variable("int16", ("station", "level")),
        "y": Variable("float32", ("station", "level"), inner, shards=outer),
        "z": Variable("float32", ("level", "station"), (2, steps), fill_value=7.0),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Runs share chunks, which is the point.
        return IcechunkDataset("s", dims, variables)


@dataclass(frozen=True)
class Run:
    """Some labels get this value, in some variables and levels."""

    labels: tuple[int, ...]
    value: int
    variables: tuple[str, ...] = ("x", "y", "z")
    levels: tuple[int, int] = (0, LEVELS)
    is_recorded: bool = True


BASE = Run((1, 2, 3), 5)
new_labels = st.lists(
    st.sampled_from([0, 4, 5, 6, 7, 8, 9]), min_size=1, max_size=3, unique=True
).map(tuple)
runs = st.builds(
    Run,
    st.one_of(
        new_labels,
        new_labels,
        new_labels.map(lambda labels: (3, *labels)),
        st.sampled_from([(1,), (2, 3), (3,)]),
    ),
    st.integers(0, 3),
    st.sampled_from([("x", "y", "z"), ("x",), ("y", "z")]),
    st.sampled_from([(0, LEVELS), (0, LEVELS), (0, 1), (1, 3)]),
    st.sampled_from([True, True, True, False]),
)
transactions = st.lists(runs, min_size=1, max_size=2)
datasets = st.builds(
    stations, st.integers(1, 4), shards=st.booleans(), labels=st.sampled_from([1, 2, 3, 1024])
)


def run(session: Session, dataset: IcechunkDataset, transaction: list[Run]) -> Session | None:
    """Carry it out in a session; `None` if its labels are not one block, which is refused."""
    for one in transaction:
        try:
            placed = ensure(session, dataset, dataset.place({"station": list(one.labels)}))
        except InvalidInputError:
            return None
        for name in one.variables:
            dims = dataset.variables[name].dims
            box = tuple(
                one.levels if dim == "level" else span
                for dim, span in zip(dims, placed.region(dims), strict=True)
            )
            array = zarr.open_array(session.store, path=name, mode="r+")
            part = tuple(slice(*span) for span in box)
            if one.is_recorded:
                with session.recording({name: box}):
                    array[part] = one.value
            else:
                array[part] = one.value
    return session


@dataclass
class Model:
    """The expected result, in the order of the commits."""

    labels: list[int] = field(default_factory=list)
    cells: dict[tuple[str, int, int], float] = field(default_factory=dict)

    def run(self, transaction: list[Run]) -> None:
        for one in transaction:
            self.labels += [label for label in one.labels if label not in self.labels]
            for name in one.variables:
                for label in one.labels:
                    for level in range(*one.levels):
                        self.cells[name, label, level] = one.value

    def seen(self) -> Seen:
        found: Seen = {"station": ((len(self.labels),), list(self.labels))}
        for name, fill in (("x", 0), ("y", 0.0), ("z", 7.0)):
            rows = [
                [self.cells.get((name, label, level), fill) for level in range(LEVELS)]
                for label in self.labels
            ]
            values = np.array(rows).T if name == "z" else np.array(rows)
            found[name] = values.shape, values.tolist()
        return found


def seen(session: Session) -> Seen:
    arrays = {name: zarr.open_array(session.store, path=name) for name in ("station", *"xyz")}
    return {name: (array.shape, np.asarray(array[...]).tolist()) for name, array in arrays.items()}


def modelled(*order: list[Run]) -> Seen:
    model = Model()
    for transaction in ([BASE], *order):
        model.run(transaction)
    return model.seen()


def based(dataset: IcechunkDataset, storage: Any = None) -> Repository:
    repo = Repository.create(storage or MemoryStorage())
    session = run(repo.writable_session("main"), dataset, [BASE])
    assert session is not None
    session.commit("base")
    return repo


def landed(
    dataset: IcechunkDataset, *transactions: list[Run], solver: MergeSolver | None = None
) -> Seen | str | None:
    """The result of runs that all start from the same state and commit one after another.

    `None` if one of them is refused before it can write, a text if they are in conflict.
    """
    repo = based(dataset)
    sessions = [run(repo.writable_session("main"), dataset, one) for one in transactions]
    if any(session is None for session in sessions):
        return None
    try:
        for session in sessions:
            assert session is not None
            if session.has_uncommitted_changes:
                session.commit("side by side", rebase_with=solver or MergeSolver())
    except RebaseFailedError as error:
        return str(error)
    return seen(repo.readonly_session("main"))
