"""What workloads share: an array in a new repository, virtual locations, bytes to write."""

from __future__ import annotations

from typing import Any

from benchmarks.model import Case

VIRTUAL_PREFIX = "s3://archive/"
FILES = 1000
"""How many foreign files the virtual references of one array point into."""


def virtual_config(library: Any) -> Any:
    """A configuration that declares where virtual chunks may be."""
    config = library.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        library.VirtualChunkContainer(VIRTUAL_PREFIX, library.s3_store(region="us-east-1"))
    )
    return config


def locations(size: int, files: int = FILES) -> list[str]:
    """One location for each reference; references into one file share the string."""
    names = [f"{VIRTUAL_PREFIX}model/run/2024/file-{number:05}.nc" for number in range(files)]
    each = -(-size // files)
    return [name for name in names for _ in range(each)][:size]


def make_array(store: Any, chunks: int, chunk_size: int, name: str = "data") -> Any:
    """A one-dimensional array of bytes without compression."""
    import zarr

    return zarr.create_array(
        store,
        name=name,
        shape=(chunks * chunk_size,),
        chunks=(chunk_size,),
        dtype="uint8",
        compressors=None,
    )


def open_array(store: Any, name: str = "data", mode: Any = "r") -> Any:
    """The array that `make_array` made."""
    import zarr

    return zarr.open_array(store, path=name, mode=mode)


def noise(size: int) -> Any:
    """Bytes that are the same in every run and never all equal to the fill value."""
    import numpy as np

    return np.frombuffer(np.random.default_rng(7).bytes(size), np.uint8)


def set_virtual(case: Case, store: Any, texts: list[str], first: int = 0) -> None:
    """Point consecutive chunks of `data` at foreign bytes, in the fastest way there is."""
    import numpy as np

    count = len(texts)
    if hasattr(store, "set_virtual_refs_arr"):
        offsets = np.arange(count, dtype=np.uint64) * np.uint64(4096)
        lengths = np.full(count, 4096, np.uint64)
        failed = store.set_virtual_refs_arr(
            "data", (count,), texts, offsets, lengths, arr_offset=(first,)
        )
    else:
        spec = case.library.VirtualChunkSpec
        specs = [
            spec([first + number], text, 4096 * number, 4096) for number, text in enumerate(texts)
        ]
        failed = store.set_virtual_refs("data", specs)
    if failed:
        raise AssertionError(f"{len(failed)} references were refused")
