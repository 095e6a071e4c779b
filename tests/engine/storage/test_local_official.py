"""The official library and this one in the same folder."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_provider_icechunk.engine.storage.base import Absent, Exactly, Lost, Written
from airflow_provider_icechunk.engine.storage.local.locks import LOCK_FOLDER
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage

icechunk = pytest.importorskip("icechunk")
REF = "refs/branch.main/ref.json"


def official(root: Path):
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(root)))


def commit(root: Path, message: str) -> str:
    repository = official(root)
    session = repository.writable_session("main")
    import zarr

    zarr.group(store=session.store, overwrite=True, attributes={"message": message})
    return str(session.commit(message))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    LocalStorage(tmp_path).check_conditional_writes()
    icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)))
    return tmp_path


def test_the_probe_does_not_stand_in_the_way_of_an_official_create(root: Path) -> None:
    assert official(root).lookup_branch("main")


def test_a_swap_here_and_commits_there_see_each_other(root: Path) -> None:
    storage = LocalStorage(root)
    found = storage.get(REF)
    assert found is not None
    commit(root, "official")
    assert storage.put(REF, found.data, expect=Exactly(found.version)) == Lost()
    newer = storage.get(REF)
    assert newer is not None
    assert isinstance(storage.put(REF, found.data, expect=Exactly(newer.version)), Written)
    assert len(list(official(root).ancestry(branch="main"))) == 1
    commit(root, "on top of the swap")
    assert len(list(official(root).ancestry(branch="main"))) == 2


def test_locks_and_unfinished_files_disturb_no_official_verb(root: Path) -> None:
    storage = LocalStorage(root)
    snapshot = commit(root, "first")
    found = storage.get(REF)
    assert found is not None
    storage.put("refs/branch.other/ref.json", found.data, expect=Absent())
    for folder in ("chunks", "snapshots", "manifests", "transactions", "refs", "refs/branch.main"):
        (root / folder).mkdir(exist_ok=True)
        (root / folder / ".icechunk#000000000000000001").write_bytes(b"torn")
    assert (root / LOCK_FOLDER).is_dir()
    repository = official(root)
    assert repository.list_branches() == {"main", "other"}
    assert repository.lookup_branch("other") == snapshot
    repository.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    assert official(root).lookup_branch("main") == snapshot
    commit(root, "second")
