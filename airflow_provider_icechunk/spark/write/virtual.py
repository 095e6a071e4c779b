"""Many HDF5 and NetCDF4 files as virtual references: a pass over headers, a plan, one commit.

No values move except those of small coordinates. Executors read headers and the files' own index of
chunks; what comes back are columns of locations, offsets, lengths and checksums.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from airflow_provider_icechunk.engine.arrays.regions import check_complete
from airflow_provider_icechunk.engine.commit.conflicts import ConflictSolver
from airflow_provider_icechunk.engine.ingest.apply import (
    apply_plan,
    decode_header,
    encode_header,
    known_arrays,
    put_references,
    read_header,
    task_files,
)
from airflow_provider_icechunk.engine.ingest.choice import Choice, Differing, Missing, choose
from airflow_provider_icechunk.engine.ingest.plan import FileHeader, VirtualPlan, make_plan
from airflow_provider_icechunk.engine.pipelines.job import Prepare
from airflow_provider_icechunk.engine.sessions.fork import ForkSession
from airflow_provider_icechunk.engine.sessions.session import Session
from airflow_provider_icechunk.engine.virtual.sources import ChecksumKind
from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.runtime import RepositoryLike, cores, on_executors, opened

from .job import JobResult
from .work import commit_work

_SCHEMA = "file long, own string, digest string, shared string, data binary"
_ARROW = pa.schema(
    [
        ("file", pa.int64()),
        ("own", pa.string()),
        ("digest", pa.string()),
        ("shared", pa.string()),
        ("data", pa.binary()),
    ]
)


def ingest_virtual(
    spark: SparkSession,
    repository: RepositoryLike,
    files: Sequence[str],
    variables: Sequence[str] | Mapping[str, str] | None = None,
    *,
    job: str,
    along: str | int = "time",
    load: Sequence[str] | None = None,
    into: str = "",
    start: int | None = None,
    checksum: ChecksumKind = "auto",
    missing: Missing = "error",
    differing: Differing = "error",
    branch: str = "main",
    prepare: Prepare | None = None,
    tasks: int | None = None,
    message: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    rebase_with: ConflictSolver | None = None,
    resume: bool = True,
) -> JobResult:
    """Refer to the chunks of many files, one file after the other, and commit once.

    The repository has to declare a virtual chunk container that covers the files, and to be opened
    with the right to read it.

    :param files: absolute paths or URLs, in the order of the data.
    :param variables: names in the files, or names and the paths of arrays; by default all.
    :param along: the dimension along which the files follow each other: its name, or its number
        for files without names of dimensions. Variables without it are those of the first file.
    :param load: variables whose values are copied; by default coordinates named like their
        dimension, and the bounds of times. The chunks of copied variables may have any shape.
    :param into: a group for the arrays.
    :param start: where the first file begins; by default at the end of the arrays.
    :param checksum: what shows later that a file has changed: its entity tag or its time; by
        default the time for local files, the tag for others.
    :param missing: refuse files that lack a variable which others have, or leave its cells empty.
    :param differing: refuse files that store a variable in another way, or copy their values.
    """
    choice = choose(
        variables, along=along, load=load, into=into, checksum=checksum, missing=missing,
        differing=differing,
    )  # fmt: skip
    repo = opened(repository)
    headers = scan_headers(spark, repo.readonly_session(branch), tuple(files), choice)
    work = VirtualWork(headers, choice, start, tasks)
    return commit_work(
        spark,
        repo,
        work,
        job=job,
        branch=branch,
        prepare=prepare,
        resume=resume,
        message=message or f"refer to {len(files)} files",
        metadata=metadata,
        rebase_with=rebase_with,
    )


def plan_virtual(
    spark: SparkSession,
    repository: RepositoryLike,
    files: Sequence[str],
    variables: Sequence[str] | Mapping[str, str] | None = None,
    *,
    along: str | int = "time",
    load: Sequence[str] | None = None,
    into: str = "",
    start: int | None = None,
    checksum: ChecksumKind = "auto",
    missing: Missing = "error",
    differing: Differing = "error",
    branch: str = "main",
) -> VirtualPlan:
    """What `ingest_virtual` would do with the same arguments, and why it cannot.

    Headers of all files are read, and nothing is written.
    """
    choice = choose(
        variables, along=along, load=load, into=into, checksum=checksum, missing=missing,
        differing=differing,
    )  # fmt: skip
    session = opened(repository).readonly_session(branch)
    headers = scan_headers(spark, session, tuple(files), choice)
    return make_plan(headers, choice, known_arrays(session, headers, choice), start=start)


class VirtualWork:
    """Files that become references of a session's arrays: first the arrays, then tasks."""

    def __init__(
        self,
        headers: Sequence[FileHeader],
        choice: Choice,
        start: int | None,
        tasks: int | None,
    ) -> None:
        self._headers = headers
        self._choice = choice
        self._start = start
        self._tasks = tasks
        self._plan: VirtualPlan | None = None

    def prepare(self, session: Session) -> None:
        """Create the arrays or extend them."""
        known = known_arrays(session, self._headers, self._choice)
        plan = make_plan(self._headers, self._choice, known, start=self._start).checked()
        apply_plan(session, plan, self._headers)
        self._plan = plan

    def writer(self, view: Session, at_once: int) -> ReferenceWriter:
        """The tasks, by files; after `prepare`."""
        del view
        assert self._plan is not None
        count = len(self._plan.sources)
        ranges = task_files(count, self._tasks or 2 * at_once)
        return ReferenceWriter(self._plan, tuple(ranges))


@dataclass(frozen=True, slots=True)
class ReferenceWriter:
    """Puts the references of the files of each task."""

    plan: VirtualPlan
    files: tuple[range, ...]

    def __call__(self, fork: ForkSession, number: int) -> int:
        """Put the references of a task; returns the bytes of what was copied."""
        return put_references(fork, self.plan, self.files[number])[1]

    @property
    def names(self) -> list[str]:
        """What each task refers to, as a name."""
        digest = self.plan.digest
        return [f"virtual-{digest}-{part.start}-{part.stop}" for part in self.files]


def scan_headers(
    spark: SparkSession, session: Session | ForkSession, files: tuple[str, ...], choice: Choice
) -> list[FileHeader]:
    """Read the headers of all files on executors. `session` travels, so it must be read-only."""
    if not files:
        raise InvalidInputError("there are no files to ingest")
    parts = min(len(files), 4 * cores(spark))
    read = partial(_read_headers, session, files, choice)
    frame = spark.range(0, len(files), 1, parts).mapInArrow(read, _SCHEMA)
    rows = on_executors(frame.collect)
    check_complete(len(files), [row["file"] for row in rows])
    shared = {row["digest"]: json.loads(row["shared"]) for row in rows if row["shared"] is not None}
    rows.sort(key=lambda row: int(row["file"]))
    return [decode_header(row["own"], shared[row["digest"]], bytes(row["data"])) for row in rows]


def _read_headers(
    session: Session | ForkSession,
    files: Sequence[str],
    choice: Choice,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    sent: set[str] = set()
    for batch in batches:
        for number in batch.column(0).to_pylist():
            header = read_header(session.virtual, files[number], choice, first=number == 0)
            own, shared, values = encode_header(header)
            digest = sha256(shared.encode()).hexdigest()
            # Most files are alike: what they share is sent once for each partition.
            columns = [[number], [own], [digest], [None if digest in sent else shared], [values]]
            sent.add(digest)
            yield pa.RecordBatch.from_arrays(
                [pa.array(c, f.type) for c, f in zip(columns, _ARROW, strict=True)], schema=_ARROW
            )
