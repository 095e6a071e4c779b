"""Operators that change a dataset over time: what they change, what they only say, and once."""

from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from support.airflow_contexts import cleared, make_context, retried

from airflow_provider_icechunk.api import (
    MergeSolver,
    Repository,
    declare,
    local_filesystem_storage,
    set_attributes,
)
from airflow_provider_icechunk.dataset import Coordinate, Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.engine.datasets.declare import ensure
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
)
from airflow_provider_icechunk.operators.change import (
    IcechunkAttributesOperator,
    IcechunkDeclareOperator,
    IcechunkDropLabelsOperator,
)

T2M = Variable("float32", ("time", "x"), attrs={"units": "K"})


def weather(**variables: Variable) -> IcechunkDataset:
    return IcechunkDataset(
        "weather",
        dims={"time": Growing(start="2026-01-01", every="1D"), "x": 3},
        variables={"t2m": T2M, **variables},
        coords={"x": Coordinate(start=1, step=2)},
    )


@pytest.fixture
def repository(folder: Path) -> Repository:
    made = Repository.create(local_filesystem_storage(folder / "weather"))
    session = made.writable_session("main")
    span = {"from": "2026-01-01", "until": "2026-01-05"}
    ensure(session, weather(), weather().place({"time": span}))
    zarr.open_array(session.store, path="t2m", mode="r+")[:] = np.arange(12).reshape(4, 3)
    session.commit("four days")
    return made


def run(kind: Any, context: Any = None, **arguments: Any) -> dict[str, Any]:
    return kind(task_id="task", **arguments).execute(context or make_context())


def read(folder: Path, path: str) -> Any:
    """As the official library sees it."""
    opened = icechunk.Repository.open(icechunk.local_filesystem_storage(str(folder / "weather")))
    return zarr.open_array(opened.readonly_session("main").store, path=path, mode="r")


def test_a_variable_is_added_as_long_as_the_others(repository: Repository, folder: Path) -> None:
    more = weather(rain=Variable("int16", ("time", "x"), fill_value=-1))
    head = repository.lookup_branch("main")
    asked = run(IcechunkDeclareOperator, dataset=more, dry_run="true")
    assert asked == {
        "dry_run": True, "snapshot_id": None, "parent_id": head, "branch": "main",
        "committed": False, "result": {"created": ["/rain"], "deleted": [], "changed": {}},
    }  # fmt: skip
    assert repository.lookup_branch("main") == head
    done = run(IcechunkDeclareOperator, dataset=more)
    assert (done["committed"], done["result"]) == (True, asked["result"])
    assert run(IcechunkDeclareOperator, retried(make_context()), dataset=more) == done
    again = run(IcechunkDeclareOperator, make_context(run_id="later"), dataset=more)
    assert (again["committed"], again["snapshot_id"]) == (False, done["snapshot_id"])
    assert read(folder, "rain").shape == (4, 3)
    assert (read(folder, "rain")[:] == -1).all()
    assert read(folder, "t2m")[:].tolist() == np.arange(12).reshape(4, 3).tolist()


def test_a_repository_that_is_missing_is_made_with_everything(folder: Path) -> None:
    done = run(IcechunkDeclareOperator, dataset=weather())
    assert {"/t2m", "/time", "/x"} <= set(done["result"]["created"])
    assert read(folder, "t2m").shape == (0, 3)
    assert read(folder, "x")[:].tolist() == [1, 3, 5]


def test_what_differs_is_named_and_nothing_is_changed(repository: Repository) -> None:
    head = repository.lookup_branch("main")
    other = IcechunkDataset("weather", dims={"time": Growing(start="2026-01-01", every="1D")},
                            variables={"t2m": Variable("int8", ("time",))})  # fmt: skip
    for dry_run in (True, False):
        with pytest.raises(AlreadyExistsError, match=r"t2m exists with dtype float32"):
            run(IcechunkDeclareOperator, dataset=other, dry_run=dry_run)
    assert repository.lookup_branch("main") == head


def test_a_dry_run_stores_nothing(repository: Repository, folder: Path) -> None:
    before = {path for path in (folder / "weather").rglob("*") if path.is_file()}
    wide = IcechunkDataset(
        "weather",
        dims={"y": 5000},
        variables={"height": Variable("float64", ("y",))},
        coords={"y": Coordinate(start=0.5, step=0.1)},
        group="more",
    )
    report, identity = declare(repository, wide, dry_run=True)
    assert (report["created"], identity) == (["/more", "/more/height", "/more/y"], None)
    assert {path for path in (folder / "weather").rglob("*") if path.is_file()} == before


def test_attributes_are_set_and_removed_key_by_key(repository: Repository, folder: Path) -> None:
    arguments: dict[str, Any] = {
        "repository": "weather",
        "attributes": {"/": {"title": "Wetter"}, "t2m": {"units": "degC", "valid": [1, 2]}},
        "remove": {"/time": ["standard_name", "never"]},
    }
    wanted = {
        "/": {"attributes": {"title": [None, "Wetter"]}},
        "/t2m": {"attributes": {"units": ["K", "degC"], "valid": [None, [1, 2]]}},
        "/time": {"attributes": {"standard_name": ["time", None]}},
    }
    asked = run(IcechunkAttributesOperator, dry_run=True, **arguments)
    assert asked["result"] == {"created": [], "deleted": [], "changed": wanted}
    done = run(IcechunkAttributesOperator, **arguments)
    assert done["result"] == asked["result"]
    assert read(folder, "t2m").attrs.asdict() == {"units": "degC", "valid": [1, 2]}
    assert "standard_name" not in read(folder, "time").attrs
    again = run(IcechunkAttributesOperator, cleared(make_context()), **arguments)
    assert again["committed"] is False


def test_attributes_of_two_tasks_at_once_are_both_there(
    repository: Repository, folder: Path
) -> None:
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="t2m", mode="r+").attrs["theirs"] = 1
    set_attributes(repository, {"t2m": {"ours": 2}})
    session.commit("theirs", rebase_with=MergeSolver())
    assert read(folder, "t2m").attrs.asdict() == {"units": "K", "theirs": 1, "ours": 2}


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({}, InvalidInputError, "no attributes to set or to remove"),
        ({"attributes": {"t2m": {"a": 1}}, "remove": {"/t2m": ["a"]}}, InvalidInputError, "'a'"),
        ({"remove": {"t2m": "a"}}, InvalidInputError, r"list of names, such as \['a'\]"),
        ({"attributes": {"nowhere": {"a": 1}}}, NotFoundError, "at /nowhere"),
        ({"attributes": {"t2m": {"a": float("nan")}}}, InvalidInputError, "not plain JSON"),
    ],
)
@pytest.mark.usefixtures("repository")
def test_attributes_that_cannot_be_meant_are_refused(
    arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        run(IcechunkAttributesOperator, repository="weather", **arguments)


def test_old_days_go_once_and_a_retry_finds_the_commit(
    repository: Repository, folder: Path
) -> None:
    asked = run(IcechunkDropLabelsOperator, dataset=weather(), keep="2", dry_run=True)
    assert (asked["committed"], asked["result"]["dropped"]) == (False, ["2026-01-01", "2026-01-02"])
    done = run(IcechunkDropLabelsOperator, dataset=weather(), keep="2")
    assert (done["committed"], done["result"]) == (True, asked["result"])
    assert (
        run(IcechunkDropLabelsOperator, retried(make_context()), dataset=weather(), keep=2) == done
    )
    later = make_context(run_id="later")
    again = run(IcechunkDropLabelsOperator, later, dataset=weather(), before="2026-01-03")
    assert (again["committed"], again["result"]["labels"]) == (False, 0)
    assert read(folder, "t2m")[:].tolist() == [[6, 7, 8], [9, 10, 11]]
    assert read(folder, "time")[:].tolist() == [2, 3]
    with pytest.raises(InvalidInputError, match="`before` with the first of them, or `keep`"):
        run(IcechunkDropLabelsOperator, dataset=weather())
    empty = make_context(run_id="empty")
    with pytest.raises(InvalidInputError, match="got no label"):
        run(IcechunkDropLabelsOperator, empty, dataset=weather(), before="")
