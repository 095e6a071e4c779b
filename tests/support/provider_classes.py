"""Every class that the provider registers with Airflow, so that no test misses a new one."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from airflow_provider_icechunk.dataset import Growing, IcechunkDataset, Variable
from airflow_provider_icechunk.get_provider_info import get_provider_info

DATASET = IcechunkDataset(
    "weather",
    dims={"day": Growing(start="2026-01-01", every="1D")},
    variables={"daily": Variable("int16", ("day",))},
)
AT = {"day": "2026-01-02"}

ENDINGS = {
    "operators": "Operator", "sensors": "Sensor", "triggers": "Trigger", "hooks": "Hook",
}  # fmt: skip


def listed(*kinds: str) -> list[type[Any]]:
    """The classes of the modules that are listed under `operators`, `sensors` and so on."""
    found = []
    for kind in kinds:
        for entry in get_provider_info()[kind]:
            for module in map(importlib.import_module, entry["python-modules"]):
                found += [
                    one
                    for name, one in inspect.getmembers(module, inspect.isclass)
                    if name.startswith("Icechunk")
                    and name.endswith(ENDINGS[kind])
                    and one.__module__ == module.__name__
                ]
    return sorted(set(found), key=lambda one: one.__name__)


def parameters(made: type[Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a class's constructor and of those of its bases in this package."""
    found: dict[str, inspect.Parameter] = {}
    for base in reversed(made.__mro__):
        if base.__module__.startswith("airflow_provider_icechunk") and "__init__" in vars(base):
            given = inspect.signature(base.__init__).parameters.items()
            found |= {name: one for name, one in given if name not in ("self", "kwargs")}
    return found


def required(made: type[Any]) -> list[str]:
    """The parameters without a default, and the repository, which some take from a dataset."""
    return [
        name
        for name, one in parameters(made).items()
        if (one.default is inspect.Parameter.empty or name == "repository")
        and one.kind is not one.VAR_KEYWORD
    ]
