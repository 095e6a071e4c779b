"""Built-in fields that a job can fill arrays with, region by region.

Each is a function of the position alone, so that any split of the work gives the same array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airflow_provider_icechunk.engine.arrays.blocks import write_block
from airflow_provider_icechunk.engine.arrays.regions import Region, extent
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.runtime import open_array

from .regions import region_name

Values = NDArray[np.generic]
Generator = Callable[[Region, Sequence[int]], Values]
"""From a region and the shape of the whole array to the values in the region."""


def generate(name: str, region: Region, shape: Sequence[int]) -> Values:
    """The values of a field in a region; refuses names that are not in the table."""
    generator = GENERATORS.get(name)
    if generator is None:
        raise InvalidInputError(
            f"there is no generator {name!r}; choose one of: {', '.join(sorted(GENERATORS))}"
        )
    return generator(region, shape)


def index(region: Region, shape: Sequence[int]) -> Values:
    """The row-major number of each cell: no two cells are equal, so a misplaced chunk shows."""
    total = np.zeros((1,) * len(shape), dtype=np.int64)
    for axis, positions in enumerate(_positions(region)):
        total = total * shape[axis] + positions
    return np.broadcast_to(total, extent(region)).copy()


def temperature(region: Region, shape: Sequence[int]) -> Values:
    """Air temperature in kelvin on a globe: (time, latitude, longitude), a year of daily steps.

    Warm at the equator, seasons that are opposite in the hemispheres, and a wave along a parallel.
    """
    if len(shape) != 3:
        raise InvalidInputError(
            f"the generator 'temperature' needs (time, latitude, longitude), not {len(shape)} "
            "dimensions"
        )
    time, row, column = _positions(region)
    latitude = np.pi * ((row + 0.5) / shape[1] - 0.5)
    season = np.cos(2 * np.pi * (time - 196) / 365.25)
    wave = np.sin(2 * np.pi * (3 * column / shape[2] - time / 12))
    values = 246 + 54 * np.cos(latitude) ** 2 + 18 * season * np.sin(latitude)
    return np.broadcast_to(values + 3 * wave * np.cos(latitude), extent(region)).astype(np.float32)


GENERATORS: Mapping[str, Generator] = {"index": index, "temperature": temperature}


def _positions(region: Region) -> tuple[NDArray[np.int64], ...]:
    return np.ix_(*(np.arange(start, stop, dtype=np.int64) for start, stop in region))


@dataclass(frozen=True, slots=True)
class GeneratedRegion:
    """One region of one array, and the generator that fills it."""

    array: str
    generator: str
    region: Region


@dataclass(frozen=True, slots=True)
class GeneratedWriter:
    """Writes regions with built-in generators."""

    tasks: tuple[GeneratedRegion, ...]

    def __call__(self, fork: ForkSession, number: int) -> int:
        """Write the region of a task."""
        task = self.tasks[number]
        array = open_array(fork, task.array)
        values = generate(task.generator, task.region, array.shape).astype(array.dtype, copy=False)
        return write_block(fork, array, task.region, values)

    @property
    def names(self) -> list[str]:
        """The name of what each task writes."""
        return [region_name(f"{task.array} {task.generator}", task.region) for task in self.tasks]
