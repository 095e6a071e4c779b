"""A session as passed between tasks, and where its repository is, as JSON without secrets."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationError

from airflow_provider_icechunk.engine.closed import ClosedModel, describe
from airflow_provider_icechunk.engine.datasets.dataset import IcechunkDataset, Placement
from airflow_provider_icechunk.engine.storage.location import StorageLocation
from airflow_provider_icechunk.engine.workers.releases import RELEASE, both_releases
from airflow_provider_icechunk.exceptions import InvalidInputError


def _as_location(value: Any) -> Any:
    """The value that earlier releases put into sessions, in its present form."""
    if not isinstance(value, dict):
        return value
    match value.get("kind"):
        case "file" if str(value.get("path", "")).startswith("/"):
            rest = {name: one for name, one in value.items() if name not in ("kind", "path")}
            return {"url": value["path"], **rest}
        case "s3":
            known = ("kind", "bucket", "prefix")
            rest = {name: one for name, one in value.items() if name not in known}
            return {"url": f"s3://{value.get('bucket', '')}/{value.get('prefix', '')}", **rest}
    return value


Place = Annotated[StorageLocation, BeforeValidator(_as_location)]
"""The location of a repository; each process uses the credentials of its own environment."""


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
    release: str | None = None
    """The release of this package that described the session, for messages of another one."""

    def declared(self) -> tuple[IcechunkDataset, Placement] | None:
        """The dataset and the place in it, if the session was opened for one."""
        if self.dataset is None or self.placement is None:
            return None
        return IcechunkDataset.from_json(self.dataset), Placement.from_json(self.placement)


def parse_session(value: dict[str, Any] | str) -> SessionDescription:
    """The session from a dictionary or JSON text; raises an error that explains what is wrong."""
    try:
        if isinstance(value, str):
            return SessionDescription.model_validate_json(value)
        return SessionDescription.model_validate(value)
    except ValidationError as error:
        raise InvalidInputError(
            f"this is not what IcechunkOpenSessionOperator returned: {describe(error)}"
            f"{other_release(value)}"
        ) from None


def other_release(value: dict[str, Any] | str) -> str:
    """Says that another release wrote a session, or a job with one, to explain unknown fields."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return ""
    if isinstance(found, dict) and isinstance(found.get("session"), dict):
        found = found["session"]
    return both_releases(found.get(RELEASE) if isinstance(found, dict) else None)
