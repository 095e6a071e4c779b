"""Values decoded by the CF conventions: what Xarray shows, executors show as well."""

from typing import Any

import numpy as np
import pytest
import xarray as xr
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.arrays.cf import decoding


def shown(stored: NDArray[Any], attributes: dict[str, Any]) -> NDArray[Any]:
    """Decoded, with what is missing as Xarray has it."""
    values, absent = decoding(stored.dtype, attributes).decode(stored)
    if absent is None:
        return values
    if values.dtype.kind == "M":
        return np.where(absent, np.datetime64("NaT", "us"), values)
    return np.where(absent, np.nan, values.astype("float64"))


NUMBERS = [0, 1, 5, -3, 100]
CASES: list[tuple[str, list[float], dict[str, Any]]] = [
    ("int32", NUMBERS, {"units": "days since 2000-01-01"}),
    ("int64", NUMBERS, {"units": "hours since 1970-01-01T12:30:00", "calendar": "standard"}),
    ("int64", NUMBERS, {"units": "Minutes since 1999-12-31 23:59:59.5"}),
    ("float64", [0.5, 1.25, np.nan], {"units": "days since 1900-1-1 0:0:0"}),
    ("float32", [0.5, 1.25, 3], {"units": "seconds since 2020-02-29T00:00:00Z"}),
    ("int64", NUMBERS, {"units": "milliseconds since 2020-01-01"}),
    ("int64", [0, 1000, -5000], {"units": "nanoseconds since 2020-01-01"}),
    ("int16", NUMBERS, {"units": "days since 2000-01-01", "_FillValue": -3}),
    ("int16", NUMBERS, {"scale_factor": 0.5}),
    ("int16", NUMBERS, {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -3}),
    ("uint8", [0, 1, 255], {"scale_factor": 2.0, "missing_value": 255}),
    ("int32", NUMBERS, {"_FillValue": 5}),
    ("float32", [0.0, 1.0, -9999.0], {"_FillValue": -9999.0}),
    ("float64", [0.0, 1.0, np.nan], {}),
    ("float32", [0.0, 1.0], {"add_offset": 5}),
]


@pytest.mark.parametrize(("dtype", "numbers", "attributes"), CASES)
def test_what_is_decoded_is_what_xarray_shows(
    dtype: str, numbers: list[float], attributes: dict[str, Any]
) -> None:
    stored = np.array(numbers, dtype)
    expected = xr.decode_cf(xr.Dataset({"v": ("x", stored, attributes)}))["v"].values
    found = shown(stored, attributes)
    if expected.dtype.kind == "M":
        np.testing.assert_array_equal(found, expected.astype("datetime64[us]"))
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_fill_values_that_xarray_wrote_into_zarr_are_known(tmp_path: Any) -> None:
    dataset = xr.Dataset({"v": ("x", np.array([1.5, np.nan, 2.5]))})
    encoding: Any = {"v": {"dtype": "float32", "_FillValue": -1.0}}
    dataset.to_zarr(tmp_path / "z", encoding=encoding, zarr_format=3, consolidated=False)
    import zarr

    array = zarr.open_array(tmp_path / "z", path="v", mode="r")
    stored = np.asarray(array[:])
    assert stored.tolist() == [1.5, -1.0, 2.5]
    np.testing.assert_array_equal(shown(stored, array.attrs.asdict()), [1.5, np.nan, 2.5])


@pytest.mark.parametrize(
    "attributes",
    [
        {"units": "days since 2000-01-01", "calendar": "360_day"},
        {"units": "months since 2000-01-01"},
        {"units": "days since the flood"},
        {"units": "days since 2000-13-01"},
        {"units": "days since 0001-01-01"},
        {"units": 7},
        {"scale_factor": "a lot", "add_offset": None},
        {"_FillValue": "not base64!", "missing_value": [None, "x"]},
        {"_FillValue": 70_000},
    ],
)
def test_attributes_that_say_nothing_leave_what_is_stored(attributes: dict[str, Any]) -> None:
    stored = np.array([1, 2, 3], "int16")
    values, absent = decoding(stored.dtype, attributes).decode(stored)
    assert values is stored
    assert absent is None


def test_times_beyond_all_times_are_missing() -> None:
    stored = np.array([1, 2**62, -(2**62)], "int64")
    values, absent = decoding(stored.dtype, {"units": "days since 2000-01-01"}).decode(stored)
    assert values[0] == np.datetime64("2000-01-02")
    assert absent is not None
    assert absent.tolist() == [False, True, True]
