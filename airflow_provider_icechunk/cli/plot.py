"""`plot`: a picture of an array as a PNG, made of NumPy and zlib alone."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.exceptions import InvalidInputError

from . import render
from .render import plain
from .screen import Report, Task

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from airflow_provider_icechunk.browser.models import Picture

WIDTH, HEIGHT = 960, 540
_COLOURS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Colours from the lowest to the highest value, interpolated. Suitable for the colour-blind."""
_MISSING = (230, 230, 230)
_PAPER, _INK = (255, 255, 255), (33, 90, 160)
_NORTH_UP = ("lat", "latitude", "y")


def plot(task: Task) -> Report:
    """Draw the last two dimensions of an array as an image, or its only one as a line."""
    from airflow_provider_icechunk.browser.pictures import PicturePart, draw
    from airflow_provider_icechunk.engine.pipelines.versions import find_version

    target = Path(task.args.output)
    if target.suffix.lower() != ".png":
        raise InvalidInputError(
            f"--output must be a PNG file with a name ending in .png, not {target}"
        )
    repository = task.open()
    version = find_version(repository, task.args.version)
    at = _positions(task.args.at)
    with task.progress("reading"):
        wanted = PicturePart(at=at, height=HEIGHT, width=WIDTH)
        picture = draw(repository, version, "/" + task.args.array.strip("/"), wanted)
    if picture.columns is None or picture.texts:
        raise InvalidInputError(f"{picture.path} has no dimension with numbers: use `cat`")
    try:
        target.write_bytes(png(pixels_of(picture)))
    except OSError as error:
        raise InvalidInputError(f"cannot write {target}: {error.strerror}") from None
    found = picture.statistics
    facts = {
        "snapshot_id": picture.snapshot_id, "path": picture.path, "output": str(target),
        "minimum": found.minimum, "maximum": found.maximum, "units": picture.units,
        "fixed": picture.fixed, "sampled": picture.sampled,
    }  # fmt: skip
    return Report(facts, [render.line(line) for line in _told(picture, target)])


def _told(picture: Picture, target: Path) -> list[str]:
    found = picture.statistics
    units = f" {plain(picture.units)}" if picture.units else ""
    where = "".join(f", {plain(name)} {plain(at)}" for name, at in picture.fixed.items())
    lines = [
        f"{target}: {plain(picture.path)}{where}",
        f"dark is {found.minimum:.6g}{units}, bright is {found.maximum:.6g}{units}"
        if found.minimum is not None and found.maximum is not None
        else "there is no value in this part",
    ]
    if picture.sampled:
        lines.append(f"drawn from {picture.chunks_read} of {picture.chunks_total} chunks")
    return lines


def _positions(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(one) for one in text.split(",")) if text else ()
    except ValueError:
        raise InvalidInputError(
            f'--at: {text!r} are not positions, one for each dimension, like "3, 0, 0"'
        ) from None


def pixels_of(picture: Picture) -> NDArray[np.uint8]:
    """The picture as `(height, width, 3)` colours. Pure."""
    import base64

    import numpy as np

    assert picture.columns is not None
    values = np.frombuffer(base64.b64decode(picture.values), "<f4").astype(float)
    if picture.rows is None:
        return _line(values)
    grid = values.reshape(len(picture.rows.indices), len(picture.columns.indices))
    if picture.rows.name.lower() in _NORTH_UP and _rises(picture.rows.labels):
        grid = grid[::-1]
    coloured = _colours(_unit(grid), grid)
    enlarged = max(1, min(HEIGHT // grid.shape[0], WIDTH // grid.shape[1]))
    return coloured.repeat(enlarged, axis=0).repeat(enlarged, axis=1)


def _unit(values: NDArray[Any]) -> NDArray[Any]:
    """Values scaled to 0 to 1; a constant maps to the middle, NaN to 0."""
    import numpy as np

    known = values[np.isfinite(values)]
    if not known.size or known.max() == known.min():
        return np.full(values.shape, 0.5)
    scaled = (values - known.min()) / (known.max() - known.min())
    found: NDArray[Any] = np.nan_to_num(scaled, nan=0, posinf=1, neginf=0).clip(0, 1)
    return found


def _colours(unit: NDArray[Any], values: NDArray[Any]) -> NDArray[np.uint8]:
    import numpy as np

    known = np.array(_COLOURS, dtype=float)
    place = unit * (len(known) - 1)
    low = np.minimum(place.astype(int), len(known) - 2)
    mixed = known[low] + (known[low + 1] - known[low]) * (place - low)[..., None]
    mixed[~np.isfinite(values)] = _MISSING
    made: NDArray[np.uint8] = mixed.round().astype(np.uint8)
    return made


def _line(values: NDArray[Any]) -> NDArray[np.uint8]:
    import numpy as np

    made = np.full((HEIGHT, WIDTH, 3), _PAPER, dtype=np.uint8)
    across = np.arange(WIDTH) * len(values) // WIDTH
    place = np.rint((1 - _unit(values)) * (HEIGHT - 1)).astype(int)[across]
    known = np.isfinite(values)[across]
    for column in np.flatnonzero(known).tolist():
        here = place[column]
        before = place[column - 1] if column and known[column - 1] else here
        made[min(here, before) : max(here, before) + 1, column] = _INK
    return made


def _rises(labels: list[str]) -> bool:
    try:
        return len(labels) > 1 and float(labels[0]) < float(labels[-1])
    except ValueError:
        return False


def png(pixels: NDArray[np.uint8]) -> bytes:
    """An image file of `(height, width, 3)` colours. Pure."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
