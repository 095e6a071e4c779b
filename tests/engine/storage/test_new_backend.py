"""Adding a storage back end: one file, one row of a table, one subclass of the shipped suite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from support.sqlite_storage import SCHEME, SqliteStorage

from airflow_provider_icechunk.api import Repository
from airflow_provider_icechunk.cli.run import main
from airflow_provider_icechunk.engine.storage.location import SCHEMES, locate
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.testing.conformance import StorageSuite


class TestSqliteStorage(StorageSuite):
    races = 4

    @pytest.fixture
    def storage(self, tmp_path: Path) -> SqliteStorage:
        return SqliteStorage(tmp_path / "objects.db")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one row."""
    monkeypatch.setitem(SCHEMES, "sqlite", SCHEME)


@pytest.mark.usefixtures("registered")
def test_a_registered_back_end_holds_repositories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite://{tmp_path}/weather.db"
    session = Repository.create(locate(url)).writable_session("main")
    zarr.create_array(session.store, name="field", data=np.arange(100_000), chunks=(50_000,))
    session.commit("into a database")
    store = Repository.open(locate(url)).readonly_session("main").store
    assert zarr.open_array(store, path="field", mode="r")[99_999] == 99_999
    assert main(["log", url]) == 0
    assert "into a database" in capsys.readouterr().out


@pytest.mark.usefixtures("registered")
def test_a_url_that_a_new_back_end_does_not_accept_is_told_what_to_use() -> None:
    with pytest.raises(InvalidInputError, match=r"sqlite:///absolute/file\.db or an absolute path"):
        locate("sqlite:///somewhere")
