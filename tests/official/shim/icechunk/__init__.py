"""Stands where the official package would: `import icechunk` gives this project's `api`.

Put before everything else on the path of a process that runs programs written for `icechunk`.
`ICECHUNK_GENERATION` is that of new repositories: the official 2.x makes others than 1.x and this
project. `ICECHUNK_VERSION` is the release that it stands for. `ICECHUNK_TESTING` names the folder
of the official package's own test helpers, plain Python on top of the public names, which are the
only thing of it that is taken over.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from airflow_provider_icechunk import api
from airflow_provider_icechunk.engine import opening

_ROOMS = (
    "_icechunk_python",
    "config",
    "conflicts",
    "credentials",
    "dask",
    "distributed",
    "ops",
    "repository",
    "session",
    "snapshots",
    "storage",
    "store",
    "types",
    "virtual",
    "xarray",
)
# The official module `dask` imports it, and programs rely on that.
with suppress(ImportError):
    import_module("dask.array")

_GENERATION = int(os.environ.get("ICECHUNK_GENERATION", "1"))


def _in_generation(create: Callable[..., Any]) -> Callable[..., Any]:
    def with_default(storage: Any, spec_version: Any, *args: Any, **options: Any) -> Any:
        chosen = _GENERATION if spec_version is None else spec_version
        return create(storage, chosen, *args, **options)

    return with_default


opening.create_core = _in_generation(opening.create_core)
opening.open_or_create_core = _in_generation(opening.open_or_create_core)


class LatencyStorage:
    """A storage of the official test helpers; there is none here."""


api.LatencyStorage = LatencyStorage
api.__version__ = os.environ.get("ICECHUNK_VERSION", "2.3.0")
api.__path__ = [os.environ["ICECHUNK_TESTING"]] if "ICECHUNK_TESTING" in os.environ else []
sys.modules["icechunk"] = api
for _room in _ROOMS:
    sys.modules[f"icechunk.{_room}"] = api
