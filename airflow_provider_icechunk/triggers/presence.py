"""Wait until a tag, a group or an array exists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_icechunk.engine.pipelines.observe import poll_node, poll_tag

from .base import PollingTrigger

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Repository


class IcechunkTagTrigger(PollingTrigger):
    """Wait until a tag exists; the deferred half of IcechunkTagSensor.

    :param repository: path of the repository, relative to the connection's root.
    :param tag: the tag to wait for.
    :param icechunk_conn_id: the Icechunk connection.
    :param poll_interval: seconds between polls.
    """

    arguments: ClassVar[tuple[str, ...]] = ("tag",)

    def __init__(self, *, tag: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tag = tag

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

    arguments: ClassVar[tuple[str, ...]] = ("path", "branch", "kind", "attributes", "minimum_shape")

    def __init__(
        self,
        *,
        path: str,
        branch: str = "main",
        kind: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        minimum_shape: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.branch = branch
        self.kind = kind
        self.attributes = attributes
        self.minimum_shape = minimum_shape

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
