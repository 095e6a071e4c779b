"""Features that a repository of generation `2` can turn off."""

from __future__ import annotations

from enum import IntEnum

from airflow_provider_icechunk.format.generations.v2.repo_info import RepoInfo


class Feature(IntEnum):
    """Features by their stored number; all are on by default."""

    MOVE_NODE = 3
    CREATE_TAG = 4
    DELETE_TAG = 5


def setting(info: RepoInfo, feature: int) -> bool | None:
    """Whether a feature was turned on or off; `None` when it is left to its default."""
    if feature in (info.disabled_flags or ()):
        return False
    return True if feature in (info.enabled_flags or ()) else None


def is_enabled(info: RepoInfo, feature: Feature) -> bool:
    """Whether a feature may be used."""
    return setting(info, feature) is not False
