"""Every setting of a repository does something, or whoever sets it is told that it does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from support import moto_server
from support import setting_probes as probes
from support.maintenance import GENERATIONS
from support.setting_probes import Config, conditions, filled, location_compression, read_one

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.engine import core
from airflow_provider_icechunk.engine.format.config.settings import Settings
from airflow_provider_icechunk.engine.format.generation import Generation
from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.base import Absent, Exactly
from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.engine.storage.memory import MemoryStorage
from airflow_provider_icechunk.engine.storage.observed import ObservedStorage
from airflow_provider_icechunk.engine.storage.s3.settings import S3Settings
from airflow_provider_icechunk.engine.storage.s3.storage import S3Storage
from airflow_provider_icechunk.engine.storage.secrets import static_credentials


def plain_s3(endpoint: str, prefix: str) -> S3Storage:
    keys = moto_server.KEYS
    return S3Storage(
        S3Settings(
            moto_server.BUCKET,
            prefix,
            region="us-east-1",
            endpoint_url=endpoint,
            allow_http=True,
            force_path_style=True,
            credentials=static_credentials(keys["access_key_id"], keys["secret_access_key"]),
        )
    )


def on_s3(
    settings: icechunk.StorageSettings, endpoint: str, prefix: str, generation: str = "1"
) -> tuple[Any, Any]:
    """A repository in a bucket, and a client that says what is stored there."""
    keys = moto_server.KEYS
    storage = plain_s3(endpoint, prefix)
    repo = filled(storage, Config(storage=settings), spec_version=generation)
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=keys["access_key_id"],
        aws_secret_access_key=keys["secret_access_key"],
    )
    return repo, client


def stored(
    settings: icechunk.StorageSettings, endpoint: str, prefix: str, generation: str
) -> tuple[dict[str, Any], str]:
    """What the store knows of every object of a repository, and where its chunks are."""
    prefix = f"{prefix}-{generation}"
    repo, client = on_s3(settings, endpoint, prefix, generation)
    chunks = probes.layout(repo).chunks
    listed = client.list_objects_v2(Bucket=moto_server.BUCKET, Prefix=f"{prefix}/")["Contents"]
    found = {
        one["Key"].removeprefix(f"{prefix}/"): client.head_object(
            Bucket=moto_server.BUCKET, Key=one["Key"]
        )
        for one in listed
    }
    client.close()
    assert any(key.startswith(chunks) for key in found)
    return found, chunks


def storage_classes(name: str) -> Callable[[str, str], None]:
    def probe(endpoint: str, generation: str) -> None:
        chosen = icechunk.StorageSettings(**{name: "STANDARD_IA"})
        found, chunks = stored(chosen, endpoint, f"classes-{name}", generation)
        for key, known in found.items():
            is_chunk = key.startswith(chunks)
            follows = name == "storage_class" or is_chunk == (name == "chunks_storage_class")
            assert (known.get("StorageClass") == "STANDARD_IA") is follows, key

    return probe


def unsafe_use_metadata(endpoint: str, generation: str) -> None:
    for chosen in (True, False):
        settings = icechunk.StorageSettings(unsafe_use_metadata=chosen)
        found, _ = stored(settings, endpoint, f"metadata-{chosen}", generation)
        assert any(known["Metadata"] for known in found.values()) is chosen


def minimum_size_for_multipart_upload(endpoint: str, generation: str) -> None:
    for least, parts in ((500, True), (601, False)):
        settings = icechunk.StorageSettings(minimum_size_for_multipart_upload=least)
        found, chunks = stored(settings, endpoint, f"parts-{least}", generation)
        marks = {known["ETag"] for key, known in found.items() if key.startswith(chunks)}
        assert {"-" in mark for mark in marks} == {parts}


def timeout(name: str) -> Callable[[str], None]:
    def probe(endpoint: str) -> None:
        chosen = icechunk.StorageTimeoutSettings(**{f"{name}_ms": 2500})
        repo, client = on_s3(icechunk.StorageSettings(timeouts=chosen), endpoint, name)
        client.close()
        assert getattr(repo.storage.settings, name) == 2.5

    return probe


RETRIES = ("max_tries", "initial_backoff_ms", "max_backoff_ms")
_DICTIONARY = "manifest.virtual_chunk_location_compression"
HONOURED: dict[str, Callable[..., None]] = {
    "inline_chunk_threshold_bytes": probes.inline_chunk_threshold_bytes,
    "get_partial_values_concurrency": probes.get_partial_values_concurrency,
    "compression.algorithm": probes.compression_algorithm,
    "compression.level": probes.compression_level,
    "max_concurrent_requests": probes.max_concurrent_requests,
    "caching.num_snapshot_nodes": probes.num_snapshot_nodes,
    "caching.num_chunk_refs": probes.num_chunk_refs,
    "caching.num_transaction_changes": probes.num_transaction_changes,
    "caching.num_bytes_chunks": probes.num_bytes_chunks,
    "storage.concurrency.max_concurrent_requests_for_object": (
        probes.max_concurrent_requests_for_object
    ),
    "storage.concurrency.ideal_concurrent_request_size": probes.ideal_concurrent_request_size,
    **{f"storage.retries.{name}": probes.retries for name in RETRIES},
    "storage.timeouts.connect_timeout_ms": timeout("connect_timeout"),
    "storage.timeouts.read_timeout_ms": timeout("read_timeout"),
    "storage.unsafe_use_conditional_create": conditions("unsafe_use_conditional_create", Absent),
    "storage.unsafe_use_conditional_update": conditions("unsafe_use_conditional_update", Exactly),
    "storage.unsafe_use_metadata": unsafe_use_metadata,
    "storage.storage_class": storage_classes("storage_class"),
    "storage.metadata_storage_class": storage_classes("metadata_storage_class"),
    "storage.chunks_storage_class": storage_classes("chunks_storage_class"),
    "storage.minimum_size_for_multipart_upload": minimum_size_for_multipart_upload,
    "virtual_chunk_containers": probes.virtual_chunk_containers,
    "manifest.preload.max_total_refs": probes.preload_max_total_refs,
    "manifest.preload.preload_if": probes.preload_if,
    "manifest.splitting": probes.splitting,
    f"{_DICTIONARY}.min_num_chunks": location_compression("min_num_chunks", 1, 10_000),
    f"{_DICTIONARY}.dictionary_max_training_samples": location_compression(
        "dictionary_max_training_samples", 20, 1000
    ),
    f"{_DICTIONARY}.dictionary_max_size_bytes": location_compression(
        "dictionary_max_size_bytes", 512, 4096
    ),
    f"{_DICTIONARY}.compression_level": location_compression("compression_level", 1, 19),
    **{f"repo_update_retries.default.{name}": probes.repo_update_retries for name in RETRIES},
    "num_updates_per_repo_info_file": probes.num_updates_per_repo_info_file,
    "attributes_file_threshold_bytes": probes.attributes_file_threshold_bytes,
}
"""Every setting that is followed, with what shows it."""

STORED_ONLY: dict[str, Config] = {
    "caching.num_bytes_attributes": Config(
        caching=icechunk.CachingConfig(num_bytes_attributes=1000)
    ),
    "max_concurrent_decodes": Config(max_concurrent_decodes=2),
    "manifest.max_concurrent_manifest_fetches_during_commit": Config(
        manifest=icechunk.ManifestConfig(max_concurrent_manifest_fetches_during_commit=2)
    ),
    "manifest.preload.max_arrays_to_scan": Config(
        manifest=icechunk.ManifestConfig(
            preload=icechunk.ManifestPreloadConfig(max_arrays_to_scan=3)
        )
    ),
    **{
        f"storage.timeouts.{name}": Config(
            storage=icechunk.StorageSettings(timeouts=icechunk.StorageTimeoutSettings(**{name: 5}))
        )
        for name in (
            "operation_timeout_ms",
            "operation_attempt_timeout_ms",
        )
    },
}
"""Every setting that changes nothing, with a configuration that has it."""


BEFORE_2 = frozenset(GENERATIONS) - {"2"}
_RETRIES = icechunk.RepoUpdateRetryConfig(icechunk.StorageRetriesSettings(10, 30, 70))
_LOCATIONS = icechunk.ManifestVirtualChunkLocationCompressionConfig(min_num_chunks=1)
UNUSED: dict[str, tuple[frozenset[str], Config]] = {
    "attributes_file_threshold_bytes": (
        frozenset({"1", "2"}),
        Config(attributes_file_threshold_bytes=100),
    ),
    "compression.level": (
        frozenset({"alpha1"}),
        Config(compression=icechunk.CompressionConfig(level=9)),
    ),
    _DICTIONARY: (
        BEFORE_2,
        Config(manifest=icechunk.ManifestConfig(virtual_chunk_location_compression=_LOCATIONS)),
    ),
    "repo_update_retries": (BEFORE_2, Config(repo_update_retries=_RETRIES)),
    "num_updates_per_repo_info_file": (BEFORE_2, Config(num_updates_per_repo_info_file=3)),
}
"""Every setting or group that some generations have no use for, and a configuration that has it."""


def settings_of(kind: type[Settings], above: str = "") -> Iterator[str]:
    """All settings of a group and of the groups in it."""
    for item in fields(kind):
        inner = item.metadata.get("kind")
        is_group = isinstance(inner, type) and issubclass(inner, Settings)
        if is_group and any("check" in one.metadata for one in fields(inner)):
            yield from settings_of(inner, f"{above}{item.name}.")
        elif item.name != "extra":
            yield above + item.name


def is_used(name: str, generation: str) -> bool:
    """Whether a generation has a use for a setting."""
    return not any(
        generation in generations and f"{name}.".startswith(f"{above}.")
        for above, (generations, _) in UNUSED.items()
    )


def test_every_setting_is_followed_or_known_not_to_be() -> None:
    assert set(settings_of(Config)) == HONOURED.keys() | STORED_ONLY.keys()
    assert not HONOURED.keys() & STORED_ONLY.keys()


def _walked() -> Iterator[Any]:
    """Every setting in every generation that follows it, once where the generation is no matter."""
    for name, probe in HONOURED.items():
        code = probe.__code__
        takes = code.co_varnames[: code.co_argcount]
        follow = [one for one in GENERATIONS if is_used(name, one)]
        for generation in follow if "generation" in takes else follow[-1:]:
            yield pytest.param(name, generation, takes, id=f"{name}-{generation}")


@pytest.mark.parametrize(("name", "generation", "takes"), list(_walked()))
def test_a_setting_does_what_it_says_in_every_generation(
    name: str, generation: str, takes: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    given: dict[str, Any] = {"generation": generation} if "generation" in takes else {}
    if "endpoint" in takes:
        given["endpoint"] = request.getfixturevalue("moto_endpoint")
    HONOURED[name](**given)


@pytest.mark.parametrize(
    ("name", "generation", "config"),
    [
        *((name, "1", config) for name, config in STORED_ONLY.items()),
        *((name, one, config) for name, (all_, config) in UNUSED.items() for one in sorted(all_)),
    ],
)
def test_a_setting_that_changes_nothing_is_named_in_one_warning(
    name: str,
    generation: str,
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(core, "_warned", set())
    storage = MemoryStorage()
    repo = icechunk.Repository.create(storage, config, spec_version=generation)
    assert [f"{name} is stored but has no effect" in one for one in caplog.messages] == [True]
    repo.save_config()
    icechunk.Repository.open(storage, config)
    monkeypatch.setattr(core, "_warned", set())
    # Who opens what others stored chose nothing.
    assert icechunk.Repository.open(storage).config == repo.config == repo.config.merge(config)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("generation", GENERATIONS)
def test_defaults_that_are_spelled_out_are_no_reason_to_warn(
    generation: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(core, "_warned", set())
    config = Config(
        compression=icechunk.CompressionConfig(icechunk.CompressionAlgorithm.Zstd, 3),
        num_updates_per_repo_info_file=1000,
        repo_update_retries=icechunk.RepoUpdateRetryConfig(
            icechunk.StorageRetriesSettings(100, 50, 30_000)
        ),
    )
    assert icechunk.Repository.create(MemoryStorage(), config, spec_version=generation)
    assert not caplog.messages


FOR_BUCKETS: dict[str, Config] = {
    "max_concurrent_requests": Config(max_concurrent_requests=1),
    **{
        f"storage.retries.{name}": Config(
            storage=icechunk.StorageSettings(retries=icechunk.StorageRetriesSettings(**{name: 3}))
        )
        for name in RETRIES
    },
    **{
        f"storage.timeouts.{name}": Config(
            storage=icechunk.StorageSettings(timeouts=icechunk.StorageTimeoutSettings(**{name: 5}))
        )
        for name in ("connect_timeout_ms", "read_timeout_ms")
    },
    **{
        f"storage.{name}": Config(storage=icechunk.StorageSettings(**{name: value}))
        for name, value in {
            "storage_class": "STANDARD_IA",
            "metadata_storage_class": "STANDARD_IA",
            "chunks_storage_class": "STANDARD_IA",
            "unsafe_use_metadata": False,
            "minimum_size_for_multipart_upload": 1000,
        }.items()
    },
}
"""Every setting that not every storage has a use for."""


@pytest.mark.parametrize("name", FOR_BUCKETS)
def test_a_setting_that_a_storage_has_no_use_for_is_named_in_a_warning(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = icechunk.local_filesystem_storage(tmp_path)
    for storage, follows in (
        (MemoryStorage(), set()),
        (folder, {"max_concurrent_requests"}),
        (ObservedStorage(folder), {"max_concurrent_requests"}),
        (S3Storage(S3Settings("bucket")), set(FOR_BUCKETS)),
    ):
        found = [one for one, _ in core.unheeded(FOR_BUCKETS[name], storage, Generation("1"))]
        assert found == ([] if name in follows else [name])
    monkeypatch.setattr(core, "_warned", set())
    icechunk.Repository.create(MemoryStorage(), FOR_BUCKETS[name])
    assert f"{name} is stored but has no effect" in caplog.text


def test_what_is_given_goes_before_what_a_storage_was_made_with_and_that_before_what_is_stored(
    moto_endpoint: str,
) -> None:
    retries = icechunk.StorageRetriesSettings(max_tries=7, max_backoff_ms=3000)
    stored_settings = icechunk.StorageSettings(retries=retries, storage_class="STANDARD_IA")
    repo, client = on_s3(stored_settings, moto_endpoint, "precedence")
    client.close()
    repo.save_config()
    settings = replace(plain_s3(moto_endpoint, "precedence").settings, retry=Backoff(tries=2))
    made = S3Storage(settings)
    found = icechunk.Repository.open(made).storage
    assert isinstance(found, S3Storage)
    assert (found.settings.retry.tries, found.settings.retry.longest_pause) == (2, 3.0)
    assert found.settings.storage_class == "STANDARD_IA"
    given = icechunk.StorageSettings(retries=icechunk.StorageRetriesSettings(max_tries=10))
    again = icechunk.Repository.open(made, Config(storage=given))
    assert isinstance(again.storage, S3Storage)
    assert again.storage.settings.retry.tries == 10
    fewer = icechunk.StorageSettings(retries=icechunk.StorageRetriesSettings(max_tries=3))
    reopened = again.reopen(Config(storage=fewer)).storage
    assert isinstance(reopened, S3Storage)
    assert reopened.settings.retry.tries == 3


def test_fewer_files_at_once_of_a_folder_keep_all_data(tmp_path: Any) -> None:
    storage = LocalStorage(tmp_path, durable=False)
    repo = filled(storage, Config(max_concurrent_requests=1))
    assert isinstance(repo.storage, LocalStorage)
    assert repo.storage._concurrency == 1
    read_one(icechunk.Repository.open(storage))


def test_every_setting_is_on_the_page_about_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    told = re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE)
    assert sorted(told) == sorted(settings_of(Config))


def test_a_stored_configuration_cannot_make_readers_keep_everything() -> None:
    storage = MemoryStorage()
    huge = Config(caching=icechunk.CachingConfig(num_bytes_chunks=1 << 62))
    repo = filled(storage, huge)
    repo.save_config()
    for given, limit in ((None, 1 << 30), (huge, 1 << 62)):
        kept = icechunk.Repository.open(storage, given).core.reader._kept
        assert kept is not None
        assert kept._limit == limit
