"""What programs written for the official package meet first: errors, logs, storages, pickles."""

from __future__ import annotations

import asyncio
import logging
import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.error_kinds import OFFICIAL_CODES
from airflow_provider_icechunk.exceptions import Kind


def test_every_counterpart_is_a_code_of_both_sides() -> None:
    assert set(OFFICIAL_CODES) <= set(map(str, Kind))
    official = set(map(str, icechunk.ErrorKind))
    assert {code for codes in OFFICIAL_CODES.values() for code in codes} <= official


def test_kinds_equal_their_official_counterparts_and_nothing_else() -> None:
    kind = Kind.BRANCH_NOT_FOUND
    assert kind == icechunk.ErrorKind.BRANCH_NOT_FOUND
    assert kind == icechunk.ErrorKind.REF_NOT_FOUND
    assert kind == "branch_not_found"
    assert kind == "branch-not-found"
    assert not icechunk.ErrorKind.TAG_NOT_FOUND == kind  # noqa: SIM201, SIM300 - asks the other
    assert kind != icechunk.ErrorKind.TAG_NOT_FOUND
    assert kind != Kind.TAG_NOT_FOUND
    assert {kind: 1}[Kind.BRANCH_NOT_FOUND] == 1


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        (None, icechunk.RepositoryNotFoundError),
        (Kind.TAG_NOT_FOUND, icechunk.RefNotFoundError),
        (Kind.SNAPSHOT_NOT_FOUND, icechunk.SnapshotNotFoundError),
        (Kind.NODE_NOT_FOUND, icechunk.NodeNotFoundError),
        (Kind.OBJECT_MISSING, icechunk.NotFoundError),
    ],
)
def test_the_kind_decides_the_class_of_what_is_missing(
    kind: Kind | None, cls: type[icechunk.NotFoundError]
) -> None:
    error = icechunk.NotFoundError("there is no x", kind=kind)
    assert type(error) is cls
    assert isinstance(error, KeyError)
    assert str(error) == "there is no x"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.kind) == (cls, str(error), error.kind)


def test_conflicts_are_made_as_officially_and_as_before() -> None:
    official = icechunk.ConflictError("a", "b")
    assert (official.expected_parent, official.actual_parent) == ("a", "b")
    ours = icechunk.ConflictError("lost", expected_parent="a")
    assert (str(ours), ours.expected_parent) == ("lost", "a")
    failed = icechunk.RebaseFailedError("SNAP", [1])
    assert isinstance(failed, icechunk.ConflictError)
    assert (failed.snapshot, failed.conflicts, failed.kind) == ("SNAP", [1], "rebase-failed")


def test_a_repository_travels_without_its_handle(tmp_path: Path) -> None:
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(tmp_path))
    repository.set_default_commit_metadata({"author": "x"})
    again = pickle.loads(pickle.dumps(repository))
    assert again.list_branches() == {"main"}
    assert again.default_commit_metadata() == {"author": "x"}


def test_secrets_do_not_travel_unasked() -> None:
    storage = icechunk.s3_storage(
        bucket="b", prefix="p", region="us-east-1", access_key_id="k", secret_access_key="hunter2"
    )
    with pytest.raises(TypeError, match="let the other process find its own"):
        pickle.dumps(storage)


@pytest.mark.filterwarnings("error")  # Officially there is none.
def test_a_storage_lists_what_it_holds(tmp_path: Path) -> None:
    storage = icechunk.Storage.new_local_filesystem(str(tmp_path))
    assert isinstance(storage, icechunk.Storage)
    icechunk.Repository.create(storage)
    keys = {one.key for one in storage.list_objects_metadata(prefix="refs/")}
    assert keys == {"refs/branch.main/ref.json"}
    assert dict(storage.list_objects())["refs/branch.main/ref.json"] > 0
    assert storage.default_settings().retries is not None


@pytest.fixture
def _no_filter() -> object:
    yield
    icechunk.set_logs_filter(None)


@pytest.mark.usefixtures("_no_filter")
def test_a_filter_prints_lines_to_the_error_stream(capfd: pytest.CaptureFixture[str]) -> None:
    for directive, is_shown in [
        ("icechunk=debug", True),
        ("icechunk::repository:trace", True),
        ("warn", False),
        ("", False),
        ("tokio=debug", False),
    ]:
        icechunk.set_logs_filter(directive)
        icechunk.Repository.create(icechunk.in_memory_storage())
        assert ("Creating Repository" in capfd.readouterr().err) is is_shown, directive


@pytest.mark.usefixtures("_no_filter")
def test_a_misspelt_filter_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    icechunk.set_logs_filter("icehunk:debug")
    assert "did you mean 'icechunk'" in capfd.readouterr().err
    icechunk.set_logs_filter("my_app:debug")
    assert capfd.readouterr().err == ""


def test_lines_reach_the_handlers_of_a_program(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="icechunk"):
        icechunk.Repository.create(icechunk.in_memory_storage())
    assert [one.name for one in caplog.records if "Creating" in one.message] == [
        "icechunk.repository"
    ]


@pytest.mark.parametrize("generation", [1, 2])
def test_programs_that_catch_a_type_error_for_metadata_still_do(generation: int) -> None:
    repo = icechunk.Repository.create(icechunk.in_memory_storage(), spec_version=generation)
    session = repo.writable_session("main")
    with pytest.raises(TypeError, match="metadata") as caught:
        session.commit("x", {"foo": object()}, allow_empty=True)
    assert isinstance(caught.value, icechunk.IcechunkError | ValueError)


def test_programs_that_use_the_store_behind_the_store_get_bytes() -> None:
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    store = repo.writable_session("main").store
    document = b'{"zarr_format":3,"node_type":"group"}'

    async def use() -> bytes:
        await store._store.set("zarr.json", document)
        return await store._store.get("zarr.json")

    assert asyncio.run(use()) == document
    with pytest.raises(KeyError):
        asyncio.run(store._store.get("missing/zarr.json"))
    with pytest.raises(icechunk.ReadOnlyError):
        asyncio.run(repo.readonly_session("main").store._store.set("zarr.json", document))


def test_threads_may_hand_back_the_fork_that_they_wrote_into() -> None:
    repo = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repo.writable_session("main")
    fork = session.fork()
    zarr.create_array(fork.store, name="a", data=np.arange(3))
    fork.merge(fork, fork)
    session.merge(fork)
    assert zarr.open_array(session.store, path="a", mode="r")[:].tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="fork"):
        session.merge(session)
