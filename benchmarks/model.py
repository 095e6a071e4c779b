"""The parts of a benchmark: workloads, goals, cases and measurements."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

OURS = "ours"
OURS_UNSYNCED = "ours-unsynced"
OFFICIAL_1 = "icechunk1"
OFFICIAL_2 = "icechunk2"
ZARR = "zarr"
OBSTORE = "obstore"
"""Names of the contenders. `zarr` is a plain folder without any versions; `obstore` only fetches
bytes, without knowing what they are."""

OFFICIAL = (OFFICIAL_1, OFFICIAL_2)
TITLES = {
    OURS: "ours",
    OURS_UNSYNCED: "ours, no fsync",
    OFFICIAL_1: "icechunk 1",
    OFFICIAL_2: "icechunk 2",
    ZARR: "zarr LocalStore",
    OBSTORE: "bare obstore",
}
BUCKET = "benchmarks"
ACCESS_KEY = "benchmark"
SECRET_KEY = "benchmark-secret"
"""Credentials of the server that a run starts on loopback and removes; they open nothing else."""

Place = Literal["local", "s3", "far"]
"""A disk, a bucket on loopback, or the same bucket 20 ms away."""
Measure = Literal["seconds", "peak_bytes"]


class SkippedError(Exception):
    """The contender cannot do this; the message says why."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Ours must cost at most `at_most` times what the other costs, at the largest size."""

    at_most: float
    against: tuple[str, ...] = OFFICIAL
    ours: str = OURS
    measure: Measure = "seconds"


@dataclass(frozen=True, slots=True)
class Case:
    """One contender doing one workload at one size in one place."""

    contender: str
    size: int
    folder: Path
    """A folder of its own: the repository of local workloads, and notes from `prepare`."""
    endpoint: str | None = None
    prefix: str = ""

    @property
    def library(self) -> ModuleType:
        """The package under its official names."""
        if self.is_ours:
            return importlib.import_module("airflow_provider_icechunk.api")
        return importlib.import_module("icechunk")

    @property
    def is_ours(self) -> bool:
        """Whether the contender is this package, in any setting."""
        return self.contender in (OURS, OURS_UNSYNCED)

    @property
    def repository(self) -> Path:
        """Where a local repository is."""
        return self.folder / "repository"

    def storage(self) -> Any:
        """The contender's storage object for the place of the case."""
        if self.endpoint is not None:
            return self.library.s3_storage(
                bucket=BUCKET,
                prefix=self.prefix,
                region="us-east-1",
                endpoint_url=self.endpoint,
                allow_http=True,
                force_path_style=True,
                access_key_id=ACCESS_KEY,
                secret_access_key=SECRET_KEY,
            )
        if self.contender == OURS_UNSYNCED:
            local = importlib.import_module(
                "airflow_provider_icechunk.engine.storage.local.storage"
            )
            return local.LocalStorage(self.repository, durable=False)
        return self.library.local_filesystem_storage(str(self.repository))

    def import_everything(self, *, boto3: bool = False) -> None:
        """Import what would otherwise be imported at the first request, inside the timed part."""
        importlib.import_module("zarr")
        if self.contender == OBSTORE:
            importlib.import_module("obstore.store")
            return
        # Public names are imported on first use.
        _ = self.library.Repository
        if self.is_ours:
            importlib.import_module("airflow_provider_icechunk.engine.maintenance.collect")
            importlib.import_module("airflow_provider_icechunk.engine.maintenance.expire")
            importlib.import_module("airflow_provider_icechunk.engine.zarr_store.store")
        if self.is_ours and self.endpoint is not None:
            importlib.import_module("airflow_provider_icechunk.engine.refs.v1")
            _ = self.library.s3_storage
            importlib.import_module("airflow_provider_icechunk.engine.storage.s3.storage")
            # The module that decides whether the native client may be used comes first: in a forked
            # process a client loaded before it counts as the parent's, and boto3 does all the work.
            importlib.import_module("airflow_provider_icechunk.engine.storage.constructors")
            importlib.import_module("airflow_provider_icechunk.engine.storage.s3.connection")
            importlib.import_module("airflow_provider_icechunk.engine.storage.s3.listing")
            importlib.import_module("urllib3")
            importlib.import_module("obstore.store")
        if self.is_ours and boto3 and self.endpoint is not None:
            # A client other than the measured one, which has to be built in the timed part.
            importlib.import_module("boto3").session.Session().client(
                "s3", region_name="us-east-1", endpoint_url=self.endpoint
            )

    def create(self, config: Any = None) -> Any:
        """A new repository with the contender's defaults."""
        return self.library.Repository.create(self.storage(), config)

    def create_1(self) -> Any:
        """A new repository of generation `1`, which all contenders support."""
        chosen = {"spec_version": 1} if self.contender == OFFICIAL_2 else {}
        return self.library.Repository.create(self.storage(), **chosen)

    def open(self, config: Any = None) -> Any:
        """The repository that `prepare` or `setup` made."""
        return self.library.Repository.open(self.storage(), config)


def nothing(case: Case) -> None:
    """No preparation, no state."""
    del case


def unchecked(case: Case, state: Any, result: Any) -> None:
    """The run itself would have failed."""
    del case, state, result


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Something to measure. Only `run` is timed; each measurement is a process of its own."""

    name: str
    title: str
    """With `{size}` as a placeholder for the size."""
    sizes: tuple[int, int, int]
    """In increasing order; goals are stated for the last."""
    quick: int = 1
    """Which of the sizes the quick form measures: all of them together have three minutes."""
    goals: tuple[Goal, ...]
    at_any_size: float = 1.0
    """The most that ours may take, as a multiple of an official release's time, at any size."""
    place: Place = "local"
    prepare: Callable[[Case], None] = nothing
    """Runs beforehand, in a process of its own."""
    setup: Callable[[Case], Any]
    """Runs untimed in the measured process and makes the state for `run`."""
    run: Callable[[Case, Any], Any]
    check: Callable[[Case, Any, Any], None] = unchecked
    """Raises if the result is wrong, so that no contender is fast by doing something else."""
    deletes: bool = False
    """Whether `run` deletes many objects of a bucket, for which ours imports boto3."""
    prepared_by: str | None = None
    """The contender that prepares for all of them, if not each for itself."""
    repeatable: bool = False
    """Whether the result of `prepare` can be measured repeatedly."""
    contenders: tuple[str, ...] = (OURS, OFFICIAL_1, OFFICIAL_2)

    def titled(self, size: int) -> str:
        """The title with a size in it."""
        return self.title.format(size=f"{size:,}".replace(",", " "))


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run. Either `skipped` says why there are no numbers, or the numbers count."""

    workload: str
    contender: str
    size: int
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    """The most resident memory during `run`, including everything loaded before."""
    requests: int = 0
    depth: int = 0
    """How many requests had to wait for one another; known only for a server that is far away."""
    skipped: str = ""
