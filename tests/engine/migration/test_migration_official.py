"""From `1` to `2` as the official library migrates, and what it makes of what was migrated here."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from support import actors, fixtures, trees
from support.early import tell
from support.maintenance import live_in
from support.migrations import portrait

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.format.v2.repo import RepoInfo, decode_items
from airflow_provider_icechunk.engine.format.v2.repo_codec import decode_repo
from airflow_provider_icechunk.engine.format.wire import flexbuffers

SCRIPT = Path(__file__).parents[2] / "support" / "official_migration.py"

pytestmark = actors.needs_icechunk2


def official(action: str, folders: list[Path]) -> str:
    assert actors.PYTHON is not None
    done = subprocess.run(
        [actors.PYTHON, str(SCRIPT), action, *map(str, folders)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def stored(root: Path) -> RepoInfo:
    return decode_repo((root / "repo").read_bytes(), where="repo")


def facts(info: RepoInfo) -> dict[str, Any]:
    """Everything in a `repo` object, values decoded; the time of the migration left out."""
    found = {field.name: getattr(info, field.name) for field in fields(info)}
    newest, *older = info.updates
    found["updates"] = [newest.event, *older]
    found["snapshots"] = [
        (one.id, one.parent_id, one.flushed_at, one.message, one.pruned_logs,
         decode_items(one.metadata, where="metadata"))
        for one in info.snapshots.values()
    ]  # fmt: skip
    config = None if info.config is None else flexbuffers.decode(info.config, where="config")
    found["config"] = without_nulls(config)
    return found


def without_nulls(tree: Any) -> Any:
    """Settings that are set: the official writer names all others too, as null."""
    if isinstance(tree, dict):
        return {name: without_nulls(one) for name, one in tree.items() if one is not None}
    return [without_nulls(one) for one in tree] if isinstance(tree, list) else tree


@fixtures.needs_fixtures
def test_from_1_to_2_is_field_by_field_what_the_official_migration_makes(tmp_path):
    names = [name for name in fixtures.names("g3-") if "f1dc" not in name]
    ours = {name: fixtures.unpack(name, tmp_path / "ours")[0] for name in names}
    theirs = {name: fixtures.unpack(name, tmp_path / "theirs")[0] for name in names}
    for generated in (ours, theirs):
        generated["lived-in"] = tmp_path / ("ours" if generated is ours else "theirs") / "lived-in"
    live_in(icechunk.local_filesystem_storage(ours["lived-in"]), "1")
    subprocess.run(["cp", "-r", str(ours["lived-in"]), str(theirs["lived-in"])], check=True)
    official("migrate", list(theirs.values()))
    for name in ours:
        icechunk.migrate(icechunk.local_filesystem_storage(ours[name]), "2")
        mine, other = facts(stored(ours[name])), facts(stored(theirs[name]))
        for fact, value in other.items():
            assert mine[fact] == value, (name, fact)


@fixtures.needs_fixtures
def test_official_2_reads_and_continues_what_was_migrated(tmp_path):
    roots: dict[str, Path] = {}
    for name in (*fixtures.names("g2-")[::5], *fixtures.names("g3-")[::3]):
        roots[name] = fixtures.unpack(name, tmp_path)[0]
    for generation in ("draft", "alpha1", "alpha"):
        roots[generation] = tmp_path / generation
        storage = icechunk.local_filesystem_storage(roots[generation])
        tell(icechunk.Repository.create(storage, spec_version=generation))
    shown = {}
    for name, root in roots.items():
        storage = icechunk.local_filesystem_storage(root)
        icechunk.migrate(storage, "2", remove_old=name in ("draft", "alpha1"))
        shown[name] = portrait(storage)
    seen = json.loads(official("continue", list(roots.values())).splitlines()[-1])
    for (name, root), theirs in zip(roots.items(), seen, strict=True):
        before = shown[name]
        assert theirs["branches"] == {n: line[0] for n, line in before.branches.items()}, name
        assert theirs["tags"] == {n: line[0] for n, line in before.tags.items()}, name
        assert theirs["operations"][0] == "RepoMigrated"
        assert theirs["operations"][-1] == "RepoInitialized"
        main = [[one, before.snapshots[one][0], before.snapshots[one][2]]
                for one in before.branches["main"]]  # fmt: skip
        assert theirs["history"] == main, name
        repo = icechunk.Repository.open(icechunk.local_filesystem_storage(root))
        old = repo.readonly_session(snapshot_id=main[0][0])
        for path, digest in theirs["arrays"].items():
            values = np.ascontiguousarray(trees.values(old, path))
            assert hashlib.sha256(values.tobytes()).hexdigest() == digest, (name, path)
        assert repo.lookup_branch("main") == theirs["head"] == repo.lookup_tag("their tag")
        messages = [info.message for info in repo.ancestry(branch="main")]
        assert messages == ["amended", *(message for _, message, _ in main)], name
        assert repo.verify().ok or "expire" in name, name
