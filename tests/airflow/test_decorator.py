"""`@task.icechunk`: what a function wrote is committed when it returns, and only then."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from airflow.sdk import Asset
from support.airflow_contexts import cleared, make_context, retried

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.decorators.icechunk import icechunk_task, with_session
from airflow_provider_icechunk.engine.pipelines import transaction
from airflow_provider_icechunk.exceptions import ConflictError, RebaseFailedError


@pytest.fixture
def repository(folder: Path) -> Repository:
    made = Repository.create(local_filesystem_storage(folder / "weather"))
    session = made.writable_session("main")
    zarr.create_array(session.store, name="field", shape=(4,), chunks=(2,), dtype="int32")
    session.commit("begin")
    return made


def field(repository: Repository) -> list[int]:
    store = repository.readonly_session("main").store
    return np.asarray(zarr.open_array(store, path="field", mode="r")[:]).tolist()


def messages(repository: Repository) -> list[str]:
    return [info.message for info in repository.ancestry(branch="main")][:-1]


def run(function: Any, *args: Any, context: Any = None, **arguments: Any) -> dict[str, Any]:
    task = icechunk_task(repository="weather", **arguments)(function)
    return task(*args).operator.execute(context or make_context())


def write(store: Any, value: int, where: int = 0) -> str:
    zarr.open_array(store, path="field", mode="r+")[where : where + 2] = value
    return f"wrote {value}"


def test_what_a_function_wrote_is_one_commit_with_its_author(repository: Repository) -> None:
    context, asset = make_context(), Asset("icechunk://bucket/weather?branch=main")
    result = run(write, 7, context=context, metadata={"why": "test"}, outlets=[asset])
    assert field(repository) == [7, 7, 0, 0]
    info = repository.lookup_snapshot(repository.lookup_branch("main"))
    snapshot = {"snapshot_id": info.id, "parent_id": info.parent_id, "branch": "main"}
    assert result == {**snapshot, "committed": True, "result": "wrote 7"}
    assert info.message == "dag.task in run"
    assert info.metadata["why"] == "test"
    assert info.metadata["airflow"]["task_id"] == "task"
    assert context["outlet_events"][asset].extra == snapshot


def test_the_session_itself_can_be_asked_for_anywhere_in_the_list(repository: Repository) -> None:
    def both(value: int, session: Any, *, store: Any) -> int:
        assert session.store is store
        write(store, value)
        return value

    assert run(both, 3, message="by session")["result"] == 3
    assert messages(repository)[0] == "by session"


def test_an_exception_leaves_nothing_behind(repository: Repository) -> None:
    def fail(store: Any) -> None:
        write(store, 9)
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        run(fail)
    assert field(repository) == [0] * 4
    assert messages(repository) == ["begin"]


def test_a_retry_of_a_task_that_committed_does_not_run_its_function_again(
    repository: Repository,
) -> None:
    first = run(write, 1)

    def unreachable(store: Any) -> None:
        raise AssertionError("it ran again")

    assert run(unreachable, context=retried(make_context())) == first
    assert run(write, 2, context=make_context(run_id="next"))["parent_id"] == first["snapshot_id"]
    assert len(messages(repository)) == 3


def test_an_attempt_thought_dead_that_commits_while_the_next_one_begins_is_found(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    looked = transaction.find_earlier
    made: list[dict[str, Any]] = []

    def look_and_be_overtaken(*args: Any, **arguments: Any) -> Any:
        answer = looked(*args, **arguments)
        if not made:
            monkeypatch.setattr(transaction, "find_earlier", looked)
            made.append(run(write, 1))
        return answer

    monkeypatch.setattr(transaction, "find_earlier", look_and_be_overtaken)
    assert run(write, 2, context=retried(make_context())) == made[0]
    assert "Attempt 1 committed snapshot" in caplog.text
    assert messages(repository) == ["dag.task in run", "begin"]


def test_a_task_that_is_cleared_days_later_still_finds_what_it_supersedes(
    repository: Repository,
) -> None:
    first = run(write, 1)
    run(write, 5, 2, context=make_context(run_id="between"))
    now = datetime.now(UTC)
    days_later = SimpleNamespace(run_after=now, start_date=now + timedelta(days=3))
    context = cleared(make_context()) | {"dag_run": days_later}
    assert run(write, 2, context=context)["supersedes"] == first["snapshot_id"]
    assert len(messages(repository)) == 4
    assert field(repository) == [2, 2, 5, 5]


def test_a_function_that_writes_nothing_commits_nothing(repository: Repository) -> None:
    head = repository.lookup_branch("main")

    def idle(store: Any) -> int:
        return 5

    result = run(idle)
    assert (result["committed"], result["snapshot_id"], result["result"]) == (False, head, 5)
    assert repository.lookup_branch("main") == head


def test_a_commit_of_others_meanwhile_is_moved_over_or_refused(repository: Repository) -> None:
    def slow(store: Any, where: int) -> None:
        write(store, 1, where)
        session = repository.writable_session("main")
        write(session.store, 2, 2)
        session.commit("theirs")

    run(slow, 0)
    assert field(repository) == [1, 1, 2, 2]
    with pytest.raises(RebaseFailedError):
        run(slow, 2, context=make_context(run_id="clash"))
    with pytest.raises(ConflictError):
        run(slow, 0, context=make_context(run_id="alone"), rebase=False)


def test_a_function_that_takes_no_session_is_refused() -> None:
    with pytest.raises(TypeError, match="no parameter `session` or `store`"):
        icechunk_task(repository="weather")(lambda day: day)


def test_calls_are_checked_without_the_session() -> None:
    def three(a: int, session: Any, b: int = 2, **more: int) -> None: ...

    assert list(with_session(three).__signature__.parameters) == ["a", "b", "more"]
    with pytest.raises(TypeError):
        icechunk_task(repository="weather")(write)()


@pytest.mark.usefixtures("repository")
def test_its_fields_are_templated() -> None:
    arguments = dict.fromkeys(("repository", "branch", "message", "metadata"), "{{ x }}")
    task = icechunk_task(**arguments)(write)("{{ x }}").operator
    task.render_template_fields({"x": "rendered"})
    assert {name: getattr(task, name) for name in arguments} == dict.fromkeys(arguments, "rendered")
    assert task.op_args == ("rendered",)
