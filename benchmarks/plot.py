"""Growth curves: time by size, one panel for each workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

from benchmarks.model import (
    OBSTORE,
    OFFICIAL_1,
    OFFICIAL_2,
    OURS,
    OURS_UNSYNCED,
    TITLES,
    ZARR,
    Workload,
)
from benchmarks.report import Figure

_COLUMNS = 3
_COLOURS = {
    OURS: "#0b6e99",
    OURS_UNSYNCED: "#7cc4de",
    OFFICIAL_1: "#c4552d",
    OFFICIAL_2: "#e0a03c",
    ZARR: "#777777",
    OBSTORE: "#4b8b3b",
}


def draw(
    workloads: Sequence[Workload], found: Mapping[tuple[str, int, str], Figure], path: Path
) -> None:
    """Write the picture; both axes are logarithmic, so proportional growth is a straight line."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [w for w in workloads if any(name == w.name for name, _, _ in found)]
    rows = ceil(len(shown) / _COLUMNS)
    picture, axes = plt.subplots(
        rows, _COLUMNS, figsize=(4.2 * _COLUMNS, 3.0 * rows), squeeze=False, layout="constrained"
    )
    for panel in axes.flat[len(shown) :]:
        panel.set_visible(False)
    for workload, panel in zip(shown, axes.flat, strict=False):
        for contender in workload.contenders:
            points = sorted(
                (size, one.seconds)
                for (name, size, who), one in found.items()
                if name == workload.name and who == contender and not one.skipped
            )
            if points:
                panel.plot(
                    *zip(*points, strict=True),
                    marker="o",
                    markersize=3.5,
                    color=_COLOURS[contender],
                    label=TITLES[contender],
                )
        panel.set(xscale="log", yscale="log", title=workload.name, ylabel="seconds")
        sizes = sorted({size for name, size, _ in found if name == workload.name})
        panel.set_xticks(sizes, [f"{size:,}".replace(",", " ") for size in sizes])
        panel.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        panel.grid(alpha=0.25)
        panel.legend(fontsize=7, frameon=False)
    picture.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(picture)
