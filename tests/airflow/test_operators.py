"""Operators by their `execute`: what they make, what they return, what they refuse."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from support.airflow_contexts import cleared, retried
from support.airflow_contexts import make_context as context
from support.provider_classes import listed

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.decorators.icechunk import _IcechunkDecoratedOperator
from airflow_provider_icechunk.engine.leases import PREFIX
from airflow_provider_icechunk.engine.pipelines.description import parse_session
from airflow_provider_icechunk.engine.workers.jobs import JobFolder
from airflow_provider_icechunk.engine.workers.work_unit import WorkUnit
from airflow_provider_icechunk.exceptions import (
    AlreadyExistsError,
    ConflictError,
    FragmentError,
    InvalidInputError,
    Kind,
    NotFoundError,
    RebaseFailedError,
    SessionError,
)
from airflow_provider_icechunk.operators.base import IcechunkOperator
from airflow_provider_icechunk.operators.commit import IcechunkCommitOperator
from airflow_provider_icechunk.operators.repository import IcechunkCreateRepositoryOperator
from airflow_provider_icechunk.operators.session import (
    IcechunkAbortSessionOperator,
    IcechunkOpenSessionOperator,
)

FIELD = {"path": "field", "shape": [6], "chunks": [2], "dtype": "int32"}


@pytest.fixture
def repository(folder: Path) -> Repository:
    create().execute(context())
    return Repository.open(local_filesystem_storage(folder / "weather"))


def create(**arguments: Any) -> IcechunkCreateRepositoryOperator:
    return IcechunkCreateRepositoryOperator(
        **{"task_id": "create", "repository": "weather", **arguments}
    )


def open_session(try_number: int = 1, **arguments: Any) -> dict[str, Any]:
    given = {"task_id": "open", "repository": "weather", "arrays": [FIELD], **arguments}
    operator = IcechunkOpenSessionOperator(**given)
    return operator.execute(context("open", try_number=try_number))


def commit(
    session: Any, run_id: str = "run", attempt: Any = None, **arguments: Any
) -> dict[str, Any]:
    given = {"task_id": "commit", "session": session, "message": "field", **arguments}
    return IcechunkCommitOperator(**given).execute(attempt or context("commit", run_id))


def retry() -> dict[str, Any]:
    """The second attempt to commit, after a crash."""
    return retried(context("commit"))


def rerun() -> dict[str, Any]:
    """The attempt to commit after somebody cleared the task."""
    return cleared(context("commit"))


def write(
    session: dict[str, Any], writer: str, where: slice, value: int, *, recorded: bool = False
) -> None:
    """What a worker does: write chunks through a fork and leave a fragment."""
    described = parse_session(session)
    repository = Repository.open(described.place.storage())
    fork = repository.fork(described.work_unit)
    with fork.recording({"field": [where]} if recorded else {}):
        zarr.open_array(fork.store, path="field", mode="r+")[where] = value
    folder = JobFolder(repository.storage, fork.work.job)
    assert folder.put_fragment(writer, fork.fragment(writer)).startswith(described.fragments)


def field(repository: Repository) -> list[int]:
    store = repository.readonly_session("main").store
    return np.asarray(zarr.open_array(store, path="field", mode="r")[:]).tolist()


def commits(repository: Repository) -> int:
    return len(list(repository.ancestry(branch="main"))) - 1


@pytest.mark.usefixtures("folder")
def test_creating_twice_skips_or_fails_as_asked() -> None:
    assert create().execute(context())["created"] is True
    assert create().execute(context())["created"] is False
    with pytest.raises(AlreadyExistsError):
        create(if_exists="error").execute(context())
    with pytest.raises(InvalidInputError):
        create(if_exists="reset").execute(context())


def test_a_new_repository_gets_its_configuration(folder: Path) -> None:
    create(config={"inline_chunk_threshold_bytes": 7}).execute(context())
    config = Repository.fetch_config(local_filesystem_storage(folder / "weather"))
    assert config is not None
    assert config.inline_chunk_threshold_bytes == 7


def test_nothing_is_visible_before_the_commit_and_all_of_it_after(repository: Repository) -> None:
    session = open_session()
    write(session, "first", slice(0, 4), 1)
    write(session, "second", slice(4, 6), 2)
    assert commits(repository) == 0
    result = commit(session, metadata={"campaign": "spring"})
    assert field(repository) == [1, 1, 1, 1, 2, 2]
    info = next(iter(repository.ancestry(branch="main")))
    assert result == {
        "snapshot_id": info.id, "parent_id": info.parent_id, "branch": "main", "chunks": 3,
    }  # fmt: skip
    assert info.metadata["campaign"] == "spring"
    assert info.metadata["airflow"] == {
        "dag_id": "dag", "run_id": "run", "task_id": "commit", "map_index": -1, "try_number": 1,
        "chunks": 3,
    }  # fmt: skip


def test_a_session_fits_into_json_and_can_come_back_as_text(repository: Repository) -> None:
    session = open_session()
    write(session, "only", slice(0, 6), 5)
    commit(json.dumps(session))
    assert field(repository) == [5] * 6


def test_a_retry_finds_the_first_commit(repository: Repository) -> None:
    session = open_session()
    write(session, "only", slice(0, 6), 5)
    first = commit(session)
    other = open_session(arrays=[{**FIELD, "path": "other"}])
    commit(other, run_id="another run")
    assert commit(session, attempt=retry()) == first
    assert commits(repository) == 2


def test_a_commit_that_is_repeated_needs_no_fragments_any_more(repository: Repository) -> None:
    session = open_session()
    write(session, "only", slice(0, 6), 5)
    first = commit(session)
    repository.storage.delete([x.key for x in repository.storage.scan(session["fragments"])])
    assert commit(session, attempt=retry()) == first


@pytest.mark.parametrize("try_number", [1, 2])
def test_what_was_written_for_another_session_is_not_merged(
    repository: Repository, try_number: int
) -> None:
    stale, session = open_session(job="same"), open_session(try_number=try_number, job="same")
    assert stale["fragments"] != session["fragments"]
    write(stale, "only", slice(0, 6), 1)
    write(session, "only", slice(0, 2), 2)
    commit(session)
    assert field(repository) == [2, 2, 0, 0, 0, 0]


def test_a_writer_that_runs_again_replaces_what_it_left(repository: Repository) -> None:
    session = open_session()
    write(session, "only", slice(0, 6), 1)
    write(session, "only", slice(0, 6), 2)
    commit(session)
    assert field(repository) == [2] * 6


def test_two_writers_of_one_chunk_are_refused(repository: Repository) -> None:
    session = open_session()
    write(session, "first", slice(0, 4), 1)
    write(session, "second", slice(2, 6), 2)
    with pytest.raises(FragmentError) as caught:
        commit(session)
    assert caught.value.kind is Kind.FRAGMENT_OVERLAP
    assert commits(repository) == 0


@pytest.mark.usefixtures("repository")
def test_writers_that_are_asked_for_must_have_come() -> None:
    session = open_session()
    write(session, "first", slice(0, 2), 1)
    with pytest.raises(FragmentError, match="second left no fragment"):
        commit(session, fragments=["first", "second"])


@pytest.mark.usefixtures("repository")
def test_nothing_written_is_nothing_to_commit() -> None:
    commit(open_session())
    with pytest.raises(SessionError) as caught:
        commit(open_session(), run_id="next")
    assert caught.value.kind is Kind.NO_CHANGES


def test_a_commit_moves_over_what_others_committed(repository: Repository) -> None:
    commit(open_session(), run_id="before")
    session = open_session()
    write(session, "only", slice(0, 2), 1)
    theirs = open_session(try_number=2)
    write(theirs, "only", slice(4, 6), 2)
    commit(theirs, run_id="theirs")
    with pytest.raises(ConflictError):
        commit(session, rebase=False)
    commit(session)
    assert field(repository) == [1, 1, 0, 0, 2, 2]


@pytest.mark.parametrize(("choice", "value"), [("ours", 1), ("theirs", 2)])
def test_both_wrote_one_chunk_and_the_operator_says_who_wins(
    repository: Repository, choice: str, value: int
) -> None:
    commit(open_session(), run_id="before")
    session, theirs = open_session(), open_session(try_number=2)
    write(session, "only", slice(0, 6), 1)
    write(theirs, "only", slice(0, 6), 2)
    commit(theirs, run_id="theirs")
    with pytest.raises(RebaseFailedError):
        commit(session)
    commit(session, on_conflict=choice)
    assert field(repository) == [value] * 6


def test_the_earlier_name_of_the_choice_still_works(repository: Repository) -> None:
    commit(open_session(), run_id="before")
    session, theirs = open_session(), open_session(try_number=2)
    write(session, "only", slice(0, 6), 1)
    write(theirs, "only", slice(0, 6), 2)
    commit(theirs, run_id="theirs")
    commit(session, on_chunk_conflict="theirs")
    assert field(repository) == [2] * 6


def test_two_runs_that_recorded_what_they_wrote_share_a_chunk(repository: Repository) -> None:
    commit(open_session(), run_id="before")
    session, theirs = open_session(), open_session(try_number=2)
    write(session, "only", slice(0, 1), 1, recorded=True)
    write(theirs, "only", slice(1, 3), 2, recorded=True)
    commit(theirs, run_id="theirs")
    with pytest.raises(RebaseFailedError):
        commit(session, on_conflict="fail")
    commit(session)
    assert field(repository) == [1, 2, 2, 0, 0, 0]


@pytest.mark.usefixtures("repository")
def test_a_conflict_of_two_tasks_names_the_other_one() -> None:
    commit(open_session(), run_id="before")
    session, theirs = open_session(), open_session(try_number=2)
    write(session, "only", slice(0, 2), 1, recorded=True)
    write(theirs, "only", slice(1, 3), 2, recorded=True)
    commit(theirs, run_id="theirs")
    with pytest.raises(RebaseFailedError, match=r"run 'theirs'.*\[1:2\].*on_conflict"):
        commit(session)


@pytest.mark.usefixtures("repository")
def test_an_unknown_branch_is_named_with_the_known_ones() -> None:
    with pytest.raises(NotFoundError, match=r"'dev'.*main") as caught:
        open_session(branch="dev")
    assert caught.value.kind is Kind.BRANCH_NOT_FOUND


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"colour": "blue"}, r"arrays\[0\]: colour"),
        ({"dtype": "os.system"}, "data type"),
        ({"shape": [-1]}, "shape"),
        ({"chunks": [1, 1]}, "differ in length"),
        ({"values": [1, 2]}, "2 values for 6 cells"),
    ],
)
@pytest.mark.usefixtures("repository")
def test_a_declaration_that_cannot_work_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        open_session(arrays=[{**FIELD, **change}])


def test_declaring_again_keeps_grows_and_never_cuts(repository: Repository) -> None:
    session = open_session()
    write(session, "only", slice(0, 6), 3)
    commit(session)
    commit(open_session(arrays=[{**FIELD, "shape": [8]}]), run_id="grow")
    assert field(repository) == [3] * 6 + [0, 0]
    commit(open_session(arrays=[{**FIELD, "shape": [4], "attributes": {"a": 1}}]), run_id="short")
    assert field(repository) == [3] * 6 + [0, 0]
    for change, says in (
        ({"dtype": "int64"}, "dtype int32, declared as int64"),
        ({"chunks": [3]}, r"chunks \(2,\), declared as \(3,\)"),
        ({"dimension_names": ["x"]}, r"dimension_names \(None,\), declared as \('x',\)"),
        ({"fill_value": 7}, "fill_value 0, declared as 7"),
    ):
        with pytest.raises(AlreadyExistsError, match=says) as caught:
            open_session(arrays=[{**FIELD, "shape": [8], **change}])
        assert caught.value.kind is Kind.NODE_EXISTS


def test_an_aborted_session_leaves_no_fragment_and_others_keep_theirs(
    repository: Repository,
) -> None:
    commit(open_session(), run_id="before")
    session, other = open_session(), open_session(job="other")
    write(session, "first", slice(0, 2), 1)
    write(session, "second", slice(2, 4), 1)
    write(other, "only", slice(4, 6), 2)
    abort = IcechunkAbortSessionOperator(task_id="abort", session=session)
    assert abort.execute(context()) == {"fragments": 2}
    assert abort.execute(context()) == {"fragments": 0}
    with pytest.raises(SessionError):
        commit(session)
    commit(other, run_id="other")
    assert field(repository) == [0, 0, 0, 0, 2, 2]


def test_an_aborted_session_leaves_no_lease(repository: Repository) -> None:
    def leases() -> list[str]:
        return [listed.key for listed in repository.storage.scan(PREFIX)]

    session = open_session()
    session["work_unit"]["since"] -= 3_600_000_000
    work = WorkUnit.from_json(session["work_unit"])
    repository.core.leasehold(work.tenancy).writing()
    assert len(leases()) == 1
    IcechunkAbortSessionOperator(task_id="abort", session=session).execute(context())
    assert not leases()


@pytest.mark.parametrize("session", ["no json", {"repository": "weather"}, "{}"])
def test_what_is_no_session_is_refused(session: Any) -> None:
    with pytest.raises(InvalidInputError, match="IcechunkOpenSessionOperator"):
        commit(session)


@pytest.mark.parametrize(
    "made", [*listed("operators"), _IcechunkDecoratedOperator], ids=lambda one: str(one.__name__)
)
def test_every_operator_opens_and_reports_in_one_way(made: type[Any]) -> None:
    assert issubclass(made, IcechunkOperator)
    for name in ("icechunk_hook", "open_repository", "link_to", "report"):
        assert getattr(made, name) is getattr(IcechunkOperator, name)
