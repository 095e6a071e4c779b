"""What a job from a specification runs on executors: built-in fields, region by region."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_icechunk.spark.encode import write_block
from airflow_provider_icechunk.spark.generators import generate
from airflow_provider_icechunk.spark.places import open_array
from airflow_provider_icechunk.spark.plan import Region
from airflow_provider_icechunk.spark.regions import region_name
from airflow_provider_icechunk.zarr_store.sessions import ForkSession


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
        """What each task writes, as a name."""
        return [region_name(f"{task.array} {task.generator}", task.region) for task in self.tasks]
