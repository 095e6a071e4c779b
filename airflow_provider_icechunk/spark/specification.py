"""What a Spark job is told: which session, where its repository is, what to write. No secrets.

Everything arrives as JSON and is closed: an unknown key is refused, and nothing names code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    NonNegativeInt,
    Tag,
    ValidationError,
    field_validator,
)

from airflow_provider_icechunk.exceptions import InvalidInputError

if TYPE_CHECKING:
    from airflow_provider_icechunk.storage.base import Storage


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FilePlace(_Closed):
    """A folder that the driver and every executor reach under the same path."""

    kind: Literal["file"] = "file"
    path: str = Field(pattern="^/")

    def storage(self) -> Storage:
        """The storage at this place."""
        from airflow_provider_icechunk.storage.locate import locate

        return locate(self.path)


class S3Place(_Closed):
    """A prefix of a bucket; whoever connects uses the credentials of its own environment."""

    kind: Literal["s3"] = "s3"
    bucket: str
    prefix: str = ""
    region: str | None = None
    endpoint_url: str | None = None
    allow_http: bool = False
    force_path_style: bool = False
    anonymous: bool = False

    def storage(self) -> Storage:
        """The storage at this place."""
        from airflow_provider_icechunk.storage.locate import locate

        return locate(
            f"s3://{self.bucket}/{self.prefix}",
            region=self.region,
            endpoint_url=self.endpoint_url,
            allow_http=self.allow_http,
            force_path_style=self.force_path_style,
            anonymous=self.anonymous,
        )


Place = Annotated[FilePlace | S3Place, Field(discriminator="kind")]
"""Where a repository is, without credentials."""


class SessionDescription(_Closed):
    """An open session as it travels between tasks."""

    repository: str
    """Path of the repository below the root of its connection."""
    conn_id: str
    place: Place
    work_unit: dict[str, str | int]
    fragments: str
    """Prefix of the keys under which writers leave their fragments."""


class ArrayWrite(_Closed):
    """One array to fill, or a part of it, by one of the built-in generators."""

    kind: Literal["generator"] = "generator"
    array: str
    generator: str
    region: dict[str, tuple[NonNegativeInt, NonNegativeInt]] = {}
    """The part to write, first and end by name or number of dimension, widened to whole chunks; by
    default all of the array."""

    @field_validator("region", mode="before")
    @classmethod
    def _keys_as_text(cls, value: Any) -> Any:
        """Keys as JSON has them, also of a job that was never JSON."""
        return {str(k): v for k, v in value.items()} if isinstance(value, dict) else value


FileNames = Annotated[tuple[str, ...], Field(min_length=1)]
"""Absolute paths or URLs in the order of the data; `*` in a path stands for sorted names."""


class FilesWrite(_Closed):
    """Many files whose values are copied into one array, as `ingest_files` does."""

    kind: Literal["files"]
    files: FileNames
    variable: str
    array: str
    axis: NonNegativeInt | str = 0
    """The dimension of the array along which the files follow each other: its number or name."""
    start: NonNegativeInt | None = None


class VirtualWrite(_Closed):
    """Many files whose chunks are referred to, as `ingest_virtual` does."""

    kind: Literal["virtual"]
    files: FileNames
    variables: dict[str, str] | tuple[str, ...] | None = None
    along: str | NonNegativeInt = "time"
    load: tuple[str, ...] | None = None
    into: str = ""
    start: NonNegativeInt | None = None
    checksum: Literal["auto", "etag", "modified"] = "auto"
    authorize: Annotated[tuple[str, ...], Field(min_length=1)]
    """URL prefixes that the job may read, with the credentials of its own environment; the
    repository has to declare them as virtual chunk containers."""


def _kind(value: object) -> str:
    given = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "generator" if given is None else str(given)


Write = Annotated[
    Annotated[ArrayWrite, Tag("generator")]
    | Annotated[FilesWrite, Tag("files")]
    | Annotated[VirtualWrite, Tag("virtual")],
    Discriminator(_kind),
]
"""What a job can write; without `kind`, an array by a generator."""


class JobSpecification(_Closed):
    """A whole job."""

    session: SessionDescription
    writes: tuple[Write, ...] = Field(min_length=1)
    tasks: int | None = Field(default=None, ge=1, le=100_000)
    """Tasks for each write; by default two for each core that Spark has."""

    @property
    def appends(self) -> bool:
        """Whether anything is written at the end of arrays, wherever that is by then."""
        return any(appends(write.model_dump()) for write in self.writes)

    @property
    def writer(self) -> str:
        """A name for what this job writes: the same again on a retry, another for another job."""
        writes = sorted(write.model_dump_json(exclude_defaults=True) for write in self.writes)
        return f"spark-{hashlib.sha256(json.dumps(writes).encode()).hexdigest()[:16]}"


def appends(write: object) -> bool:
    """Whether an entry of a job's list goes to the end of an array, wherever that is by then."""
    if not isinstance(write, Mapping):
        return False
    return write.get("kind") in ("files", "virtual") and write.get("start") is None


def parse_session(value: dict[str, Any] | str) -> SessionDescription:
    """The session in a dictionary or JSON text; says what is wrong with anything else."""
    try:
        if isinstance(value, str):
            return SessionDescription.model_validate_json(value)
        return SessionDescription.model_validate(value)
    except ValidationError as error:
        raise InvalidInputError(
            f"this is not what IcechunkOpenSessionOperator returned: {describe(error)}"
        ) from None


def parse_job(argument: str) -> JobSpecification:
    """The job in JSON text, or in the file that `@path` names."""
    text = Path(argument[1:]).read_text() if argument.startswith("@") else argument
    try:
        return JobSpecification.model_validate_json(text)
    except ValidationError as error:
        raise InvalidInputError(f"the job specification is wrong: {describe(error)}") from None


def describe(error: ValidationError) -> str:
    """The problems by place and reason, without the values, which may be secrets."""
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'the whole'}: {problem['msg']}"
        for problem in problems[:10]
    )
