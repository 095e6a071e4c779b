"""Wait until a tag, a group or an array exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_icechunk.engine.pipelines.observe import poll_node, poll_tag
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook

from .base import STAMP, PollingTrigger

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Repository


class IcechunkTagTrigger(PollingTrigger):
    """Wait until a tag exists; the deferred half of IcechunkTagSensor.

    :param repository: path of the repository, relative to the connection's root.
    :param tag: the tag to wait for.
    :param icechunk_conn_id: the Icechunk connection.
    :param poll_interval: seconds between polls.
    """

    def __init__(
        self,
        *,
        repository: str,
        tag: str,
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        poll_interval: float = 60.0,
        **stamp: Any,
    ) -> None:
        super().__init__(
            repository=repository,
            icechunk_conn_id=icechunk_conn_id,
            poll_interval=poll_interval,
            **stamp,
        )
        self.tag = tag

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments, for the triggerer."""
        return (
            "airflow_provider_icechunk.triggers.presence.IcechunkTagTrigger",
            {
                "repository": self.repository,
                "tag": self.tag,
                "icechunk_conn_id": self.icechunk_conn_id,
                "poll_interval": self.poll_interval,
                **STAMP,
            },
        )

    def poll(self, repository: Repository) -> dict[str, Any] | None:
        """The tag and its snapshot."""
        return poll_tag(repository, self.tag)


class IcechunkNodeTrigger(PollingTrigger):
    """Wait until a group or array exists; the deferred half of IcechunkNodeSensor.

    :param repository: path of the repository, relative to the connection's root.
    :param path: path of the group or array.
    :param branch: the branch to follow.
    :param kind: `array` or `group`, if only one of them will do.
    :param attributes: attributes and values it must have.
    :param minimum_shape: shape that the array must have reached in every dimension.
    :param icechunk_conn_id: the Icechunk connection.
    :param poll_interval: seconds between polls.
    """

    def __init__(
        self,
        *,
        repository: str,
        path: str,
        branch: str = "main",
        kind: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        minimum_shape: Sequence[int] | None = None,
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        poll_interval: float = 60.0,
        **stamp: Any,
    ) -> None:
        super().__init__(
            repository=repository,
            icechunk_conn_id=icechunk_conn_id,
            poll_interval=poll_interval,
            **stamp,
        )
        self.path = path
        self.branch = branch
        self.kind = kind
        self.attributes = attributes
        self.minimum_shape = minimum_shape

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and the arguments, for the triggerer."""
        return (
            "airflow_provider_icechunk.triggers.presence.IcechunkNodeTrigger",
            {
                "repository": self.repository,
                "path": self.path,
                "branch": self.branch,
                "kind": self.kind,
                "attributes": self.attributes,
                "minimum_shape": self.minimum_shape,
                "icechunk_conn_id": self.icechunk_conn_id,
                "poll_interval": self.poll_interval,
                **STAMP,
            },
        )

    def poll(self, repository: Repository) -> dict[str, Any] | None:
        """The node, if it matches."""
        return poll_node(
            repository,
            self.path,
            branch=self.branch,
            kind=self.kind,
            attributes=self.attributes,
            minimum_shape=self.minimum_shape,
        )
