"""What a commit wrote, in arrays, chunks, bytes and cells."""

import numpy as np
import zarr

from airflow_provider_icechunk.api import Repository, in_memory_storage
from airflow_provider_icechunk.engine.pipelines.lineage import ArraySchema, lineage_of_commit


def test_a_commit_is_told_in_arrays_chunks_bytes_and_cells() -> None:
    repository = Repository.create(in_memory_storage())
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    field = root.create_array(
        "field", shape=(5, 4), chunks=(2, 4), dtype="f4", compressors=None,
        dimension_names=("time", None),
    )  # fmt: skip
    field[:] = 1
    root.create_array("scalar", data=np.array(7, dtype="i2"), compressors=None)
    first = session.commit("first")
    told = lineage_of_commit(repository, first)
    assert told.arrays == (
        ArraySchema("/field", "float32", ("time: 5", "4")),
        ArraySchema("/scalar", "int16", ()),
    )
    assert (told.created, told.continued) == (("/field", "/scalar"), ())
    # The last chunk hangs over the end of the array: it is stored whole, its cells are not counted.
    assert (told.chunks, told.bytes, told.cells) == (4, 3 * 8 * 4 + 2, 5 * 4 + 1)

    session = repository.writable_session("main")
    zarr.open_array(session.store, path="field")[2:4] = 3
    second = session.commit("second")
    told = lineage_of_commit(repository, second)
    assert (told.snapshot_id, told.parent_id) == (second, first)
    assert (told.created, told.continued) == ((), ("/field",))
    assert (told.chunks, told.bytes, told.cells) == (1, 32, 8)


def test_deleted_chunks_and_arrays_count_nothing_and_the_first_snapshot_has_no_parent() -> None:
    repository = Repository.create(in_memory_storage())
    start = lineage_of_commit(repository, repository.lookup_branch("main"))
    assert (start.parent_id, start.arrays, start.chunks) == (None, (), 0)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    for name in ("gone", "shrunk"):
        root.create_array(name, data=np.arange(1, 7, dtype="i4"), chunks=(2,))
    session.commit("two arrays")
    session = repository.writable_session("main")
    root = zarr.open_group(session.store)
    del root["gone"]
    root["shrunk"].resize((2,))
    told = lineage_of_commit(repository, session.commit("less"))
    assert [array.path for array in told.arrays] == ["/shrunk"]
    assert (told.continued, told.chunks, told.bytes, told.cells) == (("/shrunk",), 0, 0, 0)
