"""The input of a job as JSON, readable without PySpark; an unknown key is refused.

The task that submits a job checks it before it opens a session, and the driver checks it again. A
write may name a function that the driver can import; anyone who submits a job could submit any
application as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    NonNegativeInt,
    PositiveInt,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from airflow_provider_icechunk.engine.arrays.rechunk import MEMORY
from airflow_provider_icechunk.engine.closed import ClosedModel, describe
from airflow_provider_icechunk.engine.pipelines.description import SessionDescription, other_release
from airflow_provider_icechunk.engine.pipelines.reruns import appends
from airflow_provider_icechunk.exceptions import InvalidInputError


def _keys_as_text(value: object) -> object:
    """Keys as in JSON, even for a job that was never JSON."""
    if not isinstance(value, dict):
        return value
    spoken = {str(key): part for key, part in value.items()}
    if len(spoken) < len(value):
        raise ValueError("a dimension is named by its number twice: once as a number, once as text")
    return spoken


Region = Annotated[dict[str, tuple[NonNegativeInt, NonNegativeInt]], BeforeValidator(_keys_as_text)]
"""The part to write, first and end by name or number of dimension; by default all of it. The rest
of a chunk is kept.
"""


class ArrayWrite(ClosedModel):
    """One array to fill, or a part of it, by one of the built-in generators."""

    kind: Literal["generator"] = "generator"
    array: str
    generator: str
    region: Region = Field(default={})


class FunctionWrite(ClosedModel):
    """Arrays to fill, or a part of them, by a user's function that executors call."""

    kind: Literal["function"] = "function"
    function: str = Field(pattern=r"^[\w.]+:[\w.]+$")
    """`package.module:name`; called as `name(region, **arguments)`."""
    array: str | None = None
    variables: tuple[str, ...] = ()
    """Several arrays at once: the function returns a `Dataset` or a mapping."""
    arguments: dict[str, JsonValue] = Field(default={})
    region: Region = Field(default={})

    @property
    def arrays(self) -> tuple[str, ...]:
        """Everything to fill."""
        return self.variables if self.array is None else (self.array,)

    @model_validator(mode="after")
    def _one_of_both(self) -> FunctionWrite:
        if (self.array is None) == (not self.variables):
            raise ValueError("give either `array` or `variables`")
        return self


FileNames = Annotated[tuple[str, ...], Field(min_length=1)]
"""Absolute paths or URLs in the order of the data; `*` in a path stands for sorted names."""


class FilesWrite(ClosedModel):
    """Many files whose values are copied into one array, as `ingest_files` does."""

    kind: Literal["files"]
    files: FileNames
    variable: str
    array: str
    axis: NonNegativeInt | str = 0
    """The dimension of the array along which the files follow each other: its number or name."""
    start: NonNegativeInt | None = None


class VirtualWrite(ClosedModel):
    """Many files whose chunks are referenced, as `ingest_virtual` does."""

    kind: Literal["virtual"]
    files: FileNames
    variables: dict[str, str] | tuple[str, ...] | None = None
    along: str | NonNegativeInt = "time"
    load: tuple[str, ...] | None = None
    into: str = ""
    start: NonNegativeInt | None = None
    checksum: Literal["auto", "etag", "modified"] = "auto"
    missing: Literal["error", "fill"] = "error"
    differing: Literal["error", "copy"] = "error"
    authorize: Annotated[tuple[str, ...], Field(min_length=1)]
    """URL prefixes that the job may read, with the credentials of its own environment; the
    repository has to declare them as virtual chunk containers."""


class RechunkWrite(ClosedModel):
    """An array that gets other chunks, as `rechunk` does."""

    kind: Literal["rechunk"]
    array: str
    chunks: tuple[PositiveInt, ...]
    shards: tuple[PositiveInt, ...] | None = None
    memory: PositiveInt = MEMORY
    """Bytes of values that a task holds at once."""


def _kind(value: object) -> str:
    given = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    if given is None and isinstance(value, dict) and "function" in value:
        return "function"
    return "generator" if given is None else str(given)


Write = Annotated[
    Annotated[ArrayWrite, Tag("generator")]
    | Annotated[FunctionWrite, Tag("function")]
    | Annotated[FilesWrite, Tag("files")]
    | Annotated[VirtualWrite, Tag("virtual")]
    | Annotated[RechunkWrite, Tag("rechunk")],
    Discriminator(_kind),
]
"""What a job can write; without `kind`, arrays by a function or a generator."""


class JobSpecification(ClosedModel):
    """A whole job."""

    session: SessionDescription
    writes: tuple[Write, ...] = Field(min_length=1)
    tasks: int | None = Field(default=None, ge=1, le=100_000)
    """Tasks for each write; by default two for each core that Spark has."""

    @property
    def appends(self) -> bool:
        """Whether anything is appended at the current end of arrays."""
        return any(appends(write.model_dump()) for write in self.writes)

    @property
    def writer(self) -> str:
        """A name for what this job writes: the same again on a retry, another for another job."""
        writes = sorted(write.model_dump_json(exclude_defaults=True) for write in self.writes)
        return f"spark-{hashlib.sha256(json.dumps(writes).encode()).hexdigest()[:16]}"


def parse_job(argument: str) -> JobSpecification:
    """The job in JSON text, or in the file that `@path` names."""
    text = Path(argument[1:]).read_text() if argument.startswith("@") else argument
    try:
        return JobSpecification.model_validate_json(text)
    except ValidationError as error:
        raise InvalidInputError(
            f"the job specification is invalid: {describe(error)}{other_release(text)}"
        ) from None


_WRITES: TypeAdapter[tuple[Write, ...]] = TypeAdapter(
    Annotated[tuple[Write, ...], Field(min_length=1)]
)


def check_writes(writes: Sequence[Mapping[str, object]]) -> None:
    """Refuse what `parse_job` would refuse, before a session is opened and Spark started."""
    try:
        _WRITES.validate_json(json.dumps(list(writes)))
    except (ValidationError, TypeError) as error:
        text = describe(error) if isinstance(error, ValidationError) else str(error)
        raise InvalidInputError(f"writes= is wrong: {text}") from None
