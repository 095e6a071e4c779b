"""Wait until a tag, a group or an array is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_provider_icechunk.hooks.observing import look_for_node, look_for_tag
from airflow_provider_icechunk.sensors.waiting import WaitingSensor
from airflow_provider_icechunk.triggers.presence import IcechunkNodeTrigger, IcechunkTagTrigger

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Repository


class IcechunkTagSensor(WaitingSensor):
    """Wait until a tag is there. Returns `tag` and `snapshot_id`.

    :param repository: path below the root of the connection. (templated)
    :param tag: the tag. (templated)
    :param icechunk_conn_id: the connection.
    :param deferrable: whether the triggerer waits instead of a worker.
    """

    template_fields = ("repository", "tag")

    def __init__(self, *, tag: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tag = tag

    def look(self, repository: Repository) -> dict[str, Any] | None:
        """Which snapshot the tag names."""
        return look_for_tag(repository, self.tag)

    def make_trigger(self) -> IcechunkTagTrigger:
        """The trigger that waits for the same tag."""
        return IcechunkTagTrigger(
            repository=self.repository,
            tag=self.tag,
            icechunk_conn_id=self.icechunk_conn_id,
            poll_interval=float(self.poke_interval),
        )


class IcechunkNodeSensor(WaitingSensor):
    """Wait until a group or an array is there, has certain attributes or has grown far enough.

    Returns `path`, `kind`, `shape`, the `attributes` that were asked for, `branch` and
    `snapshot_id`.

    :param repository: path below the root of the connection. (templated)
    :param path: path of the group or array. (templated)
    :param branch: the branch to look at. (templated)
    :param kind: `array` or `group`, if it has to be one of them.
    :param attributes: attributes it must have, with these values. (templated)
    :param minimum_shape: lengths that the array must have reached, one for each dimension.
        (templated)
    :param icechunk_conn_id: the connection.
    :param deferrable: whether the triggerer waits instead of a worker.
    """

    template_fields = ("repository", "path", "branch", "attributes", "minimum_shape")
    template_fields_renderers: ClassVar[dict[str, str]] = {"attributes": "json"}

    def __init__(
        self,
        *,
        path: str,
        branch: str = "main",
        kind: Literal["array", "group"] | None = None,
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

    def look(self, repository: Repository) -> dict[str, Any] | None:
        """The node, if it is as asked for."""
        return look_for_node(
            repository,
            self.path,
            branch=self.branch,
            kind=self.kind,
            attributes=self.attributes,
            minimum_shape=self.minimum_shape,
        )

    def make_trigger(self) -> IcechunkNodeTrigger:
        """The trigger that waits for the same node."""
        return IcechunkNodeTrigger(
            repository=self.repository,
            path=self.path,
            branch=self.branch,
            kind=self.kind,
            attributes=self.attributes,
            minimum_shape=self.minimum_shape,
            icechunk_conn_id=self.icechunk_conn_id,
            poll_interval=float(self.poke_interval),
        )
