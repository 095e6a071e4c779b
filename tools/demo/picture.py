"""A picture of the data before and after: two maps of one day, and one place on every day."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray

from tools.demo.settings import TourError

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Repository, Session

DAY = 5
PLACE = (68, 123)
Field = NDArray[np.float32]


def read_field(session: Session, *, day: int) -> Field:
    """The map of one day."""
    return np.asarray(zarr.open_array(session.store, path="temperature", mode="r")[day])


def read_place(session: Session) -> Field:
    """One cell on every day; missing days have no value."""
    array = zarr.open_array(session.store, path="temperature", mode="r")
    values = np.asarray(array[:, PLACE[0], PLACE[1]])
    return np.where(values == 0, np.float32("nan"), values)


def draw(repository: Repository, *, before: str, file: Path) -> Path:
    """Draw what snapshot `before` and the head of `main` hold."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise TourError(
            "The picture needs matplotlib, which the extra `dev` has: `make setup` installs it."
        ) from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    sessions = {
        "before": repository.readonly_session(snapshot_id=before),
        "after": repository.readonly_session("main"),
    }
    figure, axes = plt.subplot_mosaic(
        [["before", "after"], ["place", "place"]],
        figsize=(9, 5),
        height_ratios=[3, 2],
        layout="constrained",
    )
    image: Any = None
    for name, session in sessions.items():
        image = axes[name].imshow(
            read_field(session, day=DAY),
            origin="lower",
            extent=(0, 360, -90, 90),
            cmap="RdYlBu_r",
            vmin=225,
            vmax=320,
        )
        axes[name].set_title(f"{name}: 2026-01-06, {session.snapshot_id}", fontsize=9)
    figure.colorbar(image, ax=[axes["before"], axes["after"]], label="K", shrink=0.9)
    for name, style in (("before", {"lw": 3.0}), ("after", {"lw": 1.0, "color": "C3"})):
        axes["place"].plot(read_place(sessions[name]), label=name, marker="o", **style)
    axes["place"].set_title("one place, day by day", fontsize=9)
    axes["place"].set_xlabel("days since 2026-01-01", fontsize=8)
    axes["place"].legend(fontsize=8)
    for axis in axes.values():
        axis.tick_params(labelsize=7)
    figure.savefig(file, dpi=80, metadata={"Software": None})
    plt.close(figure)
    return file
