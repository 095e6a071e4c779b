"""Where a label of a growing dimension belongs."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_icechunk.engine.datasets.growing import MOST_STEPS, Growing
from airflow_provider_icechunk.exceptions import InvalidInputError

UNITS = {"s": 1, "min": 60, "h": 3_600, "D": 86_400, "W": 7 * 86_400}
STARTS = st.datetimes(
    datetime(1900, 1, 1),  # noqa: DTZ001 - Hypothesis wants them so
    datetime(2100, 1, 1),  # noqa: DTZ001
)
EARLY_DAYS = STARTS.filter(lambda start: start.day <= 28)
PLACES = st.integers(0, 5_000)
LAST = datetime.max.replace(tzinfo=UTC)


@given(STARTS, st.integers(1, 90), st.sampled_from(sorted(UNITS)), PLACES)
@example(datetime(2100, 1, 1), 90, "W", 5_000)  # noqa: DTZ001
def test_place_and_label_are_inverse_for_fixed_steps(
    start: datetime, count: int, unit: str, place: int
) -> None:
    axis = Growing(start=start, every=f"{count}{unit}")
    if place * count * timedelta(seconds=UNITS[unit]) > LAST - start.replace(tzinfo=UTC):
        with pytest.raises(InvalidInputError, match="after the year 9999"):
            axis.label(place)
        return
    label = axis.label(place)
    assert label == start.replace(tzinfo=UTC) + place * count * timedelta(seconds=UNITS[unit])
    assert axis.position(label) == place
    assert axis.position(axis.text(label)) == place


@given(EARLY_DAYS, st.integers(1, 30), st.sampled_from(["M", "Y"]), st.integers(0, 2_000))
def test_place_and_label_are_inverse_in_the_calendar(
    start: datetime, count: int, unit: str, place: int
) -> None:
    axis = Growing(start=start, every=f"{count}{unit}")
    months = start.month - 1 + place * count * (12 if unit == "Y" else 1)
    year = start.year + months // 12
    if year > 9999:
        with pytest.raises(InvalidInputError, match="after the year 9999"):
            axis.label(place)
        return
    label = axis.label(place)
    assert label == start.replace(year=year, month=months % 12 + 1, tzinfo=UTC)
    assert axis.position(label) == place
    assert axis.position(axis.text(label)) == place


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ("9999-12-02", "lies between two steps .* are 9999-12-01 and none before the year 10000"),
        ("9998-12-02", "lies before it; the first labels are 9999-12-01 and none before"),
    ],
)
def test_a_label_beside_the_last_one_that_can_exist_is_refused_for_what_is_wrong_with_it(
    label: str, told: str
) -> None:
    with pytest.raises(InvalidInputError, match=told):
        Growing(start="9999-12-01", every="1Y").position(label)


@given(
    st.sampled_from(["1M", "3M", "1Y", "6h", "1D", "1W"]),
    st.integers(0, 500),
    st.integers(1, 3_600),
)
def test_a_time_just_beside_a_label_is_refused_with_its_neighbours(
    every: str, place: int, seconds: int
) -> None:
    axis = Growing(start="2026-01-01", every=every)
    for number, moment in (
        (place, axis.label(place) + timedelta(seconds=seconds)),
        (place, axis.label(place + 1) - timedelta(seconds=seconds)),
    ):
        with pytest.raises(InvalidInputError) as refusal:
            axis.position(moment)
        assert axis.text(axis.label(number)) in str(refusal.value)
        assert axis.text(axis.label(number + 1)) in str(refusal.value)


@given(STARTS, st.sampled_from(["15min", "6h", "1D", "1M", "3M", "1Y"]), st.integers(0, 300))
def test_what_the_coordinate_stores_decodes_to_the_label(
    start: datetime, every: str, place: int
) -> None:
    axis = Growing(start=start.replace(day=1, microsecond=0), every=every)
    unit, _, since = axis.cf_attrs()["units"].partition(" since ")
    length = {"days": 86_400, "hours": 3_600, "minutes": 60}[unit]
    moment = datetime.fromisoformat(since).replace(tzinfo=UTC)
    assert moment + timedelta(seconds=length) * axis.offset(place) == axis.label(place)
    fixed = axis.fixed_offset()
    assert (fixed is None) == (every[-1] in "MY")
    assert fixed is None or fixed * place == axis.offset(place)


@pytest.mark.parametrize(
    "label",
    [
        "2026-01-06",
        "20260106",
        "2026-01-06T00:00:00+00:00",
        "20260106T000000",
        "2026-01-06T01:00:00+01:00",
        date(2026, 1, 6),
        datetime(2026, 1, 6),  # noqa: DTZ001 - without an offset it is UTC
        datetime(2026, 1, 6, 2, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_every_spelling_of_a_day_that_airflow_has_means_the_same_place(label: object) -> None:
    assert Growing(start="2026-01-01", every="1D").position(label) == 5


def test_months_can_be_named_without_a_day() -> None:
    axis = Growing(start="2026-01", every="1M")
    assert axis.position("2026-03") == 2
    assert Growing(start="2026", every="1Y").position("2030") == 4


@pytest.mark.parametrize("label", [None, "", "  ", "None"])
def test_a_run_without_a_logical_date_is_told_what_to_do(label: object) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        Growing(start="2026-01-01", every="1D").position(label, "time")
    for part in (
        "without a logical date",
        "{{ ds }}",
        "{{ dag_run.conf['day'] }}",
        "partition_key",
    ):
        assert part in str(refusal.value)


def test_a_label_before_the_start_is_refused_with_the_first_labels() -> None:
    with pytest.raises(InvalidInputError, match="2026-01-01 and 2026-01-02"):
        Growing(start="2026-01-01", every="1D").position("2025-12-31", "time")


def test_a_label_absurdly_far_away_is_refused() -> None:
    axis = Growing(start="2026-01-01", every="1s")
    assert axis.position(axis.label(MOST_STEPS - 1)) == MOST_STEPS - 1
    with pytest.raises(InvalidInputError, match="more than 100000000 steps"):
        axis.position("2036-01-01")


@pytest.mark.parametrize(
    "label", ["yesterday", "2026-02-30", 5, 1.5, b"2026-01-06", ["2026-01-06"]]
)
def test_what_is_not_a_time_is_refused(label: object) -> None:
    with pytest.raises(InvalidInputError, match="is not a label of 'time'"):
        Growing(start="2026-01-01", every="1D").position(label, "time")


@pytest.mark.parametrize(
    "every", ["", "D", "0D", "-1D", "1.5h", "1day", "1 month", "D1", timedelta(0), timedelta(-1)]
)
def test_what_is_not_a_step_is_refused(every: str | timedelta) -> None:
    with pytest.raises(InvalidInputError):
        Growing(start="2026-01-01", every=every)


def test_a_month_cannot_begin_on_a_day_that_some_months_lack() -> None:
    with pytest.raises(InvalidInputError, match="not every month has a day 31"):
        Growing(start="2026-01-31", every="1M")


def test_equal_axes_are_equal_however_they_were_spelt() -> None:
    days = Growing(start="2026-01-01", every="1D")
    assert days == Growing(start=date(2026, 1, 1), every="24h")
    assert days == Growing(start=datetime(2026, 1, 1, tzinfo=UTC), every=timedelta(days=1))
    assert Growing(start="2026-01-01", every="12M") == Growing(start="2026", every="1Y")
    assert days != Growing(start="2026-01-01", every="2D")


def test_the_length_holds_the_furthest_label() -> None:
    axis = Growing(start="2026-01-01", every="1D")
    assert axis.length(["2026-01-16", "2026-01-06"]) == 16
    assert axis.length([]) == 0


@pytest.mark.parametrize(
    ("dtype", "label", "key"),
    [
        ("datetime64[s]", "2026-01-06", "2026-01-06T00:00:00"),
        ("datetime64[s]", datetime(2026, 1, 6, 12, 30), "2026-01-06T12:30:00"),  # noqa: DTZ001
        ("int64", "7", 7),
        ("float64", 7, 7.0),
        ("str", "station-7", "station-7"),
    ],
)
def test_labels_without_steps_have_one_spelling(dtype: str, label: object, key: object) -> None:
    found = Growing(by="labels", dtype=dtype).key(label)
    assert found == key
    assert type(found) is type(key)


@pytest.mark.parametrize(
    ("dtype", "label"),
    [("int64", 1.5), ("int64", 2**63), ("int64", True), ("float64", float("nan")), ("int64", "x")],
)
def test_labels_of_another_type_are_refused(dtype: str, label: object) -> None:
    with pytest.raises(InvalidInputError, match=f"which are {dtype}"):
        Growing(by="labels", dtype=dtype).key(label, "time")


def test_steps_and_labels_are_not_mixed() -> None:
    with pytest.raises(InvalidInputError, match="needs start and every"):
        Growing(start="2026-01-01")
    with pytest.raises(InvalidInputError, match="takes neither start"):
        Growing(start="2026-01-01", every="1D", by="labels")
