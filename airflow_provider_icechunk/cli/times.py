"""Ages and moments as arguments of a command, and moments as a person reads them. Pure."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.hooks.cutoffs import read_age, read_cutoff


def parse_age(text: str) -> timedelta:
    """An age such as `30d`, `12h` or `1d12h`. The type of an argument."""
    try:
        return read_age(text)
    except InvalidInputError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def parse_cutoff(text: str) -> datetime | timedelta:
    """An age, or an ISO 8601 time; a time without a zone is in UTC. The type of an argument."""
    try:
        return read_cutoff(text)
    except InvalidInputError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def show_moment(moment: datetime) -> str:
    """A time in UTC, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
