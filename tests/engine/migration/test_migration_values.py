"""The decisions of a migration without a repository: ids, logs, records, which keys are old."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.early import array_node, group_node, snapshot_of

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Native
from airflow_provider_icechunk.engine.format.fence import behind, fence
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.format.ids import ChunkId, ManifestId, NodeId, SnapshotId
from airflow_provider_icechunk.engine.format.legacy.alpha1 import layout as alpha1
from airflow_provider_icechunk.engine.format.legacy.draft.state import decode_state
from airflow_provider_icechunk.engine.format.model import (
    Manifest,
    ManifestFile,
    ManifestRef,
    TransactionLog,
)
from airflow_provider_icechunk.engine.format.v1 import codec
from airflow_provider_icechunk.engine.format.v2 import repo as ev
from airflow_provider_icechunk.engine.migration.convert import (
    Converted,
    chosen,
    convert_log,
    convert_snapshot,
    narrowed,
)
from airflow_provider_icechunk.engine.migration.identities import (
    fold,
    fold_rows,
    manifest_id,
    snapshot_ids,
)
from airflow_provider_icechunk.engine.migration.ref_sets import (
    Record,
    References,
    decode_record,
    differences,
    encode_record,
    news,
)
from airflow_provider_icechunk.engine.migration.retire import is_old
from airflow_provider_icechunk.engine.migration.survey import SnapshotFacts, parents_first
from airflow_provider_icechunk.engine.migration.switch import migrated_state, reconstructed_log
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import (
    FormatError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)

NEWER = SnapshotId(bytes(range(100, 112)))


def identity(number: int, size: int = 12) -> SnapshotId:
    return SnapshotId(number.to_bytes(size, "big"))


@given(st.binary(min_size=12, max_size=12))
def test_an_id_of_12_bytes_stays(data):
    assert fold(data) == data


@given(st.sets(st.binary(min_size=16, max_size=16), max_size=20))
def test_ids_of_16_bytes_are_folded_alike_one_by_one_and_in_columns(ids):
    rows = np.frombuffer(b"".join(sorted(ids)), np.uint8).reshape(-1, 16)
    assert [fold(one) for one in sorted(ids)] == [row.tobytes() for row in fold_rows(rows)]
    assert all(len(fold(one)) == 12 for one in ids)


def test_two_snapshots_never_become_one():
    one = bytes(12) + b"\1\0\0\0"
    other = b"\1" + bytes(15)
    assert fold(one) == fold(other)
    with pytest.raises(UnsupportedError, match="collide"):
        snapshot_ids([SnapshotId(one), SnapshotId(other)])


def test_a_manifest_gets_an_id_of_its_own_that_never_changes():
    old = ManifestId(bytes(range(12)))
    assert manifest_id(old).hex() == "3fe509da5b31b820f60753ad"
    assert manifest_id(old) != old
    assert manifest_id(old, [(b"n" * 8, 1)]) not in (
        manifest_id(old),
        manifest_id(old, [(b"n" * 8, 2)]),
    )


# --- history -------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> tuple[References, dict[SnapshotId, SnapshotFacts]]:
    """A tree of snapshots with times in any order, and names for some of them."""
    count = draw(st.integers(1, 8))
    facts: dict[SnapshotId, SnapshotFacts] = {}
    for number in range(count):
        parent = None if number == 0 else identity(draw(st.integers(0, number - 1)))
        time = draw(st.integers(10**6, 10**6 + 5))
        facts[identity(number)] = SnapshotFacts(
            identity(number), parent, time, f"m{number}", {"n": number}
        )
    some = st.sampled_from(list(facts))
    names = st.text("abc", min_size=1, max_size=3)
    branches = draw(st.dictionaries(names, some, max_size=3)) | {"main": draw(some)}
    tags = draw(st.dictionaries(names, some, max_size=3))
    buried = draw(st.dictionaries(names, st.one_of(st.none(), some), max_size=2))
    references = References(dict(sorted(branches.items())), tags, buried)
    return references, parents_first(references.tips(), facts)


@given(histories())
@settings(max_examples=50)
def test_the_reconstructed_log_tells_every_commit_and_reference_once_and_in_order(made):
    references, history = made
    state = migrated_state(references, history, config=None, at=0)
    times = [update.updated_at for update in state.updates]
    assert all(newer > older for newer, older in pairwise(times))
    assert all(update.backup is None for update in state.updates)
    told = [update.event for update in reconstructed_log(references, history)]
    commits = [event.new_snap_id for event in told if isinstance(event, ev.NewCommit)]
    roots = {facts.id for facts in history.values() if facts.parent is None}
    assert len(commits) == len(set(commits))
    assert set(commits) | roots >= set(_line(references.branches["main"], history))
    created = {event.name for event in told if isinstance(event, ev.BranchCreated)}
    assert created == references.branches.keys() - {"main"}
    assert isinstance(state.updates[0].event, ev.RepoMigrated)
    assert state.snapshots.keys() == history.keys()


def _line(tip: SnapshotId, history: dict[SnapshotId, SnapshotFacts]) -> list[SnapshotId]:
    line, current = [], tip
    while current is not None:
        line.append(current)
        current = history[current].parent
    return line


def test_a_history_that_goes_in_a_circle_is_refused():
    one, two = identity(1), identity(2)
    facts = {one: SnapshotFacts(one, two, 0, "", {}), two: SnapshotFacts(two, one, 0, "", {})}
    with pytest.raises(FormatError, match="cycle"):
        parents_first([one], facts)


# --- references ----------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was():
    for source, size in ((Generation.DRAFT, 16), (Generation.ALPHA1, 16), (Generation.V1, 12)):
        one = SnapshotId(bytes(range(size)))
        references = References({"main": one}, {"tag": one}, {"gone": None, "known": one})
        record = Record(source, Generation.V2, references)
        assert decode_record(encode_record(record), where="record") == record


@given(st.binary(max_size=60))
@settings(max_examples=50)
def test_a_damaged_record_is_a_format_error(data):
    with pytest.raises(FormatError):
        decode_record(data, where="record")


@pytest.mark.parametrize(
    "document",
    [
        b'{"from":"3","to":"2","branches":{},"tags":{},"deleted_tags":{}}',
        b'{"from":"1","to":"2","branches":{"main":"x"},"tags":{},"deleted_tags":{}}',
        b'{"from":"1","to":"2","branches":{"main":3},"tags":{},"deleted_tags":{}}',
        b'{"from":"1","to":"2","branches":[],"tags":{},"deleted_tags":{}}',
    ],
)
def test_a_wrong_record_is_a_format_error(document):
    with pytest.raises(FormatError, match="record"):
        decode_record(document, where="record")


def test_differences_name_every_kind_of_change():
    a, b = identity(1), identity(2)
    before = References({"main": a, "gone": a}, {"t": a}, {})
    after = References({"main": b, "new": b}, {"u": b}, {"t": a})
    found = differences(before, after)
    assert found.moved == {"main": (a, b)}
    assert (found.created, found.deleted) == ({"new": b}, {"gone": a})
    assert (found.tagged, found.untagged) == ({"u": b}, {"t"})


def test_what_the_new_repository_has_as_well_is_no_news():
    a, b = identity(1), identity(2)
    before = References({"main": a}, {"t": a}, {})
    shared = References({"main": a}, {"u": b}, {"t": a})
    assert news(shared, before, {"u": b}) == before
    assert news(shared, before, {"u": a}) == References({"main": a}, {"t": a, "u": b}, {})
    assert news(shared, before, {"t": a, "u": b}) == References({"main": a}, {}, {"t": a})


# --- old keys ------------------------------------------------------------------------------------

EARLY_KEYS = [
    "state.json",
    "r/main/ZZZZZZZW.json",
    "r/v1.json",
    "r/branch:main/ZZZZZZZZZZZZY.json",
    "s/00000000000000000000000000.json",
    "m/00000000000000000000000000.msgpack",
    "c/00000000000000000000000000",
    "s/0123456789abcdef0123456789abcdef.parquet",
    "c/0123456789abcdef0123456789abcdef",
    "refs/branch.main/ZZZZZZZW.json",
    "refs/branch:main/ZZZZZZZW.json",
    "refs/tag:v 1/ref.json",
    "attributes/00000000000000000000",
]
FIRST_KEYS = [
    "config.yaml",
    "refs/branch.main/ref.json",
    "refs/tag.v 1/ref.json",
    "refs/tag.v 1/ref.json.deleted",
]
OTHER_KEYS = [
    "repo",
    "chunks/00000000000000000000",
    "snapshots/00000000000000000000",
    "manifests/00000000000000000000",
    "transactions/00000000000000000000",
    "overwritten/repo.1.2",
    "migrations/from-1.json",
    "jobs/abc/fragment-0",
    "s/readme.txt",
    "attributes/notes",
    "c/notes",
    "r/readme",
    "refs/readme",
    "state.json.bak",
]


def test_only_keys_of_older_generations_are_old():
    for key in EARLY_KEYS:
        assert is_old(key, Generation.V1), key
        assert is_old(key, Generation.V2), key
    for key in FIRST_KEYS:
        assert not is_old(key, Generation.V1), key
        assert is_old(key, Generation.V2), key
    for key in OTHER_KEYS:
        assert not is_old(key, Generation.V1), key
        assert not is_old(key, Generation.V2), key


# --- snapshots and manifests ---------------------------------------------------------------------

NODE = NodeId(bytes(8))


def refs(ndim: int, size: int = 12) -> ChunkRefs:
    payload = Native(ChunkId(bytes(range(size))), 5, 7)
    return ChunkRefs.from_items(ndim, [((1,) * ndim, payload)])


def test_of_tables_that_old_software_mixed_the_right_one_is_taken():
    manifest = Manifest(ManifestId(bytes(12)), {NODE: (refs(1), refs(2))})
    one, two = (chosen(manifest, ((NODE, ndim),)) for ndim in (1, 2))
    assert [len(part.arrays[NODE]) for part in (one, two)] == [1, 1]
    assert (one.arrays[NODE][0].ndim, two.arrays[NODE][0].ndim) == (1, 2)
    assert len({one.id, two.id, chosen(manifest, ()).id, manifest.id}) == 4
    assert chosen(manifest, ((NODE, 3),)).arrays == {}


def test_chunk_ids_become_shorter_and_the_rest_stays():
    wide = Manifest(ManifestId(bytes(12)), {NODE: (refs(2, 16),)})
    (table,) = narrowed(wide).arrays[NODE]
    assert table.find((1, 1)) == Native(ChunkId(fold(bytes(range(16)))), 5, 7)


def test_a_manifest_that_holds_nothing_of_an_array_is_not_named():
    node = array_node()
    empty = Converted(ManifestFile(ManifestId(bytes(12)), 1, 1), {})
    foreign = replace(empty, boxes={node.id: ((0, 1),)})
    for became in (empty, foreign):
        found = convert_snapshot(snapshot_of(node), NEWER, None, lambda *_, b=became: b)
        assert found.nodes[node.path].array.manifests == ()
        assert found.manifest_files == {}


def test_boxes_that_lie_over_each_other_are_refused_where_the_old_software_stated_none():
    node = array_node()
    refs = (ManifestRef(ManifestId(bytes(16)), None), ManifestRef(ManifestId(b"x" * 16), None))
    twice = replace(node, array=replace(node.array, manifests=refs))
    became = Converted(ManifestFile(ManifestId(bytes(12)), 1, 1), {node.id: ((0, 1), (0, 1))})
    with pytest.raises(UnsupportedError, match="two manifests"):
        convert_snapshot(snapshot_of(twice), NEWER, None, lambda *_: became)


def test_a_log_says_which_nodes_are_groups():
    group, node = group_node("/group", 3), array_node()
    both = frozenset({group.id, node.id})
    log = TransactionLog(SnapshotId(bytes(16)), updated_groups=both, updated_arrays=both)
    found = convert_log(log, snapshot_of(group, node, id=NEWER))
    assert (found.id, found.updated_groups, found.updated_arrays) == (
        NEWER, {group.id}, {node.id},
    )  # fmt: skip


def test_what_only_newer_generations_hold_is_refused_by_name():
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[10], [7]]}}
    node = array_node(chunk_grid=grid)
    bare = replace(node, array=replace(node.array, manifests=()))
    with pytest.raises(UnsupportedError, match="/group/array cannot be migrated"):
        convert_snapshot(snapshot_of(bare), NEWER, None, lambda *_: pytest.fail("no manifests"))


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["0", "3", "alpha", "draft", "", 7])
def test_other_targets_are_refused(to):
    storage = MemoryStorage()
    icechunk.Repository.create(storage)
    with pytest.raises(InvalidInputError, match="choose 1 or 2"):
        icechunk.migrate(storage, to)


def test_there_is_no_way_back():
    storage = MemoryStorage()
    repo = icechunk.Repository.create(storage, spec_version=2)
    with pytest.raises(UnsupportedError, match="cannot be migrated back"):
        icechunk.migrate(repo, 1)


def test_where_there_is_no_repository_nothing_is_migrated():
    storage = MemoryStorage()
    with pytest.raises(NotFoundError):
        icechunk.migrate(storage, 2)
    assert not storage.objects


def test_a_repository_can_be_given_as_well():
    storage = MemoryStorage()
    repo = icechunk.Repository.create(storage, spec_version="alpha")
    result = icechunk.migrate(repo, 2)
    assert result.as_dict()["from"] == "alpha"
    assert icechunk.Repository.open(storage).spec_version == "2"


# --- fences --------------------------------------------------------------------------------------


@given(st.binary(max_size=200))
@settings(max_examples=50)
def test_behind_a_fence_is_what_was_there(data):
    put_up = fence(data, Generation.V2)
    assert behind(put_up) == data
    assert behind(fence(put_up, Generation.V2)) == put_up
    assert behind(data) is None


@given(st.binary(max_size=40))
@settings(max_examples=50)
def test_what_only_begins_like_a_fence_is_none(data):
    assert behind(b'{"migrated_to":"' + data) is None


def test_no_old_reader_follows_a_fence():
    for document, read in (
        (codec.encode_ref(identity(1)), partial(codec.decode_ref, where="here")),
        (alpha1.encode_ref(identity(1, 16), 5), partial(alpha1.decode_ref, where="here")),
        (b'{"id":"x","generation":1,"snapshots":[]}', decode_state),
    ):
        read(document)
        with pytest.raises(FormatError):
            read(fence(document, Generation.V2))
