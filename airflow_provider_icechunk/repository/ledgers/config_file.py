"""The configuration as a file of its own, which all generations but `2` have."""

from __future__ import annotations

from airflow_provider_icechunk.format.config import RepositoryConfig
from airflow_provider_icechunk.format.config_codec import decode_config, encode_config
from airflow_provider_icechunk.format.generations.fence import check_unfenced
from airflow_provider_icechunk.format.generations.v1.layout import CONFIG_KEY
from airflow_provider_icechunk.repository.ledgers.base import StoredConfig, Trust
from airflow_provider_icechunk.storage.base import Storage, Version, Written


def read_config(storage: Storage) -> StoredConfig | None:
    """The stored `config.yaml`, if there is one."""
    found = storage.get(CONFIG_KEY)
    if found is None:
        return None
    check_unfenced(found.data, where=CONFIG_KEY)
    return StoredConfig(decode_config(found.data, where=CONFIG_KEY), found.version)


def swap_config(
    storage: Storage,
    config: RepositoryConfig,
    expected: Version | None,
    trust: Trust = Trust.CONDITIONS,
) -> Version | None:
    """Replace `config.yaml` if it is at `expected` (`None`: absent); `None` if it is not."""
    outcome = storage.put(
        CONFIG_KEY,
        encode_config(config),
        expect=trust.create() if expected is None else trust.update(expected),
        content_type="application/yaml",
    )
    return outcome.version if isinstance(outcome, Written) else None
