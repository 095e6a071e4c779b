"""`ls` and `cat`: people find their repositories, and see what is in an array without a program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from support.commands import Command

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.cli.values import parse_selection
from airflow_provider_icechunk.exceptions import InvalidInputError


@pytest.fixture
def place(tmp_path: Path) -> Path:
    repository = Repository.create(local_filesystem_storage(str(tmp_path / "some" / "weather")))
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a", attributes={"title": "Weather"})
    root.create_array("t", data=np.arange(12, dtype="int16").reshape(3, 4))
    root.create_array("large", shape=(1000, 1000), dtype="int8")
    session.commit("filled")
    Repository.create(local_filesystem_storage(str(tmp_path / "other")))
    return tmp_path / "some" / "weather"


def test_ls_lists_repositories_below_an_address(command: Command, place: Path) -> None:
    above = place.parent.parent
    assert command("ls", above).out == "other\nsome/weather\n"
    assert command("ls", above, "--json").json["repositories"] == ["other", "some/weather"]
    assert command("ls", place).out == ".\n"
    (above / "empty").mkdir()
    assert command("ls", above / "empty").out.startswith("no repositories at or below ")


def test_cat_shows_values_and_documents(command: Command, place: Path) -> None:
    assert command("cat", place, "t").out == (
        "/t: 12 values, int16\n[[ 0  1  2  3]\n [ 4  5  6  7]\n [ 8  9 10 11]]\n"
    )
    found = command("cat", place, "/t", "--select", "-1, 1:3", "--json").json
    assert found["values"] == [9, 10]
    assert found["document"]["shape"] == [3, 4]
    assert '"title": "Weather"' in command("cat", place, "/").out


def test_cat_refuses_what_it_cannot_show(command: Command, place: Path) -> None:
    missing = command("cat", place, "nothing")
    assert (missing.code, missing.err[:22]) == (1, "error [node_not_found]")
    large = command("cat", place, "large")
    assert large.code == 1
    assert 'such as --select "0:10, 0:10"' in large.err
    assert command("cat", place, "large", "--select", "5, 0:3").out.endswith("[0 0 0]\n")
    assert "a group" in command("cat", place, "/", "--select", "0").err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0, 1, 2", "3 dimensions, and the array has 2"),
        ("3", "position 3 is outside of a dimension of 3"),
        ("x", "'x' is neither a position nor a range"),
        ("0:1:2", "neither a position nor a range"),
    ],
)
def test_a_selection_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse_selection(text, (3, 4))


def test_a_selection_is_what_numpy_takes() -> None:
    values = np.arange(12).reshape(3, 4)
    assert parse_selection(None, (3, 4)) == (slice(0, 3), slice(0, 4))
    for text, expected in [("1", values[1]), (":, -2:", values[:, -2:]), ("2:1", values[2:1])]:
        np.testing.assert_array_equal(values[parse_selection(text, (3, 4))], expected)
