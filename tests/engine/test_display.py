"""Values show themselves as text, code and in notebooks, without secrets or foreign markup."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine.display import as_html

CONTAINER = icechunk.VirtualChunkContainer(
    "s3://data/", icechunk.ObjectStoreConfig.S3(icechunk.S3Options(region="eu-west-1")), name="era"
)


@pytest.mark.parametrize(
    "value",
    [
        icechunk.CachingConfig(num_chunk_refs=3),
        icechunk.S3Options(endpoint_url='http://a"b\\c', allow_http=True),
        icechunk.StorageSettings(retries=icechunk.StorageRetriesSettings(max_tries=5)),
        icechunk.ObjectStoreConfig.LocalFileSystem("/tmp/x"),
        CONTAINER,
        icechunk.RepositoryConfig(virtual_chunk_containers={"s3://data/": CONTAINER}),
        icechunk.ManifestSplittingConfig.from_dict(
            {
                icechunk.ManifestSplitCondition.path_matches("a.*"): {
                    icechunk.ManifestSplitDimCondition.Axis(1): 4,
                    icechunk.ManifestSplitDimCondition.Any(): 8,
                }
            }
        ),
        icechunk.ManifestPreloadConfig(
            preload_if=icechunk.ManifestPreloadCondition.name_matches("t")
            & icechunk.ManifestPreloadCondition.num_refs(None, 9)
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_code_of_a_setting_makes_an_equal_one(value: object) -> None:
    assert eval(repr(value), {"icechunk": icechunk}) == value


def test_text_tells_what_is_in_effect_where_nothing_was_chosen() -> None:
    shown = str(icechunk.RepositoryConfig(inline_chunk_threshold_bytes=7))
    assert "inline_chunk_threshold_bytes: 7\n" in shown
    assert "num_chunk_refs: 15000000 (default)" in shown
    assert "max_tries: 100" in shown


def test_what_others_wrote_is_no_markup_in_a_notebook() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    info = icechunk.SnapshotInfo("ID", None, now, "<script>alert(1)</script>", {"<b>": "<i>"}, [])
    shown = as_html(info)
    assert "<script>" not in shown
    assert "<i>" not in shown
    assert "&lt;script&gt;" in shown


def test_a_repository_and_its_parts_show_where_they_stand(tmp_path: object) -> None:
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)))
    session = repository.writable_session("main")
    assert repr(repository).startswith(
        "<icechunk.Repository (v1)>\nstorage:\n    <icechunk.Storage>"
    )
    assert f"path: {tmp_path}" in repr(repository)
    assert "branch: main" in repr(session)
    assert "branch: main" in repr(session.store)
    assert "branch" not in repr(repository.readonly_session("main"))
    assert '<div class="icechunk-repr">' in repository._repr_html_()


def test_keys_are_not_shown() -> None:
    keys = icechunk.S3StaticCredentials("AKIAIOSFODNN7", "hunter2", "token-x")
    assert "hunter2" not in repr(keys)
    assert "token-x" not in repr(keys)
    assert "FODNN7" not in repr(keys)


def test_a_difference_is_a_tree_with_counts() -> None:
    import numpy as np

    diff = icechunk.Diff(
        new_arrays={"/a/b"},
        deleted_groups={"/c"},
        chunk_columns={"/a/b": np.zeros((3, 1), np.uint32)},
        moved_nodes=[("/x", "/y")],
    )
    assert diff.shown_facts() == {
        "/a/b": "array created, 3 chunks written",
        "/c": "group deleted",
        "/y": "moved from /x",
    }
    assert "Arrays created" in repr(diff)
    shown = diff._repr_html_()
    inside = shown.split('icechunk-field-name">a<', 1)[1]
    assert "array created, 3 chunks written" in inside.split("</details>")[0]
    assert "nothing changed" in icechunk.Diff()._repr_html_()


def test_the_tree_of_a_difference_escapes_names_and_ends() -> None:
    paths = {f"/<b>{number}" for number in range(600)}
    shown = icechunk.Diff(new_arrays=paths)._repr_html_()
    assert "<b>" not in shown
    assert "and 100 more paths" in shown


def test_the_map_of_an_array_tells_its_chunks_by_kind(tmp_path: object) -> None:
    import zarr

    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)))
    session = repository.writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    array = root.create_array(
        "<i>", shape=(6, 100), chunks=(1, 1), dtype="i4", dimension_names=("time", "<x>")
    )
    array[:2] = 1
    found = session.chunk_map("<i>")
    assert sum(found.counts.values()) == 600
    assert found.counts["missing"] == 400
    assert found.grid == (6, 100)
    assert "400 missing" in repr(found)
    shown = found._repr_html_()
    assert shown.count("<rect") == 6 * 48
    assert shown.count("missing</title>") == 4 * 48
    assert "<i>" not in shown
    assert "&lt;x&gt;" in shown
    assert all(share.max() <= 1 for share in found.shares.values())
    scalar = root.create_array("scalar", shape=(), dtype="i4")
    scalar[...] = 5
    assert session.chunk_map("/scalar")._repr_html_().count("<rect") == 1
