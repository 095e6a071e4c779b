"""Options of the data source, checked: an unknown or contradictory one is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from airflow_provider_icechunk.exceptions import InvalidInputError
from airflow_provider_icechunk.spark.specification import describe

if TYPE_CHECKING:
    from airflow_provider_icechunk.storage.base import Storage


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


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of a read or a write; says what is wrong with others, without their values."""
    try:
        given = {name.lower(): options[name] for name in options}
        ours = {name: value for name, value in given.items() if name not in _OF_SPARK}
        return SourceOptions.model_validate(ours)
    except ValidationError as error:
        raise InvalidInputError(f"wrong options for icechunk: {describe(error)}") from None
