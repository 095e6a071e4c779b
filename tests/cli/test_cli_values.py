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
        ("0, 1, 2", "3 dimensions, but the array has 2"),
        ("3", "position 3 is outside a dimension of length 3"),
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


def test_an_array_in_numbers(command: Command, place: Path) -> None:
    found = command("stats", place, "t", "--json").json
    names = ("cells", "missing", "minimum", "maximum", "mean", "chunks")
    assert [found[name] for name in names] == [12, 0, 0, 11, 5.5, 1]
    assert "mean       5.5" in command("measure", place, "/t", "main").out
    assert command("stats", place, "nothing").code == 1
    empty = command("stats", place, "large", "--json").json
    assert (empty["chunks"], empty["missing"]) == (0, 1_000_000)


def test_a_tree_begins_at_a_path_whatever_the_order(command: Command, place: Path) -> None:
    whole = command("tree", place).out
    part = command("tree", place, "/t").out
    assert part.startswith("/t int16")
    assert len(part.splitlines()) < len(whole.splitlines())
    assert command("tree", place, "/t", "main").out == part
    assert command("tree", place, "main", "/t").out == part
    assert command("tree", place, "main", "other").code == 2
    assert command("tree", place, "/t", "--path", "t").code == 2


def decoded(data: bytes) -> np.ndarray:
    """The pixels of a PNG, by a reader that is not ours."""
    from io import BytesIO

    import matplotlib.image

    return np.rint(matplotlib.image.imread(BytesIO(data), format="png") * 255).astype(int)


def test_a_plot_is_a_picture_that_others_open(command: Command, place: Path) -> None:
    target = place / "t.png"
    told = command("plot", place, "t", "--output", target)
    assert told.out == f"{target}: /t\ndark is 0, bright is 11\n"
    pixels = decoded(target.read_bytes())
    assert pixels.shape == (3 * 180, 4 * 180, 3)
    assert pixels[0, 0].tolist() == [68, 1, 84]
    assert pixels[-1, -1].tolist() == [253, 231, 37]
    assert (pixels[:180, :180] == pixels[0, 0]).all()


def test_what_is_missing_is_grey_and_north_is_up(command: Command, place: Path) -> None:
    session = Repository.open(local_filesystem_storage(str(place))).writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    field = np.array([[[9, 9]] * 2, [[0, np.nan], [1, 2]]])
    root.create_array("field", data=field, dimension_names=("time", "latitude", "longitude"))
    root.create_array("latitude", data=np.array([-45.0, 45.0]), dimension_names=("latitude",))
    session.commit("a field")
    target = place / "field.png"
    facts = command("plot", place, "field", "--at", "1, 0, 0", "--output", target, "--json").json
    assert (facts["minimum"], facts["maximum"], facts["fixed"]) == (0, 2, {"time": "1"})
    pixels = decoded(target.read_bytes())
    assert pixels[-1, 0].tolist() == [68, 1, 84]
    assert pixels[-1, -1].tolist() == [230, 230, 230]
    assert pixels[0, -1].tolist() == [253, 231, 37]


def test_a_line_runs_from_its_lowest_to_its_highest(command: Command, place: Path) -> None:
    session = Repository.open(local_filesystem_storage(str(place))).writable_session("main")
    zarr.open_group(session.store, mode="a").create_array("line", data=np.arange(100.0))
    session.commit("a line")
    target = place / "line.png"
    assert command("plot", place, "line", "--output", target).code == 0
    inked = (decoded(target.read_bytes()) != 255).any(axis=2)
    assert inked.any(axis=0).all()
    assert [bool(inked[at]) for at in ((-1, 0), (0, -1), (0, 0))] == [True, True, False]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["t", "--output", "t.jpg"], "ending in .png"),
        (["t", "--output", "/nowhere/t.png"], "cannot write"),
        (["t", "--output", "t.png", "--at", "x"], "are not positions"),
        (["t", "--output", "t.png", "--at", "1"], "1 positions were given"),
        (["/", "--output", "t.png"], "/"),
    ],
)
def test_plots_that_cannot_be_are_refused_by_name(
    command: Command, place: Path, words: list[str], message: str
) -> None:
    refused = command("plot", place, *words)
    assert (refused.code, message in refused.err) == (1, True), refused.err
