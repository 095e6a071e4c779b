"""Ages and moments that people type."""

import argparse
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_icechunk.cli.render import parse_age, parse_cutoff
from airflow_provider_icechunk.engine.maintenance.ages import SAFE_AGE, safe_cutoff, show_age
from airflow_provider_icechunk.exceptions import MaintenanceError

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("30d", timedelta(days=30)),
        ("12h", timedelta(hours=12)),
        ("1d12h", timedelta(days=1, hours=12)),
        (" 2W ", timedelta(weeks=2)),
        ("0s", timedelta()),
        ("90m", timedelta(minutes=90)),
    ],
)
def test_ages_are_read_in_the_units_people_use(text: str, age: timedelta) -> None:
    assert parse_age(text) == age


@pytest.mark.parametrize("text", ["", "30", "d", "-3d", "3x", "1.5h", "3d!", "9999999999d", "٣d"])
def test_what_is_no_age_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="30d"):
        parse_age(text)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("7d", NOW - timedelta(days=7)),
        ("2026-02-01", datetime(2026, 2, 1, tzinfo=UTC)),
        ("2026-02-01T10:00:00Z", datetime(2026, 2, 1, 10, tzinfo=UTC)),
        ("2026-02-01T10:00:00+02:00", datetime(2026, 2, 1, 8, tzinfo=UTC)),
        ("99999999d", datetime.min.replace(tzinfo=UTC)),
    ],
)
def test_a_cutoff_is_an_age_or_a_moment_in_utc(text: str, moment: datetime) -> None:
    assert safe_cutoff(parse_cutoff(text), now=NOW) == moment


@pytest.mark.parametrize("text", ["yesterday", "0001-01-01T00:00:00+14:00", "2026-13-01"])
def test_what_is_no_cutoff_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="neither an age nor a time"):
        parse_cutoff(text)


def test_a_cutoff_in_the_future_is_refused_whatever_the_minimum_age() -> None:
    with pytest.raises(MaintenanceError, match="in the future"):
        safe_cutoff(parse_cutoff("2026-03-01T12:00:01Z"), timedelta(), now=NOW)


def test_a_young_cutoff_is_refused_until_the_minimum_age_is_lowered() -> None:
    young = parse_cutoff("1h")
    with pytest.raises(MaintenanceError, match="--minimum-age"):
        safe_cutoff(young, SAFE_AGE, now=NOW, setting="--minimum-age")
    assert safe_cutoff(young, timedelta(hours=1), now=NOW) == NOW - timedelta(hours=1)


def test_without_a_cutoff_it_is_the_youngest_allowed() -> None:
    assert safe_cutoff(None, SAFE_AGE, now=NOW) == NOW - timedelta(hours=24)


@given(st.timedeltas(timedelta(), timedelta(days=10_000)))
def test_a_shown_age_is_read_back(age: timedelta) -> None:
    whole = timedelta(seconds=int(age.total_seconds()))
    assert parse_age(show_age(age)) == whole
