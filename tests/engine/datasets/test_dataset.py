"""A declaration is checked where the DAG is parsed, and says where each run belongs."""

import json
import pickle
import subprocess
import sys
import warnings
from typing import Any

import pytest

from airflow_provider_icechunk.dataset import (
    Coordinate,
    Growing,
    IcechunkDataset,
    Placement,
    Variable,
)
from airflow_provider_icechunk.exceptions import InvalidInputError

DAYS = Growing(start="2026-01-01", every="1D")


def weather(**changes: Any) -> IcechunkDataset:
    values: dict[str, Any] = {
        "dims": {"time": DAYS, "latitude": 721, "longitude": 1440},
        "variables": {
            "t2m": Variable(
                "float32",
                ("time", "latitude", "longitude"),
                chunks=(1, 721, 1440),
                attrs={"units": "K"},
                fill_value=float("nan"),
            )
        },
        "coords": {"latitude": Coordinate(start=90, step=-0.25)},
    }
    return IcechunkDataset("weather", **(values | changes))


def test_a_run_knows_its_place_whatever_else_exists() -> None:
    placed = weather().place({"time": "2026-01-06"})
    assert placed == Placement(
        regions={"time": (5, 6)},
        labels={"time": ["2026-01-06"]},
        lengths={"time": 6, "latitude": 721, "longitude": 1440},
    )
    assert placed.region(("time", "latitude")) == ((5, 6), (0, 721))


@pytest.mark.parametrize(
    "at",
    [
        {"time": ["2026-01-03", "2026-01-04", "2026-01-05"]},
        {"time": {"from": "2026-01-03", "until": "2026-01-06"}},
        '{"time": ["2026-01-05", "2026-01-03", "2026-01-04"]}',
    ],
)
def test_a_run_can_have_several_labels(at: Any) -> None:
    placed = weather().place(at)
    assert placed.regions == {"time": (2, 5)}
    assert placed.labels == {"time": ["2026-01-03", "2026-01-04", "2026-01-05"]}
    assert placed.lengths["time"] == 5


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (None, "must say where along 'time'"),
        ({}, "must say where along 'time'"),
        ({"day": "2026-01-01"}, "growing dimensions of 'weather' are 'time'"),
        ({"latitude": 3, "time": "2026-01-01"}, "growing dimensions of 'weather' are 'time'"),
        ({"time": ""}, "without a logical date"),
        ({"time": []}, "without a logical date"),
        ("", "without a logical date"),
        ("2026-01-01", "a mapping or its JSON text"),
        ({"time": ["2026-01-01", "2026-01-03"]}, "2026-01-03 follows 2026-01-01"),
        ({"time": ["2026-01-01", "2026-01-01"]}, "not one block"),
        ({"time": {"from": "2026-01-03", "until": "2026-01-03"}}, "nothing lies from"),
        ({"time": {"first": "2026-01-03"}}, "a range is"),
    ],
)
def test_a_place_that_cannot_be_is_refused(at: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        weather().place(at)


def test_labels_without_steps_are_placed_when_a_session_is_open() -> None:
    dims = {"station": Growing(by="labels", dtype="str")}
    stations = IcechunkDataset("s", dims, {"x": Variable("int16", ("station",))})
    placed = stations.place({"station": ["zurich", "basel"]})
    assert placed == Placement({}, {"station": ["zurich", "basel"]}, {"station": 0})
    with pytest.raises(InvalidInputError, match="names a label twice"):
        stations.place({"station": ["zurich", "zurich"]})
    with pytest.raises(InvalidInputError, match="has no ranges"):
        stations.place({"station": {"from": "a", "until": "b"}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variables": {"x": Variable("f4", ("level",))}}, "dimension 'level'; declared are"),
        ({"variables": {"x": Variable("f4", ("time", "time"))}}, "a dimension twice"),
        ({"variables": {"time": Variable("f4", ("time",))}}, "a dimension and a variable"),
        ({"variables": {"a/b": Variable("f4", ("time",))}}, "'a/b' is not a valid name"),
        ({"variables": {"x": "float32"}}, "is not a Variable"),
        ({"dims": {"time": DAYS, "latitude": 7.5}}, "a length or a Growing"),
        ({"coords": {"time": [1, 2]}}, "come from Growing"),
        ({"coords": {"level": [1, 2]}}, "is not a dimension"),
        ({"coords": {"latitude": [1, 2]}}, "has 2 values, and the dimension has length 721"),
        ({"group": "a//b"}, "'' is not a valid name"),
        ({"group": "../b"}, "'..' is not a valid name"),
        ({"attrs": {"x": object()}}, "not plain JSON"),
        ({"branch": ""}, "branch must be a non-empty string"),
    ],
)
def test_a_wrong_declaration_is_refused_where_the_dag_is_parsed(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        weather(**changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "float33"}, "'float33' is not a data type"),
        ({"dtype": "object"}, "'object' is not a data type"),
        ({"dims": "time"}, "a sequence of names"),
        ({"chunks": (1, 2)}, r"2 chunks \(1, 2\) for 1 dimensions"),
        ({"chunks": (0,)}, "at least 1"),
        ({"chunks": (4,), "shards": (6,)}, "not multiples of chunks"),
        ({"shards": (6,)}, "shards need chunks"),
        ({"fill_value": [1]}, "fill_value"),
    ],
)
def test_a_wrong_variable_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Variable(**({"dtype": "float32", "dims": ("time",)} | arguments))


@pytest.mark.parametrize("arguments", [{}, {"start": 1}, {"start": 1, "step": 1, "values": [1]}])
def test_a_coordinate_has_steps_or_values(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="either start and step, or values"):
        Coordinate(**arguments)


def test_chunks_hold_one_step_unless_declared() -> None:
    found = weather(variables={"t2m": Variable("float32", ("time", "latitude"))})
    assert found.chunks_of("t2m") == (1, 721)


def test_sharing_chunks_is_warned_about_with_its_cost() -> None:
    day = Variable("float32", ("time", "latitude", "longitude"), chunks=(24, 721, 720))
    with pytest.warns(UserWarning, match="share chunks of 24 steps of 'time'.* 99.7 MB") as found:
        weather(variables={"t2m": day})
    assert [warning.filename for warning in found] == [__file__]
    sharded = Variable("int16", ("time",), chunks=(1,), shards=(50,))
    with pytest.warns(UserWarning, match="share shards of 50 steps.* 100 B"):
        IcechunkDataset("x", {"time": DAYS}, {"x": sharded})


def test_no_warning_without_shared_chunks() -> None:
    quarter = Growing(start="2026-01-01", every="1h", steps_per_run=6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weather()
        for chunks in (None, (6,), (3,), (1,)):
            IcechunkDataset("x", {"time": quarter}, {"x": Variable("int16", ("time",), chunks)})


def test_chunks_hold_what_a_run_writes_and_others_are_warned_about() -> None:
    quarter = Growing(start="2026-01-01", every="1h", steps_per_run=6)
    found = IcechunkDataset("x", {"time": quarter}, {"x": Variable("int16", ("time",))})
    assert found.chunks_of("x") == (6,)
    assert IcechunkDataset.from_json(found.to_json()) == found
    with pytest.warns(UserWarning, match=r"rewrites 8 B to write 6 steps.*chunks of 6 along"):
        IcechunkDataset("x", {"time": quarter}, {"x": Variable("int16", ("time",), (4,))})
    with pytest.warns(UserWarning, match=r"one step.*steps_per_run=24"):
        IcechunkDataset("x", {"time": DAYS}, {"x": Variable("int16", ("time",), (24,))})


def test_a_declaration_survives_json_and_pickle() -> None:
    with pytest.warns(UserWarning, match="share shards"):
        full = weather(
            dims={"time": DAYS, "latitude": 3, "station": Growing(by="labels", dtype="str")},
            variables={
                "t2m": Variable("float32", ("time", "latitude"), (4, 3), {"a": [1]}, -1.5, (8, 3)),
                "name": Variable("str", ("station",)),
            },
            coords={"latitude": ["a", "b", "c"]},
            attrs={"title": "all"},
            group="/models/ifs/",
            branch="next",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for one in (full, weather()):
            text = json.dumps(one.to_json(), allow_nan=False)
            assert IcechunkDataset.from_json(json.loads(text)) == one
            assert IcechunkDataset.from_json(text) == one
    assert pickle.loads(pickle.dumps(full)) == full
    placed = weather().place({"time": "2026-01-06"})
    assert Placement.from_json(json.loads(json.dumps(placed.to_json()))) == placed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "a dataset of version 2"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"dims": {"time": {"start": "2026-01-01", "evry": "1D"}}}, "unknown key 'evry'"),
        ({"variables": []}, "variables is not a mapping"),
        ({"variables": {"x": {"dtype": "f4"}}}, "dims"),
    ],
)
def test_a_declaration_in_json_is_closed(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        IcechunkDataset.from_json(weather().to_json() | change)


def test_a_place_in_json_is_closed() -> None:
    with pytest.raises(InvalidInputError, match="unknown key 'x'"):
        Placement.from_json({"regions": {}, "labels": {}, "lengths": {}, "x": 1})
    with pytest.raises(InvalidInputError, match="not a placement"):
        Placement.from_json({"regions": {"time": 5}, "labels": {}, "lengths": {}})


def test_importing_a_declaration_loads_the_standard_library_only() -> None:
    script = (
        "import sys; known = set(sys.modules); import airflow_provider_icechunk.dataset; "
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - known}"
        " - sys.stdlib_module_names))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "['airflow_provider_icechunk']"
