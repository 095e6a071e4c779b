from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_icechunk.engine.storage.local.storage import LocalStorage
from airflow_provider_icechunk.testing.conformance import StorageSuite


class TestLocalStorage(StorageSuite):
    many = 1500

    @pytest.fixture
    def storage(self, tmp_path: Path) -> LocalStorage:
        return LocalStorage(tmp_path / "repository")


class TestLocalStorageThatDoesNotWaitForTheDisk(StorageSuite):
    increments = 25

    @pytest.fixture
    def storage(self, tmp_path: Path) -> LocalStorage:
        return LocalStorage(tmp_path / "repository", durable=False)
