"""A session between tasks, and where its repository is, as JSON without secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
)

from airflow_provider_icechunk.engine.datasets.dataset import IcechunkDataset, Placement
from airflow_provider_icechunk.exceptions import InvalidInputError

if TYPE_CHECKING:
    from airflow_provider_icechunk.engine.storage.base import Storage


class ClosedModel(BaseModel):
    """A frozen value that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FilePlace(ClosedModel):
    """A folder that the driver and every executor reach under the same path."""

    kind: Literal["file"] = "file"
    path: str = Field(pattern="^/")

    def storage(self) -> Storage:
        """The storage at this place."""
        from airflow_provider_icechunk.engine.storage.location import locate

        return locate(self.path)


class S3Place(ClosedModel):
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
        from airflow_provider_icechunk.engine.storage.location import locate

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


class SessionDescription(ClosedModel):
    """An open session as it travels between tasks."""

    repository: str
    """Path of the repository below the root of its connection."""
    conn_id: str
    place: Place
    work_unit: dict[str, str | int]
    fragments: str
    """Prefix of the keys under which writers leave their fragments."""
    dataset: dict[str, Any] | None = None
    """The declaration that the session was opened for, without the values of coordinates, which are
    in the session."""
    placement: dict[str, Any] | None = None
    """Where in the dataset the run belongs."""

    def declared(self) -> tuple[IcechunkDataset, Placement] | None:
        """The dataset and the place in it, if the session was opened for one."""
        if self.dataset is None or self.placement is None:
            return None
        return IcechunkDataset.from_json(self.dataset), Placement.from_json(self.placement)


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


def describe(error: ValidationError) -> str:
    """The problems by place and reason, without the values, which may be secrets."""
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'the whole'}: {problem['msg']}"
        for problem in problems[:10]
    )
