"""The sink of streams: each batch is committed once, and only leftovers are deleted."""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.streams import (
    BATCH,
    SCHEMA,
    attempt,
    chunk_files,
    commit_attribute,
    content,
    history,
    repository_at,
)

from airflow_provider_icechunk.engine.history.ancestry import SnapshotInfo
from airflow_provider_icechunk.engine.workers.codec import encode_fragment
from airflow_provider_icechunk.exceptions import FragmentError, InvalidInputError
from airflow_provider_icechunk.spark.source.source import IcechunkSource
from airflow_provider_icechunk.spark.source.stream_write import (
    ATTEMPT_KEY,
    BATCH_KEY,
    QUERY_KEY,
    BatchPart,
    EarlierBatch,
    MicroBatch,
    find_batch,
)


def entry(name: str, query: str | None = None, batch: object = None) -> SnapshotInfo:
    details = {} if query is None else {QUERY_KEY: query, BATCH_KEY: batch, ATTEMPT_KEY: "x"}
    return SnapshotInfo(name, None, datetime.now(UTC), "", details, [])


@pytest.mark.parametrize(
    ("history", "found"),
    [
        ([], None),
        ([entry("A"), entry("B", "other", 5)], None),
        ([entry("A"), entry("B", "q", 5)], EarlierBatch("B", "x", True)),
        ([entry("A", "q", 4), entry("B", "q", 5)], None),
        ([entry("A", "q", 6), entry("B"), entry("C", "q", 5)], EarlierBatch("C", "x", True)),
        (
            [entry("A", "q", 7), entry("B", "q", 6), entry("C", "q", 4)],
            EarlierBatch("A", "x", False),
        ),
        ([entry("A", "q", 6)], EarlierBatch("A", "x", False)),
        ([entry("A", "q", "damaged")], None),
    ],
)
def test_a_batch_is_found_by_its_query_and_number(
    history: list[SnapshotInfo], found: EarlierBatch | None
) -> None:
    assert find_batch(iter(history), BATCH) == found


def test_the_search_ends_at_the_batch_before() -> None:
    def history() -> Iterator[SnapshotInfo]:
        yield entry("A", "q", 4)
        raise AssertionError("this one is not needed")

    assert find_batch(history(), BATCH) is None


@given(st.lists(st.sampled_from(["next", "replay", "older", "other", "expire"]), max_size=30))
@settings(deadline=None, max_examples=200)
def test_whatever_happens_in_between_no_batch_is_committed_twice(steps: list[str]) -> None:
    """Expiration keeps the newest snapshots, as far back as the newest batch of the query."""
    line: list[SnapshotInfo] = []
    committed: list[int] = []
    current = -1
    for step in steps:
        if step == "other":
            line.insert(0, entry("other"))
        elif step == "expire":
            ours = [place for place, info in enumerate(line) if QUERY_KEY in info.metadata]
            del line[ours[0] + 1 if ours else 0 :]
        else:
            current += step == "next"
            number = max(0, current - 1 if step == "older" else current)
            if find_batch(iter(line), MicroBatch("q", number)) is None:
                line.insert(0, entry("ours", "q", number))
                committed.append(number)
            current = max(current, 0)
    assert committed == list(range(len(committed)))
    assert len(committed) == current + 1


@pytest.fixture
def native(place: str) -> str:
    """Chunks of this size would be kept in the manifest; here they are files."""
    repository = repository_at(place)
    config = repository.config
    config.inline_chunk_threshold_bytes = 0
    repository.reopen(config).save_config()
    return place


def test_a_repeated_batch_is_skipped_with_a_warning_and_its_files_deleted(
    native: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer, messages = attempt(native)
    writer.commit(list(messages), 5)
    (first, *_) = history(native)
    assert (first.metadata[QUERY_KEY], first.metadata[BATCH_KEY]) == ("q", 5)
    files = chunk_files(native)
    commit_attribute(native, "somebody else")
    again, messages = attempt(native, value=2)
    assert chunk_files(native) > files
    with caplog.at_level(logging.WARNING):
        again.commit(list(messages), 5)
    assert f"batch 5 of query q is already committed as {first.id}" in caplog.text
    assert chunk_files(native) == files
    assert len(history(native)) == 4
    assert content(native)[:3, 0].tolist() == [1, 1, 0]


def test_the_very_messages_that_were_committed_are_never_deleted(native: str) -> None:
    writer, messages = attempt(native)
    writer.commit(list(messages), 5)
    files = chunk_files(native)
    writer.commit(list(messages), 5)
    writer.abort(list(messages), 5)
    assert chunk_files(native) == files
    assert content(native)[0, 0] == 1


def test_two_drivers_with_one_batch_make_one_snapshot(place: str) -> None:
    """Both have looked back before either commits: the second finds the first by its token."""
    one, first = attempt(place)
    two, second = attempt(place, value=2)
    two._look_back = lambda *_: None  # type: ignore[method-assign]
    one.commit(list(first), 5)
    two.commit(list(second), 5)
    assert len(history(place)) == 3
    assert content(place)[0, 0] == 1


def test_a_batch_is_found_after_its_history_was_cut(place: str) -> None:
    for number in range(3):
        writer, messages = attempt(place, batch=MicroBatch("q", number), value=number + 1)
        writer.commit(list(messages), number)
    repository_at(place).expire_snapshots(datetime.now(UTC))
    assert len(history(place)) == 2
    for number in (0, 2):
        writer, messages = attempt(place, batch=MicroBatch("q", number), value=9)
        writer.commit(list(messages), number)
    assert len(history(place)) == 2
    assert content(place)[0, 0] == 3


def test_a_batch_whose_snapshot_was_reset_away_is_written_again(place: str) -> None:
    writer, messages = attempt(place)
    before = history(place)[0].id
    writer.commit(list(messages), 5)
    repository_at(place).reset_branch("main", before)
    writer, messages = attempt(place, value=3)
    writer.commit(list(messages), 5)
    assert content(place)[0, 0] == 3


def test_the_search_is_bounded_and_says_when_it_was_too_short(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer, messages = attempt(place)
    writer.commit(list(messages), 5)
    for number in range(3):
        commit_attribute(place, str(number))
    again, messages = attempt(place, value=2, look_back="2")
    with caplog.at_level(logging.WARNING):
        again.commit(list(messages), 5)
    assert "raise `look_back` to search further" in caplog.text


def test_an_abort_deletes_only_if_a_task_is_missing(native: str) -> None:
    writer, messages = attempt(native)
    files = chunk_files(native)
    writer.abort(list(messages), 5)
    assert chunk_files(native) == files
    writer.abort([messages[0], None], 5)
    assert len(chunk_files(native)) == len(files) // 2
    writer.abort([None, None], 5)


def test_a_batch_without_chunks_makes_no_snapshot(place: str) -> None:
    writer, (message, _) = attempt(place)
    fork = repository_at(place).fork(message.work)
    empty = BatchPart(encode_fragment(fork.fragment("task 0")), message.work, BATCH, "x")
    writer.commit([empty], 5)
    writer.commit([], 6)
    assert len(history(place)) == 2


def test_messages_of_other_work_are_refused(place: str) -> None:
    writer, messages = attempt(place)
    _, others = attempt(place)
    with pytest.raises(FragmentError, match="batch 5"):
        writer.commit([messages[0], others[1]], 5)
    with pytest.raises(FragmentError, match="batch 6"):
        writer.commit(list(messages), 6)


def test_streams_that_cannot_be_are_refused(place: str) -> None:
    source = IcechunkSource({"path": place, "node": "a", "checkpointLocation": "/c"})
    with pytest.raises(InvalidInputError, match="outputMode"):
        source.streamWriter(SCHEMA, True)
    with pytest.raises(InvalidInputError, match='"changes"'):
        source.streamReader(SCHEMA)
    options = {"path": place, "layout": "changes"}
    with pytest.raises(InvalidInputError, match="`tag`"):
        IcechunkSource({**options, "tag": "v1"}).streamReader(SCHEMA)
    with pytest.raises(InvalidInputError, match="`since`"):
        IcechunkSource(options).reader(SCHEMA)
