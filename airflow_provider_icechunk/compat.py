"""The names of Airflow that moved between 3.0 and 3.3, from where this release has them.

May import Airflow alone. Everything else of the Airflow side takes these names from here, and asks
here what this release lacks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

try:
    import airflow  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "airflow":
        raise
    raise ModuleNotFoundError(
        "this part of airflow_provider_icechunk needs Apache Airflow, which is not installed here: "
        'pip install "airflow-provider-icechunk[airflow]"',
        name="airflow",
    ) from None

if TYPE_CHECKING:
    from airflow.sdk import BaseHook, conf
    from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException
else:
    try:
        from airflow.sdk import BaseHook
    except ImportError:  # before 3.1
        from airflow.hooks.base import BaseHook
    try:
        from airflow.sdk import conf
    except ImportError:  # before 3.2
        from airflow.configuration import conf
    try:
        from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException
    except ImportError:  # before 3.2
        from airflow.exceptions import AirflowFailException, AirflowNotFoundException

__all__ = [
    "AirflowFailException",
    "AirflowNotFoundException",
    "BaseHook",
    "airflow_version",
    "conf",
    "declares_forms",
    "has_react_apps",
    "has_retry_policies",
    "stats",
]


def has_react_apps() -> bool:
    """Whether plugins can put pages into Airflow's own: from 3.1 on."""
    found = re.match(r"(\d+)\.(\d+)", airflow_version())
    return found is None or (int(found[1]), int(found[2])) >= (3, 1)


def airflow_version() -> str:
    """The release of Airflow, for messages about what it lacks."""
    from importlib.metadata import PackageNotFoundError, version

    for name in ("apache-airflow-core", "apache-airflow"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of an unknown version"


def declares_forms() -> bool:
    """Whether Airflow reads the connection form from the provider's metadata, as since 3.2."""
    from airflow import __version__

    return tuple(int(part) for part in __version__.split(".")[:2]) >= (3, 2)


def has_retry_policies() -> bool:
    """Whether tasks take a `retry_policy`, as they do since Airflow 3.3."""
    from airflow import sdk

    return hasattr(sdk, "ExceptionRetryPolicy")


def stats() -> Any:
    """Airflow's metrics, whose module moved with 3.2 and 3.3; `None` if it moved again."""
    from importlib import import_module

    for name in ("airflow.sdk.observability.stats", "airflow.observability.stats", "airflow.stats"):
        try:
            return import_module(name).Stats
        except (ImportError, AttributeError):
            continue
    return None
