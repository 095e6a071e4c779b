"""`engine="icechunk"` of Xarray."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import airflow_provider_icechunk.api as icechunk
from airflow_provider_icechunk.xarray_backend import IcechunkBackend, parse_address


@pytest.fixture
def address(tmp_path: Path) -> str:
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(tmp_path))
    for number in (1, 2):
        session = repository.writable_session("main")
        data = xr.Dataset({"t": ("x", np.full(4, number))})
        icechunk.to_icechunk(data, session, mode="w")
        icechunk.to_icechunk(data + 10, session, group="deep", mode="w")
        identity = session.commit(str(number))
        repository.create_tag(f"v{number}", identity)
    return f"icechunk://{tmp_path}"


def test_it_is_registered() -> None:
    (point,) = entry_points(group="xarray.backends", name="icechunk")
    assert point.value == "airflow_provider_icechunk.xarray_backend:IcechunkBackend"


def test_versions_and_groups_are_chosen_by_address_or_argument(address: str) -> None:
    def first(where: str, **options: str) -> int:
        return int(xr.open_dataset(where, engine=IcechunkBackend, **options).t[0])

    assert first(address) == 2
    assert first(f"{address}?tag=v1") == first(address, tag="v1") == 1
    assert first(f"{address}?tag=v1&group=deep") == first(f"{address}?tag=v1", group="deep") == 11


def test_a_tree_has_every_group(address: str) -> None:
    tree = xr.open_datatree(f"{address}?branch=main", engine=IcechunkBackend)
    assert (int(tree["t"][0]), int(tree["deep/t"][0])) == (2, 12)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ("s3://bucket/x", "not the address of a repository"),
        ("icechunk:///x?colour=red", "colour"),
    ],
)
def test_wrong_addresses_are_told(wrong: str, match: str) -> None:
    with pytest.raises(icechunk.InvalidInputError, match=match):
        parse_address(wrong)


def test_a_version_given_twice_is_refused(address: str) -> None:
    with pytest.raises(icechunk.InvalidInputError, match="tag is given both in the address"):
        xr.open_dataset(f"{address}?tag=v1", engine=IcechunkBackend, tag="v2")
