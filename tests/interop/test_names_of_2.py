"""The names that official 2.x has for repositories and sessions are here, but for those listed."""

from __future__ import annotations

import json
import subprocess

from support import actors

import airflow_provider_icechunk.api as ours

ASK = """
import icechunk, json
classes = ("Repository", "Session", "RepositoryConfig", "ManifestConfig")
print(json.dumps({one: [n for n in dir(getattr(icechunk, one)) if n[0] != "_"] for one in classes}))
"""
NOT_HERE = {
    "Repository": {"attribution"},  # Who asks for what, for an object store of theirs.
    "Session": set(),
    # Stored values of these are kept and given back, but nothing here follows them.
    "RepositoryConfig": {"max_concurrent_decodes", "previous_file"},
    "ManifestConfig": {"max_concurrent_manifest_fetches_during_commit"},
}


@actors.needs_icechunk2
def test_names_of_version_2_are_here() -> None:
    assert actors.PYTHON is not None
    done = subprocess.run(
        [actors.PYTHON, "-c", ASK], capture_output=True, text=True, timeout=120, check=True
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    for name, members in theirs.items():
        missing = {one for one in members if not hasattr(getattr(ours, name), one)}
        assert missing == NOT_HERE[name], name
