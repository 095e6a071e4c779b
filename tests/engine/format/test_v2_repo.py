"""The `repo` object as a value: its bytes, its changes, its log, and hostile bytes."""

from __future__ import annotations

import contextlib
import random
import struct
from dataclasses import replace

import pytest
from support import fixtures

from airflow_provider_icechunk.engine.format import envelope
from airflow_provider_icechunk.engine.format.codec import FileType
from airflow_provider_icechunk.engine.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from airflow_provider_icechunk.engine.format.model import Snapshot
from airflow_provider_icechunk.engine.format.v2 import repo as ri
from airflow_provider_icechunk.engine.format.v2 import updates as ru
from airflow_provider_icechunk.engine.format.v2.codec import seal
from airflow_provider_icechunk.engine.format.v2.repo import Feature, is_enabled, setting
from airflow_provider_icechunk.engine.format.v2.repo_codec import decode_repo, encode_repo
from airflow_provider_icechunk.exceptions import FormatError, InvalidInputError, UnsupportedError

FIRST = INITIAL_SNAPSHOT_ID


def ident(number: int) -> SnapshotId:
    return SnapshotId(bytes([number]) * 12)


def record(number: int, parent: SnapshotId | None = FIRST, at: int = 1000) -> ri.SnapshotRecord:
    items = ri.encode_items({"n": number, "nested": {"a": [1, None]}})
    return ri.SnapshotRecord(ident(number), parent, at, f"commit {number}", items)


def started() -> ri.RepoInfo:
    first = Snapshot(FIRST, None, 10, "Repository initialized", {"root": True}, {})
    return ri.initial(first, at=20)


def applied(info: ri.RepoInfo, *changes: ru.Change) -> ri.RepoInfo:
    for number, change in enumerate(changes):
        outcome = ru.apply(change, info)
        assert isinstance(outcome, ru.Applied), (change, outcome)
        info = ru.record(outcome.info, outcome.event, at=100 + number, backup="b", most=1000)
    return info


def refusal(info: ri.RepoInfo, change: ru.Change) -> ru.Reason:
    outcome = ru.apply(change, info)
    assert isinstance(outcome, ru.Refused)
    return outcome.reason


EVERY_EVENT: tuple[ri.Event, ...] = (
    ri.RepoInitialized(),
    ri.RepoMigrated(1, 2),
    ri.ConfigChanged(),
    ri.MetadataChanged(),
    ri.TagCreated("t"),
    ri.TagDeleted("t", FIRST),
    ri.BranchCreated("b"),
    ri.BranchDeleted("b", ident(1)),
    ri.BranchReset("b", ident(2)),
    ri.NewCommit("main", ident(3)),
    ri.CommitAmended("main", ident(3), ident(4)),
    ri.NewDetachedSnapshot(ident(5)),
    ri.GCRan(),
    ri.ExpirationRan(),
    ri.FeatureFlagChanged(3, True),
    ri.FeatureFlagChanged(4, False),
    ri.FeatureFlagChanged(65535, None),
    ri.RepoStatusChanged(ri.Status(ri.Availability.READ_ONLY, 5, "moving")),
    ri.RepoStatusChanged(ri.Status(ri.Availability.ONLINE, 6)),
)


def full() -> ri.RepoInfo:
    snapshots = {r.id: r for r in (record(9, None, 1), record(1, ident(9)), record(5, ident(1)))}
    snapshots[ident(5)] = replace(snapshots[ident(5)], pruned_logs=(ident(7), ident(3)))
    return ri.RepoInfo(
        branches=ri.by_name([("main", ident(5)), ("é", ident(1)), ("z/y", ident(9))]),
        snapshots=dict(sorted(snapshots.items())),
        updates=tuple(
            ri.OperationsEntry(event, 1000 - n, None if n % 3 == 0 else f"repo.{n}")
            for n, event in enumerate(EVERY_EVENT)
        ),
        status=ri.Status(ri.Availability.READ_ONLY, 77, "because"),
        tags=ri.by_name([("t", ident(9)), ("main", ident(5))]),
        deleted_tags=frozenset({"gone", "älter"}),
        metadata=ri.encode_items({"owner": "me", "n": 3}),
        before_updates="repo.older",
        config=b"\0\1\2",
        enabled_flags=(3, 700),
        disabled_flags=(4,),
        extra=b"future",
    )


@pytest.mark.parametrize("info", [started(), full()], ids=["new", "full"])
def test_a_state_comes_back_as_it_was(info):
    assert decode_repo(encode_repo(info), where="repo") == info


def test_metadata_values_are_json_again():
    assert ri.decode_items(record(4).metadata, where="x") == {"n": 4, "nested": {"a": [1, None]}}


@pytest.mark.parametrize("name", fixtures.names("g4-"))
@fixtures.needs_fixtures
def test_official_states_and_their_backups_come_back_as_they_were(name, tmp_path):
    root, expected = fixtures.unpack(name, tmp_path)
    for path in [root / "repo", *root.glob("overwritten/repo*")]:
        info = decode_repo(path.read_bytes(), where=path.name)
        assert not info.unknown
        assert decode_repo(encode_repo(info), where="again") == info
        times = [update.updated_at for update in info.updates]
        assert times == sorted(set(times), reverse=True)
    now = decode_repo((root / "repo").read_bytes(), where="repo")
    assert set(now.branches) == set(expected["branches"])
    assert now.deleted_tags == set(expected["deleted_tags"])


def test_commits_move_the_branch_and_are_listed_below_their_parent():
    info = applied(started(), ru.AddCommit("main", FIRST, record(1, None)))
    assert info.branches["main"] == ident(1)
    assert info.snapshots[ident(1)].parent_id == FIRST
    assert info.updates[0] == ri.OperationsEntry(ri.NewCommit("main", ident(1)), 100)
    late = ru.apply(ru.AddCommit("main", FIRST, record(2)), info)
    assert late == ru.Refused(ru.Reason.MOVED, ident(1))
    assert ru.apply(ru.AddCommit("dev", FIRST, record(2)), info) == ru.Refused(ru.Reason.MOVED)


def test_amending_replaces_the_newest_commit_and_keeps_its_pruned_logs():
    info = applied(started(), ru.AddCommit("main", FIRST, record(1)))
    pruned = replace(info.snapshots[ident(1)], pruned_logs=(ident(8),))
    info = replace(info, snapshots={**info.snapshots, ident(1): pruned})
    info = applied(info, ru.AmendCommit("main", ident(1), record(2, None)))
    assert info.snapshots[ident(2)].parent_id == FIRST
    assert info.snapshots[ident(2)].pruned_logs == (ident(8),)
    assert ident(1) in info.snapshots
    assert info.updates[0].event == ri.CommitAmended("main", ident(1), ident(2))
    assert refusal(started(), ru.AmendCommit("main", FIRST, record(3))) is ru.Reason.PROTECTED


def test_branches_are_created_reset_and_deleted_only_as_they_should():
    info = applied(started(), ru.AddCommit("main", FIRST, record(1)), ru.CreateBranch("d", FIRST))
    assert info.branches["d"] == FIRST
    assert refusal(info, ru.CreateBranch("d", FIRST)) is ru.Reason.EXISTS
    assert refusal(info, ru.CreateBranch("e", ident(9))) is ru.Reason.UNLISTED
    assert refusal(info, ru.ResetBranch("d", ident(1), ident(1))) is ru.Reason.MOVED
    assert refusal(info, ru.ResetBranch("d", ident(9), FIRST)) is ru.Reason.UNLISTED
    info = applied(info, ru.ResetBranch("d", ident(1), FIRST))
    assert info.updates[0].event == ri.BranchReset("d", FIRST)
    info = applied(info, ru.DeleteBranch("d"))
    assert info.updates[0].event == ri.BranchDeleted("d", ident(1))
    assert refusal(info, ru.DeleteBranch("d")) is ru.Reason.NOT_FOUND
    assert refusal(info, ru.DeleteBranch("main")) is ru.Reason.PROTECTED


def test_a_deleted_tag_is_never_free_again():
    info = applied(started(), ru.CreateTag("t", FIRST))
    assert refusal(info, ru.CreateTag("t", FIRST)) is ru.Reason.EXISTS
    assert refusal(info, ru.CreateTag("u", ident(9))) is ru.Reason.UNLISTED
    info = applied(info, ru.DeleteTag("t"))
    assert (dict(info.tags), info.deleted_tags) == ({}, {"t"})
    assert refusal(info, ru.CreateTag("t", FIRST)) is ru.Reason.WAS_DELETED
    assert refusal(info, ru.DeleteTag("t")) is ru.Reason.NOT_FOUND


def test_detached_snapshots_are_listed_once_and_below_a_listed_parent():
    info = applied(started(), ru.AddDetached(record(1)))
    assert ident(1) in info.snapshots
    assert ident(1) not in info.branches.values()
    assert refusal(info, ru.AddDetached(record(1))) is ru.Reason.EXISTS
    assert refusal(info, ru.AddDetached(record(2, ident(9)))) is ru.Reason.UNLISTED


def test_settings_change_and_are_recorded():
    status = ri.Status(ri.Availability.READ_ONLY, 5, "moving")
    info = applied(
        started(),
        ru.SetConfig(b"new", None),
        ru.SetMetadata(lambda items: (*items, *ri.encode_items({"a": 1}))),
        ru.SetStatus(status),
        ru.SetFlag(4, False),
        ru.SetFlag(3, True),
    )
    assert (info.config, info.status) == (b"new", status)
    assert ri.decode_items(info.metadata, where="x") == {"a": 1}
    assert (setting(info, 3), setting(info, 4), setting(info, 5)) == (True, False, None)
    assert not is_enabled(info, Feature.CREATE_TAG)
    assert is_enabled(info, Feature.DELETE_TAG)
    assert setting(applied(info, ru.SetFlag(4, None)), 4) is None
    assert [type(update.event) for update in info.updates[:-1]] == [
        ri.FeatureFlagChanged,
        ri.FeatureFlagChanged,
        ri.RepoStatusChanged,
        ri.MetadataChanged,
        ri.ConfigChanged,
    ]
    assert refusal(info, ru.SetConfig(b"mine", b"other")) is ru.Reason.MOVED


def line(*ages: int) -> ri.RepoInfo:
    """Commits 1, 2, 3... on `main`, flushed at `ages`."""
    info, parent = started(), FIRST
    for number, age in enumerate(ages, 1):
        info = applied(info, ru.AddCommit("main", parent, record(number, None, age)))
        parent = ident(number)
    return info


def test_expiration_keeps_tips_and_remembers_the_logs_between():
    info = applied(line(100, 200, 300, 400), ru.CreateTag("two", ident(2)))
    info = applied(info, ru.Expire(older_than=350))
    assert set(info.snapshots) == {FIRST, ident(2), ident(4)}
    assert info.snapshots[ident(4)].parent_id == FIRST
    assert info.snapshots[ident(4)].pruned_logs == (ident(1), ident(2), ident(3))
    assert info.snapshots[ident(2)].pruned_logs == (ident(1),)
    assert info.updates[0].event == ri.ExpirationRan()
    again = applied(info, ru.Expire(older_than=350))
    assert again.snapshots == info.snapshots
    assert [update.event for update in again.updates[:2]] == [ri.ExpirationRan()] * 2


def test_expiring_twice_keeps_the_logs_in_order():
    info = applied(line(100, 200, 300), ru.Expire(older_than=250))
    info = applied(info, ru.AddCommit("main", ident(3), record(4, None, 400)))
    info = applied(info, ru.Expire(older_than=350))
    assert info.snapshots[ident(4)].pruned_logs == (ident(1), ident(2), ident(3))


def test_expiration_removes_old_branches_and_tags_only_when_asked():
    info = applied(
        line(100, 200, 300),
        ru.CreateTag("old", ident(1)),
        ru.CreateTag("new", ident(3)),
        ru.CreateBranch("stale", ident(2)),
    )
    kept = applied(info, ru.Expire(older_than=1000))
    assert (kept.tags, kept.branches) == (info.tags, info.branches)
    gone = applied(info, ru.Expire(older_than=250, delete_tags=True, delete_branches=True))
    assert (set(gone.tags), gone.deleted_tags) == ({"new"}, {"old"})
    assert set(gone.branches) == {"main"}
    assert set(gone.snapshots) == {FIRST, ident(3)}


def test_collection_closes_the_gap_and_refuses_what_is_in_use():
    info = applied(line(100, 200, 300), ru.AddDetached(record(7, ident(2))))
    after = applied(info, ru.Collect(frozenset({ident(2)})))
    assert after.snapshots[ident(3)].parent_id == ident(1)
    assert after.snapshots[ident(3)].pruned_logs == (ident(2),)
    assert after.snapshots[ident(7)].parent_id == ident(1)
    assert after.updates[0].event == ri.GCRan()
    assert refusal(info, ru.Collect(frozenset({ident(3)}))) is ru.Reason.IN_USE
    assert applied(info, ru.Collect(frozenset({ident(99)}))).snapshots == info.snapshots


def test_the_log_grows_strictly_in_time_and_names_its_backups():
    info = ru.record(started(), ri.ConfigChanged(), at=5, backup="one", most=10)
    assert [u.updated_at for u in info.updates] == [21, 20]
    assert [u.backup for u in info.updates] == [None, "one"]


def test_a_full_log_continues_in_the_backup_of_its_first_dropped_entry():
    info = started()
    for number in range(5):
        info = ru.record(info, ri.ConfigChanged(), at=100 + number, backup=f"b{number}", most=3)
    assert len(info.updates) == 3
    assert info.before_updates == "b2"
    assert [u.backup for u in info.updates] == [None, "b4", "b3"]


def test_entries_that_were_never_backed_up_stay():
    made_up = tuple(ri.OperationsEntry(ri.ConfigChanged(), 10 - n) for n in range(4))
    info = replace(started(), updates=made_up)
    info = ru.record(info, ri.ConfigChanged(), at=100, backup="b", most=2)
    assert len(info.updates) == 5
    assert info.before_updates is None


def payload(info: ri.RepoInfo) -> bytearray:
    opened = envelope.unpack(
        encode_repo(info), where="x", expected=FileType.REPO_INFO, limit=1 << 20
    )
    return bytearray(opened.payload)


def test_an_unknown_update_can_be_read_but_not_written_over():
    info = replace(started(), updates=(ri.OperationsEntry(ri.GCRan(), 5),))
    data = payload(info)
    place = data.index(bytes([13]), data.rindex(struct.pack("<Q", 5)))
    data[place] = 99
    found = decode_repo(seal(FileType.REPO_INFO, data, 3), where="repo")
    assert found.updates[0].event == ri.Unknown(99)
    assert found.branches == info.branches
    with pytest.raises(UnsupportedError, match="update of type 99"):
        encode_repo(found)
    with pytest.raises(InvalidInputError, match="unknown type"):
        encode_repo(replace(found, unknown=()))


def test_another_version_of_the_format_is_refused_by_name():
    data = payload(started())
    root = struct.unpack_from("<I", data, 0)[0]
    assert data[root + 56] == 2
    data[root + 56] = 3
    with pytest.raises(UnsupportedError, match="version 3"):
        decode_repo(seal(FileType.REPO_INFO, data, 3), where="repo")


@pytest.mark.parametrize("seed", range(8))
def test_damaged_states_raise_nothing_but_refusals(seed):
    dice = random.Random(seed)
    sound = payload(full())
    for _ in range(400):
        data = bytearray(sound)
        for _ in range(dice.randint(1, 3)):
            data[dice.randrange(len(data))] = dice.choice((0, 1, 127, 255, dice.randrange(256)))
        if dice.random() < 0.2:
            data = data[: dice.randrange(len(data))]
        with contextlib.suppress(FormatError, UnsupportedError):
            info = decode_repo(seal(FileType.REPO_INFO, data, 1), where="repo")
            ri.decode_items(info.metadata, where="repo")
            for tip in info.branches.values():
                ru.lineage(info, tip)


def test_a_history_that_goes_in_a_circle_is_damage():
    info = line(100, 200)
    bent = {**info.snapshots, ident(1): replace(info.snapshots[ident(1)], parent_id=ident(2))}
    again = decode_repo(encode_repo(replace(info, snapshots=bent)), where="repo")
    with pytest.raises(FormatError, match="cycle"):
        ru.lineage(again, ident(2))
