"""Verification finds every kind of damage by its code, and nothing in a sound repository."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from support.maintenance import (
    GENERATIONS,
    Clock,
    clone,
    keys,
    layout_of,
    lived_in,
    manifest_key,
    snapshot_key,
)

from airflow_provider_icechunk.engine.format.chunk_refs import ChunkRefs, Native
from airflow_provider_icechunk.engine.format.ids import ManifestId, SnapshotId, decode_base32
from airflow_provider_icechunk.engine.format.model import Manifest, ManifestFile, Snapshot
from airflow_provider_icechunk.engine.maintenance.findings import Code, Severity, VerifyReport
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Anything
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage


def codes(report: VerifyReport, severity: Severity = Severity.ERROR) -> set[Code]:
    return {finding.code for finding in report.findings if finding.severity is severity}


def head(storage: MemoryStorage) -> Snapshot:
    repo = Repository.open(storage)
    return repo._core.objects.snapshot(SnapshotId(decode_base32(repo.lookup_branch("main"))))


def store(storage: MemoryStorage, snapshot: Snapshot) -> None:
    Repository.open(storage)._core.objects.rewrite_snapshot(snapshot)


def store_manifest(storage: MemoryStorage, manifest: Manifest) -> ManifestFile:
    (file,) = Repository.open(storage)._core.objects.store_manifests([manifest])
    return file


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_sound_repository_has_only_news_about_garbage(generation: str) -> None:
    storage, _ = lived_in(generation)
    report = Repository.open(storage).verify()
    assert report.ok
    assert {finding.code for finding in report.findings} == {Code.UNREACHABLE}
    assert report.checked == {
        "refs": 3,
        "snapshots": 6,
        "manifests": 6,
        "references": 22,
        "chunk_files": 12,
    }
    assert json.loads(json.dumps(report.as_dict()))["ok"] is True


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_chunk_file_that_is_gone_or_short_is_found(generation: str) -> None:
    clock = Clock()
    storage, _ = lived_in(generation, clock)
    clock.wait(days=1)
    Repository.open(storage).garbage_collect(clock.now)
    chunks = sorted(keys(storage, layout_of(storage).chunks))
    assert len(chunks) == 8
    for key in chunks:
        lost = clone(storage, clock)
        lost.delete([key])
        report = Repository.open(lost).verify()
        assert codes(report) == {Code.CHUNK_MISSING}
        assert key in report.errors[0].what
        short = clone(storage, clock)
        short.put(key, storage.objects[key].data[:-1], expect=Anything())
        assert codes(Repository.open(short).verify()) == {Code.CHUNK_SHORT}


@pytest.mark.parametrize("generation", GENERATIONS)
def test_lost_and_damaged_metadata_is_found_and_the_rest_still_checked(generation: str) -> None:
    clock = Clock()
    storage, ids = lived_in(generation, clock)
    cases = [
        (snapshot_key(storage, ids["fourth"]), Code.SNAPSHOT_UNREADABLE),
        (snapshot_key(storage, ids["first"]), Code.SNAPSHOT_UNREADABLE),
        *(
            (manifest_key(storage, info.id), Code.MANIFEST_UNREADABLE)
            for info in Repository.open(storage).lookup_snapshot(ids["fourth"]).manifests
        ),
    ]
    for key, code in cases:
        for spoiled in (None, b"", b"nonsense", storage.objects[key].data[:-5]):
            broken = clone(storage, clock)
            if spoiled is None:
                broken.delete([key])
            else:
                broken.put(key, spoiled, expect=Anything())
            report = Repository.open(broken).verify()
            assert code in codes(report), (key, spoiled)
            assert key in {finding.where for finding in report.errors}
            assert report.checked["snapshots"] >= 1


def test_a_reference_that_cannot_be_read_is_found() -> None:
    storage, _ = lived_in("1")
    storage.put("refs/tag.v1/ref.json", b"[]", expect=Anything())
    report = Repository.open(storage).verify()
    assert codes(report) == {Code.REF_UNREADABLE}
    assert report.checked["refs"] == 2


def test_a_missing_log_is_a_warning() -> None:
    storage, ids = lived_in("1")
    storage.delete([f"transactions/{ids['third']}"])
    report = Repository.open(storage).verify()
    assert report.ok
    assert codes(report, Severity.WARNING) == {Code.LOG_MISSING}


def test_a_circle_is_found_and_does_not_hang() -> None:
    storage, ids = lived_in("1")
    repo = Repository.open(storage)
    second = repo._core.objects.snapshot(SnapshotId(decode_base32(ids["second"])))
    store(storage, replace(second, parent_id=SnapshotId(decode_base32(ids["fourth"]))))
    report = Repository.open(storage).verify()
    assert Code.HISTORY_CIRCLE in codes(report)


def test_times_that_go_backwards_are_a_warning() -> None:
    storage, _ = lived_in("1")
    tip = head(storage)
    store(storage, replace(tip, flushed_at=1))
    report = Repository.open(storage).verify()
    assert codes(report, Severity.WARNING) == {Code.TIME_BACKWARDS}


@pytest.mark.parametrize(
    ("change", "code", "severity"),
    [
        ({"size_bytes": 10}, Code.MANIFEST_SIZE, Severity.ERROR),
        ({"size_bytes": 10_000}, Code.MANIFEST_SIZE, Severity.WARNING),
        ({"num_chunk_refs": 99}, Code.MANIFEST_COUNT, Severity.WARNING),
    ],
)
def test_wrong_facts_about_a_manifest_are_found(
    change: dict[str, int], code: Code, severity: Severity
) -> None:
    clock = Clock()
    storage, _ = lived_in("1", clock)
    repo = Repository.open(storage, world=clock.world())
    repo.rewrite_manifests("one namer each", branch="main")
    tip = head(storage)
    files = {one: replace(file, **change) for one, file in tip.manifest_files.items()}
    store(storage, replace(tip, manifest_files=files))
    assert codes(Repository.open(storage).verify(), severity) == {code}


def test_a_list_of_manifests_that_is_not_the_used_set_is_found() -> None:
    storage, _ = lived_in("1")
    tip = head(storage)
    extra = store_manifest(storage, Manifest(ManifestId(b"e" * 12), {}))
    store(storage, replace(tip, manifest_files={**tip.manifest_files, extra.id: extra}))
    report = Repository.open(storage).verify()
    assert codes(report, Severity.WARNING) == {Code.MANIFEST_LIST}


def test_boxes_that_are_too_small_overlap_or_leave_the_grid_are_found() -> None:
    storage, _ = lived_in("1")
    tip = head(storage)
    node = tip.nodes["/a"]
    assert node.array is not None
    (ref,) = node.array.manifests

    def with_boxes(*boxes: tuple[int, int]) -> VerifyReport:
        refs = tuple(replace(ref, extents=(box,)) for box in boxes)
        array = replace(node.array, manifests=refs)
        store(storage, replace(tip, nodes={**tip.nodes, "/a": replace(node, array=array)}))
        return Repository.open(storage).verify()

    assert codes(with_boxes((0, 2))) == {Code.EXTENTS_TOO_SMALL}
    assert codes(with_boxes((0, 4), (3, 8)), Severity.WARNING) == {Code.EXTENTS_OVERLAP}
    assert codes(with_boxes((0, 17)), Severity.WARNING) == {Code.OUTSIDE_GRID}
    assert codes(with_boxes((0, 16)), Severity.WARNING) == set()


def test_a_reference_whose_end_overflows_is_short_not_wrapped() -> None:
    storage, _ = lived_in("1")
    tip = head(storage)
    node = tip.nodes["/a"]
    assert node.array is not None
    payload = next(
        item
        for item in (
            Repository.open(storage)._core.objects.manifest(node.array.manifests[0].id)
        ).arrays[node.id][0]
    )
    assert isinstance(payload, Native)
    far = Native(payload.chunk_id, (1 << 62) - 1, payload.length)
    refs = ChunkRefs.from_items(1, [((0,), far)])
    manifest = Manifest(ManifestId(b"f" * 12), {node.id: (refs,)})
    file = store_manifest(storage, manifest)
    array = replace(
        node.array, manifests=(replace(node.array.manifests[0], id=file.id, extents=((0, 1),)),)
    )
    used = {one: f for one, f in tip.manifest_files.items() if one != node.array.manifests[0].id}
    store(
        storage,
        replace(
            tip,
            nodes={**tip.nodes, "/a": replace(node, array=array)},
            manifest_files=dict(sorted({**used, file.id: file}.items())),
        ),
    )
    assert codes(Repository.open(storage).verify()) == {Code.CHUNK_SHORT}
    assert np.uint64(far.offset) + np.uint64(far.length) > 0


@pytest.mark.parametrize("generation", ["1", "2"])
def test_two_commits_with_one_token_are_a_warning(generation: str) -> None:
    repo = Repository.create(MemoryStorage(), spec_version=generation)
    for _ in range(2):
        # From a base of its own, an attempt cannot know of the other one.
        session = repo.writable_session("main")
        session.commit("task", token="dag/run/task", allow_empty=True)
    report = repo.verify()
    (finding,) = [one for one in report.findings if one.code is Code.COMMIT_TWICE]
    assert finding.severity is Severity.WARNING
    assert "dag/run/task" in finding.what
    assert finding.where == "branch main"
    assert report.ok
