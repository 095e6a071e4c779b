"""What tests of the repository browser share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tools.screenshots.chromium import MissingError, find_chromium

with warnings.catch_warnings():
    # It recommends another HTTP library.
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

__all__ = ["SCRIPT", "Ask", "TestClient", "launch"]

SCRIPT = "<script>alert(1)</script>"
Ask = Callable[..., Any]


@contextmanager
def launch() -> Iterator[Any]:
    """A headless Chromium; a test that needs one is skipped where there is none."""
    pytest.importorskip("playwright", reason="`make test-ui` installs the driver")
    from playwright.sync_api import sync_playwright

    try:
        path = find_chromium()
    except MissingError as error:
        pytest.skip(str(error))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
