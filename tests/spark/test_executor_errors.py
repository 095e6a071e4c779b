"""Errors of executors come back as themselves."""

import pytest
from pyspark.errors import PySparkException

from airflow_provider_icechunk.exceptions import IcechunkError, InvalidInputError
from airflow_provider_icechunk.spark.runtime import on_executors, said

REPORT = """[UDF_ERROR] An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "x.py", line 1, in f
airflow_provider_icechunk.exceptions.VirtualChunkError: the cause

During handling of the above exception, another exception occurred:
airflow_provider_icechunk.exceptions.{name}: 1.nc: no such thing
"""


def test_the_last_error_of_ours_in_a_report_is_raised_with_the_report_as_its_cause() -> None:
    problem = PySparkException(REPORT.format(name="InvalidInputError"))

    def fail() -> None:
        raise problem

    with pytest.raises(InvalidInputError, match=r"^1\.nc: no such thing$") as caught:
        on_executors(fail)
    assert caught.value.__cause__ is problem


def test_other_reports_stay_as_they_are() -> None:
    assert said("java.lang.OutOfMemoryError") is None
    assert said(REPORT.format(name="NoSuchClass")) is None
    assert type(said(REPORT.format(name="ConflictError"))) in (
        IcechunkError,
        *IcechunkError.__subclasses__(),
    )
    with pytest.raises(PySparkException):
        on_executors(lambda: (_ for _ in ()).throw(PySparkException("lost")))
