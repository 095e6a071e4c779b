"""Labels select what lies between them, however the coordinate is stored."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_icechunk.api import Repository, in_memory_storage
from airflow_provider_icechunk.engine.arrays.labels import span_between
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.read.plan import Selection, plan_reading

NUMBERS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ">i4", ">f8"]


def chosen(values: Any, low: Any, high: Any) -> list[Any]:
    start, stop = span_between("x", np.asarray(values), (low, high))
    return np.asarray(values)[start:stop].tolist()


@pytest.mark.parametrize("dtype", NUMBERS)
def test_a_bound_between_two_values_takes_neither_more_nor_less(dtype: str) -> None:
    values = np.arange(1, 7).astype(dtype)
    assert chosen(values, 2.5, 4.5) == [3, 4]
    assert chosen(values, 2, 4) == [2, 3, 4]
    assert chosen(values, -1, 3) == [1, 2, 3]
    assert chosen(values, 3, 1 << 70) == [3, 4, 5, 6]
    assert chosen(values, -(1 << 70), Decimal("2.5")) == [1, 2]
    assert chosen(values, Fraction(9, 2), np.float32(5.5)) == [5]
    assert chosen(values, np.int64(-3), np.uint8(2)) == [1, 2]


@given(
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=6).map(sorted),
    st.integers(-(1 << 64), 1 << 64) | st.floats(allow_nan=False),
    st.integers(-(1 << 64), 1 << 64) | st.floats(allow_nan=False),
    st.booleans(),
)
def test_integers_are_compared_exactly_with_numbers_of_any_size(
    values: list[int], low: float, high: float, falling: bool
) -> None:
    inside = [value for value in values if low <= value <= high]
    stored = np.array(values, "i8")
    assert chosen(stored, low, high) == inside
    if falling and low <= high:
        assert chosen(stored[::-1], low, high) == inside[::-1]


def test_the_largest_integers_are_not_rounded() -> None:
    values = np.array([0, (1 << 53) + 1, (1 << 63) - 1, (1 << 64) - 1], "u8")
    assert chosen(values, float(1 << 53), 1 << 53) == []
    assert chosen(values, (1 << 53) + 1, (1 << 63) - 1) == values[1:3].tolist()
    assert chosen(values, float(1 << 63), float("inf")) == [(1 << 64) - 1]
    assert chosen(np.array([1 << 53], "f8"), (1 << 53) + 1, 1 << 54) == []


def test_infinity_is_an_end_and_so_is_one_that_is_left_open() -> None:
    assert chosen([1, 2, 3], -np.inf, 2) == [1, 2]
    assert chosen([1, 2, 3], 2, float("inf")) == [2, 3]
    assert chosen([1.0, 2.0, np.inf], 2, None) == [2.0, np.inf]
    assert chosen([1.0, 2.0, np.inf], None, 1e300) == [1.0, 2.0]
    assert chosen(np.array([1, 2], "u1"), None, None) == [1, 2]


def test_a_decimal_label_means_the_cell_that_shows_it() -> None:
    values = np.array([0.1, 0.2, 0.3], "f4")
    assert len(chosen(values, 0.1, 0.3)) == 3
    assert len(chosen(values, float(values[1]), float(values[1]))) == 1
    # This is a little above and below what float32 has for 0.2, and shows as something else.
    assert chosen(values, 0.2 + 1e-8, 0.25) == []
    assert chosen(values, 0.15, 0.2 - 1e-9) == []
    assert chosen(np.array([1.0], "f2"), -1e300, 1e300) == [1.0]


def test_a_falling_coordinate_takes_its_bounds_in_either_order() -> None:
    values = [90, 45, 0, -45, -90]
    assert chosen(values, -50, 44.5) == chosen(values, 44.5, -50) == [0, -45]
    assert chosen([1, 2, 3], 3, 1) == []


@pytest.mark.parametrize("unit", ["D", "h", "s", "ms", "us", "ns"])
def test_times_are_compared_to_the_last_digit(unit: str) -> None:
    values = np.array(["2026-01-01", "2026-01-02", "2026-01-03"], f"M8[{unit}]")
    everything, later, last = values.tolist(), values[1:].tolist(), values[2:].tolist()
    assert chosen(values, "2026-01-01", "2026-01-03") == everything
    assert chosen(values, "2026-01-01T00:00:00.000000001", "9999-12-31") == later
    assert chosen(values, datetime.fromisoformat("2026-01-01T00:00:01"), None) == later
    assert chosen(values, datetime(2026, 1, 2, tzinfo=UTC), date(2026, 1, 3)) == later
    east = timezone(timedelta(hours=2))
    assert chosen(values, datetime(2026, 1, 3, 2, tzinfo=east), None) == last
    assert chosen(values, "2026-01-03T02:00:00+02:00", "2026-01-03T00:00:00Z") == last
    assert chosen(values, np.datetime64("-20000-01-01", "D"), np.datetime64("2026", "Y")) == [
        everything[0]
    ]


def test_times_and_durations_of_pandas_keep_their_nanoseconds() -> None:
    moments, leads = np.arange(10).astype("M8[ns]"), np.arange(10).astype("m8[ns]")
    assert span_between("x", moments, (pd.Timestamp(3), pd.Timestamp(5))) == (3, 6)
    east = pd.Timestamp(3, tz="Asia/Tokyo")
    assert span_between("x", moments, (east, pd.Timestamp(5, tz="UTC"))) == (3, 6)
    assert span_between("x", leads, (pd.Timedelta(3), pd.Timedelta(5))) == (3, 6)


def test_a_date_without_dashes_is_that_date_and_no_year() -> None:
    """Airflow's `ds_nodash`; NumPy takes every run of digits for a year."""
    days = np.arange("2026-01-01", "2026-02-01", dtype="M8[D]")
    assert span_between("x", days, ("20260105", "20260110")) == (4, 10)
    assert span_between("x", days, ("2026", "2026-01-02T23:00:00-01")) == (0, 3)
    for text in ("1767571200", "20261", "20261301"):
        with pytest.raises(InvalidInputError, match="give a time"):
            span_between("x", days, (text, None))


def test_months_and_durations_are_compared_too() -> None:
    months = np.array(["2025-12", "2026-01", "2026-02"], "M8[M]")
    assert len(chosen(months, "2026-01-01", "2026-01-31")) == 1
    leads = np.array([0, 6, 12], "m8[h]")
    assert len(chosen(leads, timedelta(minutes=1), np.timedelta64(12, "h"))) == 2


def test_texts_are_compared_as_texts() -> None:
    for dtype in ("U3", "O", np.dtypes.StringDType()):
        assert chosen(np.array(["ab", "b", "c"], dtype), "b", "bz") == ["b"]
    for dtype in ("S2", "O"):
        assert chosen(np.array([b"ab", b"b"], dtype), "b", b"c") == [b"b"]


@pytest.mark.parametrize(
    ("values", "bound", "words"),
    [
        (np.array([1, 2]), "1", r"'x' holds numbers \(int64\).*'1'.*give a number"),
        (np.array([1.0, 2.0]), "2026-01-01", "give a number"),
        (np.array([1.0, 2.0]), float("nan"), "nan.*give a number"),
        (np.array([1, 2]), np.float32("nan"), "give a number"),
        (np.array([1, 2]), Decimal("nan"), "give a number"),
        (np.array([1, 2]), Decimal("sNaN"), "give a number"),
        (np.array([1, 2]), np.array([1, 2]), "give a number"),
        (np.array([1, 2]), 1j, "give a number"),
        (np.array([1, 2]), date(2026, 1, 1), "give a number"),
        (np.array([1, 2]), [1], "give a number"),
        (np.array([0, 1], "M8[s]"), 1, "give a time"),
        (np.array([0, 1], "M8[s]"), "yesterday", "give a time"),
        (np.array([0, 1], "M8[s]"), np.datetime64("NaT"), "give a time"),
        (np.array([0, 1], "M8[s]"), "NaT", "give a time"),
        (np.array([0, 1], "M8[s]"), pd.NaT, "give a time"),
        (np.array([0, 1], "M8[s]"), np.array([0, 1], "M8[s]"), "give a time"),
        (np.array([0, 1], "M8[s]"), Decimal("sNaN"), "give a time"),
        (np.array([0, 1], "m8[s]"), "1s", "give a duration"),
        (np.array([0, 1], "m8[s]"), np.timedelta64(1, "M"), "give a duration"),
        (np.array(["a", "b"]), 1, "give a text"),
        (np.array([1j, 2j]), 1, "has no order"),
        (np.array([0, 1], "m8[M]"), timedelta(1), "has no order"),
        (np.array([1, 3, 2]), 1, "not sorted"),
        (np.array([1, np.nan, 2]), 1, "not sorted"),
        (np.array([np.nan]), 1, "not sorted"),
        (np.array(["NaT"], "M8[s]"), "2026", "not sorted"),
        (np.array([1, 2], "O"), 1, "has no order"),
    ],
)
def test_a_bound_that_cannot_be_compared_is_refused_in_words(
    values: Any, bound: Any, words: str
) -> None:
    for bounds in ((bound, None), (None, bound)):
        with pytest.raises(InvalidInputError, match=words):
            span_between("x", values, bounds)


@pytest.mark.parametrize("bounds", ["ab", "a", 1, None, (1,), (1, 2, 3), {1: 2}, slice(1, 2)])
def test_bounds_that_are_not_a_pair_are_refused(bounds: Any) -> None:
    for values in (np.array(["a", "b"]), np.array([1, 2])):
        with pytest.raises(InvalidInputError, match="does not select a range of 'x'"):
            span_between("x", values, bounds)


def test_a_pair_may_be_a_list_as_in_json() -> None:
    assert span_between("x", np.arange(5), [1, 3]) == (1, 4)
    assert span_between("x", np.arange(5)[::-1], [None, 1]) == (3, 5)


def test_a_read_selects_by_labels_without_casting_them() -> None:
    session = Repository.create(in_memory_storage()).writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    root.create_array("v", shape=(6,), dtype="i4", dimension_names=("x",))[:] = np.arange(6)
    root.create_array("x", shape=(6,), dtype="u1", dimension_names=("x",))[:] = np.arange(6)

    def regions(low: Any, high: Any) -> Any:
        reading = plan_reading(
            session, "v", layout="long", variables=None, coordinates=True, tasks=1, cores=1,
            selection=Selection({}, {"x": (low, high)}),
        )  # fmt: skip
        return [task.region for task in reading.tasks]

    assert regions(-1, 3) == [((0, 4),)]
    assert regions(2.5, 4.5) == [((3, 5),)]
    with pytest.raises(InvalidInputError, match="'x' holds numbers"):
        regions("1", "3")
