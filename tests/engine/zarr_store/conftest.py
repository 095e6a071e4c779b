from __future__ import annotations

import pytest
from support.zarr_cases import stop_the_clock_of_gzip


@pytest.fixture
def timeless(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_the_clock_of_gzip(monkeypatch)
