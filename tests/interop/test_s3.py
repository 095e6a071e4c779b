"""Both libraries take turns on one repository in S3: paths, object names and refs fit together."""

from __future__ import annotations

import icechunk as official
import numpy as np
import pytest
import zarr
from support import trees

import airflow_provider_icechunk.api as ours


@pytest.mark.parametrize("creator", [ours, official], ids=["ours", "official"])
@pytest.mark.parametrize(
    "places",
    ["moto", pytest.param("seaweedfs", marks=pytest.mark.seaweedfs)],
    indirect=True,
)
def test_turns_in_a_bucket(places, creator):
    place = places()

    def storage(library):
        return place.ours() if library is ours else place.official()

    creator.Repository.create(storage(creator))
    expected = np.zeros((6, 200))
    for number, library in enumerate([ours, official, ours, official]):
        session = library.Repository.open(storage(library)).writable_session("main")
        root = zarr.open_group(session.store, mode="a")
        if "x" not in root:
            root.create_array("x", data=expected, chunks=(1, 200), compressors=None)
        root["x"][number] = expected[number] = number + 1
        root.create_group(f"g-{number}")
        head = session.commit(f"turn {number}", {"n": number})
        for reader in (ours, official):
            repo = reader.Repository.open(storage(reader))
            assert repo.lookup_branch("main") == head
            seen = repo.readonly_session("main")
            assert (trees.values(seen, "/x") == expected).all()
            assert len(trees.documents(seen)) == number + 3
            assert next(iter(repo.ancestry(branch="main"))).metadata == {"n": number}
