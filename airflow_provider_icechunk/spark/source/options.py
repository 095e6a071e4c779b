"""The options of the data source; unknown or contradictory ones are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from airflow_provider_icechunk.engine.closed import ClosedModel, describe
from airflow_provider_icechunk.engine.storage.location import OPTIONS, StorageLocation
from airflow_provider_icechunk.exceptions import InvalidInputError

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.repository import Repository
    from airflow_provider_icechunk.engine.storage.base import Storage


NOW = "now"
"""Start with the first commit after the first start of the query."""
EVERYTHING = "everything"
"""Start with everything that exists at that time, as if one commit had created it."""
_OF_SPARK = frozenset({"checkpointlocation", "queryname"})
"""Options for Spark itself, which it also passes to a stream's source or sink."""
_ALIASES = {"versionasof": "snapshot", "timestampasof": "asof"}
"""Names that other table formats use."""
_OF_A_TABLE = "provider"
"""What Spark adds when a table is created."""


class SourceOptions(ClosedModel):
    """Options as Spark passes them: strings, with lower-case names."""

    path: str = Field(min_length=1)
    """The address of the repository."""
    location: StorageLocation
    """The same, with the options that belong to it."""

    authorize: tuple[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9+.-]*://")], ...] = ()
    """URL prefixes of virtual chunks that may be read, with credentials from the environment; the
    repository must declare them as virtual chunk containers."""

    node: str = "/"
    """The array or group in the repository."""
    branch: str | None = None
    tag: str | None = None
    snapshot: str | None = None
    asof: datetime | None = None
    layout: Literal["long", "chunks", "changes"] = "long"
    metadata: str | None = None
    """A table of metadata to read instead of values."""
    dim: str | None = None
    """For the metadata table `coverage`: the dimension."""
    variables: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    """The columns of a long frame to produce."""
    isel: dict[str, int | tuple[int, int]] = Field(default={})
    sel: dict[str, tuple[Any, Any]] = Field(default={})
    coordinates: bool = True
    decode: bool = True
    """Whether values are decoded by the CF conventions."""
    tasks: int | None = Field(default=None, ge=1, le=100_000)

    job: str | None = None
    """For writes: an id that is the same for every attempt; by default each write gets its own."""
    message: str | None = None
    encoded: bool = False

    since: str = NOW
    """For changes: the snapshot after which they start, `NOW` or `EVERYTHING`."""
    commits_per_batch: int | None = Field(default=None, ge=1)
    """For streams of changes: the maximum number of commits in a batch."""
    look_back: int = Field(default=1000, ge=1)
    """For writing streams: how many snapshots are searched for an earlier commit of a batch."""

    @field_validator("isel", "sel", mode="before")
    @classmethod
    def _from_json(cls, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    @field_validator("variables", "columns", mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return tuple(value.split(",")) if isinstance(value, str) else value

    @field_validator("authorize", mode="before")
    @classmethod
    def _from_prefixes(cls, value: Any) -> Any:
        """Comma-separated prefixes, or a JSON list if they contain commas."""
        if not isinstance(value, str):
            return value
        found = json.loads(value) if value.lstrip().startswith("[") else value.split(",")
        return tuple(one.strip() if isinstance(one, str) else one for one in found)

    def storage(self) -> Storage:
        """The storage of the repository; credentials come from the environment."""
        return self.location.storage()

    def repository(self) -> Repository:
        """Open the repository, with access to the authorized virtual chunks."""
        from airflow_provider_icechunk.engine.repository import Repository

        granted = dict.fromkeys(self.authorize)
        return Repository.open(self.storage(), authorize_virtual_chunk_access=granted or None)


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options; errors do not quote values, which may be secret."""
    given = {name.lower(): options[name] for name in options}
    if _OF_A_TABLE in given:
        raise InvalidInputError(
            "Spark does not pass the options of a table to a Python data source when it is read: "
            "use CREATE TEMPORARY VIEW ... USING icechunk OPTIONS (...)"
        )
    try:
        ours = {name: value for name, value in given.items() if name not in _OF_SPARK}
        # An alias given together with its name is kept, and refused as unknown.
        known = {
            _ALIASES[name] if _ALIASES.get(name, name) not in ours else name: value
            for name, value in ours.items()
        }
        where = {name: known.pop(name) for name in OPTIONS if name in known}
        # Without an address, the error says that `path` is missing.
        place = {"url": known.get("path") or "memory://missing", **where}
        return SourceOptions.model_validate({**known, "location": place})
    except ValidationError as error:
        raise InvalidInputError(f"invalid options for icechunk: {describe(error)}") from None
