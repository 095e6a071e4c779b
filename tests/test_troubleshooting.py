"""The page about errors of pipelines quotes what is really said."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from airflow_provider_icechunk.api import MergeSolver, Repository, Session, in_memory_storage
from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.engine.datasets.declare import ensure
from airflow_provider_icechunk.engine.pipelines.reruns import Attempt
from airflow_provider_icechunk.engine.pipelines.transaction import CommitOptions, commit_session
from airflow_provider_icechunk.spark.runtime import check_versions
from airflow_provider_icechunk.spark.write.functions import FunctionWork, find_function

PAGE = Path(__file__).resolve().parent.parent / "docs/troubleshooting.md"
WEATHER = IcechunkDataset(
    "weather",
    dims={"time": Growing(start="2026-01-01", every="1D"), "x": 3},
    variables={"t2m": Variable("float32", ("time", "x"))},
)


def quoted() -> list[str]:
    """The headings about pipelines, as texts."""
    section = re.search(r"^## Pipelines\n(.*?)^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None
    return re.findall(r"^### `(.*)`$", section[1], re.MULTILINE)


def pattern(text: str) -> str:
    """A quoted text as a regular expression: `...` is anything."""
    return ".*?".join(re.escape(part) for part in text.split("..."))


@pytest.fixture
def repository() -> Repository:
    made = Repository.create(in_memory_storage())
    day(made, "2026-01-06", 1).commit("day")
    return made


def day(repository: Repository, label: str, value: int) -> Session:
    """A session in which a day was written, as Spark records it."""
    session = repository.writable_session("main")
    placed = ensure(session, WEATHER, WEATHER.place({"time": label}))
    rows = placed.regions["time"]
    with session.recording({"/t2m": [rows, (0, 3)]}):
        zarr.open_array(session.store, path="t2m", mode="r+")[slice(*rows)] = value
    return session


def place(label: str) -> Callable[[Repository], Any]:
    return lambda _: WEATHER.place({"time": label})


def declare(**changes: Any) -> Callable[[Repository], Any]:
    def apply(repository: Repository) -> Any:
        other = WEATHER.on(**changes)
        return ensure(
            repository.writable_session("main"), other, other.place({"time": "2026-01-07"})
        )

    return apply


def conflict(repository: Repository) -> Any:
    first, second = day(repository, "2026-01-07", 1), day(repository, "2026-01-07", 2)
    first.commit("first")
    return second.commit("second", rebase_with=MergeSolver())


def call(function: Callable[..., Any], **arguments: Any) -> Callable[[Repository], Any]:
    """Do what the driver does, then what an executor does."""

    def work(repository: Repository) -> Any:
        session = repository.writable_session("main")
        todo = FunctionWork(("t2m",), function, arguments, {"time": (5, 6)}, 1)
        todo.prepare(session)
        return todo.writer(session, 1)(session.fork(), 0)

    return work


def raises(_: Any) -> Any:
    raise LookupError("no such file")


def nothing(repository: Repository) -> Any:
    attempt = Attempt("dag/run/task/-1", 0, 1, False, True, None, "replace")
    work = repository.writable_session("main").work_unit("job")
    return commit_session(repository, work, CommitOptions(attempt, "nothing", {"airflow": {}}))


def shared(_: Repository) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        variable = Variable("float32", ("time", "x"), chunks=(24, 100_000))
        dims = {**WEATHER.dims, "x": 100_000}
        return IcechunkDataset("weather", dims=dims, variables={"t2m": variable})


def without_connection(_: Repository) -> Any:
    from airflow_provider_icechunk.operators.spark import IcechunkSparkSubmitOperator

    operator = IcechunkSparkSubmitOperator(
        task_id="write", repository="w", application="job.py", conn_id="nowhere"
    )
    operator._check_spark_connection()


PROVOKED: dict[str, Callable[[Repository], Any]] = {
    "got no label": place(""),
    "begins at": place("2025-12-31"),
    "lies between two steps": place("2026-01-06T12:00"),
    "exists with": declare(variables={"t2m": Variable("float64", ("time", "x"))}),
    "counts units": declare(dims={"time": Growing(start="2025-01-01", every="1D"), "x": 3}),
    "runs in parallel share": shared,
    "cannot be imported": lambda _: find_function("no_such_module:field"),
    "has no function": lambda _: find_function("json:field"),
    "cannot be called as": call(lambda region: None, model="ifs"),
    "returned shape": call(lambda region: np.zeros((3, 3))),
    "raised": call(raises),
    "Rebase failed": conflict,
    "there is nothing to commit": nothing,
    "no Spark connection": without_connection,
    "PySpark is": lambda _: check_versions("4.0.0", "4.1.0"),
}


def test_every_quoted_text_is_provoked_here() -> None:
    for text in quoted():
        assert [key for key in PROVOKED if key in text], text
    assert len(quoted()) == len(PROVOKED)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("key", PROVOKED)
def test_the_page_quotes_what_is_said(repository: Repository, key: str) -> None:
    (text,) = (text for text in quoted() if key in text)
    with pytest.raises(Exception, match=pattern(text)):
        PROVOKED[key](repository)
