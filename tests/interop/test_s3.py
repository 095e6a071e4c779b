"""Both libraries take turns on one repository in S3: paths, object names and refs fit together."""

from __future__ import annotations

import icechunk as official
import numpy as np
import pytest
import zarr
from support import moto_server, trees

import airflow_provider_icechunk.api as ours


@pytest.fixture(scope="module")
def endpoint():
    with moto_server.running() as endpoint:
        yield endpoint


@pytest.mark.parametrize("creator", [ours, official], ids=["ours", "official"])
def test_turns_in_a_bucket(endpoint, creator):
    place = f"made by/{creator.__name__}"

    def storage(library):
        return library.s3_storage(
            bucket=moto_server.BUCKET,
            prefix=place,
            region="us-east-1",
            endpoint_url=endpoint,
            allow_http=True,
            force_path_style=True,
            **moto_server.KEYS,
        )

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
