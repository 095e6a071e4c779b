from __future__ import annotations

import pytest
from support.azurite import CONTAINER, KEY, Azurite

from airflow_provider_icechunk.engine.retry import Backoff
from airflow_provider_icechunk.engine.storage.clouds.azure import AzureSettings, AzureStorage
from airflow_provider_icechunk.engine.storage.secrets import AccountKey, Secret
from airflow_provider_icechunk.testing.conformance import StorageSuite
from tools.azurite import ACCOUNT

QUICK = Backoff(tries=3, first_pause=0.0)


@pytest.fixture
def settings(azurite: Azurite) -> AzureSettings:
    return AzureSettings(
        CONTAINER,
        azurite.fresh_prefix(),
        account=ACCOUNT,
        endpoint_url=azurite.endpoint_url,
        allow_http=True,
        credentials=AccountKey(Secret(KEY)),
        retry=QUICK,
    )


@pytest.mark.long
class TestAzureStorageOnAzurite(StorageSuite):
    @pytest.fixture
    def storage(self, settings: AzureSettings) -> AzureStorage:
        return AzureStorage(settings)
