"""Wait until a tag, a group or an array exists."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow_provider_icechunk.triggers.base import PollingTrigger
from airflow_provider_icechunk.triggers.presence import IcechunkNodeTrigger, IcechunkTagTrigger

from .base import WaitingSensor

if TYPE_CHECKING:
    from airflow_provider_icechunk.api import Repository


class PresenceSensor(WaitingSensor):
    """A sensor that polls the way its trigger does."""

    @abstractmethod
    def make_trigger(self) -> PollingTrigger:
        """The trigger that waits for the same result."""

    def poll(self, repository: Repository) -> dict[str, Any] | None:
        """The result, or `None` to keep waiting."""
        return self.make_trigger().poll(repository)


class IcechunkTagSensor(PresenceSensor):
    """Wait until a tag exists. Returns `tag` and `snapshot_id`.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param tag: the tag to wait for. (templated)
    :param icechunk_conn_id: the Icechunk connection.
    :param deferrable: whether to wait in the triggerer instead of a worker.
    """

    template_fields = ("repository", "tag")

    def __init__(self, *, tag: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tag = tag

    def make_trigger(self) -> IcechunkTagTrigger:
        """The trigger that waits for the same tag."""
        return IcechunkTagTrigger(tag=self.tag, **self.polling())


class IcechunkNodeSensor(PresenceSensor):
    """Wait until a group or array exists, with the given attributes and minimum shape.

    Returns `path`, `kind`, `shape`, the given `attributes`, `branch` and `snapshot_id`.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param path: path of the group or array. (templated)
    :param branch: the branch to follow. (templated)
    :param kind: `array` or `group`, if only one of them will do.
    :param attributes: attributes and values it must have. (templated)
    :param minimum_shape: shape that the array must have reached in every dimension. (templated)
    :param icechunk_conn_id: the Icechunk connection.
    :param deferrable: whether to wait in the triggerer instead of a worker.
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

    def make_trigger(self) -> IcechunkNodeTrigger:
        """The trigger that waits for the same node."""
        return IcechunkNodeTrigger(
            path=self.path,
            branch=self.branch,
            kind=self.kind,
            attributes=self.attributes,
            minimum_shape=self.minimum_shape,
            **self.polling(),
        )
