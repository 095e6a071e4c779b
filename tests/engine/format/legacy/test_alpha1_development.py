"""Files of September 2024, built by hand from what is known of them, read as documents."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest
from support import september
from support.early import MANIFEST, PARENT, SNAPSHOT, number
from support.september import CHUNK, ROOT, ZARR, entry, manifest, snapshot

from airflow_provider_icechunk.engine.format.chunk_refs import Inline, Native, Virtual
from airflow_provider_icechunk.engine.format.ids import encode_base32
from airflow_provider_icechunk.engine.format.legacy.alpha1.codec import Alpha1Codec
from airflow_provider_icechunk.engine.objects.chunk_reader import Wanted
from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.exceptions import FormatError, UnsupportedError

CODEC = Alpha1Codec()


def test_a_snapshot_is_an_array_of_seven() -> None:
    found = CODEC.decode_snapshot(snapshot(), SNAPSHOT, where="s/x.msgpack")
    assert (found.parent_id, found.message, found.metadata) == (PARENT, "m", {"p": 1})
    assert found.flushed_at == 1_726_740_000_500_000
    assert json.loads(found.nodes["/"].user_data)["attributes"] == {"title": "old"}
    array = found.nodes["/a"]
    assert array.id == number(2)
    fields = json.loads(array.user_data)
    assert (fields["shape"], fields["fill_value"]) == ([4, 2], "NaN")
    assert fields["codecs"][1] == {"name": "crc32c"}
    assert array.array is not None
    assert array.array.manifests[0].extents is None


@pytest.mark.parametrize("newest_first", [True, False])
def test_the_parent_is_the_youngest_ancestor_in_either_order(newest_first: bool) -> None:
    history = [
        entry(PARENT, "2024-09-19T09:00:00Z", "second"),
        entry(ROOT, "2024-09-19T08:00:00Z", "first"),
    ]
    data = snapshot(history=history if newest_first else history[::-1])
    assert CODEC.decode_snapshot(data, SNAPSHOT, where="s/x").parent_id == PARENT


def test_raw_bits_are_read() -> None:
    zarr = [*ZARR[:1], {"rawbits": 16}, *ZARR[2:4], {"RawBits": [1, 2]}, *ZARR[5:]]
    found = CODEC.decode_snapshot(snapshot(zarr=zarr), SNAPSHOT, where="s/x")
    fields = json.loads(found.nodes["/a"].user_data)
    assert (fields["data_type"], fields["fill_value"]) == ("r16", "AQI=")


@pytest.mark.parametrize("location", ["s3://bucket/key", {"Absolute": "s3://bucket/key"}])
def test_a_manifest_is_a_map_by_node_and_coordinates(location: Any) -> None:
    refs = CODEC.decode_manifest(manifest(location), MANIFEST, where="m/x").of(number(2), 2)
    assert refs.find((0, 0)) == Inline(b"\x00" * 32)
    assert refs.find((1, 0)) == Native(CHUNK, 3, 32)
    assert refs.find((1, 1)) == Virtual("s3://bucket/key", 5, 6)


def test_only_a_first_snapshot_may_have_another_id_inside() -> None:
    found = CODEC.decode_snapshot(snapshot(ROOT, history=[]), SNAPSHOT, where="s/x")
    assert (found.id, found.parent_id) == (SNAPSHOT, None)
    with pytest.raises(FormatError, match="says it is"):
        CODEC.decode_snapshot(snapshot(ROOT), SNAPSHOT, where="s/x")


def test_snapshots_without_identity_are_named_as_what_they_are() -> None:
    with pytest.raises(UnsupportedError, match="18 September 2024"):
        CODEC.decode_snapshot(msgpack.packb([{}]), SNAPSHOT, where="s/x")


@pytest.mark.parametrize("cut", range(0, 120, 7))
def test_cut_files_are_format_errors(cut: int) -> None:
    with pytest.raises(FormatError):
        CODEC.decode_snapshot(snapshot()[: -1 - cut], SNAPSHOT, where="s/x")
    with pytest.raises(FormatError):
        CODEC.decode_manifest(manifest()[: -1 - cut], MANIFEST, where="m/x")


@pytest.fixture
def repository() -> MemoryStorage:
    return september.repository()


def test_a_repository_of_that_time_can_be_read(repository: MemoryStorage) -> None:
    repo = Repository.open(repository)
    assert repo.spec_version == "alpha1"
    assert repo.list_branches() == {"main"}
    assert repo.list_tags() == {"v1"}
    assert repo.lookup_tag("v1") == repo.lookup_branch("main") == encode_base32(SNAPSHOT)
    assert [info.message for info in repo.ancestry(branch="main")] == ["m", "m"]
    tree = repo.readonly_session("main").tree
    native = tree.chunk("/a", (1, 0))
    assert native is not None
    assert tree.read([Wanted(native, 0, 32)]) == [bytes(range(32))]


def test_a_repository_of_that_time_cannot_be_written(repository: MemoryStorage) -> None:
    repo = Repository.open(repository)
    before = dict(repository.objects)
    for act in (
        lambda: repo.writable_session("main"),
        lambda: repo.create_branch("b", encode_base32(SNAPSHOT)),
        lambda: repo.create_tag("t", encode_base32(SNAPSHOT)),
        lambda: repo.reset_branch("main", encode_base32(SNAPSHOT)),
        repo.save_config,
        lambda: repo.expire_snapshots(repo.storage.now()),
        lambda: repo.garbage_collect(repo.storage.now()),
    ):
        with pytest.raises(UnsupportedError, match="September 2024"):
            act()
    assert {key for key in repository.objects if key.startswith("r/")} == {
        key for key in before if key.startswith("r/")
    }
