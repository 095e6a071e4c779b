"""Options of the data source, checked: an unknown or contradictory one is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.specification import describe

if TYPE_CHECKING:
    from airflow_provider_icechunk.storage.base import Storage
    from airflow_provider_icechunk.zarr_store.sessions import Repository


NOW = "now"
"""Begin with the first commit after the query was started for the first time."""
EVERYTHING = "everything"
"""Begin with all that is there at that time, as if one commit had made it."""
_OF_SPARK = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark hands on to a stream's source or sink but that are meant for itself."""


class SourceOptions(BaseModel):
    """Options as Spark hands them over: texts, with names in lower case."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(min_length=1)
    """Where the repository is."""
    region: str | None = None
    endpoint_url: str | None = None
    allow_http: bool = False
    force_path_style: bool = False
    anonymous: bool = False

    authorize: tuple[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9+.-]*://")], ...] = ()
    """URL prefixes of virtual chunks that may be read, with the credentials of the environment; the
    repository has to declare them as virtual chunk containers."""

    node: str = "/"
    """The array or group inside of the repository."""
    branch: str | None = None
    tag: str | None = None
    snapshot: str | None = None
    asof: datetime | None = None
    layout: Literal["long", "chunks", "changes"] = "long"
    variables: tuple[str, ...] | None = None
    isel: dict[str, int | tuple[int, int]] = {}
    sel: dict[str, tuple[Any, Any]] = {}
    coordinates: bool = True
    tasks: int | None = Field(default=None, ge=1, le=100_000)

    job: str | None = None
    """For writing: an id that is the same on every attempt; by default every write has its own."""
    message: str | None = None
    encoded: bool = False

    since: str = NOW
    """For changes: after which snapshot they begin; or `NOW`, or `EVERYTHING`."""
    commits_per_batch: int | None = Field(default=None, ge=1)
    """For a stream of changes: how many commits a batch has at most."""
    look_back: int = Field(default=1000, ge=1)
    """For a stream that is written: how many snapshots are searched for a batch's first commit."""

    @field_validator("isel", "sel", mode="before")
    @classmethod
    def _from_json(cls, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    @field_validator("variables", mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return tuple(value.split(",")) if isinstance(value, str) else value

    @field_validator("authorize", mode="before")
    @classmethod
    def _from_prefixes(cls, value: Any) -> Any:
        """Prefixes with commas between them, or, for those that have some, a list as JSON."""
        if not isinstance(value, str):
            return value
        found = json.loads(value) if value.lstrip().startswith("[") else value.split(",")
        return tuple(one.strip() if isinstance(one, str) else one for one in found)

    def storage(self) -> Storage:
        """The storage of the repository; credentials come from the environment."""
        from airflow_provider_icechunk.storage.locate import locate

        return locate(
            self.path,
            region=self.region,
            endpoint_url=self.endpoint_url,
            allow_http=self.allow_http,
            force_path_style=self.force_path_style,
            anonymous=self.anonymous,
        )

    def repository(self) -> Repository:
        """The repository, opened with the right to read the virtual chunks that are authorized."""
        from airflow_provider_icechunk.zarr_store.sessions import Repository

        granted = dict.fromkeys(self.authorize)
        return Repository.open(self.storage(), authorize_virtual_chunk_access=granted or None)


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of a read or a write; says what is wrong with others, without their values."""
    try:
        given = {name.lower(): options[name] for name in options}
        ours = {name: value for name, value in given.items() if name not in _OF_SPARK}
        return SourceOptions.model_validate(ours)
    except ValidationError as error:
        raise InvalidInputError(f"wrong options for icechunk: {describe(error)}") from None
