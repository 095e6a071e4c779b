"""Quality checks: what they let pass, what they stop, and what they say then."""

import math
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_icechunk import api
from airflow_provider_icechunk.engine.checks.checks import (
    Statistics,
    check_report,
    parse_checks,
    refusal,
)
from airflow_provider_icechunk.engine.checks.run import run_checks
from airflow_provider_icechunk.exceptions import (
    CheckFailedError,
    InvalidInputError,
    NotFoundError,
    TaskError,
)

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")


@pytest.fixture
def repository() -> api.Repository:
    made = api.Repository.create(api.in_memory_storage())
    values = np.arange(24, dtype="float32").reshape(4, 6)
    data = xr.Dataset({"t": (("time", "x"), values)}, coords={"time": [0, 1, 2, 3]})
    write(made, data, encoding={"t": {"chunks": (1, 4)}, "time": {"chunks": (2,)}})
    return made


def write(repository: api.Repository, data: xr.Dataset, **options: Any) -> str:
    session = repository.writable_session("main")
    api.to_icechunk(data, session, mode="w", **options)
    return session.commit("write")


def judged(repository: api.Repository, **check: Any) -> Any:
    session = repository.readonly_session("main")
    (verdict,), report = run_checks(repository, session, parse_checks([check]))
    assert report["passed"] is verdict.passed
    assert report["snapshot_id"] == session.snapshot_id
    return verdict


def changed(repository: api.Repository, name: str, where: Any, value: Any) -> None:
    session = repository.writable_session("main")
    zarr.open_array(session.store, path=name, mode="r+")[where] = value
    session.commit("change")


def test_values_outside_of_the_range_are_found_in_any_chunk(repository: api.Repository) -> None:
    assert judged(repository, check="range", array="t", minimum=0, maximum=23).passed
    verdict = judged(repository, check="range", array="t", maximum=22.5)
    assert (verdict.passed, verdict.value, verdict.limit) == (False, [0.0, 23.0], [None, 22.5])
    part = {"time": [0, 2], "x": [0, 5]}
    assert judged(repository, check="range", array="t", maximum=10, region=part).passed
    changed(repository, "t", (3, 5), np.inf)
    assert judged(repository, check="range", array="t", maximum=1e9).value == [0.0, "inf"]


def test_missing_are_nan_the_fill_value_of_cf_and_what_was_never_written(
    repository: api.Repository,
) -> None:
    changed(repository, "t", (0, slice(0, 3)), np.nan)
    verdict = judged(repository, check="missing", array="t", most=0.1)
    assert (verdict.passed, verdict.value) == (False, 0.125)
    assert judged(repository, check="missing", array="t", most=0.125).passed
    packed = xr.DataArray(np.array([1.0, np.nan, 3.0]), dims="x", name="p")
    packed.encoding = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -9}
    write(repository, packed.to_dataset())
    assert judged(repository, check="missing", array="p", most=1).value == pytest.approx(1 / 3)
    assert judged(repository, check="range", array="p", minimum=1, maximum=3).passed
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="n", shape=(4,), chunks=(2,), dtype="int32")
    array[:2] = 7
    session.commit("half")
    assert judged(repository, check="missing", array="n", most=1).value == 0.5


def test_a_step_without_values_is_named(repository: api.Repository) -> None:
    assert judged(repository, check="complete", array="t", dim="time", least=4).passed
    changed(repository, "t", (slice(1, 3), slice(None)), np.nan)
    verdict = judged(repository, check="complete", array="t", dim="time", least=5)
    assert not verdict.passed
    assert "no values at time 1, 2" in verdict.text
    assert "4 steps of 5" in verdict.text
    last = {"time": [3, 4]}
    assert judged(repository, check="complete", array="t", dim="time", region=last).passed


@pytest.mark.parametrize(
    ("line", "direction", "breaks"),
    [
        ([0, 1, 2, 3], "increasing", None),
        ([3, 2, 1, 0], "any", None),
        ([0, 1, 1, 3], "increasing", 2),
        ([0, 3, 2, 4], "increasing", 2),
        ([0, 1, 2, 3], "decreasing", 1),
        ([0, 1, 0, 3], "any", 2),
    ],
)
def test_a_coordinate_that_turns_round_or_repeats_is_found_also_between_chunks(
    repository: api.Repository, line: list[int], direction: str, breaks: int | None
) -> None:
    changed(repository, "time", slice(None), line)
    verdict = judged(repository, check="monotone", array="time", direction=direction)
    assert (verdict.passed, verdict.value) == (breaks is None, breaks)


def test_drift_is_measured_in_standard_deviations_of_the_tag(repository: api.Repository) -> None:
    repository.create_tag("v1", repository.lookup_branch("main"))
    values = np.arange(24, dtype="float32").reshape(4, 6)
    assert judged(repository, check="drift", array="t", tag="v1", most=0).passed
    changed(repository, "t", slice(None), values + 3)
    verdict = judged(repository, check="drift", array="t", tag="v1", most=0.4)
    assert verdict.value == pytest.approx(3 / values.std(dtype="float64"))
    assert not verdict.passed
    assert judged(repository, check="drift", array="t", tag="v1", most=0.5).passed


def no_negative(dataset: xr.Dataset, name: str) -> bool:
    return bool((dataset[name] >= 0).all())


def complains(dataset: xr.Dataset) -> str:
    return "stripes in row 3"


def test_an_own_function_decides_and_may_say_why(repository: api.Repository) -> None:
    here = __name__
    assert judged(
        repository, check="function", function=f"{here}:no_negative", arguments={"name": "t"}
    ).passed
    verdict = judged(repository, check="function", function=f"{here}:complains")
    assert (verdict.passed, verdict.text) == (False, "stripes in row 3")
    with pytest.raises(NotFoundError, match="cannot be imported"):
        judged(repository, check="function", function=f"{here}:nothing_of_this_name")


def below(values: Any, region: dict[str, tuple[int, int]], most: float) -> str | None:
    return None if values.max() < most else f"{values.max()} at {sorted(region)}"


def test_an_own_function_sees_each_block_and_the_bad_ones_are_named(
    repository: api.Repository,
) -> None:
    check = {"check": "blocks", "array": "t", "function": f"{__name__}:below"}
    good = judged(repository, **check, arguments={"most": 99})
    assert (good.passed, good.value) == (True, {"blocks": 8, "failed": 0})
    changed(repository, "t", (2, 5), 777.0)
    bad = judged(repository, **check, arguments={"most": 99})
    assert (bad.passed, bad.value["failed"]) == (False, 1)
    assert bad.text == "[2:3, 4:6]: 777.0 at ['time', 'x']"
    with pytest.raises(TaskError, match=r"below raised TypeError.*, for \[.*\] of /t"):
        judged(repository, **check)
    with pytest.raises(NotFoundError, match="cannot be imported"):
        judged(repository, **{**check, "function": "nowhere:at_all"})


def test_a_failure_names_check_array_value_and_limit(repository: api.Repository) -> None:
    session = repository.readonly_session("main")
    wanted = [
        {"check": "range", "array": "t", "maximum": 1},
        {"check": "missing", "array": "t", "most": 0},
    ]
    verdicts, report = run_checks(repository, session, parse_checks(wanted))
    error = refusal(verdicts, report)
    assert "1 of 2 checks" in str(error)
    assert "range of /t: [0.0, 23.0], limit [None, 1.0]" in str(error)
    assert error.report == report
    with pytest.raises(CheckFailedError):
        check_report(report, session.snapshot_id)
    with pytest.raises(InvalidInputError, match="are about snapshot"):
        check_report({**report, "passed": True}, "another")


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [{"check": "range", "array": "t"}],
        [{"check": "rainge", "array": "t", "minimum": 0}],
        [{"check": "missing", "array": "t", "most": 2}],
        [{"check": "missing", "array": "t", "most": 0, "more": 1}],
        [{"check": "drift", "array": "t", "most": 1}],
        [{"check": "function", "function": "no colon"}],
        "[{",
    ],
)
def test_checks_that_cannot_be_understood_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="check"):
        parse_checks(wrong)


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=6), max_size=6))
def test_statistics_of_parts_are_those_of_the_whole(parts: list[list[float]]) -> None:
    whole = Statistics()
    for part in parts:
        line = np.array(part)
        if len(line):
            made = Statistics(
                len(line), len(line), 0, line.min(), line.max(), line.mean(),
                float(np.square(line - line.mean()).sum()),
            )  # fmt: skip
            whole = whole.joined(made)
    values = np.array([one for part in parts for one in part])
    assert whole.valid == len(values)
    if len(values):
        assert (whole.minimum, whole.maximum) == (values.min(), values.max())
        assert math.isclose(whole.mean, values.mean(), rel_tol=1e-9, abs_tol=1e-6)
        assert math.isclose(whole.deviation, values.std(), rel_tol=1e-6, abs_tol=1e-6)
