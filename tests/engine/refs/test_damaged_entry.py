"""An entry point that is there and not understood is never taken for one that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from support import moto_server
from support.maintenance import Clock, everything, keys, live_in, lived_in, write

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Anything, Storage
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import FormatError, IcechunkError, MaintenanceError


@pytest.fixture(params=["memory", "local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "memory":
        yield MemoryStorage()
    elif request.param == "local":
        yield LocalStorage(tmp_path, durable=False)
    else:
        with moto_server.running() as endpoint:
            yield icechunk.s3_storage(
                bucket=moto_server.BUCKET,
                prefix=tmp_path.name,
                region="us-east-1",
                endpoint_url=endpoint,
                allow_http=True,
                force_path_style=True,
                **moto_server.KEYS,
            )


def damages(repo: bytes) -> list[bytes]:
    """Empty, cut within the header, and with magic or type turned."""
    turned = [bytes(b ^ (place == at) for place, b in enumerate(repo)) for at in (0, 11, 37)]
    return [b"", repo[:1], repo[:12], repo[:38], *turned]


def test_a_damaged_repo_object_opens_nothing_and_is_replaced_by_nothing(storage: Storage) -> None:
    live_in(storage, "1")
    icechunk.migrate(storage, "2")
    write(Repository.open(storage), "main", 9, "newer")
    found = storage.get("repo")
    assert found is not None
    stored = keys(storage)
    for damage in damages(found.data):
        storage.put("repo", damage, expect=Anything())
        for act in (
            Repository.open,
            Repository.exists,
            Repository.fetch_spec_version,
            Repository.fetch_config,
            Repository.create,
            Repository.open_or_create,
            lambda one: Repository.create(one, check_clean_root=False),
            lambda one: Repository.create(one, spec_version="2", check_clean_root=False),
            lambda one: icechunk.migrate(one, "2"),
            lambda one: icechunk.migrate(one, "2", remove_old=True),
        ):
            with pytest.raises(FormatError, match=r"/repo: its? "):
                act(storage)
        assert keys(storage) == stored
    storage.put("repo", found.data, expect=Anything())
    assert next(iter(Repository.open(storage).ancestry(branch="main"))).message == "newer"


def test_the_newest_copy_restores_all_but_the_last_change(storage: Storage) -> None:
    live_in(storage, "2")
    repo = Repository.open(storage)
    write(repo, "main", 9, "newer")
    write(repo, "main", 10, "newest")
    storage.put("repo", b"", expect=Anything())
    copy = storage.get(min(keys(storage, "overwritten/")))
    assert copy is not None
    storage.put("repo", copy.data, expect=Anything())
    restored = Repository.open(storage)
    assert next(iter(restored.ancestry(branch="main"))).message == "newer"
    assert restored.verify().ok
    write(restored, "main", 10, "again")


@pytest.mark.parametrize("generation", ["1", "alpha", "draft"])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_handle_from_before_a_migration_collects_and_expires_nothing_after_it(
    generation: str, damaged: bool
) -> None:
    clock = Clock()
    storage, _ = lived_in(generation, clock)
    old = Repository.open(storage, world=clock.world())
    icechunk.migrate(storage, "2", fence_old=False, world=clock.world())
    clock.wait(hours=1)
    write(Repository.open(storage, world=clock.world()), "main", 9, "newer")
    before, stored = everything(storage), keys(storage)
    found = storage.objects["repo"].data
    if damaged:
        storage.put("repo", b"", expect=Anything())
    later = clock.wait(days=10)
    for act in (old.garbage_collect, old.expire_snapshots):
        with pytest.raises((MaintenanceError, FormatError)):
            act(later)
    assert keys(storage) == stored
    storage.put("repo", found, expect=Anything())
    assert everything(storage) == before


@pytest.mark.parametrize(
    ("generation", "key"),
    [
        ("1", "refs/branch.main/ref.json"),
        ("alpha", "refs/branch.main/ZZZZZZZV.json"),
        ("alpha1", "r/main/ZZZZZZZV.json"),
        ("draft", "state.json"),
    ],
)
@pytest.mark.parametrize("damage", [b"", b"{", b"\0" * 39])
def test_a_damaged_older_entry_point_is_an_error_too(
    generation: str, key: str, damage: bytes
) -> None:
    storage, _ = lived_in(generation)
    assert key in storage.objects
    storage.put(key, damage, expect=Anything())
    assert Repository.exists(storage)
    with pytest.raises(FormatError, match=key):
        Repository.open(storage).readonly_session("main")
    with pytest.raises(IcechunkError, match="it holds a repository"):
        Repository.create(storage)
    with pytest.raises((FormatError, MaintenanceError)):
        Repository.open(storage).garbage_collect(storage.now() + timedelta(days=1))
