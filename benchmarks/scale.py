"""How the cost of small operations grows with the repository: `python -m benchmarks.scale`.

Builds an array of steps with 1000 virtual references each, in commits of a million references, and
a group of many arrays. On each, processes of their own open the repository and commit one chunk, or
read one. Prints a table, and draws it with `--picture`. Official icechunk 1.1 is measured up to
`--official` references, since it keeps all of them in one manifest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PLANE = 1000
SIDE = 16
PREFIX = "s3://archive/"
BLOCK = 1000
ROUNDS = 3
Row = dict[str, Any]


def library(name: str) -> Any:
    """Either of the two packages."""
    if name == "ours":
        import airflow_provider_icechunk.api as found
    else:
        import icechunk as found
    return found


def build_references(lib: Any, path: str, size: int) -> None:
    """An array with `size` references."""
    import numpy as np
    import zarr

    config = lib.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        lib.VirtualChunkContainer(PREFIX, lib.s3_store(region="us-east-1"))
    )
    repo = lib.Repository.create(lib.local_filesystem_storage(path), config=config)
    session = repo.writable_session("main")
    steps = size // PLANE
    zarr.create_array(
        session.store,
        name="data",
        shape=(steps * SIDE, PLANE * SIDE),
        chunks=(SIDE, SIDE),
        dtype="uint8",
        compressors=None,
    )
    session.commit("array")
    for first in range(0, steps, BLOCK):
        session = repo.writable_session("main")
        count = min(BLOCK, steps - first) * PLANE
        texts = [f"{PREFIX}file-{first:07}.nc"] * count
        offsets = np.arange(count, dtype=np.uint64) * np.uint64(256)
        if hasattr(session.store, "set_virtual_refs_arr"):
            session.store.set_virtual_refs_arr(
                "data",
                (count // PLANE, PLANE),
                texts,
                offsets,
                np.full(count, 256, np.uint64),
                arr_offset=(first, 0),
            )
        else:
            places = ((first + n // PLANE, n % PLANE) for n in range(count))
            specs = [
                lib.VirtualChunkSpec(list(place), text, int(offset), 256)
                for place, text, offset in zip(places, texts, offsets, strict=True)
            ]
            session.store.set_virtual_refs("data", specs)
        session.commit("references")
    write(lib, path, "data", (slice(0, SIDE), slice(0, SIDE)))


def build_arrays(lib: Any, path: str, size: int) -> None:
    """A hundred arrays in each of many groups."""
    import asyncio

    import zarr
    from zarr.core.buffer import default_buffer_prototype

    repo = lib.Repository.create(lib.local_filesystem_storage(path))
    session = repo.writable_session("main")
    group = zarr.create_group(session.store)
    group.create_array("g0/data", shape=(64,), chunks=(16,), dtype="f4", dimension_names=["t"])

    async def fill() -> None:
        kind = default_buffer_prototype()
        array = await session.store.get("g0/data/zarr.json", kind)
        parent = await session.store.get("zarr.json", kind)
        for number in range(size):
            if number % 100 == 0:
                await session.store.set(f"g{number // 100}/zarr.json", parent)
            await session.store.set(f"g{number // 100}/a{number % 100}/zarr.json", array)

    asyncio.run(fill())
    session.commit("arrays")
    write(lib, path, "g0/data", (slice(0, 16),))


def write(lib: Any, path: str, name: str, where: tuple[slice, ...]) -> None:
    """Open the repository and commit one chunk."""
    import zarr

    session = lib.Repository.open(lib.local_filesystem_storage(path)).writable_session("main")
    zarr.open_array(session.store, path=name, mode="r+")[where] = 7
    session.commit("one chunk")


def read(lib: Any, path: str, name: str, where: tuple[slice, ...]) -> None:
    """Open the repository and read one chunk."""
    import zarr

    session = lib.Repository.open(lib.local_filesystem_storage(path)).readonly_session("main")
    assert (zarr.open_array(session.store, path=name, mode="r")[where] == 7).all()


def child(who: str, what: str, kind: str, path: str, size: int) -> None:
    """Do one thing in this process and print its cost."""
    import resource

    lib = library(who)
    import zarr  # noqa: F401 - its import is not part of what is measured

    where = (slice(0, SIDE), slice(0, SIDE)) if kind == "references" else (slice(0, 16),)
    name = "data" if kind == "references" else "g0/data"
    begin = time.perf_counter()
    if what == "build":
        (build_references if kind == "references" else build_arrays)(lib, path, size)
    else:
        {"commit": write, "read": read}[what](lib, path, name, where)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"seconds": time.perf_counter() - begin, "mib": peak}))


def run(who: str, what: str, kind: str, path: Path, size: int) -> Row:
    """`child` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.scale", "--child", who, what, kind, str(path)]
    done = subprocess.run([*command, str(size)], capture_output=True, text=True, check=True)
    result: Row = json.loads(done.stdout.splitlines()[-1])
    return result | {"who": who, "what": what, "kind": kind, "size": size}


def measure(kind: str, sizes: list[int], official: int, folder: Path) -> list[Row]:
    """All sizes of one kind; the median of several rounds of each operation."""
    rows = []
    for size in sizes:
        for who in ("ours", "official")[: 2 if size <= official else 1]:
            path = folder / f"{who}-{kind}-{size}"
            rows.append(run(who, "build", kind, path, size))
            for what in ("commit", "read"):
                rounds = [run(who, what, kind, path, size) for _ in range(ROUNDS)]
                rows.append(sorted(rounds, key=lambda row: row["seconds"])[ROUNDS // 2])
            for row in rows[-3:]:
                print(
                    f"{kind:10} {size:>11,} {who:8} {row['what']:6} "
                    f"{row['seconds']:8.3f} s {row['mib']:6} MiB",
                    flush=True,
                )
    return rows


def draw(rows: list[Row], path: Path) -> None:
    """Time and memory of commits and reads by size."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    picture, axes = plt.subplots(2, 2, figsize=(9, 6), layout="constrained")
    for column, kind in enumerate(("references", "arrays")):
        for line, (measure_, label) in enumerate((("seconds", "seconds"), ("mib", "peak MiB"))):
            panel = axes[line][column]
            for who, colour in (("ours", "#0b6e99"), ("official", "#c4552d")):
                for what, style in (("commit", "-"), ("read", "--")):
                    points = sorted(
                        (row["size"], row[measure_])
                        for row in rows
                        if (row["kind"], row["who"], row["what"]) == (kind, who, what)
                    )
                    if points:
                        panel.plot(
                            *zip(*points, strict=True),
                            style,
                            marker="o",
                            color=colour,
                            label=f"{who}: open and {what} one chunk",
                        )
            panel.set(xscale="log", ylim=(0, None), xlabel=kind, ylabel=label)
            panel.grid(alpha=0.25)
    axes[0][0].legend(fontsize=7, frameon=False)
    picture.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(picture)


def main() -> None:
    """Measure what the command line asks for."""
    if sys.argv[1:2] == ["--child"]:
        who, what, kind, path, size = sys.argv[2:]
        child(who, what, kind, path, int(size))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--references", type=int, nargs="*", default=[10**6, 10**7])
    parser.add_argument("--arrays", type=int, nargs="*", default=[1000, 4000, 40_000])
    parser.add_argument("--official", type=int, default=10**6, help="largest size for icechunk 1.1")
    parser.add_argument("--picture", type=Path, help="where the curves go")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            *measure("references", options.references, options.official, Path(folder)),
            *measure("arrays", options.arrays, options.official, Path(folder)),
        ]
    if options.picture is not None:
        draw(rows, options.picture)


if __name__ == "__main__":
    main()
