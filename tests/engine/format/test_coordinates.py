"""Distinct values as NumPy finds them, found without its import of masked arrays."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.format.coordinates import distinct, first_rows

VALUES = arrays.arrays(
    st.sampled_from([np.uint64, np.int64, np.dtype("S8")]),
    st.integers(0, 40),
    fill=st.nothing(),
)


@given(VALUES)
def test_values_are_those_that_numpy_finds(values: NDArray[np.generic]) -> None:
    found, first = np.unique(values, return_index=True)
    assert distinct(values).tolist() == found.tolist()
    assert first_rows(values).tolist() == first.tolist()


@pytest.mark.parametrize("act", ["commit", "rebase"])
def test_a_commit_does_not_wait_for_masked_arrays(act: str) -> None:
    """They take longer to import than a small commit takes; Zarr itself imports them since 3.4."""
    program = f"""
import sys
import zarr
loaded = "numpy.ma" in sys.modules
from airflow_provider_icechunk.api import ConflictDetector, Repository, in_memory_storage
repository = Repository.create(in_memory_storage())
first = repository.writable_session("main")
zarr.create_array(first.store, name="a", shape=(8,), chunks=(1,), dtype="i4")[:4] = 1
first.commit("array")
late, early = repository.writable_session("main"), repository.writable_session("main")
zarr.open_array(early.store, path="a")[4] = 1
early.commit("early")
if {act!r} == "rebase":
    zarr.open_array(late.store, path="a")[5] = 1
    late.commit("late", rebase_with=ConflictDetector())
print("numpy.ma" in sys.modules and not loaded)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "False"
