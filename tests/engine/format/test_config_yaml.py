import contextlib
import warnings

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_icechunk.engine.format.config import model as ours
from airflow_provider_icechunk.engine.format.config.codec import (
    config_from_tree,
    config_to_tree,
    decode_config,
    encode_config,
)
from airflow_provider_icechunk.engine.format.config.conditions import Bound, NumRefs
from airflow_provider_icechunk.engine.format.config.stores import ObjectStoreConfig
from airflow_provider_icechunk.engine.format.config.yaml import Tagged, format_yaml, parse_yaml
from airflow_provider_icechunk.exceptions import FormatError

OLD = b"""
inline_chunk_threshold_bytes: 12
unsafe_overwrite_refs: false
compression: {algorithm: Zstd, level: 1}
caching:
  snapshots_cache_size: 2
storage: null
virtual_chunk_containers:
  tigris: {name: tigris, url_prefix: tigris, store: !Tigris {}}
  file: {name: file, url_prefix: file, store: !LocalFileSystem ''}
  s3:
    name: s3
    url_prefix: s3://
    store: !S3Compatible
      region: us-east-1
      endpoint_url: http://localhost:9000
      anonymous: false
      allow_http: true
"""


def full(module):
    """The same configuration made of the classes of `module`."""
    split, dim = module.ManifestSplitCondition, module.ManifestSplitDimCondition
    preload = module.ManifestPreloadCondition
    stores = module.ObjectStoreConfig
    config = module.RepositoryConfig(
        inline_chunk_threshold_bytes=1,
        get_partial_values_concurrency=2,
        compression=module.CompressionConfig(module.CompressionAlgorithm.Zstd, 5),
        max_concurrent_requests=7,
        caching=module.CachingConfig(1, 2, 3, 4, 5),
        storage=module.StorageSettings(
            module.StorageConcurrencySettings(3, 4),
            module.StorageRetriesSettings(3, 4, 5),
            True,
            False,
            False,
            "A",
            "no",
            "1e3",
            99,
        ),
        manifest=module.ManifestConfig(
            module.ManifestPreloadConfig(
                10,
                preload.or_conditions(
                    [
                        preload.true(),
                        preload.false(),
                        preload.and_conditions(
                            [preload.path_matches("a.*: '\""), preload.name_matches("é|c\t#")]
                        ),
                        preload.num_refs(None, 3),
                        preload.num_refs(1, None),
                        preload.num_refs(2, 5),
                        preload.num_refs(None, None),
                    ]
                ),
            ),
            module.ManifestSplittingConfig.from_dict(
                {
                    split.AnyArray(): {
                        dim.Axis(0): 1,
                        dim.DimensionName("12"): 2,
                        dim.DimensionName("null"): 2,
                        dim.Any(): 3,
                    },
                    split.or_conditions([split.path_matches("p"), split.name_matches("n")]): {
                        dim.Any(): 4
                    },
                    split.and_conditions([]): {},
                }
            ),
        ),
    )
    options = module.S3Options("us-east-1", "http://localhost:9000", True, False, True, 60, True)
    for prefix, store in [
        ("s3://one/", stores.S3Compatible(options)),
        ("s3://two/", stores.S3(module.S3Options())),
        ("tigris://three/", stores.Tigris(options)),
        ("https://host/a b/", stores.Http({"timeout": "3"})),
        ("http://host/", stores.Http({})),
        ("gs://bucket/", stores.Gcs({"key": "true"})),
        ("az://bucket/", stores.Azure({"account": "x"})),
        ("file:///data/", stores.LocalFileSystem("/data")),
    ]:
        config.set_virtual_chunk_container(module.VirtualChunkContainer(prefix, store))
    return config


def partial(module):
    """Groups that are there and empty."""
    return module.RepositoryConfig(
        compression=module.CompressionConfig(),
        caching=module.CachingConfig(),
        storage=module.StorageSettings(
            module.StorageConcurrencySettings(), module.StorageRetriesSettings()
        ),
        manifest=module.ManifestConfig(
            module.ManifestPreloadConfig(), module.ManifestSplittingConfig(())
        ),
    )


@pytest.fixture
def official():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("icechunk")


@pytest.mark.parametrize("make", [full, partial])
def test_what_the_official_library_writes_is_read_as_the_same(make, official, tmp_path):
    storage = official.local_filesystem_storage(str(tmp_path))
    official.Repository.create(storage, config=make(official))
    data = (tmp_path / "config.yaml").read_bytes()
    assert decode_config(data, where="config.yaml") == make(ours)


@pytest.mark.parametrize("make", [full, partial])
def test_what_is_written_the_official_library_reads_as_the_same(make, official, tmp_path):
    storage = official.local_filesystem_storage(str(tmp_path))
    official.Repository.create(storage)
    (tmp_path / "config.yaml").write_bytes(encode_config(make(ours)))
    fetched = official.Repository.fetch_config(storage)
    assert fetched == make(official)
    assert fetched != official.RepositoryConfig()


@pytest.mark.parametrize("make", [full, partial])
@pytest.mark.parametrize("tags", [True, False])
def test_a_configuration_survives_the_round_trip(make, tags):
    config = make(ours)
    assert decode_config(encode_config(config), where="config.yaml") == config
    assert config_from_tree(config_to_tree(config, tags=tags), where="repo") == config


def test_configurations_of_the_first_months_are_read():
    config = decode_config(OLD, where="config.yaml")
    assert config.inline_chunk_threshold_bytes == 12
    assert config.compression == ours.CompressionConfig(ours.CompressionAlgorithm.Zstd, 1)
    s3 = config.virtual_chunk_containers["s3"]
    assert s3.name == "s3"
    assert s3.store == ObjectStoreConfig.S3Compatible(
        ours.S3Options("us-east-1", "http://localhost:9000", allow_http=True)
    )
    assert config.virtual_chunk_containers["tigris"].store.opts == ours.S3Options()
    assert all(container.problem() for container in config.virtual_chunk_containers.values())


def test_keys_and_stores_of_other_versions_are_written_back():
    data = b"""
previous_file: {a: [1, 2.5, yes]}
storage: {patience: !After 3}
virtual_chunk_containers:
  'x://a/': {url_prefix: 'x://a/', store: !quantum {qubits: 3}, colour: red}
"""
    config = decode_config(data, where="config.yaml")
    again = parse_yaml(encode_config(config), where="config.yaml")
    assert again["previous_file"] == {"a": [1, 2.5, "yes"]}
    assert again["storage"]["patience"] == Tagged("After", 3)
    container = again["virtual_chunk_containers"]["x://a/"]
    assert container["store"] == Tagged("quantum", {"qubits": 3})
    assert container["colour"] == "red"
    assert config.virtual_chunk_containers["x://a/"].problem()


def test_an_empty_file_chooses_nothing():
    assert decode_config(b"", where="config.yaml") == ours.RepositoryConfig()
    assert decode_config(b"# nothing\n", where="config.yaml") == ours.RepositoryConfig()


def test_bounds_may_include_or_exclude_their_value():
    data = b"manifest: {preload: {preload_if: !num_refs {from: !Excluded 1, to: !Included 2}}}"
    condition = decode_config(data, where="x").manifest.preload.preload_if
    assert condition.rule == NumRefs(Bound(1, included=False), Bound(2, included=True))
    assert [condition.matches("/a", n) for n in (1, 2, 3)] == [False, True, False]


LAUGHS = b"a: &a [x, x]\n" + b"".join(
    b"%c: &%c [*%c, *%c]\n" % (98 + n, 98 + n, 97 + n, 97 + n) for n in range(20)
)


@pytest.mark.parametrize(
    "data",
    [
        LAUGHS,
        b"a: &a {<<: *a}",
        b"extra: " + b"[" * 100_000,
        b"extra: " + b"{a: " * 1_000,
        b"- " * 50_000,
        b"? " * 5_000,
        b"extra: [" + b"0," * 100_000 + b"]",
        b"a: 1\n" * 3,
        b"x" * (2 << 20),
        b"\xff\xfe\x00",
        b"a: \x00",
        b'a: "\\ud800"',
        b'a: "\\UFFFFFFFF"',
        b"a: !!python/object/apply:os.system [id]",
        b"a: !<tag:example.org,2000:x> 1",
        b"a: 1\n---\nb: 2",
        b"? [a]\n: 1",
        b"[]",
        b"hello",
        b"inline_chunk_threshold_bytes: 70000",
        b"inline_chunk_threshold_bytes: -1",
        b"inline_chunk_threshold_bytes: '12'",
        b"inline_chunk_threshold_bytes: 99999999999999999999999999",
        b"inline_chunk_threshold_bytes: [1]",
        b"storage: 5",
        b"storage: {retries: {max_tries: 0}}",
        b"compression: {algorithm: lz4}",
        b"compression: !zstd {level: 1}",
        b"virtual_chunk_containers: [1]",
        b"virtual_chunk_containers: {a: {url_prefix: 3, store: !http {}}}",
        b"virtual_chunk_containers: {a: {url_prefix: 's3://a/'}}",
        b"virtual_chunk_containers: {a: {url_prefix: 's3://a/', store: !s3 5}}",
        b"virtual_chunk_containers: {a: {url_prefix: 's3://a/', store: !http {a: 1}}}",
        b"manifest: {splitting: {split_sizes: 3}}",
        b"manifest: {splitting: {split_sizes: [[any_array]]}}",
        b"manifest: {splitting: {split_sizes: [[nothing, []]]}}",
        b"manifest: {splitting: {split_sizes: [[any_array, [{condition: !Axis x}]]]}}",
        b"manifest: {splitting: {split_sizes: [[any_array, [{condition: Any}]]]}}",
        b"manifest: {preload: {preload_if: !or 3}}",
        b"manifest: {preload: {preload_if: !num_refs {from: 3, to: 4}}}",
    ],
    ids=lambda data: data[:40].decode("ascii", "replace"),
)
def test_hostile_and_broken_files_are_refused_by_name(data):
    with pytest.raises(FormatError, match=r"stored/config\.yaml"):
        decode_config(data, where="stored/config.yaml")


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode())))
def test_no_other_error_escapes(data):
    with contextlib.suppress(FormatError):
        decode_config(data, where="config.yaml")


VALID = encode_config(full(ours))


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(st.integers(0, len(VALID) - 1), st.sampled_from(b"!&*[]{}:-'\"\n x0\xff\x00")),
        min_size=1,
        max_size=4,
    )
)
def test_a_damaged_configuration_is_read_or_refused(edits):
    data = bytearray(VALID)
    for place, byte in edits:
        data[place] = byte
    with contextlib.suppress(FormatError):
        config = decode_config(bytes(data), where="config.yaml")
        assert decode_config(encode_config(config), where="config.yaml") == config


def _not_tagged(value):
    return value is not None and not isinstance(value, Tagged)


PRINTABLE = st.text(st.characters(codec="utf-8"), max_size=30)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**18), 10**18) | PRINTABLE,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(PRINTABLE, inner, max_size=4)
        | st.builds(Tagged, st.sampled_from(["s3", "Axis", "or"]), inner.filter(_not_tagged))
    ),
    max_leaves=15,
)


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(PRINTABLE, TREES, max_size=4))
def test_any_tree_is_read_as_it_was_written(tree):
    data = format_yaml(tree)
    assert parse_yaml(data, where="x") == tree
    assert yaml.safe_load(format_yaml({"text": ["no", "1:30", "0x1f", "=", "<<"]})) == {
        "text": ["no", "1:30", "0x1f", "=", "<<"]
    }
