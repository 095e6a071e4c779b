import pytest

from airflow_provider_icechunk.engine.format.config.model import (
    CachingConfig,
    CompressionAlgorithm,
    CompressionConfig,
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    ObjectStoreConfig,
    RepositoryConfig,
    S3Options,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    VirtualChunkContainer,
)
from airflow_provider_icechunk.engine.format.config.stores import http_store, s3_store
from airflow_provider_icechunk.exceptions import InvalidInputError


def test_nothing_is_chosen_by_default():
    config = RepositoryConfig.default()
    assert config == RepositoryConfig()
    assert config.inline_chunk_threshold_bytes is None
    assert config.virtual_chunk_containers is None


def test_defaults_are_the_official_ones():
    resolved = RepositoryConfig().resolved()
    assert resolved.inline_chunk_threshold_bytes == 512
    assert resolved.compression_level == 3
    assert resolved.max_concurrent_requests == 256
    assert resolved.get_partial_values_concurrency == 10
    assert (resolved.num_snapshot_nodes, resolved.num_chunk_refs) == (500_000, 15_000_000)
    assert resolved.storage.ideal_concurrent_request_size == 12 * 1024 * 1024
    assert resolved.storage.max_concurrent_requests_for_object == 18
    assert resolved.storage.max_tries == 10
    assert resolved.splitting.split_sizes is None


def test_chosen_values_win_over_defaults_even_when_they_are_zero():
    config = RepositoryConfig(
        inline_chunk_threshold_bytes=0,
        storage=StorageSettings(unsafe_use_metadata=False, storage_class="COLD"),
    )
    defaults = StorageSettings(
        unsafe_use_metadata=True, concurrency=StorageConcurrencySettings(5, 4096)
    )
    resolved = config.resolved(defaults)
    assert resolved.inline_chunk_threshold_bytes == 0
    assert resolved.storage.use_metadata is False
    assert resolved.storage.ideal_concurrent_request_size == 4096
    assert resolved.storage.chunks_storage_class == "COLD"


def test_small_coordinates_are_preloaded_by_default():
    resolved = RepositoryConfig().resolved()
    assert resolved.preload_if.matches("/group/latitude", 1000)
    assert not resolved.preload_if.matches("/group/latitude", 1001)
    assert not resolved.preload_if.matches("/group/temperature", 1)


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [
        (RepositoryConfig, "inline_chunk_threshold_bytes", 65536),
        (RepositoryConfig, "inline_chunk_threshold_bytes", -1),
        (RepositoryConfig, "inline_chunk_threshold_bytes", True),
        (RepositoryConfig, "max_concurrent_requests", "7"),
        (RepositoryConfig, "compression", 3),
        (CompressionConfig, "level", 256),
        (StorageRetriesSettings, "max_tries", 0),
        (StorageSettings, "unsafe_use_metadata", 1),
        (S3Options, "region", 1),
        (ManifestSplittingConfig, "split_sizes", 5),
        (ManifestSplittingConfig, "split_sizes", ((1, ()),)),
        (
            ManifestSplittingConfig,
            "split_sizes",
            ((ManifestSplitCondition.AnyArray(), ((ManifestSplitDimCondition.Any(), 0),)),),
        ),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_set(cls, name, value):
    with pytest.raises(InvalidInputError, match=name):
        cls(**{name: value})
    settings = cls()
    with pytest.raises(InvalidInputError, match=name):
        setattr(settings, name, value)


def test_merging_keeps_what_the_other_leaves_open():
    stored = RepositoryConfig(
        inline_chunk_threshold_bytes=1,
        compression=CompressionConfig(CompressionAlgorithm.Zstd, 4),
        caching=CachingConfig(num_chunk_refs=2, num_bytes_chunks=3),
        storage=StorageSettings(retries=StorageRetriesSettings(3, 4)),
    )
    given = RepositoryConfig(
        max_concurrent_requests=9,
        caching=CachingConfig(num_chunk_refs=7),
        storage=StorageSettings(retries=StorageRetriesSettings(max_tries=8)),
    )
    merged = stored.merge(given)
    assert merged == RepositoryConfig(
        inline_chunk_threshold_bytes=1,
        compression=CompressionConfig(CompressionAlgorithm.Zstd, 4),
        max_concurrent_requests=9,
        caching=CachingConfig(num_chunk_refs=7, num_bytes_chunks=3),
        storage=StorageSettings(retries=StorageRetriesSettings(8, 4)),
    )
    assert stored.caching == CachingConfig(num_chunk_refs=2, num_bytes_chunks=3)


def test_merging_replaces_containers_and_manifest_parts_as_a_whole():
    stored = RepositoryConfig(
        manifest=ManifestConfig(preload=ManifestPreloadConfig(5, ManifestPreloadCondition.true()))
    )
    stored.set_virtual_chunk_container(VirtualChunkContainer("s3://a/", s3_store()))
    given = RepositoryConfig(manifest=ManifestConfig(preload=ManifestPreloadConfig(6)))
    given.clear_virtual_chunk_containers()
    merged = stored.merge(given)
    assert merged.manifest.preload == ManifestPreloadConfig(6)
    assert merged.virtual_chunk_containers == {}
    assert stored.merge(RepositoryConfig()) == stored


def test_containers_are_found_by_their_prefix():
    config = RepositoryConfig()
    container = VirtualChunkContainer("s3://bucket/", s3_store(region="eu-central-1"))
    config.set_virtual_chunk_container(container)
    assert config.get_virtual_chunk_container("s3://bucket/") == container
    assert config.get_virtual_chunk_container("s3://other/") is None
    config.clear_virtual_chunk_containers()
    assert config.get_virtual_chunk_container("s3://bucket/") is None


@pytest.mark.parametrize(
    ("prefix", "store"),
    [
        ("s3://bucket", s3_store()),
        ("s3:///", s3_store()),
        ("bucket/", s3_store()),
        ("https://host/", s3_store()),
        ("s3://bucket/", http_store()),
        ("https://user:secret@host/", http_store()),
        ("file:///", ObjectStoreConfig.LocalFileSystem("/")),
        ("file:///a/../b/", ObjectStoreConfig.LocalFileSystem("/b")),
        ("memory://a/", ObjectStoreConfig.InMemory()),
    ],
)
def test_an_unusable_container_is_refused(prefix, store):
    with pytest.raises(InvalidInputError, match="virtual chunk container"):
        RepositoryConfig().set_virtual_chunk_container(VirtualChunkContainer(prefix, store))


def test_rules_survive_the_way_through_dictionaries():
    rules = {
        ManifestSplitCondition.name_matches("a"): {ManifestSplitDimCondition.Axis(0): 3},
        ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 4},
    }
    assert ManifestSplittingConfig.from_dict(rules).to_dict() == rules


def test_settings_are_compared_by_value():
    assert S3Options(region="a") == S3Options(region="a") != S3Options(region="b")
    assert ManifestPreloadCondition.num_refs(1, 2) == ManifestPreloadCondition.num_refs(1, 2)
    assert 'region="a"' in repr(S3Options(region="a"))


def test_free_form_options_are_not_printed():
    for kind in (ObjectStoreConfig.Gcs, ObjectStoreConfig.Azure, ObjectStoreConfig.Http):
        assert "hunter2" not in repr(kind({"service_account_key": "hunter2"}))
