"""Every public name of official 2.x is here, or is listed here and told in the documentation."""

from __future__ import annotations

import inspect
import json
import subprocess
from pathlib import Path
from typing import Any

from support import actors

import airflow_provider_icechunk.api as ours

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
ASK = """
import icechunk, inspect, json
names = [*icechunk.__all__, "upgrade_icechunk_repository", "supported_spec_versions"]
members = {
    name: [one for one in dir(getattr(icechunk, name)) if one[0] != "_"]
    for name in names if inspect.isclass(getattr(icechunk, name))
}
arguments = {
    f"{name}.{one}": list(inspect.signature(getattr(getattr(icechunk, name), one)).parameters)
    for name in ("Repository", "Session", "ForkSession", "IcechunkStore")
    for one in members[name] if inspect.isroutine(getattr(getattr(icechunk, name), one))
}
print(json.dumps([names, members, arguments]))
"""
NOT_HERE = {
    # Azure is not supported.
    "AzureRefreshableCredential",
    "azure_anonymous_credentials",
    "azure_refreshable_credentials",
}
MEMBERS_NOT_HERE = {
    # Stored values are kept and given back, but nothing here follows them.
    "RepositoryConfig": {"previous_file"},
}
ARGUMENTS_NOT_HERE: dict[str, set[str]] = {}
COMPARED = ("Repository", "Session", "ForkSession", "IcechunkStore", "RepositoryConfig")
COMPARED += ("ManifestConfig", "Diff", "SnapshotInfo", "Conflict", "Update", "RepoStatus")
COMPARED += ("FeatureFlag", "VirtualChunkContainer", "VirtualChunkSpec", "CachingConfig")
COMPARED += ("ChunkType", "SessionMode", "RepoAvailability", "ConflictType", "SpecVersion")


def asked() -> Any:
    assert actors.PYTHON is not None
    done = subprocess.run(
        [actors.PYTHON, "-c", ASK], capture_output=True, text=True, timeout=120, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@actors.needs_icechunk2
def test_names_of_version_2_are_here_or_told() -> None:
    names, members, _ = asked()
    assert {one for one in names if not hasattr(ours, one)} == NOT_HERE
    for name in COMPARED:
        missing = {one for one in members[name] if not hasattr(getattr(ours, name), one)}
        assert missing == MEMBERS_NOT_HERE.get(name, set()), name
    told = PAGE.read_text()
    expected = NOT_HERE | {f"{cls}.{one}" for cls, many in MEMBERS_NOT_HERE.items() for one in many}
    assert {one for one in expected if f"`{one}`" not in told} == set()


@actors.needs_icechunk2
def test_calls_take_the_arguments_of_version_2() -> None:
    missing = {}
    for call, arguments in asked()[2].items():
        kind, _, name = call.partition(".")
        mine = getattr(getattr(ours, kind), name, None)
        # Twins take whatever their originals take.
        if mine is None or name.endswith("_async"):
            continue
        taken = inspect.signature(mine).parameters
        left = {one for one in arguments if one not in taken} - {"self"}
        if left and not any(one.kind is one.VAR_KEYWORD for one in taken.values()):
            missing[call] = left
    assert missing == ARGUMENTS_NOT_HERE
