"""Who does the work again: a retry after a crash never, a task that was cleared always.

What Airflow's scheduler does to the numbers of an attempt is in `test_standalone_reruns.py`.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zarr
from airflow.sdk import AssetAlias
from support.airflow_contexts import RETRIES, cleared, make_context, retried
from support.provider_classes import listed, parameters
from support.reruns import (
    ASSET,
    FIELD,
    Way,
    by_chain,
    by_function,
    by_spark,
    commits,
    committing,
    field,
    leave,
    opened,
    others,
    told,
)

from airflow_provider_icechunk.api import Repository, local_filesystem_storage
from airflow_provider_icechunk.decorators import icechunk
from airflow_provider_icechunk.decorators.icechunk import icechunk_task
from airflow_provider_icechunk.engine.pipelines.description import parse_session
from airflow_provider_icechunk.engine.pipelines.reruns import LARGEST_RESULT
from airflow_provider_icechunk.engine.workers.jobs import JobFolder
from airflow_provider_icechunk.exceptions import (
    ConflictError,
    InvalidInputError,
    RebaseFailedError,
    SessionError,
)
from airflow_provider_icechunk.operators.maintenance import IcechunkRewriteManifestsOperator
from airflow_provider_icechunk.operators.publish import IcechunkPublishOperator


@pytest.fixture(params=["1", "2", "alpha"])
def repository(
    folder: Path, connect: Callable[..., str], request: pytest.FixtureRequest
) -> Repository:
    connect("spark_default", conn_type="spark", host="local[1]")
    storage = local_filesystem_storage(folder / "weather")
    made = Repository.create(storage, spec_version=request.param)
    session = made.writable_session("main")
    zarr.create_array(session.store, name="other", shape=(2,), dtype="int32")
    session.commit("begin")
    return made


WAYS = pytest.mark.parametrize(
    "way", [by_chain, by_function, by_spark], ids=lambda one: one.__name__
)


@WAYS
def test_a_retry_commits_once_and_returns_what_the_first_attempt_did(
    way: Way,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    _, first = way(monkeypatch, 1, make_context())
    others(repository)
    context = retried(make_context())
    operator, again = way(monkeypatch, 2, context)
    assert again == first
    assert len(commits(repository)) == 2
    assert field(repository) == [1] * 6
    assert f"snapshot {first['snapshot_id']} (attempt 1," in caplog.text
    # The first attempt died before it could tell anybody.
    assert told(operator, context)["snapshot_id"] == first["snapshot_id"]


@pytest.mark.parametrize("way", [by_chain, by_spark], ids=lambda one: one.__name__)
def test_a_retry_counts_the_chunks_of_the_first_attempt_also_after_its_parent_has_expired(
    way: Way, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    others(repository)
    _, first = way(monkeypatch, 1, make_context())
    expired = repository.expire_snapshots(datetime.now(UTC))
    assert first["parent_id"] in expired
    _, again = way(monkeypatch, 2, retried(make_context()))
    assert again["snapshot_id"] == first["snapshot_id"]
    assert again["parent_id"] != first["parent_id"]
    assert again["chunks"] == first["chunks"] == 3


@WAYS
def test_a_cleared_task_commits_again_and_says_what_it_supersedes(
    way: Way,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    _, first = way(monkeypatch, 1, make_context())
    others(repository)
    context = cleared(make_context())
    operator, again = way(monkeypatch, 2, context)
    assert field(repository) == [2] * 6
    assert again["supersedes"] == first["snapshot_id"]
    newest = commits(repository)[0]
    assert newest.id == again["snapshot_id"]
    assert newest.metadata["airflow"]["supersedes"] == first["snapshot_id"]
    assert f"snapshot {first['snapshot_id']} (attempt 1," in caplog.text
    assert told(operator, context)["supersedes"] == first["snapshot_id"]
    # And its own retry does nothing, and the next run again is again one.
    assert way(monkeypatch, 3, retried(context))[1] == again
    once_more = way(monkeypatch, 4, cleared(context))[1]
    assert once_more["supersedes"] == again["snapshot_id"]
    assert field(repository) == [4] * 6
    assert len(commits(repository)) == 4


@WAYS
def test_a_cleared_task_that_shall_skip_changes_nothing_and_tells_nobody(
    way: Way, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first = way(monkeypatch, 1, make_context(), on_rerun="skip")
    context = cleared(make_context())
    operator, again = way(monkeypatch, 2, context, on_rerun="skip")
    assert again["snapshot_id"] == first["snapshot_id"]
    assert field(repository) == [1] * 6
    assert told(operator, context) is None


@WAYS
def test_a_task_that_shall_always_work_does_so_in_a_retry(
    way: Way, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first = way(monkeypatch, 1, make_context(), on_rerun="always")
    _, again = way(monkeypatch, 2, retried(make_context()), on_rerun="always")
    assert again["supersedes"] == first["snapshot_id"]
    assert field(repository) == [2] * 6


@WAYS
@pytest.mark.usefixtures("repository")
def test_another_word_for_a_rerun_is_refused_before_anything_is_done(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        InvalidInputError, match="on_rerun must be one of 'replace', 'skip', 'always'"
    ):
        way(monkeypatch, 1, make_context(), on_rerun="maybe")


def test_every_task_that_commits_can_be_told_what_a_rerun_does() -> None:
    """Those that take the message of a commit, and the decorator."""
    made = [one for one in listed("operators") if "message" in parameters(one)]
    assert len(made) == 11
    for one in (*made, icechunk._IcechunkDecoratedOperator):
        assert parameters(one)["on_rerun"].default == "replace", one


def test_each_map_index_is_a_task_of_its_own(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [by_function(None, n, make_context(map_index=n))[1] for n in range(2)]
    _, again = by_function(None, 5, cleared(make_context(map_index=0)))
    assert again["supersedes"] == made[0]["snapshot_id"]
    assert len(commits(repository)) == 3


def test_retries_lowered_before_the_clear_look_like_a_retry_and_the_log_says_so(
    repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit of what Airflow tells: the number is `try_number + retries` after a clear."""
    caplog.set_level("INFO")
    _, first = by_function(None, 1, make_context())
    same_number = cleared(make_context(), retries=RETRIES - 1)
    assert same_number["ti"].max_tries == RETRIES
    _, again = by_function(None, 2, same_number)
    assert again == first
    assert f"committed snapshot {first['snapshot_id']} (attempt 1," in caplog.text
    assert "attempt 2 does nothing" in caplog.text
    assert len(commits(repository)) == 1


def test_a_commit_of_an_older_release_answers_a_retry_and_is_superseded_by_a_rerun(
    repository: Repository,
) -> None:
    """Tokens had no number then."""
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="field", shape=(6,), chunks=(2,), dtype="int32")
    old = session.commit("old", token="dag/run/task/-1")
    assert by_function(None, 2, retried(make_context()))[1]["snapshot_id"] == old
    assert by_function(None, 2, cleared(make_context()))[1]["supersedes"] == old
    assert field(repository) == [2] * 6


def test_no_other_task_is_taken_for_an_earlier_run(repository: Repository) -> None:
    by_function(None, 1, make_context())
    for other in (make_context("task2"), make_context(run_id="run/task"), make_context("tas")):
        assert "supersedes" not in by_function(None, 2, cleared(other))[1]
    assert len(commits(repository)) == 4


def test_a_run_that_was_deleted_and_made_again_under_the_same_id_does_its_work(
    repository: Repository,
) -> None:
    by_function(None, 1, make_context())
    context = make_context()
    context["ti"].start_date = datetime.now(UTC)
    by_function(None, 2, context)
    assert field(repository) == [2] * 6


class TestChains:
    """Open, write, commit as tasks of their own, of which some are cleared."""

    def first(self, repository: Repository) -> tuple[dict[str, Any], dict[str, Any]]:
        session = opened(make_context())
        leave(session, "a", slice(0, 4), 1)
        leave(session, "b", slice(4, 6), 1)
        _, result = committing(session, make_context())
        return session, result

    def test_the_commit_alone(self, repository: Repository) -> None:
        session, first = self.first(repository)
        _, again = committing(session, cleared(make_context()))
        assert again["supersedes"] == again["parent_id"] == first["snapshot_id"]
        assert field(repository) == [1] * 6

    def test_one_writer_and_the_commit(self, repository: Repository) -> None:
        session, _ = self.first(repository)
        others(repository)
        leave(session, "b", slice(4, 6), 2)
        committing(session, cleared(make_context()))
        assert field(repository) == [1, 1, 1, 1, 2, 2]
        assert field(repository, "other") == [9, 0]

    def test_twice(self, repository: Repository) -> None:
        session, _ = self.first(repository)
        _, second = committing(session, context := cleared(make_context()))
        leave(session, "a", slice(0, 4), 3)
        _, third = committing(session, cleared(context))
        assert third["supersedes"] == second["snapshot_id"]
        assert field(repository) == [3, 3, 3, 3, 1, 1]

    def test_without_rebase(self, repository: Repository) -> None:
        session, _ = self.first(repository)
        leave(session, "b", slice(4, 6), 2)
        committing(session, cleared(make_context()), rebase=False)
        assert field(repository) == [1, 1, 1, 1, 2, 2]
        others(repository)
        with pytest.raises(ConflictError):
            committing(session, cleared(cleared(make_context())), rebase=False)

    def test_what_others_wrote_since_is_still_in_conflict(self, repository: Repository) -> None:
        session, _ = self.first(repository)
        theirs = others(repository, path="field")
        with pytest.raises(RebaseFailedError) as caught:
            committing(session, cleared(make_context()))
        assert caught.value.snapshot == theirs
        committing(session, cleared(make_context()), on_chunk_conflict="ours")
        assert field(repository) == [1] * 6

    def test_arrays_that_were_there_and_grew(self, repository: Repository) -> None:
        self.first(repository)
        longer = [{**FIELD, "shape": [8], "attributes": {"by": "second"}}]
        context = make_context(run_id="second")
        session = opened(context, arrays=longer)
        leave(session, "c", slice(6, 8), 4)
        committing(session, context)
        leave(session, "c", slice(6, 8), 5)
        committing(session, cleared(context))
        assert field(repository) == [1] * 6 + [5, 5]

    def test_a_run_whose_arrays_others_made_longer_since(self, repository: Repository) -> None:
        self.first(repository)
        by_others = opened(make_context(run_id="next"), arrays=[{**FIELD, "shape": [8]}])
        committing(by_others, make_context(run_id="next"))
        session = opened(cleared(make_context()))
        leave(session, "a", slice(0, 6), 7)
        committing(session, cleared(make_context()))
        assert field(repository) == [7] * 6 + [0, 0]


class TestEvents:
    """A task that commits nothing emits no asset event."""

    @pytest.mark.usefixtures("repository")
    def test_a_function_that_writes_nothing(self) -> None:
        def idle(store: Any) -> int:
            return 5

        alias = AssetAlias("others")
        operator = icechunk_task(repository="weather", outlets=[ASSET, alias])(idle)().operator
        assert operator.execute(make_context())["committed"] is False
        assert operator.outlets == [alias]

    def publish(self, context: Any, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        given = {"task_id": "task", "repository": "weather", "source": "staging"}
        operator = IcechunkPublishOperator(**given | arguments, outlets=[ASSET])
        return operator, operator.execute(context)

    def stage(self, repository: Repository, value: int) -> str:
        session = repository.writable_session("staging")
        zarr.open_array(session.store, path="other", mode="r+")[1] = value
        return session.commit(f"staged {value}")

    def test_publishing_what_is_published(self, repository: Repository) -> None:
        repository.create_branch("staging", repository.lookup_branch("main"))
        self.stage(repository, 1)
        assert self.publish(make_context())[1]["how"] == "fast_forward"
        context = cleared(make_context())
        operator, again = self.publish(context)
        assert (again["how"], told(operator, context)) == ("already_there", None)
        # A retry may have to tell what the attempt before it published.
        context = retried(make_context())
        operator, again = self.publish(context)
        assert told(operator, context)["snapshot_id"] == again["snapshot_id"]

    def test_publishing_again_never_conflicts_with_what_it_published(
        self, repository: Repository
    ) -> None:
        session = repository.writable_session("main")
        zarr.create_array(session.store, name="field", shape=(6,), chunks=(2,), dtype="int32")
        session.commit("field")
        repository.create_branch("staging", repository.lookup_branch("main"))
        self.stage(repository, 1)
        others(repository, path="field")
        _, first = self.publish(make_context(), rebase=True)
        self.stage(repository, 2)
        _, again = self.publish(cleared(make_context()), rebase=True)
        assert again["supersedes"] == first["snapshot_id"]
        assert field(repository, "other") == [0, 2]
        _, skipped = self.publish(cleared(make_context()), rebase=True, on_rerun="skip")
        assert (skipped["how"], skipped["snapshot_id"]) == ("already_there", again["snapshot_id"])

    def test_rewriting_manifests(self, repository: Repository) -> None:
        def rewrite(context: Any, **arguments: Any) -> dict[str, Any]:
            given = {"task_id": "task", "repository": "weather", **arguments}
            return IcechunkRewriteManifestsOperator(**given).execute(context)

        first = rewrite(make_context())
        others(repository)
        assert rewrite(retried(make_context())) == first
        again = rewrite(cleared(make_context()))
        assert again["supersedes"] == first["snapshot_id"]
        assert rewrite(retried(cleared(make_context()))) == again
        skipped = rewrite(cleared(cleared(make_context())), on_rerun="skip")
        assert skipped["snapshot_id"] == again["snapshot_id"]
        assert len(commits(repository)) == 3


class TestResults:
    """What a function returned is kept with its commit, if it is small JSON."""

    def run(self, result: Any, context: Any) -> dict[str, Any]:
        def write(store: Any) -> Any:
            zarr.open_array(store, path="other", mode="r+")[:] = 1
            return result

        return icechunk_task(repository="weather")(write)().operator.execute(context)

    @pytest.mark.parametrize("result", [0, "text", {"rows": [1, 2.5, None, True]}, [], ""])
    @pytest.mark.usefixtures("repository")
    def test_small_json_comes_back(self, result: Any) -> None:
        self.run(result, make_context())
        assert self.run("another", retried(make_context()))["result"] == result

    @pytest.mark.parametrize(
        "result",
        ["x" * LARGEST_RESULT, (1, 2), {1: 2}, float("nan"), b"bytes", object],
        ids=["long", "tuple", "numbered", "nan", "bytes", "class"],
    )
    def test_anything_else_is_not_kept_and_the_log_says_so(
        self, result: Any, repository: Repository, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        self.run(result, make_context())
        assert "result" not in commits(repository)[0].metadata["airflow"]
        assert "not kept with the commit" in caplog.text
        assert self.run("another", retried(make_context()))["result"] is None


class TestAppends:
    """Files that go to the end of an array would be appended twice."""

    FILES: tuple[dict[str, Any], ...] = (
        {"kind": "files", "files": ["/a.nc"], "variable": "v", "array": "field"},
        {"kind": "virtual", "files": ["/a.nc"], "authorize": ["file:///"]},
    )

    @pytest.mark.parametrize("write", FILES, ids=["files", "virtual"])
    def test_by_one_task(
        self, write: dict[str, Any], repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, first = by_spark(monkeypatch, 1, make_context(), writes=[write])
        with pytest.raises(SessionError, match=f"{first['snapshot_id']}.*append.*`start`"):
            by_spark(monkeypatch, 2, cleared(make_context()), writes=[write])
        assert len(commits(repository)) == 1
        by_spark(monkeypatch, 2, cleared(make_context()), writes=[{**write, "start": 0}])
        assert field(repository) == [2] * 6

    def test_a_retry_of_what_was_not_committed_appends(
        self, repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        by_spark(monkeypatch, 1, retried(make_context()), writes=[self.FILES[0]])
        assert field(repository) == [1] * 6

    def test_by_a_chain(self, repository: Repository) -> None:
        def write(session: dict[str, Any], value: int) -> None:
            leave(session, "spark-1", slice(0, 6), value)
            work = parse_session(session).work_unit
            folder = JobFolder(repository.storage, str(work["job"]))
            folder.put_result("spark-1", {"appends": True})

        session = opened(make_context())
        write(session, 1)
        _, first = committing(session, make_context())
        again = opened(cleared(make_context()))
        write(again, 2)
        with pytest.raises(SessionError, match=f"{first['snapshot_id']}.*append"):
            committing(again, cleared(make_context()))
        # The session of the first run is still where it was: nothing is appended twice by it.
        write(session, 3)
        committing(session, cleared(make_context()))
        assert field(repository) == [3] * 6
