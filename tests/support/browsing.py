"""What tests of the repository browser share."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

with warnings.catch_warnings():
    # It recommends another HTTP library.
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

__all__ = ["SCRIPT", "Ask", "TestClient"]

SCRIPT = "<script>alert(1)</script>"
Ask = Callable[..., Any]
