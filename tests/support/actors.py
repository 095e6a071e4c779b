"""The actors that take turns on a repository: this package, and both versions of the official
library.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import turns

PYTHON = os.environ.get("ICECHUNK2_PYTHON")
"""An interpreter that has official `icechunk` 2; `make test` makes one where Python 3.12 exists."""

needs_icechunk2 = pytest.mark.skipif(
    not PYTHON, reason="no interpreter with official icechunk 2 (set ICECHUNK2_PYTHON)"
)
"""The one reason for which tests with that library are left out."""


class Refused(Exception):
    """The library of the actor raised."""


Actor = Callable[..., Any]
"""Called with a folder, an action and its arguments."""


def local(library: ModuleType) -> Actor:
    """An actor in this process."""

    def act(folder: Path, action: str, **arguments: Any) -> Any:
        try:
            found = turns.perform(library, str(folder), action, arguments)
        except Exception as error:
            raise Refused(f"{type(error).__name__}: {error}") from error
        return json.loads(json.dumps(found))

    return act


class Worker:
    """An actor in a process of its own, which has official `icechunk` 2."""

    def __init__(self) -> None:
        assert PYTHON is not None
        self._process = subprocess.Popen(
            [PYTHON, "-W", "ignore", turns.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __call__(self, folder: Path, action: str, **arguments: Any) -> Any:
        """Make it do something."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        request = {"folder": str(folder), "action": action, "arguments": arguments}
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        answer = json.loads(stdout.readline())
        if "failed" in answer:
            raise Refused(answer["failed"])
        return answer["done"]

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.wait(timeout=30)
