"""Branches, tags and publishing by their operators."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from airflow.sdk import Asset
from support.airflow_contexts import make_context
from support.typed_ids import spellings

from airflow_provider_icechunk.api import Repository, Session, local_filesystem_storage
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    Kind,
    NotFoundError,
    RebaseFailedError,
)
from airflow_provider_icechunk.operators.branch import (
    IcechunkCreateBranchOperator,
    IcechunkDeleteBranchOperator,
    IcechunkResetBranchOperator,
)
from airflow_provider_icechunk.operators.publish import IcechunkPublishOperator
from airflow_provider_icechunk.operators.tag import (
    IcechunkCreateTagOperator,
    IcechunkDeleteTagOperator,
)

SIZE = 6


@pytest.fixture(params=[1, 2])
def repository(folder: Path, request: pytest.FixtureRequest) -> Repository:
    """A repository with the array `field` and one commit."""
    storage = local_filesystem_storage(folder / "weather")
    made = Repository.create(storage, spec_version=request.param)
    session = made.writable_session("main")
    zarr.create_array(session.store, name="field", shape=(SIZE,), chunks=(2,), dtype="int32")
    session.commit("begin")
    return made


def do(operator: type, *, context: Any = None, **arguments: Any) -> dict[str, Any]:
    given = {"task_id": "task", "repository": "weather", **arguments}
    return operator(**given).execute(context or make_context())


def write(repository: Repository, branch: str, where: slice, value: int) -> str:
    session: Session = repository.writable_session(branch)
    zarr.open_array(session.store, path="field", mode="r+")[where] = value
    return session.commit(f"{value}")


def field(repository: Repository, branch: str = "main") -> list[int]:
    store = repository.readonly_session(branch).store
    return np.asarray(zarr.open_array(store, path="field", mode="r")[:]).tolist()


def test_a_branch_begins_at_a_branch_or_at_a_snapshot(repository: Repository) -> None:
    head = repository.lookup_branch("main")
    first = repository.lookup_snapshot(head).parent_id
    result = do(IcechunkCreateBranchOperator, branch="a")
    assert result == {"branch": "a", "snapshot_id": head, "created": True}
    do(IcechunkCreateBranchOperator, branch="b", snapshot_id=first)
    assert repository.lookup_branch("b") == first


def test_an_existing_branch_is_an_error_or_kept_or_reset(repository: Repository) -> None:
    begin = do(IcechunkCreateBranchOperator, branch="a")["snapshot_id"]
    moved = write(repository, "a", slice(0, 2), 1)
    with pytest.raises(AlreadyExistsError):
        do(IcechunkCreateBranchOperator, branch="a")
    assert do(IcechunkCreateBranchOperator, branch="a", if_exists="skip")["snapshot_id"] == moved
    result = do(IcechunkCreateBranchOperator, branch="a", if_exists="reset")
    assert result == {"branch": "a", "snapshot_id": begin, "created": False}
    assert repository.lookup_branch("a") == begin
    with pytest.raises(InvalidInputError, match="if_exists"):
        do(IcechunkCreateBranchOperator, branch="a", if_exists="overwrite")


def test_resetting_twice_is_resetting_once(repository: Repository) -> None:
    begin = repository.lookup_branch("main")
    moved = write(repository, "main", slice(0, 2), 1)
    arguments = {"branch": "main", "snapshot_id": begin, "from_snapshot_id": moved}
    assert do(IcechunkResetBranchOperator, **arguments)["was"] == moved
    assert do(IcechunkResetBranchOperator, **arguments)["was"] == begin
    assert repository.lookup_branch("main") == begin


def test_a_branch_that_is_elsewhere_is_not_reset(repository: Repository) -> None:
    begin = repository.lookup_branch("main")
    first = repository.lookup_snapshot(begin).parent_id
    moved = write(repository, "main", slice(0, 2), 1)
    with pytest.raises(ConflictError):
        do(
            IcechunkResetBranchOperator,
            branch="main",
            snapshot_id=first,
            from_snapshot_id=begin,
        )
    assert repository.lookup_branch("main") == moved


def test_deleting_what_is_gone_is_success_unless_it_must_be_there(repository: Repository) -> None:
    head = repository.lookup_branch("main")
    for create, delete, name in [
        (IcechunkCreateBranchOperator, IcechunkDeleteBranchOperator, "branch"),
        (IcechunkCreateTagOperator, IcechunkDeleteTagOperator, "tag"),
    ]:
        do(create, **{name: "a"})
        assert do(delete, **{name: "a"}) == {name: "a", "deleted": True, "was": head}
        assert do(delete, **{name: "a"}) == {name: "a", "deleted": False, "was": None}
        with pytest.raises(NotFoundError):
            do(delete, missing_ok=False, **{name: "a"})


@pytest.mark.usefixtures("repository")
def test_main_is_not_deleted_and_a_missing_repository_is_no_missing_branch() -> None:
    with pytest.raises(InvalidInputError):
        do(IcechunkDeleteBranchOperator, branch="main")
    with pytest.raises(NotFoundError) as caught:
        do(IcechunkDeleteBranchOperator, branch="a", repository="nowhere")
    assert caught.value.kind is Kind.REPOSITORY_NOT_FOUND


def test_a_tag_is_made_once_and_found_again_but_never_moved(repository: Repository) -> None:
    head = repository.lookup_branch("main")
    made = do(IcechunkCreateTagOperator, tag="v1")
    assert made == {"tag": "v1", "snapshot_id": head, "created": True}
    assert do(IcechunkCreateTagOperator, tag="v1") == {**made, "created": False}
    write(repository, "main", slice(0, 2), 1)
    with pytest.raises(AlreadyExistsError, match="tags never move"):
        do(IcechunkCreateTagOperator, tag="v1")
    assert do(IcechunkCreateTagOperator, tag="v1", if_exists="skip")["snapshot_id"] == head
    with pytest.raises(AlreadyExistsError):
        do(IcechunkCreateTagOperator, tag="v1", snapshot_id=head, if_exists="error")
    do(IcechunkDeleteTagOperator, tag="v1")
    with pytest.raises(AlreadyExistsError) as caught:
        do(IcechunkCreateTagOperator, tag="v1", if_exists="skip")
    assert caught.value.kind is Kind.TAG_WAS_DELETED


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\x00"])
@pytest.mark.usefixtures("repository")
def test_names_that_are_none_are_refused(name: str) -> None:
    for operator, field_name in [
        (IcechunkCreateBranchOperator, "branch"),
        (IcechunkCreateTagOperator, "tag"),
    ]:
        with pytest.raises(InvalidInputError):
            do(operator, **{field_name: name})


def test_publishing_moves_a_branch_that_stood_still_to_the_very_snapshot(
    repository: Repository,
) -> None:
    begin = do(IcechunkCreateBranchOperator, branch="staging")["snapshot_id"]
    write(repository, "staging", slice(0, 2), 1)
    audited = write(repository, "staging", slice(2, 4), 2)
    assert field(repository) == [0] * SIZE
    context, asset = make_context(), Asset("icechunk://bucket/weather?branch=main")
    result = do(IcechunkPublishOperator, source="staging", context=context, outlets=[asset])
    parent = repository.lookup_snapshot(audited).parent_id
    assert result == {
        "snapshot_id": audited, "parent_id": parent, "branch": "main",
        "source_snapshot_id": audited, "how": "fast_forward",
    }  # fmt: skip
    assert field(repository) == [1, 1, 2, 2, 0, 0]
    assert context["outlet_events"][asset].extra == {
        "snapshot_id": audited, "parent_id": parent, "branch": "main",
    }  # fmt: skip
    assert begin in [info.id for info in repository.ancestry(branch="main")]
    write(repository, "main", slice(4, 6), 3)
    assert do(IcechunkPublishOperator, source="staging")["how"] == "already_there"


def test_only_what_was_audited_is_published(repository: Repository) -> None:
    do(IcechunkCreateBranchOperator, branch="staging")
    audited = write(repository, "staging", slice(0, 2), 1)
    write(repository, "staging", slice(0, 2), 9)
    do(IcechunkPublishOperator, source="staging", snapshot_id=audited)
    assert field(repository)[0] == 1
    stray = write(repository, "main", slice(0, 2), 5)
    with pytest.raises(NotFoundError, match="audit it again"):
        do(IcechunkPublishOperator, source="staging", snapshot_id=stray)


def test_a_branch_that_moved_is_refused_or_rebased_onto_as_one_commit(
    repository: Repository,
) -> None:
    do(IcechunkCreateBranchOperator, branch="staging")
    write(repository, "staging", slice(0, 2), 1)
    session = repository.writable_session("staging")
    zarr.create_array(session.store, name="extra", shape=(2,), dtype="int8")[:] = 7
    session.commit("another array")
    audited = write(repository, "staging", slice(2, 4), 2)
    theirs = write(repository, "main", slice(4, 6), 3)
    with pytest.raises(ConflictError, match="not an ancestor"):
        do(IcechunkPublishOperator, source="staging")
    assert field(repository) == [0, 0, 0, 0, 3, 3]
    result = do(IcechunkPublishOperator, source="staging", rebase=True)
    assert result["how"] == "rebase"
    assert result["parent_id"] == theirs
    assert field(repository) == [1, 1, 2, 2, 3, 3]
    head = repository.lookup_snapshot(repository.lookup_branch("main"))
    assert head.id == result["snapshot_id"]
    assert head.message == "publish staging"
    assert head.metadata["published_from"] == audited
    store = repository.readonly_session("main").store
    assert np.asarray(zarr.open_array(store, path="extra", mode="r")[:]).tolist() == [7, 7]


@pytest.mark.parametrize("run_id", ["run", "another run"])
def test_publishing_by_rebase_again_changes_nothing(repository: Repository, run_id: str) -> None:
    do(IcechunkCreateBranchOperator, branch="staging")
    write(repository, "staging", slice(0, 2), 1)
    write(repository, "main", slice(4, 6), 3)
    first = do(IcechunkPublishOperator, source="staging", rebase=True)
    again = do(
        IcechunkPublishOperator, source="staging", rebase=True, context=make_context(run_id=run_id)
    )
    assert again["snapshot_id"] == first["snapshot_id"]
    assert again["how"] == "already_there"
    assert repository.lookup_branch("main") == first["snapshot_id"]


@pytest.mark.parametrize(("choice", "value"), [("ours", 1), ("theirs", 2)])
def test_both_branches_wrote_one_chunk_and_the_operator_says_who_wins(
    repository: Repository, choice: str, value: int
) -> None:
    do(IcechunkCreateBranchOperator, branch="staging")
    write(repository, "staging", slice(0, 2), 1)
    write(repository, "main", slice(0, 2), 2)
    with pytest.raises(RebaseFailedError):
        do(IcechunkPublishOperator, source="staging", rebase=True)
    do(IcechunkPublishOperator, source="staging", rebase=True, on_chunk_conflict=choice)
    assert field(repository)[:2] == [value] * 2


def test_ids_may_be_typed_in_any_spelling_and_are_told_in_one(repository: Repository) -> None:
    head = repository.lookup_branch("main")
    for number, typed in enumerate(spellings(head)):
        again = {"branch": "main", "snapshot_id": typed}
        assert do(IcechunkResetBranchOperator, **again)["snapshot_id"] == head
        branch = {"branch": f"b{number}", "snapshot_id": typed, "if_exists": "reset"}
        assert do(IcechunkCreateBranchOperator, **branch)["snapshot_id"] == head
        assert do(IcechunkCreateBranchOperator, **branch)["snapshot_id"] == head
        tag = {"tag": f"t{number}", "snapshot_id": typed}
        assert do(IcechunkCreateTagOperator, **tag)["snapshot_id"] == head
        assert do(IcechunkCreateTagOperator, **tag) == {
            "tag": f"t{number}",
            "snapshot_id": head,
            "created": False,
        }
        told = do(IcechunkPublishOperator, source="main", target=f"b{number}", snapshot_id=typed)
        assert told["source_snapshot_id"] == told["snapshot_id"] == head
