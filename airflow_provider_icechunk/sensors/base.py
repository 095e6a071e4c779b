"""What all sensors share: poke, reschedule or defer, with the same result."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_icechunk.compat import AirflowFailException, conf
from airflow_provider_icechunk.engine.pipelines.observe import is_temporary
from airflow_provider_icechunk.exceptions import IcechunkError
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook, OpenRepository

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from airflow_provider_icechunk.api import Repository


class WaitingSensor(BaseSensorOperator):
    """Poll a repository until there is a result; temporary storage errors are retried.

    :param repository: path of the repository, relative to the connection's root. (templated)
    :param icechunk_conn_id: the Icechunk connection.
    :param deferrable: whether to wait in the triggerer instead of a worker.
    """

    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        repository: str,
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.repository = repository
        self.icechunk_conn_id = icechunk_conn_id
        self.deferrable = deferrable
        self._opened = OpenRepository()

    @abstractmethod
    def poll(self, repository: Repository) -> dict[str, Any] | None:
        """The result, or `None` to keep waiting."""

    def polling(self) -> dict[str, Any]:
        """What the trigger of every sensor is told."""
        return {
            "repository": self.repository,
            "icechunk_conn_id": self.icechunk_conn_id,
            "poll_interval": float(self.poke_interval),
        }

    @abstractmethod
    def make_trigger(self) -> BaseTrigger:
        """The trigger that waits for the same result."""

    def poke(self, context: Context) -> PokeReturnValue:
        """Poll once."""
        del context
        try:
            answer = self._opened.ask(self.icechunk_conn_id, self.repository, self.poll)
        except IcechunkError as error:
            if not is_temporary(error):
                raise AirflowFailException(f"{error.kind.value}: {error}") from error
            self.log.info("Not yet: %s", error)
            answer = None
        return PokeReturnValue(is_done=answer is not None, xcom_value=answer)

    def execute(self, context: Context) -> Any:
        """Wait in a worker or in the triggerer, and return the result."""
        if not self.deferrable:
            return super().execute(context)
        answer = self.poke(context)
        if answer:
            return answer.xcom_value
        return self.defer(
            trigger=self.make_trigger(),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def execute_complete(
        self, context: Context, event: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the trigger's result."""
        del context
        if not event or event.get("status") != "success":
            reported = event or {}
            text = f"{reported.get('kind', 'internal')}: {reported.get('message', 'no event')}"
            raise AirflowFailException(text)
        return dict(event["result"])
