"""Times counted from one epoch, counted again from another one."""

from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_icechunk.engine.arrays.cf import decoding
from airflow_provider_icechunk.engine.arrays.epochs import counting, finest

UNITS = ("days", "hours", "minutes", "seconds", "milliseconds", "microseconds")
MOMENTS = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))  # noqa: DTZ001 - as epochs are


@given(
    st.sampled_from(UNITS),
    st.sampled_from(UNITS),
    MOMENTS,
    MOMENTS,
    st.lists(st.integers(-40_000, 40_000), max_size=5),
    st.sampled_from(["i4", "i8", "f8"]),
)
def test_the_same_times_or_none(
    unit: str, other: str, start: datetime, epoch: datetime, numbers: list[int], dtype: str
) -> None:
    """Decoded before and after, they are the same; a type that cannot express them says so."""
    units = f"{unit} since {start.isoformat(' ')}"
    again = f"{other} since {epoch.isoformat(' ')}"
    own, target = counting(units), counting(again)
    assert own is not None
    assert target is not None
    values = np.array(numbers, "i8")
    found = own.again(values, target, np.dtype(dtype))
    expected = [start + number * timedelta(**{unit: 1}) for number in numbers]
    wanted = [(one - epoch) / timedelta(**{other: 1}) for one in expected]
    if found is None:
        whole = all(one == round(one) for one in wanted)
        assert dtype != "f8"
        assert not whole or max(map(abs, wanted)) > np.iinfo(dtype).max
        return
    decoded, absent = decoding(found.dtype, {"units": again}).decode(found)
    assert absent is None
    away = np.abs(decoded - np.array(expected, "M8[us]")).astype(np.int64)
    # A float of microseconds since a far epoch has no room for the last ones.
    assert not len(away) or away.max() <= (8 if dtype == "f8" else 0)


@pytest.mark.parametrize(
    ("calendar", "days"), [("noleap", 365), ("all_leap", 366), ("360_day", 360), (None, 366)]
)
def test_years_have_the_days_of_their_calendar(calendar: str | None, days: int) -> None:
    own = counting("days since 2001-01-01", calendar)
    target = counting("days since 2000-01-01", calendar)
    assert own is not None
    assert target is not None
    found = own.again(np.array([0, 5]), target, np.dtype("i8"))
    assert found is not None
    assert found.tolist() == [days, days + 5]


def test_what_is_no_time_that_is_known_is_not_counted() -> None:
    for units, calendar in (
        ("K", None), (None, None), ("days since 2001-02-30", None), ("months since 2001-1-1", None),
        ("days since 0001-01-01", "standard"), ("days since 2001-01-01", "julian"),
        ("nanoseconds since 2001-01-01", None), ("days since 2001-01-31", "360_day"),
    ):  # fmt: skip
        assert counting(units, calendar) is None
    usual, other = counting("days since 2001-01-01"), counting("days since 2001-01-01", "noleap")
    assert usual is not None
    assert other is not None
    assert usual.again(np.array([1]), other, np.dtype("i8")) is None


def test_the_finest_unit_keeps_the_first_epoch() -> None:
    assert finest(["days since 2026-01-01", "hours since 2026-02-01"]) == "hours since 2026-01-01"
    assert finest(["hours since 2026-01-01", "days since 2026-02-01"]) == "hours since 2026-01-01"
